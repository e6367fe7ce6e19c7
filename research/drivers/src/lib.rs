//! Drivers of two DMA engines: OMAP4's SDMA and Intel's I/OAT.
//!
//! ```text
//! caller's plan ──► driver ── RegisterIo ──► registers of the device, or of its model
//!                     └────── Clock ───────► bounds every wait
//! ```
//!
//! A driver allocates no memory, has no thread and never sleeps. It uses physical addresses; its caller has already
//! checked the client's rights. It does not move bytes itself and does not depend on the models.

#![no_std]

pub mod sdma;

/// The product's, for its engine process.
pub use memferry_driver_ioat as ioat;
