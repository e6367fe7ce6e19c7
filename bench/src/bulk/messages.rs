//! Messages between two processes, against UCX (posix, cma), Unix sockets, pipes and process_vm_readv.
//!
//! ```text
//! round, for each size: round trip, halved ─ messages ─ socket ─ pipe ─ UCX tag_lat
//!                       a stream               ─ messages ─ frames, two at a time ─ socket ─ pipe ─ process_vm_readv ─ UCX
//!                                              ─ bytes copied to frames, moved by the engine, and copied out
//! ```
//!
//! Each side starts with an untimed tenth (UCX does so itself); then all move the same number, in an order that rotates from
//! round to round.
//!
//! A received message lies in this process's own buffer, on all sides. Against sockets, pipes and
//! process_vm_readv, every byte is then read; against UCX, which reads nothing and sends unfilled buffers, nothing
//! is. UCX resends the same buffer, so frames are few here: two of the sender's, three of the receiver's. Sockets
//! have the default buffer size, pipes 1 MiB.

use std::io::{Read, Write};
use std::time::Instant;

use memferry_bulk::{Consumer, Content};

use super::partner::{ECHO, LONGEST, Partner};
use crate::BenchError;
use crate::children::Service;
use crate::pair::Reader;
use crate::peer::Peer;
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::service::ucx;
use crate::timing::{random_bytes, since_ns};

const ROUNDS: usize = 7;

/// Bytes, name, count per round, and target relative to UCX's tag_lat.
const LATENCIES: [(u64, &str, u64, Target); 3] = [
    (8, "8 B", 4000, Target::None),
    (4 << 10, "4 KiB", 2000, Target::AtMost(1.0)),
    (64 << 10, "64 KiB", 300, Target::None),
];

/// A stream: bytes, name, count per round, UCX's test, and targets for messages and frames.
struct Stream {
    bytes: u64,
    name: &'static str,
    count: u64,
    ucx: &'static str,
    targets: [Target; 2],
}

const STREAMS: [Stream; 3] = [
    Stream { bytes: 64 << 10, name: "64 KiB", count: 400, ucx: "tag_bw", targets: [Target::None; 2] },
    Stream { bytes: 1 << 20, name: "1 MiB", count: 60, ucx: "tag_bw", targets: [Target::AtLeast(1.0); 2] },
    Stream {
        bytes: 16 << 20,
        name: "16 MiB",
        count: 8,
        ucx: "ucp_put_bw",
        targets: [Target::None, Target::AtLeast(1.4)],
    },
];

struct Sides {
    partner: Partner,
    peer: Option<Peer>,
    frames: (u64, Consumer),
    buffer: Vec<u8>,
    reader: Reader,
    ucx: bool,
}

struct Latency {
    ours: f64,
    socket: f64,
    pipe: f64,
    ucx: Option<f64>,
}

/// Rates in bytes per ns.
struct Bandwidth {
    messages: f64,
    messages_read: f64,
    frames: f64,
    frames_read: f64,
    staged: f64,
    socket: f64,
    pipe: f64,
    read_over: Option<f64>,
    ucx: Option<f64>,
}

impl Sides {
    fn start(run: &Run, service: &Service) -> Result<Self, BenchError> {
        let mut peer = Peer::start(usize::try_from(LONGEST)?)?;
        let peer = peer.read(4096).is_ok().then_some(peer);
        let mut partner = Partner::start(run.directory(), service)?;
        let (set, receiver) = partner.open(2, 2, LONGEST)?;
        let consumer = Consumer::new(receiver, &partner.client, 2, LONGEST)?;
        let buffer = random_bytes(usize::try_from(LONGEST)?, 3);
        let reader = Reader::new();
        Ok(Self { partner, peer, frames: (set, consumer), buffer, reader, ucx: ucx::installed() })
    }

    /// Half the round-trip time of a message.
    fn message(&mut self, bytes: u64, count: u64) -> Result<f64, BenchError> {
        let out = &self.buffer[..usize::try_from(bytes)?];
        let started = Instant::now();
        for _ in 0..count {
            self.partner.sender.send(ECHO, out, None)?;
            self.partner.receiver.receive(None)?;
        }
        Ok(since_ns(started) / (2 * count) as f64)
    }

    fn socket_echo(&mut self, bytes: u64, count: u64) -> Result<f64, BenchError> {
        self.partner.by_socket(true, count, bytes)?;
        let part = &mut self.buffer[..usize::try_from(bytes)?];
        let started = Instant::now();
        for _ in 0..count {
            self.partner.socket.write_all(part)?;
            self.partner.socket.read_exact(part)?;
        }
        Ok(since_ns(started) / (2 * count) as f64)
    }

    fn pipe_echo(&mut self, bytes: u64, count: u64) -> Result<f64, BenchError> {
        self.partner.by_pipe(true, count, bytes)?;
        let part = &mut self.buffer[..usize::try_from(bytes)?];
        let (input, output) = self.partner.pipes();
        let started = Instant::now();
        for _ in 0..count {
            input.write_all(part)?;
            output.read_exact(part)?;
        }
        Ok(since_ns(started) / (2 * count) as f64)
    }

    fn messages(&mut self, stream: &Stream, read: bool) -> Result<f64, BenchError> {
        self.partner.pin(1)?;
        let started = Instant::now();
        self.partner.send(stream.count, stream.bytes)?;
        for _ in 0..stream.count {
            match self.partner.receiver.receive(None)?.content {
                Content::Bytes(bytes) if read => self.reader.buffer(bytes),
                Content::Bytes(_) => {}
                Content::Range(_) => return Err("received a frame instead of a message".into()),
            }
        }
        Ok((stream.count * stream.bytes) as f64 / since_ns(started))
    }

    fn by_engine(&mut self, stream: &Stream, read: bool) -> Result<f64, BenchError> {
        self.partner.pin(0)?;
        let (set, consumer) = &mut self.frames;
        let started = Instant::now();
        self.partner.put(*set, stream.count, stream.bytes)?;
        for _ in 0..stream.count {
            let taken = consumer.take(None)?;
            if let Some(frame) = consumer.frame(taken.frame).filter(|_| read) {
                self.reader.frame(frame, taken.length)?;
            }
        }
        let speed = (stream.count * stream.bytes) as f64 / since_ns(started);
        self.partner.pin(1)?;
        Ok(speed)
    }

    /// Messages as the engine would move them: a program's own bytes must first be copied to a frame.
    fn staged(&mut self, stream: &Stream) -> Result<f64, BenchError> {
        self.partner.pin(0)?;
        let length = usize::try_from(stream.bytes)?;
        let (set, consumer) = &mut self.frames;
        let started = Instant::now();
        self.partner.put_bytes(*set, stream.count, stream.bytes)?;
        for _ in 0..stream.count {
            let taken = consumer.take(None)?;
            let frame = consumer.frame(taken.frame).ok_or("no such frame")?;
            frame.read(0, &mut self.buffer[..length])?;
        }
        let speed = (stream.count * stream.bytes) as f64 / since_ns(started);
        self.partner.pin(1)?;
        Ok(speed)
    }

    /// Reads a stream from the partner: every byte from the stream, then once more.
    fn drain(
        from: &mut impl Read,
        (buffer, reader): (&mut [u8], &mut Reader),
        count: u64,
    ) -> Result<f64, BenchError> {
        let started = Instant::now();
        for _ in 0..count {
            from.read_exact(buffer)?;
            reader.buffer(buffer);
        }
        Ok(buffer.len() as f64 * count as f64 / since_ns(started))
    }

    fn socket_stream(&mut self, stream: &Stream) -> Result<f64, BenchError> {
        self.partner.by_socket(false, stream.count, stream.bytes)?;
        let own = (&mut self.buffer[..usize::try_from(stream.bytes)?], &mut self.reader);
        Self::drain(&mut self.partner.socket, own, stream.count)
    }

    fn pipe_stream(&mut self, stream: &Stream) -> Result<f64, BenchError> {
        self.partner.by_pipe(false, stream.count, stream.bytes)?;
        let own = (&mut self.buffer[..usize::try_from(stream.bytes)?], &mut self.reader);
        Self::drain(self.partner.pipes().1, own, stream.count)
    }

    /// NaN if the system call is refused.
    fn read_over(&mut self, stream: &Stream) -> Result<f64, BenchError> {
        let Some(peer) = &mut self.peer else { return Ok(f64::NAN) };
        let length = usize::try_from(stream.bytes)?;
        let started = Instant::now();
        for _ in 0..stream.count {
            peer.read(length)?;
            self.reader.buffer(&peer.buffer()[..length]);
        }
        Ok((stream.count * stream.bytes) as f64 / since_ns(started))
    }

    fn latency(&mut self, bytes: u64, count: u64, round: usize) -> Result<Latency, BenchError> {
        type Way = fn(&mut Sides, u64, u64) -> Result<f64, BenchError>;
        const WAYS: [Way; 3] = [Sides::message, Sides::socket_echo, Sides::pipe_echo];
        self.partner.pin(1)?;
        let mut measured = [0.0; WAYS.len()];
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            WAYS[way](self, bytes, count / 10 + 1)?;
            measured[way] = WAYS[way](self, bytes, count)?;
        }
        let [ours, socket, pipe] = measured;
        let report = self.ucx.then(|| ucx::report("tag_lat", bytes, 5 * count as usize)).transpose()?;
        Ok(Latency { ours, socket, pipe, ucx: report.map(|report| report.average_us * 1000.0) })
    }

    fn bandwidth(&mut self, stream: &Stream, round: usize) -> Result<Bandwidth, BenchError> {
        type Way = fn(&mut Sides, &Stream) -> Result<f64, BenchError>;
        const WAYS: [Way; 8] = [
            |sides, stream| sides.messages(stream, false),
            |sides, stream| sides.messages(stream, true),
            |sides, stream| sides.by_engine(stream, false),
            |sides, stream| sides.by_engine(stream, true),
            Sides::staged,
            Sides::socket_stream,
            Sides::pipe_stream,
            Sides::read_over,
        ];
        let brief = Stream { count: stream.count / 10 + 1, ..*stream };
        let mut measured = [0.0; WAYS.len()];
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            WAYS[way](self, &brief)?;
            measured[way] = WAYS[way](self, stream)?;
        }
        let [messages, messages_read, frames, frames_read, staged, socket, pipe, read_over] = measured;
        let read_over = self.peer.is_some().then_some(read_over);
        let count = 2 * stream.count as usize;
        let report = self.ucx.then(|| ucx::report(stream.ucx, stream.bytes, count)).transpose()?;
        let ucx = report.map(|report| report.mib_per_s * f64::from(1 << 20) / 1e9);
        Ok(Bandwidth { messages, messages_read, frames, frames_read, staged, socket, pipe, read_over, ucx })
    }
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("messages", ROUNDS);
    let service = Service::start(run)?;
    let mut sides = Sides::start(run, &service)?;
    let mut latencies: [Vec<Latency>; LATENCIES.len()] = Default::default();
    let mut bandwidths: [Vec<Bandwidth>; STREAMS.len()] = Default::default();
    for round in 0..rounds {
        // UCX pins its own two ends; ours stays pinned throughout.
        for ((bytes, _, count, _), measured) in LATENCIES.into_iter().zip(&mut latencies) {
            let _pinned = Pinned::to(0)?;
            measured.push(sides.latency(bytes, count, round)?);
        }
        for (stream, measured) in STREAMS.iter().zip(&mut bandwidths) {
            let _pinned = Pinned::to(0)?;
            measured.push(sides.bandwidth(stream, round)?);
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for ((_, name, _, target), measured) in LATENCIES.into_iter().zip(&latencies) {
        rows.extend(latency_rows(name, target, measured));
    }
    for (stream, measured) in STREAMS.iter().zip(&bandwidths) {
        rows.extend(bandwidth_rows(stream, measured));
    }
    Ok(rows)
}

fn latency_rows(name: &str, target: Target, measured: &[Latency]) -> Vec<Row> {
    let all = |value: fn(&Latency) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    let ucx: Vec<f64> = measured.iter().filter_map(|one| Some(one.ours / one.ucx?)).collect();
    let title = format!("{name} message one way, against UCX's tag_lat");
    vec![
        Row::new(format!("{name} message, one way"), "us", Target::None, &all(|one| one.ours / 1000.0)),
        against(&title, target, &ucx),
        Row::new(
            format!("{name}, a Unix socket against a message"),
            "ratio",
            Target::None,
            &all(|one| one.socket / one.ours),
        ),
        Row::new(
            format!("{name}, a pipe against a message"),
            "ratio",
            Target::None,
            &all(|one| one.pipe / one.ours),
        ),
    ]
}

fn bandwidth_rows(stream: &Stream, measured: &[Bandwidth]) -> Vec<Row> {
    let Stream { name, ucx, targets, .. } = stream;
    let all = |value: fn(&Bandwidth) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    let some = |value: fn(&Bandwidth) -> Option<f64>| measured.iter().filter_map(value).collect::<Vec<_>>();
    let speed = |what: &str, values: &[f64]| Row::new(format!("{name} {what}"), "GB/s", Target::None, values);
    let ratio = |what: &str, values: &[f64]| {
        Row::new(format!("{name} messages read, against {what}"), "ratio", Target::None, values)
    };
    vec![
        speed("messages", &all(|one| one.messages)),
        speed("messages, read", &all(|one| one.messages_read)),
        speed("frames by the engine, two at a time", &all(|one| one.frames)),
        speed("frames by the engine, two at a time, read", &all(|one| one.frames_read)),
        Row::new(
            format!("{name} messages, against bytes copied to frames and out of them"),
            "ratio",
            Target::None,
            &all(|one| one.messages / one.staged),
        ),
        against(
            &format!("{name} messages, against UCX's {ucx}"),
            targets[0],
            &some(|one| Some(one.messages / one.ucx?)),
        ),
        against(
            &format!("{name} frames by the engine, against UCX's {ucx}"),
            targets[1],
            &some(|one| Some(one.frames / one.ucx?)),
        ),
        ratio("a Unix socket", &all(|one| one.messages_read / one.socket)),
        ratio("a pipe", &all(|one| one.messages_read / one.pipe)),
        against(
            &format!("{name} messages read, against process_vm_readv"),
            Target::None,
            &some(|one| Some(one.messages_read / one.read_over?)),
        ),
        against(
            &format!("{name} frames by the engine read, against process_vm_readv"),
            Target::None,
            &some(|one| Some(one.frames_read / one.read_over?)),
        ),
    ]
}

/// A row that compares with an alternative, or says that it is unavailable.
fn against(title: &str, target: Target, ratios: &[f64]) -> Row {
    if ratios.is_empty() {
        let what =
            if title.contains("UCX") { ucx::NOT_INSTALLED } else { "process_vm_readv is refused here" };
        return Row::not_measured(title, what);
    }
    Row::new(title, "ratio", target, ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_alternatives_are_reported() {
        let measured = [Latency { ours: 500.0, socket: 5000.0, pipe: 4000.0, ucx: None }];
        let rows = serde_json::to_value(latency_rows("4 KiB", Target::AtMost(1.0), &measured)).unwrap();
        assert_eq!(rows[0]["value"], 0.5);
        assert!(rows[1]["value"].is_null() && rows[1]["reason"].as_str().unwrap().contains("ucx_perftest"));
        assert_eq!((&rows[2]["value"], &rows[3]["value"]), (&10.0.into(), &8.0.into()));
    }

    #[test]
    fn bandwidths_are_ours_over_theirs() {
        let one = Bandwidth {
            messages: 10.0,
            messages_read: 8.0,
            frames: 12.0,
            frames_read: 9.0,
            staged: 5.0,
            socket: 4.0,
            pipe: 2.0,
            read_over: Some(4.0),
            ucx: Some(5.0),
        };
        let rows = serde_json::to_value(bandwidth_rows(&STREAMS[1], &[one])).unwrap();
        let values: Vec<f64> = (0..11).map(|row| rows[row]["value"].as_f64().unwrap()).collect();
        assert_eq!(values, [10.0, 8.0, 12.0, 9.0, 2.0, 2.0, 2.4, 2.0, 4.0, 2.0, 2.25]);
        assert_eq!((&rows[5]["holds"], &rows[6]["holds"]), (&true.into(), &true.into()));
    }
}
