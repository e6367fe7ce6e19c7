//! Reservations and queues: every completion has room, none follows a close, and no claim or quota place leaks.

use memferry_transfer::Ticket;

use super::*;
use crate::request::Origin;
use crate::steps::{Ledger, Running};

#[test]
fn reservations_are_limited_by_the_ring() {
    let mut bed = Bed::new(4, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    assert!(bed.path.reserve(queue, 0).is_none());
    let reserved = bed.path.reserve(queue, 2).unwrap();
    bed.submit(queue, 1, &fill(frame, 100));
    assert!(bed.path.reserve(queue, 2).is_none());
    let third = bed.path.reserve(queue, 3).unwrap();
    bed.path.give_back(third);
    assert!(bed.path.reserve(queue, 2).is_none());
    bed.path.give_back(reserved);
    let other = bed.path.open_queue(A, 0);
    assert!(bed.path.reserve(other, 1).is_some());
    bed.run_for(10_000);
    for _ in 0..2 {
        assert!(bed.path.reserve(queue, 2).is_some());
    }
    assert!(bed.path.reserve(queue, 2).is_none());
    assert!(bed.path.reserve(QueueKey(99), 1).is_none());
}

#[test]
fn a_queue_is_full_if_its_next_request_would_wait() {
    let mut bed = Bed::new(1, Shared::new(), 1);
    let frame = bed.frame(A, 100).0;
    let [queue, other] = [(); 2].map(|()| bed.path.open_queue(A, 0));
    for tag in 1..3 {
        bed.submit(queue, tag, &fill(frame, 100));
    }
    assert_eq!(bed.path.full_for(queue), Some(Failure::WaitingQuota { limit: 1 }));
    assert_eq!(bed.path.full_for(other), None, "its next request may find a channel");
    assert_eq!(bed.path.full_for(QueueKey(99)), None);
}

#[test]
fn a_completion_counts_until_taken() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let queue = bed.path.open_queue(A, 0);
    let nop = Request::new(Operation::Nop);
    for (tag, failure) in [(1, Failure::Cancelled), (2, Failure::Unsupported)] {
        let reservation = bed.path.reserve(queue, 2).unwrap();
        bed.path.refuse(reservation, tag, false, failure);
    }
    assert!(bed.path.reserve(queue, 2).is_none(), "two completions are outstanding for a ring of two");
    bed.collect();
    assert_eq!(bed.outcomes(), [(1, Err(Failure::Cancelled)), (2, Err(Failure::Unsupported))]);
    let reservation = bed.path.reserve(queue, 1).unwrap();
    bed.path.submit(at(0), reservation, 3, &nop, &mut bed.capabilities);
    bed.path.ring_doorbell();
    bed.path.run(at(0));
    bed.path.run(at(1000));
    bed.path.settle(at(1000), &mut bed.capabilities);
    assert!(bed.path.reserve(queue, 1).is_none());
    bed.collect();
    assert_eq!(bed.completion(3).outcome.result, Ok(()));
    assert!(bed.path.reserve(queue, 1).is_some());
}

#[test]
fn a_closed_queue_delivers_no_completions() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let ((frame, memory), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
    for tag in 1..4 {
        bed.submit(queue, tag, &fill(frame, 100));
    }
    bed.run_for(1500);
    bed.close(queue);
    assert!(!bed.path.queue_gone(queue), "a request of the queue still runs");
    assert!(bed.path.reserve(queue, 100).is_none());
    bed.close(queue);
    bed.run_for(10_000);
    assert!(bed.path.queue_gone(queue));
    assert_eq!((bed.outcomes(), bed.path.idle()), (vec![], true));
    let revocation = bed.capabilities.revoke(A, frame).unwrap();
    assert_eq!(bed.capabilities.take_finished(), [revocation]);
    assert_eq!(memory.contents().iter().filter(|byte| **byte == 1).count(), 56);
}

#[test]
fn a_closed_queue_drops_its_completions() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let queue = bed.path.open_queue(A, 0);
    let other = bed.path.open_queue(A, 0);
    for (queue, tag) in [(queue, 1), (other, 2)] {
        let reservation = bed.path.reserve(queue, 8).unwrap();
        bed.path.refuse(reservation, tag, false, Failure::Cancelled);
    }
    bed.path.close_queue(queue, &mut bed.capabilities);
    assert!(bed.path.queue_gone(queue));
    // The next queue reuses the key, and must not get the completion.
    assert_eq!(bed.path.open_queue(B, 0), queue);
    bed.collect();
    assert_eq!(bed.outcomes(), [(2, Err(Failure::Cancelled))]);
}

#[test]
fn a_reservation_keeps_a_closed_queue() {
    for used in [true, false] {
        let mut bed = Bed::new(1, Exclusive::new(), 8);
        let ((frame, memory), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
        bed.submit(queue, 1, &fill(frame, 10));
        bed.run_for(10_000);
        let reservation = bed.path.reserve(queue, 8).unwrap();
        bed.close(queue);
        assert!(!bed.path.queue_gone(queue));
        if used {
            let now = bed.clock.now();
            let request = fill(frame, 100);
            bed.path.submit(now, reservation, 2, &request, &mut bed.capabilities);
        } else {
            bed.path.give_back(reservation);
        }
        assert!(bed.path.queue_gone(queue));
        bed.run_for(10_000);
        assert_eq!((bed.outcomes(), memory.contents()[10]), (vec![(1, Ok(()))], 0));
        // The policy released the channel, so another session gets it.
        let other = bed.frame(B, 10).0;
        let queue = bed.path.open_queue(B, 0);
        bed.submit(queue, 3, &fill(other, 10).refuse_when_busy());
        bed.run_for(10_000);
        assert_eq!(bed.completion(3).outcome.result, Ok(()));
    }
}

#[test]
fn queues_of_one_session_close_separately() {
    let mut bed = Bed::new(2, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let one = bed.path.open_queue(A, 0);
    let two = bed.path.open_queue(A, 0);
    assert_ne!(one, two);
    bed.submit(one, 1, &fill(frame, 100));
    bed.submit(two, 1, &fill(frame, 50));
    bed.turn();
    bed.close(one);
    bed.run_for(10_000);
    assert_eq!(bed.log.iter().map(|(_, completed)| completed.queue).collect::<Vec<_>>(), [two]);
    assert_eq!(bed.completion(1).outcome.bytes_done, 50);
}

#[test]
fn an_idle_path_has_no_work_and_no_wake() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    assert!(bed.path.idle() && !bed.path.must_settle());
    assert!(!bed.path.settle(at(5), &mut bed.capabilities));
    assert!(!bed.path.run(at(5)));
    let queue = bed.path.open_queue(A, 0);
    bed.close(queue);
    bed.close(QueueKey(99));
    assert!(bed.path.queue_gone(queue) && bed.path.queue_gone(QueueKey(99)));
    assert_eq!(bed.path.next_wake(), None);
}

#[test]
fn a_report_for_an_earlier_post_is_ignored() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let mut ledger = Ledger::new(2);
    let queue = ledger.open(A, 0);
    let ticket = Ticket { channel: 1, serial: 7 };
    let nop = Request::new(Operation::Nop);
    let (_, claims) = bed.capabilities.admit(A, &nop, 0).unwrap().into_parts();
    let origin = Origin { queue, user: 0, tag: 3, linked: false, member: false };
    ledger.start(Running {
        ticket,
        origin,
        claims,
        ask: Ask::of(A, 0),
        charged: 0,
        is_paced: true,
        ending: None,
        reported_bytes: 0,
    });
    for (channel, serial) in [(1, 6), (1, 8), (0, 7), (2, 7), (u32::MAX, 7)] {
        assert!(ledger.take(Ticket { channel, serial }).is_none());
    }
    let running = ledger.take(ticket).unwrap();
    let outcome = Outcome { result: Ok(()), bytes_done: 5, value: 0, engine: EngineKind::Simulated };
    let retired = running.retire(&outcome, None);
    let completion = Completion { tag: 3, inherited: false, outcome };
    let completed = ledger.complete(origin, retired.outcome, retired.inherited, retired.watermarked);
    assert_eq!(completed, Some(QueueCompletion { queue, completion, watermarked: false }));
    assert!(ledger.take(ticket).is_none());
}
