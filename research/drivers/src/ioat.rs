//! The driver of Intel's I/OAT engine, versions 2 and 3.
//!
//! ```text
//! Ioat::initialize ──► take ──► Channel ── open (validate, reset, ring) ──► armed
//! Request ── write (validate) ──► descriptors in the ring ── ring_doorbell ──► DMACOUNT ──► the device follows the chain
//! completion write ──► poll ──► Progress          interrupt line ──► handle_interrupt ──► channels to look at
//! suspend, resume ──► acknowledged in CHANSTS     failure ──► recover (bounded reset), or the channel is quarantined
//! ```
//!
//! Each channel has a ring of descriptors, linked once and for all, in memory that its owner gives; a count tells the device how many are
//! valid. The driver does not queue requests, cut them, or choose who gets a channel, and it trusts neither completion word
//! nor registers: what they say is only taken where it can be. Sources of the rules are those of
//! [`memferry_registers::ioat`].

mod channels;
mod device;
mod interrupt;
mod memory;
mod request;
mod ring;
mod stop;
mod validate;

pub use channels::{Channel, TakeError};
pub use device::{InitError, Ioat, OpenError};
pub use interrupt::Handled;
pub use memory::DmaMemory;
pub use request::{Notice, Operation, Request, RingConfig};
pub use ring::{Failure, Progress, WriteError};
pub use stop::{ResumeError, StopError};
pub use validate::{Limits, RequestError, RingError};

#[cfg(test)]
mod tests;
