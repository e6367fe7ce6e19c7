//! Scatter-gather: the pieces that the two cuts make, as linked lists of descriptors where they do not depend on one another.
//!
//! ```text
//! segments of both sides ── shorter of the two ──► pieces ─┬─ apart from those before ──► batch ──► one linked list
//!                                                          └─ overlapping, or no room ──► copies, one after the other
//! ```
//!
//! Wicki 2014, 5.3. The device loads a list's descriptors by itself, which costs one interrupt for all of them. Pieces are
//! moved in order, each as by `memmove`, so one that reads or writes what an earlier one of the batch writes begins a new
//! batch: the device may read on before all it has written has arrived.

use memferry_drivers::sdma::{
    self, ChannelConfig, LinkedList, ListOptions, Piece, Segment, Side, TransferSize,
};
use memferry_transfer::{Lists, Region};

use super::super::copies::{Chunks, Cuts, Part};
use super::super::memory::{BusMemory, ListMemory};
use super::plan::{self, Step, Work};

/// Words that a descriptor takes at most: type 2 with both addresses.
const DESCRIPTOR_WORDS: usize = 8;
/// Segments of one list at most: each is compared with all others.
const MOST_SEGMENTS: usize = 64;
/// Bytes of a segment at most, so that one descriptor holds it whatever its elements.
const SEGMENT_BYTES: u64 = 1 << 23;

/// Each channel's part of the memory for descriptors.
#[derive(Debug)]
pub(super) struct Shares {
    memory: Box<dyn ListMemory>,
    words: usize,
}

impl Shares {
    /// Divides the memory among so many channels.
    pub(super) fn new(memory: Box<dyn ListMemory>, channels: usize) -> Self {
        let words = memferry_transfer::Memory::length(&memory.memory()) / 4;
        let words = usize::try_from(words).unwrap_or(usize::MAX) / channels.max(1);
        Self { memory, words }
    }

    /// Segments that a list may have.
    pub(super) fn segments(&self) -> usize {
        (self.words / DESCRIPTOR_WORDS).min(MOST_SEGMENTS)
    }

    /// Writes the descriptors of a channel's list; `None` when they break a rule of the driver.
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

/// The copies of a scatter-gather list.
#[derive(Debug)]
pub(super) struct Pieces {
    cuts: Cuts,
    limit: u64,
    /// Segments that a linked list may have.
    batch: usize,
    present: Option<Chunks>,
}

impl Pieces {
    /// Copies of at most about `limit` bytes, `batch` of them in one linked list.
    pub(super) fn new(lists: &Lists<Region<BusMemory>>, limit: u64, batch: usize) -> Self {
        Self { cuts: Cuts::new(lists), limit, batch, present: None }
    }

    pub(super) fn next(&mut self) -> Option<Step> {
        if self.present.is_none() {
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
            self.present = Some(plan::chunks(alone.or_else(|| self.cuts.take())?, self.limit));
        }
        let copy = self.present.as_mut()?;
        let mut step = plan::next_of(copy)?;
        let over = copy.is_over();
        // In which order an overlapping piece is moved shows: it counts as one.
        if copy.overlaps() {
            step.bytes = if over { copy.length() } else { 0 };
            step.whole = over;
        }
        if over {
            self.present = None;
        }
        Some(step)
    }

    /// The pieces from here on that one list may move.
    fn next_batch(&mut self) -> Vec<Segment> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < self.batch
            && let Some(Part { source, destination, bytes: length_bytes }) = self.cuts.peek()
        {
            let piece = Segment { source, destination, length_bytes };
            bytes += piece.length_bytes;
            let small = piece.length_bytes <= SEGMENT_BYTES && bytes <= self.limit;
            if !small || !stands_apart(&piece, &batch) {
                break;
            }
            self.cuts.take();
            batch.push(piece);
        }
        batch
    }
}

/// Whether a piece neither reads nor writes what it or one of `earlier` writes.
fn stands_apart(piece: &Segment, earlier: &[Segment]) -> bool {
    let meet = |one: u64, of: &Segment, other: u64, length: u64| {
        one < other + length && other < one + of.length_bytes
    };
    let own = meet(piece.source, piece, piece.destination, piece.length_bytes);
    !own && earlier.iter().all(|before| {
        let written = (before.destination, before.length_bytes);
        !meet(piece.source, piece, written.0, written.1)
            && !meet(piece.destination, piece, written.0, written.1)
    })
}
