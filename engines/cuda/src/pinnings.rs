//! Which mappings a device has pinned.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry_shm::mapping::Mapping;
use thiserror::Error;

use crate::driver::{CallError, DeviceAddress};

/// Why memory is not pinned.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NotPinned {
    #[error("the device cannot pin host memory")]
    Unsupported,
    #[error("the device cannot pin host memory that is mapped read-only")]
    ReadOnly,
    #[error(transparent)]
    Refused(#[from] CallError),
}

/// Mappings in use by a device, by [`Mapping::key`]. Each is pinned once: the driver refuses a second time, and unpinning for one
/// user would end it for all.
#[derive(Debug, Default)]
pub(crate) struct Pinnings(Mutex<BTreeMap<usize, Pinning>>);

#[derive(Debug)]
struct Pinning {
    /// They keep the mapping, and so its key.
    users: usize,
    pinned: Result<DeviceAddress, NotPinned>,
}

impl Pinnings {
    /// Adds a user of a mapping, which the first one pins.
    pub(crate) fn enter(
        &self,
        mapping: &Mapping,
        pin: impl FnOnce() -> Result<DeviceAddress, NotPinned>,
    ) -> Result<DeviceAddress, NotPinned> {
        let mut pinnings = self.lock();
        let pinning = pinnings.entry(mapping.key()).or_insert_with(|| Pinning { users: 0, pinned: pin() });
        pinning.users += 1;
        pinning.pinned.clone()
    }

    /// Removes a user; the last one unpins, before anyone can pin the mapping again.
    pub(crate) fn leave(&self, mapping: &Mapping, unpin: impl FnOnce()) {
        let mut pinnings = self.lock();
        let key = mapping.key();
        if let Some(pinning) = pinnings.get_mut(&key) {
            pinning.users -= 1;
            if pinning.users > 0 {
                return;
            }
        }
        unpin();
        pinnings.remove(&key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Pinning>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
