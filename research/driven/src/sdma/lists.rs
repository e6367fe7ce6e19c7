//! Scatter-gather: combines independent parts into linked lists of descriptors.
//!
//! ```text
//! segments of both sides ── split at segment ends ──► parts ─┬─ independent of those before ──► batch ──► one linked list
//!                                                            └─ dependent, or no room ──► copies, one after the other
//! ```
//!
//! Wicki 2014, 5.3. The device loads a list's descriptors itself, with one interrupt for all of them. Parts are moved in
//! order, each like `memmove`. A part that reads or writes what an earlier part of the batch writes starts a new batch,
//! since the device may read ahead of writes that are still in flight.

use memferry_drivers::sdma::{
    self, ChannelConfig, LinkedList, ListOptions, Piece, Segment, Side, TransferSize,
};
use memferry_transfer::{Lists, Region};

use super::super::memory::{BusMemory, ListMemory};
use super::step::{self, Step, Work};
use memferry_driven_engines::copies::{Chunks, Cuts, Part};

/// Maximum words of a descriptor: type 2 with both addresses.
const DESCRIPTOR_WORDS: usize = 8;
/// Maximum segments of a list; each is compared with all others.
const MAX_SEGMENTS: usize = 64;
/// Maximum bytes of a segment: fits one descriptor with any element size.
const SEGMENT_BYTES: u64 = 1 << 23;

/// Descriptor memory, divided equally among the channels.
#[derive(Debug)]
pub(super) struct Shares {
    memory: Box<dyn ListMemory>,
    words: usize,
}

impl Shares {
    /// Divides the memory among `channels` channels.
    pub(super) fn new(memory: Box<dyn ListMemory>, channels: usize) -> Self {
        let words = memferry_transfer::Memory::length(&memory.memory()) / 4;
        let words = usize::try_from(words).unwrap_or(usize::MAX) / channels.max(1);
        Self { memory, words }
    }

    /// Maximum segments of a list.
    pub(super) fn segments(&self) -> usize {
        (self.words / DESCRIPTOR_WORDS).min(MAX_SEGMENTS)
    }

    /// Writes the descriptors of a channel's list; `None` if they break a rule of the driver.
    pub(super) fn write(&mut self, channel: usize, segments: &[Segment]) -> Option<LinkedList> {
        let first_word = channel * self.words;
        let place = u64::from(self.memory.memory().address()) + 4 * first_word as u64;
        let mut words = vec![0; segments.len() * DESCRIPTOR_WORDS];
        let first = segments.first()?;
        let element = Segment::element_for(segments);
        let elements = u32::try_from(first.length_bytes).ok()? / element.bytes();
        let size = TransferSize { element, elements, frames: 1 };
        let piece =
            Piece { size, source: Side::memory(first.source), destination: Side::memory(first.destination) };
        let config = ChannelConfig::new(sdma::Operation::Copy, piece);
        let list =
            LinkedList::build(&config, segments, (&mut words, place), ListOptions::default(), None).ok()?;
        self.memory.write(first_word, words.get(..list.words())?);
        Some(list)
    }
}

/// The steps of a scatter-gather list.
#[derive(Debug)]
pub(super) struct Pieces {
    cuts: Cuts,
    limit: u64,
    /// Maximum segments of a linked list.
    batch: usize,
    current: Option<Chunks>,
}

impl Pieces {
    /// Steps of about `limit` bytes at most, with up to `batch` parts in a linked list.
    pub(super) fn new(lists: &Lists<Region<BusMemory>>, limit: u64, batch: usize) -> Self {
        Self { cuts: Cuts::new(lists), limit, batch, current: None }
    }

    pub(super) fn next(&mut self) -> Option<Step> {
        if self.current.is_none() {
            let batch = self.next_batch();
            if batch.len() > 1 {
                let bytes = batch.iter().map(|segment| segment.length_bytes).sum();
                return Some(Step { work: Work::List(batch), bytes, whole: true });
            }
            let alone = batch.first().map(|segment| Part {
                source: segment.source,
                destination: segment.destination,
                bytes: segment.length_bytes,
            });
            self.current = Some(step::chunks(alone.or_else(|| self.cuts.take())?, self.limit));
        }
        let copy = self.current.as_mut()?;
        let mut step = step::next_chunk(copy)?;
        let over = copy.is_over();
        // The order within an overlapping part is visible, so its chunks count as one step.
        if copy.overlaps() {
            step.bytes = if over { copy.length() } else { 0 };
            step.whole = over;
        }
        if over {
            self.current = None;
        }
        Some(step)
    }

    /// Takes the next parts that one list may move.
    fn next_batch(&mut self) -> Vec<Segment> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < self.batch
            && let Some(Part { source, destination, bytes: length_bytes }) = self.cuts.peek()
        {
            let piece = Segment { source, destination, length_bytes };
            bytes += piece.length_bytes;
            let small = piece.length_bytes <= SEGMENT_BYTES && bytes <= self.limit;
            if !small || !is_independent(&piece, &batch) {
                break;
            }
            self.cuts.take();
            batch.push(piece);
        }
        batch
    }
}

/// Whether neither side of a part overlaps what it or one of `earlier` writes.
fn is_independent(piece: &Segment, earlier: &[Segment]) -> bool {
    let overlap = |one: u64, of: &Segment, other: u64, length: u64| {
        one < other + length && other < one + of.length_bytes
    };
    let own = overlap(piece.source, piece, piece.destination, piece.length_bytes);
    !own && earlier.iter().all(|before| {
        let written = (before.destination, before.length_bytes);
        !overlap(piece.source, piece, written.0, written.1)
            && !overlap(piece.destination, piece, written.0, written.1)
    })
}
