//! User-level DMA: submit a copy, a fill or a 2-D move to an engine, keep computing, and collect the result.
//!
//! ```
//! use memferry::{Client, copy, crc32c};
//!
//! let client = Client::embedded()?; // or Client::connect("/run/memferry.sock")?
//! let source = client.frame(1 << 20).alloc()?;
//! let destination = client.frame(1 << 20).alloc()?;
//! source.write(0, b"moved without this thread")?;
//! let mut queue = client.queue(64)?;
//! let ticket = queue.submit(copy(&source, &destination))?;
//! let sum: u64 = (0..1000).sum(); // this thread computes while the bytes move
//! let done = queue.wait(ticket)?; // `Err` if the copy failed
//! assert_eq!((done.bytes_done, sum), (1 << 20, 499_500));
//! let crc: u32 = queue.run(crc32c(destination.slice(..25)))?.output;
//! assert_eq!(crc, queue.run(crc32c(source.slice(..25)))?.output);
//! # Ok::<(), memferry::Error>(())
//! ```
//!
//! ```text
//! Client ─ frame, accept, derive ─► Frame ─ slice ─► Region ─ copy, fill, crc32c, ... ─► Transfer<T>
//!        ├ queue ─► Queue ─ submit(Transfer<T>) ─► Ticket<T> ─ wait ─► Result<Done<T>, TransferError>
//!        ├ grant(Region) ─► Grant ─ token ─► another client's accept
//!        ├ Copier ─ adopt ─► CopyBuffer ─ amemcpy, csync               asynchronous memcpy, in order
//!        └ arena ─► FrameArena ─ buffer, allocator ─► Buffer, collections ─ slice, copy ─► Region
//! ```
//!
//! The service runs in another process and checks every request, or it is embedded in this process and needs no daemon. The
//! calls are the same. Frames are shared memory that others may write, so this crate hands out no references to their bytes:
//! [`Frame::read`] and [`Frame::write`] copy. A queue belongs to one thread at a time.

#![deny(missing_docs)]
// Examples must not ignore a failure.
#![doc(test(attr(deny(unused_must_use))))]

mod any_error;
mod arena;
mod client;
mod completion;
mod copier;
mod error;
mod frame;
mod future;
mod link;
mod queue;
mod remote;
mod session;
mod transfer;
mod zeroing;

pub use any_error::Error;
pub use arena::{ArenaOptions, Buffer, BufferError, Copied, CopyError, FrameAllocator, FrameArena};
pub use client::{Client, Grant};
pub use completion::{Done, Output, Ticket, TicketId, TransferError};
pub use copier::{
    AddressSpace, AmemcpyError, Copier, CopierError, CopierStatistics, CopyBuffer, CopyQueue, CopyRange,
};
pub use error::{CallError, ConnectError, FrameError, OpenError};
pub use frame::{
    ExportError, Exported, Frame, FrameBuilder, ListItem, Piece, Region, SegmentFrame, Segments,
    TakeBackError,
};
pub use future::{AsyncQueue, Pending};
pub use link::ConnectOptions;
pub use memferry_pool::Pool;
pub use memferry_service::StartError;
pub use memferry_service::module::ModuleStatus;
pub use memferry_service::protocol::{
    EngineStatus, ExportKind, ExternalStatus, Grantee, Identity, LATENCY_BUCKETS, LatencyStatus, Refusal,
    RefusalKind, RefusedStatus, ServiceId, SessionStatus, Status, Violation, WorkerStatus, ZeroedStatus,
};
pub use memferry_service::{PolicyKind, PolicySettings, Quotas, ServiceConfig};
pub use memferry_shm::arena::{ArenaError, Promised, SegmentError, Statistics as ArenaStatistics};
pub use memferry_shm::fork_guard::{ForkGuard, Forked};
pub use memferry_shm::frame::{AllocateError, Pages, UnsafeMemory};
pub use memferry_shm::mapping::{Access, AccessError, Lent, Mapping};
pub use memferry_shm::placement::{BindError, Placement, online_nodes};
pub use memferry_transfer::geometry::{Addr2d, GeometryError};
pub use memferry_transfer::image::{Image, ImageError, Turn, turned_copy};
pub use memferry_transfer::wire::SlotError;
pub use memferry_transfer::{
    BadNodeName, CacheHint, Color24, Copy2d, Count2d, EngineKind, Failure, Fill2d, GrantToken, Handle,
    NodeName, Operations, Pattern, PeerReason, PixelSize, Plane, PriorityClass, Rights, SessionId, Side,
};
pub use queue::{
    Armed, Arrival, BatchError, Completions, Progress, Queue, RunError, SubmitError, SubmitReason,
};
pub use remote::{BadRemoteToken, RemoteToken};
pub use transfer::{
    InvalidTransfer, Transfer, compare, copy, copy_2d, copy_crc32c, crc32c, dual_copy, fill, fill_2d, nop,
    repeat, scatter_gather, xor, zero,
};
pub use zeroing::{Zeroing, ZeroingError};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// Runs the examples of the guide as tests.
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
