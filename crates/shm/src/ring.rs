//! A ring of slots between a producer and a consumer that do not trust each other.
//!
//! ```text
//! stage:   keep the first part of the slot in private memory (not visible); write the second part, if the slot has one
//! publish: write all kept parts, the first one last; within a part, write the header (this lap's sequence) last
//! pop:     load the header with acquire; a wrong sequence means empty; then copy the rest ONCE into private memory
//! ```
//!
//! The low 16 bits of word 0 of each slot, its header, hold a sequence number. So an idle consumer polls exactly the cache
//! line in which the next element arrives. A dishonest producer can at worst make a slot look empty or fill it with
//! nonsense, which the decoder refuses. One index crosses sides: the consumer's count, which frees slots for the
//! producer. It is a hint that the producer checks against its own counts ([`Producer::consumed`]).
//!
//! A slot has a short first part, which most elements need alone, and a second part. Both have constant sizes, so that an element
//! crosses in registers.
//!
//! This module does not sleep, wake or decode.

use memferry_transfer::wire::HEADER_SEQUENCE as SEQUENCE;
use thiserror::Error;

use crate::storage::RingStorage;
use crate::sync::Ordering;

/// Header flag: the slot uses its second part.
pub use memferry_transfer::wire::LONG;

/// Words of a cache line.
const LINE: usize = 8;

/// Prefetch distance in words: four cache lines.
const AHEAD: usize = 4 * LINE;

/// Limit on the first parts kept in private memory; at the limit all but the first are written.
const MAX_KEPT: usize = 32;

/// Limit on the slots of a ring: of 16 bits of sequence, each lap has others than the one before.
const MAX_CAPACITY: u32 = 1 << 15;

/// Position of a ring's slots in a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// First word of slot 0. All slots together take `capacity` times the words of one.
    pub first_word: usize,
    /// Number of slots, a power of two, at most 2^15.
    pub capacity: u32,
}

impl Slots {
    /// The first word of a slot's first part of `short` words. All first parts are contiguous and all second parts follow them, so
    /// short elements fill consecutive cache lines, which the CPU prefetches.
    #[inline]
    const fn at(&self, position: u32, short: usize) -> usize {
        self.first_word + (position & (self.capacity - 1)) as usize * short
    }

    /// The first word of a slot's second part of `words - short` words.
    #[inline]
    const fn rest(&self, position: u32, short: usize, words: usize) -> usize {
        let first = self.first_word + self.capacity as usize * short;
        first + (position & (self.capacity - 1)) as usize * (words - short)
    }
}

/// The sequence number in a slot's header while the slot holds the element at `position`.
#[inline]
const fn sequence(position: u32) -> u64 {
    position.wrapping_add(1) as u64 & SEQUENCE
}

/// The peer's consumer count is impossible. All counts are modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "the peer claims to have consumed {claimed} elements, but {published} were published and {known} were consumed before"
)]
pub struct ImpossibleCount {
    /// The count that the peer wrote.
    pub claimed: u32,
    /// Elements that this side published.
    pub published: u32,
    /// The peer's last valid count.
    pub known: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the ring is full")]
pub struct RingFull;

/// The side that writes slots of `WORDS` words, of which the first `SHORT` are the first part.
#[derive(Debug)]
pub struct Producer<const SHORT: usize, const WORDS: usize> {
    slots: Slots,
    /// First parts of staged slots that are not written: the first, whose cache line the consumer polls, and the latest. Written
    /// together, their cache lines move from the consumer's cache in parallel; with other work in between, one after the other.
    kept: [[u64; SHORT]; MAX_KEPT],
    kept_count: usize,
    staged: u32,
    published: u32,
    consumed: u32,
}

impl<const SHORT: usize, const WORDS: usize> Producer<SHORT, WORDS> {
    /// Makes the producer of an empty ring.
    ///
    /// # Panics
    /// When the capacity is not a power of two up to 2^15. It comes from this crate's layout, never from a peer.
    pub fn new(slots: Slots) -> Self {
        assert!(slots.capacity.is_power_of_two() && slots.capacity <= MAX_CAPACITY);
        let kept = [[0; SHORT]; MAX_KEPT];
        Self { slots, kept, kept_count: 0, staged: 0, published: 0, consumed: 0 }
    }

    /// The number of slots that can be staged now.
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

    /// The peer's last valid count, modulo 2^32.
    #[inline]
    pub fn known_consumed(&self) -> u32 {
        self.consumed
    }

    /// Takes over the peer's count after a check.
    ///
    /// # Errors
    /// [`ImpossibleCount`]; the known count is then unchanged.
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

    /// Whether a claimed count is possible and more than is known: the peer may store its count late, or lie.
    #[inline]
    pub fn is_news(&self, claimed: u32) -> bool {
        let more = claimed.wrapping_sub(self.consumed);
        more != 0 && more <= self.published.wrapping_sub(self.consumed)
    }

    /// Queues `slot` without making it visible.
    ///
    /// # Errors
    /// [`RingFull`].
    #[inline]
    pub fn stage<S: RingStorage>(&mut self, storage: &S, slot: &[u64; WORDS]) -> Result<(), RingFull> {
        let (first, rest) = slot.split_at(SHORT);
        if slot[0] & LONG != 0 {
            if self.free() == 0 {
                return Err(RingFull);
            }
            // The consumer reads a second part only after its header, which is not yet written.
            let at = self.slots.rest(self.staged, SHORT, WORDS);
            for (word, value) in storage.slice(at, WORDS - SHORT).iter().zip(rest) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        let mut short = [0; SHORT];
        short.copy_from_slice(first);
        self.stage_short(storage, short)
    }

    /// Queues a slot without second part, and without [`LONG`] in its header.
    ///
    /// # Errors
    /// [`RingFull`].
    // Called, it would read the slot from memory in pairs of words that were just written one by one, which no store buffer forwards.
    #[inline(always)]
    pub fn stage_short<S: RingStorage>(&mut self, storage: &S, slot: [u64; SHORT]) -> Result<(), RingFull> {
        if self.free() == 0 {
            return Err(RingFull);
        }
        if self.kept_count == MAX_KEPT {
            self.make_kept_room(storage);
        }
        self.kept[self.kept_count] = slot;
        self.kept_count += 1;
        self.staged = self.staged.wrapping_add(1);
        Ok(())
    }

    /// Queues a slot without second part, and makes it and all staged slots visible. A slot alone does not pass through private memory.
    ///
    /// # Errors
    /// [`RingFull`]; nothing was made visible.
    #[inline(always)]
    pub fn put_short<S: RingStorage>(&mut self, storage: &S, slot: [u64; SHORT]) -> Result<(), RingFull> {
        if self.staged != self.published {
            self.stage_short(storage, slot)?;
            self.publish(storage);
            return Ok(());
        }
        if self.free() == 0 {
            return Err(RingFull);
        }
        self.write(storage, self.staged, &slot);
        self.staged = self.staged.wrapping_add(1);
        self.published = self.staged;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn make_kept_room<S: RingStorage>(&mut self, storage: &S) {
        self.write_latest(storage);
    }

    /// Whether the staged slots end with a cache line.
    #[inline]
    pub fn ends_line(&self) -> bool {
        (self.staged as usize).is_multiple_of(LINE / SHORT)
    }

    /// Writes all kept parts but the first. The consumer does not read them before it has taken the first.
    #[inline]
    fn write_latest<S: RingStorage>(&mut self, storage: &S) {
        let first = self.staged.wrapping_sub(self.kept_count as u32);
        for (index, slot) in (1..).zip(&self.kept[1..self.kept_count.max(1)]) {
            self.write(storage, first.wrapping_add(index), slot);
        }
        self.kept_count = self.kept_count.min(1);
    }

    /// Writes a first part, its header last.
    #[inline(always)]
    fn write<S: RingStorage>(&self, storage: &S, position: u32, slot: &[u64; SHORT]) {
        let words = storage.array::<SHORT>(self.slots.at(position, SHORT));
        for (word, value) in words[1..].iter().zip(&slot[1..]) {
            word.store(*value, Ordering::Relaxed);
        }
        words[0].store(slot[0] & !SEQUENCE | sequence(position), Ordering::Release);
    }

    /// Makes all staged slots visible, in order, and returns their number.
    #[inline]
    pub fn publish<S: RingStorage>(&mut self, storage: &S) -> u32 {
        let count = self.staged.wrapping_sub(self.published);
        if count > 0 {
            self.write_latest(storage);
            self.write(storage, self.published, &self.kept[0]);
            self.kept_count = 0;
            self.published = self.staged;
        }
        count
    }
}

/// The side that reads slots of `WORDS` words, of which the first `SHORT` are the first part.
#[derive(Debug)]
pub struct Consumer<const SHORT: usize, const WORDS: usize> {
    slots: Slots,
    consumed: u32,
}

impl<const SHORT: usize, const WORDS: usize> Consumer<SHORT, WORDS> {
    /// Makes the consumer of an empty ring.
    ///
    /// # Panics
    /// As [`Producer::new`].
    pub fn new(slots: Slots) -> Self {
        assert!(slots.capacity.is_power_of_two() && slots.capacity <= MAX_CAPACITY);
        Self { slots, consumed: 0 }
    }

    /// Elements taken so far, modulo 2^32: the count that the producer reads.
    #[inline]
    pub fn count(&self) -> u32 {
        self.consumed
    }

    /// Whether an element waits.
    #[inline]
    pub fn ready<S: RingStorage>(&self, storage: &S) -> bool {
        let header = storage.word(self.slots.at(self.consumed, SHORT));
        header.load(Ordering::Relaxed) & SEQUENCE == sequence(self.consumed)
    }

    /// The word that holds the sequence of the next element, and that sequence.
    pub(crate) fn next_header(&self) -> (usize, u64) {
        (self.slots.at(self.consumed, SHORT), sequence(self.consumed))
    }

    /// Prefetches the cache line at the prefetch distance. This pays off when more than one element waits.
    #[inline]
    pub fn look_ahead<S: RingStorage>(&self, storage: &S) {
        storage.prefetch(self.slots.at(self.consumed.wrapping_add((AHEAD / SHORT) as u32), SHORT));
    }

    /// Prefetches the cache lines from the next one up to the prefetch distance.
    #[inline]
    pub fn look_all_ahead<S: RingStorage>(&self, storage: &S) {
        for distance in (0..AHEAD / SHORT).step_by(LINE / SHORT) {
            storage.prefetch(self.slots.at(self.consumed.wrapping_add(distance as u32), SHORT));
        }
    }

    /// The header of the next element with its sequence cleared. The element stays in the ring.
    #[inline]
    pub fn peek<S: RingStorage>(&self, storage: &S) -> Option<u64> {
        let header = storage.word(self.slots.at(self.consumed, SHORT)).load(Ordering::Acquire);
        (header & SEQUENCE == sequence(self.consumed)).then_some(header & !SEQUENCE)
    }

    /// Takes the next element, which [`peek`](Self::peek) has seen.
    #[inline]
    pub fn advance(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Takes the next element as a private copy of its first part with its sequence cleared. If the header has [`LONG`], the caller
    /// copies the second part by [`whole`](Self::whole) before anybody learns of the [`count`](Self::count).
    #[inline]
    pub fn pop_first<S: RingStorage>(&mut self, storage: &S) -> Option<[u64; SHORT]> {
        let words = storage.array::<SHORT>(self.slots.at(self.consumed, SHORT));
        let header = words[0].load(Ordering::Acquire);
        if header & SEQUENCE != sequence(self.consumed) {
            return None;
        }
        let mut slot = [header & !SEQUENCE; SHORT];
        for (value, word) in slot[1..].iter_mut().zip(&words[1..]) {
            *value = word.load(Ordering::Relaxed);
        }
        self.advance();
        Some(slot)
    }

    /// The element taken last, from its first part and a private copy of its second part. Words after a short slot are zero.
    #[inline]
    pub fn whole<S: RingStorage>(&self, storage: &S, first: &[u64; SHORT]) -> [u64; WORDS] {
        let mut slot = [0; WORDS];
        slot[..SHORT].copy_from_slice(first);
        if first[0] & LONG != 0 {
            let at = self.slots.rest(self.consumed.wrapping_sub(1), SHORT, WORDS);
            for (word, value) in storage.slice(at, WORDS - SHORT).iter().zip(&mut slot[SHORT..]) {
                *value = word.load(Ordering::Relaxed);
            }
        }
        slot
    }

    /// Takes the next element as a private copy with its sequence cleared. Words after a short slot are zero.
    #[inline]
    pub fn pop<S: RingStorage>(&mut self, storage: &S) -> Option<[u64; WORDS]> {
        let first = self.pop_first(storage)?;
        Some(self.whole(storage, &first))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::HeapWords;

    const SLOTS: Slots = Slots { first_word: 0, capacity: 4 };

    fn ring() -> (HeapWords, Producer<2, 4>, Consumer<2, 4>) {
        (HeapWords::zeroed(16), Producer::new(SLOTS), Consumer::new(SLOTS))
    }

    #[test]
    fn staged_slots_are_invisible_until_published() {
        let (storage, mut producer, mut consumer) = ring();
        producer.stage(&storage, &[5 << 32, 1, 2, 3]).unwrap();
        assert_eq!(consumer.pop(&storage), None);
        assert_eq!(producer.publish(&storage), 1);
        assert_eq!(
            consumer.pop(&storage),
            Some([5 << 32, 1, 0, 0]),
            "the second part of a short slot was read"
        );
        assert!(!consumer.ready(&storage));
    }

    #[test]
    fn a_slot_is_put_behind_staged_ones() {
        let (storage, mut producer, mut consumer) = ring();
        for lap in 0..10 {
            producer.put_short(&storage, [1 << 32, lap]).unwrap();
            assert_eq!((producer.staged(), producer.published()), (4 * lap as u32 + 1, 4 * lap as u32 + 1));
            producer.stage(&storage, &[LONG, lap, 2, 0]).unwrap();
            producer.stage_short(&storage, [3 << 32, lap]).unwrap();
            assert_eq!(consumer.pop(&storage), Some([1 << 32, lap, 0, 0]));
            assert!(!consumer.ready(&storage), "a staged slot is visible");
            producer.put_short(&storage, [4 << 32, lap]).unwrap();
            assert_eq!(producer.publish(&storage), 0);
            for slot in [[LONG, lap, 2, 0], [3 << 32, lap, 0, 0], [4 << 32, lap, 0, 0]] {
                assert_eq!(consumer.pop(&storage), Some(slot));
            }
            assert!(!consumer.ready(&storage));
            producer.consumed(consumer.count()).unwrap();
        }
        (0..4).for_each(|value| producer.put_short(&storage, [value << 32, 0]).unwrap());
        assert_eq!(producer.put_short(&storage, [0; 2]), Err(RingFull));
        assert_eq!(producer.stage_short(&storage, [0; 2]), Err(RingFull));
    }

    #[test]
    fn refuses_a_slot_while_the_ring_is_full() {
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
    fn an_impossible_count_changes_nothing() {
        let (storage, mut producer, mut consumer) = ring();
        producer.stage(&storage, &[0, 1, 2, 3]).unwrap();
        producer.publish(&storage);
        for claimed in [2, 5, u32::MAX, 1 << 31] {
            assert!(!producer.is_news(claimed));
            let error = ImpossibleCount { claimed, published: 1, known: 0 };
            assert_eq!(producer.consumed(claimed), Err(error));
        }
        consumer.pop(&storage).unwrap();
        assert!(producer.is_news(1) && !producer.is_news(0));
        producer.consumed(1).unwrap();
        assert!(!producer.is_news(1) && !producer.is_news(0), "one that lags says nothing new");
        assert!(producer.consumed(0).is_err(), "the count went back");
        assert_eq!(producer.free(), 4);
    }

    #[test]
    fn indices_wrap_at_32_bits() {
        let (storage, mut producer, mut consumer) = ring();
        let near_end = u32::MAX - 2;
        producer.staged = near_end;
        producer.published = near_end;
        producer.consumed = near_end;
        consumer.consumed = near_end;
        for value in 0..8 {
            producer.stage(&storage, &[0, value, 0, 0]).unwrap();
            producer.publish(&storage);
            assert_eq!(consumer.pop(&storage), Some([0, value, 0, 0]));
            producer.consumed(consumer.count()).unwrap();
        }
    }
}
