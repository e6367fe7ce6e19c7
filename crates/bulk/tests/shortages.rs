//! A process that runs out of descriptors or address space does not blame its peer. Its own test program, because limits apply
//! to the whole process.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use memferry::Client;
use memferry_bulk::relay::{self, Guest};
use memferry_bulk::{
    ConnectError, Content, LinkRefusal, Options, ReceiveError, Receiver, RemoteUser, Sender, SharedFrame,
    connect_remote, over,
};
use memferry_shm::{conduit, frame};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const LONG: u64 = 64 << 20;
/// The variable that names the link's socket to a client in another process.
const SOCKET: &str = "MEMFERRY_SHORTAGES_SOCKET";

fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn within<T>(resource: Resource, most: u64, action: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    let limit = Rlimit { current: Some(most), maximum: before.maximum };
    setrlimit(resource, limit).unwrap();
    let done = action();
    setrlimit(resource, before).unwrap();
    done
}

/// Runs `action` with room for `more` descriptors.
fn with_descriptors<T>(more: u64, action: impl FnOnce() -> T) -> T {
    // A new descriptor gets the lowest free number.
    let lowest = rustix::io::dup(std::io::stderr()).unwrap().as_raw_fd();
    within(Resource::Nofile, lowest as u64 + more, action)
}

/// Runs `action` with a few MiB of address space left.
fn with_little_space<T>(action: impl FnOnce() -> T) -> T {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    within(Resource::As, pages * rustix::param::page_size() as u64 + LONG / 4, action)
}

fn kind_of(receiver: &mut Receiver) -> Result<u32, ReceiveError> {
    receiver.receive(SOON).map(|message| message.kind)
}

fn is_shortage(received: &Result<u32, ReceiveError>, of: u32, why: Errno) -> bool {
    matches!(received, Err(ReceiveError::Shortage { kind, source })
        if *kind == of && Errno::from_io_error(source) == Some(why))
}

fn read(receiver: &mut Receiver) -> [u8; 5] {
    let mut bytes = [0; 5];
    match receiver.receive(SOON).unwrap().content {
        Content::Range(lent) => lent.read(0, &mut bytes).unwrap(),
        Content::Bytes(_) => panic!("bytes received instead of a lent frame"),
    }
    bytes
}

fn without_descriptors(client: &Client, sender: &mut Sender, receiver: &mut Receiver) {
    let frame = SharedFrame::allocate(client, 4096).unwrap();
    frame.frame().write(0, b"frame").unwrap();
    let _loan = sender.lend_mapped(1, &frame, (0, 5), SOON).unwrap();
    let received = with_descriptors(0, || kind_of(receiver));
    assert!(is_shortage(&received, 1, Errno::MFILE), "{received:?}");
    sender.send(2, b"goes on", SOON).unwrap();
    assert_eq!(kind_of(receiver).unwrap(), 2);
    // The descriptor is lost until it is sent again.
    let _loan = sender.lend_mapped(3, &frame, (0, 5), SOON).unwrap();
    let received = kind_of(receiver);
    assert!(is_shortage(&received, 3, Errno::MFILE), "{received:?}");
    sender.forget(frame.frame().handle()).unwrap();
    let _loan = sender.lend_mapped(4, &frame, (0, 5), SOON).unwrap();
    assert_eq!(&read(receiver), b"frame");
}

fn without_address_space(client: &Client, sender: &mut Sender, receiver: &mut Receiver) {
    let frame = SharedFrame::allocate(client, LONG).unwrap();
    frame.frame().write(0, b"space").unwrap();
    for _ in 0..2 {
        let _loan = sender.lend_mapped(1, &frame, (0, 5), SOON).unwrap();
        let received = with_little_space(|| kind_of(receiver));
        assert!(is_shortage(&received, 1, Errno::NOMEM), "{received:?}");
    }
    let _loan = sender.lend_mapped(2, &frame, (0, 5), SOON).unwrap();
    assert_eq!(&read(receiver), b"space");
}

/// The only free descriptor is used for this end's own memory, so the other end's cannot be received.
fn without_descriptor_for_the_handshake(client: &Client) {
    let (one, other) = pair();
    let (memory, mapping) = frame::allocate_sealed(8192 + (1 << 20), false).unwrap();
    let id = client.identify(client.session()).unwrap().service;
    let mut hello = b"MFERBLK3".to_vec();
    hello.extend([0; 8]);
    hello.extend(id.0.to_le_bytes());
    let words = [client.session().0, 1 << 20, mapping.length_bytes() as u64];
    words.iter().for_each(|word| hello.extend(word.to_le_bytes()));
    conduit::send(other.as_fd(), &hello, &[memory.as_fd()], false).unwrap();
    let refused = with_descriptors(1, || over(one, client, Options::default()).map(drop));
    let shortage = |source| Errno::from_io_error(source) == Some(Errno::MFILE);
    assert!(
        matches!(&refused, Err(ConnectError::Shortage { source, .. }) if shortage(source)),
        "{refused:?}"
    );
}

/// A link that has no descriptor left for the memory of a client says that it is busy.
fn a_link_without_descriptors(client: &Client) {
    let path = std::env::temp_dir().join(format!("memferry-shortage-{}.sock", std::process::id()));
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    relay::prepare(socket.as_fd()).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 4).unwrap();
    // None for the memory that comes, none for its own, and none for the copy of that.
    for more in 0..3 {
        // In this process it would use descriptors, and close them while they are counted.
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "a_client_of_a_link_without_descriptors"]).env(SOCKET, &path);
        let mut process = process.stdout(Stdio::null()).spawn().unwrap();
        let connection = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        let guest = with_descriptors(more, || Guest::receive(connection, client, Duration::from_secs(20)));
        let guest = guest.map(drop);
        assert!(guest.is_err(), "{more}");
        assert!(process.wait().unwrap().success(), "{more}: {guest:?}");
    }
    let _ = std::fs::remove_file(&path);
}

/// A part of the other test, in a process of its own.
#[test]
fn a_client_of_a_link_without_descriptors() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let to = RemoteUser { node: "beta".parse().unwrap(), user: 5 };
    let client = Client::embedded().unwrap();
    let refused = connect_remote(Path::new(&path), to, "name", &client, Options::default()).map(drop);
    assert!(matches!(refused, Err(ConnectError::Link(LinkRefusal::Busy))), "{refused:?}");
}

#[test]
fn a_shortage_does_not_end_the_connection() {
    let (one, other) = pair();
    let client = Client::embedded().unwrap();
    let (mut sender, mut receiver) = std::thread::scope(|scope| {
        let there = scope.spawn(|| over(other, &client, Options::default()).unwrap().1);
        (over(one, &client, Options::default()).unwrap().0, there.join().unwrap())
    });
    without_descriptors(&client, &mut sender, &mut receiver);
    without_address_space(&client, &mut sender, &mut receiver);
    without_descriptor_for_the_handshake(&client);
    a_link_without_descriptors(&client);
}
