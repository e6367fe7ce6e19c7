//! The frames that this process has.
//!
//! ```text
//! handle ─► mapping: memory of this process, or the name of the engine's own memory
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use memferry_shm::mapping::Mapping;
use memferry_transfer::Handle;

/// The frames of this process. Clones share them.
#[derive(Clone, Default, Debug)]
pub struct Frames(Arc<RwLock<BTreeMap<Handle, Mapping>>>);

impl Frames {
    /// The mapping of a frame, or the name of the engine's own memory; `None` if this process does not have it.
    pub fn get(&self, frame: Handle) -> Option<Mapping> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&frame).cloned()
    }

    /// All frames with their mappings.
    pub fn all(&self) -> Vec<(Handle, Mapping)> {
        let frames = self.0.read().unwrap_or_else(PoisonError::into_inner);
        frames.iter().map(|(frame, mapping)| (*frame, mapping.clone())).collect()
    }

    pub(crate) fn insert(&self, frame: Handle, mapping: Mapping) {
        // A mapping that this replaces is unmapped after the lock is released.
        let _replaced = self.0.write().unwrap_or_else(PoisonError::into_inner).insert(frame, mapping);
    }

    pub(crate) fn remove(&self, frame: Handle) -> Option<Mapping> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&frame)
    }

    /// Unmaps all that no job has.
    pub(crate) fn clear(&self) {
        let _frames = std::mem::take(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
