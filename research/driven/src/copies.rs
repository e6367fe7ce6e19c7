//! How a copy and a scatter-gather list are cut into parts, whatever device moves them.
//!
//! ```text
//! source, destination, length ─► Chunks ─ next ─► Part ─ moved(bytes) ─► from the end when that would overwrite what is to be read
//! two lists of segments ───────► Cuts ─── peek ─► Part ─ take ─────────► the shorter of the two segments that are next
//! ```
//!
//! What a device is asked for is its plan's concern, and so is how soon one part may follow another.

use memferry_transfer::{Lists, Region, Segment};

use super::memory::{BusMemory, address};

/// Bytes that go from one bus address to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) bytes: u64,
}

/// A copy of contiguous bytes, a chunk at a time.
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    whole: Part,
    done: u64,
    chunk: u64,
    down: bool,
}

impl Chunks {
    /// Chunks of at most `limit` bytes, and of at most `downward` where it goes from the end.
    pub(super) fn new(whole: Part, limit: u64, downward: u64) -> Self {
        let Part { source, destination, bytes } = whole;
        let distance = source.abs_diff(destination);
        let down = source < destination && distance < bytes;
        // Within a chunk a device reads ahead of what it writes: its two sides must be apart.
        let chunk = if distance == 0 || distance >= bytes { limit } else { limit.min(distance) };
        let chunk = if down { chunk.min(downward) } else { chunk };
        Self { whole, done: 0, chunk, down }
    }

    /// Whether its two sides have bytes in common and are not the same.
    pub(super) fn overlaps(&self) -> bool {
        let distance = self.whole.source.abs_diff(self.whole.destination);
        distance > 0 && distance < self.whole.bytes
    }

    /// Whether it goes from the end.
    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    /// Whether all of it was given out.
    pub(super) fn is_over(&self) -> bool {
        self.done == self.whole.bytes
    }

    pub(super) fn length(&self) -> u64 {
        self.whole.bytes
    }

    /// The next chunk, until [`moved`](Self::moved) says how much of it was given out.
    pub(super) fn next(&self) -> Option<Part> {
        let left = self.whole.bytes - self.done;
        let bytes = left.min(self.chunk);
        let at = if self.down { left - bytes } else { self.done };
        let Part { source, destination, .. } = self.whole;
        (bytes > 0).then(|| Part { source: source + at, destination: destination + at, bytes })
    }

    /// So many bytes of the chunk were given out; from the end on it has to be all of them.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.done += bytes;
    }
}

/// The parts that the cuts of both lists make.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Addresses and lengths of sources and of destinations, the next last.
    lists: [Vec<(u64, u64)>; 2],
}

impl Cuts {
    pub(super) fn new(lists: &Lists<Region<BusMemory>>) -> Self {
        let segments = |list: &[Segment<Region<BusMemory>>]| {
            let kept = list.iter().filter(|segment| segment.length > 0);
            kept.map(|segment| (address(&segment.place), segment.length)).rev().collect()
        };
        Self { lists: [segments(&lists.source), segments(&lists.destination)] }
    }

    /// What is left of the lists: addresses and lengths of sources and of destinations.
    pub(super) fn left(&self) -> &[Vec<(u64, u64)>; 2] {
        &self.lists
    }

    pub(super) fn peek(&self) -> Option<Part> {
        let [from, to] = &self.lists;
        let ((source, source_left), (destination, destination_left)) = (*from.last()?, *to.last()?);
        Some(Part { source, destination, bytes: source_left.min(destination_left) })
    }

    /// The next part, which is gone then.
    pub(super) fn take(&mut self) -> Option<Part> {
        let part = self.peek()?;
        for list in &mut self.lists {
            if let Some((start, left)) = list.pop()
                && left > part.bytes
            {
                list.push((start + part.bytes, left - part.bytes));
            }
        }
        Some(part)
    }
}
