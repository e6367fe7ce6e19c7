//! Segments of arenas: memory that is one frame to the service and many windows to its client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memferry_shm::arena::{Block, Memfds, Registrar};
use memferry_transfer::Rights;

use super::Frame;
use crate::error::FrameError;
use crate::session::Session;

pub(super) type SegmentBlock = Block<Memfds<Segments>>;

/// Makes an arena's segments frames of a client.
pub struct Segments {
    session: Arc<Session>,
}

impl Segments {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

/// A segment's frame, which nothing can be asked of: it is memory of everybody who has a block there.
#[derive(Clone)]
pub struct SegmentFrame(pub(crate) Frame);

impl Registrar for Segments {
    type Id = SegmentFrame;
    type Error = FrameError;

    fn register(&self, descriptor: OwnedFd, length: u64) -> Result<SegmentFrame, FrameError> {
        Frame::register(&self.session, descriptor, length, Rights::all(), None).map(SegmentFrame)
    }

    fn retire(&self, segment: SegmentFrame) {
        // The last clone revokes it, which waits for whatever was abandoned there.
        drop(segment);
    }
}
