//! Memory as a device on the interconnect addresses it, and the memory of others behind such addresses.
//!
//! ```text
//! BusMemory::new      plain memory: any operation                       ListMemory: words that the device loads
//! BusMemory::device   a device's registers, with its request lines: synchronized transfers only     by itself
//! ```
//!
//! Who may name it is the capability table's business: a device's memory is registered for its driver's client, without the
//! right to grant it, and the lines it asks with come with it.

use memferry_transfer::{Memory, Region, Side};

/// The request lines that a device asks with, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestLines {
    /// It has something to be read.
    pub readable: Option<u8>,
    /// It has room for something to be written.
    pub writable: Option<u8>,
}

/// A range of bus addresses; clones are the same range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusMemory {
    address: u32,
    length: u64,
    device: Option<RequestLines>,
}

impl BusMemory {
    /// `length` bytes from `address`, or `None` when they reach beyond 32 bits.
    pub const fn new(address: u32, length: u64) -> Option<Self> {
        match (address as u64).checked_add(length) {
            Some(end) if end <= 1 << 32 => Some(Self { address, length, device: None }),
            _ => None,
        }
    }

    /// A device's data register (or several that ask with the same lines), or `None` when it reaches beyond 32 bits.
    pub const fn device(address: u32, length: u64, lines: RequestLines) -> Option<Self> {
        match Self::new(address, length) {
            Some(memory) => Some(Self { device: Some(lines), ..memory }),
            None => None,
        }
    }

    pub const fn address(&self) -> u32 {
        self.address
    }

    /// Whether it is a device's.
    pub const fn is_device(&self) -> bool {
        self.device.is_some()
    }

    /// The line its device asks with when it stands on `side` of a transfer.
    pub(super) fn line(&self, side: Side) -> Option<u8> {
        let lines = self.device?;
        match side {
            Side::Source => lines.readable,
            Side::Destination => lines.writable,
        }
    }
}

impl Memory for BusMemory {
    fn length(&self) -> u64 {
        self.length
    }
}

/// Where a region begins, as the device addresses it.
pub(super) fn address(region: &Region<BusMemory>) -> u64 {
    u64::from(region.memory().address()) + region.offset()
}

/// The device cannot do it: elements do not lie on multiples of their size, what must not overlap does, or a device's memory is used
/// as if it were plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unplannable;

/// Memory that belongs to the engine and that the device can read: the descriptors of linked lists go there.
pub trait ListMemory: core::fmt::Debug {
    /// Where the device finds it; a multiple of four.
    fn memory(&self) -> BusMemory;

    /// Writes words, in the processor's byte order, from the word `first` on; they lie within.
    fn write(&mut self, first: usize, words: &[u32]);
}
