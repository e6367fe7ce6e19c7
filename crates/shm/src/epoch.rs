//! Epochs: threads read shared tables without a lock, and a thread that takes something away waits until none can use it any more.
//!
//! ```text
//! reader                                 remover
//!   word := odd (release)                  take it out of the table
//!   light barrier (compiler only)          heavy barrier (membarrier)
//!   look up, use                           each word: even, or wait until it changes
//!   word := even (release)                 free it, reuse it, answer
//! ```
//!
//! The barriers are those of [`parking`](crate::parking): either the remover sees the odd word and waits, or the reader sees that the
//! thing is gone. A reader pays two plain stores for an epoch, in a cache line that only removers read. Epochs have to be short,
//! and a thread must not wait for a remover in one. What the table holds is up to the caller.

use std::sync::{Arc, Mutex, PoisonError};

use crate::parking::Fences;
use crate::sync::{AtomicU64, Ordering};

/// Begins an epoch of the thread that owns `word`, which must be in none.
#[inline]
pub fn enter(word: &AtomicU64, fences: Fences) {
    // Release, for a remover that waits for the end of the epoch before and sees this one's beginning instead.
    word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    fences.light();
}

/// Ends the epoch of the thread that owns `word`.
#[inline]
pub fn leave(word: &AtomicU64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
}

/// Waits until each epoch that began before the call has ended, calling `pause` between checks. Its reader's accesses then happened
/// before the return, and later epochs see what the caller took away.
pub fn wait_for<'a>(words: impl Iterator<Item = &'a AtomicU64>, fences: Fences, mut pause: impl FnMut()) {
    fences.heavy();
    for word in words {
        let seen = word.load(Ordering::Acquire);
        while seen % 2 == 1 && word.load(Ordering::Acquire) == seen {
            pause();
        }
    }
}

/// The words of all readers of something.
pub struct Readers {
    words: Box<[Word]>,
    fences: Fences,
    /// Words that no reader has.
    free: Mutex<Vec<usize>>,
}

/// Aligned to two cache lines, because CPUs prefetch lines in pairs.
#[repr(align(128))]
struct Word(AtomicU64);

impl Readers {
    /// Room for `most` readers.
    pub fn new(most: usize, fences: Fences) -> Self {
        let words = (0..most).map(|_| Word(AtomicU64::new(0))).collect();
        Self { words, fences, free: Mutex::new((0..most).rev().collect()) }
    }

    /// A word for one more reader; `None` if all are in use.
    pub fn claim(self: &Arc<Self>) -> Option<Reader> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Reader { readers: Arc::clone(self), index })
    }

    /// As [`wait_for`] with all readers. The calling thread must be in no epoch.
    pub fn wait(&self, pause: impl FnMut()) {
        wait_for(self.words.iter().map(|word| &word.0), self.fences, pause);
    }
}

/// A thread that reads: it says so in a word of its own while it does.
pub struct Reader {
    readers: Arc<Readers>,
    index: usize,
}

impl Reader {
    /// Begins an epoch, which lasts until the result is dropped.
    #[inline]
    pub fn enter(&mut self) -> Epoch<'_> {
        let word = &self.readers.words[self.index].0;
        enter(word, self.readers.fences);
        Epoch(word)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

/// An epoch in progress.
#[must_use = "the epoch ends when this is dropped"]
pub struct Epoch<'a>(&'a AtomicU64);

impl Drop for Epoch<'_> {
    #[inline]
    fn drop(&mut self) {
        leave(self.0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waits_for_epochs_that_began_before() {
        let readers = Arc::new(Readers::new(2, Fences::Full));
        let mut reader = readers.claim().unwrap();
        readers.wait(|| panic!("nobody reads"));
        let mut epoch = Some(reader.enter());
        let mut pauses = 0;
        readers.wait(|| {
            pauses += 1;
            if pauses == 3 {
                epoch = None;
            }
        });
        assert_eq!(pauses, 3);
    }

    #[test]
    fn words_are_given_back() {
        let readers = Arc::new(Readers::new(1, Fences::Full));
        for _ in 0..3 {
            let mut reader = readers.claim().unwrap();
            assert!(readers.claim().is_none());
            drop(reader.enter());
        }
    }
}
