//! Allocation of a queue's list area, a ring of words that holds the lists of requests not yet taken.
//!
//! ```text
//! room(words) ─► the next contiguous words ─ in use until the service takes their request ─► free
//! ```
//!
//! This module computes indices only; `ClientEnd` writes the area.

use std::collections::VecDeque;

/// Positions count words since the queue was made; an index is a position modulo the area's length.
#[derive(Debug, Default)]
pub(super) struct ListArea {
    /// For each list: the submission count after its request, and the position of the list's end.
    pub(super) used: VecDeque<(u32, u64)>,
    first: u64,
    pub(super) end: u64,
}

impl ListArea {
    /// Frees the lists of requests before submission `taken`.
    pub(super) fn free(&mut self, taken: u32) {
        while let Some((after, end)) = self.used.front().copied()
            && taken.wrapping_sub(after) as i32 >= 0
        {
            self.first = end;
            self.used.pop_front();
        }
        if self.used.is_empty() {
            // Restart at the beginning, where even the longest list is contiguous.
            self.first = 0;
            self.end = 0;
        }
    }

    /// Finds room for `words` contiguous words in an area of `area`: the index of the first one, and the position of their end.
    pub(super) fn room(&self, words: usize, area: usize) -> Option<(usize, u64)> {
        let area = area as u64;
        let words = words as u64;
        let at = self.end % area;
        let skipped = if at + words > area { area - at } else { 0 };
        let end = self.end + skipped + words;
        (words <= area && end - self.first <= area).then(|| (((end - words) % area) as usize, end))
    }
}
