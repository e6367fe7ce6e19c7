//! Segments of arenas: each is one frame for the service and many windows for the client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memferry_shm::arena::{Block, Memfds, Registrar};
use memferry_transfer::Rights;

use super::Frame;
use crate::error::FrameError;
use crate::session::Session;

pub(super) type SegmentBlock = Block<Memfds<Segments>>;

/// Registers the segments of an arena as frames of a client.
///
/// ```
/// use memferry::{ArenaOptions, Client, FrameAllocator, Segments};
/// use memferry_shm::arena::{Arena, Memfds};
///
/// let arena = Client::embedded()?.arena(ArenaOptions::default())?;
/// // The allocator of collections, written out: memfds that these register.
/// let allocator: Arena<Memfds<Segments>> = arena.allocator();
/// assert_eq!(FrameAllocator::statistics(&allocator).segments, 0);
/// # Ok::<(), memferry::Error>(())
/// ```
pub struct Segments {
    session: Arc<Session>,
}

impl Segments {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

/// An opaque name of a segment's frame. It has no operations, because the memory belongs to all blocks of the segment.
///
/// ```
/// use memferry::{ArenaOptions, Client, SegmentFrame};
///
/// let allocator = Client::embedded()?.arena(ArenaOptions::default())?.allocator();
/// let mut list = allocator_api2::vec::Vec::new_in(allocator.clone());
/// list.extend_from_slice(b"here");
/// let found: Option<(SegmentFrame, u64)> = allocator.locate_slice(&list);
/// assert!(found.is_some(), "the list lies in a segment");
/// assert!(allocator.locate_slice(b"elsewhere").is_none());
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct SegmentFrame(pub(crate) Frame);

impl Registrar for Segments {
    type Id = SegmentFrame;
    type Error = FrameError;

    fn register(&self, descriptor: OwnedFd, length: u64) -> Result<SegmentFrame, FrameError> {
        Frame::register(&self.session, descriptor, length, Rights::all(), None).map(SegmentFrame)
    }

    fn retire(&self, segment: SegmentFrame) {
        // Dropping the last clone revokes the frame, which waits for transfers on abandoned blocks.
        drop(segment);
    }
}
