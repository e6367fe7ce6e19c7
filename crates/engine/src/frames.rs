//! The frames that this process has.
//!
//! ```text
//! handle ─► mapping: memory of this process, or the name of the engine's own memory
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use memferry_shm::mapping::Mapping;
use memferry_transfer::Handle;

/// The frames of this process. Clones share them.
#[derive(Clone, Default, Debug)]
pub struct Frames(Arc<RwLock<BTreeMap<Handle, Frame>>>);

/// A frame of a user, who counts only for memory of the host.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) mapping: Mapping,
    pub(crate) user: u32,
}

impl Frames {
    /// The mapping of a frame, or the name of the engine's own memory; `None` if this process does not have it.
    pub fn get(&self, frame: Handle) -> Option<Mapping> {
        self.read().get(&frame).map(|frame| frame.mapping.clone())
    }

    pub(crate) fn all(&self) -> Vec<(Handle, Frame)> {
        self.read().iter().map(|(handle, frame)| (*handle, frame.clone())).collect()
    }

    pub(crate) fn insert(&self, handle: Handle, frame: Frame) {
        // A mapping that this replaces is unmapped after the lock is released.
        let _replaced = self.write().insert(handle, frame);
    }

    pub(crate) fn remove(&self, handle: Handle) -> Option<Mapping> {
        self.write().remove(&handle).map(|frame| frame.mapping)
    }

    /// Unmaps all that no job has.
    pub(crate) fn clear(&self) {
        let _frames = std::mem::take(&mut *self.write());
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Handle, Frame>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Handle, Frame>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
