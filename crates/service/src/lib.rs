//! The memferry service: owns the engines, checks access rights, and serves each client through its own queue pairs.
//!
//! ```text
//! daemon (socket) or `embedded` ─ Command ─► Service ── WorkerCommand ──► worker: polls rings, runs the path, completes
//!                               ◄─ Answer ──         ◄──── Notice ───────    └─ the Linux module beside the CPU, optional
//!
//! protocol  messages of the socket      session  one client: queues, frames, quotas      ring_pool  memory of queue pairs
//! ```
//!
//! [`Service`] is a library: the daemon puts a socket in front of it, and an embedded client calls it in its own process.
//! The control side never moves bytes; workers never wait for the control side.

pub mod balance;
mod balancing;
mod bells;
pub mod config;
mod counters;
pub mod embedded;
mod engine_id;
mod engines;
pub mod module;
mod overflow;
mod pinning;
mod policies;
pub mod printable;
pub mod profile;
pub mod protocol;
mod ring_pool;
mod scheduling;
mod service;
mod session;
mod shared;
mod signal;
mod start_error;
mod worker;
pub mod worker_engine;

pub use crate::scheduling::{SchedulingClass, times_slept};
pub use config::{EngineConfig, FramesOf, Quotas, ServiceConfig};
pub use engine_id::EngineId;
pub use engines::{ExportRequest, ExportState, FrameDelivery, FrameProposal};
pub use memferry_path::{Immediate, PolicyError, PolicyKind, PolicySettings};
pub use pinning::Pinning;
pub use service::{Events, Executed, Service};
pub use session::Introduced;
pub use shared::{Clients, Notice, Remains, SignalTarget};
pub use start_error::StartError;

use memferry_clock::{Clock, Instant};

/// Serializes tests that fork or spawn with tests whose locks or sockets a child must not inherit.
#[cfg(test)]
static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The machine's `CLOCK_MONOTONIC`, which all processes share. Deadlines use it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Instant::from_nanoseconds(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }
}
