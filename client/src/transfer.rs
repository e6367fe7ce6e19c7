//! Transfers as a client describes them: a request together with the frames it keeps alive.

use std::time::Duration;

use memferry_broker::MonotonicClock;
use memferry_clock::{Clock, Instant};
use memferry_transfer::{Copy2d, Fill2d, Operation, Pattern, Request};
use thiserror::Error;

use crate::frame::{Frame, FrameRange};

/// A transfer that cannot be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TransferError {
    /// The destination is shorter than the source.
    #[error("{source_bytes} bytes do not fit the destination's {destination_bytes}")]
    TooShort {
        /// Bytes of the source.
        source_bytes: u64,
        /// Bytes of the destination.
        destination_bytes: u64,
    },
}

/// What is to be moved, on which terms. Holds its frames until its completion was taken.
#[derive(Clone, Debug)]
#[must_use = "a transfer does nothing until it is submitted"]
pub struct Transfer {
    pub(crate) request: Request,
    pub(crate) frames: [Option<Frame>; 2],
}

impl Transfer {
    /// Moves nothing and completes: measures the path.
    pub fn nop() -> Self {
        Self { request: Request::new(Operation::Nop), frames: [None, None] }
    }

    /// Copies the whole source to the start of the destination; they may overlap, as with `memmove` (`mem_copy` of
    /// Wicki 2014, listing 1).
    ///
    /// # Errors
    /// [`TransferError::TooShort`].
    pub fn copy(source: &FrameRange, destination: &FrameRange) -> Result<Self, TransferError> {
        let (source_bytes, destination_bytes) = (source.length(), destination.length());
        if source_bytes > destination_bytes {
            return Err(TransferError::TooShort { source_bytes, destination_bytes });
        }
        let request =
            Request::copy(source.span_for(source_bytes), destination.span_for(source_bytes), source_bytes);
        Ok(Self { request, frames: [Some(source.frame().clone()), Some(destination.frame().clone())] })
    }

    /// Repeats a pattern over the whole destination, whose length it must divide (`mem_fill` of Wicki 2014, listing 1).
    pub fn fill(destination: &FrameRange, pattern: Pattern) -> Self {
        let request =
            Request::fill(destination.span_for(destination.length()), destination.length(), pattern);
        Self { request, frames: [Some(destination.frame().clone()), None] }
    }

    /// Moves pixels (`mem_copy_2d` of Wicki 2014, listing 4). The shape's starts count from the ranges' offsets; the walk
    /// has to stay in the frames.
    pub fn copy_2d(source: &FrameRange, destination: &FrameRange, shape: Copy2d) -> Self {
        let from = source.span_for_walk(&shape.count, &shape.source);
        let to = destination.span_for_walk(&shape.count, &shape.destination);
        let request = Request::copy_2d(from, to, shape);
        Self { request, frames: [Some(source.frame().clone()), Some(destination.frame().clone())] }
    }

    /// Writes one colour to pixels (`mem_fill_2d` of Wicki 2014, listing 4).
    pub fn fill_2d(destination: &FrameRange, shape: Fill2d) -> Self {
        let to = destination.span_for_walk(&shape.count, &shape.destination);
        let request = Request::fill_2d(to, shape);
        Self { request, frames: [Some(destination.frame().clone()), None] }
    }

    /// The same transfer, refused instead of queued when all engine channels are busy.
    pub fn refuse_when_busy(mut self) -> Self {
        self.request = self.request.refuse_when_busy();
        self
    }

    /// The same transfer, given up at `deadline` of the [`MonotonicClock`].
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.request = self.request.with_deadline(deadline);
        self
    }

    /// The same transfer, given up `limit` from now.
    pub fn within(self, limit: Duration) -> Self {
        self.with_deadline(MonotonicClock.now().after(limit))
    }

    /// The request as the service sees it.
    pub fn request(&self) -> &Request {
        &self.request
    }
}
