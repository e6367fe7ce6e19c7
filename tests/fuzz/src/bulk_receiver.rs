//! The other process of a connection, which says anything, against a receiver and a sender.
//!
//! ```text
//! bytes ──► slots, contents, descriptors, counts ──► Receiver::receive ──► messages as a second reading of the slots has them, each once
//!       ──► send, settle, arm ──► Sender ──► the other end's view: whole messages, and never more than 64 slots of unread ones
//! ```
//!
//! What becomes of memory is compared as long as each descriptor is good and is announced: one that is not may be found later.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memferry::{Client, Identity};
use memferry_bulk::{Content, LentFrame, Options, ReceiveError, Receiver, SendError, Sender, over};
use memferry_shm::{conduit, frame};
use rustix::fs::MemfdFlags;

use crate::bulk_slot::{
    AREA_AT, AREA_BYTES, Hostile, LeavesNoThread, RECEIVER_CLOSED, RETIRED, SENDER_CLOSED, SLOTS, Slot,
    clients, sockets,
};
use crate::input::Input;

/// The longest message that the receiver takes.
const LONGEST: u64 = 1 << 17;

/// So long a receiver takes slots without a message, or waits for memory, in a call without a time limit.
const GRACE: Duration = Duration::from_millis(2);

/// Input: a byte for the session of the other end, then steps of one byte and its operands (see `step`).
pub fn bulk_receiver(data: &[u8]) {
    static CLIENTS: OnceLock<Mutex<(Client, Client, Identity)>> = OnceLock::new();
    let clients =
        CLIENTS.get_or_init(|| Mutex::new(clients())).lock().unwrap_or_else(PoisonError::into_inner);
    let _threads = LeavesNoThread::new();
    let mut input = Input::new(data);
    let mut rig = Rig::new(&clients, !input.u8().is_multiple_of(4));
    while !input.is_empty() && !rig.is_over {
        rig.step(&mut input);
        rig.check();
    }
}

/// What the slots say comes next.
#[derive(Debug)]
enum Next {
    Nothing,
    Bytes(u32, Vec<u8>),
    Range(u32, u64, u64),
    Broken,
    /// A grant that the service does not know is lent.
    Refused(u32),
    /// It depends on descriptors that are not good.
    Open,
}

/// Pieces begin at multiples of this.
const LINE: u64 = 64;

/// Which memory an export number names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Export {
    None,
    Granted,
    /// The good memory; for one message.
    Memory(bool),
}

/// Bytes of the good memory, and what they are.
const GOOD_BYTES: u64 = 4096;

fn good_byte(at: u64) -> u8 {
    ((at * 3) >> 2) as u8
}

/// A second reading of what was received so far.
struct Reading {
    /// Slots taken, and of those that lend a range and are not given back yet the numbers.
    taken: u32,
    lent: VecDeque<u32>,
    exports: [Export; SLOTS as usize],
    partial: Option<(u32, u64, Vec<u8>)>,
    has_session: bool,
    /// Exports whose good memory was sent and not announced yet.
    sent: VecDeque<u32>,
}

impl Reading {
    /// Slots that are finished with: all before the first that is lent.
    fn retired(&self) -> u32 {
        self.lent.front().copied().unwrap_or(self.taken)
    }

    fn next(&mut self, peer: &Hostile) -> Next {
        loop {
            let Some(words) = peer.slot(self.taken) else { return Next::Nothing };
            if self.taken - self.retired() >= SLOTS {
                return Next::Broken;
            }
            let number = self.taken;
            self.taken += 1;
            let before = self.partial.take();
            match Slot::read(&words) {
                None | Some(Slot::Remote { .. }) => return Next::Broken,
                Some(Slot::Inline { kind, bytes }) => return Next::Bytes(kind, bytes),
                Some(Slot::Piece { kind, first, total, at, length }) => {
                    if total > LONGEST {
                        return Next::Broken;
                    }
                    let mut all = match before.filter(|_| !first) {
                        None => Vec::new(),
                        Some((of, whole, bytes)) if (of, whole) == (kind, total) => bytes,
                        Some(_) => return Next::Broken,
                    };
                    all.extend(peer.area(at, length));
                    match all.len() as u64 {
                        length if length > total => return Next::Broken,
                        length if length == total => return Next::Bytes(kind, all),
                        _ => self.partial = Some((kind, total, all)),
                    }
                }
                Some(Slot::Grant { .. }) if !self.has_session => return Next::Broken,
                Some(Slot::Grant { index }) => self.exports[index as usize] = Export::Granted,
                Some(Slot::Descriptor { index }) => {
                    let is_good = words[2] == GOOD_BYTES && self.sent.pop_front() == Some(index);
                    if !is_good {
                        return Next::Open;
                    }
                    self.exports[index as usize] = Export::Memory(words[0] >> 40 & 1 == 1);
                }
                Some(Slot::Lent { kind, index, offset, length }) => match self.exports[index as usize] {
                    Export::None => return Next::Broken,
                    Export::Granted => return Next::Refused(kind),
                    Export::Memory(once) => {
                        if once {
                            self.exports[index as usize] = Export::None;
                        }
                        self.lent.push_back(number);
                        return Next::Range(kind, offset, length);
                    }
                },
            }
        }
    }
}

struct Rig {
    sender: Sender,
    receiver: Receiver,
    peer: Hostile,
    reading: Reading,
    /// Ranges that were received and not given back, the oldest first.
    held: VecDeque<LentFrame>,
    /// The slots can no more be read along: memory that a thread admits was in them.
    is_open: bool,
    slots_sent: u32,
    /// Bytes of the area that each slot sent uses, but for what a piece skips at the area's end.
    area_used: Vec<u64>,
    /// Slots of the sender that this end said to have finished with, at most.
    claimed: u32,
    good: OwnedFd,
    is_over: bool,
}

impl Rig {
    fn new((one, other, identity): &(Client, Client, Identity), has_session: bool) -> Self {
        let (ours, theirs) = sockets();
        let mut peer = Hostile::new(ours);
        let mut identity = *identity;
        if !has_session {
            identity.service.0 ^= 1;
        }
        peer.send_memory(&Hostile::greeting(&identity, other.session(), 1 << 16));
        let patience = Duration::from_secs(60);
        let options = Options { longest: LONGEST, handshake: patience, admission: patience };
        let (sender, receiver) = over(theirs, one, options).expect("a good greeting");
        let greeting = peer.receive_memory();
        assert_eq!(greeting[40..48], LONGEST.to_le_bytes());
        assert_eq!((sender.longest(), sender.can_grant()), (1 << 16, has_session));
        let exports = [Export::None; SLOTS as usize];
        let (lent, sent, held) = Default::default();
        let reading = Reading { taken: 0, lent, exports, partial: None, has_session, sent };
        let (good, memory) = frame::allocate(GOOD_BYTES, Default::default()).expect("memory");
        let bytes: Vec<u8> = (0..GOOD_BYTES).map(good_byte).collect();
        memory.write(0, &bytes).expect("inside the memory");
        let slots_sent = 0;
        let area_used = Vec::new();
        let claimed = 0;
        Self {
            sender,
            receiver,
            peer,
            reading,
            held,
            is_open: false,
            slots_sent,
            area_used,
            claimed,
            good,
            is_over: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let claim = self.peer.load(RETIRED) as u32;
        if claim <= self.slots_sent {
            self.claimed = self.claimed.max(claim);
        }
        match input.u8() % 13 {
            0 | 1 => self.peer.put(&Slot::any(input)),
            2 => self.peer.store(usize::from(input.u8()) << 2 | usize::from(input.u8() % 4), input.u64()),
            3 => self.peer.fill_area(u64::from(input.u32()), &[input.u8(); 200]),
            4 | 5 => self.receive(),
            6 => self.gift(input.u8(), input.u8()),
            7 => self.give_back(input.u8()),
            8 => self.send(input.u8(), u64::from(input.u32()) % 70_000),
            9 => {
                // As an honest receiver: it has finished with some more.
                let open = self.slots_sent.wrapping_sub(self.peer.load(RETIRED) as u32).min(SLOTS);
                let count = (self.peer.load(RETIRED) as u32).wrapping_add(u32::from(input.u8()) % (open + 1));
                self.peer.store(RETIRED, u64::from(count));
            }
            10 => self.is_over = self.receiver.arm().is_err(),
            11 => self.is_over = self.sender.arm().is_err(),
            _ => self.lend(input.u8(), input.u32(), input.u8()),
        }
    }

    fn receive(&mut self) {
        let is_ready = self.receiver.ready();
        let was_open = self.is_open;
        let expected = if was_open { Next::Open } else { self.reading.next(&self.peer) };
        let is_closed = self.peer.load(SENDER_CLOSED) != 0;
        let begun = Instant::now();
        let received = self.receiver.receive(Some(Duration::ZERO));
        let is_late = begun.elapsed() >= GRACE;
        match (received, expected) {
            // The machine may have stood still: slots that the second reading has are not taken yet.
            (Err(ReceiveError::TimedOut), _) if is_late => self.is_open = true,
            (Err(ReceiveError::TimedOut), Next::Nothing) => assert!(!is_closed),
            (Err(ReceiveError::TimedOut), Next::Open) if was_open => {}
            (Ok(message), Next::Bytes(kind, bytes)) => {
                let Content::Bytes(got) = message.content else { panic!("a range, expected bytes") };
                assert_eq!((message.kind, got), (kind, &bytes[..]));
                assert!(is_ready);
            }
            (Ok(message), Next::Range(kind, offset, length)) => {
                let Content::Range(lent) = message.content else { panic!("bytes, expected a range") };
                assert_eq!((message.kind, lent.kind(), lent.length()), (kind, kind, length));
                check_good(&lent, offset);
                self.held.push_back(lent);
            }
            (Ok(message), Next::Open) => {
                self.is_open = true;
                if let Content::Bytes(bytes) = message.content {
                    assert!(bytes.len() as u64 <= LONGEST);
                } else if let Content::Range(lent) = message.content {
                    check_range(&lent);
                    self.held.push_back(lent);
                }
            }
            (Err(ReceiveError::Broken(_)), Next::Broken) => self.broken(),
            (Err(ReceiveError::Refused { kind, .. }), Next::Refused(of)) => assert_eq!(kind, of),
            (Err(ReceiveError::Broken(_)), Next::Open) => self.broken(),
            (Err(ReceiveError::Held { .. } | ReceiveError::MemoryFault), Next::Open) => self.is_over = true,
            (Err(ReceiveError::Refused { .. } | ReceiveError::Shortage { .. }), Next::Open) => {
                self.is_open = true
            }
            (Err(ReceiveError::Closed), Next::Open) => assert!(is_closed),
            (Err(ReceiveError::Closed), Next::Nothing) => assert!(is_closed),
            (other, expected) => panic!("{other:?}, expected {expected:?}"),
        }
    }

    /// A connection that was broken stays so.
    fn broken(&mut self) {
        let again = self.receiver.receive(Some(Duration::ZERO));
        assert!(matches!(again, Err(ReceiveError::Broken(_))), "{again:?} of a broken connection");
        self.is_over = true;
    }

    /// Lends a part of the good memory.
    fn lend(&mut self, index: u8, offset: u32, length: u8) {
        let index = u32::from(index % 8);
        let descriptors = [self.good.as_fd()];
        if conduit::send(self.peer.socket.as_fd(), &index.to_le_bytes(), &descriptors, false).is_err() {
            self.is_open = true;
            return;
        }
        self.reading.sent.push_back(index);
        let named = u64::from(index) << 32;
        let once = u64::from(length & 1) << 40;
        self.peer.put(&[4 << 32 | once, named, GOOD_BYTES, 0, 0, 0, 0, 0]);
        let [offset, length] = [u64::from(offset) % 4200, u64::from(length)];
        self.peer.put(&[5 << 32, named | 3, length, offset, 0, 0, 0, 0]);
    }

    /// Sends something on the socket.
    fn gift(&mut self, number: u8, what: u8) {
        let number = u32::from(number % 9).to_le_bytes();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = || rustix::fs::memfd_create("lent", flags).ok();
        let descriptors: Vec<OwnedFd> = match what % 8 {
            0..=2 => frame::allocate(u64::from(what) << 9 | 0x1000, Default::default())
                .map(|(memory, _)| memory)
                .into_iter()
                .collect(),
            3 => memory().into_iter().collect(),
            4 => rustix::pipe::pipe().map(|(read, _)| read).into_iter().collect(),
            5 => memory().into_iter().chain(memory()).collect(),
            _ => Vec::new(),
        };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let length = if what < 200 { 4 } else { usize::from(what % 5) };
        let _ = conduit::send(self.peer.socket.as_fd(), &number[..length.min(4)], &borrowed, false);
        self.is_open |= !descriptors.is_empty() || length != 4;
    }

    fn give_back(&mut self, which: u8) {
        if self.held.is_empty() {
            return;
        }
        let index = usize::from(which) % self.held.len();
        let lent = self.held.remove(index);
        lent.as_ref().into_iter().for_each(check_range);
        drop(lent);
        if !self.is_open {
            self.reading.lent.remove(index);
        }
    }

    fn send(&mut self, kind: u8, length: u64) {
        let bytes: Vec<u8> = (0..length).map(|index| (index as u8) ^ kind).collect();
        let is_too_long = length > self.sender.longest();
        match self.sender.send(u32::from(kind), &bytes, Some(Duration::ZERO)) {
            Ok(()) => {
                assert!(!is_too_long, "{length} bytes were sent");
                self.view(u32::from(kind), &bytes);
            }
            Err(error) => {
                let is_right = match error {
                    SendError::TooLong { .. } => is_too_long,
                    SendError::Closed => self.peer.load(RECEIVER_CLOSED) != 0,
                    SendError::Broken(_) => !self.is_possible_count(),
                    SendError::TimedOut => !self.is_possible_count() || self.may_be_full(length),
                    _ => false,
                };
                assert!(is_right, "{length} bytes are refused: {error}");
                self.is_over = !is_too_long;
            }
        }
    }

    /// Whether this end may have finished with as many slots as it says: no more than were sent, and no fewer than it said before.
    fn is_possible_count(&self) -> bool {
        (self.claimed..=self.slots_sent).contains(&(self.peer.load(RETIRED) as u32))
    }

    /// Whether all slots are in use, or so much of the area that a message may not fit. A message of this target is one piece.
    fn may_be_full(&self, length: u64) -> bool {
        let unread = &self.area_used[self.claimed as usize..];
        let used: u64 = unread.iter().sum();
        // One piece in use skipped the end of the area, and this one may do so.
        let skipped = 2 * self.sender.longest();
        unread.len() == SLOTS as usize || used + length.next_multiple_of(LINE) + skipped > AREA_BYTES
    }

    /// The message is in the other end's view, from the slot after the last one on.
    fn view(&mut self, kind: u32, bytes: &[u8]) {
        let mut got = Vec::new();
        loop {
            let position = self.slots_sent;
            let words = self.peer.their_slot(position);
            assert_eq!(words[0] & 0xffff, u64::from(position.wrapping_add(1) & 0xffff), "a slot is missing");
            self.slots_sent += 1;
            match Slot::read(&words).expect("a good slot") {
                Slot::Inline { kind: of, bytes } => {
                    assert_eq!(of, kind);
                    got = bytes;
                    self.area_used.push(0);
                }
                Slot::Piece { kind: of, first: is_first, total, at, length } => {
                    assert_eq!((of, total), (kind, bytes.len() as u64));
                    assert_eq!(is_first, got.is_empty());
                    let mut part = vec![0; length as usize];
                    let words = self.peer.theirs.as_ref().expect("memory of the other end");
                    assert!(at + u64::from(length) <= AREA_BYTES);
                    words.mapping().read(AREA_AT + at, &mut part).expect("inside the area");
                    got.extend(part);
                    self.area_used.push(u64::from(length).next_multiple_of(LINE));
                }
                other => panic!("{other:?} instead of bytes"),
            }
            if got.len() >= bytes.len() {
                break;
            }
        }
        assert_eq!(got, bytes);
        assert!(self.slots_sent - self.claimed <= SLOTS, "a slot was overwritten that is not read");
    }

    fn check(&self) {
        // Never more than was taken, and not what is held.
        let retired = self.peer.their(RETIRED) as u32;
        if !self.is_open && !self.is_over {
            assert_eq!(retired, self.reading.retired());
        }
        assert_eq!(self.peer.their(RECEIVER_CLOSED), 0);
    }
}

/// A range of the good memory has its bytes, as far as it is in it.
fn check_good(lent: &LentFrame, offset: u64) {
    let mut bytes = vec![0; lent.length().min(2 * GOOD_BYTES) as usize];
    let is_inside = offset.checked_add(lent.length()).is_some_and(|end| end <= GOOD_BYTES);
    assert_eq!(lent.read(0, &mut bytes).is_ok(), is_inside && bytes.len() as u64 == lent.length());
    let is_right = (offset..).zip(&bytes).all(|(at, byte)| *byte == good_byte(at));
    assert!(!is_inside || is_right, "other bytes were lent");
}

/// A range of mapped memory is read within its bounds, or not at all.
fn check_range(lent: &LentFrame) {
    let length = lent.length();
    let mut bytes = [0; 16];
    assert!(lent.read(length, &mut bytes).is_err(), "bytes behind the range");
    assert!(lent.read(u64::MAX - 3, &mut bytes).is_err(), "bytes behind the range");
    let _ = lent.read(0, &mut bytes[..length.min(16) as usize]);
}
