//! Which mappings a device has pinned.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
/// user would end it for all. Pinning takes long: only who needs the same mapping waits for it.
#[derive(Debug, Default)]
pub(crate) struct Pinnings {
    known: Mutex<BTreeMap<usize, Pinning>>,
    /// A mapping was pinned or unpinned.
    changed: Condvar,
}

#[derive(Debug)]
struct Pinning {
    /// They keep the mapping, and so its key.
    users: usize,
    /// `None` while a user pins or unpins it.
    pinned: Option<Result<DeviceAddress, NotPinned>>,
}

impl Pinnings {
    /// Adds a user of a mapping, which the first one pins.
    pub(crate) fn enter(
        &self,
        mapping: &Mapping,
        pin: impl FnOnce() -> Result<DeviceAddress, NotPinned>,
    ) -> Result<DeviceAddress, NotPinned> {
        let key = mapping.key();
        let mut known = self.known_once_settled(key);
        if let Some(Pinning { users, pinned: Some(pinned) }) = known.get_mut(&key) {
            *users += 1;
            return pinned.clone();
        }
        known.insert(key, Pinning { users: 1, pinned: None });
        drop(known);
        let pinned = pin();
        self.known().insert(key, Pinning { users: 1, pinned: Some(pinned.clone()) });
        self.changed.notify_all();
        pinned
    }

    /// Removes a user; the last one unpins, before anyone can pin the mapping again.
    pub(crate) fn leave(&self, mapping: &Mapping, unpin: impl FnOnce()) {
        let key = mapping.key();
        let mut known = self.known_once_settled(key);
        if let Some(pinning) = known.get_mut(&key) {
            pinning.users -= 1;
            if pinning.users > 0 {
                return;
            }
            pinning.pinned = None;
        }
        drop(known);
        unpin();
        self.known().remove(&key);
        self.changed.notify_all();
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<usize, Pinning>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `known`, when nobody pins or unpins this mapping.
    fn known_once_settled(&self, key: usize) -> MutexGuard<'_, BTreeMap<usize, Pinning>> {
        let is_unsettled = |known: &mut BTreeMap<usize, Pinning>| {
            known.get(&key).is_some_and(|pinning| pinning.pinned.is_none())
        };
        self.changed.wait_while(self.known(), is_unsettled).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_waits_for_another_mapping() {
        let pinnings = Pinnings::default();
        let [first, second] = [1, 2].map(|byte| Mapping::owned(vec![byte]));
        let address = Ok(DeviceAddress(7));
        let pin = || {
            assert_eq!(pinnings.enter(&second, || address.clone()), address);
            pinnings.leave(&second, || ());
            address.clone()
        };
        assert_eq!(pinnings.enter(&first, pin), address);
    }

    #[test]
    fn a_mapping_is_pinned_once() {
        let pinnings = Pinnings::default();
        let mapping = Mapping::owned(vec![0]);
        let [pinned, unpinned] = [(); 2].map(|()| Cell::new(0));
        let enter = || {
            let pin = || {
                pinned.set(pinned.get() + 1);
                Err(NotPinned::ReadOnly)
            };
            assert_eq!(pinnings.enter(&mapping, pin), Err(NotPinned::ReadOnly));
        };
        let leave = || pinnings.leave(&mapping, || unpinned.set(unpinned.get() + 1));
        for round in 1..3 {
            enter();
            enter();
            leave();
            assert_eq!((pinned.get(), unpinned.get()), (round, round - 1));
            leave();
            assert_eq!((pinned.get(), unpinned.get()), (round, round));
        }
    }

    #[test]
    fn who_needs_the_same_mapping_waits() {
        let pinnings = Pinnings::default();
        let mapping = Mapping::owned(vec![0]);
        let address = Ok(DeviceAddress(7));
        let (entered, enters) = std::sync::mpsc::channel();
        let waits = || assert!(enters.recv_timeout(Duration::from_millis(20)).is_err());
        std::thread::scope(|scope| {
            let enter = |is_pinned: bool| {
                let entered = entered.clone();
                let pinnings = &pinnings;
                let mapping = &mapping;
                scope.spawn(move || {
                    let pin = || if is_pinned { panic!("pinned twice") } else { Err(NotPinned::ReadOnly) };
                    entered.send(pinnings.enter(mapping, pin)).unwrap();
                });
            };
            let pin = || {
                enter(true);
                waits();
                address.clone()
            };
            assert_eq!(pinnings.enter(&mapping, pin), address);
            assert_eq!(enters.recv(), Ok(address.clone()));
            pinnings.leave(&mapping, || panic!("there is another user"));
            let unpin = || {
                enter(false);
                waits();
            };
            pinnings.leave(&mapping, unpin);
            assert_eq!(enters.recv(), Ok(Err(NotPinned::ReadOnly)));
        });
    }
}
