//! The exporter: a listening socket and one thread per connection, up to a limit, until a signal.
//!
//! ```text
//! listen ─ accept ─► connection thread: request ─ Scraper ─► response
//!                └ no place free: the oldest idle connection is dropped; if none is idle, 503
//! SIGINT, SIGTERM ─► exit, the socket's file is removed
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use memferry_daemon::Listener;
use memferry_shm::conduit;

use super::connections::{Connections, Peer, Shut};
use super::request::{self, Timed};
use super::scrape::Scraper;
use crate::CommandError;
use crate::interrupt::Interrupt;
use crate::output::say;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Address {
    Internet(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: needs a path".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Internet).map_err(|_| {
                format!("'{text}' is neither an address with a port, such as 127.0.0.1:9464, nor unix:PATH")
            }),
        }
    }
}

enum Endpoint {
    Internet(TcpListener),
    Unix(UnixListener, Listener),
}

impl Endpoint {
    fn open(address: &Address) -> Result<Self, CommandError> {
        match address {
            Address::Internet(address) => {
                let failed = |error| format!("cannot listen on {address}: {error}; choose another port");
                let listener = TcpListener::bind(address).map_err(failed)?;
                if !address.ip().is_loopback() {
                    eprintln!(
                        "memferry: all who can connect to {address} can see the users and processes of the service's clients"
                    );
                }
                listener.set_nonblocking(true)?;
                Ok(Self::Internet(listener))
            }
            Address::Unix(path) => {
                let bound = Listener::bind_stream(path, 0o666)?;
                let listener = UnixListener::from(bound.socket().try_clone_to_owned()?);
                Ok(Self::Unix(listener, bound))
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Internet(listener) => listener
                .local_addr()
                .map_or_else(|_| "http".to_owned(), |address| format!("http://{address}")),
            Self::Unix(_, bound) => format!("unix:{}", bound.address()),
        }
    }

    fn accept(&self) -> io::Result<(Stream, Peer)> {
        let (stream, peer) = match self {
            Self::Internet(listener) => {
                let (stream, address) = listener.accept()?;
                (Stream::Internet(stream), Peer::Address(address.ip().to_canonical()))
            }
            Self::Unix(listener, _) => {
                let stream = listener.accept()?.0;
                let peer = conduit::peer_user(stream.as_fd()).map_or(Peer::Unknown, Peer::User);
                (Stream::Unix(stream), peer)
            }
        };
        stream.block()?;
        Ok((stream, peer))
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Internet(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Serves the metrics of the service on `socket` until a signal.
pub(super) fn run(address: &Address, socket: &Path) -> Result<(), CommandError> {
    let interrupt = Interrupt::new()?;
    let endpoint = Endpoint::open(address)?;
    let scraper = Scraper::start(socket)?;
    let connections = Connections::new();
    say!("serving metrics on {}", endpoint.name());
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
            refuse(&mut stream);
            continue;
        };
        let scraper = scraper.clone();
        // Without a thread, the connection and its place are dropped.
        let _ = std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
            if let Some(request) = request::read(&mut stream, Instant::now() + PATIENCE) {
                let metrics = || {
                    place.set_idle(false);
                    let metrics = scraper.scrape();
                    place.set_idle(true);
                    metrics
                };
                request::respond(&mut stream, request, metrics);
            }
            drop(place);
        });
    }
    if let Endpoint::Unix(_, bound) = endpoint {
        bound.close();
    }
    Ok(())
}

/// Responds that too many connections are open. Hardly waits, since this is the accepting thread.
fn refuse(stream: &mut Stream) {
    let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n";
    let _ = stream.limit(Duration::from_millis(1));
    let _ = stream.write_all(busy.as_bytes());
}

enum Stream {
    Internet(TcpStream),
    Unix(UnixStream),
}

impl Shut for Stream {
    fn shut(&self) -> io::Result<()> {
        match self {
            Self::Internet(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl Stream {
    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Internet(stream) => stream.try_clone().map(Self::Internet),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    fn block(&self) -> io::Result<()> {
        match self {
            Self::Internet(stream) => stream.set_nonblocking(false),
            Self::Unix(stream) => stream.set_nonblocking(false),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Internet(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Internet(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Timed for Stream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        let time = Some(time.max(Duration::from_millis(1)));
        match self {
            Self::Internet(stream) => {
                stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time))
            }
            Self::Unix(stream) => stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time)),
        }
    }

    fn finish(&self) -> io::Result<()> {
        match self {
            Self::Internet(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        assert_eq!("unix:/run/m".parse(), Ok(Address::Unix("/run/m".into())));
        assert!(matches!("127.0.0.1:0".parse(), Ok(Address::Internet(_))));
        assert!(matches!("[::1]:9464".parse(), Ok(Address::Internet(_))));
        for text in ["", "9464", ":9464", "localhost:9464", "127.0.0.1", "127.0.0.1:70000", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
