//! The C interface: what `memferry.h` declares, over the client library.
//!
//! ```text
//! C program ─ mf_submit_copy(queue, source, destination, terms, &ticket) ─► boundary::call
//!                catch_unwind ─ pointers checked ─ handles looked up ─► memferry::Queue ─► number, message of this thread
//! ```
//!
//! Handles are numbers with a generation, looked up at each call and never dereferenced, so a freed or invented one is an error
//! with a number. Enumerations come in as integers, because a number outside them would be no value of the Rust type. No
//! function unwinds or aborts: a panic becomes [`mf_error::Panicked`].
//!
//! Every function that takes pointers is `unsafe` under one contract, invariant C1: a pointer is null, or good for what it is
//! used for as its function says, during the call. Null and misaligned ones are refused.
//!
//! The header is written by cbindgen from this crate (`tests/header.rs` says when it is not), so comments on what is exported
//! are read by C programmers.

#![deny(missing_docs)]
#![allow(unsafe_code, reason = "pointers come from C; each block names what it rests on")]
#![allow(clippy::missing_safety_doc, reason = "C1, above, is the contract of every function")]
#![allow(nonstandard_style, reason = "names are those that C programs see")]

mod boundary;
mod client;
mod copier;
mod error;
mod frame;
mod plain;
mod queue;
mod submit;
mod table;
mod types;

pub use client::*;
pub use copier::*;
pub use error::{mf_error, mf_error_text, mf_last_message};
pub use frame::*;
pub use plain::*;
pub use queue::*;
pub use submit::*;
pub use types::*;
