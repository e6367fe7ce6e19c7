//! Early ends: cancels, deadlines and revocations of waiting and running requests, and the reason reported.

use super::*;

#[test]
fn a_passed_deadline_starts_nothing() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let ((frame, memory), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
    bed.run_for(500);
    for (tag, deadline) in [(1, 0), (2, 499), (3, 500)] {
        bed.submit(queue, tag, &fill(frame, 100).with_deadline(at(deadline)));
        assert_eq!(bed.completion(tag), refused(tag, Failure::DeadlineExceeded));
    }
    assert!(bed.path.idle());
    assert_eq!(memory.contents(), [0; 100]);
}

#[test]
fn a_deadline_ends_a_request_between_chunks() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let ((frame, memory), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
    bed.submit(queue, 1, &fill(frame, 100).with_deadline(at(1270)));
    // The 27th byte is moving; its chunk ends with the 32nd.
    bed.run_until(at(1265));
    bed.run_for(10_000);
    let completion = bed.completion(1);
    assert_eq!(
        (completion.outcome.result, completion.outcome.bytes_done),
        (Err(Failure::DeadlineExceeded), 32)
    );
    assert_eq!((completion.outcome.engine, bed.completed_at(1)), (EngineKind::Simulated, 1320));
    assert_eq!((&memory.contents()[..32], &memory.contents()[32..]), (&[1; 32][..], &[0; 68][..]));
    assert_eq!(bed.path.moved_by_class(), [0, 32, 0]);
}

#[test]
fn a_deadline_ends_a_waiting_request_on_time() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(queue, 2, &fill(frame, 100).with_deadline(at(1500)));
    bed.submit(queue, 3, &fill(frame, 100));
    bed.run_for(100_000);
    assert_eq!(bed.completion(2), refused(2, Failure::DeadlineExceeded));
    assert_eq!([1, 2, 3].map(|tag| bed.completed_at(tag)), [2000, 1500, 4000]);
}

#[test]
fn a_request_done_by_its_deadline_succeeds() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.submit(queue, 1, &fill(frame, 100).with_deadline(at(2001)));
    bed.run_for(10_000);
    assert_eq!((bed.completion(1).outcome.result, bed.completed_at(1)), (Ok(()), 2000));
}

#[test]
fn a_cancel_ends_waiting_and_running_requests() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(queue, 2, &fill(frame, 100));
    bed.run_for(1500);
    bed.cancel(queue, 2);
    assert_eq!(bed.completion(2), refused(2, Failure::Cancelled));
    bed.cancel(queue, 1);
    bed.run_for(10_000);
    let completion = bed.completion(1);
    assert_eq!((completion.outcome.result, completion.outcome.bytes_done), (Err(Failure::Cancelled), 56));
    assert_eq!(bed.completed_at(1), 1560);
}

#[test]
fn a_cancel_is_limited_to_its_queue() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    let other = bed.path.open_queue(A, 0);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(queue, 2, &fill(frame, 100));
    bed.cancel(other, 1);
    bed.cancel(other, 2);
    bed.cancel(queue, 99);
    bed.cancel(QueueKey(99), 1);
    bed.run_for(100_000);
    assert_eq!(bed.outcomes(), [(1, Ok(())), (2, Ok(()))]);
    bed.cancel(queue, 1);
    bed.run_for(100_000);
    assert_eq!(bed.log.len(), 2);
}

#[test]
fn an_uninterruptible_engine_reports_success() {
    let engine = FakeEngine::new(1, Timing { preemption_bytes: None, ..TIMING });
    let mut bed = Bed::over(engine, Box::new(Shared::new()), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.submit(queue, 1, &fill(frame, 100).with_deadline(at(1700)));
    bed.run_for(1500);
    bed.cancel(queue, 1);
    bed.run_for(10_000);
    assert_eq!((bed.completion(1).outcome.result, bed.completion(1).outcome.bytes_done), (Ok(()), 100));
}

#[test]
fn the_first_reason_to_end_is_reported() {
    for (deadline, reason) in [(1100, Failure::DeadlineExceeded), (1500, Failure::Cancelled)] {
        let engine = FakeEngine::new(1, Timing { preemption_bytes: Some(64), ..TIMING });
        let mut bed = Bed::over(engine, Box::new(Shared::new()), 8);
        let frame = bed.frame(A, 100).0;
        let queue = bed.path.open_queue(A, 0);
        bed.submit(queue, 1, &fill(frame, 100).with_deadline(at(deadline)));
        bed.run_until(at(1050));
        bed.run_until(at(1300));
        bed.cancel(queue, 1);
        bed.run_for(10_000);
        assert_eq!(
            (bed.completion(1).outcome.result, bed.completion(1).outcome.bytes_done),
            (Err(reason), 64)
        );
    }
}

#[test]
fn revoked_memory_ends_its_requests() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let ((frame, _), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
    let other = bed.frame(A, 100).0;
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(queue, 2, &fill(frame, 100));
    bed.submit(queue, 3, &fill(other, 100));
    bed.run_for(1500);
    let revocation = bed.capabilities.revoke(A, frame).unwrap();
    bed.path.cancel_revoked(&mut bed.capabilities);
    bed.collect();
    assert_eq!(bed.completion(2), refused(2, Failure::Cancelled));
    assert_eq!(bed.capabilities.take_finished(), []);
    bed.run_for(100_000);
    assert_eq!(bed.completion(1).outcome.result, Err(Failure::Cancelled));
    assert_eq!(bed.completion(3).outcome.result, Ok(()));
    assert_eq!(bed.capabilities.take_finished(), [revocation]);
}

#[test]
fn revoking_a_grant_ends_the_peers_requests() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let (frame, memory) = bed.frame(A, 100);
    let token = bed.capabilities.grant(A, frame, (10, 50), Rights::WRITE, Grantee::Session(B)).unwrap();
    let held = bed.capabilities.accept(B, 0, token).unwrap().handle;
    let queue = bed.path.open_queue(B, 0);
    bed.submit(queue, 1, &fill(held, 50));
    bed.run_for(1200);
    bed.capabilities.revoke(A, token.handle()).unwrap();
    bed.path.cancel_revoked(&mut bed.capabilities);
    bed.run_for(10_000);
    assert_eq!(
        (bed.completion(1).outcome.result, bed.completion(1).outcome.bytes_done),
        (Err(Failure::Cancelled), 24)
    );
    bed.submit(queue, 2, &fill(held, 1));
    assert!(matches!(bed.completion(2).outcome.result, Err(Failure::Revoked { .. })));
    let written: u32 = memory.contents().iter().map(|byte| u32::from(*byte)).sum();
    assert_eq!((written, memory.contents()[10]), (24, 1));
}

#[test]
fn stop_fails_waiting_and_cancel_all_ends_running() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(queue, 2, &fill(frame, 100));
    bed.run_for(1500);
    bed.path.stop(&mut bed.capabilities);
    bed.collect();
    assert_eq!(bed.completion(2), refused(2, Failure::ServiceStopping));
    assert!(!bed.path.idle());
    bed.path.cancel_all(&mut bed.capabilities);
    bed.run_for(10_000);
    assert_eq!(bed.completion(1).outcome.result, Err(Failure::Cancelled));
    assert!(bed.path.idle());
    bed.capabilities.close(A);
    assert_eq!(bed.capabilities.take_finished().len(), 1);
}

#[test]
fn the_next_wake_is_the_earliest_end_or_deadline() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    assert_eq!(bed.path.next_wake(), None);
    bed.submit(queue, 1, &fill(frame, 100).with_deadline(at(5000)));
    assert_eq!(bed.path.next_wake(), Some(at(5000)), "no request has started yet");
    bed.turn();
    assert_eq!(bed.path.next_wake(), Some(at(2000)));
    bed.submit(queue, 2, &fill(frame, 100).with_deadline(at(1800)));
    assert_eq!(bed.path.next_wake(), Some(at(1800)));
    bed.submit(queue, 3, &fill(frame, 100).with_deadline(at(1700)));
    assert_eq!(bed.path.next_wake(), Some(at(1700)));
    bed.cancel(queue, 3);
    assert_eq!(bed.path.next_wake(), Some(at(1800)));
    bed.run_for(100_000);
    assert_eq!(bed.path.next_wake(), None);
}
