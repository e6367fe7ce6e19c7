//! The HTTP server of `metrics` and `dashboard`: a listening socket and one thread per connection, up to a limit, until a signal.
//!
//! ```text
//! listen ─ accept ─► connection thread: request ─ Site ─► response: a text, or a stream of events
//!                └ no place free: the oldest idle connection is dropped; if none is idle, 503
//! foreign host 421, unknown path 404, other method than GET and HEAD 405, too many streams 503
//! SIGINT, SIGTERM ─► exit, the socket's file is removed
//! ```
//!
//! A connection serves one request, since scrapers send one every few seconds. There is no encryption and no log-in: a server on
//! another address than a loopback one needs a proxy for that.

mod connections;
mod endpoint;
mod request;
mod response;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::CommandError;
use crate::interrupt::Interrupt;
use crate::output::say;
use connections::{Connections, Place};
pub(crate) use endpoint::Address;
use endpoint::{Endpoint, Stream};
use request::{Ask, Method, Request};
pub(crate) use response::{Resource, Text};

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Streams of events served at a time. The other places are for short requests.
const MAX_STREAMS: usize = 16;

/// What a server serves.
pub(crate) trait Site: Send + Sync + 'static {
    /// The resource at a path. It is made later, which may take as long as the service does to answer.
    fn find<'a>(&'a self, path: &str) -> Option<Resource<'a>>;

    /// Whether a request for `host` may be meant for this server.
    fn is_own_host(&self, host: &str) -> bool;
}

/// Streams of events that are open.
#[derive(Clone, Default)]
struct Streams(Arc<AtomicUsize>);

impl Streams {
    /// Counts another one. `None` if there are too many.
    fn open(&self) -> Option<OpenStream> {
        let counted = OpenStream(self.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < MAX_STREAMS).then_some(counted)
    }
}

struct OpenStream(Streams);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves `site` until a signal. `what` says what that is, in the line that it prints.
pub(crate) fn run(address: &Address, what: &str, site: impl Site) -> Result<(), CommandError> {
    let interrupt = Interrupt::new()?;
    let endpoint = Endpoint::open(address)?;
    let served = serve(&endpoint, &interrupt, what, site);
    if let Endpoint::Unix(bound) = endpoint {
        bound.close();
    }
    served
}

fn serve(
    endpoint: &Endpoint,
    interrupt: &Interrupt,
    what: &str,
    site: impl Site,
) -> Result<(), CommandError> {
    let site = Arc::new(site);
    let connections = Connections::new();
    let streams = Streams::default();
    say!("serving {what} on {}", endpoint.name());
    while !interrupt.wait(Some(endpoint.as_fd()), None)? {
        let Ok((mut stream, peer)) = endpoint.accept() else {
            // The client is gone, or no descriptor is free: wait for one.
            if interrupt.wait(None, Some(Duration::from_millis(10)))? {
                break;
            }
            continue;
        };
        let place = stream.try_clone().ok().and_then(|handle| connections.admit(peer, handle));
        let Some(place) = place else {
            response::send_busy(&mut stream);
            continue;
        };
        let site = Arc::clone(&site);
        let streams = streams.clone();
        // Without a thread, the connection and its place are dropped.
        let _ = std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
            match request::read(&mut stream, Instant::now() + PATIENCE) {
                Some(Request::Ask(ask)) => answer(&mut stream, &ask, &*site, &streams, &place),
                Some(Request::Refused(status)) => response::send_refusal(&mut stream, status),
                None => {}
            }
            drop(place);
        });
    }
    Ok(())
}

/// Answers a request. The connection is busy while the service makes the answer, and while a stream of events is open.
fn answer(stream: &mut Stream, ask: &Ask, site: &impl Site, streams: &Streams, place: &Place<Stream>) {
    // A browser names the host that it looked up. Over a Unix socket, the name says nothing.
    let is_foreign = match (&ask.host, &stream) {
        (Some(host), Stream::Internet(_)) => !site.is_own_host(host),
        _ => false,
    };
    if is_foreign {
        return response::send_refusal(stream, 421);
    }
    let Some(resource) = site.find(&ask.path) else { return response::send_refusal(stream, 404) };
    match resource {
        _ if ask.method == Method::Other => response::send_refusal(stream, 405),
        Resource::Text(text) => {
            let make = || {
                place.set_idle(false);
                let made = (text.make)();
                place.set_idle(true);
                made
            };
            let text = Text { make: Box::new(make), ..text };
            response::send_text(stream, text, ask.method == Method::Head);
        }
        Resource::Events(_) if ask.method == Method::Head => {
            let make = Box::new(String::new);
            let text = Text { content_type: response::EVENTS, headers: "", make };
            response::send_text(stream, text, true);
        }
        Resource::Events(next) => {
            let Some(_open) = streams.open() else { return response::send_refusal(stream, 503) };
            place.set_idle(false);
            response::send_events(stream, next);
        }
    }
}

/// Whether a `Host` header names no foreign site: an address of this kind, or `localhost`. A page of another site whose name was made
/// to lead here (DNS rebinding) has that name in it.
pub(crate) fn is_plain_host(host: &str, only_loopback: bool) -> bool {
    // The port may differ, as that of a tunnel does.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    match bare.parse::<std::net::IpAddr>() {
        Ok(address) => !only_loopback || address.to_canonical().is_loopback(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_hosts_are_recognized() {
        for host in
            ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:9465", "[::1]", "[::1]:9465", "127.9.9.9:1"]
        {
            assert!(is_plain_host(host, true) && is_plain_host(host, false), "{host}");
        }
        for host in ["192.0.2.1", "192.0.2.1:9465", "[2001:db8::1]:80"] {
            assert!(!is_plain_host(host, true) && is_plain_host(host, false), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9465",
            "localhost.evil.example",
            "127.0.0.1.nip.example",
            ":80",
            "[",
            "[localhost]",
        ] {
            assert!(!is_plain_host(host, true) && !is_plain_host(host, false), "{host}");
        }
    }

    #[test]
    fn streams_are_limited() {
        let streams = Streams::default();
        let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| streams.open().unwrap()).collect();
        assert!(streams.open().is_none() && streams.open().is_none());
        open.pop();
        assert!(streams.open().is_some());
    }
}
