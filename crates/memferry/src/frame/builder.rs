//! How a frame is to be allocated.

use std::sync::Arc;

use memferry_shm::frame::{self, Pages};
use memferry_shm::placement::Placement;
use memferry_transfer::Rights;

use super::Frame;
use crate::error::FrameError;
use crate::session::Session;

/// Describes a frame that [`alloc`](Self::alloc) allocates; made by [`Client::frame`](crate::Client::frame).
///
/// ```
/// use memferry::Client;
///
/// let client = Client::embedded()?;
/// let near = client.frame(1 << 20).node(0).alloc()?;
/// assert_eq!(near.length(), 1 << 20);
/// let refused = client.frame(1 << 20).node(1023).alloc().unwrap_err();
/// assert!(refused.to_string().contains("no memory node 1023"));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is allocated before `alloc`"]
pub struct FrameBuilder {
    session: Arc<Session>,
    length: u64,
    placement: Placement,
}

impl FrameBuilder {
    pub(crate) fn new(session: Arc<Session>, length: u64) -> Self {
        Self { session, length, placement: Placement::default() }
    }

    /// In huge pages of the machine's default huge size, from its pool.
    pub fn huge(mut self) -> Self {
        self.placement.pages = Pages::Huge;
        self
    }

    /// On one NUMA node.
    pub fn node(mut self, node: u32) -> Self {
        self.placement.node = Some(node);
        self
    }

    /// Allocates it: rounded up to whole pages, zeroed, with all rights.
    ///
    /// # Errors
    /// [`FrameError`]; one that names the nodes there are when the machine has no such node.
    pub fn alloc(self) -> Result<Frame, FrameError> {
        let (descriptor, mapping) = frame::allocate_placed(self.length, self.placement)?;
        let length = mapping.length_bytes() as u64;
        Frame::register(&self.session, descriptor, length, Rights::all(), Some(mapping))
    }
}

impl std::fmt::Debug for FrameBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameBuilder({} bytes, {:?})", self.length, self.placement)
    }
}
