//! Reads one HTTP request, within limits of length and time.
//!
//! ```text
//! bytes ─ httparse ─► path, method, host        too long 431, too slow 408, invalid HTTP or several hosts 400
//! ```

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Bytes of the longest request without its body.
const LONGEST_BYTES: usize = 8 << 10;
/// Headers of a request at most.
const MAX_HEADERS: usize = 64;

/// A stream with a time limit for its calls.
pub(super) trait Timed: Read + Write {
    fn limit(&self, time: Duration) -> io::Result<()>;
    /// Closes the stream for writing.
    fn finish(&self) -> io::Result<()>;
}

/// A parsed request, or the status of its refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Ask(Ask),
    Refused(u16),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    /// What a `?` begins is cut off.
    pub(super) path: String,
    pub(super) method: Method,
    /// Every browser sends it.
    pub(super) host: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    Head,
    Other,
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
        if let Some(request) = parse(&bytes[..bytes.len().min(LONGEST_BYTES)]) {
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
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map(|header| String::from_utf8_lossy(header.value).into_owned());
    if hosts.next().is_some() {
        return Some(Request::Refused(400));
    }
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => Method::Other,
    };
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
    Some(Request::Ask(Ask { path, method, host }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str, method: Method, host: Option<&str>) -> Option<Request> {
        Some(Request::Ask(Ask { path: path.to_owned(), method, host: host.map(str::to_owned) }))
    }

    #[test]
    fn requests_are_parsed() {
        let refused = |status| Some(Request::Refused(status));
        let cases: [(&[u8], _); 11] = [
            (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", ask("/metrics", Method::Get, Some("a"))),
            (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", ask("/metrics", Method::Get, None)),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", ask("/metrics", Method::Head, None)),
            (b"POST / HTTP/1.1\r\n\r\n", ask("/", Method::Other, None)),
            (b"get / HTTP/1.1\r\n\r\n", ask("/", Method::Other, None)),
            (b"GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
            (b"", None),
            (b"GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", refused(400)),
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
