//! Bulk transfer and messages between two processes: frames in every mode, and either side killed, forked or revoked in the
//! middle.
//!
//! ```text
//! this process: Listener ◄── connect ── Role: this binary again          both clients of one service process
//! ```

#![expect(unsafe_code, reason = "forks")]

mod harness;

use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Role, SOON, Service, Sleeper, endless, fork_a_sleeper, listen, playing, say};
use memferry::{Client, Failure, Ticket};
use memferry_bulk::{
    Consumer, Content, FinishError, LentFrame, Listener, Mode, Options, Producer, ReceiveError, Receiver,
    SendError, Sender, connect,
};
use memferry_conformance::noise;
use rustix::process::Signal;

const PATIENCE: Option<Duration> = Some(SOON);
const FRAME: u64 = 256 << 10;

fn meeting(socket: &Path) -> PathBuf {
    socket.with_extension("meeting")
}

/// A service, the role connected to this process, and this process's end.
fn meet(service: &Service, role: &str) -> (Role, Client, Sender, Receiver) {
    let client = service.client();
    let listener = Listener::bind(meeting(&service.socket)).unwrap();
    let role = Role::start(role, &service.socket);
    let (sender, receiver) = listener.accept(&client, Options::default(), PATIENCE).unwrap();
    (role, client, sender, receiver)
}

fn join(socket: &Path) -> (Client, Sender, Receiver) {
    let client = Client::connect(socket).unwrap();
    let (sender, receiver) = connect(meeting(socket), &client, Options::default()).unwrap();
    (client, sender, receiver)
}

fn lent_of(receiver: &mut Receiver) -> Result<LentFrame, ReceiveError> {
    match receiver.receive(PATIENCE)?.content {
        Content::Range(lent) => Ok(lent),
        Content::Bytes(bytes) => panic!("{} bytes came instead of a lent frame", bytes.len()),
    }
}

const MODES: [Mode; 3] = [Mode::MappedEachRequest, Mode::PreMapped, Mode::Offloaded];
const LENGTHS: [u64; 6] = [0, 1, 4095, 4096, 65_537, FRAME];

/// Puts frames of all lengths, two rounds over its set.
#[test]
fn role_produces() {
    let Some(socket) = playing() else { return };
    let mode = MODES[listen_index()];
    let (client, sender, _receiver) = join(&socket);
    let mut producer = Producer::new(sender, &client, (8, FRAME), mode).unwrap();
    for round in 0..16u64 {
        let index = round as usize % 8;
        let length = LENGTHS[round as usize % LENGTHS.len()];
        producer.frame(index, PATIENCE).unwrap().write(0, &noise(length as usize, round)).unwrap();
        producer.put(index, length, PATIENCE).unwrap();
    }
    producer.drain(PATIENCE).unwrap();
    say("done");
    listen();
}

fn listen_index() -> usize {
    listen().parse().unwrap()
}

#[test]
fn every_mode_brings_frames_in_order() {
    let service = Service::start(&[]);
    for (index, window) in [(0, 1), (1, 1), (2, 1), (2, 8)] {
        let client = service.client();
        let listener = Listener::bind(meeting(&service.socket)).unwrap();
        let mut role = Role::start("role_produces", &service.socket);
        role.tell(&index.to_string());
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

/// Sends back what it gets.
#[test]
fn role_echoes() {
    let Some(socket) = playing() else { return };
    let (_client, mut sender, mut receiver) = join(&socket);
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
fn messages_of_any_length_go_there_and_back() {
    let service = Service::start(&[]);
    let (_role, _client, mut sender, mut receiver) = meet(&service, "role_echoes");
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

/// Connects, says so, and takes nothing.
#[test]
fn role_sleeps() {
    let Some(socket) = playing() else { return };
    let _ends = join(&socket);
    say("here");
    listen();
}

#[test]
fn a_killed_consumer_is_an_error_to_senders() {
    let service = Service::start(&[]);
    let (mut role, client, mut sender, mut receiver) = meet(&service, "role_sleeps");
    role.receive_line();
    let frame = client.frame(4096).alloc().unwrap();
    let loan = sender.lend(1, &frame, PATIENCE).unwrap();
    assert!(matches!(sender.settle(loan, Some(Duration::ZERO)), Err(SendError::TimedOut)));
    role.kill();
    assert!(matches!(sender.settle(loan, None), Err(SendError::PeerLost)), "without a limit");
    assert!(matches!(sender.send(2, b"", None), Err(SendError::PeerLost)));
    assert!(matches!(receiver.receive(None), Err(ReceiveError::PeerLost)));
    service.assert_serves();
}

/// Sends three messages and lends a frame; does as it is told with that.
#[test]
fn role_lends() {
    let Some(socket) = playing() else { return };
    let (client, mut sender, _receiver) = join(&socket);
    let frame = client.frame(FRAME).alloc().unwrap();
    for number in 0..3u32 {
        sender.send(number, &number.to_le_bytes(), PATIENCE).unwrap();
    }
    let _loan = sender.lend(3, &frame, PATIENCE).unwrap();
    say("lent");
    listen();
    frame.revoke().unwrap();
    say("revoked");
    let _loan = sender.lend(4, client.frame(FRAME).alloc().unwrap(), PATIENCE).unwrap();
    listen();
}

/// Takes the role's messages and begins to pull its frame, which waits behind transfers that do not end.
fn pull_behind_others(client: &Client, receiver: &mut Receiver) -> (memferry::Queue, Vec<Ticket>) {
    for number in 0..3u32 {
        let message = receiver.receive(PATIENCE).unwrap();
        assert!(
            message.kind == number
                && matches!(message.content, Content::Bytes(bytes) if bytes == number.to_le_bytes())
        );
    }
    let lent = lent_of(receiver).unwrap();
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
    let (mut role, client, _sender, mut receiver) = meet(&service, "role_lends");
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
    let (mut role, client, _sender, mut receiver) = meet(&service, "role_lends");
    role.receive_line();
    let (mut queue, tickets) = pull_behind_others(&client, &mut receiver);
    role.tell("revoke");
    let ended = receiver.finish(PATIENCE);
    let revoked = |failure| matches!(failure, Failure::Revoked { .. } | Failure::Cancelled);
    assert!(matches!(ended, Err(FinishError::Failed { kind: 3, failure }) if revoked(failure)), "{ended:?}");
    assert_eq!(role.receive_line(), "revoked");
    tickets.into_iter().for_each(|ticket| queue.cancel(ticket).unwrap());
    assert_eq!(lent_of(&mut receiver).unwrap().kind(), 4);
    role.tell("end");
}

/// Holds its connection open in a forked child and dies.
#[test]
fn role_forks_and_dies() {
    let Some(socket) = playing() else { return };
    let _ends = join(&socket);
    say(fork_a_sleeper());
    listen();
}

#[test]
fn a_process_is_gone_when_it_died_although_its_child_holds_the_socket() {
    let service = Service::start(&[]);
    let (mut role, _client, _sender, mut receiver) = meet(&service, "role_forks_and_dies");
    let child = Sleeper::of(&mut role);
    role.kill();
    assert!(matches!(receiver.receive(None), Err(ReceiveError::PeerLost)));
    child.assert_lives();
}

#[test]
fn a_forked_child_is_told_so_and_disturbs_nothing() {
    let service = Service::start(&[]);
    let (_role, _client, mut sender, mut receiver) = meet(&service, "role_echoes");
    // SAFETY: the child uses this library, which answers from memory, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        harness::end_in_time();
        let sent = matches!(sender.send(1, b"from the child", None), Err(SendError::Forked(_)));
        let received = matches!(receiver.receive(None), Err(ReceiveError::Forked(_)));
        let finished = matches!(receiver.finish(None), Err(FinishError::Forked(_)));
        let idle = !receiver.ready();
        drop((sender, receiver));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!(sent && received && finished && idle))) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child's exit status");
    sender.send(5, b"from the parent", PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE).unwrap().kind, 5);
}

#[test]
fn a_lost_service_fails_what_is_pulled() {
    let mut service = Service::start(&["--workers", "1"]);
    let (mut role, client, _sender, mut receiver) = meet(&service, "role_lends");
    role.receive_line();
    let _busy = pull_behind_others(&client, &mut receiver);
    service.signal(Signal::KILL);
    service.wait();
    let lost = FinishError::Failed { kind: 3, failure: Failure::ServiceLost };
    assert_eq!(receiver.finish(PATIENCE), Err(lost));
}

#[test]
fn messages_go_on_without_a_service() {
    let mut service = Service::start(&[]);
    let (_role, client, mut sender, mut receiver) = meet(&service, "role_echoes");
    let frame = client.frame(4096).alloc().unwrap();
    // The other end has shaken hands too, for which it asks the service.
    sender.send(1, b"with it", PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE).unwrap().kind, 1);
    service.signal(Signal::KILL);
    service.wait();
    assert!(matches!(sender.lend(1, &frame, PATIENCE), Err(SendError::Grant(_))));
    sender.send(2, b"without it", PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE).unwrap().kind, 2);
}

#[test]
fn other_services_are_lent_frames_mapped_only() {
    let service = Service::start(&[]);
    let other = Service::start(&[]);
    let listener = Listener::bind(meeting(&service.socket)).unwrap();
    let ours = service.client();
    let theirs = other.client();
    std::thread::scope(|scope| {
        let there = scope.spawn(|| connect(meeting(&service.socket), &theirs, Options::default()).unwrap());
        let (mut sender, _receiver) = listener.accept(&ours, Options::default(), PATIENCE).unwrap();
        let (_sender, mut receiver) = there.join().unwrap();
        let frame = memferry_bulk::SharedFrame::allocate(&ours, 4096).unwrap();
        assert!(!sender.can_grant());
        assert!(matches!(sender.lend(1, frame.frame(), PATIENCE), Err(SendError::OtherService)));
        frame.frame().write(9, b"mapped").unwrap();
        let _loan = sender.lend_mapped(1, &frame, (9, 6), PATIENCE).unwrap();
        let mut bytes = [0; 6];
        lent_of(&mut receiver).unwrap().read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mapped");
    });
}
