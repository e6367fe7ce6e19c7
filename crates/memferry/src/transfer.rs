//! Transfers as a client describes them: a request together with the frames it keeps alive.
//!
//! ```text
//! ranges of frames ─► Transfer::copy, fill, scatter_gather, ... ─ terms ─► Queue::submit
//! ```
//!
//! What can be said without the service (lengths, counts) is checked here; rights and bounds are the service's to check.

use std::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_service::MonotonicClock;
use memferry_transfer::{
    CacheHint, Copy2d, Fill2d, Lists, MAX_SEGMENTS, MAX_SOURCES, Operation, Pattern, PriorityClass, Request,
    Segment, Span,
};
use smallvec::{SmallVec, smallvec};
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
    /// Lists of different length, or ranges that have to be equally long and are not.
    #[error("{one_bytes} bytes on one side and {other_bytes} on the other; they have to be equal")]
    Unequal {
        /// Bytes of the first.
        one_bytes: u64,
        /// Bytes of the other.
        other_bytes: u64,
    },
    /// More segments or sources than one request may name, or too few.
    #[error("{count} {what} in one transfer; there may be {least} to {most}, split it")]
    Count {
        /// What there are so many of.
        what: &'static str,
        /// How many.
        count: usize,
        /// As few as may be.
        least: usize,
        /// As many as may be.
        most: usize,
    },
}

/// What a transfer keeps alive until its completion was taken.
pub(crate) type Held = SmallVec<[Frame; 2]>;

/// What is to be moved, on which terms. Holds its frames until its completion was taken.
#[derive(Clone, Debug)]
#[must_use = "a transfer does nothing until it is submitted"]
pub struct Transfer {
    pub(crate) request: Request,
    pub(crate) held: Held,
}

impl Transfer {
    fn new(operation: Operation<Span>, held: Held) -> Self {
        Self { request: Request::new(operation), held }
    }

    /// Moves nothing and completes: measures the path. [`fenced`](Self::fenced), it is the end of all that came before.
    pub fn nop() -> Self {
        Self::new(Operation::Nop, SmallVec::new())
    }

    /// Copies the whole source to the start of the destination; they may overlap, as with `memmove` (`mem_copy` of
    /// Wicki 2014, listing 1).
    ///
    /// # Errors
    /// [`TransferError::TooShort`].
    pub fn copy(source: &FrameRange, destination: &FrameRange) -> Result<Self, TransferError> {
        fits(source, destination)?;
        let length = source.length();
        let from = source.span_for(length);
        let to = destination.span_for(length);
        let operation = Operation::Copy { source: from, destination: to, length };
        Ok(Self::new(operation, frames([source, destination])))
    }

    /// Repeats a pattern over the whole destination, whose length it must divide (`mem_fill` of Wicki 2014, listing 1).
    pub fn fill(destination: &FrameRange, pattern: Pattern) -> Self {
        let length = destination.length();
        let operation = Operation::Fill { destination: destination.span_for(length), length, pattern };
        Self::new(operation, frames([destination]))
    }

    /// Writes zeros over the whole destination.
    pub fn zero(destination: &FrameRange) -> Self {
        Self::fill(destination, Pattern::Byte(0))
    }

    /// Moves pixels (`mem_copy_2d` of Wicki 2014, listing 4). The shape's starts count from the ranges' offsets; the walk
    /// has to stay in the frames.
    pub fn copy_2d(source: &FrameRange, destination: &FrameRange, shape: Copy2d) -> Self {
        let from = source.span_for_walk(&shape.count, &shape.source);
        let to = destination.span_for_walk(&shape.count, &shape.destination);
        let operation = Operation::Copy2d { source: from, destination: to, shape };
        Self::new(operation, frames([source, destination]))
    }

    /// Writes one colour to pixels (`mem_fill_2d` of Wicki 2014, listing 4).
    pub fn fill_2d(destination: &FrameRange, shape: Fill2d) -> Self {
        let to = destination.span_for_walk(&shape.count, &shape.destination);
        Self::new(Operation::Fill2d { destination: to, shape }, frames([destination]))
    }

    /// Moves the bytes of `source`'s ranges, in order, to those of `destination`, in order; the two may be cut differently
    /// and hold equally many bytes. Piece by piece as with `memmove`: a later piece reads what an earlier one wrote.
    ///
    /// # Errors
    /// [`TransferError::Unequal`], [`TransferError::Count`].
    pub fn scatter_gather(source: &[FrameRange], destination: &[FrameRange]) -> Result<Self, TransferError> {
        counted("segments", source.len(), 0, MAX_SEGMENTS)?;
        counted("segments", destination.len(), 0, MAX_SEGMENTS)?;
        let list = |ranges: &[FrameRange]| {
            let segment = |range: &FrameRange| {
                let length = range.length();
                Segment { place: range.span_for(length), length }
            };
            ranges.iter().map(segment).collect()
        };
        let lists = Lists { source: list(source), destination: list(destination) };
        let total = |side| lists.total_bytes(side);
        equal(total(crate::Side::Source), total(crate::Side::Destination))?;
        let held = source.iter().chain(destination).map(|range| range.frame().clone()).collect();
        Ok(Self::new(Operation::ScatterGather { lists: Box::new(lists) }, held))
    }

    /// Byte by byte the exclusive or of the sources, all as long as the destination, which may be one of them.
    ///
    /// # Errors
    /// [`TransferError::Unequal`], [`TransferError::Count`].
    pub fn xor(sources: &[FrameRange], destination: &FrameRange) -> Result<Self, TransferError> {
        counted("sources", sources.len(), 1, MAX_SOURCES)?;
        let length = destination.length();
        sources.iter().try_for_each(|source| equal(source.length(), length))?;
        let held = sources.iter().chain([destination]).map(|range| range.frame().clone()).collect();
        let sources = sources.iter().map(|source| source.span_for(length)).collect();
        let operation = Operation::Xor { sources, destination: destination.span_for(length), length };
        Ok(Self::new(operation, held))
    }

    /// Finds the first byte that differs: its offset is the completion's value, or the length when there is none.
    ///
    /// # Errors
    /// [`TransferError::Unequal`].
    pub fn compare(first: &FrameRange, second: &FrameRange) -> Result<Self, TransferError> {
        equal(first.length(), second.length())?;
        let length = first.length();
        let one = first.span_for(length);
        let other = second.span_for(length);
        Ok(Self::new(Operation::Compare { first: one, second: other, length }, frames([first, second])))
    }

    /// Computes the CRC-32C of a range, going on from `seed`, the CRC of what came before (0 to begin). It is the
    /// completion's value.
    pub fn crc32c(source: &FrameRange, seed: u32) -> Self {
        let length = source.length();
        let operation = Operation::Crc { source: source.span_for(length), length, seed };
        Self::new(operation, frames([source]))
    }

    /// Copies, and computes the CRC-32C of the bytes as they were written, as [`crc32c`](Self::crc32c).
    ///
    /// # Errors
    /// [`TransferError::TooShort`].
    pub fn copy_crc32c(
        source: &FrameRange,
        destination: &FrameRange,
        seed: u32,
    ) -> Result<Self, TransferError> {
        fits(source, destination)?;
        let length = source.length();
        let from = source.span_for(length);
        let to = destination.span_for(length);
        let operation = Operation::CopyCrc { source: from, destination: to, length, seed };
        Ok(Self::new(operation, frames([source, destination])))
    }

    /// Copies one source to the start of two destinations.
    ///
    /// # Errors
    /// [`TransferError::TooShort`].
    pub fn dual_copy(source: &FrameRange, destinations: [&FrameRange; 2]) -> Result<Self, TransferError> {
        destinations.iter().try_for_each(|destination| fits(source, destination))?;
        let length = source.length();
        let to = destinations.map(|destination| destination.span_for(length));
        let operation = Operation::DualCopy { source: source.span_for(length), destinations: to, length };
        let [one, other] = destinations;
        Ok(Self::new(operation, frames([source, one, other])))
    }

    /// Begins a loop over the linked transfers submitted next, up to the first that is not linked: `rounds` times, or until
    /// [`Queue::stop`](crate::Queue::stop) when 0. All complete when the loop has ended; the value of this one's
    /// completion is the number of whole rounds. What is submitted behind a loop starts when it has ended.
    pub fn repeat(rounds: u32) -> Self {
        Self { request: Request::repeat(rounds), held: SmallVec::new() }
    }

    /// The same transfer; the next one of the queue starts when it has succeeded, and fails as it did if it fails.
    pub fn linked(mut self) -> Self {
        self.request.terms.linked = true;
        self
    }

    /// The same transfer, started when everything submitted to the queue before it has ended.
    pub fn fenced(mut self) -> Self {
        self.request.terms.fenced = true;
        self
    }

    /// The same transfer with a wish for the CPU caches.
    pub fn with_hint(mut self, hint: CacheHint) -> Self {
        self.request.terms.hint = hint;
        self
    }

    /// The same transfer in a class: who goes first when transfers wait for an engine channel.
    pub fn with_class(mut self, class: PriorityClass) -> Self {
        self.request.terms.class = class;
        self
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

fn frames<const N: usize>(ranges: [&FrameRange; N]) -> Held {
    let mut held: Held = smallvec![];
    held.extend(ranges.into_iter().map(|range| range.frame().clone()));
    held
}

fn fits(source: &FrameRange, destination: &FrameRange) -> Result<(), TransferError> {
    let source_bytes = source.length();
    let destination_bytes = destination.length();
    if source_bytes <= destination_bytes {
        Ok(())
    } else {
        Err(TransferError::TooShort { source_bytes, destination_bytes })
    }
}

fn equal(one_bytes: u64, other_bytes: u64) -> Result<(), TransferError> {
    if one_bytes == other_bytes { Ok(()) } else { Err(TransferError::Unequal { one_bytes, other_bytes }) }
}

fn counted(what: &'static str, count: usize, least: usize, most: usize) -> Result<(), TransferError> {
    let error = TransferError::Count { what, count, least, most };
    if (least..=most).contains(&count) { Ok(()) } else { Err(error) }
}
