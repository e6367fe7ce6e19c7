//! The queue pair with its flags, wake word and cancels, driven as a worker and a client drive it.
//!
//! The loops here state the order in which callers have to look: wake word, flag, last look; closed, then completions once
//! more; cancel generation, then requests. The broken variants exchange one order each.

use std::sync::Arc;

use loom::sync::atomic::Ordering;
use loom::thread;
use memferry_shm::parking::park;
use memferry_shm::queue_pair::{ClientEnd, Layout, SUBMISSION_WORDS, ServiceEnd};
use memferry_shm::storage::HeapWords;

use crate::{FENCES, Futex, Sleeps, Token, explore};

fn pair() -> (ClientEnd<HeapWords>, ServiceEnd<HeapWords>) {
    let layout = Layout::new(2).unwrap();
    let client = HeapWords::zeroed(layout.client_words());
    let service = HeapWords::zeroed(layout.service_words());
    let near = ClientEnd::new(layout, client.clone(), service.clone(), FENCES).unwrap();
    (near, ServiceEnd::new(layout, client, service, FENCES).unwrap())
}

fn request(tag: u64) -> [u64; SUBMISSION_WORDS] {
    let mut slot = [0; SUBMISSION_WORDS];
    (slot[0], slot[1], slot[7]) = (tag << 32, tag, tag);
    slot
}

fn completion(tag: u64) -> [u64; 4] {
    [tag << 32, tag, tag, tag]
}

fn publish(client: &mut ClientEnd<HeapWords>, worker: &Token, tag: u64) {
    client.stage(&request(tag)).unwrap();
    if client.publish() {
        worker.wake();
    }
}

/// Parks the worker unless a request or a cancel waits.
fn park_worker(service: &ServiceEnd<HeapWords>, token: &Token) -> bool {
    let ready = || service.has_news();
    park(|value| service.set_parked(value), service.fences(), ready, || token.sleep())
}

fn take_request(
    service: &mut ServiceEnd<HeapWords>,
    token: &Token,
    sleeps: &Sleeps,
) -> [u64; SUBMISSION_WORDS] {
    loop {
        if let Some(slot) = service.pop() {
            service.tell_consumed();
            return slot;
        }
        sleeps.note(park_worker(service, token));
    }
}

/// What a client that saw the close takes last.
type Last = fn(&mut ClientEnd<HeapWords>) -> Option<[u64; 4]>;

/// Waits for a completion as a client does: the wake word is read before the flag is raised, so a change after that
/// keeps the futex from sleeping. `None` when the queue pair was closed and `last` finds nothing.
fn take_or_close(
    client: &mut ClientEnd<HeapWords>,
    futex: &Futex,
    sleeps: &Sleeps,
    last: Last,
) -> Option<[u64; 4]> {
    loop {
        if let Some(slot) = client.pop() {
            return Some(slot);
        }
        if client.closed() {
            return last(client);
        }
        let expected = client.wake_word().load(Ordering::Relaxed);
        let raise = |value| client.parked().store(value, Ordering::Relaxed);
        let ready = || client.ready() || client.closed();
        let sleep = || futex.sleep(client.wake_word(), expected);
        sleeps.note(park(raise, client.fences(), ready, sleep));
    }
}

/// What was published before the close is visible after it was seen, and may not have been before.
fn take_completion(client: &mut ClientEnd<HeapWords>, futex: &Futex, sleeps: &Sleeps) -> Option<[u64; 4]> {
    take_or_close(client, futex, sleeps, ClientEnd::pop)
}

fn complete(service: &mut ServiceEnd<HeapWords>, futex: &Futex, tag: u64) {
    service.stage(&completion(tag)).unwrap();
    if service.publish() {
        service.change_wake_word();
        futex.wake();
    }
}

#[test]
fn a_parked_worker_is_woken_for_every_request() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || {
        let ((mut client, mut service), token) = (pair(), Token::new());
        let waker = token.clone();
        let submitting = thread::spawn(move || (1..=2).for_each(|tag| publish(&mut client, &waker, tag)));
        for tag in 1..=2 {
            assert_eq!(take_request(&mut service, &token, &counted), request(tag));
        }
        submitting.join().unwrap();
    });
    sleeps.assert_both_happened();
}

#[test]
fn a_parked_client_is_woken_for_every_completion() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || {
        let ((mut client, mut service), futex) = (pair(), Futex::new());
        let waker = futex.clone();
        let serving = thread::spawn(move || (1..=2).for_each(|tag| complete(&mut service, &waker, tag)));
        for tag in 1..=2 {
            assert_eq!(take_completion(&mut client, &futex, &counted), Some(completion(tag)));
        }
        serving.join().unwrap();
    });
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_reading_the_wake_word_after_the_last_look_loses_a_wake_up() {
    explore(2, || {
        let ((mut client, mut service), futex) = (pair(), Futex::new());
        let waker = futex.clone();
        let serving = thread::spawn(move || complete(&mut service, &waker, 1));
        while client.pop().is_none() {
            let raise = |value| client.parked().store(value, Ordering::Relaxed);
            park(
                raise,
                client.fences(),
                || client.ready(),
                || {
                    let expected = client.wake_word().load(Ordering::Relaxed);
                    futex.sleep(client.wake_word(), expected);
                },
            );
        }
        serving.join().unwrap();
    });
}

/// The service completes request 1 and closes; a client that ends with `last` waits for both.
fn close_race(last: Last, sleeps: &Sleeps) {
    let ((mut client, mut service), futex) = (pair(), Futex::new());
    let waker = futex.clone();
    let serving = thread::spawn(move || {
        complete(&mut service, &waker, 1);
        service.close();
        waker.wake();
    });
    let first = take_or_close(&mut client, &futex, sleeps, last);
    assert_eq!(first, Some(completion(1)), "the completion before the close was lost");
    assert_eq!(take_or_close(&mut client, &futex, sleeps, last), None);
    serving.join().unwrap();
}

#[test]
fn closing_wakes_a_parked_client_which_still_gets_what_came_before() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || close_race(ClientEnd::pop, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "the completion before the close was lost")]
fn broken_a_client_that_leaves_at_the_close_without_a_look_loses_a_completion() {
    explore(2, || close_race(|_| None, &Sleeps::default()));
}

#[test]
fn a_round_trip_with_both_sides_parking_completes() {
    let worker_sleeps = Arc::new(Sleeps::default());
    let client_sleeps = Arc::new(Sleeps::default());
    let worker_counted = worker_sleeps.clone();
    let client_counted = client_sleeps.clone();
    explore(5, move || {
        let ((mut client, mut service), token, futex) = (pair(), Token::new(), Futex::new());
        let worker_token = token.clone();
        let worker_futex = futex.clone();
        let counted = worker_counted.clone();
        let worker = thread::spawn(move || {
            let slot = take_request(&mut service, &worker_token, &counted);
            complete(&mut service, &worker_futex, slot[1]);
        });
        publish(&mut client, &token, 7);
        assert_eq!(take_completion(&mut client, &futex, &client_counted), Some(completion(7)));
        worker.join().unwrap();
    });
    worker_sleeps.assert_both_happened();
    client_sleeps.assert_both_happened();
}

/// One round of a worker's look at its ring: whether cancels were asked for, and how many requests it took.
type Round = fn(&mut ServiceEnd<HeapWords>) -> (bool, usize);

fn take_all(service: &mut ServiceEnd<HeapWords>) -> usize {
    let mut taken = 0;
    while let Some(slot) = service.pop() {
        assert_eq!(slot, request(1));
        taken += 1;
    }
    taken
}

/// The generation before the requests: a cancel that is seen names a request that can be taken.
fn cancels_then_requests(service: &mut ServiceEnd<HeapWords>) -> (bool, usize) {
    let changed = service.cancels_changed();
    (changed, take_all(service))
}

/// A client publishes request 1 and cancels it; a worker that looks by `round` and parks unless `ready` sees both.
fn cancel_race(round: Round, ready: fn(&ServiceEnd<HeapWords>) -> bool, sleeps: &Sleeps) {
    let ((mut client, mut service), token) = (pair(), Token::new());
    let waker = token.clone();
    let cancelling = thread::spawn(move || {
        publish(&mut client, &waker, 1);
        if client.cancel(1) {
            waker.wake();
        }
    });
    let mut taken = 0;
    loop {
        let (changed, more) = round(&mut service);
        taken += more;
        if changed {
            assert_eq!(taken, 1, "a cancel was seen before its request");
            assert!(service.cancel_requested(1) && !service.cancel_requested(0));
            break;
        }
        let raise = |value| service.set_parked(value);
        sleeps.note(park(raise, service.fences(), || ready(&service), || token.sleep()));
    }
    cancelling.join().unwrap();
}

fn request_or_cancel(service: &ServiceEnd<HeapWords>) -> bool {
    service.has_news()
}

#[test]
fn a_cancel_reaches_a_parking_worker_and_never_overtakes_its_request() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || cancel_race(cancels_then_requests, request_or_cancel, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_last_look_that_leaves_cancels_out_loses_one() {
    explore(2, || cancel_race(cancels_then_requests, |service| service.ready(), &Sleeps::default()));
}

#[test]
#[should_panic(expected = "a cancel was seen before its request")]
fn broken_taking_requests_before_looking_for_cancels_lets_one_overtake() {
    let round: Round = |service| {
        let taken = take_all(service);
        (service.cancels_changed(), taken)
    };
    explore(2, move || cancel_race(round, request_or_cancel, &Sleeps::default()));
}
