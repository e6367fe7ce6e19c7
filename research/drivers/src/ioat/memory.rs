//! Memory that the driver and the device share: descriptors and completion words.
//!
//! ```text
//! driver ── write(address, word) ──► ring          device ── completion write ──► word ── read(address) ──► driver
//! ```
//!
//! It knows no layout: the ring's configuration says where things are.

/// Words of 64 bits at the addresses that the device uses, in the processor's byte order, which is little-endian where
/// this device is.
///
/// What was written must be visible to the device before a register write that follows, and a word that is read must be the
/// device's latest, before anything that is read after it. Addresses are multiples of eight within the memory that was given for a
/// ring.
pub trait DmaMemory {
    /// Reads the word at `address`.
    fn read(&mut self, address: u64) -> u64;

    /// Writes the word at `address`.
    fn write(&mut self, address: u64, word: u64);
}

impl<M: DmaMemory + ?Sized> DmaMemory for &mut M {
    fn read(&mut self, address: u64) -> u64 {
        (**self).read(address)
    }

    fn write(&mut self, address: u64, word: u64) {
        (**self).write(address, word);
    }
}
