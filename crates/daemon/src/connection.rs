//! The connection of one client: its verified identity and its messages in sequence.
//!
//! The first message is the handshake, each further one a command with the next serial. `protocol` decodes the bytes; the
//! daemon acts on them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memferry_shm::conduit::{self, PeerProcess, ReceiveError};
use memferry_transfer::SessionId;
use rustix::io::Errno;

use memferry_service::Introduced;
use memferry_service::protocol::{self, Command, Hello, Violation, Welcome};

/// A message received from a connection, or its end.
pub(super) enum Received {
    Nothing,
    Gone,
    Hello(Hello),
    Command(SessionId, u32, Command),
}

pub(super) struct Connection {
    socket: OwnedFd,
    process: Arc<OwnedFd>,
    process_id: u32,
    user: u32,
    session: Option<SessionId>,
    /// Serial of the last command.
    serial: u32,
}

impl Connection {
    /// Identifies the peer of the socket. Returns the socket if the peer's process cannot be watched.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, (OwnedFd, Errno)> {
        match conduit::peer_process(socket.as_fd()) {
            Ok(PeerProcess { descriptor, number: process_id, user }) => {
                let process = Arc::new(descriptor);
                Ok(Self { socket, process, process_id, user, session: None, serial: 0 })
            }
            Err(error) => Err((socket, error)),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    pub(super) fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// The client's verified identity.
    pub(super) fn introduced(&self, asymmetric_fences: bool) -> Introduced {
        let user = self.user;
        let process = self.process_id;
        let watched = Some(Arc::clone(&self.process));
        Introduced { user, process, asymmetric_fences, watched }
    }

    pub(super) fn process_id(&self) -> u32 {
        self.process_id
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Reads one message and appends its descriptors to `descriptors`, also if it fails.
    pub(super) fn receive(&mut self, descriptors: &mut Vec<OwnedFd>) -> Result<Received, Violation> {
        let received = conduit::receive_into(self.socket.as_fd(), false, descriptors);
        let received_descriptors = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        let bytes = match received {
            Ok(bytes) => bytes,
            Err(ReceiveError::WouldBlock) => return Ok(Received::Nothing),
            Err(ReceiveError::Closed | ReceiveError::System(_)) => return Ok(Received::Gone),
            Err(ReceiveError::TooLong) => return Err(Violation::TooLong),
            // The message had descriptors, but this process had no room for them.
            Err(ReceiveError::TooManyDescriptors) if received_descriptors == 0 => {
                let reason = "it is out of descriptors and could not receive one; try again later";
                return Err(Violation::Unwelcome(reason.to_owned()));
            }
            Err(ReceiveError::TooManyDescriptors) => {
                return Err(Violation::Descriptors { expected: 0, got: received_descriptors });
            }
        };
        let Some(session) = self.session else {
            if received_descriptors > 0 {
                return Err(Violation::Descriptors { expected: 0, got: received_descriptors });
            }
            return Hello::decode(&bytes).map(Received::Hello);
        };
        let expected = self.serial.wrapping_add(1);
        let command = protocol::decode_command(&bytes, expected, descriptors.len())?;
        self.serial = expected;
        Ok(Received::Command(session, expected, command))
    }

    pub(super) fn welcome(&mut self, welcome: Welcome) -> Result<(), Violation> {
        self.session = Some(welcome.session);
        conduit::send(self.socket.as_fd(), &welcome.encode(), &[], false).map_err(|_| Violation::NotReading)
    }

    /// Sends the client the reason of its disconnection, if its socket has room.
    pub(super) fn send_violation(&self, violation: &Violation) {
        let _ = conduit::send(self.socket.as_fd(), &protocol::encode_violation(violation), &[], false);
    }
}
