//! Asynchronous, ordered copies of ordinary memory: `amemcpy` returns at once, and `csync` of any part waits for that part.
//!
//! ```text
//! Copier, CopyBuffer (Rust: owned memory) ─┐
//! mf_copier (C: plain pointers) ───────────┴─► CopyQueue ─► Pending: the copies to do, their sources and their order
//!                                                  └─ worker, callers ─► engine, CPU
//! ```
//!
//! A program behaves as with `memcpy` if it reads a copy only after a csync, and announces when it is about to write or free
//! bytes that a pending copy may read. A copy of a pending copy reads from the first source. The bytes in between are moved
//! last, or not at all if they are freed before.
//!
//! A forked child has no copier: copies pending at the fork are never done there.

mod buffers;
mod pending;
mod queue;

pub use buffers::{AmemcpyError, Copier, CopyBuffer, CopyRange};
pub use queue::{AddressSpace, CopierError, CopierStatistics, CopyQueue};
