//! Models of DMA engines: what a device does behind its registers, in virtual time.
//!
//! ```text
//! driver ── RegisterIo ──► model ── Bus ──► memory
//!    ▲                       │
//!    └── interrupt lines ────┘  step(now) ──► when to step again
//! ```
//!
//! A model never reads the machine's clock, never blocks, and gives the same trace for the same calls. It knows no
//! driver. Its times come from parameters; calibrating them is not its business.

#![no_std]

extern crate alloc;

mod bus;
mod complaint;
mod dram;
pub mod ioat;
mod peripheral;
pub mod sdma;

pub use bus::{Access, AccessKind, Bus, BusError, Ram};
pub use dram::{Dram, DramTiming};
pub use peripheral::WithRegister;
