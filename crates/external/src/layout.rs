//! The two memories between the service and one engine process: each is written by one side only.
//!
//! ```text
//! service's memory   wake word | client half of worker 0's queue pair | of worker 1's | ...        the engine reads it
//! engine's memory    parked word | service half of worker 0's queue pair | of worker 1's | ...     the service reads it
//! ```
//!
//! The halves are those of [`memferry_shm::queue_pair`]: the service is the client there. All workers wake the engine by one wake word,
//! which is a futex, so an engine sleeps on one word however many workers there are. It wakes a worker by a doorbell, an eventfd.

use memferry_shm::queue_pair::{BadCapacity, Layout, MAX_WORKERS, ParkedWord};
use memferry_shm::storage::MappedWords;
use thiserror::Error;

/// Words before the first half of the service's memory: a page, so that no cache line is shared.
const HEAD_WORDS: usize = 512;
/// Each half begins at a multiple of so many words: two cache lines.
const HALF_ALIGNMENT: usize = 16;

/// A number of workers or a capacity that no service has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LayoutError {
    /// No worker, or more than a service can have.
    #[error("{0} workers are not from 1 to {MAX_WORKERS}")]
    Workers(u32),
    /// The capacity of a queue pair.
    #[error(transparent)]
    Capacity(#[from] BadCapacity),
}

/// Where everything is in the two memories.
///
/// ```
/// use memferry_external::layout::EngineLayout;
///
/// let layout = EngineLayout::new(2, 32).unwrap();
/// assert!(layout.engine_bytes() < layout.service_bytes());
/// assert!(EngineLayout::new(0, 32).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineLayout {
    workers: usize,
    pair: Layout,
}

impl EngineLayout {
    /// The layout for `workers` workers, with queue pairs of `capacity` requests.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(workers: u32, capacity: u32) -> Result<Self, LayoutError> {
        if workers == 0 || workers as usize > MAX_WORKERS {
            return Err(LayoutError::Workers(workers));
        }
        Ok(Self { workers: workers as usize, pair: Layout::new(capacity)? })
    }

    /// Number of workers of the service.
    pub const fn workers(self) -> usize {
        self.workers
    }

    /// The layout of each queue pair.
    pub const fn pair(self) -> Layout {
        self.pair
    }

    fn client_half(self) -> usize {
        self.pair.client_words().next_multiple_of(HALF_ALIGNMENT)
    }

    fn service_half(self) -> usize {
        self.pair.service_words().next_multiple_of(HALF_ALIGNMENT)
    }

    /// Bytes of the memory that the service writes, in whole pages.
    pub fn service_bytes(self) -> u64 {
        in_pages(HEAD_WORDS + self.workers * self.client_half())
    }

    /// Bytes of the memory that the engine writes, in whole pages: the exact length of the memfd that it sends.
    pub fn engine_bytes(self) -> u64 {
        in_pages(ParkedWord::<MappedWords>::WORDS + self.workers * self.service_half())
    }

    /// The parts for one worker's queue pair of the service's and of the engine's memory; `None` if a memory is too small.
    pub fn halves(
        self,
        service: &MappedWords,
        engine: &MappedWords,
        worker: usize,
    ) -> Option<(MappedWords, MappedWords)> {
        let client = service.part(HEAD_WORDS + worker * self.client_half(), self.pair.client_words())?;
        let parked = ParkedWord::<MappedWords>::WORDS;
        let own = engine.part(parked + worker * self.service_half(), self.pair.service_words())?;
        Some((client, own))
    }

    /// The part of the service's memory with the word that wakes the engine.
    pub fn wake_word(self, service: &MappedWords) -> Option<MappedWords> {
        service.part(0, 1)
    }

    /// The part of the engine's memory with its parked word, which [`ParkedWord`] describes.
    pub fn parked_words(self, engine: &MappedWords) -> Option<MappedWords> {
        engine.part(0, ParkedWord::<MappedWords>::WORDS)
    }
}

fn in_pages(words: usize) -> u64 {
    (words as u64 * 8).next_multiple_of(rustix::param::page_size() as u64)
}
