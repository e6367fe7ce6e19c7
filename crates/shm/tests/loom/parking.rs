//! The parking protocol over a bare ring, and each of its rules broken once.
//!
//! Every variant runs the same scenario; only the parker or the publisher's look is exchanged, so what fails is the rule
//! that the variant leaves out.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use memferry_shm::parking::{must_wake, park};
use memferry_shm::ring::{Consumer, Producer};
use memferry_shm::storage::RingStorage;

use crate::ring::{FLAG, SLOTS, element, words};
use crate::{FENCES, Sleeps, Token, explore};

/// A parker: the flag, the last look, the sleep; returns whether it slept.
type Parker = fn(&AtomicU64, &dyn Fn() -> bool, &dyn Fn()) -> bool;
/// A publisher's look at the flag after it published.
type Look = fn(&AtomicU64) -> bool;

fn shipped_park(flag: &AtomicU64, ready: &dyn Fn() -> bool, sleep: &dyn Fn()) -> bool {
    let slept = park(|value| flag.store(value, Ordering::Relaxed), FENCES, ready, sleep);
    assert_eq!(flag.load(Ordering::Relaxed), 0, "awake, and still asking for wake-ups");
    slept
}

fn shipped_look(flag: &AtomicU64) -> bool {
    must_wake(flag, FENCES)
}

/// Two elements, one after the other, to a consumer that parks whenever it finds none.
fn parked_consumer(park: Parker, look: Look, sleeps: &Sleeps) {
    let storage = words();
    let token = Token::new();
    let shared = storage.clone();
    let waker = token.clone();
    let publishing = thread::spawn(move || {
        let mut producer = Producer::new(SLOTS);
        for value in 1..=2 {
            producer.stage(&shared, &element(value)).unwrap();
            producer.publish(&shared);
            if look(shared.word(FLAG)) {
                waker.wake();
            }
        }
    });
    let mut consumer = Consumer::new(SLOTS);
    for value in 1..=2 {
        let slot = loop {
            if let Some(slot) = consumer.pop(&storage) {
                break slot;
            }
            sleeps.note(park(storage.word(FLAG), &|| consumer.ready(&storage), &|| token.sleep()));
        };
        assert_eq!(slot, element(value));
    }
    publishing.join().unwrap();
}

#[test]
fn a_parked_consumer_is_woken_for_every_element() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || parked_consumer(shipped_park, shipped_look, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_parking_without_the_second_look_loses_a_wake_up() {
    let park: Parker = |flag, _, sleep| shipped_park(flag, &|| false, sleep);
    explore(2, move || parked_consumer(park, shipped_look, &Sleeps::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_publishing_without_the_light_barrier_loses_a_wake_up() {
    let look: Look = |flag| flag.load(Ordering::Relaxed) != 0;
    explore(2, move || parked_consumer(shipped_park, look, &Sleeps::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_parking_without_the_heavy_barrier_loses_a_wake_up() {
    let park: Parker = |flag, ready, sleep| {
        flag.store(1, Ordering::Relaxed);
        let slept = !ready();
        if slept {
            sleep();
        }
        flag.store(0, Ordering::Relaxed);
        slept
    };
    explore(2, move || parked_consumer(park, shipped_look, &Sleeps::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_release_and_acquire_do_not_replace_the_barriers() {
    let park: Parker = |flag, ready, sleep| {
        flag.store(1, Ordering::Release);
        fence(Ordering::AcqRel);
        let slept = !ready();
        if slept {
            sleep();
        }
        flag.store(0, Ordering::Release);
        slept
    };
    let look: Look = |flag| {
        fence(Ordering::AcqRel);
        flag.load(Ordering::Acquire) != 0
    };
    explore(2, move || parked_consumer(park, look, &Sleeps::default()));
}
