//! Peers that hold the memory that they send. Its own test program, because stuck helper threads are counted per process.
//!
//! ```text
//! held(memfd) ─ a thread writes to it from memory whose page fault nobody answers ─► the memfd's inode lock is held
//! RawPeer     ─ greeting, slots and descriptors written by hand ─► the receiver under test
//! ```
//!
//! Where the process may not use userfaultfd for the kernel's page faults, the tests say that they were skipped.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memferry::{Armed, Client};
use memferry_bulk::{ConnectError, Content, Options, ReceiveError, Receiver, Sender, over};
use memferry_shm::ring::{Producer, Slots};
use memferry_shm::storage::MappedWords;
use memferry_shm::{conduit, frame};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const NOW: Option<Duration> = Some(Duration::ZERO);
const MEMORY_BYTES: u64 = 8192 + (1 << 20);
/// Far above what a call takes that does not wait for the peer, on a busy machine.
const PROMPT: Duration = Duration::from_secs(2);

/// A memfd whose inode lock is held until this is dropped.
struct Held {
    faults: Option<OwnedFd>,
    writer: Option<JoinHandle<()>>,
}

impl Held {
    fn new(memory: &OwnedFd) -> Option<Self> {
        let (faults, source) = unanswered_page()?;
        let target = memory.try_clone().unwrap();
        let writer = std::thread::spawn(move || write_from(&target, source));
        // A fault waits: the write has the lock.
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut entries = [PollFd::new(&faults, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut entries, Some(&limit)), Ok(1), "the write does not fault");
        Some(Self { faults: Some(faults), writer: Some(writer) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Faults of the range are answered by the kernel again.
        self.faults = None;
        self.writer.take().unwrap().join().unwrap();
    }
}

/// A page that blocks each thread that touches it, and the userfaultfd that reports this; `None` where that is not permitted.
#[expect(unsafe_code, reason = "userfaultfd has no safe interface")]
fn unanswered_page() -> Option<(OwnedFd, usize)> {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    // SAFETY: makes a new descriptor, which has no other owner. The requests point to live arrays of the length they name.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
        if descriptor < 0 {
            return None;
        }
        let faults = OwnedFd::from_raw_fd(descriptor as _);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let mut api = [0xaa_u64, 0, 0];
        let mut range = [page as u64, 4096, 1, 0];
        let agreed = libc::ioctl(faults.as_raw_fd(), API as _, &mut api) == 0
            && libc::ioctl(faults.as_raw_fd(), REGISTER as _, &mut range) == 0;
        agreed.then_some((faults, page as usize))
    }
}

/// Writes a page of this process's memory to the start of a file.
#[expect(unsafe_code, reason = "no safe slice can name memory that faults for long")]
fn write_from(target: &OwnedFd, page: usize) {
    // SAFETY: the page is mapped as long as the process lives, and the kernel only reads it.
    unsafe { libc::pwrite(target.as_raw_fd(), page as *const _, 4096, 0) };
}

/// A memfd of pages that are all allocated, without seals.
fn unsealed(length: u64) -> OwnedFd {
    frame::allocate(length, memferry::Pages::Ordinary).unwrap().0
}

/// A peer that writes its greeting and slots by hand.
struct RawPeer {
    socket: OwnedFd,
    words: MappedWords,
    ring: Producer<8, 8>,
}

impl RawPeer {
    /// Connects to a receiver under test.
    fn join(client: &Client, options: Options) -> (Self, Sender, Receiver) {
        let (memory, mapping) = frame::allocate_sealed(MEMORY_BYTES, false).unwrap();
        let (socket, joined) = greet(client, &memory, options);
        let (sender, receiver) = joined.unwrap();
        let ring = Producer::new(Slots { first_word: 96, capacity: 64 });
        (Self { socket, words: MappedWords::new(mapping).unwrap(), ring }, sender, receiver)
    }

    fn slot(&mut self, sort: u64, words: [u64; 3]) {
        let [one, two, three] = words;
        self.ring.stage(&self.words, &[sort << 32, one, two, three, 0, 0, 0, 0]).unwrap();
        self.ring.publish(&self.words);
    }

    /// Sends memory as export 0 and lends its first bytes.
    fn lend(&mut self, memory: &OwnedFd, length: u64) {
        conduit::send(self.socket.as_fd(), &0_u32.to_le_bytes(), &[memory.as_fd()], false).unwrap();
        self.slot(4, [0, length, 0]);
        self.slot(5, [7, 5, 0]);
    }
}

/// Sends a greeting with this memory; returns the peer's socket and what the other end made of it.
fn greet(
    client: &Client,
    memory: &OwnedFd,
    options: Options,
) -> (OwnedFd, Result<(Sender, Receiver), ConnectError>) {
    let kind = SocketType::SEQPACKET;
    let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let id = client.identify(client.session()).unwrap().service;
    let mut hello = b"MFERBLK3".to_vec();
    hello.extend([0; 8]);
    hello.extend(id.0.to_le_bytes());
    [client.session().0, 1 << 20, MEMORY_BYTES].iter().for_each(|word| hello.extend(word.to_le_bytes()));
    conduit::send(other.as_fd(), &hello, &[memory.as_fd()], false).unwrap();
    (other, over(one, client, options))
}

fn promptly<T>(what: &str, action: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = action();
    assert!(started.elapsed() < PROMPT, "{what} took {:?}", started.elapsed());
    done
}

fn kind_of(receiver: &mut Receiver, limit: Option<Duration>) -> Result<u32, ReceiveError> {
    receiver.receive(limit).map(|message| message.kind)
}

/// A held frame costs its own connection, and no other one of the same thread waits for it.
fn held_frames_end_their_connection(client: &Client) {
    let limit = Duration::from_millis(1500);
    let options = Options { admission: limit, ..Options::default() };
    let (mut hostile, _sender, mut receiver) = RawPeer::join(client, options);
    let (mut honest, _other, mut other) = RawPeer::join(client, options);
    let memory = unsealed(1 << 20);
    let held = Held::new(&memory).unwrap();
    hostile.lend(&memory, 1 << 20);
    let started = Instant::now();
    let first = promptly("the first call", || kind_of(&mut receiver, NOW));
    assert!(matches!(first, Err(ReceiveError::TimedOut)), "{first:?}");
    assert_eq!(promptly("arming", || receiver.arm()).unwrap(), Armed::Ready);
    honest.slot(1, [3, 0, 0]);
    assert_eq!(promptly("another connection", || kind_of(&mut other, SOON)).unwrap(), 3);
    let ended = loop {
        match kind_of(&mut receiver, Some(Duration::from_millis(10))) {
            Err(ReceiveError::TimedOut) => assert!(started.elapsed() < limit + PROMPT, "it never ends"),
            other => break other,
        }
    };
    assert!(matches!(ended, Err(ReceiveError::Held { limit: of }) if of == limit), "{ended:?}");
    assert!(started.elapsed() >= limit);
    assert!(matches!(kind_of(&mut receiver, NOW), Err(ReceiveError::Broken(_))));
    promptly("dropping", || drop(receiver));
    // With a limit beyond the admission's, one call sees the end.
    let options = Options { admission: Duration::from_millis(50), ..Options::default() };
    let (mut hostile, _sender, mut receiver) = RawPeer::join(client, options);
    hostile.lend(&memory, 1 << 20);
    let ended = promptly("the only call", || kind_of(&mut receiver, None));
    assert!(matches!(ended, Err(ReceiveError::Held { .. })), "{ended:?}");
    drop(held);
}

/// Memory that is released in time arrives.
fn released_frames_arrive(client: &Client) {
    let (mut peer, _sender, mut receiver) = RawPeer::join(client, Options::default());
    let memory = unsealed(4096);
    let held = Held::new(&memory).unwrap();
    peer.lend(&memory, 4096);
    for _ in 0..3 {
        let waited = promptly("a call", || kind_of(&mut receiver, Some(Duration::from_millis(5))));
        assert!(matches!(waited, Err(ReceiveError::TimedOut)), "{waited:?}");
    }
    drop(held);
    let message = receiver.receive(SOON).unwrap();
    let Content::Range(lent) = message.content else { panic!("bytes instead of a lent frame") };
    let mut bytes = [1; 5];
    lent.read(0, &mut bytes).unwrap();
    assert_eq!((message.kind, bytes), (7, [0; 5]));
}

/// A held greeting fails after its time; a user with eight of them is refused until they are released.
fn held_greetings_are_limited(client: &Client) {
    let options = Options { handshake: Duration::from_millis(50), ..Options::default() };
    let memory = unsealed(MEMORY_BYTES);
    let held = Held::new(&memory).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let mut refused = 0;
    let holding = loop {
        match promptly("a handshake", || greet(client, &memory, options).1.map(drop)) {
            Err(ConnectError::Held { .. }) => refused += 1,
            other => break other,
        }
        assert!(refused <= 8);
    };
    assert!(
        matches!(holding, Err(ConnectError::Holding { user, stuck: 8 }) if user == own),
        "after {refused}: {holding:?}"
    );
    drop(held);
    let started = Instant::now();
    let memory = unsealed(MEMORY_BYTES);
    while let Err(error) = greet(client, &memory, Options::default()).1.map(drop) {
        assert!(matches!(error, ConnectError::Holding { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20), "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn held_memory_costs_its_sender_only() {
    let client = Client::embedded().unwrap();
    let probe = unsealed(4096);
    if Held::new(&probe).is_none() {
        println!("skipped: this process may not handle page faults of the kernel (userfaultfd)");
        return;
    }
    held_frames_end_their_connection(&client);
    released_frames_arrive(&client);
    held_greetings_are_limited(&client);
}
