//! Progress of one operation, and what each step of it needs: addresses, direction, and the guard against failing memory.

use std::borrow::Borrow;

use memferry_shm::bus_error::{MemoryFault, guarded};
use memferry_shm::mapping::Mapping;
use memferry_transfer::{Failure, Region};

use super::kernels::OutsideRegion;
use super::manner::Manner;

/// Progress of one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) done: u64,
    /// The result so far: a CRC or the length of an equal prefix.
    pub(super) value: u64,
    /// The result is final although bytes remain.
    pub(super) over: bool,
    /// How bytes are copied, once chosen.
    pub(super) manner: Option<Manner>,
    /// A team member was woken to share it.
    pub(super) woke: bool,
}

impl State {
    /// How bytes are copied.
    pub(super) fn manner(&self) -> Manner {
        self.manner.unwrap_or(Manner::Cached)
    }
}

impl From<OutsideRegion> for Failure {
    /// The descriptor was checked, so this is a bug in this crate; nothing was touched.
    fn from(_: OutsideRegion) -> Self {
        Self::ChannelFaulted
    }
}

/// Runs `access`, which touches only `mappings`, and reports failing memory.
#[inline]
pub(super) fn step<T, const N: usize>(
    mappings: [&Mapping; N],
    access: impl FnOnce() -> Result<T, OutsideRegion>,
) -> Result<T, Failure> {
    Ok(guarded(mappings, access).map_err(|MemoryFault| Failure::MemoryFault)??)
}

/// Whether a copy of `length` bytes must run from the end: its destination overlaps the source from above.
pub(super) fn runs_down<M: Borrow<Mapping>>(
    source: &Region<M>,
    destination: &Region<M>,
    length: u64,
) -> bool {
    let from = address(source);
    let to = address(destination);
    from < to && to - from < length
}

/// Address of the region in this process.
pub(super) fn address<M: Borrow<Mapping>>(region: &Region<M>) -> u64 {
    region.memory().borrow().pointer().addr() as u64 + region.offset()
}
