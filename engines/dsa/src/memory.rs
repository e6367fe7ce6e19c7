//! Memory as the device addresses it: by the addresses of this process.

use memferry_driven_engines::{DeviceMemory, Pages};
use memferry_dsa::Fault;
use memferry_dsa::registers::PAGE_BYTES;
use memferry_engine::{Access, Mapping};
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
