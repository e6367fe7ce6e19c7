//! Placement: requests that get a channel, wait or are refused, and policies with invalid choices.

use super::*;

#[test]
fn a_refusal_counts_the_busy_channels() {
    let mut bed = Bed::new(2, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    for tag in 1..=3 {
        bed.submit(queue, tag, &fill(frame, 100).refuse_when_busy());
    }
    assert_eq!(bed.completion(3), refused(3, Failure::ChannelsBusy { channels: 2 }));
    bed.run_for(10_000);
    assert_eq!(bed.outcomes()[1..], [(1, Ok(())), (2, Ok(()))]);
    assert_eq!((bed.completed_at(1), bed.completed_at(2)), (2000, 2000));
    assert_eq!(bed.completion(1).outcome.engine, EngineKind::Simulated);
}

#[test]
fn waiting_requests_start_in_arrival_order() {
    let mut bed = Bed::new(1, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let other = bed.frame(B, 100).0;
    let queue = bed.path.open_queue(A, 0);
    let other_queue = bed.path.open_queue(B, 0);
    for tag in [1, 2, 3] {
        bed.submit(queue, tag, &fill(frame, 100));
        bed.submit(other_queue, 10 * tag, &fill(other, 100));
    }
    assert_eq!(bed.path.waiting(), 5);
    bed.run_for(100_000);
    assert_eq!(bed.outcomes(), [1, 10, 2, 20, 3, 30].map(|tag| (tag, Ok(()))));
    assert_eq!(bed.completed_at(30), 6 * 2000);
    assert!(bed.path.idle());
}

#[test]
fn a_request_does_not_overtake_in_its_queue() {
    let mut bed = Bed::new(1, Exclusive::new(), 8);
    let frame = bed.frame(A, 100).0;
    let other = bed.frame(B, 100).0;
    let binding = bed.path.open_queue(A, 0);
    let queue = bed.path.open_queue(B, 0);
    bed.submit(binding, 1, &fill(frame, 100));
    bed.run_for(5000);
    bed.submit(queue, 2, &fill(other, 100));
    bed.close(binding);
    // The channel is free now, but request 2 came first.
    assert_eq!(bed.path.channel_states(), [ChannelState::Free]);
    bed.submit(queue, 3, &fill(other, 8));
    bed.submit(queue, 4, &fill(other, 8).refuse_when_busy());
    assert_eq!(bed.completion(4), refused(4, Failure::ChannelsBusy { channels: 1 }));
    bed.run_for(10_000);
    assert_eq!(bed.outcomes()[2..], [(2, Ok(())), (3, Ok(()))]);
}

#[test]
fn waiting_requests_do_not_block_other_queues() {
    let mut bed = Bed::new(2, Exclusive::new(), 8);
    let frame = bed.frame(A, 100).0;
    let other = bed.frame(B, 100).0;
    let queue = bed.path.open_queue(A, 0);
    let other_queue = bed.path.open_queue(B, 0);
    for tag in [1, 2] {
        bed.submit(queue, tag, &fill(frame, 100));
    }
    for tag in [11, 12] {
        bed.submit(other_queue, tag, &fill(other, 8));
    }
    bed.run_for(100_000);
    assert_eq!(bed.outcomes(), [11, 1, 12, 2].map(|tag| (tag, Ok(()))));
}

#[test]
fn the_waiting_quota_is_per_user() {
    let mut bed = Bed::new(1, Shared::new(), 2);
    let frame = bed.frame(A, 100).0;
    let other = bed.frame(B, 100).0;
    let one = bed.path.open_queue(A, 0);
    let two = bed.path.open_queue(A, 0);
    let foreign = bed.path.open_queue(B, 1);
    let third = bed.frame(C, 100).0;
    let same_user = bed.path.open_queue(C, 0);
    bed.submit(one, 1, &fill(frame, 100));
    bed.submit(one, 2, &fill(frame, 100));
    bed.submit(two, 3, &fill(frame, 100));
    for (queue, tag) in [(one, 4), (two, 5)] {
        bed.submit(queue, tag, &fill(frame, 100));
        assert_eq!(bed.completion(tag), refused(tag, Failure::WaitingQuota { limit: 2 }));
    }
    bed.submit(same_user, 8, &fill(third, 100));
    assert_eq!(bed.completion(8), refused(8, Failure::WaitingQuota { limit: 2 }));
    bed.submit(foreign, 6, &fill(other, 100));
    assert_eq!(bed.path.waiting(), 3);
    // A cancelled request gives its place back.
    bed.cancel(two, 3);
    bed.submit(two, 7, &fill(frame, 100));
    bed.run_for(100_000);
    let done = [1, 2, 6, 7].map(|tag| (tag, Ok(())));
    assert_eq!(bed.outcomes()[4..], done);
}

#[test]
fn exclusive_clients_use_one_channel_each() {
    for (kind, ends) in [(PolicyKind::Exclusive, [2000, 4000]), (PolicyKind::Shared, [2000, 2000])] {
        let mut bed = Bed::over(FakeEngine::new(2, TIMING), kind.build(), 8);
        let frame = bed.frame(A, 100).0;
        let queue = bed.path.open_queue(A, 0);
        bed.submit(queue, 1, &fill(frame, 100));
        bed.submit(queue, 2, &fill(frame, 100));
        bed.run_for(100_000);
        assert_eq!([1, 2].map(|tag| bed.completed_at(tag)), ends, "{}", kind.name());
    }
}

#[test]
fn exclusive_clients_wait_for_a_departure() {
    let mut bed = Bed::new(2, Exclusive::new(), 8);
    let frames = [A, B, C].map(|session| bed.frame(session, 100).0);
    let queues = [A, B, C].map(|session| bed.path.open_queue(session, 0));
    bed.submit(queues[0], 1, &fill(frames[0], 100));
    bed.submit(queues[1], 2, &fill(frames[1], 100));
    bed.submit(queues[2], 3, &fill(frames[2], 100).refuse_when_busy());
    assert_eq!(bed.completion(3), refused(3, Failure::ChannelsBusy { channels: 0 }));
    bed.submit(queues[2], 4, &fill(frames[2], 100));
    // B has a second queue, so it keeps its channel when the first closes.
    let second = bed.path.open_queue(B, 0);
    bed.close(queues[1]);
    bed.run_for(100_000);
    assert_eq!(bed.path.waiting(), 1);
    bed.close(second);
    bed.run_for(100_000);
    assert_eq!(bed.completion(4).outcome.result, Ok(()));
}

/// Always makes the same choice.
struct Rogue(Choice);

impl Policy for Rogue {
    fn name(&self) -> &'static str {
        "rogue"
    }

    fn choose(&mut self, _ask: &Ask, _channels: &[ChannelState]) -> Choice {
        self.0
    }

    fn departed(&mut self, _client: SessionId) {}
}

#[test]
fn choosing_a_busy_or_missing_channel_is_busy() {
    for (channel, first) in [(1, Ok(())), (2, Err(2)), (u32::MAX, Err(2))] {
        let mut bed = Bed::new(2, Rogue(Choice::Channel(channel)), 8);
        let frame = bed.frame(A, 100).0;
        let queue = bed.path.open_queue(A, 0);
        let request = fill(frame, 100).refuse_when_busy();
        bed.submit(queue, 1, &request);
        bed.submit(queue, 2, &request);
        bed.run_for(5000);
        let busy = Failure::ChannelsBusy { channels: 2 };
        assert_eq!(
            bed.completion(1).outcome.result,
            first.map_err(|channels| Failure::ChannelsBusy { channels })
        );
        assert_eq!(bed.completion(2), refused(2, busy));
        assert_eq!((bed.log.len(), bed.path.idle()), (2, true));
    }
}

#[test]
fn choosing_a_failed_channel_is_busy() {
    let mut bed = Bed::new(2, Rogue(Choice::Channel(0)), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    let failure = Failure::ChannelFaulted;
    bed.path.engine_mut().inject(0, Fault::Fails { failure, after_bytes: 0 });
    bed.submit(queue, 1, &fill(frame, 100));
    bed.run_for(5000);
    bed.submit(queue, 2, &fill(frame, 100).refuse_when_busy());
    assert_eq!(bed.completion(2), refused(2, Failure::ChannelsBusy { channels: 1 }));
    bed.submit(queue, 3, &fill(frame, 100).with_deadline(at(9000)));
    bed.run_for(5000);
    assert_eq!(bed.completion(3), refused(3, Failure::DeadlineExceeded));
}

/// Answers busy until it was asked this many times.
struct Hesitant(u32);

impl Policy for Hesitant {
    fn name(&self) -> &'static str {
        "hesitant"
    }

    fn choose(&mut self, _ask: &Ask, _channels: &[ChannelState]) -> Choice {
        self.0 = self.0.saturating_sub(1);
        if self.0 > 0 { Choice::Busy { usable: 1 } } else { Choice::Channel(0) }
    }

    fn departed(&mut self, _client: SessionId) {}
}

#[test]
fn a_changed_choice_cannot_reorder_a_queue() {
    // It is asked for request 1 twice, and would then choose a channel for request 2.
    let mut bed = Bed::new(1, Hesitant(3), 8);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    for tag in [1, 2] {
        bed.submit(queue, tag, &fill(frame, 100));
    }
    bed.turn();
    assert_eq!(bed.path.waiting(), 2);
    bed.turn();
    bed.run_for(10_000);
    assert_eq!(bed.outcomes(), [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn one_of_several_users_gets_half_the_channels() {
    let mut bed = Bed::new(4, Shared::new(), 8);
    let frame = bed.frame(A, 100).0;
    let other = bed.frame(C, 100).0;
    // Two sessions of user 7, then one of user 8.
    let queues = [bed.path.open_queue(A, 7), bed.path.open_queue(B, 7)];
    for tag in 1..=3 {
        bed.submit(queues[0], tag, &fill(frame, 100).refuse_when_busy());
    }
    assert!(bed.log.is_empty(), "a single user may use all channels");
    bed.run_for(10_000);
    let foreign = bed.path.open_queue(C, 8);
    for tag in 11..=13 {
        bed.submit(queues[0], tag, &fill(frame, 100));
    }
    bed.submit(queues[1], 14, &Request::new(Operation::Nop).refuse_when_busy());
    assert_eq!(bed.completion(14), refused(14, Failure::ChannelsBusy { channels: 2 }));
    assert_eq!(bed.path.waiting(), 1);
    // A user at its limit does not delay the other user.
    bed.submit(foreign, 21, &fill(other, 100).refuse_when_busy());
    bed.run_for(100_000);
    assert_eq!((bed.completed_at(11), bed.completed_at(12), bed.completed_at(21)), (12_000, 12_000, 12_000));
    assert_eq!(bed.completed_at(13), 14_000);
    bed.close(foreign);
    for tag in 31..=34 {
        bed.submit(queues[0], tag, &fill(frame, 100).refuse_when_busy());
    }
    bed.run_for(100_000);
    assert!(
        (31..=34).all(|tag| bed.completion(tag).outcome.result == Ok(())),
        "the only user again, so all channels"
    );
}

#[test]
fn a_single_user_leaves_an_eighth_free() {
    let mut bed = Bed::new(16, Shared::new(), 0);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 7);
    for tag in 1..=15 {
        bed.submit(queue, tag, &fill(frame, 100).refuse_when_busy());
    }
    assert_eq!(bed.outcomes(), [(15, Err(Failure::ChannelsBusy { channels: 14 }))]);
    let foreign = bed.path.open_queue(B, 8);
    bed.submit(foreign, 21, &Request::new(Operation::Nop).refuse_when_busy());
    bed.run_for(10_000);
    assert_eq!(bed.completion(21).outcome.result, Ok(()));
}

#[test]
fn new_users_get_a_channel_among_greedy_ones() {
    let mut bed = Bed::new(32, Shared::new(), 0);
    let frame = bed.frame(A, 100).0;
    // Users 0 and 1 share the engine from the beginning.
    let mut queues = vec![bed.path.open_queue(A, 0), bed.path.open_queue(A, 1)];
    let mut held = Vec::new();
    for user in 0..6 {
        if user > 1 {
            queues.push(bed.path.open_queue(A, user));
        }
        let refused = bed.log.len();
        (0..32).for_each(|tag| bed.submit(queues[user as usize], tag, &fill(frame, 100).refuse_when_busy()));
        held.push(32 - (bed.log.len() - refused));
    }
    assert_eq!(held, [16, 12, 1, 1, 1, 1]);
}

/// An engine of eight channels with so many places for transfers of 100 bytes or more.
fn placed(most: u32, policy: PolicyKind) -> Bed {
    let engine = FakeEngine::new(8, TIMING).with_places(100, Places { group: 1, most });
    Bed::over(engine, policy.build(), 16)
}

#[test]
fn requests_without_a_place_hold_no_channel() {
    for policy in [PolicyKind::Shared, PolicyKind::Deadline] {
        let mut bed = placed(2, policy);
        let frame = bed.frame(A, 100).0;
        let queues = [A, A].map(|session| bed.path.open_queue(session, 0));
        for tag in 1..=5 {
            bed.submit(queues[0], tag, &fill(frame, 100));
        }
        let busy = bed.path.channel_states().iter().filter(|state| **state == ChannelState::Busy).count();
        assert_eq!((busy, bed.path.waiting()), (2, 3), "{}", policy.name());
        bed.submit(queues[1], 11, &fill(frame, 100).refuse_when_busy());
        assert_eq!(bed.completion(11), refused(11, Failure::ChannelsBusy { channels: 2 }));
        bed.submit(queues[1], 12, &fill(frame, 50).refuse_when_busy());
        bed.run_for(100_000);
        assert_eq!(bed.completed_at(12), 1500, "a request that needs no place");
        assert_eq!([1, 2, 3, 4, 5].map(|tag| bed.completed_at(tag)), [2000, 2000, 4000, 4000, 6000]);
    }
}

#[test]
fn several_users_share_the_places() {
    let mut bed = placed(4, PolicyKind::Shared);
    let frames = [A, B, C].map(|session| bed.frame(session, 100).0);
    let queues = [(A, 1), (B, 2), (C, 3)].map(|(session, user)| bed.path.open_queue(session, user));
    for tag in 1..=4 {
        for of in 0..2 {
            bed.submit(queues[of], 10 * of as u64 + tag, &fill(frames[of], 100));
        }
    }
    bed.submit(queues[2], 21, &fill(frames[2], 100));
    bed.run_for(100_000);
    // Half for the first, and the last one for who has none.
    let ends = |tags: [u64; 4]| tags.map(|tag| bed.completed_at(tag));
    assert_eq!(bed.completed_at(21), 2000);
    assert_eq!(ends([1, 2, 3, 4]), [2000, 2000, 4000, 6000]);
    assert_eq!(ends([11, 12, 13, 14]), [2000, 4000, 4000, 6000]);
}

#[test]
fn a_single_place_goes_round() {
    let mut bed = placed(1, PolicyKind::Shared);
    let frames = [A, B, C].map(|session| bed.frame(session, 100).0);
    let queues = [(A, 1), (B, 2), (C, 3)].map(|(session, user)| bed.path.open_queue(session, user));
    let second = bed.path.open_queue(A, 1);
    for (of, tag) in [(0, 1), (0, 2), (0, 3), (1, 11), (1, 12), (2, 21)] {
        bed.submit(queues[of], tag, &fill(frames[of], 100));
    }
    // Another queue is no other user.
    bed.submit(second, 4, &fill(frames[0], 100));
    bed.run_for(100_000);
    assert_eq!(bed.outcomes(), [1, 2, 11, 21, 3, 12, 4].map(|tag| (tag, Ok(()))));
}

#[test]
fn nobody_waits_for_places_that_are_gone() {
    for policy in [PolicyKind::Shared, PolicyKind::Deadline] {
        let mut bed = placed(1, policy);
        let frame = bed.frame(A, 100).0;
        let queue = bed.path.open_queue(A, 0);
        for tag in 1..=3 {
            bed.submit(queue, tag, &fill(frame, 100));
        }
        bed.turn();
        assert!(!bed.path.must_settle());
        bed.path.places_are_gone(2);
        bed.turn();
        assert_eq!(bed.path.waiting(), 2, "another group");
        bed.path.places_are_gone(1);
        bed.run_for(100_000);
        assert_eq!([1, 2, 3].map(|tag| bed.completed_at(tag)), [2000; 3]);
    }
}

#[test]
fn the_path_rests_while_only_places_are_wanted() {
    let mut bed = placed(1, PolicyKind::Shared);
    let frame = bed.frame(A, 100).0;
    let queue = bed.path.open_queue(A, 0);
    let other = bed.path.open_queue(A, 0);
    for tag in 1..=3 {
        bed.submit(queue, tag, &fill(frame, 100));
    }
    bed.turn();
    assert!(!bed.path.must_settle(), "nothing can start before the end of the first");
    // What is new may start, and is no reason to forget the others.
    bed.submit(other, 11, &fill(frame, 50));
    bed.submit(queue, 4, &fill(frame, 8));
    assert!(bed.path.must_settle());
    bed.turn();
    assert!(!bed.path.must_settle());
    for tag in [2, 3] {
        bed.cancel(queue, tag);
    }
    assert!(bed.path.must_settle(), "a request that needs no place is the next one");
    bed.run_for(100_000);
    assert_eq!([11, 4, 1].map(|tag| bed.completed_at(tag)), [1500, 1080, 2000]);
    bed.submit(queue, 5, &fill(frame, 100));
    bed.submit(queue, 6, &fill(frame, 100).with_deadline(at(101_500)));
    bed.turn();
    assert!(bed.path.must_settle(), "one may be overdue");
    bed.run_for(100_000);
    assert_eq!(bed.completion(6), refused(6, Failure::DeadlineExceeded));
    assert!(bed.path.idle());
}
