//! The parking protocol over a bare ring, with a broken variant of each rule.
//!
//! All variants run the same scenario. A variant replaces only the parker or the publisher's check, so a failure is caused
//! by the rule that it leaves out.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use memferry_shm::parking::{must_wake, park};
use memferry_shm::ring::{Consumer, Producer};
use memferry_shm::storage::RingStorage;

use crate::ring::{FLAG, SHORT, SLOTS, WORDS, element, words};
use crate::{FENCES, Sleeps, Token, explore};

/// Parks with this flag, last check and sleep; returns whether it slept.
type Parker = fn(&AtomicU64, &dyn Fn() -> bool, &dyn Fn()) -> bool;
/// The publisher's check of the flag after a publish: whether to wake the parker.
type WakeCheck = fn(&AtomicU64) -> bool;

fn shipped_park(flag: &AtomicU64, ready: &dyn Fn() -> bool, sleep: &dyn Fn()) -> bool {
    let slept = park(|value| flag.store(value, Ordering::Relaxed), FENCES, ready, sleep);
    assert_eq!(flag.load(Ordering::Relaxed), 0, "the flag is still raised after the parker woke");
    slept
}

fn shipped_check(flag: &AtomicU64) -> bool {
    must_wake(flag, FENCES)
}

/// Sends two elements, one after the other, to a consumer that parks when the ring is empty.
fn parked_consumer(park: Parker, wake_check: WakeCheck, sleeps: &Sleeps) {
    let storage = words();
    let token = Token::new();
    let shared = storage.clone();
    let waker = token.clone();
    let publisher = thread::spawn(move || {
        let mut producer = Producer::<SHORT, WORDS>::new(SLOTS);
        for value in 1..=2 {
            producer.stage(&shared, &element(value)).unwrap();
            producer.publish(&shared);
            if wake_check(shared.word(FLAG)) {
                waker.wake();
            }
        }
    });
    let mut consumer = Consumer::<SHORT, WORDS>::new(SLOTS);
    for value in 1..=2 {
        let slot = loop {
            if let Some(slot) = consumer.pop(&storage) {
                break slot;
            }
            sleeps.record(park(storage.word(FLAG), &|| consumer.ready(&storage), &|| token.sleep()));
        };
        assert_eq!(slot, element(value));
    }
    publisher.join().unwrap();
}

#[test]
fn each_element_wakes_a_parked_consumer() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || parked_consumer(shipped_park, shipped_check, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_parking_without_the_last_check() {
    let park: Parker = |flag, _, sleep| shipped_park(flag, &|| false, sleep);
    explore(2, move || parked_consumer(park, shipped_check, &Sleeps::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_publishing_without_the_light_barrier() {
    let wake_check: WakeCheck = |flag| flag.load(Ordering::Relaxed) != 0;
    explore(2, move || parked_consumer(shipped_park, wake_check, &Sleeps::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_parking_without_the_heavy_barrier() {
    let park: Parker = |flag, ready, sleep| {
        flag.store(1, Ordering::Relaxed);
        let slept = !ready();
        if slept {
            sleep();
        }
        flag.store(0, Ordering::Relaxed);
        slept
    };
    explore(2, move || parked_consumer(park, shipped_check, &Sleeps::default()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_release_and_acquire_as_barriers() {
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
    let wake_check: WakeCheck = |flag| {
        fence(Ordering::AcqRel);
        flag.load(Ordering::Acquire) != 0
    };
    explore(2, move || parked_consumer(park, wake_check, &Sleeps::default()));
}
