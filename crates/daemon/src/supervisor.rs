//! Notifies a supervisor such as systemd: ready, status, stopping.
//!
//! ```text
//! NOTIFY_SOCKET ─ connect, before the process is confined ─► Supervisor ─ READY=1, STATUS=…, STOPPING=1 ─► systemd
//! ```
//!
//! The protocol is that of sd_notify(3): a datagram of lines. It connects once, before the sandbox forbids that. Without the
//! variable it sends nothing. `listener` handles inherited sockets.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// The socket of the supervisor, if there is one.
pub(super) struct Supervisor(Option<OwnedFd>);

impl Supervisor {
    /// Connects to the supervisor that the environment names. Logs a warning and continues without one if that fails.
    pub(super) fn connect() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        match connect(&name) {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(socket = %name.display(), "cannot reach the supervisor: {error}");
                Self(None)
            }
        }
    }

    /// Number of the socket's descriptor, if there is one.
    pub(super) fn number(&self) -> Option<RawFd> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Sends lines such as `READY=1`.
    pub(super) fn notify(&self, lines: &str) {
        let Some(socket) = &self.0 else { return };
        if let Err(error) = rustix::net::send(socket, lines.as_bytes(), SendFlags::NOSIGNAL) {
            tracing::warn!("cannot notify the supervisor: {error}");
        }
    }
}

/// A path, or a name in the abstract namespace after `@`.
fn connect(name: &OsStr) -> io::Result<OwnedFd> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddrUnix::new_abstract_name(rest)?,
        [b'/', ..] => SocketAddrUnix::new(name)?,
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "NOTIFY_SOCKET is neither a path nor an abstract name",
            ));
        }
    };
    let kind = SocketType::DGRAM;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}
