//! The bare ring between an honest producer and its consumer, and between a hostile one and its consumer.
//!
//! A consumer that is told lies may take nonsense, but it takes each position once and judges one copy. Decoding what was
//! taken is not exercised here.

use loom::sync::atomic::Ordering;
use loom::thread;
use memferry_shm::ring::{Consumer, LONG, Producer, Slots};
use memferry_shm::storage::{HeapWords, RingStorage};

use crate::explore;

const WORDS: usize = 3;
pub(crate) const SLOTS: Slots = Slots { first_word: 0, capacity: 2, short_words: 2 };
/// Where the slots have their headers, and where their second parts begin.
const HEADERS: [usize; 2] = [0, 2];
const REST: usize = 4;
/// Where the consumer of the bare ring tells its count.
const COUNT: usize = 2 * WORDS;
/// Where the parker of the bare ring has its flag.
pub(crate) const FLAG: usize = COUNT + 1;

pub(crate) fn words() -> HeapWords {
    HeapWords::zeroed(FLAG + 1)
}

/// Element `value`: odd ones are long, even ones short.
pub(crate) fn element(value: u64) -> [u64; WORDS] {
    if value % 2 == 1 { [LONG | value << 32, value, value] } else { [value << 32, value, 0] }
}

fn stage_when_free(producer: &mut Producer<WORDS>, storage: &HeapWords, value: u64) {
    while producer.free() == 0 {
        producer.consumed(storage.word(COUNT).load(Ordering::Acquire) as u32).unwrap();
        if producer.free() == 0 {
            thread::yield_now();
        }
    }
    producer.stage(storage, &element(value)).unwrap();
}

fn pop_when_ready(consumer: &mut Consumer<WORDS>, storage: &HeapWords) -> [u64; WORDS] {
    loop {
        if let Some(slot) = consumer.pop(storage) {
            return slot;
        }
        thread::yield_now();
    }
}

fn tell(consumer: &Consumer<WORDS>, storage: &HeapWords) {
    storage.word(COUNT).store(u64::from(consumer.count()), Ordering::Release);
}

/// One element after the other through a ring of two slots; `consume` takes one and tells the count.
fn laps(consume: fn(&mut Consumer<WORDS>, &HeapWords) -> [u64; WORDS]) {
    const ELEMENTS: u64 = 4;
    let storage = words();
    let shared = storage.clone();
    let producing = thread::spawn(move || {
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
    producing.join().unwrap();
    assert_eq!(consumer.pop(&storage), None, "an element was taken twice");
}

#[test]
pub(crate) fn elements_arrive_whole_in_order_and_once_while_slots_are_reused() {
    explore(3, || {
        laps(|consumer, storage| {
            let slot = pop_when_ready(consumer, storage);
            tell(consumer, storage);
            slot
        });
    });
}

#[test]
#[should_panic(expected = "torn, repeated or out of order")]
fn broken_a_count_told_before_the_slot_was_copied_gives_torn_elements() {
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

/// Two elements staged together, published by `publish`.
fn batch(publish: fn(&mut Producer<WORDS>, &HeapWords)) {
    let storage = words();
    let shared = storage.clone();
    let producing = thread::spawn(move || {
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
    producing.join().unwrap();
}

#[test]
pub(crate) fn elements_published_together_arrive_whole_and_in_order() {
    explore(None, || batch(|producer, storage| assert_eq!(producer.publish(storage), 2)));
}

#[test]
#[should_panic(expected = "torn, repeated or out of order")]
fn broken_a_header_published_without_release_gives_torn_elements() {
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

/// Headers and words a hostile producer writes to slot 0; every one carries a sequence the consumer waits for.
const LURES: [[u64; WORDS]; 3] = [[1 | 1 << 32, 11, 12], [LONG | 1 | 2 << 32, 21, 22], [3 | 3 << 32, 31, 32]];

/// Rewrites slot 0 again and again, headers first and last, without regard to what the consumer took.
fn scribble(storage: &HeapWords) {
    for lure in LURES {
        storage.word(0).store(lure[0], Ordering::Relaxed);
        storage.word(REST).store(lure[2], Ordering::Relaxed);
        storage.word(1).store(lure[1], Ordering::Relaxed);
    }
}

/// Whether `slot` is a mixture of lures that a consumer which read each word once may give for position 0.
fn is_mixture(slot: &[u64; WORDS]) -> bool {
    let one_of = |word: usize| slot[word] == 0 || LURES.iter().any(|lure| lure[word] == slot[word]);
    let header = [LURES[0], LURES[1]].iter().any(|lure| slot[0] == lure[0] & !0xffff_ffff);
    let tail = if slot[0] & LONG == 0 { slot[2] == 0 } else { one_of(2) };
    header && one_of(1) && tail
}

/// A consumer tries `pop` while the producer scribbles; it may take position 0, once, and nothing else.
fn under_scribbles(pop: fn(&mut Consumer<WORDS>, &HeapWords) -> Option<[u64; WORDS]>) {
    let storage = words();
    let shared = storage.clone();
    let scribbling = thread::spawn(move || scribble(&shared));
    let mut consumer = Consumer::new(SLOTS);
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
    scribbling.join().unwrap();
    assert!(taken <= 1, "position 1 was never offered");
}

#[test]
fn a_slot_rewritten_while_it_is_taken_gives_a_mixture_once_and_no_panic() {
    explore(None, || under_scribbles(|consumer, storage| consumer.pop(storage)));
}

#[test]
#[should_panic(expected = "no single copy gives")]
fn broken_a_header_read_twice_tells_two_stories() {
    explore(3, || {
        under_scribbles(|consumer, storage| {
            let mut slot = consumer.pop(storage)?;
            // What a consumer would see that looks into shared memory again after its check.
            slot[0] = storage.word(0).load(Ordering::Relaxed) & !0xffff_ffff;
            Some(slot)
        });
    });
}
