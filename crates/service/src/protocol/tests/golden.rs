//! The bytes of every message, written by hand: a client in another language relies on them.
//!
//! ```text
//! value ─ encode ─► bytes below ─ decode ─► value        first byte of a variant = its number in the source
//! ```
//!
//! A test that fails here means that the protocol changed. Then it needs a new version, and `docs/protocol.md` a change.

#![allow(unsafe_code, reason = "reads the numbers of variants")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use memferry_path::PolicyKind;
use memferry_transfer::{Operations, PriorityClass};

use super::super::*;

/// Index 7 in generation 1: the number 0x1_0000_0007.
const HANDLE: Handle = Handle::new(7, 1);
const HANDLE_BYTES: [u8; 5] = [0x87, 0x80, 0x80, 0x80, 0x10];

/// Enums with `repr(u8)`, whose variants have explicit numbers.
trait Numbered {}
impl Numbered for Command {}
impl Numbered for Answer {}
impl Numbered for NotifyBy {}
impl Numbered for RefusalKind {}
impl Numbered for Violation {}
impl Numbered for Grantee {}
impl Numbered for PolicyKind {}
impl Numbered for PriorityClass {}
impl Numbered for EngineRole {}
impl Numbered for FrameEvent {}
impl Numbered for FrameResult {}
impl Numbered for ExportKind {}

/// The number that the source gives to a variant.
fn number<T: Numbered>(value: &T) -> u8 {
    // SAFETY: an enum with `repr(u8)` begins with its number, as the Rust reference says of primitive representations.
    unsafe { *std::ptr::from_ref(value).cast::<u8>() }
}

/// Joins parts of a message.
fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[track_caller]
fn pin<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, bytes: &[u8]) {
    assert_eq!(encode(&value), bytes, "{value:?}");
    assert_eq!(decode::<T>(bytes), Ok(value));
}

/// As [`pin`], and the message begins with the variant's number.
#[track_caller]
fn pin_variant<T: Numbered + Serialize + DeserializeOwned + PartialEq + Debug>(value: T, bytes: &[u8]) {
    assert_eq!(number(&value), bytes[0], "the variant's place differs from its number: {value:?}");
    pin(value, bytes);
}

/// Settings in which no two neighbours are equal.
fn settings() -> (PolicySettings, Vec<u8>) {
    let settings = PolicySettings {
        kind: PolicyKind::RateLimit,
        classes: [None, Some(PolicyKind::Exclusive), Some(PolicyKind::Shared)],
        period: Duration::new(1, 12_000_000),
        slice: Duration::from_millis(9),
        capacity_bytes_per_second: 2,
        class_weights: [1, 300, 4],
        user_weights: BTreeMap::from([(1000, 3), (7, 5)]),
        rate_bytes_per_second: 1_000_000_000,
        burst_bytes: 1 << 24,
    };
    let bytes = join(&[
        // Kind, and the kinds of the classes low, normal and high.
        &[5, 0, 1, 1, 1, 0],
        // Seconds and nanoseconds of period and slice.
        &[1, 0x80, 0xb6, 0xdc, 0x05],
        &[0, 0xc0, 0xa8, 0xa5, 0x04],
        // Capacity, and the weights of the classes low, normal and high.
        &[2, 1, 0xac, 0x02, 4],
        // Two users in ascending order, each with a weight.
        &[2, 7, 5, 0xe8, 0x07, 3],
        // The rate in bytes a second, and the burst in bytes.
        &[0x80, 0x94, 0xeb, 0xdc, 0x03],
        &[0x80, 0x80, 0x80, 0x08],
    ]);
    (settings, bytes)
}

#[test]
fn handshake_bytes() {
    let hello = Hello { versions: (4, 0x0105), features: 0x8000_0000_0000_0001 };
    let bytes = b"MEMFERRY\x04\x00\x05\x01\x01\x00\x00\x00\x00\x00\x00\x80";
    assert_eq!(hello.encode(), bytes);
    assert_eq!(Hello::decode(bytes), Ok(hello));
    assert_eq!(Hello::decode(&join(&[bytes, b"later versions may append"])), Ok(hello));
    let welcome = Welcome { version: 5, features: 1, session: SessionId(0x0102) };
    let bytes = b"MEMFERRY\x05\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00";
    assert_eq!(welcome.encode(), bytes);
    assert_eq!(Welcome::decode(bytes), Ok(welcome));
    assert_eq!((VERSIONS, FEATURE_ASYMMETRIC_FENCES), ((5, 5), 1));
}

#[test]
fn command_bytes() {
    let handle = HANDLE;
    let h = &HANDLE_BYTES;
    let rights = Rights::READ | Rights::WRITE;
    pin_variant(Command::Register { length: 300, rights }, &[0, 0xac, 0x02, 3]);
    let derive = Command::Derive { handle, offset: 128, length: 1, rights: Rights::WRITE };
    pin_variant(derive, &join(&[&[1], h, &[0x80, 0x01, 1, 2]]));
    let node: NodeName = "beta".parse().unwrap();
    let n = b"beta\0\0\0\0\0\0\0\0\0\0\0\0";
    let remote = Grantee::Remote { node, user: 7 };
    let there = join(&[&[2], n, &[7]]);
    for (to, grantee) in [
        (Grantee::Session(SessionId(5)), &[0, 5][..]),
        (Grantee::User(1000), &[1, 0xe8, 0x07]),
        (remote, &there),
    ] {
        for (lasts, end) in [(None, &[0][..]), (Some(Duration::new(300, 5)), &[1, 0xac, 0x02, 5])] {
            let rights = Rights::GRANT;
            let grant = Command::Grant { handle, offset: 1, length: 4096, rights, to, lasts };
            pin_variant(grant, &join(&[&[2], h, &[1, 0x80, 0x20, 4], grantee, end]));
        }
        pin_variant(to, grantee);
    }
    pin_variant(Command::Accept { token: GrantToken::from_handle(handle) }, &join(&[&[3], h]));
    let token = GrantToken::from_handle(handle);
    let remote = Command::AcceptRemote { node, service: ServiceId(300), token, length: 4096, rights };
    pin_variant(remote, &join(&[&[17], n, &[0xac, 0x02], h, &[0x80, 0x20, 3]]));
    pin_variant(Command::AcceptFor { node, user: 7, token }, &join(&[&[18], n, &[7], h]));
    pin_variant(Command::Revoke { handle }, &join(&[&[4], h]));
    pin_variant(Command::OpenQueue { capacity: 64 }, &[5, 64]);
    pin_variant(Command::CloseQueue { queue: 300 }, &[6, 0xac, 0x02]);
    pin_variant(Command::Notify { queue: 3, by: NotifyBy::Event }, &[7, 3, 0]);
    let by = NotifyBy::Ring { user_data: 300 };
    pin_variant(by, &[1, 0xac, 0x02]);
    pin_variant(Command::Notify { queue: 3, by }, &[7, 3, 1, 0xac, 0x02]);
    pin_variant(NotifyBy::Event, &[0]);
    pin_variant(Command::Engines, &[8]);
    pin_variant(Command::Status, &[9]);
    pin_variant(Command::Policy { change: None }, &[10, 0]);
    let (change, bytes) = settings();
    pin_variant(Command::Policy { change: Some(Box::new(change)) }, &join(&[&[10, 1], &bytes]));
    pin_variant(Command::Identify { session: SessionId(300) }, &[11, 0xac, 0x02]);
}

#[test]
fn engine_bytes() {
    let frame = HANDLE;
    let h = &HANDLE_BYTES;
    let name = "gpu".to_owned();
    let keeper = Command::AttachEngine { name: name.clone(), role: EngineRole::Keeper };
    pin_variant(keeper, &join(&[&[12, 3], b"gpu", &[0]]));
    let description = EngineDescription {
        operations: Operations::COPY | Operations::FILL,
        longest_bytes: 300,
        shortest_bytes: 1,
        alignment_bytes: 4,
        channels: 8,
        memory_bytes: 300,
    };
    let role = EngineRole::Engine(description);
    pin_variant(role, &[1, 6, 0xac, 0x02, 1, 4, 8, 0xac, 0x02]);
    pin_variant(
        Command::AttachEngine { name, role },
        &join(&[&[12, 3], b"gpu", &[1, 6, 0xac, 0x02, 1, 4, 8, 0xac, 0x02]]),
    );
    pin_variant(Command::OpenEngine { workers: 2, capacity: 32 }, &[13, 2, 32]);
    pin_variant(Command::NextFrame { done: None }, &[14, 0]);
    let device = *b"sixteen-byte-gpu";
    let cuda = ExportKind::Cuda { device };
    for (kind, bytes) in [(ExportKind::Memory, &[0][..]), (cuda, &join(&[&[1], &device]))] {
        pin_variant(kind, bytes);
        pin_variant(Answer::Exported { kind, length: 4096 }, &join(&[&[13], bytes, &[0x80, 0x20]]));
    }
    for (result, bytes) in [
        (FrameResult::Mapped { is_writable: true }, &[0, 1][..]),
        (FrameResult::Failed, &[1]),
        (FrameResult::Unmapped, &[2]),
        (FrameResult::Exported { kind: ExportKind::Memory, length: 4096 }, &[3, 0, 0x80, 0x20]),
        (FrameResult::Exported { kind: cuda, length: 4096 }, &join(&[&[3, 1], &device, &[0x80, 0x20]])),
        (FrameResult::NotExported, &[4]),
    ] {
        pin_variant(result, bytes);
        let done = Some(FrameDone { frame, result });
        let command = Command::NextFrame { done };
        assert_eq!(command.descriptors(), u8::from(bytes[0] == 3));
        pin_variant(command, &join(&[&[14, 1], h, bytes]));
    }
    pin_variant(Command::Export { handle: frame }, &join(&[&[16], h]));
    pin_variant(
        Command::Allocate { home: "gpu".to_owned(), length: 4096 },
        &join(&[&[15, 3], b"gpu", &[0x80, 0x20]]),
    );
    let attached = Answer::EngineAttached { workers: 2, capacity: 32, stall: Duration::from_millis(3500) };
    let half_a_second = &[0x80, 0xca, 0xb5, 0xee, 0x01];
    pin_variant(attached, &join(&[&[10, 2, 32, 3], half_a_second]));
    pin_variant(Answer::EngineOpened, &[11]);
    let token = GrantToken::from_handle(HANDLE);
    let node = "beta".parse().unwrap();
    let attach = FrameEvent::Attach { frame, length: 4096, node, service: ServiceId(300), token, user: 7 };
    for (event, bytes) in [
        (FrameEvent::Map { frame, length: 4096, user: 7 }, join(&[&[0], h, &[0x80, 0x20, 7]])),
        (FrameEvent::Unmap { frame }, join(&[&[1], h])),
        (FrameEvent::Restart, vec![2]),
        (FrameEvent::Allocate { frame, length: 4096 }, join(&[&[3], h, &[0x80, 0x20]])),
        (attach, join(&[&[5], h, &[0x80, 0x20], b"beta\0\0\0\0\0\0\0\0\0\0\0\0", &[0xac, 0x02], h, &[7]])),
        (FrameEvent::Export { frame }, join(&[&[4], h])),
    ] {
        pin_variant(event, &bytes);
        pin_variant(Answer::Frame(event), &join(&[&[12], &bytes]));
    }
}

#[test]
fn answer_bytes() {
    let handle = HANDLE;
    let h = &HANDLE_BYTES;
    pin_variant(Answer::Handle(handle), &join(&[&[0], h]));
    let accepted = Answer::Accepted { handle, length: 4096, rights: Rights::READ, grantor: SessionId(5) };
    pin_variant(accepted, &join(&[&[1], h, &[0x80, 0x20, 1, 5]]));
    pin_variant(Answer::Revoked, &[2]);
    pin_variant(Answer::Queue { queue: 3, capacity: 64 }, &[3, 3, 64]);
    pin_variant(Answer::Closed, &[4]);
    pin_variant(Answer::Notified, &[5]);
    let engines = EngineStatus {
        operations: Operations::OF_MEMORY,
        longest_bytes: 1 << 40,
        immediate_bytes: 1024,
        preemption_bytes: Some(300),
        channels: 32,
        engines: 3,
        class: PriorityClass::High,
    };
    let limits = &[0xff, 0x0f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0x80, 0x08];
    pin_variant(Answer::Engines(engines), &join(&[&[6], limits, &[1, 0xac, 0x02, 32, 3, 2]]));
    let none = EngineStatus { preemption_bytes: None, class: PriorityClass::Low, ..engines };
    pin_variant(Answer::Engines(none), &join(&[&[6], limits, &[0, 32, 3, 0]]));
    let (answer, bytes) = settings();
    pin_variant(Answer::Policy(Box::new(answer)), &join(&[&[8], &bytes]));
    let identity = Identity { service: ServiceId(300), user: 7, process: 8 };
    pin_variant(Answer::Identity(identity), &[9, 0xac, 0x02, 7, 8]);
    let longest = join(&[&[0xff; 18], &[0x03]]);
    pin(ServiceId(u128::MAX), &longest);
}

/// A status in which every field has its own number.
fn status(module: Option<ModuleStatus>) -> Status {
    let session = SessionStatus {
        session: SessionId(6),
        user: 7,
        process: 8,
        queues: 9,
        frames: 10,
        bytes: 11,
        requests: 12,
        outstanding: 13,
        waiting: 14,
        failures: 15,
        bytes_moved: 16,
    };
    let worker = WorkerStatus {
        queues: 17,
        requests: 18,
        failures: 19,
        bytes: 20,
        parks: 21,
        waiting: 22,
        busy: 23,
        channels: 24,
        class_bytes: [25, 26, 27],
    };
    Status {
        process: 1,
        uptime_seconds: 2,
        policy: "shared".to_owned(),
        slices: 3,
        strayed_bytes: 4,
        open_sessions: 5,
        sessions: vec![session],
        workers: vec![worker, worker],
        zeroed: ZeroedStatus { buffers: 28, bytes: 29, failed: 30 },
        module,
        latency: LatencyStatus { buckets: std::array::from_fn(|bucket| 35 + bucket as u64), nanoseconds: 57 },
        refused: RefusedStatus { commands: [58, 59, 60, 61, 62, 63], turned_away: 64, violations: 65 },
        engines: vec![ExternalStatus {
            name: "gpu".to_owned(),
            user: 66,
            is_connected: true,
            process: Some(67),
            frames: 68,
            memory_bytes: 69,
            memory_used: 70,
            transfers: 71,
            bytes: 72,
            redone: 73,
        }],
    }
}

#[test]
fn status_bytes() {
    let numbers = |from: u8, to: u8| (from..=to).collect::<Vec<_>>();
    let before = join(&[&[7, 1, 2, 6], b"shared", &[3, 4, 5, 1], &numbers(6, 16)]);
    let workers = join(&[&[2], &numbers(17, 27), &numbers(17, 27)]);
    let rest = numbers(28, 30);
    let last = join(&[&numbers(35, 65), &[1, 3], b"gpu", &[66, 1, 1], &numbers(67, 73)]);
    pin_variant(Answer::Status(Box::new(status(None))), &join(&[&before, &workers, &rest, &[0], &last]));
    let module = ModuleStatus { transfers: 31, bytes: 32, dma_bytes: 33, redone: 34 };
    let with = join(&[&before, &workers, &rest, &[1], &numbers(31, 34), &last]);
    pin_variant(Answer::Status(Box::new(status(Some(module)))), &with);
}

#[test]
fn reply_and_refusal_bytes() {
    let reply: Reply = Envelope { serial: 300, descriptors: 2, body: Ok(Answer::Closed) };
    pin(reply, &[0xac, 0x02, 2, 0, 4]);
    let kinds = [
        RefusalKind::Frame,
        RefusalKind::Capability,
        RefusalKind::Quota,
        RefusalKind::Argument,
        RefusalKind::Stopping,
        RefusalKind::System,
    ];
    for (place, kind) in (0..).zip(kinds) {
        pin_variant(kind, &[place]);
        let message = "na\u{ef}ve".to_owned();
        let reply: Reply = Envelope { serial: 1, descriptors: 0, body: Err(Refusal { kind, message }) };
        pin(reply, &join(&[&[1, 0, 1, place, 6], "na\u{ef}ve".as_bytes()]));
    }
    pin(Envelope { serial: u32::MAX, descriptors: 0, body: () }, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]);
}

#[test]
fn violation_bytes() {
    let all = [
        (Violation::NotHello, &[0][..]),
        (Violation::Version { client: (3, 300), service: (4, 5) }, &[1, 3, 0xac, 0x02, 4, 5]),
        (Violation::Unwelcome("no".to_owned()), &[2, 2, b'n', b'o']),
        (Violation::Malformed, &[3]),
        (Violation::Serial { expected: 300, got: 1 }, &[4, 0xac, 0x02, 1]),
        (Violation::Descriptors { expected: 1, got: 300 }, &[5, 1, 0xac, 0x02]),
        (Violation::TooLong, &[6]),
        (Violation::NotReading, &[7]),
        (Violation::RingCounts, &[8]),
        (Violation::Overrun, &[9]),
        (Violation::MemoryFault, &[10]),
        (Violation::Admission { milliseconds: 300 }, &[11, 0xac, 0x02]),
        (Violation::Stuck("no".to_owned()), &[12, 2, b'n', b'o']),
        (Violation::Engine("no".to_owned()), &[13, 2, b'n', b'o']),
    ];
    for (violation, bytes) in all {
        let farewell = join(&[b"\xffbye", bytes]);
        assert_eq!(encode_violation(&violation), farewell);
        assert_eq!(decode_violation(&farewell), Some(violation.clone()));
        pin_variant(violation, bytes);
    }
}

#[test]
fn numbers_of_kinds_and_classes() {
    for (place, kind) in (0..).zip(PolicyKind::ALL) {
        pin_variant(kind, &[place]);
    }
    let names = ["shared", "exclusive", "priority", "deadline", "weighted", "rate-limit"];
    assert_eq!(PolicyKind::ALL.map(PolicyKind::name), names);
    for (place, class) in (0..).zip([PriorityClass::Low, PriorityClass::Normal, PriorityClass::High]) {
        pin_variant(class, &[place]);
    }
    let rights = [Rights::READ, Rights::WRITE, Rights::GRANT, Rights::DIRECT];
    assert_eq!(rights.map(|right| right.bits()), [1, 2, 4, 8]);
}
