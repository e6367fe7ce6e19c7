//! A session with the service: handshake, then one command at a time.
//!
//! ```text
//! open ─► Hello, Welcome        call(command) ─► answer, within a time limit
//! ask(command) ... answer()     for NextFrame, which the service answers when there is an event
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memferry_service::printable::printable;
use memferry_service::protocol::{
    self, Answer, Command, Envelope, FEATURE_ASYMMETRIC_FENCES, Hello, Refusal, RefusalKind, Reply, VERSIONS,
    Violation, Welcome,
};
use memferry_shm::conduit::{self, Packet, ReceiveError};
use memferry_shm::parking::Fences;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

/// How long the service may take to answer a command that it answers at once.
const LIMIT: Duration = Duration::from_secs(5);

/// Why there is no session with the service, or no more.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// No service listens there, or the socket cannot be used.
    #[error("cannot connect to the service at {}: {source}", path.display())]
    Socket {
        /// Where the service should listen.
        path: PathBuf,
        /// What the system call returned.
        source: std::io::Error,
    },
    /// The service ended the session, and said why.
    #[error("the service ended the session: {0}")]
    Ended(Violation),
    /// The service refused a command.
    #[error("the service refused to {command}: {refusal}")]
    Refused {
        /// What the engine wanted.
        command: &'static str,
        /// Why the service refused it.
        refusal: Refusal,
    },
    /// The keeper of this engine is gone.
    #[error("the keeper has ended")]
    KeeperLost,
    /// The service is gone.
    #[error("the connection to the service has ended")]
    Lost,
    /// The service did not answer in time.
    #[error("the service did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The service broke the protocol.
    #[error("the service broke the protocol: {0}")]
    Protocol(&'static str),
    /// Something on this machine failed.
    #[error("{step} failed: {source}")]
    System {
        /// The call, or what it was for.
        step: &'static str,
        /// The error that it returned.
        source: std::io::Error,
    },
}

impl ConnectionError {
    /// Whether trying again cannot help: the service does not want this engine.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => {
                matches!(refusal.kind, RefusalKind::Argument | RefusalKind::Capability | RefusalKind::Frame)
            }
            Self::Ended(violation) => matches!(violation, Violation::Version { .. } | Violation::NotHello),
            _ => false,
        }
    }

    /// Whether the service refuses this engine, but may take it later.
    pub(crate) fn is_refused_for_now(&self) -> bool {
        matches!(self, Self::Refused { .. }) && !self.is_final()
    }

    pub(crate) fn system(step: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::System { step, source: source.into() }
    }
}

/// A session of a keeper or an engine.
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Of the last command.
    serial: u32,
    fences: Fences,
}

impl Connection {
    /// Connects, and agrees on version and features.
    pub(crate) fn open(path: &Path) -> Result<Self, ConnectionError> {
        let failed = |source: Errno| ConnectionError::Socket { path: path.to_owned(), source: source.into() };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        // For connecting, and for sending to a service that does not read.
        set_socket_timeout(&socket, Timeout::Send, Some(LIMIT)).map_err(failed)?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
        let own = Fences::register();
        let features = if own == Fences::Asymmetric { FEATURE_ASYMMETRIC_FENCES } else { 0 };
        let mut connection = Self { socket, serial: 0, fences: Fences::Full };
        // A service that refuses the connection may have written why before it closed it.
        let sent = connection.send(&Hello { versions: VERSIONS, features }.encode(), &[]);
        let packet = match (connection.receive(Some(LIMIT)), sent) {
            (Ok(packet), _) => packet,
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
        };
        let welcome = Welcome::decode(&packet.bytes).map_err(ended)?;
        if welcome.features & features & FEATURE_ASYMMETRIC_FENCES != 0 {
            connection.fences = own;
        }
        Ok(connection)
    }

    /// The barriers that both sides use.
    pub(crate) fn fences(&self) -> Fences {
        self.fences
    }

    /// Readable when the answer has come; hung up when the service is gone.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a command and takes its answer. `what` completes the sentence "refused to".
    pub(crate) fn call(
        &mut self,
        what: &'static str,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), ConnectionError> {
        self.ask(command, descriptors)?;
        let packet = self.receive(Some(LIMIT))?;
        self.decode(what, packet)
    }

    /// Sends a command, whose answer is taken later.
    pub(crate) fn ask(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ConnectionError> {
        self.serial = self.serial.wrapping_add(1);
        let count = descriptors.len() as u8;
        let message = Envelope { serial: self.serial, descriptors: count, body: command };
        self.send(&protocol::encode(&message), descriptors)
    }

    /// Waits for the answer to the command sent last.
    pub(crate) fn answer(&mut self, what: &'static str) -> Result<(Answer, Vec<OwnedFd>), ConnectionError> {
        let packet = self.receive(None)?;
        self.decode(what, packet)
    }

    /// Waits until the answer has come, or the keeper has closed its end of `keeper`, on which it sends nothing.
    pub(crate) fn wait_beside(&self, keeper: &OwnedFd) -> Result<(), ConnectionError> {
        let mut entries = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(keeper, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut entries, None))
            .map_err(ConnectionError::system("poll"))?;
        match entries[1].revents().is_empty() {
            true => Ok(()),
            false => Err(ConnectionError::KeeperLost),
        }
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ConnectionError> {
        conduit::send(self.socket.as_fd(), bytes, descriptors, true).map_err(|error| match error {
            Errno::AGAIN => ConnectionError::TimedOut(LIMIT),
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => self.last_words(),
            other => ConnectionError::system("sending to the service")(other),
        })
    }

    /// Why the service closed the connection, as far as it said so.
    fn last_words(&self) -> ConnectionError {
        match conduit::receive(self.socket.as_fd(), false).map(|packet| packet.bytes) {
            Ok(bytes) => protocol::decode_violation(&bytes).map_or(ConnectionError::Lost, ended),
            Err(_) => ConnectionError::Lost,
        }
    }

    fn receive(&self, limit: Option<Duration>) -> Result<Packet, ConnectionError> {
        let end = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let time = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], time.as_ref()) {
                Ok(0) => return Err(ConnectionError::TimedOut(limit.unwrap_or_default())),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(ConnectionError::system("poll")(error)),
            }
            return match conduit::receive(self.socket.as_fd(), false) {
                Ok(packet) => Ok(packet),
                Err(ReceiveError::WouldBlock) => continue,
                Err(ReceiveError::Closed) => Err(ConnectionError::Lost),
                Err(ReceiveError::TooLong) => Err(ConnectionError::Protocol("a message is too long")),
                // The service sends no more than fit a message, so this process had no room for them.
                Err(ReceiveError::TooManyDescriptors) => {
                    Err(ConnectionError::system("receiving a descriptor")(Errno::MFILE))
                }
                Err(ReceiveError::System(error)) => {
                    Err(ConnectionError::system("receiving from the service")(error))
                }
            };
        }
    }

    fn decode(&self, what: &'static str, packet: Packet) -> Result<(Answer, Vec<OwnedFd>), ConnectionError> {
        if let Some(violation) = protocol::decode_violation(&packet.bytes) {
            return Err(ended(violation));
        }
        let reply: Reply = protocol::decode(&packet.bytes)
            .map_err(|_| ConnectionError::Protocol("its answer is malformed"))?;
        if reply.serial != self.serial {
            return Err(ConnectionError::Protocol("it answered another command"));
        }
        if usize::from(reply.descriptors) != packet.descriptors.len() {
            return Err(ConnectionError::Protocol("it announced another number of descriptors than it sent"));
        }
        match reply.body {
            Ok(answer) => Ok((answer, packet.descriptors)),
            Err(refusal) => {
                let refusal = Refusal { message: printable(&refusal.message), ..refusal };
                Err(ConnectionError::Refused { command: what, refusal })
            }
        }
    }
}

/// The error of a session that the service ended, with a text that is safe to print.
fn ended(violation: Violation) -> ConnectionError {
    ConnectionError::Ended(violation.printable())
}
