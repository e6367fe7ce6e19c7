//! A client that breaks the rules of the socket loses its session, without effect on other clients.

mod harness;

use std::os::fd::{AsFd, AsRawFd};

use harness::{Raw, Service};
use memferry::{Handle, Rights};
use memferry_service::protocol::{
    self, Answer, Command, Envelope, Hello, RefusalKind, Reply, VERSIONS, Violation, Welcome,
};
use memferry_shm::conduit::{self, MAXIMUM_BYTES};
use memferry_shm::frame::{self, Pages};
use memferry_shm::queue_pair::Layout;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};

#[test]
fn a_wrong_handshake_ends_the_connection() {
    let service = Service::start(&[]);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MEMFERRY", &[0; 20], &[0xff; MAXIMUM_BYTES]] {
        let raw = Raw::connect(&service.socket);
        raw.send(bytes, &[]);
        assert_eq!(raw.farewell(), Violation::NotHello);
    }
    let raw = Raw::connect(&service.socket);
    raw.send(&[1; MAXIMUM_BYTES + 1], &[]);
    assert_eq!(raw.farewell(), Violation::TooLong);
    let raw = Raw::connect(&service.socket);
    let hello = Hello { versions: VERSIONS, features: 0 }.encode();
    // Since version 6.16, Linux refuses the descriptor itself.
    if conduit::send(raw.socket.as_fd(), &hello, &[raw.socket.as_fd()], true) != Err(rustix::io::Errno::PERM)
    {
        assert_eq!(raw.farewell(), Violation::Descriptors { expected: 0, got: 1 });
    }
    service.assert_serves();
}

#[test]
fn unknown_versions_are_refused() {
    let service = Service::start(&[]);
    for versions in [(6, 9), (0, 4), (9, 5)] {
        let raw = Raw::connect(&service.socket);
        raw.send(&Hello { versions, features: u64::MAX }.encode(), &[]);
        let answer = raw.receive().unwrap();
        assert_eq!(
            Welcome::decode(&answer.bytes),
            Err(Violation::Version { client: versions, service: VERSIONS })
        );
    }
    let raw = Raw::connect(&service.socket);
    raw.send(&Hello { versions: (1, 9), features: u64::MAX }.encode(), &[]);
    assert_eq!(Welcome::decode(&raw.receive().unwrap().bytes).unwrap().version, VERSIONS.1);
}

#[test]
fn malformed_messages_end_the_session() {
    let service = Service::start(&[]);
    let mut raw = Raw::open(&service.socket);
    let whole = raw.encode(Command::Revoke { handle: Handle::new(70_000, 70_000) });
    for length in 0..whole.len() {
        let raw = Raw::open(&service.socket);
        if length == 0 {
            continue; // An empty packet is the end of a stream of packets.
        }
        raw.send(&whole[..length], &[]);
        assert_eq!(raw.farewell(), Violation::Malformed, "{length} bytes");
    }
    let raw = Raw::open(&service.socket);
    raw.send(&[0xff; 300], &[]);
    assert_eq!(raw.farewell(), Violation::Malformed);
    let mut raw = Raw::open(&service.socket);
    let first = raw.encode(Command::Status);
    raw.send(&first, &[]);
    raw.receive().unwrap();
    raw.send(&first, &[]);
    assert_eq!(raw.farewell(), Violation::Serial { expected: 2, got: 1 });
    let raw = Raw::open(&service.socket);
    raw.send(&Hello { versions: VERSIONS, features: 0 }.encode(), &[]);
    assert_eq!(raw.farewell(), Violation::Malformed, "a second handshake");
    service.assert_serves();
}

#[test]
fn unannounced_descriptors_end_the_session() {
    let service = Service::start(&[]);
    let (memfd, _mapping) = frame::allocate(4096, Pages::Ordinary).unwrap();
    let register = Command::Register { length: 4096, rights: Rights::all() };
    let _observer = service.client();
    let before = service.descriptors();
    for (announced, body, sent) in [
        (1, register.clone(), 2),
        (1, register.clone(), 0),
        (0, register.clone(), 1),
        (1, Command::Status, 1),
        (0, Command::Status, 3),
    ] {
        let raw = Raw::open(&service.socket);
        let bytes = protocol::encode(&Envelope { serial: 1, descriptors: announced, body });
        raw.send(&bytes, &vec![memfd.as_fd(); sent]);
        let violation = raw.farewell();
        assert!(matches!(violation, Violation::Descriptors { .. }), "{violation}");
    }
    harness::wait_until("descriptors closed", || service.descriptors() == before);
    service.assert_serves();
}

#[test]
fn other_descriptors_than_frames_are_refused() {
    let service = Service::start(&[]);
    let mut raw = Raw::open(&service.socket);
    let memfd = |flags, size| {
        let descriptor = rustix::fs::memfd_create("x", flags | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&descriptor, size).unwrap();
        descriptor
    };
    let (sound, _mapping) = frame::allocate(8192, Pages::Ordinary).unwrap();
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", sound.as_raw_fd())).unwrap();
    let write_only =
        std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", sound.as_raw_fd())).unwrap();
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let sparse = memfd(MemfdFlags::ALLOW_SEALING, 8192);
    let unsealable = memfd(MemfdFlags::empty(), 8192);
    let small = memfd(MemfdFlags::ALLOW_SEALING, 4096);
    let closed_to_seals = memfd(MemfdFlags::ALLOW_SEALING, 8192);
    rustix::fs::fcntl_add_seals(&closed_to_seals, SealFlags::SEAL).unwrap();
    let executable = std::fs::File::open("/proc/self/exe").unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let own_socket = raw.socket.try_clone().unwrap();
    let cases = [
        ("read-only", read_only.as_fd()),
        ("write-only", write_only.as_fd()),
        ("pipe", pipe.as_fd()),
        ("sparse", sparse.as_fd()),
        ("unsealable", unsealable.as_fd()),
        ("too small", small.as_fd()),
        ("closed to seals", closed_to_seals.as_fd()),
        ("regular file", executable.as_fd()),
        ("device", zero.as_fd()),
        ("socket", own_socket.as_fd()),
    ];
    for (name, descriptor) in cases {
        let command = Command::Register { length: 8192, rights: Rights::all() };
        let refused = raw.command(command, &[descriptor]).0.expect_err(name);
        assert_eq!(refused.kind, RefusalKind::Frame, "{name}: {refused}");
    }
    for length in [0, 1, 4096, 8191, 8193, u64::MAX] {
        let command = Command::Register { length, rights: Rights::all() };
        let refused = raw.command(command, &[sound.as_fd()]).0.expect_err("a wrong length");
        assert!(matches!(refused.kind, RefusalKind::Frame | RefusalKind::Quota), "{length}: {refused}");
    }
    let none = Command::Register { length: 8192, rights: Rights::empty() };
    assert_eq!(raw.command(none, &[sound.as_fd()]).0.unwrap_err().kind, RefusalKind::Argument);
    let command = Command::Register { length: 8192, rights: Rights::all() };
    assert!(matches!(raw.command(command, &[sound.as_fd()]).0, Ok(Answer::Handle(_))));
}

#[test]
fn a_registered_descriptor_cannot_change_its_frame() {
    let service = Service::start(&[]);
    let mut raw = Raw::open(&service.socket);
    let (descriptor, _mapping) = frame::allocate(8192, Pages::Ordinary).unwrap();
    let command = Command::Register { length: 8192, rights: Rights::all() };
    raw.command(command, &[descriptor.as_fd()]).0.unwrap();
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    for holder in [descriptor.as_fd(), again.as_fd()] {
        use memferry_shm::mapping::{Access, Mapping};
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(Mapping::shared(holder, 8192, Access::ReadWrite, 4096).is_err());
        assert!(rustix::fs::fallocate(holder, punch, 0, 4096).is_err());
        assert!(rustix::fs::ftruncate(holder, 0).is_err());
        assert!(rustix::fs::ftruncate(holder, 1 << 20).is_err());
        assert!(rustix::io::pwrite(holder, b"x", 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(holder, SealFlags::WRITE).is_err());
    }
}

#[test]
fn a_client_that_reads_no_reply_is_ended() {
    let service = Service::start(&[]);
    let mut raw = Raw::open(&service.socket);
    let _small = rustix::net::sockopt::set_socket_recv_buffer_size(&raw.socket, 1);
    for _ in 0..100_000 {
        let bytes = raw.encode(Command::Status);
        if memferry_shm::conduit::send(raw.socket.as_fd(), &bytes, &[], true).is_err() {
            return service.assert_serves();
        }
    }
    panic!("the service took 100,000 commands of a client that did not read a reply");
}

#[test]
fn every_quota_is_enforced() {
    let service = Service::start(&[
        "--quota-sessions=3",
        "--quota-frames=2",
        "--quota-bytes=12288",
        "--quota-queues=2",
        "--quota-capabilities=4",
    ]);
    let client = service.client();
    let over = |text: String, what: &str| assert!(text.contains("quota") && text.contains(what), "{text}");
    over(client.frame(16384).alloc().unwrap_err().to_string(), "bytes");
    let first = client.frame(4096).alloc().unwrap();
    let second = client.frame(4096).alloc().unwrap();
    over(client.frame(4096).alloc().unwrap_err().to_string(), "frames");
    drop(second);
    let second = client.frame(8192).alloc().unwrap();
    let _queues = [client.queue(2).unwrap(), client.queue(2).unwrap()];
    over(client.queue(2).err().unwrap().to_string(), "queues");
    let _derived =
        [client.derive(&first, Rights::READ).unwrap(), client.derive(&second, Rights::READ).unwrap()];
    over(client.derive(&first, Rights::READ).unwrap_err().to_string(), "capabilities");
    let others = [service.client(), service.client()];
    over(others[0].frame(8192).alloc().unwrap_err().to_string(), "quota");
    let refused = memferry::Client::connect(&service.socket).err().unwrap().to_string();
    over(refused, "sessions");
    drop(others);
    service.wait_for_sessions(&client, 1);
    drop(service.client());
}

#[test]
fn invalid_queues_are_refused() {
    let service = Service::start(&[]);
    let mut raw = Raw::open(&service.socket);
    let memory = memferry_shm::frame::allocate_half(1 << 20).unwrap().0;
    for capacity in [0, 1, 3, 5000, 8192, u32::MAX] {
        let refused = raw.command(Command::OpenQueue { capacity }, &[memory.as_fd()]).0.unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Argument, "{refused}");
    }
    let refused = raw.command(Command::OpenQueue { capacity: 64 }, &[memory.as_fd()]).0.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Frame, "the length is that of another capacity: {refused}");
    let null = std::fs::File::open("/dev/null").unwrap();
    let refused = raw.command(Command::OpenQueue { capacity: 64 }, &[null.as_fd()]).0.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Frame, "no memfd: {refused}");
    let refused = raw.command(Command::CloseQueue { queue: 9 }, &[]).0.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Argument);
    service.assert_serves();
}

/// A socket whose last close lingers until the other end, returned with it, is gone.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    // Unsent data and a long linger.
    rustix::net::sockopt::set_socket_linger(&sender, Some(std::time::Duration::from_secs(30))).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 16]).is_ok() {}
    (sender, receiver)
}

/// Sends a packet with the last reference to its descriptor, so that the service has the only one.
fn send_last(service: &Service, raw: &Raw, bytes: &[u8], descriptor: std::net::TcpStream) {
    service.stop();
    raw.send(bytes, &[descriptor.as_fd()]);
    drop(descriptor);
    service.resume();
}

#[test]
fn a_slow_close_does_not_delay_other_clients() {
    let service = Service::start(&[]);
    let observer = service.client();
    for malformed in [true, false] {
        let (sender, _receiver) = lingering();
        let mut raw = Raw::open(&service.socket);
        let register = raw.encode(Command::Register { length: 4096, rights: Rights::all() });
        send_last(&service, &raw, if malformed { b"nonsense" } else { &register }, sender);
        let started = std::time::Instant::now();
        observer.status().unwrap();
        harness::assert_moves_bytes(&observer);
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    }
}

#[test]
fn pending_closes_are_bounded() {
    const MAX: usize = 2000;
    let service = Service::start(&[]);
    let observer = service.client();
    let mut raw = Raw::open(&service.socket);
    // A small send buffer, so that fewer commands wait than replies fit: a client that does not read replies is disconnected.
    rustix::net::sockopt::set_socket_send_buffer_size(&raw.socket, 16 << 10).unwrap();
    let register = Command::Register { length: 4096, rights: Rights::all() };
    // As many as threads close descriptors of a user. All at once: a signal would end a slow close.
    service.stop();
    let receivers = [(); 4].map(|()| {
        let (sender, receiver) = lingering();
        let bytes = raw.encode(register.clone());
        raw.send(&bytes, &[sender.as_fd()]);
        receiver
    });
    service.resume();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    let mut next = raw.encode(register.clone());
    let mut sent = 0;
    // Until the service stops reading: no more fits, and no reply comes.
    while sent < MAX {
        if conduit::send(raw.socket.as_fd(), &next, &[nothing.as_fd()], false).is_ok() {
            next = raw.encode(register.clone());
            sent += 1;
        } else {
            let mut answered = [PollFd::new(&raw.socket, PollFlags::IN)];
            if rustix::event::poll(&mut answered, Some(&Timespec { tv_sec: 2, tv_nsec: 0 })).unwrap() == 0 {
                break;
            }
        }
        while conduit::receive(raw.socket.as_fd(), false).is_ok() {}
    }
    assert!(sent < MAX, "the service took all {sent} commands");
    let descriptors = service.descriptors();
    assert!(descriptors < 600, "{descriptors} descriptors in the service");
    // Clients that are refused meanwhile do not pile up either.
    for _ in 0..MAX {
        assert!(matches!(Raw::connect(&service.socket).farewell(), Violation::Unwelcome(_)));
    }
    let descriptors = service.descriptors();
    assert!(descriptors < 600, "{descriptors} descriptors in the service");
    // After the slow close the service reads again.
    drop(receivers);
    raw.send(&next, &[nothing.as_fd()]);
    observer.status().unwrap();
    let last = 5 + sent as u32;
    let answered = |packet: conduit::Packet| protocol::decode::<Reply>(&packet.bytes).unwrap().serial == last;
    assert!(std::iter::from_fn(|| raw.receive()).any(answered));
}

#[test]
fn memory_of_closed_queues_is_reused() {
    let service = Service::start(&["--quota-queues=2"]);
    let mut raw = Raw::open(&service.socket);
    let mut held = Vec::new();
    let mut inodes = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let started = std::time::Instant::now();
        // The worker releases a closed queue some time later; until then the quota is used up.
        let (queue, descriptors) = loop {
            let length = Layout::new(64).unwrap().client_bytes();
            let half = memferry_shm::frame::allocate_half(length).unwrap().0;
            let (answer, descriptors) = raw.command(Command::OpenQueue { capacity: 64 }, &[half.as_fd()]);
            if let Ok(Answer::Queue { queue, .. }) = answer {
                break (queue, descriptors);
            }
            assert!(started.elapsed() < harness::SOON);
        };
        inodes.insert(rustix::fs::fstat(&descriptors[0]).unwrap().st_ino);
        held.push(descriptors);
        raw.command(Command::CloseQueue { queue }, &[]).0.unwrap();
    }
    assert!(inodes.len() <= 2, "{} memories are in use with a quota of two queues", inodes.len());
}
