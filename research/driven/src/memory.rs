//! Memory as devices on the interconnect address it.
//!
//! ```text
//! BusMemory::new      plain memory: any operation
//! BusMemory::device   a device's registers with its request lines: synchronized transfers only
//! ListMemory          memory for the engine's own descriptors
//! ```
//!
//! Access rights are checked by the capability table: a device's memory is registered for its driver's client without
//! the right to grant it, together with its request lines.

use memferry_driven_engines::DeviceMemory;
use memferry_transfer::{EngineKind, Memory, Side};

/// Request lines of a device, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestLines {
    /// Asserted when the device has data to read.
    pub readable: Option<u8>,
    /// Asserted when the device has room for data.
    pub writable: Option<u8>,
}

/// A range of bus addresses. Clones denote the same range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusMemory {
    address: u32,
    length: u64,
    device: Option<RequestLines>,
}

impl BusMemory {
    /// `length` bytes from `address`; `None` if they exceed 32 bits.
    pub const fn new(address: u32, length: u64) -> Option<Self> {
        match (address as u64).checked_add(length) {
            Some(end) if end <= 1 << 32 => Some(Self { address, length, device: None }),
            _ => None,
        }
    }

    /// A device's data register (or several with the same request lines); `None` if it exceeds 32 bits.
    pub const fn device(address: u32, length: u64, lines: RequestLines) -> Option<Self> {
        match Self::new(address, length) {
            Some(memory) => Some(Self { device: Some(lines), ..memory }),
            None => None,
        }
    }

    pub const fn address(&self) -> u32 {
        self.address
    }

    /// The request line of its device, if the memory is on `side` of a transfer.
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

impl DeviceMemory for BusMemory {
    /// The range of addresses.
    const LONGEST_BYTES: u64 = 1 << 32;
    const KIND: EngineKind = EngineKind::Simulated;

    fn device_address(&self) -> u64 {
        self.address.into()
    }

    fn is_device(&self) -> bool {
        self.device.is_some()
    }
}

/// Device-readable memory owned by the engine, for the descriptors of linked lists.
pub trait ListMemory: core::fmt::Debug {
    /// Its bus address range; the address is a multiple of four.
    fn memory(&self) -> BusMemory;

    /// Writes words in the processor's byte order, starting at word `first`; they must fit.
    fn write(&mut self, first: usize, words: &[u32]);
}
