//! The engine process's end: takes requests of all workers, and completes them.
//!
//! ```text
//! next_work ─► Work ─► the engine moves the bytes ─► complete        progress and is_cancelled meanwhile
//! nothing to do: spin, or sleep until a worker submits or cancels
//! ```
//!
//! Handles in requests are looked up by the caller, who has the frames.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memferry_shm::mapping::Mapping;
use memferry_shm::parking::{Fences, park};
use memferry_shm::queue_pair::{ParkedWord, ServiceEnd, futex};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::{
    CacheHint, Completion, EngineKind, Failure, Operation, Outcome, Request, Span, Task, wire,
};
use thiserror::Error;

use crate::layout::EngineLayout;

/// Names a request that the engine has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkId {
    /// The worker that submitted it.
    pub worker: u32,
    /// Its tag at that worker.
    pub tag: u32,
}

/// A request to carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// Names it until it is completed.
    pub id: WorkId,
    /// Over frames named by this engine's handles.
    pub operation: Operation<Span>,
    /// How to treat the CPU caches; an engine may ignore it.
    pub hint: CacheHint,
}

/// The memories do not fit the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the memory shared with the service is smaller than its layout")]
pub struct Refused;

/// The engine process's end of its queue pairs with all workers.
#[derive(Debug)]
pub struct EngineEnd {
    pairs: Vec<ServiceEnd<MappedWords>>,
    parked: ParkedWord<MappedWords>,
    wake: MappedWords,
    doorbell: OwnedFd,
    fences: Fences,
    /// The worker that is asked next.
    next: usize,
}

impl EngineEnd {
    /// Makes the end of two memories: `service` can only be read here, `own` is zeroed and written here. `doorbell` wakes workers.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn new(
        layout: EngineLayout,
        (service, own): (Mapping, Mapping),
        doorbell: OwnedFd,
        fences: Fences,
    ) -> Result<Self, Refused> {
        let service = MappedWords::new(service).ok_or(Refused)?;
        let own = MappedWords::new(own).ok_or(Refused)?;
        let pairs = (0..layout.workers()).map(|worker| {
            let (client, half) = layout.halves(&service, &own, worker).ok_or(Refused)?;
            let pair = ServiceEnd::new(layout.pair(), client, half, fences).map_err(|_| Refused)?;
            // All pairs have one parked word, the first one.
            pair.set_worker(0);
            Ok(pair)
        });
        let pairs = pairs.collect::<Result<_, _>>()?;
        let parked = layout.parked_words(&own).and_then(|words| ParkedWord::new(words, 0).ok());
        let wake = layout.wake_word(&service).ok_or(Refused)?;
        Ok(Self { pairs, parked: parked.ok_or(Refused)?, wake, doorbell, fences, next: 0 })
    }

    /// The next request, of each worker in turn; `None` if there is none now. A request that cannot be decoded is completed as
    /// unsupported.
    pub fn next_work(&mut self) -> Option<Work> {
        let mut empty = 0;
        while empty < self.pairs.len() {
            let worker = self.next;
            self.next = (worker + 1) % self.pairs.len();
            let pair = &mut self.pairs[worker];
            let Some(slot) = pair.pop() else {
                // The worker has room for more lists then.
                pair.publish_all_consumed();
                empty += 1;
                continue;
            };
            let id = WorkId { worker: worker as u32, tag: wire::tag_of(slot[0]) };
            let decoded = wire::decode_request(&slot, |first, words| pair.fetch_list(first, words));
            pair.publish_consumed();
            if let Ok(Request { task: Task::Transfer(operation), terms }) = decoded {
                return Some(Work { id, operation, hint: terms.hint });
            }
            self.complete(id, Outcome::refused(Failure::Unsupported));
        }
        None
    }

    /// Completes a request. Its memory must not be touched any more. The outcome's engine is ignored.
    pub fn complete(&mut self, id: WorkId, outcome: Outcome) {
        let Some(pair) = self.pairs.get_mut(id.worker as usize) else { return };
        pair.clear_progress(id.tag);
        let outcome = Outcome { engine: EngineKind::External, ..outcome };
        let completion = Completion { tag: u64::from(id.tag), inherited: false, outcome };
        // There is room: a worker submits no more than it has room for.
        let _ = pair.completion_room();
        let _ = pair.stage(&wire::encode_completion(&completion));
        if pair.publish() {
            // The write fails only if the counter is full; then the doorbell has rung already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Reports how many bytes of the destination are final, counted from its start, or from its end if `downward`. 0 says that the request
    /// is being prepared.
    pub fn progress(&self, id: WorkId, bytes: u64, downward: bool) {
        if let Some(pair) = self.pairs.get(id.worker as usize) {
            let _ = pair.publish_progress(id.tag, bytes, downward);
        }
    }

    /// Takes back what was reported.
    pub fn clear_progress(&self, id: WorkId) {
        if let Some(pair) = self.pairs.get(id.worker as usize) {
            pair.clear_progress(id.tag);
        }
    }

    /// Whether any cancel was requested since the last call. If so, look at all requests that run.
    pub fn take_cancels(&mut self) -> bool {
        self.pairs.iter_mut().fold(false, |any, pair| pair.cancels_changed() | any)
    }

    /// Whether the service asked for an early end of the request.
    pub fn is_cancelled(&self, id: WorkId) -> bool {
        let pair = self.pairs.get(id.worker as usize);
        pair.is_some_and(|pair| pair.cancels_asked() && pair.cancel_requested(id.tag))
    }

    /// Whether a request waits.
    pub fn ready(&self) -> bool {
        self.pairs.iter().any(ServiceEnd::ready)
    }

    /// Sleeps until a request or a cancel comes, for at most `limit`. Returns at once while there are cancels that
    /// [`take_cancels`](Self::take_cancels) has not reported.
    pub fn sleep(&mut self, limit: Duration) {
        let word = self.wake.word(0);
        let expected = word.load(Ordering::Acquire);
        let pairs = &self.pairs;
        park(
            |value| self.parked.set(value),
            self.fences,
            || pairs.iter().any(ServiceEnd::has_news),
            || futex::wait(word, expected, limit),
        );
    }
}
