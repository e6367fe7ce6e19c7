//! One client's socket: who it is, what it says, in which order.
//!
//! The first message is the handshake, every other a command with the next serial. What the bytes mean is `protocol`'s; what
//! is done about them is the daemon's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memferry_memory::conduit::{self, ReceiveError};
use memferry_transfer::SessionId;
use rustix::process::PidfdFlags;

use crate::protocol::{self, Command, Hello, Violation, Welcome};

/// What a connection said.
pub(super) enum Heard {
    Nothing,
    Gone,
    Hello(Hello),
    Command(SessionId, u32, Command, Vec<OwnedFd>),
}

pub(super) struct Connection {
    socket: OwnedFd,
    process: OwnedFd,
    process_id: u32,
    user: u32,
    session: Option<SessionId>,
    /// Serial of the last command.
    serial: u32,
}

impl Connection {
    /// A connection of whoever made the socket; fails when its process is gone already.
    pub(super) fn new(socket: OwnedFd) -> rustix::io::Result<Self> {
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        let process = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty())?;
        let process_id = peer.pid.as_raw_nonzero().get() as u32;
        Ok(Self { socket, process, process_id, user: peer.uid.as_raw(), session: None, serial: 0 })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
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

    /// Reads one message.
    pub(super) fn hear(&mut self) -> Result<Heard, Violation> {
        let packet = match conduit::receive(self.socket.as_fd(), false) {
            Ok(packet) => packet,
            Err(ReceiveError::WouldBlock) => return Ok(Heard::Nothing),
            Err(ReceiveError::Closed | ReceiveError::System(_)) => return Ok(Heard::Gone),
            Err(ReceiveError::TooLong) => return Err(Violation::TooLong),
            Err(ReceiveError::TooManyDescriptors) => {
                let got = conduit::MAXIMUM_DESCRIPTORS as u32 + 1;
                return Err(Violation::Descriptors { expected: 0, got });
            }
        };
        let came = packet.descriptors.len();
        let Some(session) = self.session else {
            if came > 0 {
                return Err(Violation::Descriptors { expected: 0, got: came as u32 });
            }
            return Hello::decode(&packet.bytes).map(Heard::Hello);
        };
        let expected = self.serial.wrapping_add(1);
        let command = protocol::decode_command(&packet.bytes, expected, came)?;
        self.serial = expected;
        Ok(Heard::Command(session, expected, command, packet.descriptors))
    }

    pub(super) fn welcome(&mut self, welcome: Welcome) -> Result<(), Violation> {
        self.session = Some(welcome.session);
        conduit::send(self.socket.as_fd(), &welcome.encode(), &[], false).map_err(|_| Violation::NotReading)
    }

    /// Tells the client why it is being disconnected; it may not listen.
    pub(super) fn farewell(&self, violation: &Violation) {
        let _ = conduit::send(self.socket.as_fd(), &protocol::encode_violation(violation), &[], false);
    }
}
