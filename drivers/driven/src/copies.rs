//! Splits copies and scatter-gather lists into parts, independent of the device.
//!
//! ```text
//! source, destination, length ─► Chunks ─ next ─► Part ─ moved(bytes) ─► downward if an upward copy would overwrite its source
//! two lists of segments ───────► Cuts ─── peek ─► Part ─ take ─────────► the shorter of the two next segments
//! ```
//!
//! Each engine's plan turns parts into device work and orders them.

use memferry_transfer::{Lists, Region, Segment};

use crate::memory::{DeviceMemory, address};

/// A copy of bytes between two bus addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub source: u64,
    pub destination: u64,
    pub bytes: u64,
}

/// A contiguous copy, split into chunks.
#[derive(Clone, Debug)]
pub struct Chunks {
    whole: Part,
    done: u64,
    chunk: u64,
    down: bool,
}

impl Chunks {
    /// Chunks of at most `limit` bytes, or `downward` bytes if the copy runs downward.
    pub fn new(whole: Part, limit: u64, downward: u64) -> Self {
        let Part { source, destination, bytes } = whole;
        let distance = source.abs_diff(destination);
        let down = source < destination && distance < bytes;
        // A device reads ahead of its writes within a chunk, so a chunk's source and destination must not overlap.
        let chunk = if distance == 0 || distance >= bytes { limit } else { limit.min(distance) };
        let chunk = if down { chunk.min(downward) } else { chunk };
        Self { whole, done: 0, chunk, down }
    }

    /// Chunks of at most `limit` bytes, for a device that copies a chunk as memmove does, whatever overlaps.
    pub fn of_moves(whole: Part, limit: u64) -> Self {
        Self { chunk: limit, ..Self::new(whole, limit, limit) }
    }

    /// How many chunks the whole copy has.
    pub fn count(&self) -> u64 {
        self.whole.bytes.div_ceil(self.chunk.max(1))
    }

    /// Whether source and destination overlap without being equal.
    pub fn overlaps(&self) -> bool {
        let distance = self.whole.source.abs_diff(self.whole.destination);
        distance > 0 && distance < self.whole.bytes
    }

    /// Whether the copy runs from the end to the start.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Whether all bytes were handed out.
    pub fn is_over(&self) -> bool {
        self.done == self.whole.bytes
    }

    pub fn length(&self) -> u64 {
        self.whole.bytes
    }

    /// The next chunk; it stays the same until [`moved`](Self::moved) is called.
    pub fn next(&self) -> Option<Part> {
        let left = self.whole.bytes - self.done;
        let bytes = left.min(self.chunk);
        let at = if self.down { left - bytes } else { self.done };
        let Part { source, destination, .. } = self.whole;
        (bytes > 0).then(|| Part { source: source + at, destination: destination + at, bytes })
    }

    /// Marks `bytes` of the chunk as handed out; in a downward copy it must be the whole chunk.
    pub fn moved(&mut self, bytes: u64) {
        self.done += bytes;
    }
}

/// The parts of a scatter-gather list, split at the segment ends of both sides.
#[derive(Debug)]
pub struct Cuts {
    /// Addresses and lengths of the remaining sources and destinations, the next one last.
    lists: [Vec<(u64, u64)>; 2],
}

impl Cuts {
    pub fn new<M: DeviceMemory>(lists: &Lists<Region<M>>) -> Self {
        let segments = |list: &[Segment<Region<M>>]| {
            let kept = list.iter().filter(|segment| segment.length > 0);
            kept.map(|segment| (address(&segment.place), segment.length)).rev().collect()
        };
        Self { lists: [segments(&lists.source), segments(&lists.destination)] }
    }

    /// Addresses and lengths of the remaining sources and destinations.
    pub fn left(&self) -> &[Vec<(u64, u64)>; 2] {
        &self.lists
    }

    pub fn peek(&self) -> Option<Part> {
        let [from, to] = &self.lists;
        let ((source, source_left), (destination, destination_left)) = (*from.last()?, *to.last()?);
        Some(Part { source, destination, bytes: source_left.min(destination_left) })
    }

    /// Removes and returns the next part.
    pub fn take(&mut self) -> Option<Part> {
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
