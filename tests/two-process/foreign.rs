//! A client in Python that knows only `docs/protocol.md` runs the conformance requests.
//!
//! ```text
//! Draft ─► JSON line ─► tests/foreign/client.py ─► service        JSON line ─► completion, bytes ─► oracle
//! ```
//!
//! `tests/foreign/README.md` defines the lines. Without the client or Python nothing is tested.

mod harness;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use harness::{SOON, Service};
use memferry::{Failure, Pattern, Plane, Side};
use memferry_conformance::requests::{Draft, FRAME_BYTES, FRAMES, RequestFixture, Served, request_suite};
use memferry_service::protocol::{VERSIONS, Violation, encode};
use memferry_transfer::{Completion, Count2d, Operation, Segment, wire};
use serde_json::{Value, json};

const CAPACITY: u32 = 8;

/// The client, and the service that it talks to.
struct Foreign {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    _service: Service,
}

impl Foreign {
    /// `None`, with a message, if the client or Python is missing.
    fn start() -> Option<Self> {
        let client = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/foreign/client.py"));
        let client = std::env::var_os("MEMFERRY_TEST_CLIENT").map_or(client, PathBuf::from);
        if !client.is_file() {
            println!("not tested: there is no {}", client.display());
            return None;
        }
        let service = Service::start(&["--workers=1"]);
        let spawned = Command::new("python3")
            .arg(&client)
            .arg(&service.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = spawned.inspect_err(|error| println!("not tested: no python3 ({error})")).ok()?;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).take_while(|line| sender.send(line.clone()).is_ok()).count()
        });
        let input = child.stdin.take();
        let mut foreign = Self { child, input, answers, _service: service };
        let opened = foreign.call(&json!({
            "call": "open", "frames": FRAMES, "bytes": FRAME_BYTES, "capacity": CAPACITY,
        }));
        assert_eq!(opened["version"], VERSIONS.1);
        assert!(number(&opened, "session") > 0);
        Some(foreign)
    }

    fn call(&mut self, call: &Value) -> Value {
        let input = self.input.as_mut().expect("not finished");
        let sent = writeln!(input, "{call}").and_then(|()| input.flush());
        assert!(sent.is_ok(), "the client ended before {call}: {:?}", self.child.wait());
        let answer = self.answers.recv_timeout(SOON);
        let line = answer.unwrap_or_else(|_| panic!("the client does not answer {call}"));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Runs requests together and returns their completions.
    fn run_all(&mut self, requests: &Value) -> Vec<Completion> {
        let answer = self.call(&json!({ "call": "run", "requests": requests }));
        let completions = answer["completions"].as_array().expect("completions");
        assert_eq!(Some(completions.len()), requests.as_array().map(Vec::len));
        completions.iter().map(completion).collect()
    }

    /// Closes the client's input and waits for its end.
    fn finish(mut self) {
        drop(self.input.take());
        assert!(self.answers.recv_timeout(SOON).is_err(), "a line without a call");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(object: &Value, member: &str) -> u64 {
    object[member].as_u64().unwrap_or_else(|| panic!("{member} is no number in {object}"))
}

/// A completion from the words that the client found.
fn completion(object: &Value) -> Completion {
    let inherited = object["inherited"].as_bool().expect("inherited");
    let header = wire::LONG
        | number(object, "status") << 16
        | number(object, "engine") << 24
        | number(object, "side") << 28
        | u64::from(inherited) << 29;
    let words = [header, number(object, "bytes_done"), number(object, "detail")];
    wire::decode_completion(&words, 0).unwrap_or_else(|error| panic!("{error}: {object}"))
}

/// A place, with the start of a walk added to its offset.
fn place(place: &(usize, u64), start: u64) -> Value {
    json!([place.0, place.1 + start])
}

fn steps(plane: &Plane) -> Value {
    json!([plane.x_step, plane.y_step])
}

fn count(count: &Count2d) -> Value {
    json!([count.x_count, count.y_count])
}

fn segments(list: &[Segment<(usize, u64)>]) -> Vec<Value> {
    list.iter().map(|segment| json!([segment.place.0, segment.place.1, segment.length])).collect()
}

fn width_and_value(pattern: Pattern) -> (u32, u32) {
    match pattern {
        Pattern::Byte(value) => (1, value.into()),
        Pattern::Half(value) => (2, value.into()),
        Pattern::Color(color) => (3, color.value()),
        Pattern::Word(value) => (4, value),
    }
}

/// A request in the form of `tests/foreign/README.md`.
fn request(draft: &Draft) -> Value {
    let mut request = match draft {
        Operation::Nop => json!({}),
        Operation::Copy { source, destination, length } => json!({
            "source": place(source, 0), "destination": place(destination, 0), "length": length,
        }),
        Operation::Fill { destination, length, pattern } => {
            let (width, value) = width_and_value(*pattern);
            json!({ "destination": place(destination, 0), "length": length, "value": value, "width": width })
        }
        Operation::Copy2d { source, destination, shape } => json!({
            "source": place(source, shape.source.start), "source_steps": steps(&shape.source),
            "destination": place(destination, shape.destination.start),
            "destination_steps": steps(&shape.destination), "count": count(&shape.count),
            "pixel": shape.count.pixel.bytes(), "colour": shape.transparent.map(|color| color.value()),
        }),
        Operation::Fill2d { destination, shape } => json!({
            "destination": place(destination, shape.destination.start),
            "destination_steps": steps(&shape.destination), "count": count(&shape.count),
            "pixel": shape.count.pixel.bytes(), "colour": shape.color.value(),
        }),
        Operation::ScatterGather { lists } => json!({
            "sources": segments(&lists.source), "destinations": segments(&lists.destination),
        }),
        Operation::Xor { sources, destination, length } => {
            let sources: Vec<_> = sources.iter().map(|source| place(source, 0)).collect();
            json!({ "sources": sources, "destination": place(destination, 0), "length": length })
        }
        Operation::Compare { first, second, length } => json!({
            "first": place(first, 0), "second": place(second, 0), "length": length,
        }),
        Operation::Crc { source, length, seed } => {
            json!({ "source": place(source, 0), "length": length, "seed": seed })
        }
        Operation::CopyCrc { source, destination, length, seed } => json!({
            "source": place(source, 0), "destination": place(destination, 0), "length": length, "seed": seed,
        }),
        Operation::DualCopy { source, destinations: [one, other], length } => json!({
            "source": place(source, 0), "destinations": [place(one, 0), place(other, 0)], "length": length,
        }),
        Operation::Synchronized { .. } => unreachable!("the suite has no device"),
    };
    request["operation"] = json!(draft.name());
    request
}

impl RequestFixture for Foreign {
    fn run(&mut self, draft: &Draft) -> Served {
        let completed = self.run_all(&json!([request(draft)]));
        let outcome = completed[0].outcome;
        Served { outcome: outcome.result, bytes_done: outcome.bytes_done, value: outcome.value }
    }

    fn fill(&mut self, frame: usize, bytes: &[u8]) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.call(&json!({ "call": "write", "frame": frame, "hex": hex }));
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        let answer = self.call(&json!({ "call": "read", "frame": frame }));
        let hex = answer["hex"].as_str().expect("hex");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        (0..hex.len()).step_by(2).map(byte).collect()
    }
}

#[test]
fn foreign_requests_match_the_oracle() {
    let Some(client) = Foreign::start() else { return };
    request_suite(client, 100);
}

#[test]
fn foreign_requests_keep_their_order() {
    let Some(mut client) = Foreign::start() else { return };
    client.fill(0, &[1; FRAME_BYTES as usize]);
    let copy = |offset: u64, linked: bool| {
        json!({
            "operation": "copy", "source": [0, offset], "destination": [1, 0], "length": 8, "linked": linked,
        })
    };
    let fill = json!({ "operation": "fill", "destination": [2, 0], "length": 4, "value": 7, "width": 1 });
    let outside = Err(Failure::OutOfBounds { side: Side::Source, available: FRAME_BYTES });
    let ended = client.run_all(&json!([copy(4090, true), copy(0, true), copy(0, false), fill]));
    let ended: Vec<_> =
        ended.iter().map(|completion| (completion.outcome.result, completion.inherited)).collect();
    assert_eq!(ended, [(outside, false), (outside, true), (outside, true), (Ok(()), false)]);
    let fenced = json!({ "operation": "nop", "fenced": true, "deadline_ms": 60_000 });
    let ended = client.run_all(&json!([copy(0, false), copy(0, false), fenced]));
    assert!(ended.iter().all(|completion| completion.outcome.result.is_ok()));
    let mut member = fill.clone();
    member["linked"] = json!(true);
    let repeat = json!({ "operation": "repeat", "rounds": 3, "linked": true });
    let ended = client.run_all(&json!([repeat, member, copy(0, false), fill]));
    let counts: Vec<_> =
        ended.iter().map(|completion| (completion.outcome.value, completion.outcome.bytes_done)).collect();
    assert_eq!(counts, [(3, 0), (0, 12), (0, 24), (0, 4)]);
    let late = json!({ "operation": "nop", "deadline_ms": -1 });
    assert_eq!(client.run_all(&json!([late]))[0].outcome.result, Err(Failure::DeadlineExceeded));
    // More laps than the ring has slots, with full queues.
    for _ in 0..10 {
        let ended = client.run_all(&vec![copy(0, false); CAPACITY as usize].into());
        assert!(ended.iter().all(|completion| completion.outcome.bytes_done == 8));
    }
    client.finish();
}

#[test]
fn foreign_commands_are_answered() {
    let Some(mut client) = Foreign::start() else { return };
    let derive =
        |offset: u64| json!({ "call": "derive", "frame": 1, "offset": offset, "length": 96, "rights": 1 });
    assert!(number(&client.call(&derive(4000)), "handle") >> 32 > 0);
    let refused = client.call(&derive(4001));
    assert_eq!(refused["kind"], 1);
    assert!(refused["message"].as_str().expect("a message").contains("4096 bytes"), "{refused}");
    let refused = client.call(&json!({ "call": "refused", "capacity": 3 }));
    assert_eq!(refused["kind"], 3);
    assert!(refused["message"].as_str().expect("a message").contains("power of two"), "{refused}");
    let engines = client.call(&json!({ "call": "engines" }));
    assert_eq!((number(&engines, "operations"), number(&engines, "longest_bytes")), (0x7ff, 1 << 40));
    assert_eq!((number(&engines, "engines"), number(&engines, "class")), (1, 1));
    let broken = client.call(&json!({ "call": "broken" }));
    let serial = Violation::Serial { expected: 0, got: 0 };
    assert_eq!(number(&broken, "violation"), u64::from(encode(&serial)[0]));
    client.finish();
}
