//! The driver of Intel's Data Streaming Accelerator (DSA).
//!
//! ```text
//! control   Dsa::initialize ──► configure ──► enable ──► enable_queue ──► drain_queue, abort_queue, disable_queue, reset ──► Stopped
//! data      Request ── Queue::submit, submit_batch ──► Portal ──► device ──► completion record ── Queue::poll ──► Outcome
//!                          ▲                                                                           │
//!                          └── resume ◄── the caller touches the page ◄── Outcome::Faulted ◄───────────┘
//! ```
//!
//! The two halves do not know each other. The control half needs the registers; under Linux the kernel has them, and a program has only
//! the data half: a work queue's portal, and memory that the device reaches. [`Portal`] is the way of a descriptor to the device: a store to
//! a mapped page, a `write` of a file ([`ByWrite`]), or a model.
//!
//! The driver allocates nothing, has no thread and never sleeps. A completion record is copied once, and the copy is checked against the
//! request ([`Failure::Nonsense`]): other software may have written it. The driver does not split requests and does not choose between the CPU
//! and the device. The rules are those of [`memferry_dsa_registers`]'s source. It never ran on silicon: no such machine was available.

#![no_std]

pub use memferry_dsa_registers as registers;

mod device;
mod memory;
mod outcome;
mod portal;
mod queue;
mod request;

pub use device::{
    Capabilities, CommandFailure, ConfigurationError, Dsa, Group, InitError, Interrupt, Stopped, WorkQueue,
};
pub use memory::DmaMemory;
pub use outcome::{Failure, Fault, Outcome, Value};
pub use portal::{ByWrite, DescriptorFile, Portal, Refused};
pub use queue::{Completion, Queue, QueueConfig, QueueError, ResumeError, SubmitError, Ticket};
pub use request::{Limits, Request, RequestError};

#[cfg(test)]
mod tests;
