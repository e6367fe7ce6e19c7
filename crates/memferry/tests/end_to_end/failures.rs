//! Each way to take a completion returns the failure as `Err`, and invalid transfers are returned to the caller.

use memferry::{
    Arrival, Failure, Frame, InvalidTransfer, Pattern, Queue, Region, RunError, Side, SubmitReason, Ticket,
    Transfer, compare, copy, copy_crc32c, crc32c, dual_copy, fill, nop, scatter_gather, xor,
};

use super::*;

const OUTSIDE: Failure = Failure::OutOfBounds { side: Side::Source, available: FRAME_BYTES };

/// A copy that leaves its source, done on the submitting thread or by the worker.
fn failing(frame: &Frame, by_worker: bool) -> Transfer {
    let copy = copy(frame.slice(FRAME_BYTES - 1..=FRAME_BYTES), frame.slice(..2));
    if by_worker { copy.within(Duration::from_secs(60)) } else { copy }
}

/// Each way to take the completion of a submitted copy. Returns the failure.
fn ways() -> [fn(&mut Queue, Ticket) -> Option<Failure>; 6] {
    [
        |queue, ticket| queue.wait(ticket).err().map(|error| error.failure),
        |queue, ticket| queue.wait_for(ticket, PATIENCE).err().map(|error| error.failure),
        |queue, _| queue.wait_any().err().map(|error| error.failure),
        |queue, _| queue.wait_any_for(PATIENCE).err().map(|error| error.failure),
        |queue, _| queue.completions().find_map(Result::err).map(|error| error.failure),
        |queue, _| {
            std::iter::from_fn(|| Some(queue.poll())).flatten().next()?.err().map(|error| error.failure)
        },
    ]
}

#[test]
fn every_way_to_wait_returns_the_failure() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    for by_worker in [false, true] {
        for (way, take) in ways().into_iter().enumerate() {
            let ticket = queue.submit(failing(&frame, by_worker)).expect("room");
            assert_eq!(take(&mut queue, ticket), Some(OUTSIDE), "way {way}, by worker: {by_worker}");
            assert_eq!(queue.poll(), None);
        }
        let Err(RunError::Transfer(error)) = queue.run(failing(&frame, by_worker)) else {
            panic!("a copy that leaves its frame succeeded")
        };
        assert_eq!((error.failure, error.bytes_done, error.inherited), (OUTSIDE, 0, false));
        assert!(error.is_settled());
    }
}

#[test]
fn wait_range_returns_the_failure() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    for by_worker in [false, true] {
        let ticket = queue.submit(failing(&frame, by_worker)).expect("room");
        let error = queue.wait_range(ticket, 0..1).expect_err("the copy leaves its frame");
        assert_eq!(queue.wait(ticket), Err(error), "`wait_range` took the completion");
    }
    let ticket = queue.submit(copy(&frame, &frame)).expect("room");
    assert_eq!(queue.wait_range(ticket, 0..FRAME_BYTES), Ok(Arrival::Ended));
    queue.wait(ticket).expect("done");
}

#[test]
fn completions_end_with_the_last_transfer() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(16).expect("a queue");
    let batch = (0..9).map(|number| if number == 4 { failing(&frame, true) } else { nop() });
    let tickets = queue.submit_batch(batch).expect("room");
    let mut ends: Vec<_> = queue.completions().collect();
    ends.sort_by_key(|end| end.map_or_else(|error| error.id, |done| done.id));
    let failed: Vec<_> = ends.iter().filter_map(|end| end.err()).map(|error| error.id).collect();
    assert_eq!((ends.len(), failed), (9, vec![tickets[4].id()]));
    assert_eq!(queue.completions().next(), None);
    // The iterator starts staged transfers.
    let _ = queue.stage(nop()).expect("room");
    assert_eq!(queue.completions().count(), 1);
}

#[test]
fn invalid_transfers_are_returned_by_submit() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let four = || frame.slice(..4);
    let five = || frame.slice(100..105);
    let too_short = InvalidTransfer::TooShort { source_bytes: 5, destination_bytes: 4 };
    let unequal = InvalidTransfer::Unequal { one_bytes: 5, other_bytes: 4 };
    let inverted = |side| InvalidTransfer::Inverted { side, start: 9, end: 5 };
    let none: [Region; 0] = [];
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backward = || frame.slice(9..5);
    let cases: [(Transfer<u64>, InvalidTransfer); 14] = [
        (copy(five(), four()).untyped(), too_short),
        (copy_crc32c(five(), four()).untyped(), too_short),
        (dual_copy(five(), [five(), four()]).untyped(), too_short),
        (compare(five(), four()).untyped(), unequal),
        (scatter_gather([five()], [four()]).untyped(), unequal),
        (xor([four(), five()], four()).untyped(), unequal),
        (xor(none, four()).untyped(), InvalidTransfer::Sources { count: 0 }),
        (copy(backward(), four()).untyped(), inverted(Side::Source)),
        (copy(four(), backward()).untyped(), inverted(Side::Destination)),
        (fill(backward(), Pattern::Byte(1)).untyped(), inverted(Side::Destination)),
        (crc32c(backward()).untyped(), inverted(Side::Source)),
        (scatter_gather([backward()], [four()]).untyped(), inverted(Side::Source)),
        (xor([backward()], four()).untyped(), inverted(Side::Source)),
        (compare(four(), backward()).untyped(), inverted(Side::Source)),
    ];
    for (transfer, invalid) in cases {
        let described = format!("{transfer:?}");
        let refused = queue.submit(transfer).expect_err("an invalid transfer");
        assert_eq!(refused.reason, SubmitReason::Invalid(invalid));
        assert_eq!(format!("{:?}", refused.transfer), described);
        let Err(RunError::Submit(refused)) = queue.run(*refused.transfer) else { panic!("{described}") };
        assert_eq!(refused.reason, SubmitReason::Invalid(invalid));
        let refused = queue.stage(*refused.transfer).expect_err("an invalid transfer");
        let refused = queue.submit_batch([*refused.transfer]).expect_err("an invalid transfer");
        assert_eq!(refused.error.reason, SubmitReason::Invalid(invalid));
    }
    assert_eq!((queue.outstanding(), queue.poll()), (0, None));
    assert_eq!(contents(&frame), [0; FRAME_BYTES as usize]);
}

#[test]
fn slices_out_of_bounds_fail_without_a_panic() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(2).expect("a queue");
    let end = FRAME_BYTES;
    let outside = Failure::OutOfBounds { side: Side::Destination, available: FRAME_BYTES };
    let too_long = Failure::TooLong { limit: 1 << 40 };
    let slices = [
        (frame.slice(..=u64::MAX), too_long),
        (frame.slice(u64::MAX - 1..u64::MAX), outside),
        (frame.slice(end..end + 1), outside),
    ];
    for (slice, failure) in slices {
        let Err(RunError::Transfer(error)) = queue.run(fill(&slice, Pattern::Byte(1))) else {
            panic!("{slice:?}")
        };
        assert_eq!(error.failure, failure, "{slice:?}");
    }
    let beyond = frame.slice(FRAME_BYTES + 1..);
    let Err(RunError::Submit(refused)) = queue.run(fill(&beyond, Pattern::Byte(1))) else {
        panic!("an inverted slice was accepted")
    };
    assert_eq!(refused.to_string(), "the destination is the slice 4097..4096, which ends before it begins");
    assert_eq!((frame.slice(3..=5).length(), frame.slice(7..).offset(), beyond.length()), (3, 7, 0));
    queue.run(fill(frame.slice(end..), Pattern::Byte(1))).expect("nothing to do");
}

#[test]
fn outputs_have_the_type_of_their_operation() {
    let client = client();
    let frame = frame(&client);
    frame.write(10, b"x").expect("access to the frame");
    let mut queue = client.queue(8).expect("a queue");
    for by_worker in [false, true] {
        let mut differ = compare(frame.slice(..100), frame.slice(100..200));
        let mut equal = compare(frame.slice(100..200), frame.slice(200..300));
        if by_worker {
            differ = differ.within(Duration::from_secs(60));
            equal = equal.within(Duration::from_secs(60));
        }
        let differ = queue.submit(differ).expect("room");
        let equal = queue.submit(equal).expect("room");
        assert_eq!(queue.wait(differ).expect("done").output, Some(10));
        assert_eq!(queue.wait(equal).expect("done").output, None);
    }
    let untyped = queue.run(compare(frame.slice(100..200), frame.slice(200..300)).untyped());
    assert_eq!(untyped.expect("done").output, 100);
    let () = queue.run(copy(&frame, &frame)).expect("done").output;
}
