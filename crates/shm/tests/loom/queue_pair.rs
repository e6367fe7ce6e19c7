//! The queue pair with its flags, wake word and cancels, driven as a worker and a client drive it.
//!
//! The loops here use the order of checks that callers must keep: wake word, flag, last check; closed, then completions
//! once more; cancel generation, then requests. Each broken variant changes one order.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::Ordering;
use loom::thread;
use memferry_shm::parking::park;
use memferry_shm::queue_pair::{
    COMPLETION_WORDS, ClientEnd, Layout, ParkedWord, SUBMISSION_WORDS, ServiceEnd, Watch,
};
use memferry_shm::ring::LONG;
use memferry_shm::storage::HeapWords;

use crate::{FENCES, Futex, Sleeps, Token, explore};

/// The service's end of a queue, and the parked word of its worker.
struct Served {
    end: ServiceEnd<HeapWords>,
    parked: ParkedWord<HeapWords>,
}

impl std::ops::Deref for Served {
    type Target = ServiceEnd<HeapWords>;

    fn deref(&self) -> &Self::Target {
        &self.end
    }
}

impl std::ops::DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.end
    }
}

/// The memory of the parked words.
fn parked_words() -> HeapWords {
    HeapWords::zeroed(ParkedWord::<HeapWords>::BYTES / 8)
}

fn pair_of(workers: HeapWords) -> (ClientEnd<HeapWords>, ServiceEnd<HeapWords>) {
    let layout = Layout::new(2).unwrap();
    let client = HeapWords::zeroed(layout.client_words());
    let service = HeapWords::zeroed(layout.service_words());
    let near = ClientEnd::new(layout, client.clone(), service.clone(), workers, FENCES).unwrap();
    (near, ServiceEnd::new(layout, client, service, FENCES).unwrap())
}

fn pair() -> (ClientEnd<HeapWords>, Served) {
    let workers = parked_words();
    let (client, end) = pair_of(workers.clone());
    (client, Served { end, parked: ParkedWord::new(workers, 0).unwrap() })
}

/// A short request; `ring` explores long ones.
fn request(tag: u32) -> [u64; SUBMISSION_WORDS] {
    let mut slot = [0; SUBMISSION_WORDS];
    slot[0] = u64::from(tag) << 32;
    slot[3] = u64::from(tag);
    slot
}

/// Completions of odd tags are long.
fn completion(tag: u32) -> [u64; COMPLETION_WORDS] {
    let tag = u64::from(tag);
    if tag % 2 == 1 { [tag << 32 | LONG, tag, tag] } else { [tag << 32, 0, 0] }
}

fn publish(client: &mut ClientEnd<HeapWords>, worker: &Token, tag: u32) {
    client.stage(&request(tag)).unwrap();
    if client.publish() {
        worker.wake();
    }
}

/// Parks the worker unless a request or a cancel waits.
fn park_worker(service: &Served, token: &Token) -> bool {
    let ready = || service.has_news();
    park(|value| service.parked.set(value), service.fences(), ready, || token.sleep())
}

fn take_request(service: &mut Served, token: &Token, sleeps: &Sleeps) -> [u64; SUBMISSION_WORDS] {
    loop {
        if let Some(slot) = service.pop() {
            service.publish_consumed();
            return slot;
        }
        sleeps.record(park_worker(service, token));
    }
}

/// Takes a last completion after the client found the queue pair closed.
type Last = fn(&mut ClientEnd<HeapWords>) -> Option<[u64; COMPLETION_WORDS]>;

/// Waits for a completion as a client does: the wake word is read before the flag is raised, so a change after that
/// keeps the futex from sleeping. `None` when the queue pair was closed and `last` returns none.
fn take_or_close(
    client: &mut ClientEnd<HeapWords>,
    futex: &Futex,
    sleeps: &Sleeps,
    last: Last,
) -> Option<[u64; COMPLETION_WORDS]> {
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
        sleeps.record(park(raise, client.fences(), ready, sleep));
    }
}

/// Pops once more after the close: only then is each completion published before the close certainly visible.
fn take_completion(
    client: &mut ClientEnd<HeapWords>,
    futex: &Futex,
    sleeps: &Sleeps,
) -> Option<[u64; COMPLETION_WORDS]> {
    take_or_close(client, futex, sleeps, ClientEnd::pop)
}

fn complete(service: &mut ServiceEnd<HeapWords>, futex: &Futex, tag: u32) {
    service.stage(&completion(tag)).unwrap();
    if service.publish() {
        service.change_wake_word();
        futex.wake();
    }
}

#[test]
fn each_request_wakes_a_parked_worker() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || {
        let (mut client, mut service) = pair();
        let token = Token::new();
        let waker = token.clone();
        let submitter = thread::spawn(move || (1..=2).for_each(|tag| publish(&mut client, &waker, tag)));
        for tag in 1..=2 {
            assert_eq!(take_request(&mut service, &token, &counted), request(tag));
        }
        submitter.join().unwrap();
    });
    sleeps.assert_both_happened();
}

#[test]
fn each_request_put_wakes_a_parked_worker() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(3, move || {
        let (mut client, mut service) = pair();
        let token = Token::new();
        let waker = token.clone();
        let submitter = thread::spawn(move || {
            for tag in 1..=2 {
                if client.put_short(*request(tag).first_chunk().unwrap()).unwrap() {
                    waker.wake();
                }
            }
        });
        for tag in 1..=2 {
            assert_eq!(take_request(&mut service, &token, &counted), request(tag));
        }
        submitter.join().unwrap();
    });
    sleeps.assert_both_happened();
}

/// The service puts a completion and asks by `must_wake` whether the client sleeps.
fn put_completion(must_wake: fn(&mut ServiceEnd<HeapWords>) -> bool, sleeps: &Sleeps) {
    let (mut client, mut service) = pair();
    let futex = Futex::new();
    let waker = futex.clone();
    let server = thread::spawn(move || {
        service.put_short(completion(2)[0]).unwrap();
        if must_wake(&mut service) {
            service.change_wake_word();
            waker.wake();
        }
    });
    assert_eq!(take_completion(&mut client, &futex, sleeps), Some(completion(2)));
    server.join().unwrap();
}

#[test]
fn a_completion_put_wakes_a_parked_client() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(3, move || put_completion(ServiceEnd::publish, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_put_without_a_look_at_the_flag() {
    explore(2, || put_completion(|_| false, &Sleeps::default()));
}

/// Clients of two queues publish one request each; the worker of both parks by `ready`, to which it gives the watches.
fn two_queues(ready: fn(&[Watch<HeapWords>; 2]) -> bool, sleeps: &Sleeps) {
    let word = parked_words();
    let parked = ParkedWord::new(word.clone(), 0).unwrap();
    let (mut first, first_end) = pair_of(word.clone());
    let (mut second, second_end) = pair_of(word);
    let mut ends = [first_end, second_end];
    let token = Token::new();
    let wakers = [token.clone(), token.clone()];
    let [waker, other] = wakers;
    let submitters = [
        thread::spawn(move || publish(&mut first, &waker, 1)),
        thread::spawn(move || publish(&mut second, &other, 1)),
    ];
    let mut taken = 0;
    loop {
        taken += ends.iter_mut().filter_map(ServiceEnd::pop).count();
        if taken == 2 {
            break;
        }
        let watches = ends.each_ref().map(ServiceEnd::watch);
        let raise = |value| parked.set(value);
        sleeps.record(park(raise, FENCES, || ready(&watches), || token.sleep()));
    }
    submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
}

#[test]
fn one_parked_word_serves_two_queues() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(3, move || two_queues(|watches| watches.iter().any(Watch::has_news), &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_last_check_of_one_queue_only() {
    explore(2, || two_queues(|[first, _]| first.has_news(), &Sleeps::default()));
}

/// The service's end on its way from one worker to another, with the number of requests that the first one took.
type Handed = Mutex<Option<(ServiceEnd<HeapWords>, usize)>>;

/// Hands an end over to worker 1. The second one is for the same memories.
type HandOver = fn(ServiceEnd<HeapWords>, &ServiceEnd<HeapWords>, &dyn Fn(ServiceEnd<HeapWords>));

/// A client publishes two requests. Worker 0 looks for them once, hands the queue over, and never looks again. Worker 1 parks
/// whenever it finds nothing.
fn moved(hand_over: HandOver, sleeps: &Sleeps) {
    let layout = Layout::new(2).unwrap();
    let own = HeapWords::zeroed(layout.client_words());
    let other = HeapWords::zeroed(layout.service_words());
    let words = parked_words();
    let parked = ParkedWord::new(words.clone(), 1).unwrap();
    let mut client = ClientEnd::new(layout, own.clone(), other.clone(), words, FENCES).unwrap();
    let mut end = ServiceEnd::new(layout, own.clone(), other.clone(), FENCES).unwrap();
    let token = Token::new();
    let handed: Arc<Handed> = Arc::new(Mutex::new(None));
    let waker = token.clone();
    let submitter = thread::spawn(move || (1..=2).for_each(|tag| publish(&mut client, &waker, tag)));
    let waker = token.clone();
    let mailbox = handed.clone();
    let first = thread::spawn(move || {
        let same = ServiceEnd::new(layout, own, other, FENCES).unwrap();
        let taken = usize::from(end.pop().is_some());
        hand_over(end, &same, &|end| {
            *mailbox.lock().unwrap() = Some((end, taken));
            waker.wake();
        });
    });
    let mut mine: Option<ServiceEnd<HeapWords>> = None;
    let mut taken = 0;
    loop {
        if let Some((end, before)) = handed.lock().unwrap().take() {
            taken += before;
            mine = Some(end);
        }
        while let Some(slot) = mine.as_mut().and_then(ServiceEnd::pop) {
            taken += 1;
            assert_eq!(slot, request(taken as u32), "in order");
        }
        if taken == 2 {
            break;
        }
        let ready = || handed.lock().unwrap().is_some() || mine.as_ref().is_some_and(ServiceEnd::has_news);
        sleeps.record(park(|value| parked.set(value), FENCES, ready, || token.sleep()));
    }
    submitter.join().unwrap();
    first.join().unwrap();
}

#[test]
fn a_queue_that_moves_loses_no_wake_up() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    let hand_over: HandOver = |end, _, give| {
        end.set_worker(1);
        give(end);
    };
    explore(2, move || moved(hand_over, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_move_that_names_the_worker_late() {
    let hand_over: HandOver = |end, same, give| {
        give(end);
        same.set_worker(1);
    };
    explore(2, move || moved(hand_over, &Sleeps::default()));
}

#[test]
fn each_completion_wakes_a_parked_client() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || {
        let (mut client, mut service) = pair();
        let futex = Futex::new();
        let waker = futex.clone();
        let server = thread::spawn(move || (1..=2).for_each(|tag| complete(&mut service, &waker, tag)));
        for tag in 1..=2 {
            assert_eq!(take_completion(&mut client, &futex, &counted), Some(completion(tag)));
        }
        server.join().unwrap();
    });
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_wake_word_read_after_the_last_check() {
    explore(2, || {
        let (mut client, mut service) = pair();
        let futex = Futex::new();
        let waker = futex.clone();
        let server = thread::spawn(move || complete(&mut service, &waker, 1));
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
        server.join().unwrap();
    });
}

/// The service completes request 1 and closes; a client that ends with `last` waits for both.
fn close_race(last: Last, sleeps: &Sleeps) {
    let (mut client, mut service) = pair();
    let futex = Futex::new();
    let waker = futex.clone();
    let server = thread::spawn(move || {
        complete(&mut service, &waker, 1);
        service.close();
        waker.wake();
    });
    let first = take_or_close(&mut client, &futex, sleeps, last);
    assert_eq!(first, Some(completion(1)), "the completion before the close was lost");
    assert_eq!(take_or_close(&mut client, &futex, sleeps, last), None);
    server.join().unwrap();
}

#[test]
fn a_close_wakes_a_client_and_keeps_completions() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || close_race(ClientEnd::pop, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "the completion before the close was lost")]
fn broken_client_without_a_pop_after_the_close() {
    explore(2, || close_race(|_| None, &Sleeps::default()));
}

#[test]
fn a_round_trip_completes_while_both_park() {
    let worker_sleeps = Arc::new(Sleeps::default());
    let client_sleeps = Arc::new(Sleeps::default());
    let worker_counted = worker_sleeps.clone();
    let client_counted = client_sleeps.clone();
    explore(5, move || {
        let (mut client, mut service) = pair();
        let token = Token::new();
        let futex = Futex::new();
        let worker_token = token.clone();
        let worker_futex = futex.clone();
        let counted = worker_counted.clone();
        let worker = thread::spawn(move || {
            let slot = take_request(&mut service, &worker_token, &counted);
            complete(&mut service, &worker_futex, slot[3] as u32);
        });
        publish(&mut client, &token, 7);
        assert_eq!(take_completion(&mut client, &futex, &client_counted), Some(completion(7)));
        worker.join().unwrap();
    });
    worker_sleeps.assert_both_happened();
    client_sleeps.assert_both_happened();
}

/// One round of a worker: returns whether new cancels were requested, and how many requests it took.
type Round = fn(&mut ServiceEnd<HeapWords>) -> (bool, usize);

fn take_all(service: &mut ServiceEnd<HeapWords>) -> usize {
    let mut taken = 0;
    while let Some(slot) = service.pop() {
        assert_eq!(slot, request(1));
        taken += 1;
    }
    taken
}

/// Reads the generation before the requests, so the request of each cancel that it finds can be taken.
fn cancels_then_requests(service: &mut ServiceEnd<HeapWords>) -> (bool, usize) {
    let changed = service.cancels_changed();
    (changed, take_all(service))
}

/// A client publishes request 1 and cancels it; a worker that runs `round` and parks unless `ready` must see both.
fn cancel_race(round: Round, ready: fn(&ServiceEnd<HeapWords>) -> bool, sleeps: &Sleeps) {
    let (mut client, mut service) = pair();
    let token = Token::new();
    let waker = token.clone();
    let canceller = thread::spawn(move || {
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
        let raise = |value| service.parked.set(value);
        sleeps.record(park(raise, service.fences(), || ready(&service), || token.sleep()));
    }
    canceller.join().unwrap();
}

fn request_or_cancel(service: &ServiceEnd<HeapWords>) -> bool {
    service.has_news()
}

#[test]
fn a_cancel_arrives_after_its_request() {
    let sleeps = Arc::new(Sleeps::default());
    let counted = sleeps.clone();
    explore(5, move || cancel_race(cancels_then_requests, request_or_cancel, &counted));
    sleeps.assert_both_happened();
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_last_check_without_cancels() {
    explore(2, || cancel_race(cancels_then_requests, |service| service.ready(), &Sleeps::default()));
}

#[test]
#[should_panic(expected = "a cancel was seen before its request")]
fn broken_round_that_reads_cancels_last() {
    let round: Round = |service| {
        let taken = take_all(service);
        (service.cancels_changed(), taken)
    };
    explore(2, move || cancel_race(round, request_or_cancel, &Sleeps::default()));
}
