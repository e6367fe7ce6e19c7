//! User-level DMA: hand a copy, a fill or a 2-D move to an engine, go on computing, and be told when it is done.
//!
//! ```
//! use memferry::{Client, Transfer};
//!
//! let client = Client::embedded()?; // or Client::connect("/run/memferry.sock")?
//! let (source, destination) = (client.allocate(1 << 20)?, client.allocate(1 << 20)?);
//! source.write(0, b"moved without this thread")?;
//! let mut queue = client.queue(64)?;
//! let ticket = queue.submit(Transfer::copy(&source.all(), &destination.all())?)?;
//! let sum: u64 = (0..1000).sum(); // computing meanwhile
//! let completion = queue.wait(ticket, None)?;
//! assert_eq!((completion.outcome, completion.bytes_done, sum), (Ok(()), 1 << 20, 499_500));
//! # Ok::<(), memferry::Error>(())
//! ```
//!
//! ```text
//! Client ─ allocate, grant, accept, revoke ─► Frame ─ range ─► Transfer
//!        ├ Copier ─ adopt ─► CopyBuffer ─ amemcpy, csync               asynchronous memcpy, in order
//!        ├ arena ─► FrameArena ─ buffer, allocator ─► Buffer, collections ─ range, copy ─► Transfer
//!        └ queue ─► Queue ─ submit(Transfer) ─► Ticket ─ poll, wait, cancel ─► Completion
//! ```
//!
//! The same calls work against a service in another process, which checks every request, and embedded in this one, which
//! needs no daemon. Frames are shared memory that others may write: bytes go in and out by [`Frame::read`] and
//! [`Frame::write`], never by reference. A queue belongs to one thread at a time.

#![deny(missing_docs)]

mod arena;
mod client;
mod copier;
mod error;
mod frame;
mod future;
mod link;
mod queue;
mod transfer;
mod zeroing;

pub use arena::{
    ArenaOptions, Buffer, BufferError, Copied, CopyError, FrameAllocator, FrameArena, SegmentFrame, Segments,
};
pub use client::{Client, Grantee};
pub use copier::{
    AddressSpace, AmemcpyError, Copier, CopierError, CopierStatistics, CopyBuffer, CopyQueue, CopyRange,
};
pub use error::{CallError, ConnectError, Error, FrameError, OpenError, TakeBackError};
pub use frame::{Frame, FrameRange};
pub use future::{AsyncQueue, Pending};
pub use memferry_clock::{Clock, Instant};
pub use memferry_service::module::ModuleStatus;
pub use memferry_service::protocol::{
    EngineStatus, Identity, Refusal, RefusalKind, ServiceId, SessionStatus, Status, Violation, WorkerStatus,
    ZeroedStatus,
};
pub use memferry_service::{MonotonicClock, PolicyKind, PolicySettings, Quotas, ServiceConfig};
pub use memferry_shm::arena::{Promised, Statistics as ArenaStatistics};
pub use memferry_shm::fork_guard::{ForkGuard, Forked};
pub use memferry_shm::frame::Pages;
pub use memferry_shm::mapping::{Access, AccessError, Lent};
pub use memferry_shm::placement::{BindError, Placement, online_nodes};
pub use memferry_transfer::geometry::{Addr2d, GeometryError};
pub use memferry_transfer::image::{Image, ImageError, Turn, turned_copy};
pub use memferry_transfer::{
    CacheHint, Color24, Copy2d, Count2d, EngineKind, Failure, Fill2d, Handle, Operations, Pattern, PixelSize,
    Plane, PriorityClass, Rights, SessionId, Side,
};
pub use queue::{Armed, Arrival, BatchError, Queue, SubmitError, SubmitReason, Ticket, WaitError};
pub use transfer::{Transfer, TransferError};
pub use zeroing::{Zeroing, ZeroingError};

/// The end of one request, under the ticket it was submitted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What [`Queue::submit`] returned.
    pub ticket: Ticket,
    /// Whether the request did all it asked for.
    pub outcome: Result<(), Failure>,
    /// The failure is that of an earlier transfer this one was linked to.
    pub inherited: bool,
    /// Bytes visited, in the operation's order; those of a transfer in a loop in all rounds.
    pub bytes_done: u64,
    /// What was found: the CRC, the offset of the first difference (the length when there is none), the whole rounds of a
    /// loop; else 0.
    pub value: u64,
    /// What moved them.
    pub engine: EngineKind,
}

impl Completion {
    /// Whether nobody touches the memory of the transfer any more. It is not so when the service was lost
    /// ([`Failure::ServiceLost`]), nor when the engine channel that had the transfer failed ([`Failure::ChannelFaulted`]): what that
    /// still writes, it may write at any time. Memory of an arena is given to nobody else then; what a program keeps for itself or
    /// has lent is its own to leave alone, until [`Client::revoke`] of it has succeeded.
    pub fn is_settled(&self) -> bool {
        match self.outcome {
            Err(Failure::ServiceLost) => false,
            // Without an engine it was refused: all queues had failed before.
            Err(Failure::ChannelFaulted) => self.engine == EngineKind::None,
            _ => true,
        }
    }

    /// The end of a transfer that no engine touched, as far as this client can learn.
    fn without_engine(ticket: Ticket, failure: Failure) -> Self {
        let outcome = Err(failure);
        let engine = EngineKind::None;
        Self { ticket, outcome, inherited: false, bytes_done: 0, value: 0, engine }
    }
}

/// The guide's examples, as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/first-transfers.md")]
    mod first_transfers {}
    #[doc = include_str!("../../../docs/guide/choose-an-engine.md")]
    mod choose_an_engine {}
    #[doc = include_str!("../../../docs/guide/pass-memory.md")]
    mod pass_memory {}
    #[doc = include_str!("../../../docs/asynchronous-copy.md")]
    mod asynchronous_copy {}
}
