//! Registers of two DMA engines: their offsets, the fields of their values, their descriptors, and readable printing.
//!
//! ```text
//! driver ──┐                                      ┌── device memory (on the board)
//!          ├── offsets, typed values ── RegisterIo ┤
//! model  ──┘                                      └── the model (in tests)
//! ```
//!
//! A driver and the model of its device share this crate and nothing else. The crate holds no state and accesses no
//! device. It checks no rule that spans registers: the driver keeps such rules, and the model reports violations.

#![no_std]

pub mod sdma;

/// Those of I/OAT, which the product's driver shares.
pub use memferry_ioat_registers as ioat;
pub use memferry_ioat_registers::{Device, NarrowIo, RegisterIo};
