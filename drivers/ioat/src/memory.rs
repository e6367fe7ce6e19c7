//! Memory that the driver and the device share: descriptors and completion words.
//!
//! ```text
//! driver ── write(address, word) ──► ring          device ── completion write ──► word ── read(address) ──► driver
//! ```
//!
//! [`RingConfig`](super::RingConfig) holds the addresses; this module knows no layout.

/// Access to 64-bit words at device addresses, in the processor's byte order. Processors with this device are
/// little-endian.
///
/// A word must be visible to the device before a later register write. A read must return the device's latest value,
/// and must not be reordered after later reads. Addresses are multiples of eight within the memory of a ring.
pub trait DmaMemory {
    fn read(&mut self, address: u64) -> u64;

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
