//! A user-mode 9P2000.L file server that serves from a pool of DMA-compatible buffers (Nava 1996).
//!
//! ```text
//! client ─ socket ─► worker ─► connection ─► session ─► export         attributes, names, locks: answered at once
//!                      │            └──────► transfers ─► open_file     file data: engine and read-ahead
//!                      └ ring (io_uring) ◄───────┘  buffers of one pool (memferry_pool), registered once with each ring
//! ```
//!
//! [`Server::start`] serves a directory over Unix and TCP sockets; [`Client`] is a small client for tests and measurements.
//! All file access uses the server's own user; docs/fileserver.md describes the consequences. This crate has no unsafe code.

mod accounts;
mod answers;
mod client;
mod closing;
pub mod codec;
mod connection;
mod export;
mod handover;
mod open_file;
mod options;
mod outgoing;
mod pool_files;
mod server;
mod session;
mod shared;
mod statistics;
mod transfers;
mod worker;

pub use client::{Client, ClientError};
pub use export::ExportError;
pub use options::{Access, Engine, Key, Limits, MAX_OUTSTANDING, Options, OptionsError};
pub use server::{Listener, Server, ServerError};
pub use statistics::{Statistics, WAYS, WHYS, Way, Why};
