//! One client channel's queue pair: two memories, each written by one side only.
//!
//! ```text
//! client memory  (client writes, service reads)        service memory  (service writes, client reads)
//!   client parked                                        worker parked, wake word
//!   completions consumed (hint)                          submissions consumed (hint)
//!   cancel generation, cancel and stop words             closed
//!   submission slots, 16 words                           completion slots, 4 words
//!   list area: segments of requests not taken yet        progress words of long requests
//! ```
//!
//! Each side keeps its own counts privately. What it reads from the other is a hint that is range-checked, a flag, or a
//! slot that is copied once. Words that change at different times lie in different cache lines. Sleeping is done on the
//! service's eventfd (worker) or on the wake word as a futex (client), by the callers.

mod list_area;
mod sleeper;

use memferry_transfer::MAX_SEGMENTS;
use memferry_transfer::wire::{SEGMENT_WORDS, SUBMISSION_SHORT_WORDS};
use thiserror::Error;

use crate::parking::{Fences, must_wake, wanted};
use crate::ring::{Consumer, ImpossibleCount, Producer, RingFull, Slots};
use crate::storage::RingStorage;
use crate::sync::{AtomicU64, Ordering};
use list_area::ListArea;
pub use memferry_transfer::wire::{COMPLETION_WORDS, SUBMISSION_WORDS};
pub use sleeper::Sleeper;

/// Requests a queue pair may hold at most.
pub const MAXIMUM_CAPACITY: u32 = 1 << 12;

/// Words of the list area. A list is freed when the service has taken its request.
pub const LIST_WORDS: usize = 1 << 13;

// The longest lists that a request may have, of source and destination, lie there in one piece.
const _: () = assert!(LIST_WORDS >= 2 * MAX_SEGMENTS * SEGMENT_WORDS);

/// What the client's parked flag says: a thread sleeps and waits for completions; for progress too; nobody sleeps, but the
/// client wants to be signalled by its descriptor, once there are more completions than the upper half says it has taken: the
/// flag may be read late, after what it was raised for was taken and it was raised again.
const PARKED: u64 = 1;
const PARKED_FOR_PROGRESS: u64 = 2;
const SIGNAL_WANTED: u64 = 4;
const TAKEN_SHIFT: u32 = 32;

/// In a cancel word: end the loop after its present round, rather than at once.
const STOP: u64 = 1 << 63;
/// In a progress word: from the last byte down.
const DOWNWARD: u64 = 1 << 63;
/// Bits of a progress word that count bytes; those above, but for the highest, are of the tag.
const PROGRESS_BITS: u32 = 40;

/// Words between hints that change at different times: two cache lines, for processors fetch the neighbour too, and a hint
/// that was taken away delays every store after it.
const LINE: usize = 16;
const CLIENT_PARKED: usize = 0;
const COMPLETIONS_CONSUMED: usize = LINE;
const CANCEL_GENERATION: usize = 2 * LINE;
const CANCEL_WORDS: usize = 3 * LINE;

const WORKER_PARKED: usize = 0;
const WAKE_WORD: usize = 1;
const SUBMISSIONS_CONSUMED: usize = LINE;
const CLOSED: usize = 2 * LINE;
const COMPLETION_SLOTS: usize = 4 * LINE;

/// The capacity a client asked for cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a queue pair holds a power of two of requests, from 2 to {MAXIMUM_CAPACITY}, not {0}")]
pub struct BadCapacity(pub u32);

/// The other side's memory is smaller than the capacity needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the queue pair's memory has {words} words, {needed} are needed")]
pub struct TooSmall {
    pub words: usize,
    pub needed: usize,
}

/// Where everything lies for a capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    capacity: u32,
}

impl Layout {
    /// The layout for `capacity` requests outstanding.
    ///
    /// # Errors
    /// [`BadCapacity`].
    pub fn new(capacity: u32) -> Result<Self, BadCapacity> {
        let good = capacity.is_power_of_two() && (2..=MAXIMUM_CAPACITY).contains(&capacity);
        if good { Ok(Self { capacity }) } else { Err(BadCapacity(capacity)) }
    }

    /// Requests that may be outstanding.
    #[inline]
    pub fn capacity(self) -> u32 {
        self.capacity
    }

    fn submission_slots(self) -> Slots {
        let first_word = (CANCEL_WORDS + self.capacity as usize).next_multiple_of(SUBMISSION_WORDS);
        Slots { first_word, capacity: self.capacity, short_words: SUBMISSION_SHORT_WORDS }
    }

    fn completion_slots(self) -> Slots {
        let capacity = 2 * self.capacity;
        Slots { first_word: COMPLETION_SLOTS, capacity, short_words: COMPLETION_WORDS }
    }

    fn list_area(self) -> usize {
        self.submission_slots().first_word + self.capacity as usize * SUBMISSION_WORDS
    }

    /// Words of the client's memory.
    pub fn client_words(self) -> usize {
        self.list_area() + LIST_WORDS
    }

    fn progress_words(self) -> usize {
        COMPLETION_SLOTS + 2 * self.capacity as usize * COMPLETION_WORDS
    }

    /// Words of the service's memory.
    pub fn service_words(self) -> usize {
        self.progress_words() + self.capacity as usize
    }

    #[inline]
    const fn slot_of(self, tag: u64) -> usize {
        (tag & (self.capacity as u64 - 1)) as usize
    }

    /// The word that tells how far the request with `tag` has come, given what it is to say.
    #[inline]
    fn progress_word(self, tag: u64) -> usize {
        self.progress_words() + self.slot_of(tag)
    }

    fn check<S: RingStorage>(self, client: &S, service: &S) -> Result<(), TooSmall> {
        for (words, needed) in
            [(client.words(), self.client_words()), (service.words(), self.service_words())]
        {
            if words < needed {
                return Err(TooSmall { words, needed });
            }
        }
        Ok(())
    }

    #[inline]
    const fn cancel_word(self, tag: u64) -> usize {
        CANCEL_WORDS + self.slot_of(tag)
    }
}

#[derive(Debug)]
pub struct ClientEnd<S> {
    layout: Layout,
    own: S,
    peer: S,
    fences: Fences,
    submissions: Producer<SUBMISSION_WORDS>,
    completions: Consumer<COMPLETION_WORDS>,
    /// The count of completions that was told last.
    told: u32,
    lists: ListArea,
}

impl<S: RingStorage> ClientEnd<S> {
    /// The client's side of fresh memories.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn new(layout: Layout, client: S, service: S, fences: Fences) -> Result<Self, TooSmall> {
        layout.check(&client, &service)?;
        let submissions = Producer::new(layout.submission_slots());
        let completions = Consumer::new(layout.completion_slots());
        let lists = ListArea::default();
        Ok(Self { layout, own: client, peer: service, fences, submissions, completions, told: 0, lists })
    }

    /// Requests that may be outstanding.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    /// Writes a request without making it visible.
    ///
    /// # Errors
    /// [`RingFull`] when the service has not taken enough; a service that lies about it looks full.
    #[inline]
    pub fn stage(&mut self, slot: &[u64; SUBMISSION_WORDS]) -> Result<(), RingFull> {
        if self.submissions.free() == 0 {
            self.look_at_consumed()?;
        }
        self.submissions.stage(&self.own, slot)
    }

    /// Takes it as consumed that all but `outstanding` requests were: those have their completions. The service's own word on
    /// that, which it gives now and then, need not be waited for.
    #[inline]
    pub fn presume_consumed(&mut self, outstanding: u32) {
        let consumed = self.submissions.staged().wrapping_sub(outstanding);
        let known = self.submissions.known_consumed();
        if consumed.wrapping_sub(known) as i32 > 0 {
            let _ = self.submissions.consumed(consumed);
        }
    }

    fn look_at_consumed(&mut self) -> Result<(), RingFull> {
        let claimed = self.peer.word(SUBMISSIONS_CONSUMED).load(Ordering::Acquire);
        self.submissions.consumed(claimed as u32).map_err(|_| RingFull)
    }

    /// Writes a list for the request that is staged next; gives its first word within the list area.
    ///
    /// # Errors
    /// [`RingFull`] when lists of requests the service has not taken yet leave no room, or it is longer than the area.
    pub fn stage_list(&mut self, list: &[u64]) -> Result<u64, RingFull> {
        self.lists.free(self.submissions.known_consumed());
        if self.lists.room(list.len()).is_none() {
            self.look_at_consumed()?;
            self.lists.free(self.submissions.known_consumed());
        }
        let (first, end) = self.lists.room(list.len()).ok_or(RingFull)?;
        for (index, word) in list.iter().enumerate() {
            self.own.word(self.layout.list_area() + first + index).store(*word, Ordering::Relaxed);
        }
        self.lists.used.push_back((self.submissions.staged().wrapping_add(1), end));
        self.lists.end = end;
        Ok(first as u64)
    }

    /// Makes staged requests visible; returns whether the worker has to be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.submissions.publish(&self.own) > 0 && self.worker_must_wake()
    }

    /// Whether the worker sleeps: what was just written needs a wake-up.
    #[inline]
    fn worker_must_wake(&self) -> bool {
        must_wake(self.peer.word(WORKER_PARKED), self.fences)
    }

    /// Takes the next completion slot as a private copy.
    #[inline]
    pub fn pop(&mut self) -> Option<[u64; COMPLETION_WORDS]> {
        let slot = self.completions.pop(&self.peer)?;
        // There are twice as many slots as requests, so the service may be half of the requests behind.
        let count = self.completions.count();
        if count.wrapping_sub(self.told) > self.layout.capacity / 2 {
            self.told = count;
            self.own.word(COMPLETIONS_CONSUMED).store(u64::from(count), Ordering::Release);
        }
        Some(slot)
    }

    /// Whether a completion waits.
    #[inline]
    pub fn ready(&self) -> bool {
        self.completions.ready(&self.peer)
    }

    /// Asks that the request with `tag` end early; returns whether the worker has to be woken.
    pub fn cancel(&mut self, tag: u64) -> bool {
        self.end_early(tag, tag.wrapping_add(1))
    }

    /// Asks that the loop with `tag` end after its present round; returns whether the worker has to be woken.
    pub fn stop(&mut self, tag: u64) -> bool {
        let word = self.own.word(self.layout.cancel_word(tag)).load(Ordering::Relaxed);
        // A cancel that was asked for stands.
        let how = if word == tag.wrapping_add(1) { word } else { tag.wrapping_add(1) | STOP };
        self.end_early(tag, how)
    }

    fn end_early(&mut self, tag: u64, how: u64) -> bool {
        self.own.word(self.layout.cancel_word(tag)).store(how, Ordering::Relaxed);
        let generation = self.own.word(CANCEL_GENERATION);
        let next = generation.load(Ordering::Relaxed).wrapping_add(1);
        generation.store(next, Ordering::Release);
        self.worker_must_wake()
    }

    /// How far the request with `tag` has come: bytes, and whether they count from the last one down. What they cover is
    /// seen by this thread. `None` when the service has not said; it need not.
    pub fn progress(&self, tag: u64) -> Option<(u64, bool)> {
        let word = self.peer.word(self.layout.progress_word(tag)).load(Ordering::Acquire);
        let of_tag = (word & !DOWNWARD) >> PROGRESS_BITS == progress_name(tag);
        (word != 0 && of_tag).then_some((word & ((1 << PROGRESS_BITS) - 1), word & DOWNWARD != 0))
    }

    /// What the parked flag has to be for a thread that sleeps until a completion comes.
    pub const fn parked_for_completions() -> u64 {
        PARKED
    }

    /// What it has to be for one that waits for progress too.
    pub const fn parked_for_progress() -> u64 {
        PARKED_FOR_PROGRESS
    }

    /// What it has to be for a client that wants to be signalled by its descriptor, for what it has not taken yet.
    pub fn signal_wanted(&self) -> u64 {
        SIGNAL_WANTED | u64::from(self.completions.count()) << TAKEN_SHIFT
    }

    /// What a thread needs that sleeps on this queue pair while another uses it.
    pub fn sleeper(&self) -> Sleeper<S>
    where
        S: Clone,
    {
        Sleeper::new(self.own.clone(), self.peer.clone(), self.fences)
    }

    /// Whether the service closed this queue pair.
    #[inline]
    pub fn closed(&self) -> bool {
        self.peer.word(CLOSED).load(Ordering::Acquire) != 0
    }

    /// The flag the client raises while it sleeps.
    #[inline]
    pub fn parked(&self) -> &AtomicU64 {
        self.own.word(CLIENT_PARKED)
    }

    /// The word the service changes when it wakes the client; its low half, in memory order of a little-endian
    /// machine, is the futex.
    #[inline]
    pub fn wake_word(&self) -> &AtomicU64 {
        self.peer.word(WAKE_WORD)
    }

    /// How the flags are ordered.
    #[inline]
    pub fn fences(&self) -> Fences {
        self.fences
    }
}

/// The part of a progress word that names its request.
const fn progress_name(tag: u64) -> u64 {
    tag.wrapping_add(1) & ((1 << (63 - PROGRESS_BITS)) - 1)
}

#[derive(Debug)]
pub struct ServiceEnd<S> {
    layout: Layout,
    own: S,
    peer: S,
    fences: Fences,
    submissions: Consumer<SUBMISSION_WORDS>,
    completions: Producer<COMPLETION_WORDS>,
    /// The count of requests that was told last.
    told: u32,
    cancel_seen: u64,
}

impl<S: RingStorage> ServiceEnd<S> {
    /// The service's side of fresh memories.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn new(layout: Layout, client: S, service: S, fences: Fences) -> Result<Self, TooSmall> {
        layout.check(&client, &service)?;
        let submissions = Consumer::new(layout.submission_slots());
        let completions = Producer::new(layout.completion_slots());
        Ok(Self {
            layout,
            own: service,
            peer: client,
            fences,
            submissions,
            completions,
            told: 0,
            cancel_seen: 0,
        })
    }

    /// Requests that may be outstanding.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    /// Takes the next request as a private copy.
    #[inline]
    pub fn pop(&mut self) -> Option<[u64; SUBMISSION_WORDS]> {
        self.submissions.pop(&self.peer)
    }

    /// Takes the next request into `slot`, of which a short one leaves the second half as it was; whether there was one.
    #[inline]
    pub fn pop_into(&mut self, slot: &mut [u64; SUBMISSION_WORDS]) -> bool {
        self.submissions.pop_into(&self.peer, slot)
    }

    /// Fetches the lines of the requests that may follow, when more than one was found.
    #[inline]
    pub fn look_ahead(&self, second: bool) {
        if second && self.submissions.ready(&self.peer) {
            self.submissions.look_all_ahead(&self.peer);
        }
        self.submissions.look_ahead(&self.peer);
    }

    /// Whether a request waits.
    #[inline]
    pub fn ready(&self) -> bool {
        self.submissions.ready(&self.peer)
    }

    /// Whether a worker that is about to sleep must not: a request or a cancel waits here.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.ready() || self.cancels_pending()
    }

    /// Tells the client how many requests were taken, when there is much to tell.
    #[inline]
    pub fn tell_consumed(&mut self) {
        let count = self.submissions.count();
        if count.wrapping_sub(self.told) > self.layout.capacity / 4 {
            self.tell_all_consumed();
        }
    }

    /// Tells the client how many requests were taken.
    pub fn tell_all_consumed(&mut self) {
        self.told = self.submissions.count();
        self.own.word(SUBMISSIONS_CONSUMED).store(u64::from(self.told), Ordering::Release);
    }

    /// [`completion_room`](Self::completion_room) as far as it is known without a look at the client's memory, whose line
    /// moves with every completion the client takes.
    #[inline]
    pub fn known_completion_room(&self) -> u32 {
        self.completions.free()
    }

    /// Completions that may be given now without overwriting one the client has not read.
    ///
    /// # Errors
    /// [`ImpossibleCount`]: the client lies.
    #[inline]
    pub fn completion_room(&mut self) -> Result<u32, ImpossibleCount> {
        let claimed = self.peer.word(COMPLETIONS_CONSUMED).load(Ordering::Acquire);
        self.completions.consumed(claimed as u32)?;
        Ok(self.completions.free())
    }

    /// Writes a completion without making it visible.
    ///
    /// # Errors
    /// [`RingFull`]: more completions than admission reserved.
    #[inline]
    pub fn stage(&mut self, slot: &[u64; COMPLETION_WORDS]) -> Result<(), RingFull> {
        self.completions.stage(&self.own, slot)
    }

    /// Makes staged completions visible; returns whether the client has to be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.publish_for() != 0
    }

    /// Makes staged completions visible; returns what the client's flag said then: how it wants to be woken, 0 when it need
    /// not be.
    #[inline]
    pub fn publish_for(&mut self) -> u64 {
        let published = self.completions.publish(&self.own) > 0;
        if published { wanted(self.peer.word(CLIENT_PARKED), self.fences) } else { 0 }
    }

    /// Whether cancels were asked for since this was last called.
    pub fn cancels_changed(&mut self) -> bool {
        let generation = self.peer.word(CANCEL_GENERATION).load(Ordering::Acquire);
        std::mem::replace(&mut self.cancel_seen, generation) != generation
    }

    /// Whether a cancel was asked for that [`cancels_changed`](Self::cancels_changed) has not told yet.
    #[inline]
    pub fn cancels_pending(&self) -> bool {
        self.peer.word(CANCEL_GENERATION).load(Ordering::Relaxed) != self.cancel_seen
    }

    /// Whether any cancel was asked for so far, told or not. When a request was popped, one that was asked for before it was
    /// published counts.
    #[inline]
    pub fn cancels_asked(&self) -> bool {
        self.peer.word(CANCEL_GENERATION).load(Ordering::Relaxed) != 0
    }

    /// Whether the request with `tag` is to be cancelled.
    #[inline]
    pub fn cancel_requested(&self, tag: u64) -> bool {
        self.peer.word(self.layout.cancel_word(tag)).load(Ordering::Relaxed) == tag.wrapping_add(1)
    }

    /// Whether the loop with `tag` is to end after its present round.
    pub fn stop_requested(&self, tag: u64) -> bool {
        let word = self.peer.word(self.layout.cancel_word(tag)).load(Ordering::Relaxed);
        word == (tag.wrapping_add(1) | STOP)
    }

    /// A private copy of `words` words of the list area from `first`, `None` when they are not in it.
    pub fn fetch_list(&self, first: u64, words: usize) -> Option<Vec<u64>> {
        let first = usize::try_from(first).ok()?;
        let end = first.checked_add(words).filter(|end| *end <= LIST_WORDS)?;
        let area = self.layout.list_area();
        Some((first..end).map(|word| self.peer.word(area + word).load(Ordering::Relaxed)).collect())
    }

    /// Tells how far the request with `tag` has come; what was moved until now is visible to who reads it. Returns whether
    /// the client has to be woken for it.
    pub fn tell_progress(&self, tag: u64, bytes: u64, downward: bool) -> bool {
        let bytes = bytes.min((1 << PROGRESS_BITS) - 1);
        let down = if downward { DOWNWARD } else { 0 };
        let word = progress_name(tag) << PROGRESS_BITS | bytes | down;
        self.own.word(self.layout.progress_word(tag)).store(word, Ordering::Release);
        self.client_flag() == PARKED_FOR_PROGRESS
    }

    /// Whether a client's flag says that it wants to be signalled by its descriptor, and there is what it wants to hear of.
    pub fn wants_signal(&self, flag: u64) -> bool {
        flag & SIGNAL_WANTED != 0 && (flag >> TAKEN_SHIFT) as u32 != self.completions.published()
    }

    /// What the client's flag says now.
    pub fn client_flag(&self) -> u64 {
        self.fences.light();
        self.peer.word(CLIENT_PARKED).load(Ordering::Relaxed)
    }

    /// Forgets the progress of a request that is over: a later one of the same slot begins without.
    pub fn clear_progress(&self, tag: u64) {
        self.own.word(self.layout.progress_word(tag)).store(0, Ordering::Relaxed);
    }

    /// Raises or lowers the flag that asks clients for wake-ups.
    pub fn set_parked(&self, value: u64) {
        self.own.word(WORKER_PARKED).store(value, Ordering::Relaxed);
    }

    /// Tells the client that no more will come.
    pub fn close(&self) {
        self.own.word(CLOSED).store(1, Ordering::Release);
        self.change_wake_word();
    }

    /// Changes the word a parked client sleeps on; the caller then wakes its futex.
    pub fn change_wake_word(&self) {
        let word = self.own.word(WAKE_WORD);
        let next = word.load(Ordering::Relaxed).wrapping_add(1);
        word.store(next, Ordering::Release);
    }

    /// The word a parked client sleeps on.
    #[inline]
    pub fn wake_word(&self) -> &AtomicU64 {
        self.own.word(WAKE_WORD)
    }

    /// How the flags are ordered.
    #[inline]
    pub fn fences(&self) -> Fences {
        self.fences
    }
}

#[cfg(not(loom))]
pub mod futex;

#[cfg(all(test, not(loom)))]
mod tests;
