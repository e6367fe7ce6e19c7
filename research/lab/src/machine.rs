//! The machines that the papers measured, besides their devices: processors with caches, in virtual time.
//!
//! ```text
//! addresses of a copy ──► cache: tags only ──► picoseconds          driver's maintenance hooks ──► coherence: what goes stale
//! ```
//!
//! Whose processor has which sizes and times is a paper's parameters. Values in memory are in the devices' models.

pub mod cache;
pub mod coherence;
