//! Links, fences, loops and classes: when requests start, and which failures others inherit.
//!
//! ```text
//! requests with terms ─► Bed ─► the order in which they end, their outcomes, inherited failures
//! ```

use std::sync::Arc;

use super::*;
use memferry_transfer::{Lists, PriorityClass, Segment};

fn bed(channels: u32) -> (Bed, QueueKey, Handle) {
    let mut bed = Bed::new(channels, Shared::new(), 64);
    let (frame, _) = bed.frame(A, 64);
    let queue = bed.path.open_queue(A, 0);
    (bed, queue, frame)
}

/// Tag, result, inherited and value of each completion, in the order of completion.
type Ends = Vec<(u64, Result<(), Failure>, bool, u64)>;

impl Bed {
    fn ends(&self) -> Ends {
        let end = |completion: Completion| {
            (completion.tag, completion.outcome.result, completion.inherited, completion.outcome.value)
        };
        self.log.iter().map(|(_, completed)| end(completed.completion)).collect()
    }

    /// Takes up to `count` turns, each at the time the path asks for.
    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
            let Some(next) = self.path.next_wake() else { return };
            self.clock.advance_to(next.max(self.clock.now()));
        }
    }

    fn drain(&mut self) {
        self.turns(1000);
        assert!(self.path.idle(), "requests are left after 1000 turns");
    }

    fn ended_at(&self, tag: u64) -> u128 {
        let of_tag = |(_, completed): &&(Instant, QueueCompletion)| completed.completion.tag == tag;
        self.log.iter().find(of_tag).expect("no completion with this tag").0.picoseconds()
    }
}

const OK: Result<(), Failure> = Ok(());

#[test]
fn a_linked_request_starts_after_a_success() {
    let (mut bed, queue, frame) = bed(4);
    bed.submit(queue, 1, &fill(frame, 10).linked());
    bed.submit(queue, 2, &fill(frame, 10).linked());
    bed.submit(queue, 3, &fill(frame, 10));
    // Not linked, but requests start in submission order.
    bed.submit(queue, 4, &fill(frame, 0));
    bed.drain();
    assert_eq!(bed.ends(), [1, 2, 4, 3].map(|tag| (tag, OK, false, 0)));
    let times = [1, 2, 3].map(|tag| bed.ended_at(tag));
    assert_eq!(times, [1100, 2200, 3300]);
    assert_eq!(bed.ended_at(4), 3200, "runs beside request 3");
}

#[test]
fn an_endless_loop_yields_its_channel() {
    let (mut bed, queue, frame) = bed(1);
    bed.submit(queue, 1, &Request::repeat(0));
    bed.submit(queue, 2, &fill(frame, 10));
    bed.turns(20);
    let other = bed.frame(B, 64).0;
    let foreign = bed.path.open_queue(B, 1);
    bed.submit(foreign, 7, &fill(other, 10));
    bed.turns(20);
    assert_eq!(bed.completion(7).outcome.result, OK);
    assert!(!bed.path.idle(), "the loop must continue");
}

#[test]
fn a_failure_fails_only_the_linked_requests() {
    let outside = Failure::OutOfBounds { side: memferry_transfer::Side::Destination, available: 64 };
    for late in [false, true] {
        let (mut bed, queue, frame) = bed(4);
        // The first request fails in the engine if late, else at admission.
        let first = if late { fill(frame, 60) } else { fill(frame, 65) };
        let reason = if late { Failure::MemoryFault } else { outside };
        if late {
            bed.path.engine_mut().inject(0, Fault::Fails { failure: reason, after_bytes: 0 });
        }
        bed.submit(queue, 1, &first.linked());
        bed.submit(queue, 2, &fill(frame, 10).linked());
        bed.submit(queue, 3, &fill(frame, 10));
        bed.submit(queue, 4, &fill(frame, 10));
        bed.drain();
        let failed = [(1, Err(reason), false, 0), (2, Err(reason), true, 0), (3, Err(reason), true, 0)];
        assert_eq!(bed.ends(), [&failed[..], &[(4, OK, false, 0)]].concat(), "late {late}");
    }
}

#[test]
fn links_to_a_refused_request_fail_with_it() {
    let (mut bed, queue, frame) = bed(4);
    bed.submit(queue, 1, &fill(frame, 10).linked());
    let reservation = bed.path.reserve(queue, 8).unwrap();
    bed.path.refuse(reservation, 2, true, Failure::Unsupported);
    bed.submit(queue, 3, &fill(frame, 10).linked());
    bed.submit(queue, 4, &fill(frame, 10));
    bed.submit(queue, 5, &fill(frame, 10));
    bed.drain();
    let mut ends = bed.ends();
    ends.sort_by_key(|end| end.0);
    let reason = Err(Failure::Unsupported);
    let expected = [(1, OK, false, 0), (2, reason, false, 0), (3, reason, true, 0), (4, reason, true, 0)];
    assert_eq!(ends, [&expected[..], &[(5, OK, false, 0)]].concat());
}

#[test]
fn a_fence_separates_earlier_from_later_requests() {
    let (mut bed, queue, frame) = bed(8);
    bed.submit(queue, 1, &fill(frame, 60));
    bed.submit(queue, 2, &fill(frame, 10));
    bed.submit(queue, 3, &Request::new(Operation::Nop).fenced());
    bed.submit(queue, 4, &fill(frame, 10));
    // The fence does not affect other queues.
    let other = bed.path.open_queue(A, 0);
    bed.submit(other, 5, &fill(frame, 10));
    bed.drain();
    let times = [2, 5, 1, 3, 4].map(|tag| bed.ended_at(tag));
    assert_eq!(times, [1100, 1100, 1600, 2600, 2700]);
}

#[test]
fn a_fence_starts_after_failures_or_at_once() {
    let (mut bed, queue, frame) = bed(8);
    bed.submit(queue, 1, &fill(frame, 0).fenced());
    bed.submit(queue, 2, &fill(frame, 65));
    bed.path.engine_mut().inject(0, Fault::Fails { failure: Failure::MemoryFault, after_bytes: 0 });
    bed.submit(queue, 3, &fill(frame, 10).fenced());
    bed.drain();
    assert_eq!(bed.ends().len(), 3);
    assert_eq!((bed.ended_at(1), bed.ended_at(3)), (1000, 2100));
}

#[test]
fn a_loop_repeats_in_order_and_counts_rounds() {
    let (mut bed, queue, frame) = bed(4);
    bed.submit(queue, 1, &Request::repeat(3));
    bed.submit(queue, 2, &fill(frame, 10).linked());
    bed.submit(queue, 3, &fill(frame, 20));
    bed.submit(queue, 4, &fill(frame, 0));
    bed.drain();
    assert_eq!(bed.ends(), [(2, OK, false, 0), (3, OK, false, 0), (1, OK, false, 3), (4, OK, false, 0)]);
    let bytes: Vec<_> =
        bed.log.iter().map(|(_, completed)| completed.completion.outcome.bytes_done).collect();
    assert_eq!(bytes, [30, 60, 0, 0]);
    assert_eq!((bed.ended_at(1), bed.ended_at(4)), (3 * (1100 + 1200), 3 * (1100 + 1200) + 1000));
}

/// A frame of A that B may use for a time.
fn granted_for(bed: &mut Bed, nanoseconds: u64) -> Handle {
    let (owned, _) = bed.frame(A, 64);
    let lasts = Some(std::time::Duration::from_nanos(nanoseconds));
    let to = Grantee::Session(B);
    let token = bed.capabilities.grant_for(A, owned, (0, 64), Rights::all(), to, lasts).unwrap();
    bed.capabilities.accept(B, 1, token).unwrap().handle
}

#[test]
fn an_expired_grant_ends_an_endless_loop() {
    let (mut bed, _, _) = bed(4);
    let clock = Ticks::default();
    bed.capabilities = Capabilities::new(64).with_clock(clock.clone());
    let handle = granted_for(&mut bed, 10);
    let queue = bed.path.open_queue(B, 1);
    bed.submit(queue, 1, &Request::repeat(0));
    bed.submit(queue, 2, &fill(handle, 10));
    bed.turns(20);
    assert!(bed.log.is_empty());
    clock.pass(10);
    bed.drain();
    let expired = Failure::Expired { side: memferry_transfer::Side::Destination, handle };
    assert_eq!(bed.completion(2).outcome.result, Err(expired));
    assert_eq!(bed.completion(1).outcome.result, Err(expired));
    assert!(bed.completion(2).outcome.bytes_done > 0, "rounds before the end were done");
}

#[test]
fn a_waiting_request_does_not_outlast_its_grant() {
    let (mut bed, _, _) = bed(1);
    let clock = Ticks::default();
    bed.capabilities = Capabilities::new(64).with_clock(clock.clone());
    let handle = granted_for(&mut bed, 10);
    let queue = bed.path.open_queue(B, 1);
    bed.submit(queue, 1, &fill(handle, 10));
    bed.submit(queue, 2, &fill(handle, 10));
    clock.pass(10);
    bed.drain();
    // The first one ran already.
    assert_eq!(bed.completion(1).outcome.result, OK);
    let expired = Failure::Expired { side: memferry_transfer::Side::Destination, handle };
    assert_eq!(bed.completion(2), refused(2, expired));
}

#[test]
fn a_stopped_loop_completes_its_round() {
    let (mut bed, queue, frame) = bed(4);
    bed.submit(queue, 1, &Request::repeat(0));
    bed.submit(queue, 2, &fill(frame, 10).linked());
    bed.submit(queue, 3, &fill(frame, 10));
    // Other clients are served meanwhile.
    let other = bed.path.open_queue(B, 1);
    let (their, _) = bed.frame(B, 64);
    bed.submit(other, 4, &fill(their, 30));
    bed.turns(25);
    assert!(bed.ends().contains(&(4, OK, false, 0)) && bed.log.len() == 1);
    bed.path.stop_loops(queue, |tag| tag == 3);
    bed.turns(5);
    assert_eq!(bed.log.len(), 1, "the tag of a member must not stop the loop");
    bed.path.stop_loops(queue, |tag| tag == 1);
    bed.drain();
    let ends = bed.ends();
    let rounds = ends[3].3;
    assert!(rounds > 5, "{ends:?}");
    assert_eq!(ends[1..], [(2, OK, false, 0), (3, OK, false, 0), (1, OK, false, rounds)]);
    assert_eq!(bed.log[1].1.completion.outcome.bytes_done, 10 * rounds);
}

#[test]
fn a_stopping_service_ends_endless_loops_and_finishes_others() {
    for wanted in [0, 50] {
        let (mut bed, queue, frame) = bed(4);
        bed.submit(queue, 1, &Request::repeat(wanted));
        bed.submit(queue, 2, &fill(frame, 10).linked());
        bed.submit(queue, 3, &fill(frame, 10));
        bed.submit(queue, 4, &Request::new(Operation::Nop));
        bed.turns(9);
        assert!(bed.log.is_empty());
        bed.path.stop(&mut bed.capabilities);
        bed.drain();
        let ends = bed.ends();
        let rounds = ends[3].3;
        assert_eq!(rounds == 50, wanted == 50, "{ends:?}");
        let stopping = Err(Failure::ServiceStopping);
        assert_eq!(
            ends,
            [(4, stopping, false, 0), (2, OK, false, 0), (3, OK, false, 0), (1, OK, false, rounds)]
        );
        assert_eq!(bed.log[1].1.completion.outcome.bytes_done, 10 * rounds);
    }
}

#[test]
fn early_ends_stop_a_loop_at_once() {
    for (case, reason) in
        [Failure::Cancelled, Failure::Cancelled, Failure::DeadlineExceeded, Failure::MemoryFault]
            .into_iter()
            .enumerate()
    {
        let (mut bed, queue, frame) = bed(1);
        let repeat = Request::repeat(0);
        let deadline = at(10_500);
        bed.submit(queue, 1, &if case == 2 { repeat.with_deadline(deadline) } else { repeat });
        bed.submit(queue, 2, &fill(frame, 10).linked());
        bed.submit(queue, 3, &fill(frame, 20));
        bed.submit(queue, 4, &Request::new(Operation::Nop));
        bed.turns(9);
        match case {
            0 => bed.cancel(queue, 1),
            1 => {
                bed.capabilities.revoke(A, frame).unwrap();
                bed.path.cancel_revoked(&mut bed.capabilities);
            }
            2 => {}
            _ => bed.path.engine_mut().inject(0, Fault::Fails { failure: reason, after_bytes: 0 }),
        }
        bed.turns(30);
        let ends = bed.ends();
        assert_eq!(ends.len(), 4, "case {case}: {ends:?}");
        let of = |tag| *ends.iter().find(|end| end.0 == tag).unwrap();
        assert_eq!(of(1).1, Err(reason), "case {case}");
        assert!(of(2).1 == Err(reason) || of(3).1 == Err(reason), "case {case}: {ends:?}");
        let after = if case == 3 { Err(Failure::MemoryFault) } else { OK };
        assert_eq!(of(4).1, after, "the request behind the loop: case {case}");
        bed.capabilities.close(A);
        let freed = bed.capabilities.take_dropped().len();
        assert_eq!(freed, 1, "the loop's claims must be released: case {case}");
    }
}

#[test]
fn an_invalid_loop_is_refused_as_a_whole() {
    let (mut bed, queue, frame) = bed(4);
    let mut alone = Request::repeat(2);
    alone.terms.linked = false;
    bed.submit(queue, 1, &alone);
    bed.submit(queue, 2, &Request::repeat(2));
    bed.submit(queue, 3, &fill(frame, 10).linked());
    bed.submit(queue, 4, &Request::repeat(2));
    bed.submit(queue, 5, &fill(frame, 10));
    // A loop with a member outside its memory.
    bed.submit(queue, 6, &Request::repeat(2));
    bed.submit(queue, 7, &fill(frame, 10).linked());
    bed.submit(queue, 8, &fill(frame, 65).linked());
    bed.submit(queue, 9, &fill(frame, 10));
    bed.submit(queue, 10, &fill(frame, 10));
    bed.drain();
    let mut ends = bed.ends();
    ends.sort_by_key(|end| end.0);
    let bad = Err(Failure::BadLoop);
    let outside = Err(Failure::OutOfBounds { side: memferry_transfer::Side::Destination, available: 64 });
    let expected = [
        (1, bad, false, 0),
        (2, bad, true, 0),
        (3, bad, true, 0),
        (4, bad, false, 0),
        (5, bad, true, 0),
        (6, outside, true, 0),
        (7, outside, true, 0),
        (8, outside, false, 0),
        (9, outside, true, 0),
        (10, OK, false, 0),
    ];
    assert_eq!(ends, expected);
}

#[test]
fn cancelling_a_held_request_ends_its_links() {
    let (mut bed, queue, frame) = bed(2);
    bed.submit(queue, 1, &fill(frame, 60).linked());
    bed.submit(queue, 2, &fill(frame, 10).linked());
    bed.submit(queue, 3, &fill(frame, 10));
    bed.submit(queue, 4, &fill(frame, 10).fenced());
    bed.cancel(queue, 2);
    let cancelled = Err(Failure::Cancelled);
    assert_eq!(bed.ends(), [(2, cancelled, false, 0), (3, cancelled, true, 0)]);
    bed.submit(queue, 5, &Request::repeat(0));
    bed.submit(queue, 6, &fill(frame, 10).linked());
    bed.close(queue);
    bed.drain();
    assert_eq!(bed.log.len(), 2, "a closed queue gets no completions");
    assert!(bed.path.queue_gone(queue) && bed.path.idle());
    bed.capabilities.close(A);
    assert_eq!(bed.capabilities.take_dropped().len(), 1);
}

#[test]
fn a_held_request_fails_at_its_deadline() {
    let (mut bed, queue, frame) = bed(2);
    bed.submit(queue, 1, &fill(frame, 60));
    bed.submit(queue, 2, &fill(frame, 10).fenced().with_deadline(at(1200)));
    bed.drain();
    assert_eq!(bed.ends(), [(2, Err(Failure::DeadlineExceeded), false, 0), (1, OK, false, 0)]);
    assert_eq!(bed.ended_at(2), 1200);
}

#[test]
fn higher_classes_start_first_across_queues() {
    let (mut bed, queue, frame) = bed(1);
    let other = bed.path.open_queue(A, 0);
    let third = bed.path.open_queue(A, 0);
    for key in [queue, other, third] {
        bed.path.grant_class(key, PriorityClass::High);
    }
    let class = |class| {
        let mut request = fill(frame, 0);
        request.terms.class = class;
        request
    };
    bed.submit(queue, 1, &class(PriorityClass::Normal));
    bed.submit(queue, 2, &class(PriorityClass::Low));
    bed.submit(queue, 3, &class(PriorityClass::High));
    bed.submit(other, 4, &class(PriorityClass::Normal));
    bed.submit(third, 5, &class(PriorityClass::High));
    bed.drain();
    let order: Vec<_> = bed.ends().iter().map(|end| end.0).collect();
    assert_eq!(order, [1, 5, 4, 2, 3]);
}

#[test]
fn an_ungranted_class_is_refused() {
    let (mut bed, queue, frame) = bed(1);
    let mut request = fill(frame, 1);
    request.terms.class = PriorityClass::High;
    bed.submit(queue, 1, &request);
    let refused = Failure::ClassNotGranted { granted: PriorityClass::Normal };
    assert_eq!(bed.ends(), [(1, Err(refused), false, 0)]);
}

#[test]
fn a_late_end_does_not_release_a_later_link() {
    let outside = Failure::OutOfBounds { side: memferry_transfer::Side::Destination, available: 64 };
    for cancelled in [false, true] {
        let (mut bed, queue, frame) = bed(4);
        bed.submit(queue, 1, &fill(frame, 10).linked());
        // The successor of the first is gone before the first has ended.
        bed.submit(queue, 2, &fill(frame, if cancelled { 1 } else { 65 }));
        if cancelled {
            bed.cancel(queue, 2);
        }
        bed.submit(queue, 3, &fill(frame, 60).linked());
        bed.submit(queue, 4, &fill(frame, 1));
        bed.drain();
        let gone = if cancelled { Failure::Cancelled } else { outside };
        let expected = [(2, Err(gone), false, 0), (1, OK, false, 0), (3, OK, false, 0), (4, OK, false, 0)];
        assert_eq!(bed.ends(), expected);
        assert_eq!(bed.ended_at(4), 1600 + 1010, "starts after request 3");
    }
}

#[test]
fn a_refused_successor_ends_the_chain() {
    let outside = Failure::OutOfBounds { side: memferry_transfer::Side::Destination, available: 64 };
    let cancelled = Failure::Cancelled;
    for of_loop in [false, true] {
        let (mut bed, queue, frame) = bed(4);
        bed.submit(queue, 1, &fill(frame, 60));
        bed.submit(queue, 2, &fill(frame, 10).fenced().linked());
        // Refused on arrival, so it is not held behind the second.
        bed.submit(queue, 3, &fill(frame, 65));
        if of_loop {
            // Its members have not arrived yet when the second is cancelled.
            bed.submit(queue, 4, &Request::repeat(2));
        }
        bed.cancel(queue, 2);
        bed.submit(queue, 5, &fill(frame, 10));
        bed.drain();
        let mut ends = bed.ends();
        ends.sort_by_key(|end| end.0);
        let mut expected =
            vec![(1, OK, false, 0), (2, Err(cancelled), false, 0), (3, Err(outside), false, 0)];
        expected.extend(of_loop.then_some((4, OK, false, 2)));
        expected.push((5, OK, false, 0));
        assert_eq!(ends, expected);
    }
}

#[test]
fn held_requests_count_in_the_waiting_quota() {
    let mut bed = Bed::new(4, Shared::new(), 4);
    let frame = bed.frame(A, 64).0;
    let theirs = bed.frame(B, 64).0;
    let [queue, other, foreign] =
        [(A, 0), (A, 0), (B, 1)].map(|(session, user)| bed.path.open_queue(session, user));
    bed.submit(queue, 1, &Request::repeat(0));
    bed.submit(queue, 2, &fill(frame, 10));
    bed.submit(queue, 3, &fill(frame, 10));
    bed.submit(queue, 4, &fill(frame, 10).linked());
    // The loop, its member and two requests behind it fill the quota of this user; other users have their own.
    bed.submit(queue, 5, &fill(frame, 10));
    bed.submit(other, 6, &Request::repeat(0));
    bed.submit(other, 7, &fill(frame, 10));
    bed.submit(foreign, 8, &fill(theirs, 10).linked());
    bed.submit(foreign, 9, &fill(theirs, 10));
    bed.turns(20);
    let full = Err(Failure::WaitingQuota { limit: 4 });
    let refused = [(5, full, false, 0), (6, full, false, 0), (7, full, true, 0)];
    assert_eq!(bed.ends(), [&refused[..], &[(8, OK, false, 0), (9, OK, false, 0)]].concat());
    bed.cancel(queue, 3);
    bed.submit(queue, 10, &fill(frame, 10));
    bed.path.stop_loops(queue, |tag| tag == 1);
    bed.drain();
    let left: Vec<_> = bed.ends()[5..].iter().map(|end| (end.0, end.1)).collect();
    assert_eq!(left, [(3, Err(Failure::Cancelled)), (2, OK), (1, OK), (4, OK), (10, OK)]);
    // All places of the quota are free again.
    bed.submit(other, 20, &fill(frame, 60));
    for tag in 21..=25 {
        bed.submit(other, tag, &fill(frame, 0).fenced());
    }
    assert_eq!(bed.ends()[10..], [(25, full, false, 0)]);
    bed.drain();
    assert!((20..25).all(|tag| bed.completion(tag).outcome.result == OK));
}

#[test]
fn held_requests_passed_the_quota_already() {
    let mut bed = Bed::new(1, Shared::new(), 2);
    let frame = bed.frame(A, 64).0;
    let theirs = bed.frame(B, 64).0;
    let queue = bed.path.open_queue(A, 0);
    let foreign = bed.path.open_queue(B, 1);
    bed.submit(foreign, 1, &fill(theirs, 60));
    bed.submit(queue, 2, &Request::repeat(2));
    bed.submit(queue, 3, &fill(frame, 10));
    assert_eq!(bed.path.waiting(), 1);
    bed.drain();
    assert_eq!(bed.ends(), [(1, OK, false, 0), (3, OK, false, 0), (2, OK, false, 2)]);
}

#[test]
fn each_64_segments_count_as_one_more_request() {
    for fenced in [false, true] {
        let mut bed = Bed::new(1, Shared::new(), 4);
        let frame = bed.frame(A, 64).0;
        let queue = bed.path.open_queue(A, 0);
        let list = |segments: usize| {
            let empty = Segment { place: Span::new(frame, 0), length: 0 };
            let lists = Lists { source: vec![empty; segments].into(), destination: vec![empty; 64].into() };
            let request = Request::new(Operation::ScatterGather { lists: Arc::new(lists) });
            if fenced { request.fenced() } else { request }
        };
        let full = Err(Failure::WaitingQuota { limit: 4 });
        for round in [0, 10] {
            bed.submit(queue, round, &fill(frame, 60));
            bed.submit(queue, round + 1, &list(63));
            bed.submit(queue, round + 2, &list(0));
            bed.submit(queue, round + 3, &list(0));
            assert_eq!(bed.completion(round + 3).outcome.result, full, "fenced {fenced}");
            bed.drain();
            assert!(
                (round..round + 3).all(|tag| bed.completion(tag).outcome.result == OK),
                "fenced {fenced}"
            );
        }
    }
}

#[test]
fn each_deadline_of_held_requests_counts() {
    let (mut bed, queue, frame) = bed(2);
    bed.submit(queue, 1, &fill(frame, 60));
    bed.submit(queue, 2, &fill(frame, 10).fenced().with_deadline(at(1100)));
    bed.submit(queue, 3, &Request::repeat(2).fenced());
    bed.submit(queue, 4, &fill(frame, 10).with_deadline(at(1200)));
    bed.submit(queue, 5, &fill(frame, 10).fenced().with_deadline(at(1300)));
    bed.submit(queue, 6, &fill(frame, 10));
    bed.cancel(queue, 2);
    bed.drain();
    let late = Err(Failure::DeadlineExceeded);
    let times = [2, 4, 3, 5, 1, 6].map(|tag| (tag, bed.ended_at(tag)));
    assert_eq!(times, [(2, 0), (4, 1200), (3, 1200), (5, 1300), (1, 1600), (6, 2400)]);
    assert!([3, 4, 5].iter().all(|tag| bed.completion(*tag).outcome.result == late));
}
