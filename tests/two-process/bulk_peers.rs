//! Peers of a bulk connection that encode its protocol themselves: they make false statements, pass on grants of others, send
//! nothing, or shrink their memory.
//!
//! ```text
//! this process: Listener ◄── RawPeer: hello, memory, slots, as a test chooses        third process ─ grants ─► this one
//! ```

mod harness;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use harness::{Role, SOON, Service, next_order, report, role_socket};
use memferry::{Client, Grantee, Rights, ServiceId, SessionId};
use memferry_bulk::{ConnectError, Content, Listener, Options, ReceiveError, Receiver, Violation, connect};
use memferry_conformance::noise;
use memferry_shm::ring::{Producer, Slots};
use memferry_shm::storage::MappedWords;
use memferry_shm::{conduit, frame};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const PATIENCE: Option<Duration> = Some(SOON);
const AREA_AT: u64 = 8192;
const MEMORY_BYTES: u64 = AREA_AT + (1 << 20);

/// A connection that sends nothing.
fn silent(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// A peer that can write anything.
struct RawPeer {
    socket: OwnedFd,
    memory: OwnedFd,
    words: MappedWords,
    ring: Producer<8, 8>,
}

impl RawPeer {
    /// Connects and claims to be `session` of `service`.
    fn join(path: &Path, service: ServiceId, session: SessionId) -> Self {
        let socket = silent(path);
        let (memory, mapping) = frame::allocate_sealed(MEMORY_BYTES, false).unwrap();
        let mut hello = b"MFERBLK3".to_vec();
        hello.extend([0; 8]);
        hello.extend(service.0.to_le_bytes());
        [session.0, 1 << 20, MEMORY_BYTES].iter().for_each(|word| hello.extend(word.to_le_bytes()));
        conduit::send(socket.as_fd(), &hello, &[memory.as_fd()], true).unwrap();
        let ring = Producer::new(Slots { first_word: 96, capacity: 64 });
        Self { socket, memory, words: MappedWords::new(mapping).unwrap(), ring }
    }

    /// Writes a slot. The other end polls for it when it sleeps.
    fn slot(&mut self, sort: u64, words: [u64; 3]) {
        let [one, two, three] = words;
        self.ring.stage(&self.words, &[sort << 32, one, two, three, 0, 0, 0, 0]).unwrap();
        self.ring.publish(&self.words);
    }

    /// Announces a grant as its first export and lends all of it.
    fn grant(&mut self, token: u64, length: u64) {
        self.slot(3, [0, token, 0]);
        self.slot(5, [1, length, 0]);
    }
}

fn accepted(listener: &Listener, client: &Client) -> Result<Receiver, ConnectError> {
    listener.accept(client, Options::default(), PATIENCE).map(|(_, receiver)| receiver)
}

/// Grants a frame to the session it is ordered to; reports its own session and the token.
#[test]
fn role_grants() {
    let Some(socket) = role_socket() else { return };
    let client = Client::connect(socket).unwrap();
    let frame = client.frame(4096).alloc().unwrap();
    report(client.session());
    let session = SessionId(next_order().parse().unwrap());
    report(client.grant(&frame, Rights::READ, Grantee::Session(session)).unwrap().token());
    next_order();
}

/// Connects to the test as itself and passes on a token of another process.
#[test]
fn role_hands_on_a_token() {
    let Some(socket) = role_socket() else { return };
    let client = Client::connect(&socket).unwrap();
    let service = client.identify(client.session()).unwrap().service;
    let mut peer = RawPeer::join(&socket.with_extension("rendezvous"), service, client.session());
    peer.grant(next_order().parse().unwrap(), 4096);
    next_order();
}

fn session_of(role: &mut Role) -> SessionId {
    let line = role.receive_line();
    SessionId(line.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap())
}

#[test]
fn grants_of_a_third_process_are_refused() {
    let service = Service::start(&[]);
    let client = service.client();
    let listener = Listener::bind(service.socket.with_extension("rendezvous")).unwrap();
    let mut third = Role::start("role_grants", &service.socket);
    let grantor = session_of(&mut third);
    third.send_line(&client.session().0.to_string());
    let token = third.receive_line();
    // The token itself is valid for this process.
    let frame = client.accept(token.parse().unwrap()).unwrap();
    assert_eq!(frame.grantor(), Some(grantor));
    let mut peer = Role::start("role_hands_on_a_token", &service.socket);
    let mut receiver = accepted(&listener, &client).unwrap();
    peer.send_line(&token);
    let refused = receiver.receive(PATIENCE).map(|message| message.kind);
    let of_third =
        |violation: &Violation| matches!(violation, Violation::Grantor { grantor: of } if *of == grantor);
    assert!(matches!(&refused, Err(ReceiveError::Broken(violation)) if of_third(violation)), "{refused:?}");
    let again = receiver.receive(PATIENCE).map(|message| message.kind);
    assert!(matches!(again, Err(ReceiveError::Broken(Violation::Earlier))), "{again:?}");
}

#[test]
fn claiming_another_processes_session_is_refused() {
    let service = Service::start(&[]);
    let client = service.client();
    let path = service.socket.with_extension("rendezvous");
    let listener = Listener::bind(&path).unwrap();
    let mut third = Role::start("role_grants", &service.socket);
    let id = client.identify(client.session()).unwrap().service;
    let named = session_of(&mut third);
    let _peer = RawPeer::join(&path, id, named);
    let refused = accepted(&listener, &client).map(drop);
    let is_named = |violation: &Violation| {
        matches!(violation, Violation::Session { session, process }
            if *session == named && *process == std::process::id())
    };
    assert!(
        matches!(&refused, Err(ConnectError::Violation(violation)) if is_named(violation)),
        "{refused:?}"
    );
    // A session that does not exist, or has ended, is no violation.
    let _peer = RawPeer::join(&path, id, SessionId(1 << 40));
    let refused = accepted(&listener, &client).map(drop);
    assert!(matches!(&refused, Err(ConnectError::Handshake(_))), "{refused:?}");
    // A peer may name its own session.
    let own = service.client();
    let _peer = RawPeer::join(&path, id, own.session());
    accepted(&listener, &client).unwrap();
}

#[test]
fn a_grant_across_services_is_refused() {
    let service = Service::start(&[]);
    let client = service.client();
    let granting = service.client();
    let path = service.socket.with_extension("rendezvous");
    let listener = Listener::bind(&path).unwrap();
    let frame = granting.frame(4096).alloc().unwrap();
    let grant = granting.grant(&frame, Rights::READ, Grantee::Session(client.session())).unwrap();
    let mut peer = RawPeer::join(&path, ServiceId(7), granting.session());
    let (sender, mut receiver) = listener.accept(&client, Options::default(), PATIENCE).unwrap();
    assert!(!sender.can_grant());
    peer.grant(grant.token().to_raw(), 4096);
    let refused = receiver.receive(PATIENCE).map(|message| message.kind);
    assert!(matches!(refused, Err(ReceiveError::Broken(Violation::NoGrants))), "{refused:?}");
}

#[test]
fn a_silent_peer_does_not_delay_others() {
    let service = Service::start(&[]);
    let ours = service.client();
    let theirs = service.client();
    let path = service.socket.with_extension("rendezvous");
    let listener = Listener::bind(&path).unwrap();
    let _silent: Vec<_> = (0..3).map(|_| silent(&path)).collect();
    let patient = Options { handshake: Duration::MAX, ..Options::default() };
    std::thread::scope(|scope| {
        let there = scope.spawn(|| connect(&path, &theirs, patient).unwrap());
        let (mut sender, _receiver) = listener.accept(&ours, patient, PATIENCE).unwrap();
        sender.send(5, b"", PATIENCE).unwrap();
        assert_eq!(there.join().unwrap().1.receive(PATIENCE).unwrap().kind, 5);
    });
    let late = listener.accept(&ours, patient, Some(Duration::ZERO)).map(drop);
    assert!(matches!(late, Err(ConnectError::TimedOut)), "{late:?}");
}

#[test]
fn a_silent_peer_is_disconnected() {
    let service = Service::start(&[]);
    let client = service.client();
    let path = service.socket.with_extension("rendezvous");
    let listener = Listener::bind(&path).unwrap();
    let socket = silent(&path);
    let short = Options { handshake: Duration::from_millis(1), ..Options::default() };
    let refused = listener.accept(&client, short, None).map(drop);
    assert!(matches!(refused, Err(ConnectError::Handshake(why)) if why.contains("in time")), "{refused:?}");
    assert!(matches!(conduit::receive(socket.as_fd(), true), Err(conduit::ReceiveError::Closed)));
    // Connecting to a listener that never accepts times out as well.
    let mut waiting = Vec::new();
    let full = loop {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let next = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        match rustix::net::connect(&next, &SocketAddrUnix::new(&path).unwrap()) {
            Ok(()) => waiting.push(next),
            Err(error) => break error,
        }
    };
    assert_eq!(full, Errno::AGAIN);
    assert!(matches!(connect(&path, &client, short), Err(ConnectError::Socket { .. })));
}

#[test]
fn a_peer_cannot_shrink_its_memory() {
    let service = Service::start(&[]);
    let client = service.client();
    let theirs = service.client();
    let path = service.socket.with_extension("rendezvous");
    let listener = Listener::bind(&path).unwrap();
    let id = client.identify(client.session()).unwrap().service;
    let mut peer = RawPeer::join(&path, id, theirs.session());
    let mut receiver = accepted(&listener, &client).unwrap();
    let bytes = noise(100_000, 3);
    peer.words.mapping().write(AREA_AT, &bytes).unwrap();
    let piece = |first: bool, at: u64, length: u64| {
        (2 | u64::from(first) << 8, [1 | length << 32, bytes.len() as u64, at])
    };
    let (sort, words) = piece(true, 0, 60_000);
    peer.slot(sort, words);
    assert!(matches!(receiver.receive(Some(Duration::ZERO)), Err(ReceiveError::TimedOut)));
    assert_eq!(rustix::fs::ftruncate(&peer.memory, 4096), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&peer.memory, hole, AREA_AT, 1 << 20), Err(Errno::PERM));
    let (sort, words) = piece(false, 60_000, 40_000);
    peer.slot(sort, words);
    match receiver.receive(PATIENCE).unwrap().content {
        Content::Bytes(received) => assert!(received == bytes),
        Content::Range(lent) => panic!("{lent:?}"),
    }
    drop(peer.socket);
    assert!(matches!(receiver.receive(None), Err(ReceiveError::PeerLost)));
}
