//! The queue pair of one client queue: two memories, each written by one side only.
//!
//! ```text
//! client memory  (client writes, service reads)        service memory  (service writes, client reads)
//!   client parked                                        wake word
//!   completions consumed (hint)                          submissions consumed (hint)
//!   cancel generation, cancel and stop words             closed; number of the worker
//!   submission slots, 4 + 12 words                       completion slots, 1 + 2 words
//!   list area: segment lists of requests not yet taken   progress words of long requests
//! ```
//!
//! Each side keeps its own counts in private memory. It reads three things from the other side: hints, which it checks
//! for range; flags; and slots, which it copies once. Words that change at different times lie in different cache lines.
//! The callers sleep: a worker on the service's eventfd, a client on the wake word as a futex. Whether the worker sleeps is in a third
//! memory, which all queue pairs of the service share ([`ParkedWord`]). A worker looks at a queue pair with little traffic by its
//! [`Watch`].

mod dormant;
mod list_area;
mod sleeper;

use memferry_transfer::MAX_SEGMENTS;
use memferry_transfer::wire::{
    self, COMPLETION_SHORT_WORDS, SEGMENT_WORDS, SUBMISSION_SHORT_WORDS, ShortSlot,
};
use thiserror::Error;

use crate::parking::{Fences, wanted};
use crate::ring::{Consumer, ImpossibleCount, Producer, RingFull, Slots};
use crate::storage::RingStorage;
use crate::sync::{AtomicU64, Ordering};
pub use dormant::{MAX_WORKERS, ParkedWord, Watch};
use list_area::ListArea;
pub use memferry_transfer::wire::{COMPLETION_WORDS, SUBMISSION_WORDS};
pub use sleeper::Sleeper;

/// Limit on the requests of a queue pair.
pub const MAXIMUM_CAPACITY: u32 = 1 << 12;

/// Words of the list area for each request that may be outstanding, within these bounds of the capacity. All of it is allocated memory.
const LIST_WORDS_OF_REQUEST: usize = 1 << 10;
const LIST_CAPACITY: (u32, u32) = (8, 32);

// The smallest area holds the longest source and destination lists of a request contiguously.
const _: () = assert!(LIST_CAPACITY.0 as usize * LIST_WORDS_OF_REQUEST >= 2 * MAX_SEGMENTS * SEGMENT_WORDS);

/// Client's parked flag: a thread sleeps until a completion comes.
const PARKED: u64 = 1;
/// Client's parked flag: a thread sleeps until a completion or progress comes.
const PARKED_FOR_PROGRESS: u64 = 2;
/// Client's parked flag: no thread sleeps, but the client wants a signal on its descriptor when there are more completions
/// than it has taken. The upper half of the flag is the count taken, because the service may read the flag late, when the
/// client has already taken the completion and raised the flag again.
const SIGNAL_WANTED: u64 = 4;
const TAKEN_SHIFT: u32 = 32;

/// Flag of a cancel word: end the loop after its present round, not at once.
const STOP: u64 = 1 << 63;
/// Flag of a progress word: the bytes count down from the last one.
const DOWNWARD: u64 = 1 << 63;
/// Low bits of a progress word, which count bytes. The bits above, except `DOWNWARD`, name the request.
const PROGRESS_BITS: u32 = 40;

/// Distance in words of hints that change at different times: two cache lines, because CPUs prefetch the adjacent line too,
/// and a store to a line that the other side holds delays every later store.
const LINE: usize = 16;
const CLIENT_PARKED: usize = 0;
const COMPLETIONS_CONSUMED: usize = LINE;
const CANCEL_GENERATION: usize = 2 * LINE;
const CANCEL_WORDS: usize = 3 * LINE;

const WAKE_WORD: usize = 1;
const SUBMISSIONS_CONSUMED: usize = LINE;
const CLOSED: usize = 2 * LINE;
const WORKER: usize = 2 * LINE + 1;
const COMPLETION_SLOTS: usize = 4 * LINE;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the capacity of a queue pair must be a power of two from 2 to {MAXIMUM_CAPACITY}, not {0}")]
pub struct BadCapacity(pub u32);

/// A memory is smaller than the capacity requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the queue pair's memory has {words} words, {needed} are needed")]
pub struct TooSmall {
    pub words: usize,
    pub needed: usize,
}

/// The positions of all words for one capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    capacity: u32,
}

impl Layout {
    /// The layout for `capacity` outstanding requests.
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
        Slots { first_word, capacity: self.capacity }
    }

    fn completion_slots(self) -> Slots {
        let capacity = 2 * self.capacity;
        Slots { first_word: COMPLETION_SLOTS, capacity }
    }

    fn list_area(self) -> usize {
        self.submission_slots().first_word + self.capacity as usize * SUBMISSION_WORDS
    }

    /// Words of the list area: for one request with the longest lists, or for five if the capacity is 32 or more. A list is freed when
    /// the service has taken its request.
    pub fn list_words(self) -> usize {
        let (least, most) = LIST_CAPACITY;
        self.capacity.clamp(least, most) as usize * LIST_WORDS_OF_REQUEST
    }

    /// Words of the client's memory.
    pub fn client_words(self) -> usize {
        self.list_area() + self.list_words()
    }

    /// Bytes of the client's memory, in whole pages of this machine: the exact length of the memfd that the client sends.
    pub fn client_bytes(self) -> u64 {
        (self.client_words() as u64 * 8).next_multiple_of(rustix::param::page_size() as u64)
    }

    fn progress_words(self) -> usize {
        COMPLETION_SLOTS + 2 * self.capacity as usize * COMPLETION_WORDS
    }

    /// Words of the service's memory.
    pub fn service_words(self) -> usize {
        self.progress_words() + self.capacity as usize
    }

    #[inline]
    const fn slot_of(self, tag: u32) -> usize {
        (tag & (self.capacity - 1)) as usize
    }

    /// Index of the word that holds the progress of the request with `tag`.
    #[inline]
    fn progress_word(self, tag: u32) -> usize {
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
    const fn cancel_word(self, tag: u32) -> usize {
        CANCEL_WORDS + self.slot_of(tag)
    }
}

#[derive(Debug)]
pub struct ClientEnd<S> {
    layout: Layout,
    own: S,
    peer: S,
    workers: S,
    fences: Fences,
    submissions: Producer<SUBMISSION_SHORT_WORDS, SUBMISSION_WORDS>,
    completions: Consumer<COMPLETION_SHORT_WORDS, COMPLETION_WORDS>,
    /// The count of completions that this side last stored for the service.
    stored: u32,
    lists: ListArea,
    /// Cancel words may hold something from earlier requests.
    cancelled: bool,
}

impl<S: RingStorage> ClientEnd<S> {
    /// Makes the client's side of zeroed memories. `workers` is the memory of the workers' parked words.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn new(layout: Layout, client: S, service: S, workers: S, fences: Fences) -> Result<Self, TooSmall> {
        layout.check(&client, &service)?;
        ParkedWord::<S>::check(&workers)?;
        Ok(Self {
            layout,
            own: client,
            peer: service,
            workers,
            fences,
            submissions: Producer::new(layout.submission_slots()),
            completions: Consumer::new(layout.completion_slots()),
            stored: 0,
            lists: ListArea::default(),
            cancelled: false,
        })
    }

    /// Requests that may be outstanding.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    /// Whether no submission slot is known to be free.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.submissions.free() == 0
    }

    /// Writes a request without making it visible.
    ///
    /// # Errors
    /// [`RingFull`] until the service takes more requests. An impossible count from the service counts as full.
    #[inline]
    pub fn stage(&mut self, slot: &[u64; SUBMISSION_WORDS]) -> Result<(), RingFull> {
        self.make_room(slot[0])?;
        self.submissions.stage(&self.own, slot)
    }

    /// As [`stage`](Self::stage), for a request without second part.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    #[inline(always)]
    pub fn stage_short(&mut self, slot: ShortSlot) -> Result<(), RingFull> {
        self.make_room(slot[0])?;
        self.submissions.stage_short(&self.own, slot)
    }

    /// As [`stage_short`](Self::stage_short), and makes all staged requests visible. Returns whether the worker must be woken.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    #[inline(always)]
    pub fn put_short(&mut self, slot: ShortSlot) -> Result<bool, RingFull> {
        self.make_room(slot[0])?;
        self.submissions.put_short(&self.own, slot)?;
        Ok(self.worker_must_wake())
    }

    #[inline(always)]
    fn make_room(&mut self, header: u64) -> Result<(), RingFull> {
        if self.submissions.free() == 0 {
            self.load_consumed()?;
        }
        if self.cancelled {
            self.forget_cancel(wire::tag_of(header));
        }
        Ok(())
    }

    /// Clears the cancel word of an earlier request with the same slot: tags repeat after 2^32.
    #[cold]
    fn forget_cancel(&self, tag: u32) {
        let word = self.own.word(self.layout.cancel_word(tag));
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Infers the service's count: it has consumed all requests but the `outstanding` ones, because the others have
    /// completed. The service stores its own count only now and then.
    #[inline]
    pub fn presume_consumed(&mut self, outstanding: u32) {
        let consumed = self.submissions.staged().wrapping_sub(outstanding);
        let known = self.submissions.known_consumed();
        if consumed.wrapping_sub(known) as i32 > 0 {
            let _ = self.submissions.consumed(consumed);
        }
    }

    #[cold]
    fn load_consumed(&mut self) -> Result<(), RingFull> {
        let claimed = self.peer.word(SUBMISSIONS_CONSUMED).load(Ordering::Acquire);
        self.submissions.consumed(claimed as u32).map_err(|_| RingFull)
    }

    /// Whether the service has taken more requests than this end knows of, so that there may be room again.
    #[inline]
    pub fn has_taken_more(&self) -> bool {
        let claimed = self.peer.word(SUBMISSIONS_CONSUMED).load(Ordering::Relaxed);
        self.submissions.is_news(claimed as u32)
    }

    /// Writes a list for the request that is staged next, and returns the index of its first word in the list area.
    ///
    /// # Errors
    /// [`RingFull`] when the list is longer than the area, or when lists of requests not yet taken leave no room.
    pub fn stage_list(&mut self, list: &[u64]) -> Result<u64, RingFull> {
        self.lists.free(self.submissions.known_consumed());
        let words = self.layout.list_words();
        if self.lists.room(list.len(), words).is_none() {
            self.load_consumed()?;
            self.lists.free(self.submissions.known_consumed());
        }
        let (first, end) = self.lists.room(list.len(), words).ok_or(RingFull)?;
        let area = self.own.slice(self.layout.list_area() + first, list.len());
        area.iter().zip(list).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        self.lists.used.push_back((self.submissions.staged().wrapping_add(1), end));
        self.lists.end = end;
        Ok(first as u64)
    }

    /// Makes staged requests visible. Returns whether the worker must be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.submissions.publish(&self.own) > 0 && self.worker_must_wake()
    }

    /// Whether the worker sleeps and must be woken for the words just written.
    #[inline]
    fn worker_must_wake(&self) -> bool {
        self.fences.light();
        let worker = self.peer.word(WORKER).load(Ordering::Relaxed);
        // A number that no worker has is a faulty service's.
        dormant::parked_word(worker).is_none_or(|word| self.workers.word(word).load(Ordering::Relaxed) != 0)
    }

    /// The header of the next completion slot, which stays in the ring.
    #[inline]
    pub fn peek_header(&self) -> Option<u64> {
        self.completions.peek(&self.peer)
    }

    /// Takes the completion slot whose header [`peek_header`](Self::peek_header) returned. Of a long slot, [`whole`](Self::whole) has
    /// the rest until the next call.
    #[inline]
    pub fn take_peeked(&mut self) {
        // There are twice as many completion slots as requests, so the count need not be stored for each completion. It leaves out
        // this one, whose second part the caller has still to read.
        let count = self.completions.count();
        if count.wrapping_sub(self.stored) >= self.layout.capacity / 2 {
            self.stored = count;
            self.own.word(COMPLETIONS_CONSUMED).store(u64::from(count), Ordering::Release);
        }
        self.completions.advance();
    }

    /// The completion slot taken last, from its header and a private copy of the rest.
    pub fn whole(&self, header: u64) -> [u64; COMPLETION_WORDS] {
        self.completions.whole(&self.peer, &[header])
    }

    /// Takes the next completion slot as a private copy.
    pub fn pop(&mut self) -> Option<[u64; COMPLETION_WORDS]> {
        let header = self.peek_header()?;
        self.take_peeked();
        Some(self.whole(header))
    }

    /// Whether a completion waits.
    #[inline]
    pub fn ready(&self) -> bool {
        self.completions.ready(&self.peer)
    }

    /// Requests that the request with `tag` end early. Returns whether the worker must be woken.
    pub fn cancel(&mut self, tag: u32) -> bool {
        self.end_early(tag, cancel_of(tag))
    }

    /// Requests that the loop with `tag` end after its present round. Returns whether the worker must be woken.
    pub fn stop(&mut self, tag: u32) -> bool {
        let word = self.own.word(self.layout.cancel_word(tag)).load(Ordering::Relaxed);
        // A stop does not replace an earlier cancel.
        let how = if word == cancel_of(tag) { word } else { cancel_of(tag) | STOP };
        self.end_early(tag, how)
    }

    fn end_early(&mut self, tag: u32, how: u64) -> bool {
        self.cancelled = true;
        self.own.word(self.layout.cancel_word(tag)).store(how, Ordering::Relaxed);
        let generation = self.own.word(CANCEL_GENERATION);
        let next = generation.load(Ordering::Relaxed).wrapping_add(1);
        generation.store(next, Ordering::Release);
        self.worker_must_wake()
    }

    /// Progress of the request with `tag`: the bytes moved, and whether they count from the last byte down. This thread
    /// sees those bytes. `None` when the service reported no progress, which is optional.
    pub fn progress(&self, tag: u32) -> Option<(u64, bool)> {
        let word = self.peer.word(self.layout.progress_word(tag)).load(Ordering::Acquire);
        let of_tag = (word & !DOWNWARD) >> PROGRESS_BITS == progress_name(tag);
        (word != 0 && of_tag).then_some((word & ((1 << PROGRESS_BITS) - 1), word & DOWNWARD != 0))
    }

    /// Value of the parked flag for a thread that sleeps until a completion comes.
    pub const fn parked_for_completions() -> u64 {
        PARKED
    }

    /// Value of the parked flag for a thread that sleeps until a completion or progress comes.
    pub const fn parked_for_progress() -> u64 {
        PARKED_FOR_PROGRESS
    }

    /// Value of the parked flag for a client that wants a signal on its descriptor for completions it has not taken.
    pub fn signal_wanted(&self) -> u64 {
        SIGNAL_WANTED | u64::from(self.completions.count()) << TAKEN_SHIFT
    }

    /// A handle by which another thread sleeps on this queue pair.
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

    /// The word that the service changes when it wakes the client. The half that holds its low 32 bits is the futex.
    #[inline]
    pub fn wake_word(&self) -> &AtomicU64 {
        self.peer.word(WAKE_WORD)
    }

    #[inline]
    pub fn fences(&self) -> Fences {
        self.fences
    }
}

/// The part of a progress word that names its request.
const fn progress_name(tag: u32) -> u64 {
    cancel_of(tag) & ((1 << (63 - PROGRESS_BITS)) - 1)
}

/// The cancel word that names a request: not 0, for every tag.
#[inline]
const fn cancel_of(tag: u32) -> u64 {
    tag as u64 + 1
}

#[derive(Debug)]
pub struct ServiceEnd<S> {
    layout: Layout,
    own: S,
    peer: S,
    fences: Fences,
    submissions: Consumer<SUBMISSION_SHORT_WORDS, SUBMISSION_WORDS>,
    completions: Producer<COMPLETION_SHORT_WORDS, COMPLETION_WORDS>,
    /// The count of requests that this side last stored for the client.
    stored: u32,
    /// The count of completions for which the client's flag was looked at.
    announced: u32,
    cancel_seen: u64,
}

impl<S: RingStorage> ServiceEnd<S> {
    /// Makes the service's side of zeroed memories.
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn new(layout: Layout, client: S, service: S, fences: Fences) -> Result<Self, TooSmall> {
        layout.check(&client, &service)?;
        Ok(Self {
            layout,
            own: service,
            peer: client,
            fences,
            submissions: Consumer::new(layout.submission_slots()),
            completions: Producer::new(layout.completion_slots()),
            stored: 0,
            announced: 0,
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

    /// Takes the first part of the next request as a private copy, in registers. Of a long request, [`whole`](Self::whole) has the
    /// rest.
    #[inline]
    pub fn pop_first(&mut self) -> Option<ShortSlot> {
        self.submissions.pop_first(&self.peer)
    }

    /// The request taken last, from its first part and a private copy of its second part, if it has one. Call it before the count of
    /// taken requests is published.
    #[inline]
    pub fn whole(&self, first: &ShortSlot) -> [u64; SUBMISSION_WORDS] {
        self.submissions.whole(&self.peer, first)
    }

    /// Prefetches the slots of further requests. `second` means that this is the second request of a batch.
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

    /// Whether a request or a cancel waits, so that the worker must not sleep.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.ready() || self.cancels_pending()
    }

    /// Stores the count of taken requests for the client once it lags by more than a quarter of the capacity.
    #[inline]
    pub fn publish_consumed(&mut self) {
        let count = self.submissions.count();
        if count.wrapping_sub(self.stored) > self.layout.capacity / 4 {
            self.publish_all_consumed();
        }
    }

    /// Stores the count of taken requests for the client, if it changed.
    pub fn publish_all_consumed(&mut self) {
        let count = self.submissions.count();
        if count != self.stored {
            self.stored = count;
            self.own.word(SUBMISSIONS_CONSUMED).store(u64::from(count), Ordering::Release);
        }
    }

    /// As [`completion_room`](Self::completion_room), by the client's last known count. It spares a load from the client's
    /// memory, whose cache line moves when the client writes its count.
    #[inline]
    pub fn known_completion_room(&self) -> u32 {
        self.completions.free()
    }

    /// The number of completions that can be staged now without overwriting one that the client has not read.
    ///
    /// # Errors
    /// [`ImpossibleCount`] from a client that breaks the protocol.
    #[inline]
    pub fn completion_room(&mut self) -> Result<u32, ImpossibleCount> {
        let claimed = self.peer.word(COMPLETIONS_CONSUMED).load(Ordering::Acquire);
        self.completions.consumed(claimed as u32)?;
        Ok(self.completions.free())
    }

    /// Writes a completion. It becomes visible when its cache line is full, or with [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`RingFull`]: more completions than admission reserved.
    #[inline]
    pub fn stage(&mut self, slot: &[u64; COMPLETION_WORDS]) -> Result<(), RingFull> {
        self.completions.stage(&self.own, slot)?;
        self.publish_line();
        Ok(())
    }

    /// As [`stage`](Self::stage), for a completion without second part.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    #[inline]
    pub fn stage_short(&mut self, header: u64) -> Result<(), RingFull> {
        self.completions.stage_short(&self.own, [header])?;
        self.publish_line();
        Ok(())
    }

    /// As [`stage_short`](Self::stage_short), and visible at once, with all staged completions.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    #[inline]
    pub fn put_short(&mut self, header: u64) -> Result<(), RingFull> {
        self.completions.put_short(&self.own, [header])
    }

    #[inline]
    fn publish_line(&mut self) {
        if self.completions.ends_line() {
            self.completions.publish(&self.own);
        }
    }

    /// Makes staged completions visible. Returns whether the client must be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.publish_for() != 0
    }

    /// Makes staged completions visible. Returns the client's flag, which says how to wake it; 0 when it need not be woken. Completions
    /// of full cache lines are visible already, but nobody looked at the flag for them.
    #[inline]
    pub fn publish_for(&mut self) -> u64 {
        self.completions.publish(&self.own);
        let published = self.completions.published();
        if published == self.announced {
            return 0;
        }
        self.announced = published;
        wanted(self.peer.word(CLIENT_PARKED), self.fences)
    }

    /// Whether a cancel was requested since the last call.
    pub fn cancels_changed(&mut self) -> bool {
        let generation = self.peer.word(CANCEL_GENERATION).load(Ordering::Acquire);
        std::mem::replace(&mut self.cancel_seen, generation) != generation
    }

    /// Whether a cancel was requested that [`cancels_changed`](Self::cancels_changed) has not yet reported.
    #[inline]
    pub fn cancels_pending(&self) -> bool {
        self.peer.word(CANCEL_GENERATION).load(Ordering::Relaxed) != self.cancel_seen
    }

    /// Whether any cancel was requested on this queue so far. After a request was popped, this covers each cancel that was
    /// requested before the request was published.
    #[inline]
    pub fn cancels_asked(&self) -> bool {
        self.peer.word(CANCEL_GENERATION).load(Ordering::Relaxed) != 0
    }

    /// Whether the client requested a cancel of the request with `tag`.
    #[inline]
    pub fn cancel_requested(&self, tag: u32) -> bool {
        self.peer.word(self.layout.cancel_word(tag)).load(Ordering::Relaxed) == cancel_of(tag)
    }

    /// Whether the client requested a stop of the loop with `tag`.
    pub fn stop_requested(&self, tag: u32) -> bool {
        let word = self.peer.word(self.layout.cancel_word(tag)).load(Ordering::Relaxed);
        word == cancel_of(tag) | STOP
    }

    /// A private copy of `words` words of the list area from `first`; `None` when they leave the area.
    pub fn fetch_list(&self, first: u64, words: usize) -> Option<Vec<u64>> {
        let first = usize::try_from(first).ok()?;
        let end = first.checked_add(words).filter(|end| *end <= self.layout.list_words())?;
        let list = self.peer.slice(self.layout.list_area() + first, end - first);
        Some(list.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    /// Stores the progress of the request with `tag`. A client that reads it sees the bytes moved so far. Returns whether a
    /// client thread sleeps until progress comes and must be woken.
    pub fn publish_progress(&self, tag: u32, bytes: u64, downward: bool) -> bool {
        let bytes = bytes.min((1 << PROGRESS_BITS) - 1);
        let down = if downward { DOWNWARD } else { 0 };
        let word = progress_name(tag) << PROGRESS_BITS | bytes | down;
        self.own.word(self.layout.progress_word(tag)).store(word, Ordering::Release);
        self.client_flag() == PARKED_FOR_PROGRESS
    }

    /// Whether `flag` asks for a signal on the client's descriptor and there are completions that the client has not taken.
    pub fn wants_signal(&self, flag: u64) -> bool {
        flag & SIGNAL_WANTED != 0 && (flag >> TAKEN_SHIFT) as u32 != self.completions.published()
    }

    /// Loads the client's flag.
    pub fn client_flag(&self) -> u64 {
        self.fences.light();
        self.peer.word(CLIENT_PARKED).load(Ordering::Relaxed)
    }

    /// Clears the progress of an ended request, for the next request with the same slot.
    pub fn clear_progress(&self, tag: u32) {
        self.own.word(self.layout.progress_word(tag)).store(0, Ordering::Relaxed);
    }

    /// What a worker keeps of this queue pair while it expects no request.
    pub fn watch(&self) -> Watch<S>
    where
        S: Clone,
    {
        let (header, sequence) = self.submissions.next_header();
        Watch::new(self.peer.clone(), (header, sequence), self.cancel_seen)
    }

    /// Marks the queue pair as closed: no further completion will come.
    pub fn close(&self) {
        self.own.word(CLOSED).store(1, Ordering::Release);
        self.change_wake_word();
    }

    /// Tells the client which worker takes its requests from now on. Call it before that worker first looks for them.
    pub fn set_worker(&self, worker: usize) {
        self.own.word(WORKER).store(worker as u64, Ordering::Relaxed);
    }

    /// Changes the word on which a parked client sleeps. The caller then wakes its futex.
    pub fn change_wake_word(&self) {
        let word = self.own.word(WAKE_WORD);
        let next = word.load(Ordering::Relaxed).wrapping_add(1);
        word.store(next, Ordering::Release);
    }

    /// The word on which a parked client sleeps.
    #[inline]
    pub fn wake_word(&self) -> &AtomicU64 {
        self.own.word(WAKE_WORD)
    }

    #[inline]
    pub fn fences(&self) -> Fences {
        self.fences
    }
}

#[cfg(not(loom))]
pub mod futex;

#[cfg(all(test, not(loom)))]
mod tests;
