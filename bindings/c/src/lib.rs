//! The C interface: the functions that `memferry.h` declares, over the client library.
//!
//! ```text
//! C program ─ mf_submit_copy(queue, source, destination, terms, &ticket) ─► boundary::call
//!                catch_unwind ─ check pointers ─ look up handles ─► memferry::Queue ─► error number, thread's message
//! ```
//!
//! Handles are numbers with a generation. Each call looks them up and never dereferences them, so a freed or invented handle is
//! an error with a number. Enumerations arrive as integers, because an integer outside them would not be a valid Rust value. No
//! function unwinds or aborts: a panic becomes [`mf_error::Panicked`].
//!
//! Every function that takes pointers is `unsafe` under one contract, invariant C1: during the call, a pointer is null or valid
//! for the access that its function documents. Null and misaligned pointers are refused.
//!
//! cbindgen writes the header from this crate (`tests/header.rs` fails when they differ), so the comments on exported items are
//! written for C programmers.

#![deny(missing_docs)]
#![allow(unsafe_code, reason = "pointers come from C; each block names the invariant it needs")]
#![allow(clippy::missing_safety_doc, reason = "C1, above, is the contract of every function")]
#![allow(nonstandard_style, reason = "names are those that C programs see")]

mod address_space;
mod boundary;
mod client;
mod copier;
mod error;
mod frame;
mod plain;
mod queue;
mod submit;
mod table;
mod team;
mod types;

pub use client::*;
pub use copier::*;
pub use error::{mf_error, mf_error_text, mf_last_message};
pub use frame::*;
pub use plain::*;
pub use queue::*;
pub use submit::*;
pub use types::*;
