//! Storage for the words of a queue pair: mapped from a memfd, or on the heap for Miri and loom.
//!
//! Every load is an atomic operation on a 64-bit word, so a hostile process that races with this one can cause wrong
//! values and nothing worse. `queue_pair` defines what the words mean.

use crate::sync::AtomicU64;

/// A fixed number of atomic words.
pub trait RingStorage {
    /// `count` words from index `first`.
    ///
    /// # Panics
    /// When the range leaves the storage. Indices come from this crate's own layout, never from a peer.
    fn slice(&self, first: usize, count: usize) -> &[AtomicU64];

    /// The number of words.
    fn words(&self) -> usize;

    /// As [`slice`](Self::slice), with a length that the compiler knows.
    ///
    /// # Panics
    /// As [`slice`](Self::slice).
    #[inline]
    fn array<const N: usize>(&self, first: usize) -> &[AtomicU64; N] {
        self.slice(first, N).first_chunk().expect("a slice of N words")
    }

    /// Prefetches the cache line of word `index`. An index outside is ignored.
    #[inline]
    fn prefetch(&self, _index: usize) {}

    /// The word at `index`, which must be below [`words`](Self::words).
    ///
    /// # Panics
    /// As [`slice`](Self::slice).
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.slice(index, 1)[0]
    }
}

/// Words on the heap, shared by the two sides of a test.
#[derive(Clone)]
pub struct HeapWords(std::sync::Arc<[AtomicU64]>);

impl HeapWords {
    /// `words` words of zero.
    pub fn zeroed(words: usize) -> Self {
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl RingStorage for HeapWords {
    fn slice(&self, first: usize, count: usize) -> &[AtomicU64] {
        &self.0[first..][..count]
    }

    fn words(&self) -> usize {
        self.0.len()
    }
}

#[cfg(not(loom))]
pub use mapped::MappedWords;

#[cfg(not(loom))]
mod mapped {
    use std::sync::atomic::AtomicU64;

    use super::RingStorage;
    use crate::line::Line;
    use crate::mapping::Mapping;

    /// Words of a mapped memfd; clones share them.
    #[derive(Clone, Debug)]
    pub struct MappedWords {
        mapping: Mapping,
        /// The first word. Kept here because a load of it from the mapping would be one more cold cache line for each queue.
        first: *const AtomicU64,
        words: usize,
    }

    // SAFETY: M1, M2: `first` points into `mapping`, which any thread may use, and all accesses are atomic.
    unsafe impl Send for MappedWords {}
    // SAFETY: as above.
    unsafe impl Sync for MappedWords {}

    impl MappedWords {
        /// The words of `mapping`; `None` when its start is not aligned to 8 bytes. A mapping of a descriptor always is.
        ///
        /// A store to a read-only mapping ends the process by a signal.
        pub fn new(mapping: Mapping) -> Option<Self> {
            let words = mapping.length_bytes() / size_of::<u64>();
            let first = mapping.pointer().cast::<AtomicU64>().cast_const();
            first.is_aligned().then_some(Self { mapping, first, words })
        }

        /// `count` of these words from index `first`; `None` if there are not so many.
        pub fn part(&self, first: usize, count: usize) -> Option<Self> {
            let end = first.checked_add(count)?;
            let mapping = self.mapping.clone();
            let first = self.first.wrapping_add(first);
            (end <= self.words).then_some(Self { mapping, first, words: count })
        }

        pub fn mapping(&self) -> &Mapping {
            &self.mapping
        }
    }

    impl RingStorage for MappedWords {
        #[inline]
        fn slice(&self, first: usize, count: usize) -> &[AtomicU64] {
            if first.checked_add(count).is_none_or(|end| end > self.words) {
                refuse(first, count, self.words);
            }
            let words = self.first.wrapping_add(first);
            // SAFETY: M1 (the mapping lives as long as `self` and covers `words` words from `first`); `new` checked that the start is
            // aligned, and `part` that its words are among those. An atomic is valid for every bit pattern. On a read-only mapping callers only load (M3).
            unsafe { std::slice::from_raw_parts(words, count) }
        }

        #[inline]
        fn words(&self) -> usize {
            self.words
        }

        #[inline]
        fn prefetch(&self, index: usize) {
            if index < self.words {
                Line::at(self.first.wrapping_add(index).addr()).prefetch();
            }
        }
    }

    /// Takes values: an assertion's message would have each access store the indices that it names.
    #[cold]
    #[inline(never)]
    fn refuse(first: usize, count: usize, words: usize) -> ! {
        panic!("{count} words from {first} of {words}")
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn words_outside_are_refused() {
        let (_memfd, mapping) = crate::frame::allocate(4096, Default::default()).unwrap();
        let words = MappedWords::new(mapping).unwrap();
        let all = words.words();
        assert_eq!((words.slice(all - 2, 2).len(), words.slice(all, 0).len()), (2, 0));
        let part = words.part(2, 4).unwrap();
        for (of, first, count) in
            [(&words, all - 1, 2), (&words, all, 1), (&words, usize::MAX, 2), (&part, 4, 1), (&part, 0, 5)]
        {
            let refused = catch_unwind(AssertUnwindSafe(|| of.slice(first, count).len()));
            assert!(refused.is_err(), "{count} words from {first}");
        }
        assert!(words.part(all - 1, 2).is_none() && words.part(usize::MAX, 2).is_none());
    }
}
