//! Host memory for copies, pinned where that is possible.

use std::ops::Range;
use std::sync::Arc;

use memferry_shm::mapping::{Access, Mapping};

use crate::device::Device;
use crate::driver::{Address, DeviceAddress, Driver};
use crate::pinnings::NotPinned;
use crate::place::{Memory, Place};

/// A mapping that the device may copy from and to.
///
/// The GPU reaches pinned pages by itself. Where the driver refuses to pin them, copies still work: the driver moves the bytes through
/// memory of its own, more slowly, and the call that starts a copy may wait for it. Lists then need a call for each piece.
/// It stays pinned while a place in it lives, or in another value for the same mapping.
#[derive(Debug)]
pub struct HostMemory {
    device: Arc<Device>,
    mapping: Mapping,
    pinned: Result<DeviceAddress, NotPinned>,
}

impl HostMemory {
    /// Pins a mapping, or keeps it unpinned; [`not_pinned`](Self::not_pinned) says why. Values for the same mapping share this.
    pub fn new(device: &Arc<Device>, mapping: Mapping) -> Arc<Self> {
        let pinned = device.pinnings().enter(&mapping, || pin(device, &mapping));
        Arc::new(Self { device: Arc::clone(device), mapping, pinned })
    }

    /// Whether the device pins memory that is mapped so; the driver may refuse all the same.
    pub(crate) fn can_pin(device: &Device, mapping: &Mapping) -> Result<(), NotPinned> {
        let abilities = device.abilities();
        if !abilities.pins_host_memory {
            return Err(NotPinned::Unsupported);
        }
        if mapping.access() == Access::ReadOnly && !abilities.pins_read_only {
            return Err(NotPinned::ReadOnly);
        }
        Ok(())
    }

    pub fn not_pinned(&self) -> Option<&NotPinned> {
        self.pinned.as_ref().err()
    }

    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// A range of its bytes.
    pub fn place(self: &Arc<Self>, range: Range<u64>) -> Option<Place> {
        let length = self.mapping.length_bytes() as u64;
        Place::new(Arc::clone(self) as Arc<dyn Memory>, range, length)
    }
}

impl Memory for HostMemory {
    fn address(&self) -> Address {
        let host = self.mapping.pointer() as usize;
        match self.pinned {
            Ok(device) => Address::Pinned(host, device),
            Err(_) => Address::Host(host),
        }
    }

    fn is_read_only(&self) -> bool {
        self.mapping.access() == Access::ReadOnly
    }
}

fn pin(device: &Device, mapping: &Mapping) -> Result<DeviceAddress, NotPinned> {
    HostMemory::can_pin(device, mapping)?;
    let is_read_only = mapping.access() == Access::ReadOnly;
    let register = |driver: &Driver| driver.register(mapping.pointer(), mapping.length_bytes(), is_read_only);
    device.call(register).map_err(NotPinned::Refused)
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.device.pinnings().leave(&self.mapping, || {
            // After a loss the pages stay with the device until the process ends.
            if self.pinned.is_ok() && self.device.lost().is_none() {
                _ = self.device.call(|driver| driver.unregister(self.mapping.pointer()));
            }
        });
    }
}
