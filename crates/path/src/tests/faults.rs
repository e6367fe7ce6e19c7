//! Failed channels and failed memory: reports, channels that stay in use, and memory kept until a reset.

use super::*;

const FAILS: Fault = Fault::Fails { failure: Failure::ChannelFaulted, after_bytes: 10 };

#[test]
fn a_failed_channel_keeps_memory_until_reset() {
    let mut bed = Bed::new(2, Shared::new(), 8);
    let ((frame, memory), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
    let other = bed.frame(A, 100).0;
    bed.path.engine_mut().inject(0, FAILS);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.run_for(5000);
    assert_eq!(
        (bed.completion(1).outcome.result, bed.completion(1).outcome.bytes_done),
        (Err(Failure::ChannelFaulted), 10)
    );
    assert_eq!(bed.path.channel_states(), [ChannelState::Faulted, ChannelState::Free]);
    assert!(bed.path.idle());

    let revocation = bed.capabilities.revoke(A, frame).unwrap();
    for tag in 2..5 {
        bed.submit(queue, tag, &fill(other, 100));
    }
    bed.run_for(100_000);
    assert_eq!(bed.outcomes()[1..], [2, 3, 4].map(|tag| (tag, Ok(()))));
    assert_eq!([2, 3, 4].map(|tag| bed.completed_at(tag)), [7000, 9000, 11_000]);
    assert_eq!(bed.capabilities.take_finished(), []);
    assert_eq!(bed.capabilities.take_dropped(), []);
    // The revocation is reported, once, as withheld: the reset may never happen.
    assert_eq!(bed.capabilities.take_withheld(), [revocation]);
    assert_eq!(bed.capabilities.take_withheld(), []);
    // A repeated revocation is reported again, and the last one replaces the others.
    let again = [(); 3].map(|()| {
        let revocation = bed.capabilities.revoke(A, frame).unwrap();
        assert_eq!(bed.capabilities.take_withheld(), [revocation]);
        revocation
    });

    bed.path.channel_was_reset(1, &mut bed.capabilities);
    assert_eq!(bed.capabilities.take_finished(), []);
    bed.path.engine_mut().reset(0);
    bed.path.channel_was_reset(0, &mut bed.capabilities);
    assert_eq!(bed.path.channel_states(), [ChannelState::Free; 2]);
    assert_eq!(bed.capabilities.take_finished(), again[2..]);
    assert_eq!(bed.capabilities.take_dropped(), [memory]);
}

#[test]
fn a_revocation_is_replaced_only_after_its_report() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.path.engine_mut().inject(0, FAILS);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.run_for(5000);
    let unreported = [(); 2].map(|()| bed.capabilities.revoke(A, frame).unwrap());
    bed.path.engine_mut().reset(0);
    bed.path.channel_was_reset(0, &mut bed.capabilities);
    // Nobody was told that the memory is withheld, so each of their callers waits.
    assert_eq!(bed.capabilities.take_finished(), unreported);
}

#[test]
fn only_failed_channels_withhold_a_revocation() {
    let mut bed = Bed::new(2, Shared::new(), 8);
    let frame = bed.frame(A, 10_000).0;
    let queue = bed.path.open_queue(A, 0);
    bed.path.engine_mut().inject(0, FAILS);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(queue, 2, &fill(frame, 10_000));
    bed.turn();
    let revocation = bed.capabilities.revoke(A, frame).unwrap();
    while bed.outcomes().is_empty() {
        bed.run_for(1000);
    }
    // The other request still runs.
    assert_eq!(bed.completion(1).outcome.result, Err(Failure::ChannelFaulted));
    assert_eq!(bed.capabilities.take_withheld(), []);
    bed.run_for(1_000_000);
    assert_eq!(bed.completion(2).outcome.result, Ok(()));
    assert_eq!(
        (bed.capabilities.take_withheld(), bed.capabilities.take_finished()),
        (vec![revocation], vec![])
    );
    // A revocation made after the failure is withheld too.
    let other = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.path.engine_mut().inject(1, FAILS);
    bed.submit(queue, 3, &fill(other, 100));
    bed.run_for(10_000);
    let later = bed.capabilities.revoke(A, other).unwrap();
    assert_eq!(bed.capabilities.take_withheld(), [later]);
    for channel in 0..2 {
        bed.path.engine_mut().reset(channel);
        bed.path.channel_was_reset(channel, &mut bed.capabilities);
    }
    assert_eq!(bed.capabilities.take_finished(), [revocation, later]);
    assert_eq!(bed.capabilities.take_withheld(), []);
}

#[test]
fn requests_fail_when_every_channel_has_failed() {
    for waits in [true, false] {
        let mut bed = Bed::new(2, Shared::new(), 8);
        let frame = bed.frame(A, 100).0;
        let queue = bed.path.open_queue(A, 0);
        for channel in 0..2 {
            bed.path.engine_mut().inject(channel, FAILS);
        }
        bed.submit(queue, 1, &fill(frame, 100));
        bed.submit(queue, 2, &fill(frame, 100));
        // This one waits while the channels fail.
        bed.submit(queue, 3, &fill(frame, 100));
        bed.run_for(10_000);
        assert_eq!(bed.completion(3), refused(3, Failure::ChannelFaulted));
        assert_eq!(bed.path.channel_states(), [ChannelState::Faulted; 2]);
        let late = if waits { fill(frame, 1) } else { fill(frame, 1).refuse_when_busy() };
        bed.submit(queue, 4, &late);
        assert_eq!(bed.completion(4), refused(4, Failure::ChannelFaulted));

        bed.path.engine_mut().reset(1);
        bed.path.channel_was_reset(1, &mut bed.capabilities);
        bed.submit(queue, 5, &fill(frame, 1));
        bed.run_for(10_000);
        assert_eq!(bed.completion(5).outcome.result, Ok(()));
    }
}

#[test]
fn a_memory_fault_leaves_the_channel_in_use() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let ((frame, _), queue) = (bed.frame(A, 100), bed.path.open_queue(A, 0));
    bed.path.engine_mut().inject(0, Fault::Fails { failure: Failure::MemoryFault, after_bytes: 40 });
    bed.submit(queue, 1, &fill(frame, 100));
    bed.run_for(10_000);
    assert_eq!(
        (bed.completion(1).outcome.result, bed.completion(1).outcome.bytes_done),
        (Err(Failure::MemoryFault), 40)
    );
    bed.path.engine_mut().reset(0);
    bed.submit(queue, 2, &fill(frame, 100));
    bed.run_for(10_000);
    assert_eq!(bed.completion(2).outcome.result, Ok(()));
    let revocation = bed.capabilities.revoke(A, frame).unwrap();
    assert_eq!(bed.capabilities.take_finished(), [revocation]);
}

#[test]
fn a_hanging_request_completes_after_a_reset() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    bed.path.engine_mut().inject(0, Fault::Hangs);
    bed.submit(queue, 1, &fill(frame, 100).with_deadline(at(1200)));
    bed.run_for(100_000);
    bed.cancel(queue, 1);
    let revocation = bed.capabilities.revoke(A, frame).unwrap();
    bed.path.cancel_revoked(&mut bed.capabilities);
    bed.run_for(100_000);
    assert_eq!((bed.log.len(), bed.path.idle()), (0, false));
    // No wake for a deadline that the path has acted on.
    assert_eq!(bed.path.next_wake(), None);

    // If the reset is reported too early, the path relies on the engine's state.
    bed.path.channel_was_reset(0, &mut bed.capabilities);
    assert_eq!(bed.path.channel_states(), [ChannelState::Busy]);
    bed.path.engine_mut().reset(0);
    bed.turn();
    assert_eq!(bed.completion(1).outcome.result, Err(Failure::ChannelFaulted));
    assert_eq!(bed.capabilities.take_finished(), []);
    bed.path.channel_was_reset(0, &mut bed.capabilities);
    assert_eq!(bed.capabilities.take_finished(), [revocation]);
    assert_eq!(bed.path.channel_states(), [ChannelState::Free]);
}

#[test]
fn a_closed_queue_stays_while_its_request_hangs() {
    let mut bed = Bed::new(1, Exclusive::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    let other = bed.frame(B, 100).0;
    let other_queue = bed.path.open_queue(B, 0);
    bed.path.engine_mut().inject(0, Fault::Hangs);
    bed.submit(queue, 1, &fill(frame, 100));
    bed.submit(other_queue, 2, &fill(other, 100));
    bed.turn();
    bed.close(queue);
    let closing = bed.capabilities.close(A);
    bed.run_for(100_000);
    assert!(!bed.path.queue_gone(queue));
    bed.path.engine_mut().reset(0);
    bed.turn();
    assert!(bed.path.queue_gone(queue));
    assert_eq!(bed.outcomes(), [(2, Err(Failure::ChannelFaulted))]);
    assert_eq!(bed.capabilities.take_finished(), []);
    bed.path.channel_was_reset(0, &mut bed.capabilities);
    assert_eq!(bed.capabilities.take_finished(), [closing]);
    // The channel was bound to A, which has departed.
    bed.submit(other_queue, 3, &fill(other, 100));
    bed.run_for(10_000);
    assert_eq!(bed.completion(3).outcome.result, Ok(()));
}

#[test]
fn resetting_an_unknown_channel_is_harmless() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    bed.path.channel_was_reset(7, &mut bed.capabilities);
    assert_eq!(bed.path.channel_states(), [ChannelState::Free]);
}
