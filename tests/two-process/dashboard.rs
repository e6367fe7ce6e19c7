//! `memferry dashboard`: who is served, who is refused, and what a browser shows.
//!
//! ```text
//! dashboard ◄─ requests by hand: foreign hosts, other methods, too many streams, a reader that stopped
//!           ◄─ Chromium, driven by tests/browser/dashboard.py (ignored unless it is asked for: ./x test --full dashboard)
//! ```
//!
//! No test relies on a sleep: it waits for a line, a response or an exit.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{SOON, Service, fresh_directory};
use memferry::copy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_memferry");

struct Dashboard {
    child: Child,
    /// Without `http://`.
    address: String,
}

impl Dashboard {
    fn start(service: &Path, listen: &str) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["dashboard", "--listen", listen, "--socket"]).arg(service).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("serving dashboard on ").unwrap();
        let address = address.strip_prefix("http://").unwrap_or(address).to_owned();
        Self { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// The response to a request with these first lines, until the end of the connection.
    fn answer(&self, lines: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(format!("{lines}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A stream of events, with the first line of the response.
    fn events(&self) -> (BufReader<TcpStream>, String) {
        let mut stream = self.connect();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        (reader, line.trim_end().to_owned())
    }

    fn end(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of the next event, without their `data: `.
fn next_event(reader: &mut impl BufRead) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream ended");
        match line.trim_end().strip_prefix("data: ") {
            Some(data) => lines.push(data.to_owned()),
            None if line == "\n" && !lines.is_empty() => return lines,
            None => {}
        }
    }
}

#[test]
fn the_page_has_a_strict_policy() {
    let service = Service::start(&[]);
    let dashboard = Dashboard::start(&service.socket, "127.0.0.1:0");
    let page = dashboard.answer(&format!("GET / HTTP/1.1\r\nHost: {}", dashboard.address));
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    assert!(body.starts_with("<!DOCTYPE html>") && body.trim_end().ends_with("</html>"));
    for header in [
        "Content-Security-Policy: default-src 'none'; script-src 'sha256-",
        "frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff",
        "Cross-Origin-Resource-Policy: same-origin",
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-store",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(!head.contains("unsafe-inline") && !head.contains("Access-Control"), "{head}");
    let metrics = dashboard.answer("GET /metrics HTTP/1.1\r\nHost: localhost");
    assert!(metrics.contains("\nmemferry_up 1\n"), "{metrics}");
    let head = dashboard.answer("HEAD /events HTTP/1.1\r\nHost: localhost");
    assert!(head.contains("Content-Type: text/event-stream\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn wrong_requests_are_refused() {
    let service = Service::start(&[]);
    let dashboard = Dashboard::start(&service.socket, "127.0.0.1:0");
    let long = format!("GET /{} HTTP/1.1", "a".repeat(20_000));
    let long_header = format!("GET / HTTP/1.1\r\nCookie: {}", "a".repeat(9_000));
    for (lines, status) in [
        ("GET / HTTP/1.1\r\nHost: evil.example", 421),
        ("GET /events HTTP/1.1\r\nHost: evil.example:9465", 421),
        ("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1.evil.example", 421),
        ("GET / HTTP/1.1\r\nHost: 192.0.2.1", 421),
        ("GET / HTTP/1.1\r\nHost:", 421),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("POST / HTTP/1.1\r\nHost: localhost", 405),
        ("OPTIONS /events HTTP/1.1\r\nHost: localhost", 405),
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost", 404),
        ("GET //events HTTP/1.1\r\nHost: localhost", 404),
        ("GET /favicon.ico HTTP/1.1\r\nHost: localhost", 404),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost", 404),
        ("no request at all", 400),
        (&long, 431),
        (&long_header, 431),
    ] {
        let answer = dashboard.answer(lines);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{lines:.99}: {answer:.99}");
        assert!(!answer.contains("<html") && !answer.contains("memferry_"), "{lines:.99}");
    }
    assert!(dashboard.answer("GET / HTTP/1.1\r\nHost: [::1]:1").starts_with("HTTP/1.1 200 "));
}

#[test]
fn remote_addresses_must_be_asked_for() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9465"] {
        let output = Command::new(BINARY).args(["dashboard", "--listen", address]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains("--remote"), "{address}: {errors}");
    }
}

#[test]
fn events_follow_the_service() {
    let mut service = Service::start(&[]);
    let mut dashboard = Dashboard::start(&service.socket, "127.0.0.1:0");
    let (mut events, line) = dashboard.events();
    assert_eq!(line, "HTTP/1.1 200 OK");
    let is_up = |event: &[String]| event.contains(&"memferry_up 1".to_owned());
    let has = |event: &[String], start: &str| event.iter().any(|line| line.starts_with(start));
    let event = next_event(&mut events);
    assert!(is_up(&event) && has(&event, "memferry_class_bytes_total{class=\"low\"}"), "{event:?}");
    assert!(has(&event, "memferry_refused_commands_total{kind=\"quota\"}") && !has(&event, "#"), "{event:?}");
    assert!(is_up(&next_event(&mut events)));
    service.signal(Signal::KILL);
    service.wait();
    while is_up(&next_event(&mut events)) {}
    // Streams do not hold up the end.
    dashboard.end();
}

#[test]
fn too_many_streams_get_503_and_others_are_served() {
    let service = Service::start(&[]);
    let dashboard = Dashboard::start(&service.socket, "127.0.0.1:0");
    let mut streams: Vec<_> = (0..16).map(|_| dashboard.events()).collect();
    assert!(streams.iter().all(|(_, line)| line == "HTTP/1.1 200 OK"));
    let refused = dashboard.answer("GET /events HTTP/1.1\r\nHost: localhost");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("Retry-After: "), "{refused}");
    // A flood of silent connections neither ends the streams nor keeps others out.
    let _flood: Vec<_> = (0..100).map(|_| dashboard.connect()).collect();
    assert!(dashboard.answer("GET / HTTP/1.1\r\nHost: localhost").starts_with("HTTP/1.1 200 "));
    for (events, _) in &mut streams {
        next_event(events);
    }
    // One that leaves makes room at once. Its thread has to notice it first.
    drop(streams.pop());
    harness::wait_until("a free place", || dashboard.events().1 == "HTTP/1.1 200 OK");
}

#[test]
fn a_reader_that_stopped_is_cut_off() {
    let service = Service::start(&[]);
    // Many sessions make long events.
    let _clients: Vec<_> = (0..40).map(|_| service.client()).collect();
    let directory = fresh_directory();
    let path = directory.join("dashboard.sock");
    let _dashboard = Dashboard::start(&service.socket, &format!("unix:{}", path.display()));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\n\r\n").unwrap();
    let mut other = UnixStream::connect(&path).unwrap();
    other.write_all(b"GET /events HTTP/1.1\r\n\r\n").unwrap();
    let mut other = BufReader::new(other);
    let until = Instant::now() + 2 * SOON;
    loop {
        next_event(&mut other);
        let mut entries = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
        let now = Timespec::try_from(Duration::ZERO).unwrap();
        if poll(&mut entries, Some(&now)).unwrap() > 0 && entries[0].revents().contains(PollFlags::HUP) {
            break;
        }
        assert!(Instant::now() < until, "it is still served");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A line of the browser's program.
fn said(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Copies until it is told to stop.
fn load(service: &Service, stop: &AtomicBool) {
    let client = service.client();
    let frames = [client.frame(1 << 20).alloc().unwrap(), client.frame(1 << 20).alloc().unwrap()];
    let mut queue = client.queue(8).unwrap();
    assert!(client.queue(8).is_err(), "more than the quota");
    while !stop.load(Ordering::Relaxed) {
        for length in [512, 64 << 10, 1 << 20] {
            let ticket = queue.submit(copy(frames[0].slice(..length), frames[1].slice(..length))).unwrap();
            harness::done(&mut queue, ticket);
        }
    }
}

#[test]
#[ignore = "needs Chromium and Python: ./x test --full dashboard"]
fn a_browser_shows_the_figures() {
    let browser = std::env::var("MEMFERRY_TEST_BROWSER").unwrap_or_else(|_| "chromium".to_owned());
    let mut service = Service::start(&["--workers=1", "--quota-queues=1"]);
    let mut dashboard = Dashboard::start(&service.socket, "127.0.0.1:0");
    let url = format!("http://{}/", dashboard.address);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/browser/dashboard.py");
    let mut command = Command::new("python3");
    command.args([script, &browser, &url]).args(std::env::var_os("MEMFERRY_TEST_PICTURES"));
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut to_program = program.stdin.take().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| load(&service, &stop));
        let line = said(&mut output);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(line, "shown");
    });
    service.signal(Signal::KILL);
    service.wait();
    writeln!(to_program, "the service is gone").unwrap();
    assert_eq!(said(&mut output), "noticed");
    dashboard.end();
    writeln!(to_program, "the dashboard is gone").unwrap();
    assert_eq!(said(&mut output), "noticed");
    let service = Service::start(&[]);
    let _dashboard = Dashboard::start(&service.socket, &dashboard.address);
    writeln!(to_program, "all are back").unwrap();
    assert_eq!(said(&mut output), "passed");
    assert!(program.wait().unwrap().success());
}
