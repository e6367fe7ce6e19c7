//! Errors of calls to the service, one enum per operation. Failures of transfers are in `completion`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use memferry_service::StartError;
use memferry_service::protocol::{Refusal, RefusalKind, Violation};
use memferry_shm::fork_guard::Forked;
use memferry_shm::frame::{AllocateError, UnsafeMemory};
use rustix::io::Errno;
use thiserror::Error;

/// Why [`Client::connect`](crate::Client::connect) or [`Client::embedded`](crate::Client::embedded) failed.
///
/// ```
/// use memferry::{Client, ConnectError};
///
/// let Err(error) = Client::connect("/nonexistent/socket") else { panic!("nobody listens there") };
/// assert!(matches!(error, ConnectError::Socket { .. }));
/// println!("{error}"); // with the path, the reason and a remedy
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No service listens at the path, or this user may not connect.
    #[error("cannot connect to the service at {}: {source}; {}", path.display(), remedy(source))]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The service did not answer in time, or did not even accept the connection.
    #[error(
        "the service at {} did not answer within {after:?}: it is stopped or overloaded, or another program listens there; try \
         again, or allow more time",
        path.display()
    )]
    TimedOut {
        /// The path of the socket.
        path: PathBuf,
        /// The time limit of [`ConnectOptions`](crate::ConnectOptions).
        after: Duration,
    },
    /// The service ended the handshake, for example because the protocol versions differ.
    #[error("the service at {} ended the handshake: {violation}", path.display())]
    Handshake {
        /// The path of the socket.
        path: PathBuf,
        /// The reason that the service gave.
        violation: Violation,
    },
    /// The embedded service could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The embedded service refused to open a session.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The guard against use in a forked child could not be created.
    #[error("cannot set up the client's fork guard: {0}")]
    Setup(io::Error),
}

/// Why a call to the service's control side failed.
///
/// ```
/// use memferry::{CallError, Client, Grantee, Rights};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let derived = client.derive(&frame, Rights::READ)?;
/// let refused = client.grant(&derived, Rights::READ, Grantee::User(0));
/// assert!(matches!(refused, Err(CallError::Refused(_))), "it has no right to grant");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum CallError {
    /// The service refused the command. The session stays usable.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The service ended the session for the reason given.
    #[error("the service ended this session: {0}")]
    Ended(Violation),
    /// The service ended or was killed. Connect again.
    #[error("the service was lost; connect again")]
    ServiceLost,
    /// The service did not answer a command in time. The session stays usable. Whether the command takes effect is not known;
    /// what it makes is given back when its answer arrives.
    #[error(
        "the service did not answer within {after:?} when asked to {command}: it is stopped or overloaded; try again, or \
         connect with a longer time limit"
    )]
    TimedOut {
        /// What the command asks for.
        command: &'static str,
        /// The time limit of [`ConnectOptions`](crate::ConnectOptions).
        after: Duration,
    },
    /// A revocation was not complete in time: running transfers of others, or a stopped service. No new transfer can use the
    /// memory once the service executes the command, but a running one may still touch it. The session stays usable, and
    /// revoking again waits for the same revocation.
    #[error(
        "the revocation was not complete within {after:?}: a running transfer may still use the memory; revoke again to wait \
         longer"
    )]
    RevocationPending {
        /// The time limit of [`ConnectOptions`](crate::ConnectOptions).
        after: Duration,
    },
    /// Memory of an arena cannot be granted, revoked or exported, because its capability covers the whole segment.
    #[error(
        "memory of an arena cannot be granted, revoked or exported; derive a frame from it, and grant or revoke that"
    )]
    PartOfArena,
    /// The command could not be sent. The session stays usable.
    #[error("cannot send the command to the service: {0}")]
    Send(io::Error),
    /// The service broke the protocol. An answer that no command can have ends the connection. One that only does not match its
    /// command is not believed, and the session stays usable; its text begins with "its answer does not match the command".
    #[error("the service broke the protocol: {0}")]
    Protocol(&'static str),
    /// This process is a forked child of the one that opened the client.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// What to do about a socket that this process cannot connect to.
fn remedy(error: &io::Error) -> &'static str {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    if error.kind() == io::ErrorKind::PermissionDenied {
        "this user may not; the option `mode` of the service and the folder's permissions say who may"
    } else if is(Errno::PROTOTYPE) {
        "another program listens there"
    } else if is(Errno::NAMETOOLONG) {
        "the path of a socket has at most 107 bytes"
    } else {
        "is `memferry serve` running?"
    }
}

impl CallError {
    /// The answer is of another kind than the command asks for.
    pub(crate) const UNEXPECTED: Self = Self::Protocol("its answer does not match the command");

    /// Whether a revocation was refused because the capability had been revoked before. The earlier revocation waited for its
    /// transfers, so nothing touches the memory. After any other refusal a failed engine channel may still write there.
    pub fn is_revoked_before(&self) -> bool {
        matches!(self, Self::Refused(Refusal { kind: RefusalKind::Capability, .. }))
    }
}

impl From<Forked> for FrameError {
    fn from(forked: Forked) -> Self {
        Self::Call(forked.into())
    }
}

/// Why a frame or an arena could not be created.
///
/// ```
/// use memferry::{AllocateError, Client, FrameError};
///
/// let none = Client::embedded()?.frame(0).alloc();
/// assert!(matches!(none, Err(FrameError::Allocate(AllocateError::Empty))));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum FrameError {
    /// The memory could not be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The call that registers the memory failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Memory of this process can be registered with an embedded service only. Contains the memory.
    #[error("only an embedded client may register memory of its own process; allocate a frame instead")]
    NotEmbedded(Vec<u8>),
    /// Memory that its owner keeps can be lent to an embedded service only.
    #[error("only an embedded client may be lent memory of its own process; allocate a frame instead")]
    LentToService,
    /// The service accepted the memory without sealing it, so it could truncate it. The connection was ended.
    #[error("the service broke the protocol: it did not seal the memory of a frame: {0}")]
    Memory(UnsafeMemory),
    /// The arena's guard against use in a forked child could not be created.
    #[error("cannot set up the arena's fork guard: {0}")]
    Guard(io::Error),
}

/// Why [`Client::queue`](crate::Client::queue) failed.
///
/// ```
/// use memferry::{CallError, Client, OpenError};
///
/// let odd = Client::embedded()?.queue(3); // no power of two
/// assert!(matches!(odd, Err(OpenError::Call(CallError::Refused(_)))));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum OpenError {
    /// The call to the service failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The service sent memory that it could still truncate. The connection was ended.
    #[error("the service broke the protocol: the memory of the queue is not safe to map: {0}")]
    Memory(UnsafeMemory),
    /// The shared memory that the service sent could not be mapped.
    #[error("cannot map the queue: {0}")]
    Map(io::Error),
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use crate::Client;

    #[test]
    fn a_failed_connection_has_a_remedy() {
        let refused = |path: &std::path::Path| Client::connect(path).err().unwrap().to_string();
        let directory = std::env::temp_dir().join(format!("memferry-remedy-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let stream = directory.join("stream");
        let _other = UnixListener::bind(&stream).unwrap();
        assert!(refused(&stream).ends_with("another program listens there"));
        assert!(refused(&directory.join("missing")).ends_with("is `memferry serve` running?"));
        assert!(refused(&directory.join("s".repeat(120))).ends_with("at most 107 bytes"));
        std::fs::remove_dir_all(&directory).unwrap();
        let denied = super::remedy(&std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.starts_with("this user may not"));
    }
}
