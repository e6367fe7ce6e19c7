//! Reads one HTTP request, within limits of length and time, and sends the response.
//!
//! ```text
//! bytes ─ httparse ─► GET or HEAD /metrics ─► 200      other path 404, other method 405
//!   too long 431, too slow 408, invalid HTTP 400        the connection is closed after the response
//! ```
//!
//! A connection serves one request, since scrapers send one every few seconds.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::exposition::CONTENT_TYPE;

/// Bytes of the longest request without its body.
pub(super) const LONGEST_BYTES: usize = 8 << 10;
/// Headers of a request at most.
const MAX_HEADERS: usize = 64;

/// A stream with a time limit for its calls.
pub(super) trait Timed: Read + Write {
    fn limit(&self, time: Duration) -> io::Result<()>;
    /// Closes the stream for writing.
    fn finish(&self) -> io::Result<()>;
}

/// A parsed request, or the status of its refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Metrics { head: bool },
    Refused(u16),
}

/// Reads a request. `deadline` covers all of it. Returns `None` if the client is gone.
pub(super) fn read(stream: &mut impl Timed, deadline: Instant) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(Request::Refused(408));
        }
        stream.limit(left).ok()?;
        match stream.read(&mut piece) {
            Ok(0) if bytes.is_empty() => return None,
            Ok(0) => return Some(Request::Refused(400)),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Some(Request::Refused(408));
            }
            Err(_) => return None,
        }
        if let Some(request) = parse(&bytes) {
            return Some(request);
        }
        if bytes.len() > LONGEST_BYTES {
            return Some(Request::Refused(431));
        }
    }
}

/// Parses a request; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Request::Refused(431)),
        Err(_) => return Some(Request::Refused(400)),
    }
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some("/metrics") {
        return Some(Request::Refused(404));
    }
    Some(match request.method {
        Some("GET") => Request::Metrics { head: false },
        Some("HEAD") => Request::Metrics { head: true },
        _ => Request::Refused(405),
    })
}

/// Sends the response, then reads what the client still sends, so that closing does not discard the response.
pub(super) fn respond(stream: &mut impl Timed, request: Request, metrics: impl FnOnce() -> String) {
    let (status, body, head) = match request {
        Request::Metrics { head } => (200, metrics(), head),
        Request::Refused(status) => (status, format!("{}\n", reason(status)), false),
    };
    let kind = if status == 200 { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        reason(status),
        body.len()
    );
    if !head {
        text.push_str(&body);
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

/// How long a client may take to read the response.
const PATIENCE: Duration = Duration::from_secs(5);

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Bad Request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed() {
        let metrics = |head| Some(Request::Metrics { head });
        let refused = |status| Some(Request::Refused(status));
        let cases: [(&[u8], _); 12] = [
            (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", metrics(false)),
            (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", metrics(false)),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", metrics(true)),
            (b"GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
            (b"", None),
            (b"GET / HTTP/1.1\r\n\r\n", refused(404)),
            (b"GET /metrics/ HTTP/1.1\r\n\r\n", refused(404)),
            (b"POST /metrics HTTP/1.1\r\n\r\n", refused(405)),
            (b"DELETE /metrics HTTP/1.1\r\n\r\n", refused(405)),
            (b"\x16\x03\x01\x02\x00", refused(400)),
            (b"GET /metrics HTTP/9.9\r\n\r\n", refused(400)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refused(400)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(parse(bytes), expected, "{}", String::from_utf8_lossy(bytes));
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(parse(many.as_bytes()), refused(431));
    }
}
