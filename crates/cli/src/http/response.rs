//! Sends one HTTP response: a text of known length, a refusal, or a stream of server-sent events.
//!
//! ```text
//! Resource ─► 200, text                                the connection is closed after the response
//!          └► 200, an event a second ─► until the client leaves, sends more, or does not read in time
//! ```

use std::io;
use std::time::{Duration, Instant};

use super::request::Timed;

/// How long a client may take to read a response or an event.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two events.
const INTERVAL: Duration = Duration::from_secs(1);
/// For everything that is sent: no guessing of types, no use by other sites, nothing kept.
const COMMON_HEADERS: &str = "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n\
                              Cache-Control: no-store\r\nConnection: close\r\n";

/// The content type of a stream of events.
pub(super) const EVENTS: &str = "text/event-stream";

/// A text that is made when it is sent.
pub(crate) struct Text<'a> {
    pub(crate) content_type: &'static str,
    /// Further headers, each with its line end.
    pub(crate) headers: &'a str,
    pub(crate) make: Box<dyn FnOnce() -> String + 'a>,
}

/// What a server has at a path.
pub(crate) enum Resource<'a> {
    Text(Text<'a>),
    /// Events, each made when the last one was sent a while ago. An event ends with an empty line.
    Events(Box<dyn FnMut() -> String + 'a>),
}

/// Sends a text with its length, or only the headers.
pub(super) fn send_text(stream: &mut impl Timed, text: Text<'_>, only_head: bool) {
    let body = (text.make)();
    let headers = format!("Content-Type: {}\r\n{}", text.content_type, text.headers);
    send(stream, 200, &headers, &body, only_head);
}

pub(super) fn send_refusal(stream: &mut impl Timed, status: u16) {
    let further = match status {
        405 => "Allow: GET, HEAD\r\n",
        503 => "Retry-After: 5\r\n",
        _ => "",
    };
    let headers = format!("Content-Type: text/plain; charset=utf-8\r\n{further}");
    send(stream, status, &headers, &format!("{}\n", reason(status)), false);
}

/// Says that too many connections are open. Hardly waits, for the thread that accepts connections.
pub(super) fn send_busy(stream: &mut impl Timed) {
    let head = head(503, "Content-Length: 0\r\nRetry-After: 5\r\n");
    let _ = stream.limit(Duration::from_millis(1));
    let _ = stream.write_all(head.as_bytes());
}

/// Sends events until the client leaves, sends something, or does not read one in time.
pub(super) fn send_events(stream: &mut impl Timed, mut next: impl FnMut() -> String) {
    let mut text = head(200, &format!("Content-Type: {EVENTS}\r\n")) + "retry: 2000\n\n";
    loop {
        text.push_str(&next());
        if write_within(stream, text.as_bytes(), Instant::now() + PATIENCE).is_none() {
            return;
        }
        text.clear();
        // The client sends nothing, so this is a pause that ends at once when it leaves.
        if stream.limit(INTERVAL).is_err() {
            return;
        }
        match stream.read(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

fn head(status: u16, headers: &str) -> String {
    format!("HTTP/1.1 {status} {}\r\n{headers}{COMMON_HEADERS}\r\n", reason(status))
}

/// Sends a response, then reads what the client still sends, so that closing does not discard the response.
fn send(stream: &mut impl Timed, status: u16, headers: &str, body: &str, only_head: bool) {
    let mut text = head(status, &format!("{headers}Content-Length: {}\r\n", body.len()));
    if !only_head {
        text.push_str(body);
    }
    if write_within(stream, text.as_bytes(), Instant::now() + PATIENCE).is_none() {
        return;
    }
    let _ = stream.finish();
    // Closing with unread bytes resets the connection, which can discard the response.
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut rest = [0; 4096];
    for _ in 0..64 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.limit(left).is_err() || !matches!(stream.read(&mut rest), Ok(1..)) {
            return;
        }
    }
}

/// Writes all bytes. Returns `None` if the client does not read them in time.
fn write_within(stream: &mut impl Timed, mut bytes: &[u8], deadline: Instant) -> Option<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.limit(left).ok()?;
        let written = if left.is_zero() { return None } else { stream.write(bytes) };
        match written {
            Ok(count @ 1..) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    Some(())
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Bad Request",
    }
}
