//! Access to the registers of BAR 0.

/// Access to the registers of one device. Offsets are bytes from BAR 0, multiples of the access's width (chapter 9).
///
/// An implementation decides what an access at an offset without a register does; it must not panic.
pub trait RegisterIo {
    /// Reads the 32-bit register at `offset`.
    fn read32(&mut self, offset: u32) -> u32;

    /// Writes the 32-bit register at `offset`.
    fn write32(&mut self, offset: u32, value: u32);

    /// Reads 64 bits at `offset`: in two halves, the lower one first, unless the implementation knows better.
    fn read64(&mut self, offset: u32) -> u64 {
        let low = self.read32(offset);
        u64::from(low) | u64::from(self.read32(offset.wrapping_add(4))) << 32
    }

    /// Writes 64 bits at `offset`: in two halves, the lower one first, unless the implementation knows better.
    fn write64(&mut self, offset: u32, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset.wrapping_add(4), (value >> 32) as u32);
    }
}

impl<T: RegisterIo + ?Sized> RegisterIo for &mut T {
    fn read32(&mut self, offset: u32) -> u32 {
        (**self).read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        (**self).write32(offset, value);
    }

    fn read64(&mut self, offset: u32) -> u64 {
        (**self).read64(offset)
    }

    fn write64(&mut self, offset: u32, value: u64) {
        (**self).write64(offset, value);
    }
}
