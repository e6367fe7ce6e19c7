//! Models of DMA engines in virtual time: each simulates a device behind its registers.
//!
//! ```text
//! driver ── RegisterIo ──► model ── Bus ──► memory
//!    ▲                       │
//!    └── interrupt lines ────┘  step(now) ──► when to step again
//! ```
//!
//! A model never reads the machine's clock, never blocks, and produces the same trace for the same calls. It does not
//! depend on any driver. Its timing comes from parameters; calibrating them is left to experiments.

#![no_std]

extern crate alloc;

mod bus;
mod complaint;
mod dram;
pub mod dsa;
pub mod ioat;
mod peripheral;
pub mod sdma;

pub use bus::{Access, AccessKind, Bus, BusError, Ram};
pub use dram::{Dram, DramTiming};
pub use peripheral::WithRegister;
