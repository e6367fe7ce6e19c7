//! The processor's access to memory that it shares with a device: rings, completion records, lists of descriptors.
//!
//! ```text
//! the device's address ─► index, checked ─► atomic word: loads acquire, stores release
//! ```
//!
//! One type serves both drivers, each through its own trait.

use std::sync::atomic::Ordering;

use memferry_shm::storage::RingStorage;

/// Words from a device address on. Outside of them, reads give zero and writes are dropped: drivers compute addresses from their
/// own configuration, and a mistake there must not become an access elsewhere.
#[derive(Clone, Debug)]
pub struct DeviceWords<S> {
    words: S,
    first: u64,
}

impl<S: RingStorage> DeviceWords<S> {
    /// The first of `words` is at the device's address `first`, a multiple of eight.
    pub const fn new(words: S, first: u64) -> Self {
        Self { words, first }
    }

    /// The number of the word at an address; `None` outside.
    fn index(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.checked_sub(self.first)? / 8).ok()?;
        (index < self.words.words()).then_some(index)
    }

    fn load(&self, address: u64) -> u64 {
        self.index(address).map_or(0, |index| self.words.word(index).load(Ordering::Acquire))
    }

    fn store(&self, address: u64, word: u64) {
        if let Some(index) = self.index(address) {
            self.words.word(index).store(word, Ordering::Release);
        }
    }
}

impl<S: RingStorage> memferry_driver_ioat::DmaMemory for DeviceWords<S> {
    fn read(&mut self, address: u64) -> u64 {
        self.load(address)
    }

    fn write(&mut self, address: u64, word: u64) {
        self.store(address, word);
    }
}

impl<S: RingStorage> memferry_dsa::DmaMemory for DeviceWords<S> {
    fn read(&mut self, address: u64) -> u64 {
        self.load(address)
    }

    fn write(&mut self, address: u64, word: u64) {
        self.store(address, word);
    }
}

#[cfg(test)]
mod tests {
    use memferry_dsa::DmaMemory;
    use memferry_shm::storage::HeapWords;

    use super::*;

    const FIRST: u64 = 0x1000;

    #[test]
    fn words_lie_at_the_devices_addresses() {
        let memory = HeapWords::zeroed(4);
        let mut words = DeviceWords::new(memory.clone(), FIRST);
        for (at, word) in [(0, 7), (8, 8), (24, u64::MAX)] {
            words.write(FIRST + at, word);
            assert_eq!(words.read(FIRST + at), word);
        }
        let there: Vec<u64> = (0..4).map(|index| memory.word(index).load(Ordering::Relaxed)).collect();
        assert_eq!(there, [7, 8, 0, u64::MAX]);
    }

    #[test]
    fn nothing_is_accessed_outside() {
        let memory = HeapWords::zeroed(2);
        let mut words = DeviceWords::new(memory.clone(), FIRST);
        for outside in [0, FIRST - 8, FIRST - 1, FIRST + 16, u64::MAX] {
            words.write(outside, 1);
            assert_eq!(words.read(outside), 0, "{outside:#x}");
        }
        assert!((0..2).all(|index| memory.word(index).load(Ordering::Relaxed) == 0));
        let mut last = DeviceWords::new(memory, u64::MAX - 15);
        last.write(u64::MAX - 7, 5);
        assert_eq!((last.read(u64::MAX - 7), last.read(0)), (5, 0));
    }
}
