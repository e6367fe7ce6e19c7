//! The ring of a queue: staging, capacity, tickets, waiting, and several queues at once.

use memferry::{Failure, Pattern, Queue, SubmitReason, TransferError, WaitError};

use super::*;

#[test]
fn staged_transfers_start_when_they_are_published() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(16).expect("a queue");
    let fill = |byte: u8| fill(&to.range(u64::from(byte) * 200, 200), Pattern::Byte(byte + 1));
    let tickets: Vec<_> = (0..16).map(|byte| queue.stage(fill(byte)).expect("room")).collect();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((queue.poll(), queue.outstanding()), (None, 16));
    assert!(contents(&to) == [0; FRAME_BYTES as usize]);

    queue.publish();
    let mut done: Vec<_> = (0..16).map(|_| queue.wait_any(PATIENCE).expect("a completion").ticket).collect();
    done.sort();
    assert_eq!(done, tickets);
    let expected: Vec<u8> = (0..16).flat_map(|byte| [byte + 1; 200]).collect();
    assert_eq!(contents(&to)[..3200], expected);
    assert_eq!((queue.poll(), queue.outstanding()), (None, 0));
}

#[test]
fn the_ticket_of_a_performed_transfer_is_not_outstanding() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let done = queue.run(zero(&to)).expect("done");
    assert_eq!(queue.wait(done.ticket, Some(Duration::ZERO)), Err(WaitError::UnknownTicket));
    assert_eq!(queue.cancel(done.ticket), Err(WaitError::UnknownTicket));
    assert_eq!(queue.ticket(done.ticket.tag()), done.ticket);
    assert_ne!(queue.ticket(done.ticket.tag() ^ 1), done.ticket);
}

#[test]
fn a_full_channel_gives_the_transfer_back() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    assert_eq!(queue.capacity(), 4);
    let endless_one = queue.submit(endless(&to)).expect("room");
    for _ in 0..3 {
        queue.submit(nop()).expect("room");
    }
    let refused = queue.submit(fill(to.slice(9..10), Pattern::Byte(5))).unwrap_err();
    assert_eq!(refused.reason, SubmitReason::Full { capacity: 4 });
    for _ in 0..3 {
        queue.wait_any(PATIENCE).expect("a completion").outcome.expect("done");
    }
    let ticket = queue.submit(*refused.transfer).expect("room again");
    end_of(&mut queue, ticket).expect("done");
    assert_eq!(contents(&to)[9], 5);
    queue.cancel(endless_one).expect("outstanding");
}

#[test]
fn frames_of_another_client_are_refused_and_given_back() {
    let other = client();
    let client = client();
    let own = frame(&client);
    let foreign = frame(&other);
    let mut queue = client.queue(2).expect("a queue");
    for transfer in [
        copy(&own, &foreign),
        copy(&foreign, &own),
        fill(&foreign, Pattern::Byte(1)),
    ] {
        let request = transfer.request().clone();
        let refused = queue.submit(transfer).unwrap_err();
        assert_eq!(
            (refused.reason, refused.transfer.request().clone()),
            (SubmitReason::ForeignFrame, request)
        );
    }
    assert_eq!(queue.outstanding(), 0);
    // A clone is the same client.
    let cloned = client.clone().frame(1).alloc().expect("a frame");
    let ticket = queue.submit(fill(&cloned, Pattern::Byte(1))).expect("room");
    end_of(&mut queue, ticket).expect("done");
}

#[test]
fn a_copy_to_too_little_room_cannot_be_described() {
    let client = client();
    let one = frame(&client);
    let error = copy(one.slice(0..9), one.slice(100..108)).unwrap_err();
    assert_eq!(error, TransferError::TooShort { source_bytes: 9, destination_bytes: 8 });
}

#[test]
fn a_wait_that_times_out_leaves_the_transfer_running() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let running = queue.submit(endless(&to)).expect("room");
    let done = queue.submit(nop()).expect("room");
    assert_eq!(queue.wait(running, Some(Duration::ZERO)), Err(WaitError::TimedOut));
    // The other's completion comes meanwhile and is kept.
    until(|| {
        assert_eq!(queue.wait(running, Some(Duration::from_millis(20))), Err(WaitError::TimedOut));
        queue.outstanding() == 1
    });
    assert_eq!(queue.wait(done, Some(Duration::ZERO)).map(outcome), Ok(Ok(0)));
    assert_eq!(queue.wait_any(Some(Duration::from_millis(1))), Err(WaitError::TimedOut));
    queue.cancel(running).expect("outstanding");
    let completion = end_of(&mut queue, running);
    assert_eq!((completion.ticket, completion.outcome), (running, Err(Failure::Cancelled)));
}

#[test]
fn tickets_are_known_until_their_completion_was_taken() {
    let client = client();
    let mut one = client.queue(2).expect("a queue");
    let mut two = client.queue(2).expect("another");
    assert_eq!(one.wait_any(PATIENCE), Err(WaitError::UnknownTicket));
    let ticket = one.submit(nop()).expect("room");
    assert_eq!(two.wait(ticket, PATIENCE), Err(WaitError::UnknownTicket));
    assert_eq!(two.cancel(ticket), Err(WaitError::UnknownTicket));
    end_of(&mut one, ticket);
    assert_eq!(one.wait(ticket, PATIENCE), Err(WaitError::UnknownTicket));
    assert_eq!(one.cancel(ticket), Err(WaitError::UnknownTicket));
    // Its slot serves the next transfer under another name.
    let next = one.submit(nop()).expect("room");
    assert_ne!(ticket, next);
    assert_eq!(one.wait(ticket, PATIENCE), Err(WaitError::UnknownTicket));
    end_of(&mut one, next);
}

#[test]
fn a_ticket_of_another_clients_channel_is_none_of_ones_own() {
    let other = client();
    let client = client();
    let open = |client: &Client| client.queue(2).expect("a queue");
    // The first of each, which their services name alike, and the first ticket of each.
    let mut one = open(&client);
    let mut two = open(&other);
    let submit = |queue: &mut Queue| queue.submit(nop()).expect("room");
    let first = submit(&mut one);
    let second = submit(&mut two);
    assert_eq!(first.tag(), second.tag());
    assert_ne!(first, second);
    assert_eq!(two.wait(first, PATIENCE), Err(WaitError::UnknownTicket));
    assert_eq!(one.cancel(second), Err(WaitError::UnknownTicket));
    assert_eq!(one.wait(first, PATIENCE).map(outcome), Ok(Ok(0)));
    assert_eq!(two.wait(second, PATIENCE).map(outcome), Ok(Ok(0)));
}

#[test]
fn waiting_for_any_gives_each_completion_once() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(64).expect("a queue");
    let length = |index: u64| 1 + index * 61 % 977;
    let submit = |index| {
        let fill = fill(&to.range(0, length(index)), Pattern::Byte(1));
        queue.submit(fill).expect("room")
    };
    let tickets: Vec<_> = (0..64).map(submit).collect();
    // One is waited for by name, so others pile up behind it.
    let named = end_of(&mut queue, tickets[63]);
    let mut completions = vec![named];
    completions.extend((0..63).map(|_| queue.wait_any(PATIENCE).expect("a completion")));
    completions.sort_by_key(|completion| completion.ticket);
    let told: Vec<_> =
        completions.iter().map(|completion| (completion.ticket, outcome(*completion))).collect();
    let mut expected: Vec<_> =
        tickets.iter().zip(0..).map(|(ticket, index)| (*ticket, Ok(length(index)))).collect();
    expected.sort_by_key(|(ticket, _)| *ticket);
    assert_eq!(told, expected);
    assert_eq!(queue.wait_any(PATIENCE), Err(WaitError::UnknownTicket));
}

#[test]
fn channels_serve_threads_of_their_own_side_by_side() {
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
                    let copy = copy(from.slice(..length), to.slice(3..3 + length)).expect("fits");
                    let copy = queue.submit(copy).expect("room");
                    let completion = end_of(&mut queue, copy);
                    assert_eq!(outcome(completion), Ok(length));
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
fn short_transfers_are_done_when_submit_returns_and_their_completions_wait_in_order() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let short = |byte| fill(frame.slice(1..5), Pattern::Byte(byte));
    let tickets = [7, 8, 9].map(|byte| queue.submit(short(byte)).expect("room"));
    assert_eq!(contents(&frame)[1..5], [9; 4], "before any completion was taken");
    let last = end_of(&mut queue, tickets[2]);
    assert_eq!((last.ticket, outcome(last)), (tickets[2], Ok(4)));
    for ticket in &tickets[..2] {
        let completion = queue.poll().expect("there already");
        assert_eq!((completion.ticket, outcome(completion)), (*ticket, Ok(4)));
    }
}

#[test]
fn completions_nobody_takes_of_short_transfers_fill_the_channel_and_none_is_lost() {
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
        let completion = end_of(&mut queue, ticket);
        assert_eq!((completion.ticket, outcome(completion)), (ticket, Ok(8)));
    }
    queue.submit(*refused.transfer).expect("room again");
}

#[test]
fn short_transfers_wait_for_what_holds_them_back() {
    let client = client();
    let a = client.frame(1 << 16).alloc().expect("a frame");
    let b = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let last = a.range((1 << 16) - 64, 64);
    let linked = queue.submit(fill(&a, Pattern::Byte(7)).linked()).expect("room");
    let copy = queue.submit(copy(&last, b.slice(0..64)).expect("fits")).expect("room");
    for ticket in [copy, linked] {
        assert!(end_of(&mut queue, ticket).outcome.is_ok());
    }
    assert_eq!(contents(&b)[..64], [7; 64], "a link");

    let outside = fill(&b.range(0, FRAME_BYTES + 1), Pattern::Byte(9)).linked();
    let failing = queue.submit(outside).expect("room");
    assert!(end_of(&mut queue, failing).outcome.is_err());
    let after = queue.submit(fill(b.slice(0..64), Pattern::Byte(9))).expect("room");
    let after = end_of(&mut queue, after);
    assert!(after.outcome.is_err() && after.inherited, "a failed link, even when its end is known");

    queue.submit(fill(&a, Pattern::Byte(7))).expect("room");
    queue.submit(fill(b.slice(0..64), Pattern::Byte(1)).fenced()).expect("room");
    let after = queue.submit(fill(b.slice(0..64), Pattern::Byte(2))).expect("room");
    let ends: Vec<_> = (0..3).map(|_| queue.wait_any(PATIENCE).expect("a completion").ticket).collect();
    assert_eq!(ends.last(), Some(&after), "a fence");

    let whole = queue.submit(repeat(3)).expect("room");
    let member = queue.submit(fill(b.slice(0..64), Pattern::Byte(9))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, member)), Ok(3 * 64), "a loop");
    assert_eq!(end_of(&mut queue, whole).value, 3);
}

#[test]
fn a_long_transfer_is_seen_to_end_although_short_ones_go_on() {
    let client = client();
    let memory = client.frame(1 << 20).alloc().expect("a frame");
    let mut queue = client.queue(8).expect("a queue");
    let short = || fill(memory.slice(0..64), Pattern::Byte(1));
    let long = fill(&memory.range(8192, (1 << 20) - 8192), Pattern::Byte(7));
    let long = queue.submit(long).expect("room");
    queue.submit(short()).expect("room");
    until(|| {
        let done = queue.wait_any(PATIENCE).expect("a completion");
        if done.ticket != long {
            queue.submit(short()).expect("room");
        }
        done.ticket == long
    });
}
