//! Queue pairs that a worker expects no request from: how it looks at many of them, and how all learn that it sleeps.
//!
//! ```text
//! Watch: next slot's header, cancel generation ─► has_news       two cache lines of the client's memory, prefetched
//! ParkedWord: worker ─ set(1), set(0) ─► its word of one memory ─► each client of the service, which maps it read-only
//! ```
//!
//! One word for all queue pairs makes parking one store, however many are open. Its order with publishing is that of
//! [`crate::parking`].
//!
//! A queue pair may move to another worker. It says which one it has, and its client looks at that one's word:
//!
//! ```text
//! old worker: number of the new one ─► hands over ─► new worker: looks for requests, and once more whenever it parks
//! client: request ─ light barrier ─► number ─► parked word of that worker
//! ```
//!
//! No barrier is needed for the move. A client that finds the old number did so before the last barrier of the new worker, which
//! then sees the request.

use memferry_transfer::wire::HEADER_SEQUENCE as SEQUENCE;

use super::{CANCEL_GENERATION, TooSmall};
use crate::storage::RingStorage;
use crate::sync::Ordering;

/// Limit on the workers of a service.
pub const MAX_WORKERS: usize = 64;
/// Distance in words of the workers' parked words: a cache line, so that all are in one page.
const DISTANCE: usize = 8;
/// Words of the memory of the parked words.
const PARKED_WORDS: usize = MAX_WORKERS * DISTANCE;

/// Index of a worker's parked word in the memory. `None` for a number that no worker has.
#[inline]
pub(super) fn parked_word(worker: u64) -> Option<usize> {
    // The product is made only of a number within the limit: the peer writes it, and others overflow.
    (worker < MAX_WORKERS as u64).then(|| worker as usize * DISTANCE)
}

/// The worker's side of its parked word.
#[derive(Debug)]
pub struct ParkedWord<S> {
    memory: S,
    word: usize,
}

impl<S: RingStorage> ParkedWord<S> {
    /// Words of the memory of all workers' parked words.
    pub const WORDS: usize = PARKED_WORDS;
    /// Bytes of that memory.
    pub const BYTES: usize = PARKED_WORDS * size_of::<u64>();

    /// Makes the side of a worker of a zeroed memory.
    ///
    /// # Errors
    /// [`TooSmall`], also for a worker above the limit.
    pub fn new(memory: S, worker: usize) -> Result<Self, TooSmall> {
        Self::check(&memory)?;
        let too_small = TooSmall { words: memory.words(), needed: worker.saturating_mul(DISTANCE) };
        let word = parked_word(worker as u64).ok_or(too_small)?;
        Ok(Self { memory, word })
    }

    pub(super) fn check(memory: &S) -> Result<(), TooSmall> {
        let words = memory.words();
        if words < PARKED_WORDS { Err(TooSmall { words, needed: PARKED_WORDS }) } else { Ok(()) }
    }

    /// Whether the worker asks for wake-ups.
    pub fn is_set(&self) -> bool {
        self.memory.word(self.word).load(Ordering::Relaxed) != 0
    }

    /// Asks all clients of the worker for wake-ups (1), or no longer (0).
    pub fn set(&self, value: u64) {
        self.memory.word(self.word).store(value, Ordering::Relaxed);
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
