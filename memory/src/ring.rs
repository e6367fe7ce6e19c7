//! A ring of slots between a producer and a consumer that do not trust each other.
//!
//! ```text
//! stage:   words 1..; the header is kept aside                   (not visible: the one in the slot is a lap old)
//! publish: header with the sequence of this lap, release
//! pop:     header, acquire; wrong sequence means empty; then the rest, ONCE, into a private copy
//! ```
//!
//! Each slot carries its own sequence in the low half of word 0, so an idle consumer polls exactly the cache line that
//! the next request arrives in, and a lying producer can at worst make a slot look empty or full of nonsense, which the
//! decoder refuses. The one index that crosses sides is the consumer's count, which tells the producer what it may
//! overwrite; it is a hint, checked against what the producer knows ([`Producer::consumed`]).
//! Nothing here sleeps, wakes or decodes.

use thiserror::Error;

use crate::storage::RingStorage;
use crate::sync::Ordering;

/// Bit of word 0 that tells that a slot uses more than its first [`Slots::short_words`] words.
pub const LONG: u64 = 1 << 63;

const SEQUENCE: u64 = 0xffff_ffff;

/// How many slots ahead of the one in hand the next ones are fetched.
const AHEAD: u32 = 6;

/// Where a ring's slots lie in a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// First word of slot 0.
    pub first_word: usize,
    /// Number of slots, a power of two, at most 2^16.
    pub capacity: u32,
    /// Words read of a slot without [`LONG`].
    pub short_words: usize,
}

impl Slots {
    #[inline]
    const fn at(&self, position: u32, words: usize) -> usize {
        self.first_word + (position & (self.capacity - 1)) as usize * words
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
    /// Headers of staged slots, by slot.
    headers: Box<[u64]>,
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
        let headers = (0..slots.capacity).map(|_| 0).collect();
        Self { slots, headers, staged: 0, published: 0, consumed: 0 }
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
            let (published, known) = (self.published, self.consumed);
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
        let at = self.slots.at(self.staged, WORDS);
        let used = if slot[0] & LONG == 0 { self.slots.short_words } else { WORDS };
        let words = storage.slice(at + 1, used - 1);
        for (word, value) in words.iter().zip(&slot[1..used]) {
            word.store(*value, Ordering::Relaxed);
        }
        // What lies in the slot's header has the sequence of a lap ago: no consumer waits for it any more.
        self.headers[(self.staged & (self.slots.capacity - 1)) as usize] = slot[0];
        self.staged = self.staged.wrapping_add(1);
        // The consumer has read the line of a slot a lap ago: taking it back takes as long as handing it over.
        storage.prefetch(self.slots.at(self.staged.wrapping_add(AHEAD), WORDS), true);
        Ok(())
    }

    /// Makes everything staged visible, in order; returns how many.
    #[inline]
    pub fn publish<S: RingStorage>(&mut self, storage: &S) -> u32 {
        let count = self.staged.wrapping_sub(self.published);
        while self.published != self.staged {
            let header = self.headers[(self.published & (self.slots.capacity - 1)) as usize];
            let word = storage.word(self.slots.at(self.published, WORDS));
            word.store(header & !SEQUENCE | sequence(self.published), Ordering::Release);
            self.published = self.published.wrapping_add(1);
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
        let header = storage.word(self.slots.at(self.consumed, WORDS));
        header.load(Ordering::Relaxed) & SEQUENCE == sequence(self.consumed)
    }

    /// Fetches the line of a slot further on: worth while where more than one element is known to wait.
    #[inline]
    pub fn look_ahead<S: RingStorage>(&self, storage: &S) {
        storage.prefetch(self.slots.at(self.consumed.wrapping_add(AHEAD), WORDS), false);
    }

    /// Takes the next element as a private copy, its sequence cleared; words beyond a short slot are zero.
    #[inline]
    pub fn pop<S: RingStorage>(&mut self, storage: &S) -> Option<[u64; WORDS]> {
        let at = self.slots.at(self.consumed, WORDS);
        let header = storage.word(at).load(Ordering::Acquire);
        if header & SEQUENCE != sequence(self.consumed) {
            return None;
        }
        let mut slot = [0; WORDS];
        slot[0] = header & !SEQUENCE;
        let used = if header & LONG == 0 { self.slots.short_words } else { WORDS };
        let words = storage.slice(at + 1, used - 1);
        for (word, value) in words.iter().zip(&mut slot[1..used]) {
            *value = word.load(Ordering::Relaxed);
        }
        self.consumed = self.consumed.wrapping_add(1);
        Some(slot)
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
