//! Plays the control thread and the clients of an attendant, which runs in a thread.

mod exports;

use std::os::fd::AsFd;
use std::thread::JoinHandle;

use memferry_service::protocol::{Answer, Command, Envelope, Hello, Reply};
use memferry_shm::conduit::ReceiveError;
use memferry_shm::frame;
use memferry_transfer::Rights;
use rustix::event::EventfdFlags;
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::testing::{is_readable, wait_readable};

const LENGTH: u64 = 8192;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

fn event() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// The control thread's end of an attendant.
struct Control {
    channel: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    fn start() -> Self {
        Self::start_prepared(|_| {})
    }

    fn start_prepared(prepare: impl FnOnce(&mut Attendant)) -> Self {
        let (channel, theirs) = pair();
        let mut attendant = Attendant::new(theirs, user()).unwrap();
        prepare(&mut attendant);
        Self { channel, thread: Some(std::thread::spawn(|| attendant.run())) }
    }

    fn send(&self, message: &ToAttendant, descriptors: &[&OwnedFd]) {
        messages::send(self.channel.as_fd(), message, descriptors, true).unwrap();
    }

    fn receive(&self) -> (FromAttendant, Vec<OwnedFd>) {
        wait_readable(&self.channel);
        match messages::receive(self.channel.as_fd()) {
            Received::Message(message, descriptors) => (message, descriptors),
            Received::Nothing => panic!("the message disappeared"),
            Received::Lost => panic!("the attendant ended"),
        }
    }

    fn expect(&self, expected: &FromAttendant) {
        assert_eq!(self.receive().0, *expected);
    }

    /// Connects a client and has it adopted.
    fn adopt(&self, number: u64) -> Player {
        let (socket, theirs) = pair();
        let (process, life) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let id = ClientId(number);
        self.send(&ToAttendant::Adopt { client: id }, &[&theirs, &process]);
        drop(theirs);
        self.send(&ToAttendant::HandedOver, &[]);
        Player { id, socket, life: Some(life), serial: 0 }
    }

    /// As [`adopt`](Self::adopt), with the handshake.
    fn connect(&self, number: u64) -> Player {
        let player = self.adopt(number);
        player.say_hello();
        self.expect(&FromAttendant::Hello { client: player.id, versions: (5, 5), features: 1 });
        self.answer(player.id, b"welcome");
        assert_eq!(player.receive().0, b"welcome");
        player
    }

    fn answer(&self, client: ClientId, bytes: &[u8]) {
        self.send(&ToAttendant::Answer { client, bytes: bytes.to_vec() }, &[]);
    }

    /// Everything sent before has been handled, and caused no further message, when this returns.
    fn settle(&self) {
        const OTHER: u64 = 1 << 40;
        let other = self.adopt(OTHER);
        other.say_hello();
        self.expect(&FromAttendant::Hello { client: other.id, versions: (5, 5), features: 1 });
        let farewell = protocol::encode_violation(&Violation::RingCounts);
        self.send(&ToAttendant::End { client: other.id, farewell, watch: false }, &[]);
        other.farewell();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the attendant panicked");
        }
    }
}

/// A client. Its process exits when `life` is closed.
struct Player {
    id: ClientId,
    socket: OwnedFd,
    life: Option<OwnedFd>,
    serial: u32,
}

impl Player {
    fn say_hello(&self) {
        let hello = Hello { versions: (5, 5), features: 1 };
        conduit::send(self.socket.as_fd(), &hello.encode(), &[], false).unwrap();
    }

    fn command(&mut self, body: Command, descriptors: &[&OwnedFd]) {
        self.serial += 1;
        let announced = descriptors.len() as u8;
        let bytes = protocol::encode(&Envelope { serial: self.serial, descriptors: announced, body });
        let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        conduit::send(self.socket.as_fd(), &bytes, &descriptors, false).unwrap();
    }

    fn register(&mut self, descriptor: &OwnedFd) {
        self.command(Command::Register { length: LENGTH, rights: Rights::READ }, &[descriptor]);
    }

    fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        wait_readable(&self.socket);
        let packet = conduit::receive(self.socket.as_fd(), false).unwrap();
        (packet.bytes, packet.descriptors)
    }

    fn refusal(&self) -> RefusalKind {
        let reply: Reply = protocol::decode(&self.receive().0).unwrap();
        assert_eq!(reply.serial, self.serial);
        reply.body.unwrap_err().kind
    }

    /// The last message of the connection, and that nothing follows.
    fn farewell(&self) -> Violation {
        let farewell = protocol::decode_violation(&self.receive().0).unwrap();
        self.expect_end();
        farewell
    }

    fn expect_end(&self) {
        wait_readable(&self.socket);
        assert_eq!(conduit::receive(self.socket.as_fd(), false).unwrap_err(), ReceiveError::Closed);
    }

    /// Ends the client's process, whose socket another process has.
    fn exit(&mut self) {
        self.life = None;
    }
}

fn seals(descriptor: &OwnedFd) -> SealFlags {
    rustix::fs::fcntl_get_seals(descriptor).unwrap()
}

fn memory() -> OwnedFd {
    frame::allocate(LENGTH, frame::Pages::Ordinary).unwrap().0
}

#[test]
fn commands_are_passed_on_and_answered() {
    let control = Control::start();
    let mut player = control.connect(1);
    for serial in 1..=3 {
        player.command(Command::Status, &[]);
        control.expect(&FromAttendant::Command { client: player.id, serial, command: Command::Status });
        control.answer(player.id, b"status");
        assert_eq!(player.receive().0, b"status");
    }
}

#[test]
fn a_client_is_read_only_after_the_answer() {
    let control = Control::start();
    let mut player = control.connect(1);
    player.command(Command::Status, &[]);
    player.command(Command::Engines, &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 1, command: Command::Status });
    control.settle();
    control.answer(player.id, b"status");
    control.expect(&FromAttendant::Command { client: player.id, serial: 2, command: Command::Engines });
}

#[test]
fn memory_is_sealed_after_it_was_mapped() {
    let control = Control::start();
    let mut player = control.connect(1);
    let descriptor = memory();
    player.register(&descriptor);
    let (message, received) = control.receive();
    let command = Command::Register { length: LENGTH, rights: Rights::READ };
    assert_eq!(message, FromAttendant::Memory { client: player.id, serial: 1, command });
    assert_eq!(received.len(), 1);
    assert!(!seals(&descriptor).contains(SealFlags::SEAL));
    control.send(&ToAttendant::Mapped { client: player.id }, &[]);
    control.expect(&FromAttendant::Sealed { client: player.id });
    assert!(seals(&descriptor).contains(SealFlags::SEAL | SealFlags::SHRINK | SealFlags::FUTURE_WRITE));
    control.answer(player.id, b"frame");
    assert_eq!(player.receive().0, b"frame");
}

#[test]
fn what_is_no_memory_is_refused_at_once() {
    let control = Control::start();
    let mut player = control.connect(1);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    player.register(&writer);
    assert_eq!(player.refusal(), RefusalKind::Frame);
    drop(writer);
    // The attendant closes what it refused.
    wait_readable(&reader);
    player.command(Command::Status, &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 2, command: Command::Status });
}

#[test]
fn memory_with_holes_is_refused_when_sealed() {
    let control = Control::start();
    let mut player = control.connect(1);
    let descriptor = memory();
    rustix::fs::ftruncate(&descriptor, 0).unwrap();
    rustix::fs::ftruncate(&descriptor, LENGTH).unwrap();
    player.register(&descriptor);
    assert!(matches!(control.receive().0, FromAttendant::Memory { .. }));
    control.send(&ToAttendant::Mapped { client: player.id }, &[]);
    control.expect(&FromAttendant::Refused { client: player.id });
    assert_eq!(player.refusal(), RefusalKind::Frame);
}

#[test]
fn the_control_thread_may_refuse_memory() {
    let control = Control::start();
    let mut player = control.connect(1);
    let descriptor = memory();
    player.register(&descriptor);
    assert!(matches!(control.receive().0, FromAttendant::Memory { .. }));
    control.answer(player.id, b"no room");
    assert_eq!(player.receive().0, b"no room");
    player.command(Command::Status, &[]);
    control.expect(&FromAttendant::Command { client: player.id, serial: 2, command: Command::Status });
    assert!(!seals(&descriptor).contains(SealFlags::SEAL));
}

#[test]
fn sealing_that_takes_too_long_ends_the_client() {
    let control = Control::start_prepared(|attendant| attendant.sealing_limit = Duration::ZERO);
    let mut player = control.connect(1);
    player.register(&memory());
    assert!(matches!(control.receive().0, FromAttendant::Memory { .. }));
    control.send(&ToAttendant::Mapped { client: player.id }, &[]);
    let violation = Violation::Admission { milliseconds: 0 };
    control.expect(&FromAttendant::Ended { client: player.id, violation: Some(violation.clone()) });
    assert_eq!(player.farewell(), violation);
    // The sealing ends after the client, and nobody waits for its result.
    control.settle();
}

#[test]
fn a_violation_ends_its_client_alone() {
    let control = Control::start();
    let mut other = control.connect(1);
    let mut player = control.connect(2);
    player.serial = 8;
    player.command(Command::Status, &[]);
    let violation = Violation::Serial { expected: 1, got: 9 };
    control.expect(&FromAttendant::Ended { client: player.id, violation: Some(violation.clone()) });
    assert_eq!(player.farewell(), violation);
    other.command(Command::Status, &[]);
    control.expect(&FromAttendant::Command { client: other.id, serial: 1, command: Command::Status });
}

#[test]
fn descriptors_of_refused_messages_are_closed() {
    let control = Control::start();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let player = control.adopt(1);
    let hello = Hello { versions: (5, 5), features: 1 }.encode();
    conduit::send(player.socket.as_fd(), &hello, &[writer.as_fd(), writer.as_fd()], false).unwrap();
    drop(writer);
    assert_eq!(player.farewell(), Violation::Descriptors { expected: 0, got: 2 });
    wait_readable(&reader);
    assert!(matches!(control.receive().0, FromAttendant::Ended { .. }));
}

#[test]
fn a_client_that_does_not_read_is_ended() {
    let control = Control::start();
    let player = control.connect(1);
    let ended = FromAttendant::Ended { client: player.id, violation: Some(Violation::NotReading) };
    // More than the socket holds.
    for _ in 0..64 {
        control.answer(player.id, &[7; 16 << 10]);
    }
    control.expect(&ended);
    control.settle();
}

#[test]
fn unread_answers_with_descriptors_are_limited() {
    let control = Control::start();
    let mut player = control.connect(1);
    let open = |player: &mut Player, queue: u32| {
        player.command(Command::Status, &[]);
        let (message, _) = control.receive();
        if let FromAttendant::Command { client, serial, .. } = message {
            let opened = ToAttendant::Opened { client, serial, queue, bytes: b"queue".to_vec() };
            control.send(&opened, &[&event(), &event(), &event()]);
        }
        message
    };
    for queue in 0..24 {
        open(&mut player, queue);
        assert_eq!(player.receive().1.len(), 3);
    }
    // The fourth is refused if three are unread.
    let messages: Vec<_> = (24..28).map(|queue| open(&mut player, queue)).collect();
    assert!(messages[..3].iter().all(|message| matches!(message, FromAttendant::Command { .. })));
    let violation = Some(Violation::NotReading);
    assert_eq!(messages[3], FromAttendant::Ended { client: player.id, violation });
}

#[test]
fn commands_go_on_while_a_few_revocations_wait() {
    let control = Control::start();
    let mut player = control.connect(1);
    let revoke = Command::Revoke { handle: memferry_transfer::Handle::new(1, 1) };
    for _ in 0..3 {
        player.command(revoke.clone(), &[]);
        assert!(matches!(
            control.receive().0,
            FromAttendant::Command { command: Command::Revoke { .. }, .. }
        ));
    }
    player.command(Command::Status, &[]);
    assert!(matches!(control.receive().0, FromAttendant::Command { command: Command::Status, .. }));
    let client = player.id;
    // An answer to a revocation is none to the command in progress.
    control.send(&ToAttendant::Revoked { client, bytes: b"revoked".to_vec() }, &[]);
    assert_eq!(player.receive().0, b"revoked");
    control.send(&ToAttendant::Answer { client, bytes: b"status".to_vec() }, &[]);
    assert_eq!(player.receive().0, b"status");
    // The fourth without an answer: the next command is read when one of them has it.
    player.command(revoke.clone(), &[]);
    control.receive();
    player.command(revoke, &[]);
    control.receive();
    player.command(Command::Status, &[]);
    control.settle();
    control.send(&ToAttendant::Revoked { client, bytes: b"revoked".to_vec() }, &[]);
    assert!(matches!(control.receive().0, FromAttendant::Command { command: Command::Status, .. }));
}

#[test]
fn a_doorbell_is_kept_until_its_queue_is_released() {
    let control = Control::start();
    let mut player = control.connect(1);
    player.command(Command::Status, &[]);
    control.receive();
    let (reader, doorbell) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let opened = ToAttendant::Opened { client: player.id, serial: 1, queue: 7, bytes: b"queue".to_vec() };
    control.send(&opened, &[&event(), &doorbell, &event()]);
    drop(doorbell);
    drop(player.receive());
    control.settle();
    assert!(!is_readable(&reader));
    control.send(&ToAttendant::Release { client: player.id, queues: vec![7] }, &[]);
    wait_readable(&reader);
}

#[test]
fn a_queue_without_its_descriptors_is_refused() {
    let control = Control::start();
    let mut player = control.connect(1);
    player.command(Command::Status, &[]);
    control.receive();
    let opened = ToAttendant::Opened { client: player.id, serial: 1, queue: 7, bytes: b"queue".to_vec() };
    control.send(&opened, &[]);
    control.expect(&FromAttendant::Undelivered { client: player.id, queue: 7 });
    assert_eq!(player.refusal(), RefusalKind::System);
}

#[test]
fn a_workers_signal_reaches_the_client() {
    let control = Control::start();
    let mut player = control.connect(1);
    player.command(Command::Notify { queue: 3, by: protocol::NotifyBy::Event }, &[]);
    control.receive();
    let of_worker = event();
    let bytes =
        protocol::encode(&Envelope { serial: 1, descriptors: 1, body: Ok::<_, Refusal>(Answer::Notified) });
    let notified = ToAttendant::Notified { client: player.id, serial: 1, queue: 3, bytes };
    control.send(&notified, &[&event(), &of_worker]);
    let mut descriptors = player.receive().1;
    assert_eq!(descriptors.len(), 1);
    let of_client = descriptors.remove(0);
    let ring = || rustix::io::write(&of_worker, &1u64.to_ne_bytes()).unwrap();
    let take = || {
        wait_readable(&of_client);
        let mut count = [0; 8];
        rustix::io::read(&of_client, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    };
    for _ in 0..3 {
        ring();
        take();
    }
    // The last signal of a queue is passed on even if the queue is released first.
    ring();
    control.send(&ToAttendant::Release { client: player.id, queues: vec![3] }, &[]);
    control.settle();
    take();
    ring();
    control.settle();
    assert!(!is_readable(&of_client));
}

#[test]
fn an_ended_client_is_watched_until_it_exits() {
    let control = Control::start();
    let mut player = control.connect(1);
    let violation = Violation::RingCounts;
    let farewell = protocol::encode_violation(&violation);
    control.send(&ToAttendant::End { client: player.id, farewell, watch: true }, &[]);
    assert_eq!(player.farewell(), violation);
    control.settle();
    player.exit();
    control.expect(&FromAttendant::Left { client: player.id });
}

#[test]
fn a_violator_is_watched_only_if_its_end_matters() {
    let control = Control::start();
    for watch in [true, false] {
        let mut player = control.connect(u64::from(watch));
        player.serial = 1;
        player.command(Command::Status, &[]);
        assert!(matches!(control.receive().0, FromAttendant::Ended { violation: Some(_), .. }));
        control.send(&ToAttendant::End { client: player.id, farewell: Vec::new(), watch }, &[]);
        control.settle();
        player.exit();
        if watch {
            control.expect(&FromAttendant::Left { client: player.id });
        }
        control.settle();
    }
}

#[test]
fn a_client_that_was_gone_before_it_was_to_be_watched_has_left() {
    let control = Control::start();
    let end = |client| ToAttendant::End { client, farewell: Vec::new(), watch: true };
    let mut exits = control.connect(1);
    exits.exit();
    control.expect(&FromAttendant::Ended { client: exits.id, violation: None });
    control.send(&end(exits.id), &[]);
    control.expect(&FromAttendant::Left { client: exits.id });
    let closes = control.connect(2);
    let id = closes.id;
    drop(closes);
    control.expect(&FromAttendant::Ended { client: id, violation: None });
    control.send(&end(id), &[]);
    control.expect(&FromAttendant::Left { client: id });
}

#[test]
fn the_end_of_socket_or_process_ends_the_client() {
    let control = Control::start();
    let mut exits = control.connect(1);
    exits.exit();
    control.expect(&FromAttendant::Ended { client: exits.id, violation: None });
    exits.expect_end();
    let mut waits = control.connect(2);
    waits.command(Command::Status, &[]);
    control.receive();
    let id = waits.id;
    drop(waits);
    control.expect(&FromAttendant::Ended { client: id, violation: None });
}

#[test]
fn a_client_without_descriptors_is_not_adopted() {
    let control = Control::start();
    let client = ClientId(5);
    control.send(&ToAttendant::Adopt { client }, &[]);
    control.send(&ToAttendant::HandedOver, &[]);
    control.expect(&FromAttendant::Ended { client, violation: None });
}

#[test]
fn turned_away_clients_get_the_reason() {
    let control = Control::start();
    let (socket, theirs) = pair();
    let violation = Violation::Unwelcome("too many".to_owned());
    let farewell = protocol::encode_violation(&violation);
    control.send(&ToAttendant::TurnAway { farewell }, &[&theirs]);
    drop(theirs);
    control.send(&ToAttendant::HandedOver, &[]);
    let player = Player { id: ClientId(0), socket, life: None, serial: 0 };
    assert_eq!(player.farewell(), violation);
}

#[test]
fn a_client_is_read_when_the_control_thread_has_closed_it() {
    let control = Control::start();
    let (socket, theirs) = pair();
    let player = Player { id: ClientId(1), socket, life: None, serial: 0 };
    player.say_hello();
    let (process, _life) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    control.send(&ToAttendant::Adopt { client: player.id }, &[&theirs, &process]);
    control.answer(player.id, b"too early");
    assert!(!is_readable(&player.socket));
    drop(theirs);
    control.send(&ToAttendant::HandedOver, &[]);
    control.expect(&FromAttendant::Hello { client: player.id, versions: (5, 5), features: 1 });
    control.answer(player.id, b"welcome");
    assert_eq!(player.receive().0, b"welcome");
}

/// A TCP socket whose close blocks, and the peer that releases it when it is dropped.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    // A close of a non-blocking socket does not wait.
    stream.set_nonblocking(false).unwrap();
    (stream.into(), peer)
}

#[test]
fn a_user_with_blocked_closes_is_not_read() {
    let mut peers = Vec::new();
    let (socket, theirs) = pair();
    let (process, _life) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let first = Player { id: ClientId(1), socket, life: None, serial: 0 };
    let control = Control::start_prepared(|attendant| {
        while peers.len() < 8 {
            let (socket, peer) = lingering();
            peers.push(peer);
            attendant.jobs.close(socket);
        }
        while attendant.jobs.pending() <= PENDING_LIMIT {
            attendant.jobs.close(event());
        }
        assert!(attendant.adopt(first.id, vec![theirs, process]).is_ok());
    });
    let second = control.adopt(2);
    match second.farewell() {
        Violation::Unwelcome(reason) => assert!(reason.contains("still being closed"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(control.receive().0, FromAttendant::Ended { violation: Some(_), .. }));
    first.say_hello();
    for number in 3..5 {
        let client = control.adopt(number).id;
        assert!(matches!(control.receive().0, FromAttendant::Ended { client: of, .. } if of == client));
    }
    // The closes end, and the first client is read.
    drop(peers);
    control.expect(&FromAttendant::Hello { client: first.id, versions: (5, 5), features: 1 });
}

#[test]
fn an_attendant_ends_with_its_channel() {
    let mut control = Control::start();
    let player = control.connect(1);
    let channel = std::mem::replace(&mut control.channel, event());
    drop(channel);
    control.thread.take().unwrap().join().unwrap();
    player.expect_end();
}

#[test]
fn an_attendant_ends_if_it_gets_nonsense() {
    let mut control = Control::start();
    conduit::send(control.channel.as_fd(), &[0xff; 9], &[], true).unwrap();
    control.thread.take().unwrap().join().unwrap();
}
