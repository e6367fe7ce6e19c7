//! What client and service say over the socket: handshake, commands and answers.
//!
//! ```text
//! client  Hello { magic, versions, features }  ─►   fixed layout, the same in every version
//! service ◄─ Welcome { version, features, session }, or a farewell with the Violation
//! client  Envelope { serial, descriptors, Command } ─►   one at a time
//! service ◄─ Envelope { serial, descriptors, Result<Answer, Refusal> }
//! ```
//!
//! Serials count up from 1, so a replayed or lost message is seen. The number of descriptors is announced and has to match
//! what came. A message that breaks a rule ends the session ([`Violation`]); one that asks for what may not be is refused
//! and the session goes on ([`Refusal`]). Requests for transfers do not come this way but through rings.

pub use memferry_path::Grantee;
use memferry_path::PolicySettings;
use memferry_transfer::{GrantToken, Handle, Rights, SessionId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

mod status;

pub use status::{
    EngineStatus, Identity, ModuleStatus, STATUS_SESSIONS, ServiceId, SessionStatus, Status, WorkerStatus,
    ZeroedStatus,
};

/// First bytes of a handshake.
pub const MAGIC: [u8; 8] = *b"MEMFERRY";
/// Oldest and newest version of the protocol this code speaks.
pub const VERSIONS: (u16, u16) = (3, 3);
/// Feature: the process is registered for expedited barriers, so parking flags need no full fence.
pub const FEATURE_ASYMMETRIC_FENCES: u64 = 1;

const HELLO_BYTES: usize = 20;
const WELCOME_BYTES: usize = 28;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Oldest and newest version it speaks.
    pub versions: (u16, u16),
    /// What it can do.
    pub features: u64,
}

impl Hello {
    /// Its bytes: magic, two versions, features, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.versions.0.to_le_bytes());
        bytes.extend(self.versions.1.to_le_bytes());
        bytes.extend(self.features.to_le_bytes());
        bytes
    }

    /// Reads a handshake; later versions may append to it.
    ///
    /// # Errors
    /// [`Violation::NotHello`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        if bytes.len() < HELLO_BYTES || bytes[..8] != MAGIC {
            return Err(Violation::NotHello);
        }
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let features = bytes[12..HELLO_BYTES].try_into().map_err(|_| Violation::NotHello)?;
        Ok(Self { versions: (half(8), half(10)), features: u64::from_le_bytes(features) })
    }

    /// The newest version both sides speak.
    ///
    /// # Errors
    /// [`Violation::Version`].
    pub fn agree(&self) -> Result<u16, Violation> {
        let version = self.versions.1.min(VERSIONS.1);
        let spoken = version >= self.versions.0.max(VERSIONS.0);
        if spoken {
            Ok(version)
        } else {
            Err(Violation::Version { client: self.versions, service: VERSIONS })
        }
    }
}

/// The service's answer to a handshake it accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The version spoken from here on.
    pub version: u16,
    /// What both sides can do.
    pub features: u64,
    /// The session's public name: others grant to it.
    pub session: SessionId,
}

impl Welcome {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.features.to_le_bytes());
        bytes.extend(self.session.0.to_le_bytes());
        bytes
    }

    /// Reads the service's answer.
    ///
    /// # Errors
    /// [`Violation::Version`] when the service refused, with the versions it speaks; [`Violation::Unwelcome`] when it
    /// refused for another reason; [`Violation::NotHello`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        if bytes.len() >= 8 && bytes[..8] == MAGIC && bytes.len() == WELCOME_BYTES {
            let whole = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
            let (features, session) =
                whole(12).and_then(|features| Ok((features, whole(20)?))).map_err(|_| Violation::NotHello)?;
            let version = u16::from_le_bytes([bytes[8], bytes[9]]);
            return Ok(Self { version, features, session: SessionId(session) });
        }
        Err(decode_violation(bytes).unwrap_or(Violation::NotHello))
    }
}

/// What a client asks of the control side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Make the memfd that comes along a frame. One descriptor.
    Register {
        length: u64,
        /// The most that may ever be done with it.
        rights: Rights,
    },
    /// A capability with a narrower range or fewer rights.
    Derive {
        handle: Handle,
        offset: u64,
        length: u64,
        rights: Rights,
    },
    /// Grant a range to another client.
    Grant {
        handle: Handle,
        offset: u64,
        length: u64,
        rights: Rights,
        to: Grantee,
    },
    Accept {
        token: GrantToken,
    },
    /// Take a capability, or a grant by its token's handle, and all derived from it away; answered when nothing uses it
    /// any more.
    Revoke {
        handle: Handle,
    },
    /// Open a queue pair.
    OpenQueue {
        capacity: u32,
    },
    /// Close a queue pair.
    CloseQueue {
        queue: u32,
    },
    /// Signal the client by a descriptor when completions come while it has asked for that in its ring.
    Notify {
        /// The queue pair; each can be given one signal.
        queue: u32,
        by: NotifyBy,
    },
    /// What the engines can do.
    Engines,
    /// How the service is doing.
    Status,
    /// What the policy is, after this change.
    Policy {
        /// The settings that take over; the service's own user may change them, and root.
        change: Option<Box<PolicySettings>>,
    },
    /// Whose a session is.
    Identify {
        session: SessionId,
    },
}

/// How a client is signalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NotifyBy {
    /// By an eventfd that the service makes.
    Event,
    /// By a completion in the client's own io_uring, whose descriptor comes along. Its result is 0.
    Ring {
        /// The completion's user data.
        user_data: u64,
    },
}

/// What the control side answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A new capability; of a grant, the handle that its token has.
    Handle(Handle),
    Accepted {
        handle: Handle,
        length: u64,
        rights: Rights,
        /// The session that granted it.
        grantor: SessionId,
    },
    /// The revocation is over.
    Revoked,
    /// A queue pair. Descriptors: client memory, service memory, doorbell.
    Queue {
        /// Its number in this session.
        queue: u32,
        capacity: u32,
    },
    /// The queue pair is closed.
    Closed,
    /// The client will be signalled. One descriptor when by an eventfd.
    Notified,
    /// What the engines can do.
    Engines(EngineStatus),
    /// How the service is doing.
    Status(Status),
    Policy(Box<PolicySettings>),
    /// Whose the session is.
    Identity(Identity),
}

/// What kind of refusal: stable numbers for programs, the message for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RefusalKind {
    /// The descriptor is no frame.
    Frame,
    /// The capability does not exist, was revoked or does not allow it.
    Capability,
    /// A quota is reached.
    Quota,
    /// An argument is outside its range.
    Argument,
    /// The service is stopping.
    Stopping,
    /// The machine would not give what is needed.
    System,
}

/// A command that was not done. The session goes on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// What was wrong, with the values, and what to do.
    pub message: String,
}

/// A broken rule of the protocol. The session ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum Violation {
    /// The first message is no handshake.
    #[error("the peer does not speak the memferry protocol")]
    NotHello,
    /// No version in common.
    #[error("no protocol version in common: the client speaks {} to {}, the service {} to {}", client.0, client.1, service.0, service.1)]
    Version {
        /// Versions of the client.
        client: (u16, u16),
        /// Versions of the service.
        service: (u16, u16),
    },
    /// The service would not open a session.
    #[error("the service refused the session: {0}")]
    Unwelcome(String),
    /// Not a message, or bytes left over.
    #[error("the message is malformed")]
    Malformed,
    /// A message out of sequence: lost or replayed.
    #[error("message {got} came where {expected} was due")]
    Serial {
        /// The serial that was due.
        expected: u32,
        /// The one that came.
        got: u32,
    },
    /// More or fewer descriptors than announced or needed.
    #[error("{got} descriptors came where {expected} were announced and due")]
    Descriptors {
        /// As announced and due.
        expected: u32,
        got: u32,
    },
    /// The packet was longer than any message.
    #[error("the packet is longer than any message")]
    TooLong,
    /// The client does not read its answers.
    #[error("the client does not read its answers")]
    NotReading,
    /// The ring's counts are impossible.
    #[error("the client's ring counts are impossible")]
    RingCounts,
    /// More requests than there is room for completions.
    #[error("the client has more requests outstanding than its queue holds")]
    Overrun,
    /// The client's memory failed under a worker.
    #[error("memory of this session failed under the service")]
    MemoryFault,
}

/// A message with its place in the sequence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Counts up from 1.
    pub serial: u32,
    /// Descriptors that come along.
    pub descriptors: u8,
    pub body: T,
}

/// What the service sends after the handshake.
pub type Reply = Envelope<Result<Answer, Refusal>>;

impl Command {
    /// Descriptors that belong to the command.
    pub const fn descriptors(&self) -> u8 {
        matches!(self, Self::Register { .. } | Self::Notify { by: NotifyBy::Ring { .. }, .. }) as u8
    }
}

pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // A message of ours always fits: serialising into a growing buffer has no other failure.
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes a message and refuses bytes left over.
///
/// # Errors
/// [`Violation::Malformed`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Violation> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Violation::Malformed),
    }
}

/// Checks a client's message against the sequence and its descriptors.
///
/// # Errors
/// [`Violation`].
pub fn decode_command(bytes: &[u8], expected: u32, descriptors: usize) -> Result<Command, Violation> {
    let envelope: Envelope<Command> = decode(bytes)?;
    if envelope.serial != expected {
        return Err(Violation::Serial { expected, got: envelope.serial });
    }
    let due = envelope.body.descriptors();
    let announced = envelope.descriptors;
    if due != announced || usize::from(announced) != descriptors {
        let got = u32::try_from(descriptors).unwrap_or(u32::MAX);
        return Err(Violation::Descriptors { expected: u32::from(due), got });
    }
    let rights = match &envelope.body {
        Command::Register { rights, .. } | Command::Derive { rights, .. } | Command::Grant { rights, .. } => {
            *rights
        }
        _ => Rights::empty(),
    };
    if Rights::from_bits(rights.bits()).is_none() {
        return Err(Violation::Malformed);
    }
    Ok(envelope.body)
}

/// First bytes of a farewell; no [`Reply`] and no [`Welcome`] begins with all four.
const FAREWELL: [u8; 4] = *b"\xffbye";

/// Encodes the last message of a session that broke a rule.
pub fn encode_violation(violation: &Violation) -> Vec<u8> {
    let mut bytes = FAREWELL.to_vec();
    bytes.extend(encode(violation));
    bytes
}

/// Reads a farewell, `None` when the message is none.
pub fn decode_violation(bytes: &[u8]) -> Option<Violation> {
    decode(bytes.strip_prefix(&FAREWELL)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MOST_WORKERS;

    #[test]
    fn handshakes_survive_and_agree_on_the_newest_common_version() {
        let hello = Hello { versions: (1, 7), features: 5 };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        assert_eq!(hello.agree(), Ok(3));
        for versions in [(4, 5), (0, 2), (5, 3)] {
            let hello = Hello { versions, features: 0 };
            assert!(matches!(hello.agree(), Err(Violation::Version { .. })), "{versions:?}");
        }
        let welcome = Welcome { version: 1, features: 1, session: SessionId(9) };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        let refused = Violation::Version { client: (4, 5), service: VERSIONS };
        assert_eq!(Welcome::decode(&encode_violation(&refused)), Err(refused));
        for bytes in [&b""[..], b"MEMFERRY", b"GET / HTTP/1.1\r\n\r\n....."] {
            assert_eq!(Hello::decode(bytes), Err(Violation::NotHello));
            assert_eq!(Welcome::decode(bytes), Err(Violation::NotHello));
        }
    }

    #[test]
    fn replayed_skipped_padded_and_truncated_messages_are_violations() {
        let command = Command::Revoke { handle: Handle::new(3, 1) };
        let bytes = encode(&Envelope { serial: 4, descriptors: 0, body: command.clone() });
        assert_eq!(decode_command(&bytes, 4, 0), Ok(command));
        assert_eq!(decode_command(&bytes, 5, 0), Err(Violation::Serial { expected: 5, got: 4 }));
        let mut padded = bytes.clone();
        padded.push(0);
        assert_eq!(decode_command(&padded, 4, 0), Err(Violation::Malformed));
        for length in 0..bytes.len() {
            assert_eq!(decode_command(&bytes[..length], 4, 0), Err(Violation::Malformed), "{length}");
        }
    }

    #[test]
    fn a_token_is_one_number_in_a_message() {
        let body = Command::Accept { token: GrantToken::from_raw(0x2_0000_0007) };
        let bytes = encode(&Envelope { serial: 1, descriptors: 0, body: body.clone() });
        // Serial, descriptors, command 3, and the number with seven bits a byte.
        assert_eq!(bytes, [1, 0, 3, 0x87, 0x80, 0x80, 0x80, 0x20]);
        assert_eq!(decode_command(&bytes, 1, 0), Ok(body));
    }

    #[test]
    fn descriptors_other_than_announced_or_due_are_violations() {
        let envelope = |descriptors, body| encode(&Envelope { serial: 1, descriptors, body });
        let register = Command::Register { length: 1, rights: Rights::READ };
        for (announced, came, body) in
            [(1, 0, &register), (1, 2, &register), (0, 0, &register), (1, 1, &Command::Status)]
        {
            let decoded = decode_command(&envelope(announced, body.clone()), 1, came);
            assert!(matches!(decoded, Err(Violation::Descriptors { .. })), "{announced} {came} {body:?}");
        }
    }

    #[test]
    fn the_longest_status_fits_a_message() {
        let most = u64::MAX;
        let session = SessionStatus {
            session: SessionId(most),
            user: u32::MAX,
            process: u32::MAX,
            queues: u32::MAX,
            frames: u32::MAX,
            bytes: most,
            requests: most,
            outstanding: most,
            waiting: most,
            failures: most,
            bytes_moved: most,
        };
        let queues = most;
        let requests = most;
        let failures = most;
        let bytes = most;
        let parks = most;
        let waiting = most;
        let busy = most;
        let channels = u32::MAX;
        let class_bytes = [most; 3];
        let worker =
            WorkerStatus { queues, requests, failures, bytes, parks, waiting, busy, channels, class_bytes };
        let status = Status {
            process: u32::MAX,
            uptime_seconds: most,
            policy: "a policy with a name of forty characters".to_owned(),
            slices: most,
            strayed_bytes: most,
            open_sessions: most,
            sessions: vec![session; STATUS_SESSIONS],
            workers: vec![worker; MOST_WORKERS as usize],
            zeroed: ZeroedStatus { buffers: most, bytes: most, failed: most },
            module: Some(ModuleStatus { transfers: most, bytes: most, dma_bytes: most, redone: most }),
        };
        let reply: Reply = Envelope { serial: u32::MAX, descriptors: 0, body: Ok(Answer::Status(status)) };
        assert!(encode(&reply).len() <= memferry_shm::conduit::MAXIMUM_BYTES);
    }

    #[test]
    fn rights_that_do_not_exist_are_malformed() {
        let body = Command::Register { length: 1, rights: Rights::from_bits_retain(0x80) };
        let bytes = encode(&Envelope { serial: 1, descriptors: 1, body });
        assert_eq!(decode_command(&bytes, 1, 1), Err(Violation::Malformed));
    }
}
