//! Registers of DMA engines: where they are, what their bits mean, and how to say it in plain words.
//!
//! ```text
//! driver ──┐                                      ┌── device memory (on the board)
//!          ├── offsets, typed values ── RegisterIo ┤
//! model  ──┘                                      └── the model (in tests)
//! ```
//!
//! A driver and the model of its device share this crate and nothing else. It holds no state, makes no access of its
//! own, and checks no rule that spans registers: such rules belong to the driver that obeys them and to the model that
//! reports when they are broken.

#![no_std]

pub mod sdma;

/// Access to the registers of one device, 32 bits at a time.
///
/// Offsets are bytes from the device's base address and are multiples of four. An implementation decides what an
/// offset without a register does; it must not panic, since a driver's mistake is not the bus's.
pub trait RegisterIo {
    /// Reads the register at `offset`.
    fn read(&mut self, offset: u32) -> u32;

    /// Writes `value` to the register at `offset`.
    fn write(&mut self, offset: u32, value: u32);
}

impl<T: RegisterIo + ?Sized> RegisterIo for &mut T {
    fn read(&mut self, offset: u32) -> u32 {
        (**self).read(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        (**self).write(offset, value);
    }
}
