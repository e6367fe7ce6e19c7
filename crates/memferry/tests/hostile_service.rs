//! A client of a service that is silent, late, or hostile.
//!
//! ```text
//! FakeService ─ a thread that speaks the protocol, or not ─► Client: an error in time, and no harm
//! ```
//!
//! Memory that the service sends, answers that come late or match nothing, and texts with terminal escapes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memferry::{
    CallError, Client, ConnectError, ConnectOptions, ExportError, ExportKind, Exported, FrameError,
    GrantToken, Handle, OpenError, Refusal, RefusalKind, SessionId, Status, UnsafeMemory, Violation,
};
use memferry_service::protocol::{self, Answer, Command, Envelope, ExternalStatus, Hello, Welcome};
use memferry_shm::conduit;
use memferry_shm::queue_pair::Layout;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The time limit of clients whose service is silent. Long enough for the handshake on a busy machine.
const LIMIT: Duration = Duration::from_secs(1);
/// Within this time every call must return, also on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A listening socket with its file.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    fn new(backlog: i32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memferry-hostile-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let socket = unix_socket();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, backlog).unwrap();
        Self { socket, path }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn unix_socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// The service's end of a connection.
struct Peer(OwnedFd);

impl Peer {
    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        conduit::send(self.0.as_fd(), bytes, descriptors, true).unwrap();
    }

    /// The next command with its serial and descriptors; `None` when the client is gone.
    fn command(&self) -> Option<(u32, Command, Vec<OwnedFd>)> {
        let packet = conduit::receive(self.0.as_fd(), true).ok()?;
        let envelope: Envelope<Command> = protocol::decode(&packet.bytes).unwrap();
        Some((envelope.serial, envelope.body, packet.descriptors))
    }

    fn answer(&self, serial: u32, body: Result<Answer, Refusal>) {
        self.answer_with(serial, body, &[]);
    }

    fn answer_with(&self, serial: u32, body: Result<Answer, Refusal>, descriptors: &[BorrowedFd<'_>]) {
        let count = descriptors.len() as u8;
        self.send(&protocol::encode(&Envelope { serial, descriptors: count, body }), descriptors);
    }

    /// Takes the next command, which must be the expected one, and answers it.
    fn serve(&self, expected: &Command, answer: Answer) {
        let (serial, command, _) = self.command().expect("a command");
        assert_eq!(&command, expected);
        self.answer(serial, Ok(answer));
    }
}

/// A client of a service that runs `serve` in a thread after the handshake.
fn connected(timeout: Duration, serve: impl FnOnce(&Peer) + Send + 'static) -> (Client, JoinHandle<()>) {
    let listener = Listener::new(4);
    let path = listener.path.clone();
    let service = std::thread::spawn(move || {
        let peer = Peer(rustix::net::accept(&listener.socket).unwrap());
        let hello = conduit::receive(peer.0.as_fd(), true).unwrap();
        let version = Hello::decode(&hello.bytes).unwrap().versions.1;
        peer.send(&Welcome { version, features: 0, session: SessionId(7) }.encode(), &[]);
        serve(&peer);
    });
    let client = Client::connect_with(path, ConnectOptions { timeout }).unwrap();
    (client, service)
}

/// Connects to a service that runs `serve` instead of the handshake.
fn refused(serve: impl FnOnce(&Peer) + Send + 'static) -> ConnectError {
    let listener = Listener::new(4);
    let path = listener.path.clone();
    std::thread::spawn(move || serve(&Peer(rustix::net::accept(&listener.socket).unwrap())));
    Client::connect_with(path, ConnectOptions { timeout: LIMIT }).err().unwrap()
}

fn assert_is_late(error: &ConnectError) {
    assert!(matches!(error, ConnectError::TimedOut { after: LIMIT, .. }), "{error}");
    assert!(error.to_string().contains("did not answer within 1s"), "{error}");
}

#[test]
fn a_silent_service_ends_the_handshake_in_time() {
    let started = Instant::now();
    let (sender, ended) = mpsc::channel::<()>();
    assert_is_late(&refused(move |_| ended.recv().unwrap_or(())));
    drop(sender);
    // A service that accepts nothing.
    let listener = Listener::new(4);
    let limited = ConnectOptions { timeout: LIMIT };
    assert_is_late(&Client::connect_with(&listener.path, limited).err().unwrap());
    assert!(started.elapsed() < SOON);
}

#[test]
fn a_full_backlog_ends_connecting_in_time() {
    let listener = Listener::new(0);
    let address = SocketAddrUnix::new(&listener.path).unwrap();
    let mut waiting = Vec::new();
    loop {
        let socket = unix_socket();
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        match rustix::net::connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
        }
    }
    let started = Instant::now();
    let limited = ConnectOptions { timeout: LIMIT };
    assert_is_late(&Client::connect_with(&listener.path, limited).err().unwrap());
    assert!(started.elapsed() >= LIMIT && started.elapsed() < SOON);
}

#[test]
fn a_handshake_with_garbage_is_refused() {
    let garbage = refused(|peer| peer.send(&[0xff; 300], &[]));
    let not_hello = |error: &ConnectError| {
        matches!(error, ConnectError::Handshake { violation: Violation::NotHello, .. })
    };
    assert!(not_hello(&garbage), "{garbage}");
    let long = refused(|peer| peer.send(&vec![7; conduit::MAXIMUM_BYTES + 1], &[]));
    assert!(not_hello(&long), "{long}");
}

#[test]
fn a_late_answer_leaves_the_session_usable() {
    let (proceed, wait) = mpsc::channel::<()>();
    let (client, service) = connected(LIMIT, move |peer| {
        let (late, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Status);
        wait.recv().unwrap();
        peer.answer(late, Ok(Answer::Status(Box::new(Status { process: 1, ..Status::default() }))));
        peer.serve(&Command::Status, Answer::Status(Box::new(Status { process: 2, ..Status::default() })));
        assert!(peer.command().is_none());
    });
    let started = Instant::now();
    let late = client.status().unwrap_err();
    assert!(matches!(late, CallError::TimedOut { after: LIMIT, .. }), "{late}");
    assert!(late.to_string().contains("within 1s when asked to report its status"), "{late}");
    assert!(started.elapsed() < SOON);
    proceed.send(()).unwrap();
    assert_eq!(client.status().unwrap().process, 2);
    drop(client);
    service.join().unwrap();
}

#[test]
fn what_a_late_answer_made_is_given_back() {
    let granted = Handle::new(5, 1);
    let (client, service) = connected(LIMIT, move |peer| {
        let token = GrantToken::from_raw(3);
        let (late, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Accept { token });
        // The answer comes while the client waits for another one.
        let (status, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Status);
        let rights = memferry::Rights::READ;
        let grantor = SessionId(1);
        peer.answer(late, Ok(Answer::Accepted { handle: granted, length: 4096, rights, grantor }));
        peer.answer(status, Ok(Answer::Status(Box::default())));
        // The revocation that gives it back comes before the next command.
        peer.serve(&Command::Revoke { handle: granted }, Answer::Revoked);
        peer.serve(&Command::Status, Answer::Status(Box::default()));
    });
    let late = client.accept(GrantToken::from_raw(3)).unwrap_err();
    assert!(matches!(late, CallError::TimedOut { .. }), "{late}");
    client.status().unwrap();
    client.status().unwrap();
    drop(client);
    service.join().unwrap();
}

#[test]
fn memory_of_an_engine_that_comes_too_late_is_given_back() {
    let late_frame = Handle::new(6, 1);
    let (client, service) = connected(LIMIT, move |peer| {
        let (late, command, _) = peer.command().unwrap();
        assert!(matches!(command, Command::Allocate { .. }));
        let (status, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Status);
        peer.answer(late, Ok(Answer::Handle(late_frame)));
        peer.answer(status, Ok(Answer::Status(Box::default())));
        peer.serve(&Command::Revoke { handle: late_frame }, Answer::Revoked);
        peer.serve(&Command::Status, Answer::Status(Box::default()));
    });
    let late = client.frame(4096).home("cuda-0").alloc().unwrap_err();
    assert!(matches!(late, FrameError::Call(CallError::TimedOut { .. })), "{late}");
    client.status().unwrap();
    client.status().unwrap();
    drop(client);
    service.join().unwrap();
}

#[test]
fn a_pending_revocation_can_be_waited_for_again() {
    let (proceed, wait) = mpsc::channel::<()>();
    let first = GrantToken::from_handle(Handle::new(1, 1));
    let second = GrantToken::from_handle(Handle::new(2, 1));
    let refusal = Refusal { kind: RefusalKind::System, message: "withheld".to_owned() };
    let withheld = refusal.clone();
    let (client, service) = connected(LIMIT, move |peer| {
        let (revoke_first, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Revoke { handle: first.handle() });
        let (revoke_second, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Revoke { handle: second.handle() });
        wait.recv().unwrap();
        // In the other order. Waiting again sent no further command, so the next one is the status.
        peer.answer(revoke_second, Err(withheld));
        peer.answer(revoke_first, Ok(Answer::Revoked));
        peer.serve(&Command::Status, Answer::Status(Box::default()));
        assert!(peer.command().is_none());
    });
    for token in [first, second, first] {
        let pending = client.revoke(token).unwrap_err();
        assert!(matches!(pending, CallError::RevocationPending { after: LIMIT }), "{pending}");
        assert!(!pending.is_revoked_before());
    }
    proceed.send(()).unwrap();
    client.revoke(first).unwrap();
    let refused = client.revoke(second).unwrap_err();
    assert!(matches!(&refused, CallError::Refused(of_service) if *of_service == refusal), "{refused}");
    client.status().unwrap();
    drop(client);
    service.join().unwrap();
}

#[test]
fn threads_do_not_add_up_their_waits() {
    let (proceed, wait) = mpsc::channel::<()>();
    let (client, service) = connected(LIMIT, move |_| wait.recv().unwrap_or(()));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let late = client.status().unwrap_err();
                assert!(matches!(late, CallError::TimedOut { .. }), "{late}");
            });
        }
    });
    assert!(started.elapsed() < LIMIT * 8, "{:?}", started.elapsed());
    drop(proceed);
    service.join().unwrap();
}

#[test]
fn drops_do_not_wait_for_a_silent_service() {
    let (proceed, wait) = mpsc::channel::<()>();
    let (client, service) = connected(LIMIT, move |peer| {
        for number in 0..32 {
            let (serial, command, _) = peer.command().unwrap();
            assert!(matches!(command, Command::Accept { .. }));
            let rights = memferry::Rights::READ;
            let handle = Handle::new(number, 1);
            peer.answer(serial, Ok(Answer::Accepted { handle, length: 1, rights, grantor: SessionId(1) }));
        }
        let _ = wait.recv();
    });
    let frames: Vec<_> = (0..32).map(|_| client.accept(GrantToken::from_raw(1)).unwrap()).collect();
    let started = Instant::now();
    drop(frames);
    assert!(started.elapsed() < LIMIT * 8, "{:?}", started.elapsed());
    drop(proceed);
    service.join().unwrap();
}

#[test]
fn frames_that_are_dropped_while_the_service_is_late_are_given_back() {
    // More than the socket holds commands.
    const FRAMES: u32 = 1000;
    // A service ends a session that leaves no room for its answers.
    let at_once = |peer: &Peer, serial, answer| {
        let reply = Envelope { serial, descriptors: 0, body: Ok::<_, Refusal>(answer) };
        conduit::send(peer.0.as_fd(), &protocol::encode(&reply), &[], false).unwrap();
    };
    let (proceed, wait) = mpsc::channel::<()>();
    let (client, service) = connected(LIMIT, move |peer| {
        for number in 0..FRAMES {
            let (serial, ..) = peer.command().unwrap();
            let rights = memferry::Rights::READ;
            let handle = Handle::new(number, 1);
            peer.answer(serial, Ok(Answer::Accepted { handle, length: 1, rights, grantor: SessionId(1) }));
        }
        let _ = wait.recv();
        let mut given_back = std::collections::BTreeSet::new();
        while let Some((serial, command, _)) = peer.command() {
            match command {
                Command::Revoke { handle } => {
                    assert!(given_back.insert(handle), "{handle:?} is given back twice");
                    at_once(peer, serial, Answer::Revoked);
                }
                _ => at_once(peer, serial, Answer::Status(Box::default())),
            }
        }
        assert_eq!(given_back.len(), FRAMES as usize);
    });
    let frames: Vec<_> = (0..FRAMES).map(|_| client.accept(GrantToken::from_raw(1)).unwrap()).collect();
    drop(frames);
    drop(proceed);
    // Each call first sends what there is room for.
    (0..FRAMES).for_each(|_| drop(client.status().unwrap()));
    drop(client);
    service.join().unwrap();
}

/// Asserts that the next call says what the service did wrong, and that the connection ended.
fn assert_broken(serve: impl FnOnce(&Peer, u32) + Send + 'static) {
    let (client, service) = connected(SOON, move |peer| {
        let (serial, _, _) = peer.command().unwrap();
        serve(peer, serial);
        assert!(peer.command().is_none(), "the client ends the connection");
    });
    let broken = client.status().unwrap_err();
    assert!(matches!(broken, CallError::Protocol(_)), "{broken}");
    assert!(matches!(client.status(), Err(CallError::ServiceLost)));
    service.join().unwrap();
}

#[test]
fn answers_that_break_the_protocol_end_the_connection() {
    assert_broken(|peer, _| peer.send(&[0xaa; 40], &[]));
    assert_broken(|peer, _| peer.send(&vec![0; conduit::MAXIMUM_BYTES + 1], &[]));
    assert_broken(|peer, serial| peer.answer(serial + 1, Ok(Answer::Closed)));
    assert_broken(|peer, serial| {
        let body: Result<Answer, Refusal> = Ok(Answer::Closed);
        peer.send(&protocol::encode(&Envelope { serial, descriptors: 2, body }), &[]);
    });
}

#[test]
fn a_service_that_closes_is_lost() {
    let (client, service) = connected(SOON, |peer| drop(peer.command()));
    let lost = client.status().unwrap_err();
    assert!(matches!(lost, CallError::ServiceLost), "{lost}");
    service.join().unwrap();
}

const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nfree\u{9b}31m\u{202e}";

fn assert_clean(text: &str) {
    assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
    assert!(text.contains("\\u{1b}]0;owned") && text.contains("free"), "{text:?}");
    assert!(text.chars().count() < 1200, "{text:?}");
}

#[test]
fn texts_of_the_service_control_no_terminal() {
    let long = HOSTILE.to_owned() + &"\u{1b}".repeat(2000);
    let unwelcome = long.clone();
    let refused = refused(move |peer| {
        drop(conduit::receive(peer.0.as_fd(), true));
        peer.send(&protocol::encode_violation(&Violation::Unwelcome(unwelcome)), &[]);
    });
    assert_clean(&refused.to_string());
    let (client, service) = connected(SOON, move |peer| {
        let policy = HOSTILE.to_owned();
        let engines = vec![ExternalStatus { name: HOSTILE.to_owned(), ..ExternalStatus::default() }];
        peer.serve(
            &Command::Status,
            Answer::Status(Box::new(Status { policy, engines, ..Status::default() })),
        );
        let (serial, _, _) = peer.command().unwrap();
        peer.answer(serial, Err(Refusal { kind: RefusalKind::Quota, message: long.clone() }));
        peer.command().unwrap();
        peer.send(&protocol::encode_violation(&Violation::Unwelcome(long)), &[]);
    });
    let status = client.status().unwrap();
    assert_clean(&status.policy);
    assert_clean(&status.engines[0].name);
    let refused = client.status().unwrap_err();
    assert!(matches!(refused, CallError::Refused(_)), "{refused}");
    assert_clean(&refused.to_string());
    let ended = client.status().unwrap_err();
    assert!(matches!(ended, CallError::Ended(_)), "{ended}");
    assert_clean(&ended.to_string());
    service.join().unwrap();
}

#[test]
fn every_last_word_of_the_service_is_clean() {
    for last in [Violation::Unwelcome, Violation::Stuck, Violation::Engine] {
        let (client, service) = connected(SOON, move |peer| {
            peer.command().unwrap();
            peer.send(&protocol::encode_violation(&last(HOSTILE.to_owned())), &[]);
        });
        assert_clean(&client.status().unwrap_err().to_string());
        service.join().unwrap();
    }
}

fn unsealed(bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&memfd, bytes).unwrap();
    memfd
}

/// Opens a queue of 4 requests with the memory that `service_half` makes for its length, and that of the workers' parked words.
fn open_with(service_half: impl FnOnce(u64) -> OwnedFd + Send + 'static, parked: OwnedFd) -> OpenError {
    let (client, service) = connected(SOON, move |peer| {
        let (serial, command, _) = peer.command().unwrap();
        assert!(matches!(command, Command::OpenQueue { .. }));
        let layout = Layout::new(4).unwrap();
        let service_half = service_half(layout.service_words() as u64 * 8);
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let descriptors = [service_half.as_fd(), doorbell.as_fd(), parked.as_fd()];
        peer.answer_with(serial, Ok(Answer::Queue { queue: 0, capacity: 4 }), &descriptors);
        assert!(peer.command().is_none(), "the client ends the connection");
    });
    let refused = client.queue(4).err().unwrap();
    assert!(matches!(client.status(), Err(CallError::ServiceLost)));
    service.join().unwrap();
    refused
}

#[test]
fn memory_that_can_be_truncated_is_not_mapped() {
    let good = |bytes| memferry_shm::frame::allocate_sealed(bytes, false).unwrap().0;
    let refused = open_with(unsealed, good(4096));
    let is_unsealed = matches!(refused, OpenError::Memory(UnsafeMemory::Unsealed { .. }));
    assert!(is_unsealed && refused.to_string().contains("the service broke the protocol"), "{refused}");
    let short = |bytes| {
        let memfd = unsealed(bytes);
        rustix::fs::ftruncate(&memfd, 8).unwrap();
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        memfd
    };
    let refused = open_with(short, good(4096));
    assert!(matches!(refused, OpenError::Memory(UnsafeMemory::TooSmall { size: 8, .. })), "{refused}");
    let refused = open_with(|_| std::fs::File::open("/proc/self/exe").unwrap().into(), good(4096));
    assert!(matches!(refused, OpenError::Memory(UnsafeMemory::NotMemfd)), "{refused}");
    let refused = open_with(good, unsealed(4096));
    assert!(matches!(refused, OpenError::Memory(UnsafeMemory::Unsealed { .. })), "{refused}");
}

#[test]
fn a_queue_with_too_few_descriptors_is_closed_and_the_session_goes_on() {
    let (client, service) = connected(SOON, |peer| {
        let (serial, ..) = peer.command().unwrap();
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        peer.answer_with(serial, Ok(Answer::Queue { queue: 3, capacity: 4 }), &[doorbell.as_fd()]);
        peer.serve(&Command::CloseQueue { queue: 3 }, Answer::Closed);
        peer.serve(&Command::Revoke { handle: Handle::new(1, 1) }, Answer::Revoked);
    });
    let refused = client.queue(4).err().unwrap().to_string();
    let expected = "its answer does not match the command: a queue comes with three descriptors";
    assert!(refused.contains(expected), "{refused}");
    client.revoke(GrantToken::from_handle(Handle::new(1, 1))).unwrap();
    service.join().unwrap();
}

#[test]
fn a_frame_that_was_not_sealed_is_refused() {
    let (client, service) = connected(SOON, |peer| {
        let (serial, _, descriptors) = peer.command().unwrap();
        peer.answer(serial, Ok(Answer::Handle(Handle::new(1, 1))));
        rustix::fs::ftruncate(&descriptors[0], 0).unwrap();
        assert!(peer.command().is_none(), "the client ends the connection");
    });
    let refused = client.frame(4096).alloc().unwrap_err();
    assert!(matches!(refused, FrameError::Memory(UnsafeMemory::Unsealed { .. })), "{refused}");
    service.join().unwrap();
}

/// The end of an export of a frame of 4096 bytes that `answer` gives, for a service that gives frames at engines.
fn exported(answer: impl FnOnce(&Peer, u32) + Send + 'static) -> Result<Exported, ExportError> {
    let (client, service) = connected(SOON, move |peer| {
        let allocate = Command::Allocate { home: "gpu".to_owned(), length: 4096 };
        peer.serve(&allocate, Answer::Handle(Handle::new(1, 1)));
        let (serial, command, _) = peer.command().unwrap();
        assert_eq!(command, Command::Export { handle: Handle::new(1, 1) });
        answer(peer, serial);
        // The frame is released, unless the client has given up the connection.
        drop(peer.command());
    });
    let frame = client.frame(4096).home("gpu").alloc().unwrap();
    let exported = frame.export();
    // The fake does not answer the release.
    drop((client, frame));
    service.join().unwrap();
    exported
}

#[test]
fn exported_memory_is_what_was_announced_and_cannot_shrink() {
    let memory = Answer::Exported { kind: ExportKind::Memory, length: 4096 };
    let sealed = || memferry_shm::frame::allocate_half(8192).unwrap().0;
    let good = exported({
        let memory = memory.clone();
        move |peer, serial| peer.answer_with(serial, Ok(memory), &[sealed().as_fd()])
    });
    let good = good.unwrap();
    assert_eq!((good.kind, good.length), (ExportKind::Memory, 4096));
    assert_eq!(good.map().unwrap().length_bytes(), 4096);
    for count in [0, 2] {
        let memory = memory.clone();
        let refused = exported(move |peer, serial| {
            let sealed = sealed();
            peer.answer_with(serial, Ok(memory), &vec![sealed.as_fd(); count]);
        });
        assert!(matches!(refused, Err(ExportError::Call(CallError::Protocol(_)))), "{refused:?}");
    }
    for answer in
        [Answer::Closed, Answer::Exported { kind: ExportKind::Cuda { device: [7; 16] }, length: 4095 }]
    {
        let refused = exported(move |peer, serial| peer.answer_with(serial, Ok(answer), &[sealed().as_fd()]));
        assert!(matches!(refused, Err(ExportError::Call(CallError::Protocol(_)))), "{refused:?}");
    }
    let can_shrink = memory.clone();
    let refused =
        exported(move |peer, serial| peer.answer_with(serial, Ok(can_shrink), &[unsealed(4096).as_fd()]));
    assert!(matches!(refused, Err(ExportError::Memory(UnsafeMemory::Unsealed { .. }))), "{refused:?}");
    let long = Answer::Exported { kind: ExportKind::Memory, length: 8193 };
    let refused = exported(move |peer, serial| peer.answer_with(serial, Ok(long), &[sealed().as_fd()]));
    assert!(matches!(refused, Err(ExportError::Memory(UnsafeMemory::TooSmall { .. }))), "{refused:?}");
}
