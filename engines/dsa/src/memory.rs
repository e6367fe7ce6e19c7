//! Memory as the device addresses it: by the addresses of this process.

use std::sync::atomic::Ordering;

use memferry_driven_engines::{DeviceMemory, Pages};
use memferry_dsa::registers::PAGE_BYTES;
use memferry_dsa::{DmaMemory, Fault};
use memferry_engine::{Access, Mapping};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::{EngineKind, Memory};

use crate::linux::populate;

/// Memory of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    address: u64,
    bytes: u64,
}

impl Reached {
    /// `None` for memory that is elsewhere, where this process has only addresses.
    pub(crate) fn of(memory: &Mapping) -> Option<Self> {
        let address = memory.pointer().expose_provenance() as u64;
        let is_here = memory.access() != Access::Elsewhere;
        is_here.then_some(Self { address, bytes: memory.length_bytes() as u64 })
    }
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
        self.address
    }
}

/// The processor's access to completion records and lists.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) words: MappedWords,
    pub(crate) base: u64,
}

impl Records {
    /// The number of the word at an address; `None` outside.
    fn index(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.checked_sub(self.base)? / 8).ok()?;
        (index < self.words.words()).then_some(index)
    }
}

impl DmaMemory for Records {
    fn read(&mut self, address: u64) -> u64 {
        self.index(address).map_or(0, |index| self.words.word(index).load(Ordering::Acquire))
    }

    fn write(&mut self, address: u64, word: u64) {
        if let Some(index) = self.index(address) {
            self.words.word(index).store(word, Ordering::Release);
        }
    }
}

/// Makes pages present for the device. One that cannot be, as behind the end of a file, is the failure of its request only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch;

impl Pages for Touch {
    fn touch(&mut self, fault: &Fault) -> bool {
        // The driver has checked that it is in a page of the request.
        let page = fault.address.and_then(|address| usize::try_from(address & !(PAGE_BYTES - 1)).ok());
        page.is_some_and(|page| populate(page, PAGE_BYTES as usize, fault.write).is_ok())
    }
}
