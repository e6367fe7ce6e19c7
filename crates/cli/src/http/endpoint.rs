//! Where a server listens, and the streams of its clients: TCP or a Unix socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use memferry_daemon::Listener;
use memferry_shm::conduit;
use rustix::net::{SocketFlags, accept_with, sockopt};

use super::connections::{Peer, Shut};
use super::request::Timed;
use crate::CommandError;

/// Bytes that may wait in the kernel for a client to read them. Few, so that one that stopped reading is noticed.
const SEND_BUFFER_BYTES: usize = 16 << 10;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Address {
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

pub(super) enum Endpoint {
    Internet(TcpListener),
    Unix(Listener),
}

impl Endpoint {
    pub(super) fn open(address: &Address) -> Result<Self, CommandError> {
        match address {
            Address::Internet(address) => {
                let failed = |error: io::Error| {
                    let remedy = match error.kind() {
                        io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
                        io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
                        _ => "choose another port",
                    };
                    format!("cannot listen on {address}: {error}; {remedy}")
                };
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
                // Nobody has to pass any, and the close of one can take long. Older kernels cannot refuse them.
                let _ = conduit::refuse_descriptors(bound.socket());
                Ok(Self::Unix(bound))
            }
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Internet(listener) => listener
                .local_addr()
                .map_or_else(|_| "http".to_owned(), |address| format!("http://{address}")),
            Self::Unix(bound) => format!("unix:{}", bound.address()),
        }
    }

    pub(super) fn accept(&self) -> io::Result<(Stream, Peer)> {
        let (stream, peer) = match self {
            Self::Internet(listener) => {
                let (stream, address) = listener.accept()?;
                (Stream::Internet(stream), Peer::Address(address.ip().to_canonical()))
            }
            Self::Unix(bound) => {
                let stream = UnixStream::from(accept_with(bound.socket(), SocketFlags::CLOEXEC)?);
                let peer = conduit::peer_user(stream.as_fd()).map_or(Peer::Unknown, Peer::User);
                (Stream::Unix(stream), peer)
            }
        };
        stream.block()?;
        // A larger one works too.
        let _ = sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
        Ok((stream, peer))
    }
}

impl Address {
    /// Whether only processes of this machine can connect to it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Internet(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Internet(listener) => listener.as_fd(),
            Self::Unix(bound) => bound.socket(),
        }
    }
}

pub(super) enum Stream {
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
    pub(super) fn try_clone(&self) -> io::Result<Self> {
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

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Internet(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
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
