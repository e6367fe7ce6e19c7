//! The connection to the service's control side: a socket, or calls of the embedded service.
//!
//! ```text
//! call(command, descriptors) ─► Answer, descriptors        one at a time
//! lost() ─► whether the service is gone                    never blocks
//! ```
//!
//! Transfers do not use this link.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memferry_service::Introduced;
use memferry_service::embedded::Embedded;
use memferry_service::protocol::{
    self, Answer, Command, Envelope, FEATURE_ASYMMETRIC_FENCES, Hello, Reply, VERSIONS, Violation, Welcome,
};
use memferry_shm::conduit::{self, ReceiveError};
use memferry_shm::parking::Fences;
use memferry_transfer::SessionId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{CallError, ConnectError};

pub(crate) enum Link {
    Socket {
        socket: OwnedFd,
        /// Serial of the last command; locked while a command is in progress.
        serial: Mutex<u32>,
        lost: AtomicBool,
    },
    Embedded(Arc<Embedded>),
}

/// A new link with the results of the handshake.
pub(crate) struct Opened {
    pub(crate) link: Link,
    pub(crate) session: SessionId,
    pub(crate) fences: Fences,
}

/// Number of attempts to connect if the service ends the connection before it answers.
const ATTEMPTS: u32 = 3;

/// Connects. A stopping service may accept the connection and end before it answers. It has done nothing for the client then,
/// so this tries again: with a supervisor that holds the socket, the next service answers.
pub(crate) fn connect(path: &Path) -> Result<Opened, ConnectError> {
    for _ in 1..ATTEMPTS {
        match connect_once(path) {
            Err(ConnectError::Socket { source, .. })
                if matches!(
                    source.kind(),
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
                ) => {}
            result => return result,
        }
    }
    connect_once(path)
}

fn connect_once(path: &Path) -> Result<Opened, ConnectError> {
    let failed =
        |source: rustix::io::Errno| ConnectError::Socket { path: path.to_owned(), source: source.into() };
    let ended = |violation| ConnectError::Handshake { path: path.to_owned(), violation };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map_err(failed)?;
    rustix::net::connect(&socket, &address).map_err(failed)?;
    let fences = Fences::register();
    let features = if fences == Fences::Asymmetric { FEATURE_ASYMMETRIC_FENCES } else { 0 };
    let hello = Hello { versions: VERSIONS, features };
    // Even if the send fails, the service may have written the reason why it refused the connection: read it.
    let sent = conduit::send(socket.as_fd(), &hello.encode(), &[], true);
    let packet = conduit::receive(socket.as_fd(), true).map_err(|error| match error {
        ReceiveError::System(error) => failed(error),
        _ => failed(sent.err().unwrap_or(rustix::io::Errno::CONNRESET)),
    })?;
    let welcome = Welcome::decode(&packet.bytes).map_err(ended)?;
    let agreed = welcome.features & features & FEATURE_ASYMMETRIC_FENCES != 0;
    let fences = if agreed { fences } else { Fences::Full };
    let link = Link::Socket { socket, serial: Mutex::new(0), lost: AtomicBool::new(false) };
    Ok(Opened { link, session: welcome.session, fences })
}

pub(crate) fn embed(embedded: Arc<Embedded>) -> Result<Opened, ConnectError> {
    let fences = embedded.service().fences();
    let user = rustix::process::geteuid().as_raw();
    let asymmetric_fences = fences == Fences::Asymmetric;
    let process = std::process::id();
    let session =
        embedded.service().connect(Introduced { user, process, asymmetric_fences })?;
    Ok(Opened { link: Link::Embedded(embedded), session, fences })
}

impl Link {
    pub(crate) fn call(
        &self,
        session: SessionId,
        command: Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        match self {
            Self::Embedded(embedded) => Ok(embedded.call(session, command, descriptors)?),
            Self::Socket { socket, serial, lost } => {
                let mut serial = serial.lock().unwrap_or_else(PoisonError::into_inner);
                if lost.load(Ordering::Acquire) {
                    return Err(CallError::ServiceLost);
                }
                let next = serial.wrapping_add(1);
                let answered = exchange(socket, next, command, &descriptors);
                if matches!(answered, Err(CallError::Send(_))) {
                    return answered;
                }
                *serial = next;
                if !matches!(answered, Ok(_) | Err(CallError::Refused(_))) {
                    lost.store(true, Ordering::Release);
                }
                answered
            }
        }
    }

    /// Whether the service is gone, by a poll of the socket.
    pub(crate) fn lost(&self) -> bool {
        match self {
            Self::Embedded(_) => false,
            Self::Socket { socket, lost, .. } => {
                if lost.load(Ordering::Acquire) {
                    return true;
                }
                let mut entry = [PollFd::new(socket, PollFlags::empty())];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let gone = rustix::event::poll(&mut entry, Some(&now)).is_ok()
                    && entry[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
                if gone {
                    lost.store(true, Ordering::Release);
                }
                gone
            }
        }
    }

    /// Whether the service is known to be gone, without a system call.
    pub(crate) fn known_lost(&self) -> bool {
        matches!(self, Self::Socket { lost, .. } if lost.load(Ordering::Acquire))
    }

    /// Ends the session of an embedded service. A service in another process notices the closed socket.
    pub(crate) fn close(&self, session: SessionId) {
        if let Self::Embedded(embedded) = self
            && embedded.is_of_this_process()
        {
            embedded.service().disconnect(session);
        }
    }
}

fn exchange(
    socket: &OwnedFd,
    serial: u32,
    command: Command,
    descriptors: &[OwnedFd],
) -> Result<(Answer, Vec<OwnedFd>), CallError> {
    let count = descriptors.len() as u8;
    let bytes = protocol::encode(&Envelope { serial, descriptors: count, body: command });
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let sent = conduit::send(socket.as_fd(), &bytes, &borrowed, true);
    // If the peer closed the socket, its reason may still be readable. After any other error the service did not receive the
    // command and will not answer.
    if let Err(error) = sent
        && !matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
    {
        return Err(CallError::Send(error.into()));
    }
    let packet = match conduit::receive(socket.as_fd(), true) {
        Ok(packet) => packet,
        Err(ReceiveError::TooLong | ReceiveError::TooManyDescriptors) => {
            return Err(CallError::Protocol("its answer is longer than the protocol allows"));
        }
        Err(_) => return Err(CallError::ServiceLost),
    };
    if let Some(violation) = protocol::decode_violation(&packet.bytes) {
        return Err(CallError::Ended(violation));
    }
    sent.map_err(|_| CallError::ServiceLost)?;
    let malformed = |_: Violation| CallError::Protocol("its answer is malformed");
    let reply: Reply = protocol::decode(&packet.bytes).map_err(malformed)?;
    if reply.serial != serial {
        return Err(CallError::Protocol("it answered another command"));
    }
    if usize::from(reply.descriptors) != packet.descriptors.len() {
        return Err(CallError::Protocol("its answer announced another number of descriptors than it sent"));
    }
    Ok((reply.body?, packet.descriptors))
}
