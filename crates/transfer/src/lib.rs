//! The vocabulary of memferry: requests, completions, and the engine contract.
//!
//! ```text
//! Request ──encode──► ring slot ──decode──► Request        (request, wire)
//! Operation<Span>     names memory by capability handle    (handle, operation)
//! Operation<Region>   names memory an engine may touch     (engine)
//! Completion          exactly one for each request         (completion)
//! ```
//!
//! Only data and checks: no system call, no thread, no unsafe code. The path checks requests against capabilities, and engines
//! move bytes.

#![no_std]
#![deny(missing_docs)]

extern crate alloc;

pub mod completion;
pub mod engine;
pub mod geometry;
pub mod handle;
pub mod image;
pub mod operation;
pub mod request;
pub mod rows;
mod side;
mod slot_error;
pub mod synchronized;
pub mod wire;

pub use completion::{Completion, EngineKind, Failure, Outcome, PeerReason};
pub use engine::{
    Confined, Descriptor, Engine, EngineCapabilities, EngineCompletion, IMMEDIATE_OPERANDS, Memory, Places,
    RefusalReason, Refused, Region, Ticket, Watermark,
};
pub use geometry::{Color24, Copy2d, Count2d, Fill2d, PixelSize, Plane};
pub use handle::{BadNodeName, GrantToken, Handle, NodeName, Rights, SessionId};
pub use operation::{Lists, MAX_SEGMENTS, MAX_SOURCES, Operation, Operations, Pattern, Reach, Segment};
pub use request::{CacheHint, PriorityClass, Request, Span, Task, Terms, WhenBusy};
pub use rows::Rows;
pub use side::Side;
pub use synchronized::{SyncUnit, Synchronized};
