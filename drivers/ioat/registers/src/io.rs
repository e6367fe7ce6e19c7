//! Access to a device's registers, and what a driver sees of a device besides them.
//!
//! ```text
//! driver ──┐                       ┌── device memory (on the board, or of a PCI device)
//!          ├── offsets, values ── RegisterIo
//! model  ──┘                       └── the model (in tests)
//! ```

use memferry_clock::Instant;

/// Access to the registers of one device, 32 bits at a time.
///
/// Offsets are bytes from the device's base address and are multiples of four. An implementation decides what an
/// access at an offset without a register does; it must not panic.
pub trait RegisterIo {
    /// Reads the register at `offset`.
    fn read(&mut self, offset: u32) -> u32;

    /// Writes `value` to the register at `offset`.
    fn write(&mut self, offset: u32, value: u32);
}

/// Access to 8-bit and 16-bit registers, for devices that keep several registers in one 32-bit word.
///
/// An access touches no neighbouring register, whose reads may have side effects and whose writes may start a command.
pub trait NarrowIo: RegisterIo {
    /// Reads the 8-bit register at `offset`.
    fn read8(&mut self, offset: u32) -> u8;

    /// Writes the 8-bit register at `offset`.
    fn write8(&mut self, offset: u32, value: u8);

    /// Reads the 16-bit register at `offset`, a multiple of two.
    fn read16(&mut self, offset: u32) -> u16;

    /// Writes the 16-bit register at `offset`, a multiple of two.
    fn write16(&mut self, offset: u32, value: u16);

    /// Clears the errors that the device keeps outside its registers, such as in PCI configuration space, as far as the holder reaches them.
    /// A device that keeps some may stay halted until then. The default does nothing, for one that keeps none.
    fn clear_other_errors(&mut self) {}
}

/// A device that works on its own between register accesses.
///
/// A model runs in virtual time, which [`advance`](Self::advance) sets. On a real device `advance` does nothing.
pub trait Device: RegisterIo {
    /// Runs every event that is due at or before `now`.
    fn advance(&mut self, now: Instant);

    /// The latest instant passed to [`advance`](Self::advance).
    fn now(&self) -> Instant;

    /// The instant of the device's next event; `None` when none is scheduled.
    fn next_wake(&self) -> Option<Instant>;

    /// Whether interrupt line `line` is high; `false` for a line that does not exist.
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

    fn clear_other_errors(&mut self) {
        (**self).clear_other_errors();
    }
}
