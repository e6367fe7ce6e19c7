//! The protocol between client and service over the socket: handshake, commands and answers.
//!
//! ```text
//! client  Hello { magic, versions, features }  ─►   fixed layout, the same in every version
//! service ◄─ Welcome { version, features, session }, or a last message with the Violation
//! client  Envelope { serial, descriptors, Command } ─►   one at a time
//! service ◄─ Envelope { serial, descriptors, Result<Answer, Refusal> }
//! ```
//!
//! Serials count up from 1, so a replayed or lost message is detected. The announced number of descriptors must match the
//! number received. A message that breaks the protocol ends the session ([`Violation`]). A command that cannot be executed
//! is refused and the session continues ([`Refusal`]). Transfer requests use the queue pairs, not this protocol.
//!
//! The number behind each variant is its number on the wire. Postcard sends the variant's position, so the variants stay in the
//! order of their numbers, and a number is never reused. `tests::golden` pins the bytes of every message; `docs/protocol.md`
//! describes them for clients in other languages.

use std::time::Duration;

use memferry_external::layout::EngineLayout;
pub use memferry_path::Grantee;
use memferry_path::PolicySettings;
use memferry_shm::queue_pair::Layout;
use memferry_transfer::{GrantToken, Handle, NodeName, Rights, SessionId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::printable::printable;

mod engine;
mod status;

pub use engine::{
    EngineRole, ExportKind, FrameDone, FrameEvent, FrameResult, MAX_ENGINE_NAME, engine_name_is_valid,
};
pub use memferry_external::EngineDescription;
pub use status::{
    EngineStatus, ExternalStatus, Identity, LATENCY_BUCKETS, LatencyStatus, ModuleStatus, RefusedStatus,
    STATUS_SESSIONS, ServiceId, SessionStatus, Status, WorkerStatus, ZeroedStatus,
};

/// The first eight bytes of a handshake.
pub const MAGIC: [u8; 8] = *b"MEMFERRY";
/// Oldest and newest protocol version that this code supports.
pub const VERSIONS: (u16, u16) = (5, 5);
/// Feature: the process is registered for membarrier's expedited commands, so parking flags need no full fence.
pub const FEATURE_ASYMMETRIC_FENCES: u64 = 1;

const HELLO_BYTES: usize = 20;
const WELCOME_BYTES: usize = 28;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Oldest and newest version that the client supports.
    pub versions: (u16, u16),
    /// Features that the client supports.
    pub features: u64,
}

impl Hello {
    /// Encodes magic, two versions and features, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.versions.0.to_le_bytes());
        bytes.extend(self.versions.1.to_le_bytes());
        bytes.extend(self.features.to_le_bytes());
        bytes
    }

    /// Decodes a handshake and ignores bytes that a later version appends.
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

    /// The newest version that both sides support.
    ///
    /// # Errors
    /// [`Violation::Version`].
    pub fn agree(&self) -> Result<u16, Violation> {
        let version = self.versions.1.min(VERSIONS.1);
        let supported = version >= self.versions.0.max(VERSIONS.0);
        if supported {
            Ok(version)
        } else {
            Err(Violation::Version { client: self.versions, service: VERSIONS })
        }
    }
}

/// The service's answer to a handshake that it accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The version of all further messages.
    pub version: u16,
    /// Features that both sides support.
    pub features: u64,
    /// The session's public id, which other clients name as a grantee.
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

    /// Decodes the service's answer.
    ///
    /// # Errors
    /// [`Violation::Version`] if the versions differ; [`Violation::Unwelcome`] if the service refused for another reason; [`Violation::NotHello`] for anything else.
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

/// A request of a client to the control side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Command {
    /// Register the attached memfd as a frame. One descriptor.
    Register {
        length: u64,
        /// Upper bound of the rights on this frame.
        rights: Rights,
    } = 0,
    /// Derive a capability with a narrower range or fewer rights.
    Derive {
        handle: Handle,
        offset: u64,
        length: u64,
        rights: Rights,
    } = 1,
    /// Grant a range to another client.
    Grant {
        handle: Handle,
        offset: u64,
        length: u64,
        rights: Rights,
        to: Grantee,
        /// For how long the grant gives access; `None` until it is revoked.
        lasts: Option<Duration>,
    } = 2,
    Accept {
        token: GrantToken,
    } = 3,
    /// Revoke a capability, or a grant by its token's handle, and everything derived from it. The answer follows when no
    /// transfer uses it any more.
    Revoke {
        handle: Handle,
    } = 4,
    /// Open a queue. One descriptor: a memfd of [`Command::memory_bytes`], which becomes the client's half of the queue pair.
    OpenQueue {
        capacity: u32,
    } = 5,
    CloseQueue {
        queue: u32,
    } = 6,
    /// Signal the client by a descriptor for completions while its ring's flag asks for signals.
    Notify {
        /// The queue pair. Its signal can be set only once.
        queue: u32,
        by: NotifyBy,
    } = 7,
    /// Get the capabilities of the engines.
    Engines = 8,
    /// Get the statistics of the service.
    Status = 9,
    /// Change the policy if `change` is set, and get the settings.
    Policy {
        /// The new settings. Only root and the service's own user may change them.
        change: Option<Box<PolicySettings>>,
    } = 10,
    /// Get the user and process of a session.
    Identify {
        session: SessionId,
    } = 11,
    /// Become an engine process, or its keeper, under a name of the service's configuration.
    AttachEngine {
        name: String,
        role: EngineRole,
    } = 12,
    /// Open the queue pairs of an attached engine with all workers. One descriptor: a memfd of [`Command::memory_bytes`], which
    /// becomes the engine's memory. The numbers are those of [`Answer::EngineAttached`].
    OpenEngine {
        workers: u32,
        capacity: u32,
    } = 13,
    /// Report what became of the last event, and get the next one. The answer follows when there is one.
    NextFrame {
        done: Option<FrameDone>,
    } = 14,
    /// Allocate a frame in the own memory of an engine process, named as in the service's configuration. The answer is a handle, with
    /// the rights to read, write and grant, and follows when the engine has answered.
    Allocate {
        home: String,
        length: u64,
    } = 15,
    /// Get a descriptor of a whole frame that this session allocated in the own memory of an engine process. The answer follows when the
    /// engine has answered.
    Export {
        handle: Handle,
    } = 16,
    /// Make a frame of memory that another node granted to this user, through the engine process called [`LINK`]. Length and rights are
    /// those that the grantor named; the other node checks each access. The answer is a handle.
    AcceptRemote {
        node: NodeName,
        /// The run of that node's service in which the grant was made.
        service: ServiceId,
        token: GrantToken,
        length: u64,
        rights: Rights,
    } = 17,
    /// Take up a grant to a user of another node. For sessions of the user of the engine process called [`LINK`].
    AcceptFor {
        node: NodeName,
        user: u32,
        token: GrantToken,
    } = 18,
}

/// The name, in the service's configuration, of the engine process that is the link to other nodes.
pub const LINK: &str = "link";

/// The way a client is signalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum NotifyBy {
    /// By an eventfd that the service creates.
    Event = 0,
    /// By a completion with result 0 in the client's io_uring, whose descriptor is attached.
    Ring {
        /// The completion's user data.
        user_data: u64,
    } = 1,
}

/// The control side's answer to a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Answer {
    /// A new capability. For a grant: the handle in its token.
    Handle(Handle) = 0,
    Accepted {
        handle: Handle,
        length: u64,
        rights: Rights,
        /// The session that granted it.
        grantor: SessionId,
    } = 1,
    /// The revocation is complete.
    Revoked = 2,
    /// A queue pair. Descriptors: the service's half, doorbell.
    Queue {
        /// Its number in this session.
        queue: u32,
        capacity: u32,
    } = 3,
    Closed = 4,
    /// The signal is set. One descriptor if it is an eventfd.
    Notified = 5,
    Engines(EngineStatus) = 6,
    Status(Box<Status>) = 7,
    Policy(Box<PolicySettings>) = 8,
    Identity(Identity) = 9,
    /// The session is an engine's now.
    EngineAttached {
        /// Number of workers of the service.
        workers: u32,
        /// Capacity of the queue pair with each.
        capacity: u32,
        /// The time without progress after which the service ends the session.
        stall: Duration,
    } = 10,
    /// The engine's queue pairs are open. Descriptors: the service's memory, doorbell.
    EngineOpened = 11,
    /// An event about frames. One descriptor with [`FrameEvent::Map`].
    Frame(FrameEvent) = 12,
    /// The memory of a frame. One descriptor.
    Exported {
        kind: ExportKind,
        /// Bytes of the memory, at least those of the frame, which begins with the first one.
        length: u64,
    } = 13,
}

/// The class of a refusal, for programs. The message is for people.
///
/// ```
/// use memferry_service::protocol::RefusalKind;
///
/// /// Whether the call may succeed later.
/// fn is_worth_repeating(kind: RefusalKind) -> bool {
///     matches!(kind, RefusalKind::Quota | RefusalKind::System)
/// }
/// assert!(!is_worth_repeating(RefusalKind::Capability));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum RefusalKind {
    /// The descriptor cannot be used as a frame.
    Frame = 0,
    /// The capability does not exist, is revoked, or lacks the right.
    Capability = 1,
    /// A quota is reached.
    Quota = 2,
    /// An argument is outside its range.
    Argument = 3,
    /// The service is stopping.
    Stopping = 4,
    /// A system call failed, or a resource of the machine ran out.
    System = 5,
}

impl RefusalKind {
    /// All kinds, by number.
    pub const ALL: [Self; 6] =
        [Self::Frame, Self::Capability, Self::Quota, Self::Argument, Self::Stopping, Self::System];

    /// The kind in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Capability => "capability",
            Self::Quota => "quota",
            Self::Argument => "argument",
            Self::Stopping => "stopping",
            Self::System => "system",
        }
    }
}

/// A command that was not executed. The session continues.
///
/// ```
/// use memferry_service::protocol::{Refusal, RefusalKind};
///
/// let refusal = Refusal { kind: RefusalKind::Quota, message: "64 queues are open".to_owned() };
/// assert_eq!(refusal.to_string(), "64 queues are open");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// What was wrong, with operands, and what to do.
    pub message: String,
}

/// A violation of the protocol, which ends the session.
///
/// ```
/// use memferry_service::protocol::Violation;
///
/// let violation = Violation::Serial { expected: 4, got: 6 };
/// assert_eq!(violation.to_string(), "the message has serial 6, expected 4");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[repr(u8)]
pub enum Violation {
    /// The first message is not a handshake.
    #[error("the peer does not speak the memferry protocol")]
    NotHello = 0,
    /// The sides support no common version.
    #[error("no common protocol version: the client supports {} to {}, the service {} to {}", client.0, client.1, service.0, service.1)]
    Version { client: (u16, u16), service: (u16, u16) } = 1,
    /// The service refused to open a session.
    #[error("the service refused the session: {0}")]
    Unwelcome(String) = 2,
    /// The message cannot be decoded, or bytes are left over.
    #[error("the message is malformed")]
    Malformed = 3,
    /// A message out of sequence: one was lost or replayed.
    #[error("the message has serial {got}, expected {expected}")]
    Serial { expected: u32, got: u32 } = 4,
    /// The number of descriptors differs from the announced or required one.
    #[error("the message has {got} descriptors; it must have and announce {expected}")]
    Descriptors { expected: u32, got: u32 } = 5,
    /// The packet exceeds the maximum length of a message.
    #[error("the packet is longer than any message")]
    TooLong = 6,
    /// The client's socket buffer is full.
    #[error("the client does not read its answers")]
    NotReading = 7,
    /// The ring's counts contradict each other.
    #[error("the client's ring counts are impossible")]
    RingCounts = 8,
    /// More requests than the completion ring has room for.
    #[error("the client has more requests outstanding than its queue holds")]
    Overrun = 9,
    /// Access to the client's memory failed in a worker, for instance because of a truncated file.
    #[error("memory of this session failed under the service")]
    MemoryFault = 10,
    /// A descriptor from the client could not be admitted in time, because somebody holds its inode.
    #[error(
        "the memfd could not be sealed within {milliseconds} ms; no thread may write, punch or resize it while it is registered"
    )]
    Admission { milliseconds: u64 } = 11,
    /// So many descriptors from this user cannot be closed that the service takes no more.
    #[error("the service cannot go on for this user: {0}")]
    Stuck(String) = 12,
    /// An engine process completed what it did not have, or made no progress.
    #[error("the engine was cut off: {0}")]
    Engine(String) = 13,
}

impl Violation {
    /// The violation with a text that is safe to print, for the side that received it.
    #[must_use]
    pub fn printable(self) -> Self {
        match self {
            Self::Unwelcome(text) => Self::Unwelcome(printable(&text)),
            Self::Stuck(text) => Self::Stuck(printable(&text)),
            Self::Engine(text) => Self::Engine(printable(&text)),
            Self::NotHello
            | Self::Version { .. }
            | Self::Malformed
            | Self::Serial { .. }
            | Self::Descriptors { .. }
            | Self::TooLong
            | Self::NotReading
            | Self::RingCounts
            | Self::Overrun
            | Self::MemoryFault
            | Self::Admission { .. } => self,
        }
    }
}

/// A message with its serial.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Position in the sequence, from 1.
    pub serial: u32,
    /// Number of attached descriptors.
    pub descriptors: u8,
    pub body: T,
}

/// Messages of the service after the handshake.
pub type Reply = Envelope<Result<Answer, Refusal>>;

impl Command {
    /// Number of descriptors that the command requires.
    pub const fn descriptors(&self) -> u8 {
        let one = matches!(
            self,
            Self::Register { .. }
                | Self::OpenQueue { .. }
                | Self::OpenEngine { .. }
                | Self::Notify { by: NotifyBy::Ring { .. }, .. }
                | Self::NextFrame { done: Some(FrameDone { result: FrameResult::Exported { .. }, .. }) }
        );
        one as u8
    }

    /// Length in bytes of the memfd that the command brings; `None` if it brings none, also for a capacity that no queue has.
    pub fn memory_bytes(&self) -> Option<u64> {
        match self {
            Self::Register { length, .. } => Some(*length),
            Self::OpenQueue { capacity } => Layout::new(*capacity).ok().map(Layout::client_bytes),
            Self::OpenEngine { workers, capacity } => {
                EngineLayout::new(*workers, *capacity).ok().map(EngineLayout::engine_bytes)
            }
            _ => None,
        }
    }
}

pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Serializing our own message into a growing buffer cannot fail.
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

/// Decodes a client's message and checks its serial and number of descriptors.
///
/// # Errors
/// [`Violation`].
pub fn decode_command(bytes: &[u8], expected: u32, descriptors: usize) -> Result<Command, Violation> {
    let envelope: Envelope<Command> = decode(bytes)?;
    if envelope.serial != expected {
        return Err(Violation::Serial { expected, got: envelope.serial });
    }
    let required = envelope.body.descriptors();
    let announced = envelope.descriptors;
    if required != announced || usize::from(announced) != descriptors {
        let got = u32::try_from(descriptors).unwrap_or(u32::MAX);
        return Err(Violation::Descriptors { expected: u32::from(required), got });
    }
    let rights = match &envelope.body {
        Command::Register { rights, .. }
        | Command::Derive { rights, .. }
        | Command::Grant { rights, .. }
        | Command::AcceptRemote { rights, .. } => *rights,
        _ => Rights::empty(),
    };
    if Rights::from_bits(rights.bits()).is_none() {
        return Err(Violation::Malformed);
    }
    Ok(envelope.body)
}

/// First bytes of the last message of a session. No [`Reply`] and no [`Welcome`] begins with them.
const VIOLATION_PREFIX: [u8; 4] = *b"\xffbye";

/// Encodes the last message of a session, which tells the client its violation.
pub fn encode_violation(violation: &Violation) -> Vec<u8> {
    let mut bytes = VIOLATION_PREFIX.to_vec();
    bytes.extend(encode(violation));
    bytes
}

/// Decodes the last message of a session; `None` if it is another message.
pub fn decode_violation(bytes: &[u8]) -> Option<Violation> {
    decode(bytes.strip_prefix(&VIOLATION_PREFIX)?).ok()
}

#[cfg(test)]
mod tests {
    mod golden;

    use super::*;
    use crate::config::{MAX_ENGINES, MAX_WORKERS};

    #[test]
    fn handshakes_agree_on_the_newest_version() {
        let (oldest, newest) = VERSIONS;
        let hello = Hello { versions: (1, newest + 4), features: 5 };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        assert_eq!(hello.agree(), Ok(newest));
        for versions in [(newest + 1, newest + 2), (0, oldest - 1), (newest + 2, newest)] {
            let hello = Hello { versions, features: 0 };
            assert!(matches!(hello.agree(), Err(Violation::Version { .. })), "{versions:?}");
        }
        let welcome = Welcome { version: 1, features: 1, session: SessionId(9) };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        let refused = Violation::Version { client: (6, 7), service: VERSIONS };
        assert_eq!(Welcome::decode(&encode_violation(&refused)), Err(refused));
        for bytes in [&b""[..], b"MEMFERRY", b"GET / HTTP/1.1\r\n\r\n....."] {
            assert_eq!(Hello::decode(bytes), Err(Violation::NotHello));
            assert_eq!(Welcome::decode(bytes), Err(Violation::NotHello));
        }
    }

    #[test]
    fn texts_of_violations_can_be_made_safe() {
        for violation in [Violation::Unwelcome, Violation::Stuck, Violation::Engine] {
            assert_eq!(violation("a\u{1b}[2J".to_owned()).printable(), violation("a\\u{1b}[2J".to_owned()));
        }
        let plain = Violation::Serial { expected: 1, got: 2 };
        assert_eq!(plain.clone().printable(), plain);
    }

    #[test]
    fn damaged_messages_are_violations() {
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
    fn a_token_is_encoded_as_one_number() {
        let body = Command::Accept { token: GrantToken::from_raw(0x2_0000_0007) };
        let bytes = encode(&Envelope { serial: 1, descriptors: 0, body: body.clone() });
        // Serial, descriptors, command 3, and the number with seven bits a byte.
        assert_eq!(bytes, [1, 0, 3, 0x87, 0x80, 0x80, 0x80, 0x20]);
        assert_eq!(decode_command(&bytes, 1, 0), Ok(body));
    }

    #[test]
    fn wrong_descriptor_counts_are_violations() {
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
        let max = u64::MAX;
        let session = SessionStatus {
            session: SessionId(max),
            user: u32::MAX,
            process: u32::MAX,
            queues: u32::MAX,
            frames: u32::MAX,
            bytes: max,
            requests: max,
            outstanding: max,
            waiting: max,
            failures: max,
            bytes_moved: max,
        };
        let queues = max;
        let requests = max;
        let failures = max;
        let bytes = max;
        let parks = max;
        let waiting = max;
        let busy = max;
        let channels = u32::MAX;
        let class_bytes = [max; 3];
        let worker =
            WorkerStatus { queues, requests, failures, bytes, parks, waiting, busy, channels, class_bytes };
        let engine = ExternalStatus {
            name: "x".repeat(MAX_ENGINE_NAME),
            user: u32::MAX,
            is_connected: true,
            process: Some(u32::MAX),
            frames: u32::MAX,
            memory_bytes: max,
            memory_used: max,
            transfers: max,
            bytes: max,
            redone: max,
        };
        let status = Status {
            process: u32::MAX,
            uptime_seconds: max,
            policy: "a policy with a name of forty characters".to_owned(),
            slices: max,
            strayed_bytes: max,
            open_sessions: max,
            sessions: vec![session; STATUS_SESSIONS],
            workers: vec![worker; MAX_WORKERS as usize],
            zeroed: ZeroedStatus { buffers: max, bytes: max, failed: max },
            module: Some(ModuleStatus { transfers: max, bytes: max, dma_bytes: max, redone: max }),
            latency: LatencyStatus { buckets: [max; LATENCY_BUCKETS], nanoseconds: max },
            refused: RefusedStatus { commands: [max; 6], turned_away: max, violations: max },
            engines: vec![engine; MAX_ENGINES],
        };
        let reply: Reply =
            Envelope { serial: u32::MAX, descriptors: 0, body: Ok(Answer::Status(Box::new(status))) };
        assert!(encode(&reply).len() <= memferry_shm::conduit::MAXIMUM_BYTES);
    }

    #[test]
    fn unknown_rights_are_malformed() {
        let body = Command::Register { length: 1, rights: Rights::from_bits_retain(0x80) };
        let bytes = encode(&Envelope { serial: 1, descriptors: 1, body });
        assert_eq!(decode_command(&bytes, 1, 1), Err(Violation::Malformed));
    }
}
