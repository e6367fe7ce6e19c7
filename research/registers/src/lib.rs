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

pub mod ioat;
pub mod sdma;

use memferry_clock::Instant;

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

/// Access to registers narrower than 32 bits, for devices that keep several in one word.
///
/// Neighbours are not touched: where a read has an effect, or a write starts something, the width of the access matters.
pub trait NarrowIo: RegisterIo {
    /// Reads the 8-bit register at `offset`.
    fn read8(&mut self, offset: u32) -> u8;

    /// Writes the 8-bit register at `offset`.
    fn write8(&mut self, offset: u32, value: u8);

    /// Reads the 16-bit register at `offset`, a multiple of two.
    fn read16(&mut self, offset: u32) -> u16;

    /// Writes the 16-bit register at `offset`, a multiple of two.
    fn write16(&mut self, offset: u32, value: u16);
}

/// A device behind registers that works by itself, in a time that it is told: a model's is virtual. For a real one `advance`
/// has nothing to do.
pub trait Device: RegisterIo {
    /// Lets everything happen that is due until `now`.
    fn advance(&mut self, now: Instant);

    /// Its present: the latest instant it was advanced to.
    fn now(&self) -> Instant;

    /// When the next thing happens by itself.
    fn next_wake(&self) -> Option<Instant>;

    /// Whether interrupt line `line` is high; lines that do not exist never are.
    fn is_high(&self, line: usize) -> bool;
}

impl<T: RegisterIo + ?Sized> RegisterIo for &mut T {
    fn read(&mut self, offset: u32) -> u32 {
        (**self).read(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        (**self).write(offset, value);
    }
}

impl<T: NarrowIo + ?Sized> NarrowIo for &mut T {
    fn read8(&mut self, offset: u32) -> u8 {
        (**self).read8(offset)
    }

    fn write8(&mut self, offset: u32, value: u8) {
        (**self).write8(offset, value);
    }

    fn read16(&mut self, offset: u32) -> u16 {
        (**self).read16(offset)
    }

    fn write16(&mut self, offset: u32, value: u16) {
        (**self).write16(offset, value);
    }
}
