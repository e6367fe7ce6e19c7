//! Completions that were taken from the ring while the program waited for another one.
//!
//! ```text
//! push ─► entries, linked in order of arrival ─► pop          the oldest
//!            └ buckets, by tag ────────────────► remove(id)   any one, in constant time
//! ```
//!
//! A slot of the queue is free as soon as its completion was taken from the ring, so this may hold more completions than the
//! queue has slots, and several of one slot. It never refuses one, and keeps its room once it has grown.

use crate::completion::{Completion, TicketId};

/// Index that names no entry: the end of a list.
const NONE: u32 = u32::MAX;
/// Buckets at the first completion.
const FIRST_BUCKETS: usize = 16;

struct Entry {
    completion: Completion,
    /// Neighbours in order of arrival.
    older: u32,
    newer: u32,
    /// The next entry of the same bucket, or the next free entry.
    next: u32,
}

/// Completions in order of arrival, which can be found by id.
pub(super) struct Finished {
    entries: Vec<Entry>,
    /// The latest entry of each bucket. Their number is zero or a power of two, and not less than that of the entries.
    buckets: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// The first free entry.
    free: u32,
    count: usize,
}

impl Finished {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), buckets: Vec::new(), oldest: NONE, newest: NONE, free: NONE, count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, completion: Completion) {
        if self.free == NONE {
            self.add_entry(completion);
        }
        let index = self.free;
        let bucket = self.bucket(completion.id.tag);
        let older = self.newest;
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        *entry = Entry { completion, older, newer: NONE, next: self.buckets[bucket] };
        self.buckets[bucket] = index;
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.count += 1;
    }

    /// Takes the completion that arrived first.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        let id = self.entries[self.oldest as usize].completion.id;
        self.remove(id)
    }

    pub(super) fn get(&self, id: TicketId) -> Option<&Completion> {
        let (_, index) = self.find(id)?;
        Some(&self.entries[index as usize].completion)
    }

    /// Takes the completion of a transfer, if it is here.
    #[inline]
    pub(super) fn remove(&mut self, id: TicketId) -> Option<Completion> {
        let (before, index) = self.find(id)?;
        let bucket = self.bucket(id.tag);
        let entry = &mut self.entries[index as usize];
        let completion = entry.completion;
        let older = entry.older;
        let newer = entry.newer;
        let next = std::mem::replace(&mut entry.next, self.free);
        self.free = index;
        self.count -= 1;
        match self.entries.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.buckets[bucket] = next,
        }
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        Some(completion)
    }

    /// The entry of a transfer, and the one before it in its bucket.
    #[inline]
    fn find(&self, id: TicketId) -> Option<(u32, u32)> {
        if self.is_empty() {
            return None;
        }
        let mut before = NONE;
        let mut index = self.buckets[self.bucket(id.tag)];
        while let Some(entry) = self.entries.get(index as usize) {
            if entry.completion.id == id {
                return Some((before, index));
            }
            before = index;
            index = entry.next;
        }
        None
    }

    /// The bucket of a tag. A product spreads tags that a program leaves here at regular distances.
    #[inline]
    fn bucket(&self, tag: u64) -> usize {
        let spread = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 32) as usize & (self.buckets.len() - 1)
    }

    /// Adds a free entry, whose completion is overwritten before it is seen.
    #[cold]
    fn add_entry(&mut self, completion: Completion) {
        if self.entries.len() == self.buckets.len() {
            self.add_buckets();
        }
        self.free = self.entries.len() as u32;
        self.entries.push(Entry { completion, older: NONE, newer: NONE, next: NONE });
    }

    /// Doubles the number of buckets. All entries are in use.
    fn add_buckets(&mut self) {
        let buckets = (2 * self.buckets.len()).max(FIRST_BUCKETS);
        self.buckets.clear();
        self.buckets.resize(buckets, NONE);
        for index in 0..self.entries.len() {
            let bucket = self.bucket(self.entries[index].completion.id.tag);
            self.entries[index].next = std::mem::replace(&mut self.buckets[bucket], index as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use memferry_transfer::Failure;

    use super::*;

    fn completion(tag: u64) -> Completion {
        Completion::without_engine(TicketId { queue: 7, tag }, Failure::Cancelled)
    }

    fn id(tag: u64) -> TicketId {
        TicketId { queue: 7, tag }
    }

    #[test]
    fn an_empty_store_has_nothing() {
        let mut finished = Finished::new();
        assert_eq!((finished.pop(), finished.remove(id(0)), finished.get(id(0))), (None, None, None));
        finished.push(completion(3));
        assert_eq!(finished.remove(TicketId { queue: 8, tag: 3 }), None, "another queue's ticket");
        assert_eq!(finished.remove(id(3)), Some(completion(3)));
        assert!(finished.is_empty() && finished.pop().is_none());
    }

    #[test]
    fn random_use_is_that_of_a_list() {
        let mut random = fastrand::Rng::with_seed(25);
        for stride in [1, 4, 4096] {
            let mut finished = Finished::new();
            let mut list = VecDeque::new();
            for step in 0..20_000_u64 {
                // First it mostly grows, then it mostly shrinks.
                if random.u64(0..20_000) > step {
                    let completion = completion(step * stride);
                    finished.push(completion);
                    list.push_back(completion);
                } else if random.bool() {
                    assert_eq!(finished.pop(), list.pop_front());
                } else {
                    let index = random.usize(0..=list.len());
                    let wanted = list.get(index).map_or(id(u64::MAX), |completion| completion.id);
                    assert_eq!(finished.get(wanted), list.get(index));
                    assert_eq!(finished.remove(wanted), list.remove(index));
                }
                assert_eq!(finished.len(), list.len());
            }
            while let Some(completion) = list.pop_front() {
                assert_eq!(finished.pop(), Some(completion));
            }
            assert!(finished.is_empty());
        }
    }
}
