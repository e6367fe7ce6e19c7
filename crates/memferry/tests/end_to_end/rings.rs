//! The ring of a queue: staging, capacity, tickets, waits, and several queues at once.

use memferry::{
    Client, Done, Failure, Pattern, Queue, SubmitReason, Ticket, TicketId, TransferError, copy, fill, nop,
    repeat, zero,
};

use super::*;

/// The failure of calls with an unknown ticket.
const UNKNOWN: Option<Failure> = Some(Failure::UnknownTicket);

fn failure<T>(result: Result<T, TransferError>) -> Option<Failure> {
    result.err().map(|error| error.failure)
}

/// Waits for the result of any transfer. Panics after `PATIENCE`.
fn end_of_any(queue: &mut Queue) -> Result<Done<u64>, TransferError> {
    queue.wait_any_for(super::PATIENCE).map(|done| done.expect("a transfer ends in time"))
}

#[test]
fn staged_transfers_start_on_publish() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(16).expect("a queue");
    let fill = |byte: u8| {
        let start = u64::from(byte) * 200;
        fill(to.slice(start..start + 200), Pattern::Byte(byte + 1))
    };
    let tickets: Vec<_> = (0..16).map(|byte| queue.stage(fill(byte)).expect("room").id()).collect();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((queue.poll(), queue.outstanding()), (None, 16));
    assert!(contents(&to) == [0; FRAME_BYTES as usize]);

    queue.publish();
    let mut done: Vec<_> = (0..16).map(|_| end_of_any(&mut queue).expect("done").id).collect();
    done.sort();
    assert_eq!(done, tickets);
    let expected: Vec<u8> = (0..16).flat_map(|byte| [byte + 1; 200]).collect();
    assert_eq!(contents(&to)[..3200], expected);
    assert_eq!((queue.poll(), queue.outstanding()), (None, 0));
}

#[test]
fn a_run_transfer_is_not_outstanding() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let done = queue.run(zero(&to)).expect("done");
    assert_eq!(failure(queue.wait(Ticket::from(done.id))), UNKNOWN);
    assert_eq!(failure(queue.cancel(done.id)), UNKNOWN);
    assert_eq!(queue.ticket(done.id.tag()), done.id);
    assert_ne!(queue.ticket(done.id.tag() ^ 1), done.id);
    assert_eq!(failure(queue.wait(Ticket::from(TicketId::NONE))), UNKNOWN);
}

#[test]
fn a_full_queue_returns_the_transfer() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    assert_eq!(queue.capacity(), 4);
    let endless_one = queue.submit(endless(&to)).expect("room");
    for _ in 0..3 {
        let _ = queue.submit(nop()).expect("room");
    }
    let refused = queue.submit(fill(to.slice(9..10), Pattern::Byte(5))).unwrap_err();
    assert_eq!(refused.reason, SubmitReason::Full { capacity: 4 });
    for _ in 0..3 {
        end_of_any(&mut queue).expect("done");
    }
    let ticket = queue.submit(*refused.transfer).expect("room again");
    end_of(&mut queue, ticket).expect("done");
    assert_eq!(contents(&to)[9], 5);
    queue.cancel(endless_one).expect("an outstanding transfer");
}

#[test]
fn frames_of_another_client_are_refused() {
    let other = client();
    let client = client();
    let own = frame(&client);
    let foreign = frame(&other);
    let mut queue = client.queue(2).expect("a queue");
    for transfer in [copy(&own, &foreign), copy(&foreign, &own), fill(&foreign, Pattern::Byte(1))] {
        let described = format!("{transfer:?}");
        let refused = queue.submit(transfer).unwrap_err();
        assert_eq!(refused.reason, SubmitReason::ForeignFrame);
        assert_eq!(format!("{:?}", refused.transfer), described);
    }
    assert_eq!(queue.outstanding(), 0);
    // A clone counts as the same client.
    let cloned = client.clone().frame(1).alloc().expect("a frame");
    let ticket = queue.submit(fill(&cloned, Pattern::Byte(1))).expect("room");
    end_of(&mut queue, ticket).expect("done");
}

#[test]
fn a_timed_out_wait_leaves_the_transfer_running() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let running = queue.submit(endless(&to)).expect("room");
    let done = queue.submit(nop()).expect("room");
    assert_eq!(queue.wait_for(running, Duration::ZERO), Ok(None));
    // The completion of the other transfer arrives in between and is kept.
    until(|| {
        assert_eq!(queue.wait_for(running, Duration::from_millis(20)), Ok(None));
        queue.outstanding() == 1
    });
    assert!(matches!(queue.wait_for(done, Duration::ZERO), Ok(Some(Done { bytes_done: 0, .. }))));
    assert_eq!(queue.wait_any_for(Duration::from_millis(1)), Ok(None));
    assert_eq!(queue.outstanding(), 1, "the wait timed out");
    queue.cancel(running).expect("an outstanding transfer");
    let error = end_of(&mut queue, running).unwrap_err();
    assert_eq!((error.id, error.failure), (running.id(), Failure::Cancelled));
}

#[test]
fn a_ticket_is_unknown_after_its_completion() {
    let client = client();
    let mut one = client.queue(2).expect("a queue");
    let mut two = client.queue(2).expect("another queue");
    assert_eq!((one.wait_any(), one.wait_any_for(PATIENCE)), (Ok(None), Ok(None)));
    let ticket = one.submit(nop()).expect("room");
    assert_eq!(failure(two.wait(ticket)), UNKNOWN);
    assert_eq!(failure(two.cancel(ticket)), UNKNOWN);
    end_of(&mut one, ticket).expect("done");
    assert_eq!(failure(one.wait(ticket)), UNKNOWN);
    assert_eq!(failure(one.cancel(ticket)), UNKNOWN);
    // The next transfer uses the same slot with another tag.
    let next = one.submit(nop()).expect("room");
    assert_ne!(ticket, next);
    assert_eq!(failure(one.wait(ticket)), UNKNOWN);
    end_of(&mut one, next).expect("done");
}

#[test]
fn a_ticket_of_another_queue_is_unknown() {
    let other = client();
    let client = client();
    let open = |client: &Client| client.queue(2).expect("a queue");
    // The first queue of each service, with the same number, and the first ticket of each, with the same tag.
    let mut one = open(&client);
    let mut two = open(&other);
    let submit = |queue: &mut Queue| queue.submit(nop()).expect("room");
    let first = submit(&mut one);
    let second = submit(&mut two);
    assert_eq!(first.id().tag(), second.id().tag());
    assert_ne!(first, second);
    assert_eq!(failure(two.wait(first)), UNKNOWN);
    assert_eq!(failure(one.cancel(second)), UNKNOWN);
    assert_eq!(outcome(end_of(&mut one, first)), Ok(0));
    assert_eq!(outcome(end_of(&mut two, second)), Ok(0));
}

#[test]
fn wait_any_returns_each_completion_once() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(64).expect("a queue");
    let length = |index: u64| 1 + index * 61 % 977;
    let submit = |index| {
        let fill = fill(to.slice(..length(index)), Pattern::Byte(1));
        queue.submit(fill).expect("room").untyped()
    };
    let tickets: Vec<_> = (0..64).map(submit).collect();
    // A wait for one ticket lets completions of the others accumulate.
    let mut ends = vec![end_of(&mut queue, tickets[63]).expect("done")];
    ends.extend((0..63).map(|_| end_of_any(&mut queue).expect("done")));
    let mut ends: Vec<_> = ends.iter().map(|done| (done.id, done.bytes_done)).collect();
    ends.sort_unstable();
    let mut expected: Vec<_> =
        tickets.iter().zip(0..).map(|(ticket, index)| (ticket.id(), length(index))).collect();
    expected.sort_unstable();
    assert_eq!(ends, expected);
    assert_eq!(queue.wait_any(), Ok(None));
}

#[test]
fn threads_use_queues_side_by_side() {
    let client = client();
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let client = client.clone();
            scope.spawn(move || {
                let from = frame(&client);
                let to = frame(&client);
                let mut queue = client.queue(4).expect("a queue");
                for round in 0..40_u8 {
                    let byte = thread.wrapping_mul(50).wrapping_add(round);
                    let length = 100 + u64::from(round) * 90;
                    let fill = queue.submit(fill(&from, Pattern::Byte(byte))).expect("room");
                    end_of(&mut queue, fill).expect("done");
                    let copy = copy(from.slice(..length), to.slice(3..3 + length));
                    let copy = queue.submit(copy).expect("room");
                    assert_eq!(outcome(end_of(&mut queue, copy)), Ok(length));
                    let bytes = contents(&to);
                    assert!(bytes[3..3 + length as usize].iter().all(|other| *other == byte));
                }
            });
        }
    });
    let status = client.status().expect("a status");
    assert_eq!((status.sessions[0].queues, status.sessions[0].frames), (0, 0));
}

#[test]
fn short_transfers_are_done_when_submit_returns() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let short = |byte| fill(frame.slice(1..5), Pattern::Byte(byte));
    let tickets = [7, 8, 9].map(|byte| queue.submit(short(byte)).expect("room"));
    assert_eq!(contents(&frame)[1..5], [9; 4], "before any completion was taken");
    let last = end_of(&mut queue, tickets[2]).expect("done");
    assert_eq!((last.id, last.bytes_done), (tickets[2].id(), 4));
    for ticket in &tickets[..2] {
        let done = queue.poll().expect("there already").expect("done");
        assert_eq!((done.id, done.bytes_done), (ticket.id(), 4));
    }
}

#[test]
fn untaken_short_completions_fill_the_queue() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let mut tickets = Vec::new();
    let refused = loop {
        match queue.submit(fill(frame.slice(0..8), Pattern::Byte(1))) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < 100);
    };
    assert_eq!(refused.reason, SubmitReason::Full { capacity: 4 });
    for ticket in tickets {
        let done = end_of(&mut queue, ticket).expect("done");
        assert_eq!((done.id, done.bytes_done), (ticket.id(), 8));
    }
    let _ = queue.submit(*refused.transfer).expect("room again");
}

#[test]
fn short_transfers_follow_links_fences_and_loops() {
    let client = client();
    let a = client.frame(1 << 16).alloc().expect("a frame");
    let b = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let last = a.slice((1 << 16) - 64..);
    let linked = queue.submit(fill(&a, Pattern::Byte(7)).linked()).expect("room");
    let copy = queue.submit(copy(&last, b.slice(0..64))).expect("room");
    for ticket in [copy, linked] {
        end_of(&mut queue, ticket).expect("done");
    }
    assert_eq!(contents(&b)[..64], [7; 64], "a link");

    let outside = fill(b.slice(..=FRAME_BYTES), Pattern::Byte(9)).linked();
    let failing = queue.submit(outside).expect("room");
    assert!(!end_of(&mut queue, failing).expect_err("the fill leaves the frame").inherited);
    let after = queue.submit(fill(b.slice(0..64), Pattern::Byte(9))).expect("room");
    assert!(end_of(&mut queue, after).expect_err("linked to a transfer that failed before").inherited);

    let _ = queue.submit(fill(&a, Pattern::Byte(7))).expect("room");
    let _ = queue.submit(fill(b.slice(0..64), Pattern::Byte(1)).fenced()).expect("room");
    let after = queue.submit(fill(b.slice(0..64), Pattern::Byte(2))).expect("room");
    let ends: Vec<_> = (0..3).map(|_| end_of_any(&mut queue).expect("done").id).collect();
    assert_eq!(ends.last(), Some(&after.id()), "a fence");

    let whole = queue.submit(repeat(3)).expect("room");
    let member = queue.submit(fill(b.slice(0..64), Pattern::Byte(9))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, member)), Ok(3 * 64), "a loop");
    assert_eq!(end_of(&mut queue, whole).expect("done").output, 3);
}

#[test]
fn short_transfers_do_not_hide_a_long_completion() {
    let client = client();
    let memory = client.frame(1 << 20).alloc().expect("a frame");
    let mut queue = client.queue(8).expect("a queue");
    let short = || fill(memory.slice(0..64), Pattern::Byte(1));
    let long = queue.submit(fill(memory.slice(8192..), Pattern::Byte(7))).expect("room");
    let _ = queue.submit(short()).expect("room");
    until(|| {
        let done = end_of_any(&mut queue).expect("done");
        if done.id != long.id() {
            let _ = queue.submit(short()).expect("room");
        }
        done.id == long.id()
    });
}
