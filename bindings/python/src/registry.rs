//! The mapped frames of a client by address, so that a view of a frame's buffer is recognised as that frame.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use memferry::{Frame, Region};

/// The mapped frames of a client by their first addresses.
#[derive(Default)]
pub(crate) struct FrameRegistry(Mutex<BTreeMap<usize, (usize, Frame)>>);

impl FrameRegistry {
    pub(crate) fn add(&self, start: usize, length: usize, frame: Frame) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(start, (length, frame));
    }

    pub(crate) fn remove(&self, start: usize) {
        let removed = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
        // The last clone revokes the frame, which is a message: not while the registry is locked.
        drop(removed);
    }

    /// The region of a frame that has exactly these bytes.
    pub(crate) fn find(&self, start: usize, length: usize) -> Option<Region> {
        let frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, (bytes, frame)) = frames.range(..=start).next_back()?;
        let offset = start - base;
        let end = offset.checked_add(length).filter(|end| end <= bytes)?;
        Some(frame.slice(offset as u64..end as u64))
    }
}
