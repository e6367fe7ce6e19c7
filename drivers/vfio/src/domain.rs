//! What a device reaches: the mappings of its IOMMU.

use std::io;
use std::ops;

use memferry_shm::mapping::Mapping;

/// A memory region of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bar {
    pub bytes: u64,
    pub can_be_mapped: bool,
}

/// Addresses from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub first: u64,
    pub last: u64,
}

/// The IOMMU's mappings for one device: what it can reach.
pub trait Domain: Send + Sync {
    /// The addresses that the IOMMU can map, in order.
    fn ranges(&self) -> Vec<Range>;

    /// The smallest page that the IOMMU and the processor share.
    fn page_bytes(&self) -> u64;

    /// Lets the device reach a piece of `memory`, whole pages, for writing only if `memory` may be written. The first byte of `memory`, not
    /// of the piece, is at `iova`. The pages are pinned.
    ///
    /// # Errors
    /// Those of the call; nothing more is mapped then.
    fn map(&self, iova: u64, memory: &Mapping, piece: ops::Range<u64>) -> io::Result<()>;

    /// Ends the device's access to the first `bytes` of `memory`, all that was mapped of it, in one or more pieces. When this returns, no
    /// access is on its way.
    ///
    /// # Errors
    /// Those of the call.
    fn unmap(&self, iova: u64, memory: &Mapping, bytes: u64) -> io::Result<()>;
}

/// Bytes of the pages that a mapping of memory takes.
pub fn whole_pages(memory: &Mapping, page_bytes: u64) -> u64 {
    (memory.length_bytes() as u64).next_multiple_of(page_bytes)
}
