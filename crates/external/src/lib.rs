//! Engines in processes of their own: what a worker of the service and an engine process share.
//!
//! ```text
//! worker  ExternalEngine ─ descriptors ─► queue pair ─► EngineEnd   engine process
//!         (an Engine)    ◄─ completions ─            ◄─ (one for all workers)
//! ```
//!
//! The queue pairs are of the same kind as those of clients ([`memferry_shm::queue_pair`]), with the service in the client's place: it
//! submits requests that were admitted, and an engine process completes them. Requests name frames by handles that only this engine
//! has. Each side writes one memory, which all workers share ([`layout`]).
//!
//! The service trusts an engine process with the bytes of the frames that it maps and with nothing else. [`ExternalEngine`] checks all
//! that comes back: an engine that breaks a rule is [faulty](ExternalEngine::fault), and the service ends its connection.
//!
//! How an engine process connects and how it gets frames is control: `memferry-service` and `memferry-daemon` on one side,
//! `memferry-engine` on the other. docs/engines.md describes the whole.

pub mod layout;

mod description;
mod engine_end;
mod worker_end;

pub use description::{DescriptionError, EngineDescription};
pub use engine_end::{EngineEnd, Refused, Work, WorkId};
pub use worker_end::{ExternalEngine, ExternalFrame, Fault, Lost};

#[cfg(test)]
mod tests;
