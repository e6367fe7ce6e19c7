//! Links, fences, loops, batches, classes and waits for part of a transfer, with a real worker.

use memferry::{
    Arrival, CacheHint, Client, Failure, Frame, InvalidTransfer, Operations, Pattern, PolicyKind,
    PolicySettings, PriorityClass, Progress, Region, Rights, RunError, Side, SubmitReason, compare, copy,
    fill, nop, repeat, scatter_gather, xor, zero,
};

use super::*;

#[test]
fn a_failure_stops_linked_copies() {
    let client = client();
    let frames = [(); 4].map(|()| frame(&client));
    let mut queue = client.queue(8).expect("a queue");
    let copy = |from: usize, to: usize| copy(&frames[from], &frames[to]);
    for byte in 1..50 {
        let fill = fill(&frames[0], Pattern::Byte(byte)).linked();
        let chain = [fill, copy(0, 1).linked(), copy(1, 2).linked(), copy(2, 3)];
        let tickets = queue.submit_batch(chain).expect("room");
        for ticket in tickets {
            end_of(&mut queue, ticket).expect("done");
        }
        assert_eq!(contents(&frames[3]), [byte; FRAME_BYTES as usize]);
    }
    let bad = fill(frames[1].slice(..=FRAME_BYTES), Pattern::Byte(9)).linked();
    let tickets = queue.submit_batch([bad, copy(1, 3).linked(), copy(3, 0), copy(2, 1)]).expect("room");
    let failed: Vec<_> = tickets[..3].iter().map(|ticket| end_of(&mut queue, *ticket).unwrap_err()).collect();
    let outside = Failure::OutOfBounds { side: Side::Destination, available: FRAME_BYTES };
    assert_eq!(failed.iter().map(|error| error.inherited).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(failed.iter().map(|error| error.failure).collect::<Vec<_>>(), [outside; 3]);
    end_of(&mut queue, tickets[3]).expect("not linked to the failed transfer");
    assert_eq!(contents(&frames[0]), [49; FRAME_BYTES as usize]);
}

#[test]
fn a_fenced_nop_ends_a_batch() {
    let client = client();
    let frames: Vec<_> = (0..12).map(|_| frame(&client)).collect();
    let mut queue = client.queue(16).expect("a queue");
    for byte in 1..30 {
        let fills = frames.iter().map(|frame| fill(frame, Pattern::Byte(byte)));
        let tickets = queue.submit_batch(fills.chain([nop().fenced()])).expect("room");
        let last = *tickets.last().expect("the fence");
        end_of(&mut queue, last).expect("done");
        assert!(frames.iter().all(|frame| contents(frame) == [byte; FRAME_BYTES as usize]));
        let before: Vec<_> = std::iter::from_fn(|| queue.poll()).collect();
        assert!(before.len() == 12 && before.iter().all(Result::is_ok), "{before:?}");
    }
}

#[test]
fn a_loop_ends_after_its_rounds_or_a_stop() {
    let client = client();
    let one = frame(&client);
    let two = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let chain = |rounds| [repeat(rounds), copy(&one, &two).linked().untyped(), copy(&two, &one).untyped()];
    let tickets = queue.submit_batch(chain(25)).expect("room");
    let ends: Vec<_> = tickets.iter().map(|ticket| end_of(&mut queue, *ticket).expect("done")).collect();
    assert_eq!(ends[0].output, 25);
    assert_eq!([ends[1].bytes_done, ends[2].bytes_done], [25 * FRAME_BYTES; 2]);

    one.write(0, &[99]).expect("access to the frame");
    let tickets = queue.submit_batch(chain(0)).expect("room");
    let mut other = client.queue(2).expect("a queue");
    for _ in 0..100 {
        let ticket = other.submit(fill(frame(&client), Pattern::Byte(1))).expect("room");
        end_of(&mut other, ticket).expect("done");
    }
    assert_eq!(queue.poll(), None, "the loop ended early");
    until(|| contents(&two)[0] == 99);
    queue.stop(tickets[0]).expect("a running transfer");
    let rounds = end_of(&mut queue, tickets[0]).expect("stopped").output;
    assert!(rounds > 0);
    for ticket in &tickets[1..] {
        assert_eq!(outcome(end_of(&mut queue, *ticket)), Ok(rounds * FRAME_BYTES));
    }
    assert_eq!(queue.stop(tickets[0]).unwrap_err().failure, Failure::UnknownTicket);
}

#[test]
fn cancel_and_close_end_endless_loops() {
    let client = client();
    let mut queue = client.queue(8).expect("a queue");
    let tickets = queue.submit_batch([repeat(0), nop().untyped()]).expect("room");
    queue.cancel(tickets[1]).expect("a running transfer");
    for ticket in tickets {
        assert_eq!(outcome(end_of(&mut queue, ticket)), Err(Failure::Cancelled));
    }
    queue.submit_batch([repeat(0), nop().untyped()]).expect("room");
    drop(queue);
    let mut queue = client.queue(8).expect("a queue");
    let ticket = queue.submit(nop()).expect("room");
    end_of(&mut queue, ticket).expect("served");
}

#[test]
fn a_loop_without_members_ends_at_its_deadline() {
    let client = client();
    let mut queue = client.queue(8).expect("a queue");
    let ticket = queue.submit(repeat(0).within(Duration::from_millis(5))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Err(Failure::DeadlineExceeded));
    let Err(RunError::Submit(refused)) = queue.run(repeat(1)) else { panic!("a loop was run alone") };
    assert_eq!(refused.reason, SubmitReason::Loop);
}

#[test]
fn a_refused_batch_returns_the_rest() {
    let stranger = client();
    let client = client();
    let own = frame(&client);
    let foreign = frame(&stranger);
    let mut queue = client.queue(4).expect("a queue");
    let fill = |frame: &Frame, byte| fill(frame, Pattern::Byte(byte));
    let batch = [fill(&own, 1), fill(&foreign, 2), fill(&own, 3)];
    let refused = queue.submit_batch(batch).unwrap_err();
    assert_eq!(refused.error.reason, SubmitReason::ForeignFrame);
    assert_eq!((refused.submitted.len(), refused.rest.len()), (1, 1));
    assert!(refused.to_string().contains("transfer 2"), "{refused}");
    let first = end_of(&mut queue, refused.submitted[0]);
    assert_eq!(outcome(first), Ok(FRAME_BYTES));
    let tickets = queue.submit_batch(refused.rest).expect("the rest");
    assert_eq!(outcome(end_of(&mut queue, tickets[0])), Ok(FRAME_BYTES));
    let refused = queue.submit_batch((0..10).map(|_| endless(&own))).unwrap_err();
    assert_eq!(refused.error.reason, SubmitReason::Full { capacity: 4 });
    assert_eq!((refused.submitted.len(), refused.rest.len()), (4, 5));
}

/// Sets a policy that lets `bytes` bytes move and then none for years. Returns the policy to restore.
fn hold_back_after(client: &Client, bytes: u64) -> PolicySettings {
    let limited = PolicySettings {
        kind: PolicyKind::RateLimit,
        rate_bytes_per_second: 1,
        burst_bytes: bytes,
        ..PolicySettings::default()
    };
    let usual = client.policy().expect("a policy");
    client.set_policy(limited).expect("another policy");
    usual
}

#[test]
fn a_part_arrives_before_the_whole() {
    const BYTES: u64 = 32 << 20;
    let client = client();
    let source = client.frame(BYTES).alloc().expect("a frame");
    let destination = client.frame(BYTES).alloc().expect("a frame");
    let mut queue = client.queue(2).expect("a queue");
    source.write(BYTES - 1, &[5]).expect("access to the frame");
    source.write(0, &[6]).expect("access to the frame");
    let usual = hold_back_after(&client, 1 << 20);
    let ticket = queue.submit(copy(&source, &destination)).expect("room");
    assert_eq!(queue.wait_range_for(ticket, 0..64, PATIENCE), Ok(Some(Arrival::Moved)));
    let Progress { bytes, downward } = queue.progress(ticket).expect("a running transfer");
    assert!((64..BYTES).contains(&bytes) && !downward);
    let mut byte = [0];
    destination.read(0, &mut byte).expect("access to the frame");
    assert_eq!(byte, [6]);
    client.set_policy(usual).expect("the usual policy");
    assert_eq!(queue.wait_range(ticket, BYTES - 1..BYTES), Ok(Arrival::Ended));
    assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(BYTES));
    assert_eq!(queue.wait_range(ticket, 0..1).unwrap_err().failure, Failure::UnknownTicket);
}

#[test]
fn an_upward_copy_arrives_from_the_end() {
    const BYTES: u64 = 16 << 20;
    let client = client();
    let frame = client.frame(BYTES + 4096).alloc().expect("a frame");
    let mut queue = client.queue(2).expect("a queue");
    frame.write(BYTES - 1, &[9]).expect("access to the frame");
    let usual = hold_back_after(&client, 1 << 20);
    let up = copy(frame.slice(..BYTES), frame.slice(4096..4096 + BYTES));
    let ticket = queue.submit(up).expect("room");
    assert_eq!(queue.wait_range_for(ticket, BYTES - 64..BYTES, PATIENCE), Ok(Some(Arrival::Moved)));
    let mut byte = [0];
    frame.read(BYTES + 4095, &mut byte).expect("access to the frame");
    assert_eq!(byte, [9]);
    queue.cancel(ticket).expect("a running transfer");
    // The cancel ends the wait for a part that never arrives.
    let ended = queue.wait_range_for(ticket, 0..1, PATIENCE).expect_err("cancelled");
    assert_eq!(end_of(&mut queue, ticket), Err(ended), "the wait took the completion");
    client.set_policy(usual).expect("the usual policy");
    let ticket = queue.submit(endless(&frame)).expect("room");
    assert_eq!(
        queue.wait_range_for(ticket, 0..1, Duration::ZERO),
        Ok(None),
        "a 2-D fill reports no progress"
    );
}

#[test]
fn engines_and_classes_are_announced() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let engines = client.engines().expect("an answer");
    assert_eq!((engines.operations, engines.class), (Operations::OF_MEMORY, PriorityClass::High));
    assert_eq!((engines.channels, engines.engines, engines.preemption_bytes), (3, 1, Some(16 << 10)));
    for class in [PriorityClass::Low, PriorityClass::Normal, PriorityClass::High] {
        let fill = zero(&frame).with_class(class).with_hint(CacheHint::Stream);
        let ticket = queue.submit(fill).expect("room");
        assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(FRAME_BYTES));
    }
}

#[test]
fn invalid_lists_are_refused() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let mut refused = |transfer| queue.submit(transfer).expect_err("an invalid transfer").reason;
    let million = vec![frame.slice(..1); 1_000_000];
    let reason = refused(scatter_gather(&million, &million));
    let side = Side::Source;
    let invalid = SubmitReason::Invalid(InvalidTransfer::Segments { side, count: 1_000_000 });
    assert_eq!(reason, invalid);
    assert!(reason.to_string().contains("at most 1024 are allowed; split the transfer"), "{reason}");
    let reason = refused(scatter_gather([frame.slice(..2)], [frame.slice(..1)]));
    assert_eq!(reason, SubmitReason::Invalid(InvalidTransfer::Unequal { one_bytes: 2, other_bytes: 1 }));
    let unequal = InvalidTransfer::Unequal { one_bytes: 1, other_bytes: 2 };
    let comparison = compare(frame.slice(..1), frame.slice(..2));
    assert_eq!(queue.submit(comparison).unwrap_err().reason, SubmitReason::Invalid(unequal));
    let mut refused = |transfer| queue.submit(transfer).expect_err("an invalid transfer").reason;
    for count in [0, 65] {
        let sources = vec![&frame; count];
        let invalid = InvalidTransfer::Sources { count };
        assert_eq!(refused(xor(sources, &frame)), SubmitReason::Invalid(invalid));
    }
    // Lists of the maximum length, repeated so that the list area of the queue wraps around.
    let longest = vec![frame.slice(..2); 1024];
    for _ in 0..20 {
        let ticket = queue.submit(scatter_gather(&longest, &longest)).expect("lists of the maximum length");
        assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(2048));
    }
    let nothing = scatter_gather([] as [Region; 0], [frame.slice(..0)]);
    let ticket = queue.submit(nothing).expect("no bytes on both sides");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(0));
}

#[test]
fn a_derived_frame_has_only_the_requested_rights() {
    let client = client();
    let mut queue = client.queue(4).expect("a queue");
    let narrow = client.derive(frame(&client), Rights::READ).expect("a derived frame");
    let ticket = queue.submit(zero(&narrow)).expect("room");
    let ended = outcome(end_of(&mut queue, ticket));
    assert!(matches!(ended, Err(Failure::MissingRight { side: Side::Destination, .. })), "{ended:?}");
}
