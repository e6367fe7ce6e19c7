//! A second reading of the slots of `memferry-bulk`, written from the layout, and the memory of a hostile end.
//!
//! ```text
//! words of both ends:  0 receiver parked, 16 sender parked, 32 and 48 wake words, 64 slots retired, 80 and 81 closed, from 96 64 slots of 8
//! from byte 8192:      an area of 1 MiB
//! slot:                sequence (15:0) | sort (39:32) | bit 40        1  kind, length or export        2..  of the sort
//! ```

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use memferry::{Client, Identity, SessionId};
use memferry_bulk::ConnectError;
use memferry_bulk::relay::Guest;
use memferry_shm::conduit;
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::storage::{MappedWords, RingStorage};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::input::Input;

pub(crate) const RETIRED: usize = 64;
pub(crate) const SENDER_CLOSED: usize = 80;
pub(crate) const RECEIVER_CLOSED: usize = 81;
const FIRST_SLOT: usize = 96;
pub(crate) const WORDS: usize = 8;
pub(crate) const SLOTS: u32 = 64;
pub(crate) const AREA_AT: u64 = 8192;
pub(crate) const AREA_BYTES: u64 = 1 << 20;
pub(crate) const MEMORY_BYTES: u64 = AREA_AT + AREA_BYTES;
const PIECE_BYTES: u64 = 128 << 10;
pub(crate) const HELLO_BYTES: usize = 56;
/// Reasons why a grant may be withheld, from 1 on.
const REASONS: u32 = 6;

/// Waits at the end of an input for the threads that it has started, which admit the memory of clients and close what they sent: the
/// fuzzer looks for leaks, and takes what a thread frees last for one. A new thread has no name yet, so they go by their numbers.
pub(crate) struct LeavesNoThread {
    before: HashSet<OsString>,
}

impl LeavesNoThread {
    pub(crate) fn new() -> Self {
        Self { before: threads().collect() }
    }
}

impl Drop for LeavesNoThread {
    fn drop(&mut self) {
        if !cfg!(fuzzing) {
            return;
        }
        for _ in 0..10_000 {
            if threads().all(|thread| self.before.contains(&thread)) {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// The numbers of this process's threads.
fn threads() -> impl Iterator<Item = OsString> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.map(|task| task.file_name())
}

/// A slot, by its words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Inline {
        kind: u32,
        bytes: Vec<u8>,
    },
    Piece {
        kind: u32,
        first: bool,
        total: u64,
        at: u64,
        length: u32,
    },
    Grant {
        index: u32,
    },
    Descriptor {
        index: u32,
    },
    Lent {
        kind: u32,
        index: u32,
        offset: u64,
        length: u64,
    },
    /// A reason other than 0: the grant is withheld.
    Remote {
        index: u32,
        reason: u32,
        token: u64,
        length: u64,
    },
}

impl Slot {
    /// The slot that the words are; `None` if they are none.
    pub(crate) fn read(words: &[u64; WORDS]) -> Option<Self> {
        let [header, named, second, third, ..] = *words;
        let kind = named as u32;
        let number = (named >> 32) as u32;
        let index = Some(number).filter(|number| *number < SLOTS);
        Some(match header >> 32 & 0xff {
            1 => {
                let all: Vec<u8> = words[3..].iter().flat_map(|word| word.to_le_bytes()).collect();
                Self::Inline { kind, bytes: all.get(..number as usize)?.to_vec() }
            }
            2 => {
                let length = u64::from(number);
                let total = second;
                let at = third;
                let is_good = length > 0 && length <= total && length <= PIECE_BYTES;
                if !is_good || at.checked_add(length)? > AREA_BYTES {
                    return None;
                }
                Self::Piece { kind, first: header >> 40 & 1 == 1, total, at, length: number }
            }
            3 => Self::Grant { index: index? },
            4 => Self::Descriptor { index: index? },
            5 => Self::Lent { kind, index: index?, offset: third, length: second },
            6 => {
                let reason = Some(kind).filter(|reason| *reason <= REASONS)?;
                Self::Remote { index: index?, reason, token: second, length: third }
            }
            _ => return None,
        })
    }

    /// Words of a slot of some sort, mostly valid.
    pub(crate) fn any(input: &mut Input<'_>) -> [u64; WORDS] {
        let shape = input.u8();
        if shape >= 0xe0 {
            return input.words();
        }
        let sort = u64::from(1 + shape % 6);
        let bit = u64::from(shape >> 5 & 1) << 40;
        let kind = u64::from(input.u8() % 4);
        let mut words = [sort << 32 | bit, kind, 0, 0, 0, 0, 0, 0];
        let index = u64::from(input.u8() % 65);
        match sort {
            1 => {
                words[1] |= u64::from(input.u8() % 42) << 32;
                words[3..].iter_mut().for_each(|word| *word = input.u64());
            }
            2 => {
                let length = u64::from(input.u32() % (PIECE_BYTES as u32 + 2)) >> (input.u8() % 18);
                let total = length + u64::from(input.u8());
                words[1] |= length << 32;
                (words[2], words[3]) = (total, u64::from(input.u32()) % (AREA_BYTES + 9));
            }
            5 => {
                words[1] |= (index % 8) << 32;
                (words[2], words[3]) = (u64::from(input.u32()), u64::from(input.u32()));
            }
            _ => {
                words[1] |= (index % 9) << 32;
                (words[2], words[3]) = (input.u64(), u64::from(input.u32()));
                (words[4], words[5]) = (input.u64(), input.u64());
            }
        }
        words
    }
}

/// Two connected sockets of packets, which name the sender's process.
pub(crate) fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    for socket in [&ours, &theirs] {
        rustix::net::sockopt::set_socket_passcred(socket, true).expect("an option of Unix sockets");
    }
    (ours, theirs)
}

/// What a link makes of the request that `send` sends from one of two sockets, and that socket. Targets that run side by side are
/// one user, so the descriptors that they have just sent may be too many for another request: then it is sent again.
pub(crate) fn send_request(link: &Client, send: impl Fn(&OwnedFd)) -> (OwnedFd, Result<Guest, ConnectError>) {
    for _ in 0..10_000 {
        let (ours, theirs) = sockets();
        send(&ours);
        match Guest::receive(theirs, link, Duration::from_secs(60)) {
            Err(ConnectError::Closing { .. }) => std::thread::sleep(Duration::from_millis(1)),
            guest => return (ours, guest),
        }
    }
    panic!("the descriptors of this user are not closed after 10,000 requests");
}

/// The end that a target plays: its memory, and that of the other end.
pub(crate) struct Hostile {
    pub(crate) socket: OwnedFd,
    pub(crate) memory: OwnedFd,
    pub(crate) words: MappedWords,
    /// Of the other end, once it has sent it.
    pub(crate) theirs: Option<MappedWords>,
    /// Slots that were written with their sequence.
    pub(crate) written: u32,
}

impl Hostile {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let (memory, words) = Self::memory();
        Self { socket, memory, words, theirs: None, written: 0 }
    }

    fn memory() -> (OwnedFd, MappedWords) {
        let (memory, mapping) = frame::allocate_sealed(MEMORY_BYTES, false).expect("memory");
        (memory, MappedWords::new(mapping).expect("aligned memory"))
    }

    /// A greeting of a client with this identity.
    pub(crate) fn greeting(identity: &Identity, session: SessionId, longest: u64) -> Vec<u8> {
        let mut bytes = b"MFERBLK3".to_vec();
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(identity.service.0.to_le_bytes());
        for word in [session.0, longest, MEMORY_BYTES] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// The end of a client that requests a channel with these bytes, and what a link makes of the request.
    pub(crate) fn request(link: &Client, bytes: &[u8]) -> (Self, Result<Guest, ConnectError>) {
        let (memory, words) = Self::memory();
        let (socket, guest) = send_request(link, |socket| {
            conduit::send(socket.as_fd(), bytes, &[memory.as_fd()], false).expect("room for a packet");
        });
        (Self { socket, memory, words, theirs: None, written: 0 }, guest)
    }

    /// Sends bytes with this end's memory.
    pub(crate) fn send_memory(&self, bytes: &[u8]) {
        conduit::send(self.socket.as_fd(), bytes, &[self.memory.as_fd()], false).expect("room for a packet");
    }

    /// Receives packets until one has the other end's memory, and returns the bytes of that.
    pub(crate) fn receive_memory(&mut self) -> Vec<u8> {
        loop {
            let packet = conduit::receive(self.socket.as_fd(), false).expect("a packet with memory");
            if let [memory] = &packet.descriptors[..] {
                self.take_memory(memory);
                return packet.bytes;
            }
        }
    }

    /// Maps the other end's memory.
    pub(crate) fn take_memory(&mut self, memory: &OwnedFd) {
        let mapping = Mapping::shared(memory.as_fd(), MEMORY_BYTES as usize, Access::ReadOnly, 4096);
        self.theirs = MappedWords::new(mapping.expect("memory of an end"));
    }

    pub(crate) fn load(&self, index: usize) -> u64 {
        self.words.word(index).load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self, index: usize, value: u64) {
        self.words.word(index % (AREA_AT as usize / 8)).store(value, Ordering::Relaxed);
    }

    /// A word of the other end's memory.
    pub(crate) fn their(&self, index: usize) -> u64 {
        self.theirs.as_ref().map_or(0, |words| words.word(index).load(Ordering::Relaxed))
    }

    /// Words of the other end's slot at a position.
    pub(crate) fn their_slot(&self, position: u32) -> [u64; WORDS] {
        std::array::from_fn(|index| self.their(slot_at(position) + index))
    }

    /// Writes the next slot.
    pub(crate) fn put(&mut self, words: &[u64; WORDS]) {
        let at = slot_at(self.written);
        self.written = self.written.wrapping_add(1);
        for (index, word) in words.iter().enumerate().skip(1) {
            self.store(at + index, *word);
        }
        self.store(at, words[0] & !0xffff | u64::from(self.written & 0xffff));
    }

    /// The slot at a position, if its sequence is there.
    pub(crate) fn slot(&self, position: u32) -> Option<[u64; WORDS]> {
        let at = slot_at(position);
        let words: [u64; WORDS] = std::array::from_fn(|index| self.load(at + index));
        (words[0] & 0xffff == u64::from(position.wrapping_add(1) & 0xffff)).then_some(words)
    }

    /// Bytes of this end's area.
    pub(crate) fn area(&self, at: u64, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.words.mapping().read(AREA_AT + at, &mut bytes).expect("inside the area");
        bytes
    }

    pub(crate) fn fill_area(&self, at: u64, bytes: &[u8]) {
        let at = at % (AREA_BYTES - bytes.len() as u64);
        self.words.mapping().write(AREA_AT + at, bytes).expect("inside the area");
    }
}

fn slot_at(position: u32) -> usize {
    FIRST_SLOT + (position % SLOTS) as usize * WORDS
}

/// Two clients of this process's own service, and what that knows of the second.
pub(crate) fn clients() -> (Client, Client, Identity) {
    let one = Client::embedded().expect("a service of this process");
    let other = Client::embedded().expect("a service of this process");
    let identity = one.identify(other.session()).expect("an open session");
    (one, other, identity)
}
