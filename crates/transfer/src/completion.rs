//! What comes back: exactly one [`Completion`] for each request, with its [`Outcome`]: the bytes moved and, when it failed, why.
//!
//! ```text
//! EngineCompletion { ticket, outcome }  ─►  QueueCompletion { queue, .. }  ─►  Completion { tag, inherited, outcome }
//!     what an engine reports                    the path, to the worker           in the client's ring
//! ```
//!
//! A failure at admission moved nothing. A failure after it ([`Failure::Cancelled`], [`Failure::DeadlineExceeded`],
//! [`Failure::MemoryFault`], [`Failure::ChannelFaulted`], [`Failure::EngineTimedOut`], [`Failure::RequestDropped`],
//! [`Failure::EngineReset`]) may have moved a part; `bytes_done` says how much. The engine can no longer touch the memory, but
//! for a channel that failed ([`Failure::ChannelFaulted`] of a request that an engine had): until that is reset, which may be
//! never, it may write there at any time. The service keeps the memory as it is, and whose it is must not use it for anything else.
//! Only three failures leave the outcome unknown, and only the client library makes them: [`Failure::ServiceLost`],
//! [`Failure::UnknownTicket`] and [`Failure::Forked`].

use thiserror::Error;

use crate::handle::Handle;
use crate::request::PriorityClass;
use crate::slot_error::SlotError;

pub use crate::side::Side;

/// What moved the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// Nothing did: the request ended before it reached an engine.
    None,
    /// A CPU worker.
    Cpu,
    /// A model in virtual time.
    Simulated,
    /// The Linux module: a DMA engine, or the kernel's own copy where none would take it.
    Module,
}

impl core::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::None => "no engine",
            Self::Cpu => "CPU",
            Self::Simulated => "simulated engine",
            Self::Module => "kernel module",
        })
    }
}

/// Why a request did not do all it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Failure {
    /// The ring slot is no request.
    #[error("the request is malformed: {0}")]
    Malformed(SlotError),
    /// No such capability in this session.
    #[error("{side} handle {handle} names nothing in this session; register or accept the memory first")]
    UnknownHandle {
        /// Which operand.
        side: Side,
        /// The handle as it came.
        handle: Handle,
    },
    /// The capability was given back and its slot reused or freed.
    #[error("{side} handle {handle} is stale: its capability was released")]
    StaleHandle {
        /// Which operand.
        side: Side,
        /// The handle as it came.
        handle: Handle,
    },
    /// The capability was revoked.
    #[error("{side} handle {handle} was revoked by its grantor")]
    Revoked {
        /// Which operand.
        side: Side,
        /// The handle as it came.
        handle: Handle,
    },
    /// The capability does not carry the right the operation needs.
    #[error("{side} handle {handle} may not be used so: the capability lacks that right")]
    MissingRight {
        /// Which operand: a source needs READ, a destination WRITE.
        side: Side,
        /// The handle as it came.
        handle: Handle,
    },
    /// A byte outside the capability's range.
    #[error("the transfer leaves its {side}, which has {available} bytes")]
    OutOfBounds {
        /// Which operand.
        side: Side,
        /// Bytes the capability covers.
        available: u64,
    },
    /// More bytes than one request may move.
    #[error("the transfer is longer than the {limit} bytes one request may move; split it")]
    TooLong {
        /// The limit, bytes.
        limit: u64,
    },
    /// A fill whose length the pattern does not divide.
    #[error("the fill's length is no multiple of its pattern's {pattern_bytes} bytes")]
    FillLength {
        /// Bytes of the pattern.
        pattern_bytes: u64,
    },
    /// The two lists of a scatter-gather transfer hold different numbers of bytes.
    #[error("the destination's segments do not hold the {source_bytes} bytes of the source's")]
    SegmentTotals {
        /// Bytes of the source's segments.
        source_bytes: u64,
    },
    /// Two operands of an xor or dual copy overlap in part, so that the result would depend on the order of the bytes.
    #[error("operand {operand} overlaps another one in part; use ranges that are equal or apart")]
    Overlap {
        /// Which operand, counted from 0: sources first, then destinations.
        operand: u64,
    },
    /// The session may not use that class.
    #[error("this client may use class {granted} at most")]
    ClassNotGranted {
        /// The highest it may use.
        granted: PriorityClass,
    },
    /// A loop without anything to repeat, or within another.
    #[error("a loop repeats the linked requests that follow it: at least one, and no other loop")]
    BadLoop,
    /// Every engine channel this client may use is busy and the request would not wait.
    #[error("all {channels} engine channels this client may use are busy; retry, or let the request wait")]
    ChannelsBusy {
        /// How many there are.
        channels: u64,
    },
    /// The waiting list's quota is reached.
    #[error("requests of this user that wait or are held use up its quota of {limit}; wait for some to end")]
    WaitingQuota {
        /// The quota.
        limit: u64,
    },
    /// The client cancelled it, or memory it used was revoked or its session closed.
    #[error("cancelled")]
    Cancelled,
    /// Its deadline cannot be met beside those that were promised before; it was not started.
    #[error("the deadline cannot be met beside those promised to others; give it more time, or none")]
    DeadlineUnreachable,
    /// Its deadline passed.
    #[error("the deadline passed")]
    DeadlineExceeded,
    /// The memory failed under the engine (a bad page, an exhausted huge-page pool or memory limit).
    #[error("memory of this session failed under the engine")]
    MemoryFault,
    /// The engine channel failed and was not stopped: it may still write to the destination, which is not to be freed or used for
    /// anything else; the service keeps it too. Of a request that no engine had: all channels had failed before, and its memory was
    /// not touched.
    #[error("the engine channel failed; it may still write to the memory it had, so do not use that again")]
    ChannelFaulted,
    /// No engine of this service performs the operation.
    #[error("no engine of this service performs this operation")]
    Unsupported,
    /// The engine did not report the end in time. It was stopped, and no longer touches the memory.
    #[error(
        "the engine did not report the end in time and was stopped; a part may have been done, ask again"
    )]
    EngineTimedOut,
    /// The device asked for a part before the one it had asked for was moved: what it had to give then may be lost.
    #[error(
        "the device asked again before its last request was served; start again, or let it ask more slowly"
    )]
    RequestDropped,
    /// The engine was reset, to bring back a channel that had failed. It no longer touches the memory.
    #[error("the engine was reset meanwhile; a part may have been done, ask again")]
    EngineReset,
    /// The service is shutting down and did not start the request.
    #[error("the service is stopping and did not start this request")]
    ServiceStopping,
    /// The service died; whether and how far the transfer ran is unknown. Made by the client library.
    #[error("the service was lost; the outcome of this request is unknown")]
    ServiceLost,
    /// The ticket names nothing that is outstanding on this queue: its end was taken before, or it is another queue's. Made by
    /// the client library, never on the wire.
    #[error("the ticket is not outstanding on this queue")]
    UnknownTicket,
    /// This process is a forked child, and the queue is its parent's. Made by the client library, never on the wire.
    #[error("this process was forked from the one that opened the client; open a client of its own here")]
    Forked,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Whether it did all it asked for.
    pub result: Result<(), Failure>,
    /// Bytes visited, in the operation's order; a request in a loop counts those of all rounds. The engine chooses the order of
    /// pixels where it shows only in a transfer that was cut short.
    pub bytes_done: u64,
    /// The result of the operation: the CRC, the offset of the first difference (the length when there is none), the complete
    /// rounds of a loop; else 0.
    pub value: u64,
    /// What moved the bytes.
    pub engine: EngineKind,
}

impl Outcome {
    /// The outcome of a request that failed before any engine had it.
    #[inline]
    pub const fn refused(failure: Failure) -> Self {
        Self { result: Err(failure), bytes_done: 0, value: 0, engine: EngineKind::None }
    }
}

/// The end of one request, as a queue reports it to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The client's own name for the request.
    pub tag: u64,
    /// The failure is that of an earlier request this one was linked to.
    pub inherited: bool,
    /// How the request ended.
    pub outcome: Outcome,
}
