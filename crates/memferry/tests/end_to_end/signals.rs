//! Completion signals for programs with an event loop: eventfd and io_uring.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use memferry::{Armed, CallError, Pattern, fill, nop};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;

/// The refusal of a service without io_uring.
const NO_RING: &str = "this system gives the service no io_uring";

/// Whether the descriptor becomes readable in time; with `now`, whether it is readable.
fn readable(descriptor: impl AsFd, now: bool) -> bool {
    let limit = Timespec { tv_sec: if now { 0 } else { 20 }, tv_nsec: 0 };
    let mut entry = [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::event::poll(&mut entry, Some(&limit)).expect("poll") == 1
}

#[test]
fn only_an_armed_queue_signals_its_eventfd() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let event = queue.notify_by_event().expect("an eventfd");
    // The queue is not armed yet.
    let ticket = queue.submit(fill(&frame, Pattern::Byte(1))).expect("room");
    end_of(&mut queue, ticket).expect("done");
    assert!(!readable(&event, true));
    for _ in 0..100 {
        assert_eq!(queue.arm(), Armed::Waiting);
        let _ticket = queue.submit(fill(&frame, Pattern::Byte(2))).expect("room");
        assert!(readable(&event, false), "no signal came");
        rustix::io::read(&event, &mut [0u8; 8]).expect("the event count");
        queue.poll().expect("the completion arrives before its signal").expect("done");
    }
    // `arm` reports a completion that is there already.
    let ticket = queue.submit(nop()).expect("room");
    while queue.arm() == Armed::Waiting {}
    end_of(&mut queue, ticket).expect("done");
}

#[test]
fn a_queue_has_at_most_one_signal() {
    let client = client();
    let queue = client.queue(2).expect("a queue");
    let _event = queue.notify_by_event().expect("an eventfd");
    let refused = queue.notify_by_event().unwrap_err();
    assert!(refused.to_string().contains("signalled already"), "{refused}");
}

#[test]
fn a_closed_eventfd_does_no_harm() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(2).expect("a queue");
    let event = queue.notify_by_event().expect("an eventfd");
    drop(event);
    for _ in 0..20 {
        let _ = queue.arm();
        let ticket = queue.submit(fill(&frame, Pattern::Byte(1))).expect("room");
        assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(FRAME_BYTES));
    }
}

#[test]
fn completions_are_posted_to_the_programs_ring() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let Ok(mut ring) = io_uring::IoUring::new(8) else { return };
    // SAFETY: the ring outlives the borrowed descriptor.
    #[expect(unsafe_code, reason = "io_uring gives only the raw descriptor")]
    let descriptor = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    if let Err(error) = queue.notify_by_ring(descriptor, 0xfe_44) {
        // A ring cannot be sent to another process, or on an old system not used there.
        let message = error.to_string();
        let is_remote = matches!(error, CallError::Send(_)) || message.contains("only embedded clients");
        assert!(message.contains(NO_RING) || !client.is_embedded() && is_remote, "{message}");
        println!("{message}");
        // The session stays usable.
        let ticket = queue.submit(nop()).expect("room");
        end_of(&mut queue, ticket).expect("done");
        return assert_eq!(client.frame(1).alloc().expect("a frame").length(), 4096);
    }
    for _ in 0..20 {
        assert_eq!(queue.arm(), Armed::Waiting);
        let _ticket = queue.submit(fill(&frame, Pattern::Byte(3))).expect("room");
        ring.submit_and_wait(1).expect("a completion of the ring");
        let posted: Vec<_> = ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        assert_eq!(posted, [(0xfe_44, 0)]);
        queue.poll().expect("posted").expect("done");
    }
}

#[test]
fn the_programs_ring_can_wait_for_the_eventfd() {
    let client = client();
    let frame = frame(&client);
    let mut queue = client.queue(8).expect("a queue");
    let event = queue.notify_by_event().expect("an eventfd");
    let Ok(mut ring) = io_uring::IoUring::new(8) else { return };
    for round in 0..20 {
        let poll = io_uring::opcode::PollAdd::new(io_uring::types::Fd(event.as_raw_fd()), 1);
        // SAFETY: the entry refers to a descriptor and to no memory.
        #[expect(unsafe_code, reason = "io_uring requires the program to keep the memory of entries alive")]
        unsafe { ring.submission().push(&poll.build().user_data(round)) }.expect("room");
        ring.submit().expect("submitted");
        assert_eq!(queue.arm(), Armed::Waiting);
        let _ticket = queue.submit(fill(&frame, Pattern::Byte(4))).expect("room");
        ring.submit_and_wait(1).expect("a completion of the ring");
        assert_eq!(ring.completion().next().map(|entry| entry.user_data()), Some(round));
        rustix::io::read(&event, &mut [0u8; 8]).expect("the event count");
        queue.poll().expect("posted").expect("done");
    }
}

#[test]
fn closing_a_queue_signals() {
    let client = client();
    let mut queue = client.queue(2).expect("a queue");
    let event = queue.notify_by_event().expect("an eventfd");
    assert_eq!(queue.arm(), Armed::Waiting);
    drop(queue);
    assert!(readable(&event, false), "no signal came");
}
