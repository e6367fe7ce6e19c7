//! Models of the papers' processors and caches, in virtual time.
//!
//! ```text
//! addresses of a copy ──► cache: tags only ──► picoseconds          driver's maintenance hooks ──► coherence: stale data
//! ```
//!
//! Sizes and times are parameters of each paper. The device models hold the values in memory.

pub mod cache;
pub mod coherence;
