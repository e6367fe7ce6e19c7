//! What an engine process links: it connects to the service, gets requests that are already checked, and completes them.
//!
//! ```text
//! run ─► keeper: maps frames before they are sealed        one thread, never touches their bytes
//!          └─ fork ─► engine: serve(&mut Engine)            inherits the mappings; threads map new frames, and show them
//!                       next ─► Job ─► moves the bytes ─► complete
//! ```
//!
//! The keeper forks another engine when one ends, and connects again when the service was restarted. docs/engines.md says why there are
//! two processes, and what the service checks.
//!
//! ```no_run
//! use memferry_engine::{Engine, EngineDescription, EngineOptions, Failure, Operation, Operations, Outcome, run};
//! use std::time::Duration;
//!
//! fn serve(engine: &mut Engine) -> Result<(), std::convert::Infallible> {
//!     loop {
//!         let Some(job) = engine.next(Duration::from_secs(1)) else { continue };
//!         let outcome = match job.operation() {
//!             Operation::Copy { source, destination, length } => {
//!                 let to = (destination.memory(), destination.offset());
//!                 let copied = source.memory().copy_to(source.offset(), *length as usize, to.0, to.1);
//!                 copied.map_or(Outcome::refused(Failure::Unsupported), |()| job.succeeded())
//!             }
//!             _ => Outcome::refused(Failure::Unsupported),
//!         };
//!         engine.complete(job.id(), outcome);
//!     }
//! }
//!
//! let options = EngineOptions {
//!     socket: "/run/memferry/memferry.sock".into(),
//!     name: "copies".to_owned(),
//!     description: EngineDescription { operations: Operations::COPY, ..EngineDescription::default() },
//! };
//! run(options, serve)?;
//! # Ok::<(), memferry_engine::RunError>(())
//! ```
//!
//! Pages of a frame can fail: a bad page, or a memory limit. The engine process has a handler for SIGBUS that turns this into an error of
//! [`guarded`]; without that the process ends, the service repeats its requests, and the keeper starts it again.

#![deny(missing_docs)]

mod channels;
mod connection;
mod engine;
mod events;
mod frames;
mod keeper;
mod options;
#[cfg(test)]
mod pair;
mod pauses;
mod process;
mod watcher;

pub use channels::{Channels, Waiting, cancel_waiting};
pub use connection::ConnectionError;
pub use engine::{Engine, Job};
pub use frames::Frames;
pub use keeper::{RunError, run};
pub use memferry_external::{DescriptionError, EngineDescription, WorkId};
pub use memferry_service::protocol::{ExportKind, ServiceId};
pub use memferry_shm::bus_error::{MemoryFault, guarded};
pub use memferry_shm::mapping::{Access, Mapping};
pub use memferry_transfer::{
    CacheHint, Descriptor, Failure, GrantToken, Handle, Lists, NodeName, Operation, Operations, Outcome,
    Pattern, PeerReason, Region, Segment, Side,
};
pub use options::{EngineOptions, Reports, report};
pub use pauses::Pauses;
pub use watcher::{Exported, FrameWatcher, NotExported, Remote};
