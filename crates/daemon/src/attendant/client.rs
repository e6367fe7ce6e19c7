//! The connection of one client in its user's attendant: messages in sequence, one at a time.
//!
//! ```text
//! first message ─► Hello        each further one ─► serial, decoding, descriptors ─► Command
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use memferry_service::protocol::{self, Command, Hello, Violation};
use memferry_shm::conduit::{self, ReceiveError};
use memferry_transfer::Handle;
use rustix::io::Errno;

use super::jobs::Sealing;

/// A message received from a client, or its end.
pub(super) enum Incoming {
    Nothing,
    Gone,
    Hello(Hello),
    Command(u32, Command),
}

/// Progress of the client's last message.
pub(super) enum State {
    /// It is answered, or none was received yet.
    Idle,
    /// The control thread has it.
    Waiting,
    /// It is one of too many revocations that have no answer.
    Revoking,
    /// The control thread maps its memory.
    Mapping(Sealing),
    /// Its memory is being sealed.
    Sealing { serial: u32, deadline: Instant },
    /// An engine exports its frame.
    Exporting(Export),
}

/// An export that a client waits for.
pub(super) struct Export {
    pub(super) serial: u32,
    pub(super) deadline: Instant,
    /// Becomes readable with the engine's report, or with its end.
    pub(super) pair: OwnedFd,
    pub(super) token: u64,
}

/// Revocations of a client that wait for their answer while it sends other commands.
const MAX_REVOKING: u32 = 4;

/// Answers with descriptors that a client may leave unread. Linux limits how many descriptors all clients together leave unread.
const MAX_UNREAD_GIFTS: u32 = 3;
/// More bytes than a client leaves unread that only never looked at its end.
const MANY_UNREAD_BYTES: u32 = 16 << 10;

pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) socket_token: u64,
    pub(super) process: OwnedFd,
    pub(super) process_token: u64,
    pub(super) state: State,
    greeted: bool,
    /// Whether it has been answered, and may send descriptors.
    answered: bool,
    /// Revocations without an answer.
    revoking: u32,
    /// Serial of the last command.
    serial: u32,
    /// Answers with descriptors since the client was last seen to have read everything.
    gifts: u32,
    /// It is an engine, so the end of its process matters as well as that of its connection.
    pub(super) is_engine: bool,
    /// It asked to be one and has no answer yet.
    asks_for_engine: bool,
    /// The frame that it exports, as an engine, and where the report on that goes.
    pub(super) export: Option<(Handle, OwnedFd)>,
}

impl Client {
    pub(super) fn new(
        (socket, socket_token): (OwnedFd, u64),
        (process, process_token): (OwnedFd, u64),
    ) -> Self {
        Self {
            socket,
            socket_token,
            process,
            process_token,
            state: State::Idle,
            greeted: false,
            answered: false,
            revoking: 0,
            serial: 0,
            gifts: 0,
            is_engine: false,
            asks_for_engine: false,
            export: None,
        }
    }

    /// When the sealing of its memory has taken too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if let State::Sealing { deadline, .. } = self.state { Some(deadline) } else { None }
    }

    /// When the export that it waits for has taken too long.
    pub(super) fn export_deadline(&self) -> Option<Instant> {
        if let State::Exporting(export) = &self.state { Some(export.deadline) } else { None }
    }

    /// Whether the end of its process may matter.
    pub(super) fn may_be_engine(&self) -> bool {
        self.is_engine || self.asks_for_engine
    }

    /// Whether it has left descriptors or many bytes unread.
    pub(super) fn has_unread(&self) -> bool {
        let unread = conduit::unread_bytes(self.socket.as_fd()).unwrap_or(0);
        unread > MANY_UNREAD_BYTES || (unread > 0 && self.gifts > 0)
    }

    /// Reads one message and appends its descriptors to `descriptors`, also if it fails. A client that waits for an answer, or that
    /// is not to be read, can only have hung up.
    pub(super) fn receive(&mut self, descriptors: &mut Vec<OwnedFd>) -> Result<Incoming, Violation> {
        if !matches!(self.state, State::Idle) {
            return Ok(Incoming::Gone);
        }
        if self.gifts >= MAX_UNREAD_GIFTS {
            match conduit::unread_bytes(self.socket.as_fd()) {
                Ok(0) => self.gifts = 0,
                _ => return Err(Violation::NotReading),
            }
        }
        let received = conduit::receive_into(self.socket.as_fd(), false, descriptors);
        let received_descriptors = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        let bytes = match received {
            Ok(bytes) => bytes,
            Err(ReceiveError::WouldBlock) => return Ok(Incoming::Nothing),
            Err(ReceiveError::Closed | ReceiveError::System(_)) => return Ok(Incoming::Gone),
            Err(ReceiveError::TooLong) => return Err(Violation::TooLong),
            // The message had descriptors, but this process had no room for them.
            Err(ReceiveError::TooManyDescriptors) if received_descriptors == 0 => {
                let reason = "the service is out of descriptors for this user and could not receive one; try again later";
                return Err(Violation::Stuck(reason.to_owned()));
            }
            Err(ReceiveError::TooManyDescriptors) => {
                return Err(Violation::Descriptors { expected: 0, got: received_descriptors });
            }
        };
        let message = if self.greeted {
            let expected = self.serial.wrapping_add(1);
            let command = protocol::decode_command(&bytes, expected, descriptors.len())?;
            self.serial = expected;
            Incoming::Command(expected, command)
        } else {
            if received_descriptors > 0 {
                return Err(Violation::Descriptors { expected: 0, got: received_descriptors });
            }
            self.greeted = true;
            Incoming::Hello(Hello::decode(&bytes)?)
        };
        self.state = State::Waiting;
        let attaches = |command: &Command| matches!(command, Command::AttachEngine { .. });
        self.asks_for_engine = matches!(&message, Incoming::Command(_, command) if attaches(command));
        if let Incoming::Command(_, Command::Revoke { .. }) = message {
            self.revoking += 1;
            self.state = if self.revoking < MAX_REVOKING { State::Idle } else { State::Revoking };
        }
        Ok(message)
    }

    /// A revocation has its answer.
    pub(super) fn revoked(&mut self) {
        self.revoking = self.revoking.saturating_sub(1);
        if let State::Revoking = self.state {
            self.state = State::Idle;
        }
    }

    /// Sends an answer.
    ///
    /// # Errors
    /// Those of [`conduit::send`].
    pub(super) fn send(&mut self, bytes: &[u8], descriptors: &[&OwnedFd]) -> Result<(), Errno> {
        self.asks_for_engine = false;
        if !std::mem::replace(&mut self.answered, true) {
            // Who answers has closed its own copy of the socket.
            let _ = conduit::accept_descriptors(self.socket.as_fd());
        }
        let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        conduit::send(self.socket.as_fd(), bytes, &borrowed, false)?;
        self.gifts += u32::from(!descriptors.is_empty());
        Ok(())
    }
}

/// Sends the last message of a connection, if the socket has room.
pub(super) fn say_farewell(socket: &OwnedFd, farewell: &[u8]) {
    let _ = conduit::send(socket.as_fd(), farewell, &[], false);
}
