//! Drivers of DMA engines.
//!
//! ```text
//! caller's plan ──► driver ── RegisterIo ──► the device's registers, or the model behind the same registers
//!                     └────── Clock ───────► how long a wait may take
//! ```
//!
//! A driver allocates nothing, keeps no thread and never sleeps. It knows physical addresses only: which client may
//! name which memory was decided before. It moves no bytes itself, and it does not know the models.

#![no_std]

pub mod ioat;
pub mod sdma;
