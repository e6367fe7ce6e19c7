//! Completions: exactly one [`Completion`] for each request, with its [`Outcome`] (the bytes moved and, if it failed, why).
//!
//! ```text
//! EngineCompletion { ticket, outcome }  ─►  QueueCompletion { queue, .. }  ─►  Completion { tag, inherited, outcome }
//!     from an engine                            from the path to the worker       in the client's ring
//! ```
//!
//! A failure at admission moved nothing. A failure after admission ([`Failure::Cancelled`], [`Failure::DeadlineExceeded`],
//! [`Failure::MemoryFault`], [`Failure::ChannelFaulted`], [`Failure::EngineTimedOut`], [`Failure::RequestDropped`],
//! [`Failure::EngineReset`], [`Failure::PeerLost`], [`Failure::PeerRefused`]) may have moved a part; `bytes_done` says how much. The engine no longer touches the memory, with one
//! exception: after [`Failure::ChannelFaulted`] of a started request, the failed channel may write to it until the channel is
//! reset, which may never happen. The service then keeps the memory, and its owner must not use it for anything else.
//! Three failures leave the outcome unknown: [`Failure::ServiceLost`], [`Failure::UnknownTicket`] and [`Failure::Forked`]. Only
//! the client library makes them.

use thiserror::Error;

use crate::handle::Handle;
use crate::request::PriorityClass;
use crate::slot_error::SlotError;

pub use crate::side::Side;

/// The kind of engine that moved the bytes.
///
/// ```
/// use memferry_transfer::EngineKind;
///
/// assert_eq!(format!("moved by the {}", EngineKind::Cpu), "moved by the CPU");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// None: the request ended before it reached an engine.
    None,
    /// The CPU, on a worker or on the client's own thread.
    Cpu,
    /// A model in virtual time.
    Simulated,
    /// The Linux module: a DMA engine, or the kernel's own copy when no DMA engine took the transfer.
    Module,
    /// An engine process: a program that the administrator connected to the service.
    External,
}

impl core::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::None => "no engine",
            Self::Cpu => "CPU",
            Self::Simulated => "simulated engine",
            Self::Module => "kernel module",
            Self::External => "engine process",
        })
    }
}

/// Why another node refused access to its memory. The numbers are those of completions and of messages between links.
///
/// ```
/// use memferry_transfer::PeerReason;
///
/// assert_eq!(PeerReason::from_code(PeerReason::Expired.code()), Some(PeerReason::Expired));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, Error)]
#[repr(u8)]
pub enum PeerReason {
    /// There is no such grant to this user of this node.
    #[error("it granted nothing under this token to this user of this node")]
    NoSuchGrant = 0,
    /// The grant was revoked.
    #[error("the grant was revoked by its grantor")]
    Revoked = 1,
    /// The grant was for a limited time.
    #[error("the grant has expired; ask its grantor for a new one")]
    Expired = 2,
    /// The grant lacks the right.
    #[error("the grant lacks the right to read or to write")]
    MissingRight = 3,
    /// The request leaves the granted range.
    #[error("the request leaves the granted range")]
    OutOfBounds = 4,
    /// A quota of its link is used up.
    #[error("a quota of its link is used up; try again later")]
    Busy = 5,
    /// Its service could not do the request.
    #[error("its service failed to do the request")]
    Failed = 6,
    /// The token is of an earlier run of its service. What that granted has ended.
    #[error("its service was started again since it made the grant; ask its grantor for a new one")]
    EarlierRun = 7,
}

impl PeerReason {
    /// All reasons, by number.
    pub const ALL: [Self; 8] = [
        Self::NoSuchGrant,
        Self::Revoked,
        Self::Expired,
        Self::MissingRight,
        Self::OutOfBounds,
        Self::Busy,
        Self::Failed,
        Self::EarlierRun,
    ];

    /// The number in completions and messages.
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The reason with this number.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

/// Why a request failed.
///
/// ```
/// use memferry_transfer::{Failure, Handle, Side};
///
/// let failure = Failure::UnknownHandle { side: Side::Source, handle: Handle::new(7, 1) };
/// assert!(failure.to_string().starts_with("source handle 7.1 names nothing"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Failure {
    /// The ring slot does not hold a valid request.
    #[error("the request is malformed: {0}")]
    Malformed(SlotError),
    /// The session has no capability with this handle.
    #[error("{side} handle {handle} names nothing in this session; register or accept the memory first")]
    UnknownHandle {
        /// The operand that names the handle.
        side: Side,
        /// The handle in the request.
        handle: Handle,
    },
    /// The capability was released, and its slot freed or reused.
    #[error("{side} handle {handle} is stale: its capability was released")]
    StaleHandle {
        /// The operand that names the handle.
        side: Side,
        /// The handle in the request.
        handle: Handle,
    },
    /// The capability was revoked.
    #[error("{side} handle {handle} was revoked by its grantor")]
    Revoked {
        /// The operand that names the handle.
        side: Side,
        /// The handle in the request.
        handle: Handle,
    },
    /// The capability comes from a grant for a limited time, which is over.
    #[error("{side} handle {handle} has expired: it was granted for a limited time; ask for a new grant")]
    Expired {
        /// The operand that names the handle.
        side: Side,
        /// The handle in the request.
        handle: Handle,
    },
    /// The capability lacks the right that the operation needs.
    #[error(
        "{side} handle {handle} lacks the right that a {side} needs: READ for a source, WRITE for a destination"
    )]
    MissingRight {
        /// Which operand: a source needs READ, a destination WRITE.
        side: Side,
        /// The handle in the request.
        handle: Handle,
    },
    /// The transfer touches a byte outside the capability's range.
    #[error("the transfer leaves its {side}, which has {available} bytes")]
    OutOfBounds {
        /// The operand that leaves its range.
        side: Side,
        /// Bytes the capability covers.
        available: u64,
    },
    /// The request would move more bytes than one request may.
    #[error("the transfer is longer than the {limit} bytes one request may move; split it")]
    TooLong {
        /// Maximum bytes of one request.
        limit: u64,
    },
    /// The length of a fill is not a multiple of its pattern's length.
    #[error("the fill's length is not a multiple of its pattern's {pattern_bytes} bytes")]
    FillLength {
        /// Bytes of the pattern.
        pattern_bytes: u64,
    },
    /// The two lists of a scatter-gather transfer differ in their number of bytes.
    #[error("the destination's segments do not add up to the source's {source_bytes} bytes")]
    SegmentTotals {
        /// Bytes of the source's segments.
        source_bytes: u64,
    },
    /// Two operands of an xor or dual copy overlap in part, or a picture would be turned in its own place, so that the result would
    /// depend on the order of the bytes.
    #[error(
        "operand {operand} overlaps another one in part; use ranges that are equal or apart, and turn a picture to another place"
    )]
    Overlap {
        /// Which operand, counted from 0: sources first, then destinations.
        operand: u64,
    },
    /// The request's priority class is above the highest one granted to the session.
    #[error("this client may use class {granted} at most")]
    ClassNotGranted {
        /// The highest class granted.
        granted: PriorityClass,
    },
    /// A loop has nothing to repeat, or is inside another loop.
    #[error("a loop repeats the linked requests that follow it: at least one, and no other loop")]
    BadLoop,
    /// Every engine channel this client may use is busy, and the request asked not to wait.
    #[error("all {channels} engine channels this client may use are busy; retry, or let the request wait")]
    ChannelsBusy {
        /// Channels this client may use.
        channels: u64,
    },
    /// The user has as many requests waiting or held as its quota allows.
    #[error("this user has {limit} requests waiting or held, its quota; wait for some to end")]
    WaitingQuota {
        /// Requests of one user that may wait or be held.
        limit: u64,
    },
    /// The client cancelled the request, its memory was revoked, or its session closed.
    #[error("cancelled")]
    Cancelled,
    /// Meeting this deadline would break deadlines promised earlier, so the request was not started.
    #[error("the deadline cannot be met with those promised to others; set a later one, or none")]
    DeadlineUnreachable,
    /// The deadline passed before the request was complete; a part may have been done.
    #[error("the deadline passed")]
    DeadlineExceeded,
    /// The memory failed while an engine used it: a bad page, an exhausted huge-page pool, or a memory limit.
    #[error("memory of this session failed while an engine used it")]
    MemoryFault,
    /// The engine channel failed and could not be stopped. It may still write to the destination, so do not free the memory or use
    /// it for anything else; the service keeps it too. If the request was not started, all channels had failed before, and its
    /// memory was not touched.
    #[error(
        "the engine channel failed and may still write to this transfer's memory; do not reuse that memory"
    )]
    ChannelFaulted,
    /// No engine of this service performs the operation on this memory. Memory of an engine process is reached by that engine only, and
    /// together with host memory that this engine has.
    #[error(
        "no engine of this service performs this operation on this memory; move memory of an engine process by that engine, to or from a \
         frame of the host that it has"
    )]
    Unsupported,
    /// The engine did not complete the request in time. It was stopped, and no longer touches the memory.
    #[error(
        "the engine did not complete in time and was stopped; a part may have been done, submit it again"
    )]
    EngineTimedOut,
    /// The device requested a part before its previous request was served, so data may be lost.
    #[error(
        "the device requested data before its last request was served; start again, or slow the device down"
    )]
    RequestDropped,
    /// The engine was reset to recover a failed channel. It no longer touches the memory.
    #[error("the engine was reset; a part may have been done, submit it again")]
    EngineReset,
    /// The node that has the memory cannot be reached, or the link to it broke: a part may have been done.
    #[error(
        "the link to the node that has this memory is broken; a part may have been done, submit it again"
    )]
    PeerLost,
    /// The node that has the memory refused; its rights are checked there. A part may have been done before.
    #[error("the node that has this memory refused: {reason}")]
    PeerRefused {
        /// What its service said.
        reason: PeerReason,
    },
    /// The service is shutting down and did not start the request.
    #[error("the service is stopping and did not start this request")]
    ServiceStopping,
    /// The service died, so it is unknown whether and how far the transfer ran. Made by the client library.
    #[error("the service was lost; the outcome of this request is unknown")]
    ServiceLost,
    /// The ticket is not outstanding on this queue: its completion was taken before, or it belongs to another queue. Made by the
    /// client library, never on the wire.
    #[error("the ticket is not outstanding on this queue")]
    UnknownTicket,
    /// This process is a forked child, and the queue belongs to its parent. Made by the client library, never on the wire.
    #[error("this process was forked from the one that opened the client; open a new client here")]
    Forked,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Success, or why it failed.
    pub result: Result<(), Failure>,
    /// Bytes visited, in the operation's order. A request in a loop counts all rounds. An engine may visit pixels in another
    /// order if that shows only in a transfer that ended early.
    pub bytes_done: u64,
    /// The operation's result: the CRC, the offset of the first difference (the length if there is none), or the complete rounds
    /// of a loop; else 0.
    pub value: u64,
    /// The kind of engine that moved the bytes.
    pub engine: EngineKind,
}

impl Outcome {
    /// The outcome of a request that failed before it reached an engine.
    #[inline]
    pub const fn refused(failure: Failure) -> Self {
        Self { result: Err(failure), bytes_done: 0, value: 0, engine: EngineKind::None }
    }
}

/// The completion of one request, as a queue reports it to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The tag the client gave the request.
    pub tag: u64,
    /// The request failed because an earlier one it was linked to failed.
    pub inherited: bool,
    /// How the request ended.
    pub outcome: Outcome,
}
