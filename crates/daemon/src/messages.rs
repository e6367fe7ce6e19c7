//! Messages between the control thread and the attendants of users.
//!
//! ```text
//! control ─ Adopt, Answer, Mapped, End ─► attendant        packets with descriptors, as on a client's socket
//! control ◄─ Hello, Command, Memory, Sealed, Ended ─ attendant
//! ```
//!
//! Both ends are the same program, so there is no version. An attendant handles descriptors of hostile clients: the control thread
//! believes it nothing about other users, and examines memory again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memferry_service::protocol::{self, Command, ExportKind, Hello, Violation};
use memferry_shm::conduit::{self, ReceiveError};
use memferry_transfer::Handle;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The refusal after `TOOMANYREFS`: Linux limits how many descriptors this process has sent and nobody has received.
pub(crate) const IN_FLIGHT: &str =
    "too many descriptors of the service are in flight to clients; try again later";

/// Room for the longest message of a client with what is added here.
const MAX_BYTES: usize = conduit::MAXIMUM_BYTES + 256;

/// Identifies a client's connection for the lifetime of the service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct ClientId(pub(crate) u64);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAttendant {
    /// The user has connected once more. Descriptors: the socket and the pidfd of the client. It takes effect with `HandedOver`.
    Adopt { client: ClientId },
    /// Send `farewell` and close. Descriptor: the socket of a client that was not accepted. It takes effect with `HandedOver`.
    TurnAway { farewell: Vec<u8> },
    /// The control thread has closed its copies of all sockets sent before, so the last close, which may block, happens here.
    HandedOver,
    /// The answer to the client's last message, with its descriptors.
    Answer { client: ClientId, bytes: Vec<u8> },
    /// The answer to a revocation, which may come after answers to later messages.
    Revoked { client: ClientId, bytes: Vec<u8> },
    /// The answer about a new queue. Descriptors for the client: the service's half, the doorbell, the workers' parked words.
    Opened { client: ClientId, serial: u32, queue: u32, bytes: Vec<u8> },
    /// The answer about a new signal. Descriptors: the client's eventfd, and the one that a worker writes to.
    Notified { client: ClientId, serial: u32, queue: u32, bytes: Vec<u8> },
    /// The client is an engine now: the end of its process matters as well as that of its connection.
    Engine { client: ClientId },
    /// The memory of the client's command is mapped and can be sealed.
    Mapped { client: ClientId },
    /// The answer to the last message of an engine is that it exports a frame. Descriptor, if somebody waits for it: the end of a pair of
    /// sockets over which its report is [passed](Passed).
    Export { client: ClientId, frame: Handle, bytes: Vec<u8> },
    /// An engine exports the client's frame. Descriptor: the other end of that pair. The attendant answers the client, at the latest
    /// after this time.
    Exporting { client: ClientId, serial: u32, milliseconds: u64 },
    /// Send `farewell` and close. If `watch`, report when the client's process has exited.
    End { client: ClientId, farewell: Vec<u8>, watch: bool },
    /// Workers have released queues: drop what belongs to them.
    Release { client: ClientId, queues: Vec<u32> },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromAttendant {
    Hello {
        client: ClientId,
        versions: (u16, u16),
        features: u64,
    },
    /// A command that brings no memory.
    Command {
        client: ClientId,
        serial: u32,
        command: Command,
    },
    /// A command that brings memory. Descriptor: the memfd, examined but not sealed.
    Memory {
        client: ClientId,
        serial: u32,
        command: Command,
    },
    /// The memory of the client's command is sealed.
    Sealed {
        client: ClientId,
    },
    /// The memory of the client's command was refused, and the client has the answer.
    Refused {
        client: ClientId,
    },
    /// A new queue could not be delivered, and the client has a refusal.
    Undelivered {
        client: ClientId,
        queue: u32,
    },
    /// An engine did not export the client's frame, and the client has a refusal.
    NotExported {
        client: ClientId,
    },
    /// The connection is closed: by the client, or for a violation, which the client knows.
    Ended {
        client: ClientId,
        violation: Option<Violation>,
    },
    /// The process of a client whose connection the service ended has exited.
    Left {
        client: ClientId,
    },
    /// The attendant failed and ends.
    Panicked {
        message: String,
    },
}

/// From the attendant of an engine to the one of a client, over a pair of sockets for this message only. So the descriptor, whose closing
/// may block, is never in the control thread's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Passed {
    /// Descriptor: that of the memory.
    Exported {
        kind: ExportKind,
        length: u64,
    },
    /// The engine gives out no descriptors.
    Unsupported,
    Failed,
    /// Too many descriptors are in flight.
    InFlight,
}

impl FromAttendant {
    /// The client that the message is about.
    pub(crate) fn client(&self) -> Option<ClientId> {
        match self {
            Self::Hello { client, .. }
            | Self::Command { client, .. }
            | Self::Memory { client, .. }
            | Self::Sealed { client }
            | Self::Refused { client }
            | Self::Undelivered { client, .. }
            | Self::NotExported { client }
            | Self::Ended { client, .. }
            | Self::Left { client } => Some(*client),
            Self::Panicked { .. } => None,
        }
    }

    pub(crate) fn hello(client: ClientId, hello: &Hello) -> Self {
        Self::Hello { client, versions: hello.versions, features: hello.features }
    }
}

/// Sends a message, waiting for room if `wait`.
///
/// # Errors
/// Those of [`conduit::send`].
pub(crate) fn send(
    channel: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[&OwnedFd],
    wait: bool,
) -> rustix::io::Result<()> {
    let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    conduit::send(channel, &protocol::encode(message), &descriptors, wait)
}

/// Result of [`receive`].
pub(crate) enum Received<T> {
    Message(T, Vec<OwnedFd>),
    Nothing,
    /// The other end is gone, or what it sends makes no sense.
    Lost,
}

/// Receives a message; never waits. Descriptors for which this process has no room are missing.
pub(crate) fn receive<T: DeserializeOwned>(channel: BorrowedFd<'_>) -> Received<T> {
    let mut descriptors = Vec::new();
    match conduit::receive_up_to(channel, false, MAX_BYTES, &mut descriptors) {
        Ok(packet) => protocol::decode(&packet.bytes)
            .map_or(Received::Lost, |message| Received::Message(message, descriptors)),
        Err(ReceiveError::WouldBlock) => Received::Nothing,
        Err(_) => Received::Lost,
    }
}
