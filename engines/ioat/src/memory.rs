//! Memory as the device addresses it: frames, and the rings of its channels.

use std::sync::atomic::Ordering;

use memferry_driven_engines::DeviceMemory;
use memferry_driver_ioat::DmaMemory;
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::{EngineKind, Memory};

/// Memory that is mapped for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    pub(crate) iova: u64,
    pub(crate) bytes: u64,
}

impl Memory for Reached {
    fn length(&self) -> u64 {
        self.bytes
    }
}

impl DeviceMemory for Reached {
    /// As much as a service submits.
    const LONGEST_BYTES: u64 = 1 << 40;
    const KIND: EngineKind = EngineKind::External;

    fn device_address(&self) -> u64 {
        self.iova
    }
}

/// The processor's access to the rings, by the device's addresses.
#[derive(Debug)]
pub(crate) struct RingWords {
    pub(crate) words: MappedWords,
    pub(crate) iova: u64,
}

impl RingWords {
    /// The number of the word at an address; `None` outside.
    fn index(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.checked_sub(self.iova)? / 8).ok()?;
        (index < self.words.words()).then_some(index)
    }
}

impl DmaMemory for RingWords {
    fn read(&mut self, address: u64) -> u64 {
        self.index(address).map_or(0, |index| self.words.word(index).load(Ordering::Acquire))
    }

    fn write(&mut self, address: u64, word: u64) {
        if let Some(index) = self.index(address) {
            self.words.word(index).store(word, Ordering::Release);
        }
    }
}
