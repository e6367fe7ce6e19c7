//! The bare ring with an honest producer and with a hostile one.
//!
//! A hostile producer can make the consumer take nonsense, but the consumer takes each position once and uses one copy of
//! it. These tests do not decode elements.

use loom::sync::atomic::Ordering;
use loom::thread;
use memferry_shm::ring::{Consumer, LONG, Producer, Slots};
use memferry_shm::storage::{HeapWords, RingStorage};

use crate::explore;

pub(crate) const WORDS: usize = 3;
/// Words of the first part.
pub(crate) const SHORT: usize = 2;
pub(crate) const SLOTS: Slots = Slots { first_word: 0, capacity: 2 };
/// Index of each slot's header.
const HEADERS: [usize; 2] = [0, 2];
/// Index of slot 0's second part.
const REST: usize = 4;
/// Index of the word to which the consumer of the bare ring stores its count.
const COUNT: usize = 2 * WORDS;
/// Index of the parked flag of the bare ring.
pub(crate) const FLAG: usize = COUNT + 1;

pub(crate) fn words() -> HeapWords {
    HeapWords::zeroed(FLAG + 1)
}

/// Element `value`: odd ones are long, even ones short.
pub(crate) fn element(value: u64) -> [u64; WORDS] {
    if value % 2 == 1 { [LONG | value << 32, value, value] } else { [value << 32, value, 0] }
}

fn stage_when_free(producer: &mut Producer<SHORT, WORDS>, storage: &HeapWords, value: u64) {
    while producer.free() == 0 {
        producer.consumed(storage.word(COUNT).load(Ordering::Acquire) as u32).unwrap();
        if producer.free() == 0 {
            thread::yield_now();
        }
    }
    producer.stage(storage, &element(value)).unwrap();
}

fn pop_when_ready(consumer: &mut Consumer<SHORT, WORDS>, storage: &HeapWords) -> [u64; WORDS] {
    loop {
        if let Some(slot) = consumer.pop(storage) {
            return slot;
        }
        thread::yield_now();
    }
}

fn store_count(consumer: &Consumer<SHORT, WORDS>, storage: &HeapWords) {
    storage.word(COUNT).store(u64::from(consumer.count()), Ordering::Release);
}

/// Sends elements one by one through a ring of two slots; `consume` takes one and stores the count.
fn laps(consume: fn(&mut Consumer<SHORT, WORDS>, &HeapWords) -> [u64; WORDS]) {
    const ELEMENTS: u64 = 4;
    let storage = words();
    let shared = storage.clone();
    let sender = thread::spawn(move || {
        let mut producer = Producer::new(SLOTS);
        for value in 1..=ELEMENTS {
            stage_when_free(&mut producer, &shared, value);
            assert_eq!(producer.publish(&shared), 1);
        }
    });
    let mut consumer = Consumer::new(SLOTS);
    for value in 1..=ELEMENTS {
        assert_eq!(consume(&mut consumer, &storage), element(value), "torn, repeated or out of order");
    }
    sender.join().unwrap();
    assert_eq!(consumer.pop(&storage), None, "an element was taken twice");
}

#[test]
pub(crate) fn reused_slots_deliver_each_element_once() {
    explore(3, || {
        laps(|consumer, storage| {
            let slot = pop_when_ready(consumer, storage);
            store_count(consumer, storage);
            slot
        });
    });
}

#[test]
#[should_panic(expected = "torn, repeated or out of order")]
fn broken_count_stored_before_the_slot_is_copied() {
    explore(3, || {
        laps(|consumer, storage| {
            while !consumer.ready(storage) {
                thread::yield_now();
            }
            storage.word(COUNT).store(u64::from(consumer.count()) + 1, Ordering::Release);
            pop_when_ready(consumer, storage)
        });
    });
}

/// Sends two elements that are staged together and published by `publish`.
fn batch(publish: fn(&mut Producer<SHORT, WORDS>, &HeapWords)) {
    let storage = words();
    let shared = storage.clone();
    let sender = thread::spawn(move || {
        let mut producer = Producer::new(SLOTS);
        producer.stage(&shared, &element(1)).unwrap();
        producer.stage(&shared, &element(2)).unwrap();
        publish(&mut producer, &shared);
    });
    let mut consumer = Consumer::new(SLOTS);
    for value in 1..=2 {
        let slot = pop_when_ready(&mut consumer, &storage);
        assert_eq!(slot, element(value), "torn, repeated or out of order");
    }
    sender.join().unwrap();
}

#[test]
pub(crate) fn a_batch_arrives_whole_and_in_order() {
    explore(None, || batch(|producer, storage| assert_eq!(producer.publish(storage), 2)));
}

#[test]
#[should_panic(expected = "torn, repeated or out of order")]
fn broken_publish_without_release() {
    explore(3, || {
        batch(|_, storage| {
            for position in 0..2_u64 {
                let slot = element(position + 1);
                let at = HEADERS[position as usize];
                storage.word(REST + position as usize).store(slot[2], Ordering::Relaxed);
                storage.word(at + 1).store(slot[1], Ordering::Relaxed);
                storage.word(at).store(slot[0] | (position + 1), Ordering::Relaxed);
            }
        });
    });
}

/// Elements that a hostile producer writes to slot 0. Each header carries a sequence for which the consumer waits: the first
/// two that of position 0, the third that of the next lap.
const FORGED: [[u64; WORDS]; 3] =
    [[1 | 1 << 32, 11, 12], [LONG | 1 | 2 << 32, 21, 22], [3 | 3 << 32, 31, 32]];

/// Overwrites slot 0 repeatedly, each time the header before the other words, regardless of the consumer's count.
fn overwrite(storage: &HeapWords) {
    for forged in FORGED {
        storage.word(0).store(forged[0], Ordering::Relaxed);
        storage.word(REST).store(forged[2], Ordering::Relaxed);
        storage.word(1).store(forged[1], Ordering::Relaxed);
    }
}

/// Whether a consumer that reads each word once can return `slot` for position 0.
fn is_mixture(slot: &[u64; WORDS]) -> bool {
    let one_of = |word: usize| slot[word] == 0 || FORGED.iter().any(|forged| forged[word] == slot[word]);
    let header = [FORGED[0], FORGED[1]].iter().any(|forged| slot[0] == forged[0] & !0xffff);
    let tail = if slot[0] & LONG == 0 { slot[2] == 0 } else { one_of(2) };
    header && one_of(1) && tail
}

/// A consumer calls `pop` while the producer overwrites the slot. It may take position 0 once, and nothing else.
fn pop_while_overwritten(pop: fn(&mut Consumer<SHORT, WORDS>, &HeapWords) -> Option<[u64; WORDS]>) {
    let storage = words();
    let shared = storage.clone();
    let attacker = thread::spawn(move || overwrite(&shared));
    let mut consumer = Consumer::<SHORT, WORDS>::new(SLOTS);
    let mut taken = 0;
    for _ in 0..3 {
        let before = consumer.count();
        if let Some(slot) = pop(&mut consumer, &storage) {
            assert!(is_mixture(&slot), "no single copy gives {slot:x?}");
            taken += 1;
            assert_eq!(consumer.count(), before + 1);
        } else {
            assert_eq!(consumer.count(), before);
        }
    }
    attacker.join().unwrap();
    assert!(taken <= 1, "position 1 was taken, but never published");
}

#[test]
fn an_overwritten_slot_is_taken_once() {
    explore(None, || pop_while_overwritten(|consumer, storage| consumer.pop(storage)));
}

#[test]
#[should_panic(expected = "no single copy gives")]
fn broken_pop_that_reads_the_header_twice() {
    explore(3, || {
        pop_while_overwritten(|consumer, storage| {
            let mut slot = consumer.pop(storage)?;
            // Reads the header from shared memory again, after the check.
            slot[0] = storage.word(0).load(Ordering::Relaxed) & !0xffff;
            Some(slot)
        });
    });
}
