//! Asynchronous copies of ordinary memory, in order: `amemcpy` returns at once, `csync` of any part waits for that part.
//!
//! ```text
//! Copier, CopyBuffer (Rust: owned memory) ─┐
//! mf_copier (C: plain pointers) ───────────┴─► CopyQueue ─► Pending: what is to be moved, from where, in which order
//!                                                  └─ worker, callers ─► engine, CPU
//! ```
//!
//! The meaning of a program is that of the same program with `memcpy`, as long as it reads what it copied after a csync, and
//! says before it writes or frees what may still be read. Copies of copies that are still to come are made from where the
//! bytes are; what lies between is moved last, or never.
//!
//! A forked child has none of it: bytes that were to come when it was forked never come there.

mod buffers;
mod pending;
mod queue;

pub use buffers::{AmemcpyError, Copier, CopyBuffer, CopyRange};
pub use queue::{AddressSpace, CopierError, CopierStatistics, CopyQueue};
