//! Shared memory: everything that maps it, shares it, or touches it while another process may write it.
//!
//! ```text
//! mapping      a mapped or owned range, read and written through raw copies only
//! arena        malloc's calls over such memory, by segments
//! placement    which pages a frame is made of, and on which NUMA node they lie
//! frame        what a broker checks and seals before a client's memfd becomes a frame
//! ring         slots with sequence numbers between two sides that do not trust each other
//! storage      the words of a queue pair: mapped, or on the heap
//! parking      park and wake without a fence on the publishing side
//! berth        work that several threads share, told of by one word
//! queue_pair   the two rings, hints and flags of one client channel, one memfd per direction
//! conduit      messages and descriptors over a Unix socket
//! bus_error    a worker survives memory that fails under it
//! fork_guard   a forked child learns that the rings are not its own
//! ```
//!
//! This crate is the main home of unsafe code. Its invariants are listed in ARCHITECTURE.md and each unsafe block
//! names the one it rests on. It knows nothing of capabilities, policies or engines.

#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "mapping memory and touching it is what this crate is for")
)]

#[cfg(not(loom))]
pub mod arena;
pub mod berth;
#[cfg(not(loom))]
pub mod bus_error;
#[cfg(not(loom))]
pub mod conduit;
#[cfg(not(loom))]
pub mod fork_guard;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
pub mod mapping;
pub mod parking;
#[cfg(not(loom))]
pub mod placement;
pub mod queue_pair;
pub mod ring;
pub mod storage;

/// Atomics that loom can interleave when it checks this crate.
mod sync {
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Held by tests that fork, and by those whose sockets a child must not keep alive.
#[cfg(test)]
static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
