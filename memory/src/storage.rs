//! Where the words of a queue pair live: mapped from a memfd, or on the heap for Miri and loom.
//!
//! Every access is an atomic operation on a 64-bit word, so that a hostile process racing with us gives wrong values
//! and nothing worse. This module does not say what the words mean.

use crate::sync::AtomicU64;

/// A fixed number of atomic words.
pub trait RingStorage {
    /// How many there are.
    fn words(&self) -> usize;

    /// Word `index`, which must be below [`words`](Self::words).
    ///
    /// # Panics
    /// When it is not: indices come from this crate's own layout, never from a peer.
    fn word(&self, index: usize) -> &AtomicU64;
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
    fn words(&self) -> usize {
        self.0.len()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

#[cfg(not(loom))]
pub use mapped::MappedWords;

#[cfg(not(loom))]
mod mapped {
    use std::sync::atomic::AtomicU64;

    use super::RingStorage;
    use crate::mapping::Mapping;

    /// Words of a mapped memfd.
    #[derive(Debug)]
    pub struct MappedWords {
        mapping: Mapping,
        words: usize,
    }

    impl MappedWords {
        /// The words of `mapping`, `None` when its start is not aligned to them. A mapping of a descriptor always is.
        ///
        /// On a read-only mapping only loads are possible: a store ends the process.
        pub fn new(mapping: Mapping) -> Option<Self> {
            let words = mapping.length_bytes() / size_of::<u64>();
            mapping.pointer().cast::<AtomicU64>().is_aligned().then_some(Self { mapping, words })
        }

        /// The mapping.
        pub fn mapping(&self) -> &Mapping {
            &self.mapping
        }
    }

    impl RingStorage for MappedWords {
        fn words(&self) -> usize {
            self.words
        }

        fn word(&self, index: usize) -> &AtomicU64 {
            assert!(index < self.words, "word {index} of {}", self.words);
            let word = self.mapping.pointer().cast::<AtomicU64>().wrapping_add(index);
            // SAFETY: M1 (the mapping lives as long as `self` and covers `words` words), and the start was checked to be
            // aligned. Atomics are valid for every bit pattern; on a read-only mapping callers only load (M3).
            unsafe { &*word }
        }
    }
}
