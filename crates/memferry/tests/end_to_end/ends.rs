//! Early ends: cancels, deadlines, revocation, and owners that are dropped while bytes move.

use std::time::Instant;

use memferry::{EngineKind, Failure, Frame, Pattern, Side, copy, fill, nop};

use super::*;

#[test]
fn a_cancelled_transfer_reports_its_bytes() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let ticket = queue.submit(endless(&to)).expect("room");
    until(|| contents(&to)[0] != 0);
    queue.cancel(ticket).expect("an outstanding transfer");
    let error = end_of(&mut queue, ticket).expect_err("cancelled");
    assert_eq!((error.id, error.failure), (ticket.id(), Failure::Cancelled));
    assert_eq!((error.engine, error.inherited), (EngineKind::Cpu, false));
    assert!(error.bytes_done > 0 && error.bytes_done < 1 << 38);
    assert_eq!((error.bytes_done % 64, contents(&to)[1]), (0, 0));
}

#[test]
fn a_staged_transfer_can_be_cancelled() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(4).expect("a queue");
    let ticket = queue.stage(endless(&to)).expect("room");
    queue.cancel(ticket).expect("an outstanding transfer");
    queue.publish();
    let error = end_of(&mut queue, ticket).expect_err("cancelled");
    assert_eq!((error.failure, error.bytes_done), (Failure::Cancelled, 0));
    assert_eq!(error.engine, EngineKind::None);
}

#[test]
fn a_waiting_transfer_can_be_cancelled() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let running: Vec<_> = (0..3).map(|_| queue.submit(endless(&to)).expect("room")).collect();
    let refused = queue.submit(endless(&to).refuse_when_busy()).expect("room");
    let refused = outcome(end_of(&mut queue, refused));
    assert_eq!(refused, Err(Failure::ChannelsBusy { channels: 3 }));
    let waiting = queue.submit(endless(&to).within(Duration::from_secs(60))).expect("room");
    assert_eq!(queue.wait_for(waiting, Duration::from_millis(5)), Ok(None));
    queue.cancel(waiting).expect("an outstanding transfer");
    let error = end_of(&mut queue, waiting).expect_err("cancelled");
    assert_eq!((error.failure, error.engine), (Failure::Cancelled, EngineKind::None));
    for ticket in running {
        queue.cancel(ticket).expect("an outstanding transfer");
        assert_eq!(outcome(end_of(&mut queue, ticket)), Err(Failure::Cancelled));
    }
}

#[test]
fn deadlines_hold_before_and_during_a_run() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    for past in [
        nop().with_deadline(Instant::now()),
        endless(&to).with_deadline(Instant::now() - Duration::from_secs(1)),
        endless(&to).within(Duration::ZERO),
    ] {
        let ticket = queue.submit(past).expect("room");
        let error = end_of(&mut queue, ticket).expect_err("too late");
        assert_eq!((error.failure, error.bytes_done), (Failure::DeadlineExceeded, 0));
        assert_eq!(error.engine, EngineKind::None);
    }
    let places = [frame(&client), frame(&client), frame(&client)];
    let running = [0, 1, 2]
        .map(|place| queue.submit(endless(&places[place]).within(Duration::from_secs(1))).expect("room"));
    until(|| places.iter().all(|place| contents(place)[0] != 0));
    let waiting = queue.submit(endless(&to).within(Duration::from_millis(20))).expect("room");
    let error = end_of(&mut queue, waiting).expect_err("too late");
    assert_eq!((error.failure, error.engine), (Failure::DeadlineExceeded, EngineKind::None));
    for ticket in running {
        let error = end_of(&mut queue, ticket).expect_err("too late");
        assert_eq!(error.failure, Failure::DeadlineExceeded);
        assert!(error.bytes_done > 0 && error.engine == EngineKind::Cpu);
    }
    let in_time = queue.submit(nop().within(Duration::from_secs(60))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, in_time)), Ok(0));
}

#[test]
fn dropped_frames_live_until_completion() {
    let client = client();
    let from = frame(&client);
    let to = frame(&client);
    let kept = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    from.write(0, &[9; FRAME_BYTES as usize]).expect("access to the frame");
    // Transfers with a deadline go to the worker even if they are short.
    let copy = |to: &Frame| copy(&from, to).within(Duration::from_secs(60));
    let first = queue.submit(copy(&to)).expect("room");
    let second = queue.submit(copy(&kept)).expect("room");
    drop((from, to));
    let frames = || client.status().expect("a status").sessions[0].frames;
    assert_eq!(frames(), 3);
    for ticket in [first, second] {
        assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(FRAME_BYTES));
    }
    assert_eq!(frames(), 1);
    assert!(contents(&kept) == [9; FRAME_BYTES as usize]);
}

#[test]
fn dropping_a_queue_ends_its_transfers() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    for _ in 0..5 {
        let _ = queue.submit(endless(&to)).expect("room");
    }
    until(|| contents(&to)[0] != 0);
    drop(queue);
    drop(to);
    let session = &client.status().expect("a status").sessions[0];
    assert_eq!((session.queues, session.frames), (0, 0));
    // The engine channels are free again.
    let to = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let fill = fill(&to, Pattern::Byte(1)).refuse_when_busy();
    let ticket = queue.submit(fill).expect("room");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(FRAME_BYTES));
}

#[test]
fn a_client_can_be_dropped_during_a_transfer() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let _ = queue.submit(endless(&to)).expect("room");
    drop(client);
    drop(to);
    drop(queue);
}

#[test]
fn revoking_a_frame_ends_its_transfers() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let running = queue.submit(endless(&to)).expect("room");
    until(|| contents(&to)[0] != 0);
    to.revoke().expect("revoked");
    assert_eq!(outcome(end_of(&mut queue, running)), Err(Failure::Cancelled));
    let late = queue.submit(fill(&to, Pattern::Byte(1))).expect("room");
    let stale = Failure::StaleHandle { side: Side::Destination, handle: to.handle() };
    assert_eq!(outcome(end_of(&mut queue, late)), Err(stale));
    // The client's mapping stays readable.
    assert_eq!(contents(&to)[0], 0xee);
}
