//! The processor's access to completion records and lists of descriptors.

/// Memory that driver and device share, in 64-bit words. Addresses are the device's, multiples of eight, inside what the driver was given.
///
/// A read must fetch the word from memory once, and words that are read later must not be older (acquire). Writes must be visible to the
/// device before a later submission.
pub trait DmaMemory {
    fn read(&mut self, address: u64) -> u64;
    fn write(&mut self, address: u64, word: u64);
}

impl<T: DmaMemory + ?Sized> DmaMemory for &mut T {
    fn read(&mut self, address: u64) -> u64 {
        (**self).read(address)
    }

    fn write(&mut self, address: u64, word: u64) {
        (**self).write(address, word);
    }
}
