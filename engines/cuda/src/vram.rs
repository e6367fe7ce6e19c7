//! Memory of the device.
//!
//! ```text
//! VramPool::allocate ─ quota ─ cuMemCreate ─ reserve, map, access ─ zeroed ─► Vram ─ export ─► descriptor, for another process
//!                                                                     the last place in it: unmapped, released
//! ```

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::device::Device;
use crate::driver::{Address, AllocationHandle, CallError, Code, DeviceAddress, Driver};
use crate::place::{Memory, Place};
use crate::stream::zero;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VramError {
    #[error("{length_bytes} bytes are no length for memory of the device")]
    Length { length_bytes: u64 },
    #[error(
        "{wanted_bytes} bytes of VRAM, with {left_bytes} of {quota_bytes} left in the quota: --memory sets it"
    )]
    Quota { wanted_bytes: u64, left_bytes: u64, quota_bytes: u64 },
    #[error("the device has not {wanted_bytes} bytes of VRAM left: other programs use it, see nvidia-smi")]
    Exhausted { wanted_bytes: u64 },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A quota of the device's memory, and what was allocated from it.
#[derive(Debug)]
pub struct VramPool {
    device: Arc<Device>,
    quota_bytes: u64,
    used_bytes: AtomicU64,
}

impl VramPool {
    pub fn new(device: &Arc<Device>, quota_bytes: u64) -> Arc<Self> {
        let device = Arc::clone(device);
        Arc::new(Self { device, quota_bytes, used_bytes: AtomicU64::new(0) })
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Allocates memory, zeroed: it shows nothing of its last user. The quota is charged with the length rounded up to
    /// [`Abilities::granularity_bytes`](crate::Abilities). Memory that was exported counts until it is dropped here.
    ///
    /// The call waits until the device has zeroed the memory.
    ///
    /// # Errors
    /// The quota or the device has not enough, or the driver fails.
    pub fn allocate(self: &Arc<Self>, length_bytes: u64) -> Result<Arc<Vram>, VramError> {
        let granularity = self.device.abilities().granularity_bytes;
        let rounded = length_bytes.checked_next_multiple_of(granularity);
        let mapped_bytes = rounded.filter(|length| (1..=i64::MAX as u64).contains(length));
        let mapped_bytes = mapped_bytes.ok_or(VramError::Length { length_bytes })?;
        let charge = self.charge(mapped_bytes)?;
        let exhausted = |error: CallError| match error.code {
            Code::OutOfMemory => VramError::Exhausted { wanted_bytes: mapped_bytes },
            _ => VramError::Call(error),
        };
        let handle = self.device.handle();
        let create = |driver: &Driver| driver.create(mapped_bytes, handle);
        let allocation = Allocation {
            device: Arc::clone(&self.device),
            handle: self.device.call(create).map_err(exhausted)?,
            charge: Some(charge),
        };
        let vram = Vram { range: MappedRange::new(allocation, mapped_bytes)?, length_bytes };
        zero(&self.device, vram.range.start, mapped_bytes)?;
        Ok(Arc::new(vram))
    }

    fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, VramError> {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.quota_bytes);
        match self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Charge { pool: Arc::clone(self), bytes }),
            Err(used) => Err(VramError::Quota {
                wanted_bytes: bytes,
                left_bytes: self.quota_bytes - used,
                quota_bytes: self.quota_bytes,
            }),
        }
    }
}

/// Bytes of a quota in use.
#[derive(Debug)]
struct Charge {
    pool: Arc<VramPool>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.pool.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The driver's handle of an allocation. The memory lives as long as a handle, a mapping or another process's handle of it.
#[derive(Debug)]
struct Allocation {
    device: Arc<Device>,
    handle: AllocationHandle,
    charge: Option<Charge>,
}

impl Allocation {
    /// The quota is charged for good, because the device did not give the memory back.
    fn keep_charge(&mut self) {
        std::mem::forget(self.charge.take());
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.device.lost().is_none() && self.device.call(|driver| driver.release(self.handle)).is_err() {
            self.keep_charge();
        }
    }
}

/// Device addresses, and memory behind them.
#[derive(Debug)]
struct MappedRange {
    allocation: Allocation,
    start: DeviceAddress,
    length_bytes: u64,
    is_mapped: bool,
}

impl MappedRange {
    fn new(allocation: Allocation, length_bytes: u64) -> Result<Self, CallError> {
        let device = Arc::clone(&allocation.device);
        let start = device.call(|driver| driver.reserve(length_bytes))?;
        let mut range = Self { allocation, start, length_bytes, is_mapped: false };
        device.call(|driver| driver.map(start, length_bytes, range.allocation.handle))?;
        range.is_mapped = true;
        device.call(|driver| driver.set_access(start, length_bytes, device.handle()))?;
        Ok(range)
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        let device = Arc::clone(&self.allocation.device);
        if device.lost().is_some() {
            return;
        }
        let unmapped =
            !self.is_mapped || device.call(|driver| driver.unmap(self.start, self.length_bytes)).is_ok();
        // Addresses that are still mapped must not be given away.
        if unmapped {
            _ = device.call(|driver| driver.free_range(self.start, self.length_bytes));
        } else {
            self.allocation.keep_charge();
        }
    }
}

/// Memory of the device. It stays while a place in it lives, so while a job uses it.
#[derive(Debug)]
pub struct Vram {
    range: MappedRange,
    length_bytes: u64,
}

impl Vram {
    /// Memory that another process or library exported. It is not zeroed, and counts to nobody's quota here.
    ///
    /// # Errors
    /// The descriptor is of something else, the length is wrong, or the driver fails.
    pub fn import(
        device: &Arc<Device>,
        memory: impl AsFd,
        length_bytes: u64,
    ) -> Result<Arc<Self>, VramError> {
        let granularity = device.abilities().granularity_bytes;
        let mapped_bytes = length_bytes.checked_next_multiple_of(granularity).filter(|length| *length > 0);
        let mapped_bytes = mapped_bytes.ok_or(VramError::Length { length_bytes })?;
        let handle = device.call(|driver| driver.import(memory.as_fd()))?;
        let allocation = Allocation { device: Arc::clone(device), handle, charge: None };
        let range = MappedRange::new(allocation, mapped_bytes)?;
        Ok(Arc::new(Self { range, length_bytes }))
    }

    /// A descriptor of the whole allocation, for `cuMemImportFromShareableHandle`. It gives a process the right to read and write
    /// the memory until that process ends: it cannot be taken back.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn export(&self) -> Result<OwnedFd, CallError> {
        let allocation = &self.range.allocation;
        allocation.device.call(|driver| driver.export(allocation.handle))
    }

    /// Where the device finds the first byte.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.range.start
    }

    /// The length that was asked for.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// The length of the allocation and of what [`export`](Self::export) hands out.
    pub fn mapped_bytes(&self) -> u64 {
        self.range.length_bytes
    }

    /// A range of its bytes.
    pub fn place(self: &Arc<Self>, range: Range<u64>) -> Option<Place> {
        Place::new(Arc::clone(self) as Arc<dyn Memory>, range, self.length_bytes)
    }
}

impl Memory for Vram {
    fn address(&self) -> Address {
        Address::Vram(self.range.start)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}
