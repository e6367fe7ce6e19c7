//! The service's numbers: watched, as JSON, and for Prometheus.
//!
//! ```text
//! status --watch ─ blocks with rates ─► exits with status 0 on a signal
//! metrics        ─ text ─► parsed as Prometheus does
//! metrics --listen ◄─ curl, and clients that are invalid, slow or too many
//! ```
//!
//! No test relies on a sleep: it waits for a line, a response or an exit.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Instant;

use harness::{Raw, SOON, Service, assert_moves_bytes, endless, fresh_directory, wait_until};
use memferry::{Client, copy};
use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_memferry");

/// A command that runs until a signal.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(socket: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(arguments).arg("--socket").arg(socket).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the command ended");
        line.trim_end().to_owned()
    }

    fn end(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watching_appends_blocks_with_rates() {
    let service = Service::start(&["--workers=1"]);
    for signal in [Signal::INT, Signal::TERM] {
        let mut watch = Running::start(&service.socket, &["status", "--watch", "0.05"]);
        assert!(watch.line().starts_with("memferry, process "));
        assert!(!watch.line().contains("req/s"), "the first snapshot has rates");
        while !watch.line().is_empty() {}
        assert_moves_bytes(&service.client());
        assert!(watch.line().starts_with("memferry, process "));
        let words: Vec<_> = watch.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[words.len() - 4..], ["waiting", "busy", "req/s", "bytes/s"]);
        assert!(watch.line().contains("of 32"));
        watch.end(signal);
    }
}

#[test]
fn watching_as_json_prints_one_object_per_line() {
    let service = Service::start(&["--workers=1"]);
    let mut watch = Running::start(&service.socket, &["status", "--json", "--watch=0.05"]);
    for round in 0..3 {
        let status: serde_json::Value = serde_json::from_str(&watch.line()).unwrap();
        assert_eq!(status["process"], service.child.id());
        assert_eq!(status["workers"][0]["requests_per_second"].is_number(), round > 0);
        assert_eq!(status["sessions"][0]["outstanding"], 0);
    }
    watch.end(Signal::INT);
}

#[test]
fn watching_a_stopped_service_ends_on_a_signal() {
    let service = Service::start(&[]);
    let mut watch = Running::start(&service.socket, &["status", "--watch=0.05"]);
    watch.line();
    service.stop();
    watch.end(Signal::INT);
}

#[test]
fn watching_fails_when_the_service_ends() {
    let service = Service::start(&[]);
    let mut watch = Running::start(&service.socket, &["status", "--watch=0.05"]);
    watch.line();
    service.signal(Signal::KILL);
    assert_eq!(watch.child.wait().unwrap().code(), Some(1));
}

/// Samples as `name{labels}` and value. Asserts that Prometheus accepts every line of the text.
fn samples(text: &str) -> Vec<(String, f64)> {
    let is_name =
        |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
    let mut found = Vec::new();
    let mut family = String::new();
    let mut kind = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap().to_owned();
            continue;
        }
        if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, stated) = of.split_once(' ').unwrap();
            assert_eq!(name, family);
            kind = stated.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
        let is_of_family = match kind.as_str() {
            "histogram" => of_histogram.into_iter().any(|start| start == family),
            _ => name == family,
        };
        assert!(is_name(name) && is_of_family && labels.ends_with('}'), "{line}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let (label, text) = label.split_once('=').unwrap();
            assert!(is_name(label) && text.starts_with('"') && text.ends_with('"'), "{line}");
        }
        found.push((series.to_owned(), value.parse().unwrap()));
    }
    found
}

fn value(samples: &[(String, f64)], start: &str) -> f64 {
    let sum = samples.iter().filter(|(series, _)| series.starts_with(start));
    sum.map(|(_, value)| value).sum()
}

#[test]
fn metrics_show_the_clients_requests() {
    let service = Service::start(&["--channels=4"]);
    let client = service.client();
    let frame = client.frame(8192).alloc().unwrap();
    let mut queue = client.queue(8).unwrap();
    let _endless = queue.submit(endless(&frame)).unwrap();
    wait_until("taken", || client.status().unwrap().sessions[0].outstanding == 1);
    let output = Command::new(BINARY).args(["metrics", "--socket"]).arg(&service.socket).output().unwrap();
    assert!(output.status.success());
    let samples = samples(&String::from_utf8(output.stdout).unwrap());
    let session = client.session().0;
    for (series, expected) in [
        ("memferry_up", 1.0),
        ("memferry_sessions", 1.0),
        (&format!("memferry_session_outstanding{{session=\"{session}\""), 1.0),
        (&format!("memferry_session_requests_total{{session=\"{session}\""), 1.0),
        (&format!("memferry_session_registered_bytes{{session=\"{session}\""), 8192.0),
        ("memferry_worker_requests_total", 1.0),
    ] {
        let found = value(&samples, series);
        assert!((found - expected).abs() < 1e-9, "{series}: {found}");
    }
    let nobody = Command::new(BINARY).args(["metrics", "--socket", "/nonexistent"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn metrics_count_refusals_and_sample_times() {
    let service = Service::start(&["--workers=1", "--quota-queues=1", "--quota-sessions=2"]);
    let client = service.client();
    let second = service.client();
    assert!(Client::connect(&service.socket).is_err(), "more sessions than the quota");
    drop(second);
    let mut queue = client.queue(8).unwrap();
    assert!(client.queue(8).is_err(), "more queues than the quota");
    service.wait_for_sessions(&client, 1);
    let raw = Raw::open(&service.socket);
    raw.send(b"nonsense", &[]);
    raw.farewell();
    service.wait_for_sessions(&client, 1);
    let frames = [client.frame(1 << 20).alloc().unwrap(), client.frame(1 << 20).alloc().unwrap()];
    let sampled = || client.status().unwrap().latency.buckets.iter().sum::<u64>();
    let until = Instant::now() + SOON;
    while sampled() == 0 {
        assert!(Instant::now() < until, "no request was sampled");
        // Short ones are done at once, and not timed.
        let ticket = queue.submit(copy(&frames[0], &frames[1])).unwrap();
        harness::done(&mut queue, ticket);
    }
    let output = Command::new(BINARY).args(["metrics", "--socket"]).arg(&service.socket).output().unwrap();
    let samples = samples(&String::from_utf8(output.stdout).unwrap());
    for (series, expected) in [
        ("memferry_refused_commands_total{kind=\"quota\"}", 1.0),
        ("memferry_refused_commands_total", 1.0),
        ("memferry_clients_turned_away_total", 1.0),
        ("memferry_violations_total", 1.0),
    ] {
        let found = value(&samples, series);
        assert!((found - expected).abs() < 1e-9, "{series}: {found}");
    }
    assert!(value(&samples, "memferry_sampled_request_seconds_count") >= 1.0);
    assert!(value(&samples, "memferry_sampled_request_seconds_sum") > 0.0);
}

/// The exporter with its address.
struct Exporter {
    running: Running,
    address: String,
}

impl Exporter {
    fn start(service: &Path, listen: &str) -> Self {
        let mut running = Running::start(service, &["metrics", "--listen", listen]);
        let line = running.line();
        let address = line.strip_prefix("serving metrics on ").unwrap();
        let address = address.strip_prefix("http://").unwrap_or(address).to_owned();
        Self { running, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// The response to these bytes, until the end of the connection.
    fn answer(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        read(&mut stream)
    }
}

fn read(stream: &mut impl Read) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn curl(arguments: &[&str]) -> Option<Output> {
    Command::new("curl").args(["-sS", "-i", "--max-time", "20"]).args(arguments).output().ok()
}

/// The body of a successful response.
fn body(answer: &str) -> &str {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body
}

#[test]
fn the_exporter_responds_and_reports_a_lost_service() {
    let service = Service::start(&[]);
    let directory = fresh_directory();
    let path: PathBuf = directory.join("metrics.sock");
    let mut exporter = Exporter::start(&service.socket, "127.0.0.1:0");
    let mut unix = Exporter::start(&service.socket, &format!("unix:{}", path.display()));
    let ask = || {
        let url = format!("http://{}/metrics", exporter.address);
        let path = path.to_str().unwrap();
        let outputs = [curl(&[&url]), curl(&["--unix-socket", path, "http://localhost/metrics?a=b"])];
        let of_curl = outputs.into_iter().flatten().map(|output| String::from_utf8(output.stdout).unwrap());
        // Without curl, the same requests are sent by hand.
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let by_hand = [exporter.answer(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), read(&mut stream)];
        of_curl.chain(by_hand).collect::<Vec<_>>()
    };
    for answer in ask() {
        let samples = samples(body(&answer));
        assert!((value(&samples, "memferry_up") - 1.0).abs() < 1e-9 && samples.len() > 10, "{answer}");
    }
    // A stopped service does not respond, a killed one cannot be connected to. The exporter responds in both cases.
    service.stop();
    assert_eq!(
        samples(body(&exporter.answer(b"GET /metrics HTTP/1.1\r\n\r\n"))),
        [("memferry_up".to_owned(), 0.0)]
    );
    service.signal(Signal::KILL);
    for answer in ask() {
        assert_eq!(samples(body(&answer)), [("memferry_up".to_owned(), 0.0)]);
    }
    exporter.running.end(Signal::TERM);
    unix.running.end(Signal::INT);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "the socket remains");
    std::fs::remove_dir(&directory).unwrap();
}

#[test]
fn the_exporter_refuses_invalid_requests() {
    let service = Service::start(&[]);
    let exporter = Exporter::start(&service.socket, "127.0.0.1:0");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(20_000));
    let headers = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    let endless = format!("GET /metrics HTTP/1.1\r\nname: {}", "a".repeat(9_000));
    let cases: [(&[u8], &str); 9] = [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
        (b"nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00", "HTTP/1.1 400 Bad Request\r\n"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
        (long.as_bytes(), "HTTP/1.1 431 "),
        (headers.as_bytes(), "HTTP/1.1 431 "),
        (endless.as_bytes(), "HTTP/1.1 431 "),
    ];
    for (bytes, expected) in cases {
        let answer = exporter.answer(bytes);
        assert!(answer.starts_with(expected), "{expected}: {answer}");
        assert_eq!(answer.contains("Allow: GET, HEAD\r\n"), expected.contains("405"));
    }
    let head = exporter.answer(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let half = exporter.connect();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    body(&exporter.answer(b"GET /metrics HTTP/1.1\r\n\r\n"));
}

#[test]
fn slow_clients_delay_no_others() {
    let service = Service::start(&[]);
    let exporter = Exporter::start(&service.socket, "127.0.0.1:0");
    // More clients than are served at a time, each with half a request.
    let slow = |count: usize| -> Vec<TcpStream> {
        let send_half = |mut stream: TcpStream| {
            stream.write_all(b"GET /metrics HT").unwrap();
            stream
        };
        (0..count).map(|_| send_half(exporter.connect())).collect()
    };
    let mut all = slow(64);
    for _ in 0..10 {
        body(&exporter.answer(b"GET /metrics HTTP/1.1\r\n\r\n"));
        all.extend(slow(8));
    }
    // The oldest were dropped without a response, as each newer one needed the room. The latest may take their time.
    let mut dropped = all.remove(0);
    let mut answer = String::new();
    let ended = dropped.read_to_string(&mut answer);
    assert!(ended.is_err() || !answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let late = read(all.last_mut().unwrap());
    assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
    body(&exporter.answer(b"GET /metrics HTTP/1.1\r\n\r\n"));
}

#[test]
fn clients_that_read_slowly_delay_no_others() {
    let service = Service::start(&[]);
    let directory = fresh_directory();
    let path: PathBuf = directory.join("metrics.sock");
    let _exporter = Exporter::start(&service.socket, &format!("unix:{}", path.display()));
    let request = b"GET /metrics HTTP/1.1\r\n\r\n";
    let connect = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(request).unwrap();
        stream
    };
    // They have their responses, and neither read them nor leave.
    let _slow: Vec<_> = (0..100).map(|_| connect()).collect();
    wait_until("served in spite of them", || {
        // While all the others wait for the service, this one is refused.
        let mut stream = connect();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200 ")
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_failed_exporter_leaves_no_socket() {
    let directory = fresh_directory();
    let address = format!("unix:{}", directory.join("s").display());
    // It cannot print where it serves.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(BINARY).args(["metrics", "--listen", &address]).stdout(full).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("No space left"), "{errors}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    std::fs::remove_dir(&directory).unwrap();
}

#[test]
fn unusable_addresses_have_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = fresh_directory();
    let plain = directory.join("plain");
    std::fs::write(&plain, b"kept").unwrap();
    for (address, expected) in [
        (taken.local_addr().unwrap().to_string(), "choose another port"),
        ("192.0.2.1:9464".to_owned(), "choose an address of this machine"),
        (format!("unix:{}", plain.display()), "something that is no socket lies there"),
        ("unix:/nonexistent/s".to_owned(), "its folder does not exist"),
        ("localhost".to_owned(), "127.0.0.1:9464"),
    ] {
        let output = Command::new(BINARY).args(["metrics", "--listen", &address]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(expected), "{address}: {errors}");
    }
    assert_eq!(std::fs::read(&plain).unwrap(), b"kept");
    std::fs::remove_dir_all(&directory).unwrap();
}
