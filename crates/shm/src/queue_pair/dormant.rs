//! Queue pairs that a worker expects no request from: how it looks at many of them, and how all learn that it sleeps.
//!
//! ```text
//! Watch: next slot's header, cancel generation ─► has_news       two cache lines of the client's memory, prefetched
//! ParkedWord: worker ─ set(1), set(0) ─► word 0 of one memory ─► each client of the worker, which maps it read-only
//! ```
//!
//! One word for all queue pairs makes parking one store, however many are open. Its order with publishing is that of
//! [`crate::parking`].

use memferry_transfer::wire::HEADER_SEQUENCE as SEQUENCE;

use super::{CANCEL_GENERATION, TooSmall};
use crate::storage::RingStorage;
use crate::sync::Ordering;

/// Index of the parked word in its memory.
pub(super) const PARKED_WORD: usize = 0;
/// Words of the memory of a parked word.
const PARKED_WORDS: usize = 1;

/// The worker's side of its parked word.
#[derive(Debug)]
pub struct ParkedWord<S>(S);

impl<S: RingStorage> ParkedWord<S> {
    /// Bytes of its memory.
    pub const BYTES: usize = PARKED_WORDS * size_of::<u64>();

    /// Makes the worker's side of a zeroed memory.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn new(memory: S) -> Result<Self, TooSmall> {
        Self::check(&memory)?;
        Ok(Self(memory))
    }

    pub(super) fn check(memory: &S) -> Result<(), TooSmall> {
        let words = memory.words();
        if words < PARKED_WORDS { Err(TooSmall { words, needed: PARKED_WORDS }) } else { Ok(()) }
    }

    /// Asks all clients of the worker for wake-ups (1), or no longer (0).
    pub fn set(&self, value: u64) {
        self.0.word(PARKED_WORD).store(value, Ordering::Relaxed);
    }
}

/// The places of a queue pair at which its next request or cancel shows, as they were when the worker last looked. Valid until the
/// worker takes a request or sees a cancel.
#[derive(Debug)]
pub struct Watch<S> {
    memory: S,
    header: usize,
    sequence: u64,
    cancel_seen: u64,
}

impl<S: RingStorage> Watch<S> {
    pub(super) fn new(memory: S, (header, sequence): (usize, u64), cancel_seen: u64) -> Self {
        Self { memory, header, sequence, cancel_seen }
    }

    /// Whether a request or a cancel waits.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.memory.word(self.header).load(Ordering::Relaxed) & SEQUENCE == self.sequence
            || self.memory.word(CANCEL_GENERATION).load(Ordering::Relaxed) != self.cancel_seen
    }

    /// Loads the places into the cache, for a look that comes soon.
    #[inline]
    pub fn prefetch(&self) {
        self.memory.prefetch(self.header);
        self.memory.prefetch(CANCEL_GENERATION);
    }
}
