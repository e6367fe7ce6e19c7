//! Shared memory: mapping it, sharing it, and accessing it while another process may write it.
//!
//! ```text
//! mapping      a mapped or owned range, read and written through raw copies only
//! arena        an allocator (malloc's calls) over segments of such memory
//! placement    page size and NUMA node of a frame
//! frame        the checks and seals that make a client's memfd a frame
//! ring         slots with sequence numbers between two sides that do not trust each other
//! storage      the words of a queue pair: mapped, or on the heap
//! parking      park and wake without a fence on the publishing side
//! team_word    one atomic word through which threads take the pieces of one job
//! queue_pair   the two rings, hints and flags of one client queue, one memfd per direction
//! conduit      messages and descriptors over a Unix socket
//! bus_error    turns SIGBUS on client memory into an error
//! fork_guard   detects use of the rings in a forked child
//! epoch        readers of shared tables without a lock, and waiting for them
//! capability_entry, capability_view   what handles give access to, for workers that check plain requests without a lock
//! ```
//!
//! Most of the project's unsafe code is here. ARCHITECTURE.md lists its invariants, and each unsafe block names the one
//! it relies on. Capabilities, policies and engines belong to other crates.

#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "this crate maps memory and accesses it by raw pointers")
)]

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod bus_error;
pub mod capability_entry;
#[cfg(not(loom))]
pub mod capability_view;
#[cfg(not(loom))]
pub mod conduit;
pub mod epoch;
#[cfg(not(loom))]
pub mod fork_guard;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
pub mod line;
#[cfg(not(loom))]
pub mod mapping;
pub mod parking;
#[cfg(not(loom))]
pub mod placement;
pub mod queue_pair;
pub mod ring;
pub mod storage;
pub mod team_word;

/// Atomics that loom can interleave when it checks this crate.
mod sync {
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Serializes tests that fork with tests whose sockets a forked child would keep open.
#[cfg(test)]
static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
