//! Tests of the queue pair against honest and hostile peers, on heap storage.

// It looks at every word of a queue's memory, which takes Miri an hour, and runs no code that others do not.
#[cfg(not(miri))]
mod golden;

use super::*;
use crate::storage::HeapWords;

fn parked_words() -> HeapWords {
    HeapWords::zeroed(ParkedWord::<HeapWords>::BYTES / 8)
}

fn pair() -> (ClientEnd<HeapWords>, ServiceEnd<HeapWords>, HeapWords, HeapWords) {
    pair_with(parked_words())
}

fn pair_with(worker: HeapWords) -> (ClientEnd<HeapWords>, ServiceEnd<HeapWords>, HeapWords, HeapWords) {
    let layout = Layout::new(4).unwrap();
    let client = HeapWords::zeroed(layout.client_words());
    let service = HeapWords::zeroed(layout.service_words());
    let near = ClientEnd::new(layout, client.clone(), service.clone(), worker, Fences::Full).unwrap();
    let far = ServiceEnd::new(layout, client.clone(), service.clone(), Fences::Full).unwrap();
    (near, far, client, service)
}

fn request(tag: u32) -> [u64; SUBMISSION_WORDS] {
    let mut slot = [0; SUBMISSION_WORDS];
    slot[0] = u64::from(tag) << 32;
    slot
}

fn completion(tag: u32) -> u64 {
    u64::from(tag) << 32
}

#[test]
fn requests_and_completions_cross() {
    let (mut client, mut service, ..) = pair();
    for tag in 0..100 {
        client.stage(&request(tag)).unwrap();
        assert!(!client.publish(), "a worker that does not sleep is woken");
        assert_eq!(service.pop(), Some(request(tag)));
        service.publish_consumed();
        // The client stores its count only now and then, but there is always room for its outstanding requests.
        assert!((4..=8).contains(&service.completion_room().unwrap()));
        service.stage_short(completion(tag)).unwrap();
        service.publish();
        assert_eq!(client.pop(), Some([completion(tag), 0, 0]));
    }
}

#[test]
fn what_is_put_looks_at_the_flags() {
    let words = parked_words();
    let worker = ParkedWord::new(words.clone(), 0).unwrap();
    let (mut client, mut service, ..) = pair_with(words);
    for sleeps in [false, true] {
        worker.set(u64::from(sleeps));
        client.parked().store(if sleeps { PARKED } else { 0 }, Ordering::Relaxed);
        assert_eq!(client.put_short([completion(5), 0, 0, 0]), Ok(sleeps));
        assert_eq!(service.pop(), Some(request(5)));
        service.put_short(completion(5)).unwrap();
        assert_eq!(client.pop(), Some([completion(5), 0, 0]), "visible before the flag is looked at");
        assert_eq!(service.publish(), sleeps);
        assert!(!service.publish(), "the flag is looked at once for each completion");
    }
}

#[test]
fn a_taken_completion_needs_no_signal() {
    let (mut client, mut service, ..) = pair();
    let arm =
        |client: &ClientEnd<HeapWords>| client.parked().store(client.signal_wanted(), Ordering::Relaxed);
    for tag in 0..20 {
        arm(&client);
        assert!(!service.wants_signal(service.client_flag()), "a signal without a completion");
        client.stage(&request(tag)).unwrap();
        client.publish();
        service.pop().unwrap();
        service.publish_consumed();
        service.completion_room().unwrap();
        service.stage_short(completion(tag)).unwrap();
        let flag = service.publish_for();
        assert!(service.wants_signal(flag) && service.wants_signal(service.client_flag()));
        // The client polls the completion and raises the flag again before the service reads it once more.
        client.pop().unwrap();
        arm(&client);
        assert!(!service.wants_signal(service.client_flag()));
    }
}

#[test]
fn an_idle_client_leaves_no_room() {
    let (mut client, mut service, ..) = pair();
    for tag in 0..8 {
        client.presume_consumed(0);
        client.stage(&request(tag)).unwrap();
        client.publish();
        service.pop().unwrap();
        service.stage_short(completion(tag)).unwrap();
        service.publish();
    }
    assert_eq!(service.completion_room(), Ok(0));
    assert_eq!(service.stage(&[0; COMPLETION_WORDS]), Err(RingFull));
    // The third one takes the count of those before it along.
    for _ in 0..4 {
        client.pop().unwrap();
    }
    assert_eq!(service.completion_room(), Ok(2));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and it runs no unsafe code")]
fn a_list_is_freed_when_its_request_is_taken() {
    let (mut client, mut service, ..) = pair();
    let area = client.layout.list_words();
    assert_eq!(client.stage_list(&vec![0; area + 1]), Err(RingFull));
    for round in 0..50_u64 {
        // Each list is longer than half of the area, so it fits only after the previous one was taken.
        let list: Vec<_> = (0..area as u64 / 2 + 1 + round).map(|word| word ^ round).collect();
        let first = client.stage_list(&list).unwrap();
        client.stage(&request(first as u32)).unwrap();
        assert_eq!(client.stage_list(&list), Err(RingFull), "the first list is still in use");
        client.publish();
        let slot = service.pop().unwrap();
        assert_eq!(service.fetch_list(slot[0] >> 32, list.len()), Some(list));
        service.publish_all_consumed();
    }
    for (first, words) in [(area as u64, 1), (u64::MAX, 1), (1, area), (0, usize::MAX)] {
        assert_eq!(service.fetch_list(first, words), None);
    }
    assert_eq!(service.fetch_list(area as u64, 0), Some(Vec::new()));
}

#[test]
fn progress_belongs_to_one_request() {
    let (client, service, client_memory, _) = pair();
    assert_eq!(client.progress(5), None);
    assert!(!service.publish_progress(5, 1 << 20, false), "a client that does not sleep is woken");
    assert_eq!(
        (client.progress(5), client.progress(1)),
        (Some((1 << 20, false)), None),
        "request 1 has the same word, one lap earlier"
    );
    client_memory.word(CLIENT_PARKED).store(PARKED_FOR_PROGRESS, Ordering::Relaxed);
    assert!(service.publish_progress(5, u64::MAX, true));
    assert_eq!(client.progress(5), Some(((1 << 40) - 1, true)));
    service.clear_progress(5);
    assert_eq!(client.progress(5), None);
}

#[test]
fn stop_and_cancel_are_distinct() {
    let (mut client, mut service, ..) = pair();
    client.stop(6);
    assert!(service.cancels_changed());
    assert!(service.stop_requested(6) && !service.cancel_requested(6) && !service.stop_requested(2));
    client.cancel(6);
    assert!(service.cancel_requested(6) && !service.stop_requested(6));
}

#[test]
fn detects_an_impossible_client_count() {
    let (_, mut service, client_memory, _) = pair();
    client_memory.word(COMPLETIONS_CONSUMED).store(7, Ordering::Relaxed);
    assert_eq!(service.completion_room(), Err(ImpossibleCount { claimed: 7, published: 0, known: 0 }));
}

#[test]
fn an_impossible_service_count_looks_full() {
    let (mut client, _, _, service_memory) = pair();
    for tag in 0..4 {
        client.stage(&request(tag)).unwrap();
    }
    client.publish();
    service_memory.word(SUBMISSIONS_CONSUMED).store(1 << 20, Ordering::Relaxed);
    assert_eq!(client.stage(&request(4)), Err(RingFull));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and it runs no unsafe code")]
fn survives_garbage_in_client_memory() {
    let (_, mut service, client_memory, _) = pair();
    for value in [0, 1, 2, 5, u64::MAX, crate::ring::LONG | 3] {
        for index in 0..client_memory.words() {
            client_memory.word(index).store(value, Ordering::Relaxed);
        }
        for _ in 0..8 {
            let _ = service.pop();
        }
        let _ = service.completion_room();
        let _ = service.cancels_changed();
        let _ = service.cancel_requested(u32::MAX);
    }
}

#[test]
fn a_cancel_names_one_request() {
    let (mut client, mut service, ..) = pair();
    assert!(!service.cancels_changed());
    assert!(!service.cancels_asked());
    client.cancel(6);
    assert!(service.cancels_asked(), "a cancel is visible before `cancels_changed`");
    assert!(service.cancels_changed());
    assert!(!service.cancels_changed() && service.cancels_asked());
    assert!(service.cancel_requested(6));
    assert!(!service.cancel_requested(2), "request 2 has the same word, one lap earlier");
}

#[test]
fn a_watch_sees_the_next_request_and_cancel() {
    let (mut client, mut service, ..) = pair();
    for tag in 0..10 {
        let watch = service.watch();
        assert!(!watch.has_news());
        client.stage(&request(tag)).unwrap();
        assert!(!watch.has_news(), "a staged request is not visible");
        client.publish();
        assert!(watch.has_news());
        service.pop().unwrap();
        service.publish_all_consumed();
        let watch = service.watch();
        client.cancel(tag);
        assert!(watch.has_news());
        service.cancels_changed();
        assert!(service.completion_room().unwrap() > 0);
        service.stage_short(completion(tag)).unwrap();
        service.publish();
        client.pop().unwrap();
    }
}

#[test]
fn a_cancel_does_not_outlive_its_request() {
    let (mut client, mut service, ..) = pair();
    client.stage(&request(6)).unwrap();
    client.publish();
    client.cancel(6);
    service.pop().unwrap();
    assert!(service.cancel_requested(6));
    // The tags of a queue repeat after 2^32.
    client.stage(&request(6)).unwrap();
    client.publish();
    service.pop().unwrap();
    assert!(!service.cancel_requested(6), "the cancel was of the earlier request");
    client.cancel(u32::MAX);
    assert!(service.cancel_requested(u32::MAX) && !service.stop_requested(u32::MAX));
    client.stage_short([request(3)[0], 0, 0, 0]).unwrap();
    assert!(!service.cancel_requested(u32::MAX));
}

#[test]
fn completions_are_published_by_line() {
    let (mut client, mut service, client_memory, _) = pair();
    for tag in 0..7 {
        service.stage_short(completion(tag)).unwrap();
    }
    assert_eq!(client.pop(), None);
    // The eighth fills the line. It is visible, though nobody looked at the flag.
    client_memory.word(CLIENT_PARKED).store(PARKED, Ordering::Relaxed);
    service.stage(&[completion(7) | crate::ring::LONG, 70, 71]).unwrap();
    for tag in 0..7 {
        assert_eq!(client.pop(), Some([completion(tag), 0, 0]));
    }
    assert_eq!(client.pop(), Some([completion(7) | crate::ring::LONG, 70, 71]));
    assert_eq!(service.publish_for(), PARKED);
    assert_eq!(service.publish_for(), 0, "nothing new");
}

#[test]
fn refuses_memories_that_are_too_small() {
    let layout = Layout::new(4).unwrap();
    let small = HeapWords::zeroed(8);
    let large = HeapWords::zeroed(layout.client_words());
    let none = HeapWords::zeroed(0);
    assert!(ClientEnd::new(layout, large.clone(), small.clone(), small.clone(), Fences::Full).is_err());
    assert!(ClientEnd::new(layout, large.clone(), large.clone(), none.clone(), Fences::Full).is_err());
    assert!(ParkedWord::new(none, 0).is_err());
    assert!(ParkedWord::new(large.clone(), MAX_WORKERS).is_err());
    assert!(ServiceEnd::new(layout, small, large, Fences::Full).is_err());
    for capacity in [0, 1, 3, 1 << 13, u32::MAX] {
        assert_eq!(Layout::new(capacity), Err(BadCapacity(capacity)));
    }
}

#[test]
fn a_worker_that_cannot_be_has_no_parked_word() {
    let last = MAX_WORKERS as u64 - 1;
    assert!(dormant::parked_word(last).is_some());
    for worker in [last + 1, u64::MAX / 8, u64::MAX] {
        assert_eq!(dormant::parked_word(worker), None);
    }
}
