//! Links, fences, loops, batches, classes, and parts of transfers waited for, through a live worker.

use memferry::{
    Arrival, CacheHint, Failure, Operations, Pattern, PolicyKind, PolicySettings, PriorityClass, Rights,
    Side, SubmitReason, TransferError, WaitError,
};

use super::*;

#[test]
fn linked_copies_hand_bytes_on_and_a_failure_stops_them() {
    let client = client();
    let frames = [(); 4].map(|()| frame(&client));
    let mut queue = client.queue(8).expect("a queue");
    let copy = |from: usize, to: usize| Transfer::copy(&frames[from].all(), &frames[to].all()).expect("fits");
    for byte in 1..50 {
        let fill = Transfer::fill(&frames[0].all(), Pattern::Byte(byte)).linked();
        let chain = [fill, copy(0, 1).linked(), copy(1, 2).linked(), copy(2, 3)];
        let tickets = queue.submit_batch(chain).expect("room");
        for ticket in &tickets {
            assert_eq!(queue.wait(*ticket, PATIENCE).expect("a completion").outcome, Ok(()));
        }
        assert_eq!(contents(&frames[3]), [byte; FRAME_BYTES as usize]);
    }
    let bad = Transfer::fill(&frames[1].range(0, FRAME_BYTES + 1), Pattern::Byte(9)).linked();
    let tickets = queue.submit_batch([bad, copy(1, 3).linked(), copy(3, 0), copy(2, 1)]).expect("room");
    let ends: Vec<_> =
        tickets.iter().map(|ticket| queue.wait(*ticket, PATIENCE).expect("a completion")).collect();
    let outside = Err(Failure::OutOfBounds { side: Side::Destination, available: FRAME_BYTES });
    assert_eq!(ends.iter().map(|end| end.inherited).collect::<Vec<_>>(), [false, true, true, false]);
    assert_eq!(ends.iter().map(|end| end.outcome).collect::<Vec<_>>(), [outside, outside, outside, Ok(())]);
    assert_eq!(contents(&frames[0]), [49; FRAME_BYTES as usize]);
}

#[test]
fn a_fenced_nop_ends_a_batch() {
    let client = client();
    let frames: Vec<_> = (0..12).map(|_| frame(&client)).collect();
    let mut queue = client.queue(16).expect("a queue");
    for byte in 1..30 {
        let fills = frames.iter().map(|frame| Transfer::fill(&frame.all(), Pattern::Byte(byte)));
        let tickets = queue.submit_batch(fills.chain([Transfer::nop().fenced()])).expect("room");
        let last = *tickets.last().expect("the fence");
        assert_eq!(queue.wait(last, PATIENCE).expect("a completion").outcome, Ok(()));
        assert!(frames.iter().all(|frame| contents(frame) == [byte; FRAME_BYTES as usize]));
        assert_eq!(std::iter::from_fn(|| queue.poll()).count(), 12, "their completions came before");
    }
}

#[test]
fn a_loop_runs_its_rounds_or_until_stopped_and_others_are_served_meanwhile() {
    let client = client();
    let one = frame(&client);
    let two = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let chain = |rounds| {
        [
            Transfer::repeat(rounds),
            Transfer::copy(&one.all(), &two.all()).expect("fits").linked(),
            Transfer::copy(&two.all(), &one.all()).expect("fits"),
        ]
    };
    let tickets = queue.submit_batch(chain(25)).expect("room");
    let ends: Vec<_> =
        tickets.iter().map(|ticket| queue.wait(*ticket, PATIENCE).expect("a completion")).collect();
    assert_eq!((ends[0].outcome, ends[0].value), (Ok(()), 25));
    assert_eq!([ends[1].bytes_done, ends[2].bytes_done], [25 * FRAME_BYTES; 2]);

    one.write(0, &[99]).expect("its byte");
    let tickets = queue.submit_batch(chain(0)).expect("room");
    let mut other = client.queue(2).expect("a queue");
    for _ in 0..100 {
        let ticket = other.submit(Transfer::fill(&frame(&client).all(), Pattern::Byte(1))).expect("room");
        assert_eq!(other.wait(ticket, PATIENCE).expect("served").outcome, Ok(()));
    }
    assert_eq!(queue.poll(), None, "it goes on");
    until(|| contents(&two)[0] == 99);
    queue.stop(tickets[0]).expect("it runs");
    let whole = queue.wait(tickets[0], PATIENCE).expect("a completion");
    assert!(whole.outcome == Ok(()) && whole.value > 0, "{whole:?}");
    for ticket in &tickets[1..] {
        let end = queue.wait(*ticket, PATIENCE).expect("a completion");
        assert_eq!((end.outcome, end.bytes_done), (Ok(()), whole.value * FRAME_BYTES));
    }
    assert_eq!(queue.stop(tickets[0]), Err(WaitError::UnknownTicket));
}

#[test]
fn loops_that_never_end_are_ended_by_cancel_and_by_closing() {
    let client = client();
    let mut queue = client.queue(8).expect("a queue");
    let tickets = queue.submit_batch([Transfer::repeat(0), Transfer::nop()]).expect("room");
    queue.cancel(tickets[1]).expect("it runs");
    for ticket in tickets {
        assert_eq!(queue.wait(ticket, PATIENCE).expect("ends").outcome, Err(Failure::Cancelled));
    }
    queue.submit_batch([Transfer::repeat(0), Transfer::nop()]).expect("room");
    drop(queue);
    let mut queue = client.queue(8).expect("a queue");
    let ticket = queue.submit(Transfer::nop()).expect("room");
    assert_eq!(queue.wait(ticket, PATIENCE).expect("served").outcome, Ok(()));
}

#[test]
fn a_loop_whose_members_never_come_ends_at_its_deadline_and_is_not_performed() {
    let client = client();
    let mut queue = client.queue(8).expect("a queue");
    let repeat = Transfer::repeat(0).within(Duration::from_millis(5));
    let ticket = queue.submit(repeat).expect("room");
    let end = queue.wait(ticket, PATIENCE).expect("a completion");
    assert_eq!(end.outcome, Err(Failure::DeadlineExceeded));
    let refused = queue.perform(Transfer::repeat(1)).unwrap_err();
    assert_eq!(refused.reason, SubmitReason::Loop);
}

#[test]
fn a_batch_of_which_a_part_cannot_be_submitted_loses_nothing() {
    let stranger = client();
    let client = client();
    let own = frame(&client);
    let foreign = frame(&stranger);
    let mut queue = client.queue(4).expect("a queue");
    let fill = |frame: &memferry::Frame, byte| Transfer::fill(&frame.all(), Pattern::Byte(byte));
    let batch = [fill(&own, 1), fill(&foreign, 2), fill(&own, 3)];
    let refused = queue.submit_batch(batch).unwrap_err();
    assert_eq!(refused.error.reason, SubmitReason::ForeignFrame);
    assert_eq!((refused.submitted.len(), refused.rest.len()), (1, 1));
    assert!(refused.to_string().contains("transfer 2"), "{refused}");
    let first = queue.wait(refused.submitted[0], PATIENCE).expect("it was submitted");
    assert_eq!(outcome(first), Ok(FRAME_BYTES));
    let tickets = queue.submit_batch(refused.rest).expect("the rest");
    assert_eq!(outcome(queue.wait(tickets[0], PATIENCE).expect("a completion")), Ok(FRAME_BYTES));
    let refused = queue.submit_batch((0..10).map(|_| endless(&own))).unwrap_err();
    assert_eq!(refused.error.reason, SubmitReason::Full { capacity: 4 });
    assert_eq!((refused.submitted.len(), refused.rest.len()), (4, 5));
}

/// Lets so many bytes move and then, for years, no more; says which policy to go on with.
fn hold_back_after(client: &Client, bytes: u64) -> PolicySettings {
    let held = PolicySettings {
        kind: PolicyKind::RateLimit,
        rate_bytes_per_second: 1,
        burst_bytes: bytes,
        ..PolicySettings::default()
    };
    let usual = client.policy().expect("a policy");
    client.set_policy(held).expect("another");
    usual
}

#[test]
fn a_part_is_there_before_the_whole() {
    const BYTES: u64 = 32 << 20;
    let client = client();
    let source = client.allocate(BYTES).expect("a frame");
    let destination = client.allocate(BYTES).expect("a frame");
    let mut queue = client.queue(2).expect("a queue");
    source.write(BYTES - 1, &[5]).expect("its byte");
    source.write(0, &[6]).expect("its byte");
    let usual = hold_back_after(&client, 1 << 20);
    let copy = Transfer::copy(&source.all(), &destination.all()).expect("fits");
    let ticket = queue.submit(copy).expect("room");
    let arrival = queue.wait_range(ticket, 0..64, PATIENCE).expect("it comes");
    assert_eq!(arrival, Arrival::Moved);
    let (moved, downward) = queue.watermark(ticket).expect("it runs");
    assert!((64..BYTES).contains(&moved) && !downward);
    let mut byte = [0];
    destination.read(0, &mut byte).expect("its byte");
    assert_eq!(byte, [6]);
    client.set_policy(usual).expect("the usual policy");
    assert_eq!(queue.wait_range(ticket, BYTES - 1..BYTES, PATIENCE).expect("it comes"), Arrival::Ended);
    assert_eq!(outcome(queue.wait(ticket, PATIENCE).expect("a completion")), Ok(BYTES));
    assert_eq!(queue.wait_range(ticket, 0..1, PATIENCE), Err(WaitError::UnknownTicket));
}

#[test]
fn the_part_of_an_overlapping_copy_that_is_there_first_is_the_last() {
    const BYTES: u64 = 16 << 20;
    let client = client();
    let frame = client.allocate(BYTES + 4096).expect("a frame");
    let mut queue = client.queue(2).expect("a queue");
    frame.write(BYTES - 1, &[9]).expect("its byte");
    let usual = hold_back_after(&client, 1 << 20);
    let up = Transfer::copy(&frame.range(0, BYTES), &frame.range(4096, BYTES)).expect("fits");
    let ticket = queue.submit(up).expect("room");
    assert_eq!(queue.wait_range(ticket, BYTES - 64..BYTES, PATIENCE).expect("it comes"), Arrival::Moved);
    let mut byte = [0];
    frame.read(BYTES + 4095, &mut byte).expect("its byte");
    assert_eq!(byte, [9]);
    queue.cancel(ticket).expect("it runs");
    // A cancelled transfer ends the wait for a part that never came.
    assert_eq!(queue.wait_range(ticket, 0..1, PATIENCE).expect("it ends"), Arrival::Ended);
    queue.wait(ticket, PATIENCE).expect("a completion");
    client.set_policy(usual).expect("the usual policy");
    let limit = Some(Duration::ZERO);
    let ticket = queue.submit(endless(&frame)).expect("room");
    assert_eq!(queue.wait_range(ticket, 0..1, limit), Err(WaitError::TimedOut), "a 2-D fill does not tell");
}

#[test]
fn classes_are_granted_and_engines_announced() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let engines = client.engines().expect("an answer");
    assert_eq!((engines.operations, engines.class), (Operations::OF_MEMORY, PriorityClass::High));
    assert_eq!((engines.channels, engines.engines, engines.preemption_bytes), (3, 1, Some(16 << 10)));
    for class in [PriorityClass::Low, PriorityClass::Normal, PriorityClass::High] {
        let fill = Transfer::zero(&frame.all()).with_class(class).with_hint(CacheHint::Stream);
        let ticket = queue.submit(fill).expect("room");
        assert_eq!(outcome(queue.wait(ticket, PATIENCE).expect("a completion")), Ok(FRAME_BYTES));
    }
}

#[test]
fn lists_that_cannot_be_are_refused_before_they_are_sent() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let million = vec![frame.range(0, 1); 1_000_000];
    let refused = Transfer::scatter_gather(&million, &million).unwrap_err();
    assert_eq!(refused, TransferError::Count { what: "segments", count: 1_000_000, least: 0, most: 1024 });
    assert!(refused.to_string().contains("split it"), "{refused}");
    let uneven = Transfer::scatter_gather(&[frame.range(0, 2)], &[frame.range(0, 1)]).unwrap_err();
    assert_eq!(uneven, TransferError::Unequal { one_bytes: 2, other_bytes: 1 });
    assert!(matches!(Transfer::xor(&[], &frame.all()), Err(TransferError::Count { count: 0, .. })));
    assert!(Transfer::compare(&frame.range(0, 1), &frame.range(0, 2)).is_err());
    // As many as may be, again and again: the list area is used in turn.
    let longest = vec![frame.range(0, 2); 1024];
    for _ in 0..20 {
        let gather = Transfer::scatter_gather(&longest, &longest).expect("as long as may be");
        let ticket = queue.submit(gather).expect("room");
        assert_eq!(outcome(queue.wait(ticket, PATIENCE).expect("a completion")), Ok(2048));
    }
    let nothing = Transfer::scatter_gather(&[], &[frame.range(0, 0)]).expect("no bytes on both sides");
    let ticket = queue.submit(nothing).expect("room");
    assert_eq!(outcome(queue.wait(ticket, PATIENCE).expect("a completion")), Ok(0));
    let narrow = client.derive(&frame.all(), Rights::READ).expect("a narrower one");
    let ticket = queue.submit(Transfer::zero(&narrow.all())).expect("room");
    let end = queue.wait(ticket, PATIENCE).expect("a completion");
    assert!(matches!(end.outcome, Err(Failure::MissingRight { side: Side::Destination, .. })));
}
