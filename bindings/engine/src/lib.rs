//! The C interface for engines: the functions that `memferry_engine.h` declares, over `memferry-engine`.
//!
//! ```text
//! mf_engine_run(options, serve) ─► keeper ─ fork ─► serve(engine) ─ mf_engine_next ─► mf_engine_request ─► mf_engine_complete
//! ```
//!
//! Every function that takes pointers is `unsafe` under one contract, invariant C1: during the call, a pointer is null or valid
//! for the access that its function documents; an engine's pointer is the one that `serve` got, used by one thread at a time. Null and
//! misaligned pointers are refused. No function unwinds: a panic becomes an error number.
//!
//! cbindgen writes the header from this crate (`tests/header.rs` fails when they differ), so the comments on exported items are
//! written for C programmers.

#![deny(missing_docs)]
#![allow(unsafe_code, reason = "pointers come from C; each block names the invariant it needs")]
#![allow(clippy::missing_safety_doc, reason = "C1, above, is the contract of every function")]
#![allow(nonstandard_style, reason = "names are those that C programs see")]

mod boundary;
mod calls;
mod request;
mod types;

pub use calls::*;
pub use types::*;
