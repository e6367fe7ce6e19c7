//! The driver of Intel's I/OAT engine, versions 2 and 3.
//!
//! ```text
//! Ioat::initialize ──► take ──► Channel ── open (validate, reset, ring) ──► armed
//! Request ── write (validate) ──► descriptors in the ring ── ring_doorbell ──► DMACOUNT ──► the device follows the chain
//! completion write ──► poll ──► Progress          interrupt line ──► handle_interrupt ──► channels to poll
//! suspend, resume ──► acknowledged in CHANSTS     failure ──► recover (bounded reset), or the channel is quarantined
//! ```
//!
//! Each channel has a ring of linked descriptors in memory that the channel's owner provides. DMACOUNT gives the device
//! the number of valid descriptors. The driver does not queue or split requests, and it does not assign channels to
//! clients. It ignores positions in the completion word and in the registers that are impossible. The sources of the
//! rules are those of [`memferry_ioat_registers`].

#![no_std]

mod channels;
mod device;
mod interrupt;
mod memory;
mod request;
mod ring;
mod stop;
mod validate;

pub use channels::{Channel, StopError, TakeError};
pub use device::{InitError, Ioat, OpenError};
pub use interrupt::Handled;
pub use memory::DmaMemory;
pub use request::{Notice, Operation, Request, RingConfig};
pub use ring::{Failure, Progress, WriteError};
pub use stop::ResumeError;
pub use validate::{Limits, RequestError, RingError};

#[cfg(test)]
mod tests;
