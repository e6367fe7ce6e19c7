//! A ring of slots between a producer and a consumer that do not trust each other.
//!
//! ```text
//! stage:   kept aside                                            (not visible)
//! publish: slot after slot in one go, the first last; headers, with the sequence of this lap, after the rest of a slot
//! pop:     header, acquire; wrong sequence means empty; then the rest, ONCE, into a private copy
//! ```
//!
//! Each slot carries its own sequence in the low half of word 0, so an idle consumer polls exactly the cache line that
//! the next request arrives in, and a lying producer can at worst make a slot look empty or full of nonsense, which the
//! decoder refuses. The one index that crosses sides is the consumer's count, which tells the producer what it may
//! overwrite; it is a hint, checked against what the producer knows ([`Producer::consumed`]).
//! Nothing here sleeps, wakes or decodes.

use memferry_transfer::wire::HEADER_SEQUENCE as SEQUENCE;
use thiserror::Error;

use crate::storage::RingStorage;
use crate::sync::Ordering;

/// Tells that a slot uses more than its first [`Slots::short_words`] words.
pub use memferry_transfer::wire::LONG;

/// How many slots ahead of the one in hand the next ones are fetched.
const AHEAD: u32 = 4;

/// Slots that are kept aside before the later ones of them are written.
const MOST_ASIDE: usize = 32;

/// Where a ring's slots lie in a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// First word of slot 0. The slots take `capacity` times the words of one in all.
    pub first_word: usize,
    /// Number of slots, a power of two, at most 2^16.
    pub capacity: u32,
    /// Words read of a slot without [`LONG`].
    pub short_words: usize,
}

impl Slots {
    /// The first word of a slot's first part. These lie side by side, and behind them all the second parts: short elements
    /// then fill line after line, which processors fetch ahead of need.
    #[inline]
    const fn at(&self, position: u32) -> usize {
        self.first_word + (position & (self.capacity - 1)) as usize * self.short_words
    }

    /// The first word of a slot's second part.
    #[inline]
    const fn rest(&self, position: u32, words: usize) -> usize {
        let first = self.first_word + self.capacity as usize * self.short_words;
        first + (position & (self.capacity - 1)) as usize * (words - self.short_words)
    }
}

/// The sequence a slot carries when the element at `position` is in it.
#[inline]
const fn sequence(position: u32) -> u64 {
    position.wrapping_add(1) as u64
}

/// The peer's consumer count is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "the peer says it consumed {claimed} elements when {published} were published and {known} consumed before"
)]
pub struct ImpossibleCount {
    /// What the peer wrote.
    pub claimed: u32,
    /// What this side published.
    pub published: u32,
    /// What the peer had consumed when it last said so.
    pub known: u32,
}

/// No slot is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the ring is full")]
pub struct RingFull;

/// The side that writes slots of `WORDS` words.
#[derive(Debug)]
pub struct Producer<const WORDS: usize> {
    slots: Slots,
    /// What is staged and was not written: the first, whose line the consumer polls, and the latest. Written in one go,
    /// their lines are taken back from the consumer side by side; with other work in between, one after the other.
    aside: Vec<[u64; WORDS]>,
    staged: u32,
    published: u32,
    consumed: u32,
}

impl<const WORDS: usize> Producer<WORDS> {
    /// A producer of an empty ring.
    ///
    /// # Panics
    /// When the capacity is no power of two up to 2^16: it is this crate's layout, not a peer's word.
    pub fn new(slots: Slots) -> Self {
        assert!(slots.capacity.is_power_of_two() && slots.capacity <= 1 << 16);
        Self { slots, aside: Vec::with_capacity(MOST_ASIDE), staged: 0, published: 0, consumed: 0 }
    }

    /// Slots that may be staged now.
    #[inline]
    pub fn free(&self) -> u32 {
        self.slots.capacity - self.staged.wrapping_sub(self.consumed)
    }

    /// Elements staged so far, modulo 2^32.
    #[inline]
    pub fn staged(&self) -> u32 {
        self.staged
    }

    /// Elements made visible so far, modulo 2^32.
    #[inline]
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Elements the peer is known to have consumed, modulo 2^32.
    #[inline]
    pub fn known_consumed(&self) -> u32 {
        self.consumed
    }

    /// Takes the peer's word for how much it consumed.
    ///
    /// # Errors
    /// [`ImpossibleCount`]; the known count stays.
    #[inline]
    pub fn consumed(&mut self, claimed: u32) -> Result<(), ImpossibleCount> {
        let outstanding = self.published.wrapping_sub(self.consumed);
        if claimed.wrapping_sub(self.consumed) > outstanding {
            let published = self.published;
            let known = self.consumed;
            return Err(ImpossibleCount { claimed, published, known });
        }
        self.consumed = claimed;
        Ok(())
    }

    /// Writes `slot` without making it visible.
    ///
    /// # Errors
    /// [`RingFull`].
    #[inline]
    pub fn stage<S: RingStorage>(&mut self, storage: &S, slot: &[u64; WORDS]) -> Result<(), RingFull> {
        if self.free() == 0 {
            return Err(RingFull);
        }
        if self.aside.len() == MOST_ASIDE {
            self.write_latest(storage);
        }
        self.aside.push(*slot);
        self.staged = self.staged.wrapping_add(1);
        Ok(())
    }

    /// Writes what is kept aside but for the first: nobody looks at a slot before the one before it was published.
    #[inline]
    fn write_latest<S: RingStorage>(&mut self, storage: &S) {
        let first = self.staged.wrapping_sub(self.aside.len() as u32);
        for (index, slot) in (1..).zip(self.aside.iter().skip(1)) {
            self.write(storage, first.wrapping_add(index), slot);
        }
        self.aside.truncate(1);
    }

    /// Writes a slot, its header last.
    #[inline]
    fn write<S: RingStorage>(&self, storage: &S, position: u32, slot: &[u64; WORDS]) {
        let at = self.slots.at(position);
        let short = self.slots.short_words;
        if slot[0] & LONG != 0 {
            storage.store_words(self.slots.rest(position, WORDS), &slot[short..]);
        }
        storage.store_words(at + 1, &slot[1..short]);
        storage.word(at).store(slot[0] & !SEQUENCE | sequence(position), Ordering::Release);
    }

    /// Makes everything staged visible, in order; returns how many.
    #[inline]
    pub fn publish<S: RingStorage>(&mut self, storage: &S) -> u32 {
        let count = self.staged.wrapping_sub(self.published);
        if count > 0 {
            self.write_latest(storage);
            if let Some(first) = self.aside.first() {
                self.write(storage, self.published, first);
            }
            self.aside.clear();
            self.published = self.staged;
        }
        count
    }
}

/// The side that reads slots of `WORDS` words.
#[derive(Debug)]
pub struct Consumer<const WORDS: usize> {
    slots: Slots,
    consumed: u32,
}

impl<const WORDS: usize> Consumer<WORDS> {
    /// A consumer of an empty ring.
    ///
    /// # Panics
    /// As [`Producer::new`].
    pub fn new(slots: Slots) -> Self {
        assert!(slots.capacity.is_power_of_two() && slots.capacity <= 1 << 16);
        Self { slots, consumed: 0 }
    }

    /// Elements taken so far, modulo 2^32: what is told to the producer.
    #[inline]
    pub fn count(&self) -> u32 {
        self.consumed
    }

    /// Whether an element waits.
    #[inline]
    pub fn ready<S: RingStorage>(&self, storage: &S) -> bool {
        let header = storage.word(self.slots.at(self.consumed));
        header.load(Ordering::Relaxed) & SEQUENCE == sequence(self.consumed)
    }

    /// Fetches the line of a slot further on: worth while where more than one element is known to wait.
    #[inline]
    pub fn look_ahead<S: RingStorage>(&self, storage: &S) {
        storage.prefetch(self.slots.at(self.consumed.wrapping_add(AHEAD)));
    }

    /// Fetches the lines of the slots up to there.
    #[inline]
    pub fn look_all_ahead<S: RingStorage>(&self, storage: &S) {
        for distance in 0..AHEAD {
            storage.prefetch(self.slots.at(self.consumed.wrapping_add(distance)));
        }
    }

    /// Takes the next element as a private copy, its sequence cleared; words beyond a short slot are zero.
    #[inline]
    pub fn pop<S: RingStorage>(&mut self, storage: &S) -> Option<[u64; WORDS]> {
        let mut slot = [0; WORDS];
        self.pop_into(storage, &mut slot).then_some(slot)
    }

    /// Takes the next element into `slot`; words beyond a short one stay as they are. Whether there was one.
    #[inline]
    pub fn pop_into<S: RingStorage>(&mut self, storage: &S, slot: &mut [u64; WORDS]) -> bool {
        let at = self.slots.at(self.consumed);
        let short = self.slots.short_words;
        let words = storage.slice(at, short);
        let header = words[0].load(Ordering::Acquire);
        if header & SEQUENCE != sequence(self.consumed) {
            return false;
        }
        slot[0] = header & !SEQUENCE;
        for (word, value) in words[1..].iter().zip(&mut slot[1..short]) {
            *value = word.load(Ordering::Relaxed);
        }
        if header & LONG != 0 {
            let rest = storage.slice(self.slots.rest(self.consumed, WORDS), WORDS - short);
            for (word, value) in rest.iter().zip(&mut slot[short..]) {
                *value = word.load(Ordering::Relaxed);
            }
        }
        self.consumed = self.consumed.wrapping_add(1);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::HeapWords;

    const SLOTS: Slots = Slots { first_word: 0, capacity: 4, short_words: 2 };

    fn ring() -> (HeapWords, Producer<4>, Consumer<4>) {
        (HeapWords::zeroed(16), Producer::new(SLOTS), Consumer::new(SLOTS))
    }

    #[test]
    fn staged_slots_are_invisible_until_published() {
        let (storage, mut producer, mut consumer) = ring();
        producer.stage(&storage, &[5 << 32, 1, 2, 3]).unwrap();
        assert_eq!(consumer.pop(&storage), None);
        assert_eq!(producer.publish(&storage), 1);
        assert_eq!(consumer.pop(&storage), Some([5 << 32, 1, 0, 0]), "short: the second half is not read");
        assert!(!consumer.ready(&storage));
    }

    #[test]
    fn refuses_slot_when_ring_is_full_and_carries_on_when_it_is_not() {
        let (storage, mut producer, mut consumer) = ring();
        for lap in 0..10u64 {
            for index in 0..4 {
                producer.stage(&storage, &[LONG, lap, index, 7]).unwrap();
            }
            assert_eq!(producer.stage(&storage, &[0; 4]), Err(RingFull));
            producer.publish(&storage);
            for index in 0..4 {
                assert_eq!(consumer.pop(&storage), Some([LONG, lap, index, 7]));
            }
            assert_eq!(consumer.pop(&storage), None);
            producer.consumed(consumer.count()).unwrap();
        }
    }

    #[test]
    fn a_lying_count_is_refused_and_changes_nothing() {
        let (storage, mut producer, mut consumer) = ring();
        producer.stage(&storage, &[0, 1, 2, 3]).unwrap();
        producer.publish(&storage);
        for claimed in [2, 5, u32::MAX, 1 << 31] {
            let error = ImpossibleCount { claimed, published: 1, known: 0 };
            assert_eq!(producer.consumed(claimed), Err(error));
        }
        consumer.pop(&storage).unwrap();
        producer.consumed(1).unwrap();
        assert!(producer.consumed(0).is_err(), "a count that goes back");
        assert_eq!(producer.free(), 4);
    }

    #[test]
    fn indices_wrap_at_32_bits() {
        let (storage, mut producer, mut consumer) = ring();
        let near_end = u32::MAX - 2;
        (producer.staged, producer.published, producer.consumed) = (near_end, near_end, near_end);
        consumer.consumed = near_end;
        for value in 0..8 {
            producer.stage(&storage, &[0, value, 0, 0]).unwrap();
            producer.publish(&storage);
            assert_eq!(consumer.pop(&storage), Some([0, value, 0, 0]));
            producer.consumed(consumer.count()).unwrap();
        }
    }
}
