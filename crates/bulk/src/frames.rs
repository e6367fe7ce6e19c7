//! Frames that can be lent to another process by a grant or by their memory.
//!
//! ```text
//! SharedFrame::allocate ─► memfd ─┬─ registered: a Frame ─ lent by a grant ─► the peer's engine reads it
//!                                 └─ its descriptor ─ lent mapped ─► the peer maps it, its CPU reads it
//! ```
//!
//! A descriptor cannot be revoked: a process that mapped the memory can read it until it unmaps it. A grant can be revoked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memferry::{Client, Frame, FrameError, Pages, Region};
use memferry_shm::frame;

/// A frame and the descriptor of its memory. Clones share both.
#[derive(Clone, Debug)]
pub struct SharedFrame {
    descriptor: Arc<OwnedFd>,
    frame: Frame,
}

impl SharedFrame {
    /// Allocates `length` bytes, rounded up to whole pages, zeroed.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn allocate(client: &Client, length: u64) -> Result<Self, FrameError> {
        let (descriptor, mapping) = frame::allocate(length, Pages::Ordinary)?;
        let length = mapping.length_bytes() as u64;
        let unavailable = |source| memferry_shm::frame::AllocateError::System { length, step: "dup", source };
        let registered = descriptor.try_clone().map_err(unavailable)?;
        // The client maps the memory again, then seals it against further writable mappings.
        let frame = client.register_memfd(registered, length)?;
        Ok(Self { descriptor: Arc::new(descriptor), frame })
    }

    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns a range of the frame.
    pub fn range(&self, offset: u64, length: u64) -> Region {
        self.frame.slice(offset..offset.saturating_add(length))
    }

    /// Whether both are clones of the same frame.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.descriptor, &other.descriptor)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
