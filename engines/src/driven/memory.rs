//! Memory as a device on the interconnect addresses it.

use memferry_transfer::Memory;

/// A range of bus addresses; clones are the same range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusMemory {
    address: u32,
    length: u64,
}

impl BusMemory {
    /// `length` bytes from `address`, or `None` when they reach beyond 32 bits.
    pub const fn new(address: u32, length: u64) -> Option<Self> {
        match (address as u64).checked_add(length) {
            Some(end) if end <= 1 << 32 => Some(Self { address, length }),
            _ => None,
        }
    }

    /// Its first byte.
    pub const fn address(&self) -> u32 {
        self.address
    }
}

impl Memory for BusMemory {
    fn length(&self) -> u64 {
        self.length
    }
}
