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
pub struct Segments {
    session: Arc<Session>,
}

impl Segments {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

/// An opaque name of a segment's frame. It has no operations, because the memory belongs to all blocks of the segment.
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
