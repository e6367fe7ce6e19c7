//! Which words of a channel's list area hold lists that the service has not taken yet.
//!
//! ```text
//! room(words) ─► the next words in one piece ─ used until the request they belong to was taken ─► free
//! ```
//!
//! Book-keeping only: nothing here touches the area.

use std::collections::VecDeque;

use super::LIST_WORDS;

/// Where lists lie that the service has not taken yet: a ring of words.
#[derive(Debug, Default)]
pub(super) struct ListArea {
    /// Of each list: the submission after it, and where the area's use ended with it, in words since the beginning.
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
            // From the beginning, where the longest list fits in one piece.
            (self.first, self.end) = (0, 0);
        }
    }

    /// Room for `words` in one piece: its first word, and where the area's use ends with it.
    pub(super) fn room(&self, words: usize) -> Option<(usize, u64)> {
        let area = LIST_WORDS as u64;
        let words = words as u64;
        let at = self.end % area;
        let skipped = if at + words > area { area - at } else { 0 };
        let end = self.end + skipped + words;
        (words <= area && end - self.first <= area).then(|| (((end - words) % area) as usize, end))
    }
}
