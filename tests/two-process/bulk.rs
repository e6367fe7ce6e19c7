//! Bulk transfer and messages between two processes: frames in every mode, and a side that is killed, forks or revokes during a
//! transfer.
//!
//! ```text
//! this process: Listener ◄── connect ── Role: this test binary          both are clients of one service process
//! ```

#![expect(unsafe_code, reason = "forks")]

mod harness;

use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Role, SOON, Service, Sleeper, endless, fork_a_sleeper, next_order, report, role_socket};
use memferry::{Client, Failure, Ticket};
use memferry_bulk::{
    Consumer, Content, FinishError, LentFrame, Listener, Mode, Options, Producer, ReceiveError, Receiver,
    SendError, Sender, connect,
};
use memferry_conformance::noise;
use rustix::process::Signal;

const PATIENCE: Option<Duration> = Some(SOON);
const FRAME: u64 = 256 << 10;

fn rendezvous(socket: &Path) -> PathBuf {
    socket.with_extension("rendezvous")
}

/// Connects a role to this process; returns the role and this process's end.
fn connect_role(service: &Service, role: &str) -> (Role, Client, Sender, Receiver) {
    let client = service.client();
    let listener = Listener::bind(rendezvous(&service.socket)).unwrap();
    let role = Role::start(role, &service.socket);
    let (sender, receiver) = listener.accept(&client, Options::default(), PATIENCE).unwrap();
    (role, client, sender, receiver)
}

fn connect_to_test(socket: &Path) -> (Client, Sender, Receiver) {
    let client = Client::connect(socket).unwrap();
    let (sender, receiver) = connect(rendezvous(socket), &client, Options::default()).unwrap();
    (client, sender, receiver)
}

fn receive_lent(receiver: &mut Receiver) -> Result<LentFrame, ReceiveError> {
    match receiver.receive(PATIENCE)?.content {
        Content::Range(lent) => Ok(lent),
        Content::Bytes(bytes) => panic!("received {} bytes instead of a lent frame", bytes.len()),
    }
}

const MODES: [Mode; 3] = [Mode::MappedEachRequest, Mode::PreMapped, Mode::Offloaded];
const LENGTHS: [u64; 6] = [0, 1, 4095, 4096, 65_537, FRAME];

/// Puts frames of all lengths, in two rounds over its frames.
#[test]
fn role_produces() {
    let Some(socket) = role_socket() else { return };
    let mode = MODES[next_index()];
    let (client, sender, _receiver) = connect_to_test(&socket);
    let mut producer = Producer::new(sender, &client, (8, FRAME), mode).unwrap();
    for round in 0..16u64 {
        let index = round as usize % 8;
        let length = LENGTHS[round as usize % LENGTHS.len()];
        producer.frame(index, PATIENCE).unwrap().write(0, &noise(length as usize, round)).unwrap();
        producer.put(index, length, PATIENCE).unwrap();
    }
    producer.drain(PATIENCE).unwrap();
    report("done");
    next_order();
}

fn next_index() -> usize {
    next_order().parse().unwrap()
}

#[test]
fn every_mode_keeps_the_order() {
    let service = Service::start(&[]);
    for (index, window) in [(0, 1), (1, 1), (2, 1), (2, 8)] {
        let client = service.client();
        let listener = Listener::bind(rendezvous(&service.socket)).unwrap();
        let mut role = Role::start("role_produces", &service.socket);
        role.send_line(&index.to_string());
        let (_sender, receiver) = listener.accept(&client, Options::default(), PATIENCE).unwrap();
        let mut consumer = Consumer::new(receiver, &client, window, FRAME).unwrap();
        for round in 0..16u64 {
            let taken = consumer.take(PATIENCE).unwrap();
            let length = LENGTHS[round as usize % LENGTHS.len()];
            assert_eq!((taken.from, taken.length), (round as usize % 8, length), "{:?}", MODES[index]);
            let mut bytes = vec![0; length as usize];
            consumer.frame(taken.frame).unwrap().read(0, &mut bytes).unwrap();
            assert!(bytes == noise(length as usize, round), "{:?}, round {round}", MODES[index]);
        }
        assert_eq!(role.receive_line(), "done");
    }
}

/// Sends each message back.
#[test]
fn role_echoes() {
    let Some(socket) = role_socket() else { return };
    let (_client, mut sender, mut receiver) = connect_to_test(&socket);
    loop {
        match receiver.receive(PATIENCE) {
            Ok(message) => match message.content {
                Content::Bytes(bytes) => sender.send(message.kind, bytes, PATIENCE).unwrap(),
                Content::Range(lent) => drop(lent),
            },
            Err(ReceiveError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn messages_of_any_length_are_echoed() {
    let service = Service::start(&[]);
    let (_role, _client, mut sender, mut receiver) = connect_role(&service, "role_echoes");
    for (kind, length) in
        [0, 1, 40, 41, 4096, 128 << 10, (128 << 10) + 1, (1 << 20) + 7, 9 << 20].into_iter().enumerate()
    {
        let bytes = noise(length, kind as u64);
        sender.send(kind as u32, &bytes, PATIENCE).unwrap();
        let message = receiver.receive(PATIENCE).unwrap();
        assert_eq!(message.kind, kind as u32);
        match message.content {
            Content::Bytes(back) => assert!(back == bytes, "{length} bytes"),
            Content::Range(lent) => panic!("{lent:?}"),
        }
    }
}

/// Connects, reports it, and receives nothing.
#[test]
fn role_sleeps() {
    let Some(socket) = role_socket() else { return };
    let _ends = connect_to_test(&socket);
    report("here");
    next_order();
}

#[test]
fn a_killed_consumer_is_an_error_to_senders() {
    let service = Service::start(&[]);
    let (mut role, client, mut sender, mut receiver) = connect_role(&service, "role_sleeps");
    role.receive_line();
    let frame = client.frame(4096).alloc().unwrap();
    let loan = sender.lend(1, &frame, PATIENCE).unwrap();
    assert!(matches!(sender.settle(loan, Some(Duration::ZERO)), Err(SendError::TimedOut)));
    role.kill();
    assert!(matches!(sender.settle(loan, None), Err(SendError::PeerLost)), "without a timeout");
    assert!(matches!(sender.send(2, b"", None), Err(SendError::PeerLost)));
    assert!(matches!(receiver.receive(None), Err(ReceiveError::PeerLost)));
    service.assert_serves();
}

/// Sends three messages and lends a frame; revokes it and lends another when ordered.
#[test]
fn role_lends() {
    let Some(socket) = role_socket() else { return };
    let (client, mut sender, _receiver) = connect_to_test(&socket);
    let frame = client.frame(FRAME).alloc().unwrap();
    for number in 0..3u32 {
        sender.send(number, &number.to_le_bytes(), PATIENCE).unwrap();
    }
    let _loan = sender.lend(3, &frame, PATIENCE).unwrap();
    report("lent");
    next_order();
    frame.revoke().unwrap();
    report("revoked");
    let _loan = sender.lend(4, client.frame(FRAME).alloc().unwrap(), PATIENCE).unwrap();
    next_order();
}

/// Receives the role's messages and starts to pull its frame, which waits behind endless transfers.
fn pull_behind_others(client: &Client, receiver: &mut Receiver) -> (memferry::Queue, Vec<Ticket>) {
    for number in 0..3u32 {
        let message = receiver.receive(PATIENCE).unwrap();
        assert!(
            message.kind == number
                && matches!(message.content, Content::Bytes(bytes) if bytes == number.to_le_bytes())
        );
    }
    let lent = receive_lent(receiver).unwrap();
    let busy = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(64).unwrap();
    let tickets = (0..60).map(|_| queue.submit(endless(&busy)).unwrap()).collect();
    let to = client.frame(FRAME).alloc().unwrap();
    receiver.pull(lent, &to).unwrap();
    assert_eq!(receiver.finish(Some(Duration::ZERO)), Err(FinishError::TimedOut));
    (queue, tickets)
}

#[test]
fn a_killed_producer_is_an_error_at_the_end() {
    let service = Service::start(&["--workers", "1"]);
    let (mut role, client, _sender, mut receiver) = connect_role(&service, "role_lends");
    role.receive_line();
    let (mut queue, tickets) = pull_behind_others(&client, &mut receiver);
    role.kill();
    let ended = receiver.finish(PATIENCE);
    assert!(matches!(ended, Err(FinishError::Failed { kind: 3, .. })), "{ended:?}");
    assert!(matches!(receiver.receive(None), Err(ReceiveError::PeerLost)));
    tickets.into_iter().for_each(|ticket| queue.cancel(ticket).unwrap());
    service.assert_serves();
}

#[test]
fn a_frame_revoked_in_the_middle_is_an_error() {
    let service = Service::start(&["--workers", "1"]);
    let (mut role, client, _sender, mut receiver) = connect_role(&service, "role_lends");
    role.receive_line();
    let (mut queue, tickets) = pull_behind_others(&client, &mut receiver);
    role.send_line("revoke");
    let ended = receiver.finish(PATIENCE);
    let revoked = |failure| matches!(failure, Failure::Revoked { .. } | Failure::Cancelled);
    assert!(matches!(ended, Err(FinishError::Failed { kind: 3, failure }) if revoked(failure)), "{ended:?}");
    assert_eq!(role.receive_line(), "revoked");
    tickets.into_iter().for_each(|ticket| queue.cancel(ticket).unwrap());
    assert_eq!(receive_lent(&mut receiver).unwrap().kind(), 4);
    role.send_line("end");
}

/// Keeps its connection open in a forked child and is killed.
#[test]
fn role_forks_and_dies() {
    let Some(socket) = role_socket() else { return };
    let _ends = connect_to_test(&socket);
    report(fork_a_sleeper());
    next_order();
}

#[test]
fn a_dead_peers_child_does_not_hide_its_death() {
    let service = Service::start(&[]);
    let (mut role, _client, _sender, mut receiver) = connect_role(&service, "role_forks_and_dies");
    let child = Sleeper::of(&mut role);
    role.kill();
    assert!(matches!(receiver.receive(None), Err(ReceiveError::PeerLost)));
    child.assert_lives();
}

#[test]
fn a_forked_child_gets_errors() {
    let service = Service::start(&[]);
    let (_role, _client, mut sender, mut receiver) = connect_role(&service, "role_echoes");
    // SAFETY: the child only makes calls that need no other thread, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        harness::set_alarm();
        let sent = matches!(sender.send(1, b"from the child", None), Err(SendError::Forked(_)));
        let received = matches!(receiver.receive(None), Err(ReceiveError::Forked(_)));
        let finished = matches!(receiver.finish(None), Err(FinishError::Forked(_)));
        let idle = !receiver.ready();
        drop((sender, receiver));
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!(sent && received && finished && idle))) };
    }
    let mut status = -1;
    // SAFETY: waits for the child forked above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child's exit status");
    sender.send(5, b"from the parent", PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE).unwrap().kind, 5);
}

#[test]
fn a_lost_service_fails_pulls() {
    let mut service = Service::start(&["--workers", "1"]);
    let (mut role, client, _sender, mut receiver) = connect_role(&service, "role_lends");
    role.receive_line();
    let _busy = pull_behind_others(&client, &mut receiver);
    service.signal(Signal::KILL);
    service.wait();
    let lost = FinishError::Failed { kind: 3, failure: Failure::ServiceLost };
    assert_eq!(receiver.finish(PATIENCE), Err(lost));
}

#[test]
fn messages_continue_without_a_service() {
    let mut service = Service::start(&[]);
    let (_role, client, mut sender, mut receiver) = connect_role(&service, "role_echoes");
    let frame = client.frame(4096).alloc().unwrap();
    // The echo shows that the other end has finished its handshake, which uses the service.
    sender.send(1, b"with it", PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE).unwrap().kind, 1);
    service.signal(Signal::KILL);
    service.wait();
    assert!(matches!(sender.lend(1, &frame, PATIENCE), Err(SendError::Grant(_))));
    sender.send(2, b"without it", PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE).unwrap().kind, 2);
}

#[test]
fn another_services_client_gets_mapped_frames_only() {
    let service = Service::start(&[]);
    let other = Service::start(&[]);
    let listener = Listener::bind(rendezvous(&service.socket)).unwrap();
    let ours = service.client();
    let theirs = other.client();
    std::thread::scope(|scope| {
        let there =
            scope.spawn(|| connect(rendezvous(&service.socket), &theirs, Options::default()).unwrap());
        let (mut sender, _receiver) = listener.accept(&ours, Options::default(), PATIENCE).unwrap();
        let (_sender, mut receiver) = there.join().unwrap();
        let frame = memferry_bulk::SharedFrame::allocate(&ours, 4096).unwrap();
        assert!(!sender.can_grant());
        assert!(matches!(sender.lend(1, frame.frame(), PATIENCE), Err(SendError::OtherService)));
        frame.frame().write(9, b"mapped").unwrap();
        let _loan = sender.lend_mapped(1, &frame, (9, 6), PATIENCE).unwrap();
        let mut bytes = [0; 6];
        receive_lent(&mut receiver).unwrap().read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mapped");
    });
}
