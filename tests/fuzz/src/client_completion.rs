//! A service that writes anything anywhere in its half of a queue, against a client's queue.
//!
//! ```text
//! bytes ──► submit, stage, poll, wait, cancel ──► Queue ──► completions: each transfer ends once, by words that are there
//!       ──► complete, forge, scribble ──► service's half ─┘    and none is left when the service closes the queue
//! ```
//!
//! The service is played (`played_service`): the client's session, its frame and its socket are those of a program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use memferry::{
    Arrival, Client, ConnectOptions, Done, Failure, Frame, Queue, TicketId, TransferError, compare, copy,
    crc32c, nop, repeat,
};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{COMPLETION_WORDS, Layout, ServiceEnd};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::{Completion, EngineKind, Outcome, wire};

use crate::honest::Honest;
use crate::input::Input;
use crate::played_service::{Halves, Played, locked};

const FRAME_BYTES: u64 = 4096;

/// Input: a byte for the capacity, then steps of one byte and its operands (see `step`).
pub fn client_completion(data: &[u8]) {
    static SESSION: OnceLock<Mutex<Option<Session>>> = OnceLock::new();
    let mut session = locked(SESSION.get_or_init(Mutex::default));
    let mut input = Input::new(data);
    let capacity = 2 << (input.u8() % 4);
    let kept = session.get_or_insert_with(Session::open);
    let mut rig = match kept.rig(capacity) {
        Some(rig) => rig,
        // The machine stood still for longer than the client waits.
        None => session.insert(Session::open()).rig(capacity).expect("a played service answers"),
    };
    while !input.is_empty() {
        rig.step(&mut input);
        rig.check();
    }
    rig.end();
}

/// A client of a played service, which is used again and again.
struct Session {
    client: Client,
    frame: Frame,
    queues: Receiver<Halves>,
    /// Its thread ends with it.
    _played: Played,
}

impl Session {
    fn open() -> Self {
        let played = Played::start("client_completion");
        let (sender, queues) = channel();
        played.begin(Box::new(Honest::new("memferry-fuzz-completion", sender)));
        let options = ConnectOptions { timeout: Duration::from_secs(60) };
        let client = Client::connect_with(played.path(), options).expect("a played service welcomes");
        let frame = client.frame(FRAME_BYTES).alloc().expect("it registers a frame");
        Self { client, frame, queues, _played: played }
    }

    fn rig(&self, capacity: u32) -> Option<Rig> {
        let queue = self.client.queue(capacity).ok()?;
        let Halves { client, service } = self.queues.recv().ok()?;
        let own = MappedWords::new(service)?;
        let layout = Layout::new(capacity).ok()?;
        let end = ServiceEnd::new(layout, MappedWords::new(client)?, own.clone(), Fences::Full).ok()?;
        let frame = self.frame.clone();
        let (open, tickets, written, words) = Default::default();
        Some(Rig { queue, frame, end, own, open, tickets, written, words })
    }
}

struct Rig {
    queue: Queue,
    frame: Frame,
    /// The service's end, for completions that look right.
    end: ServiceEnd<MappedWords>,
    /// The service's half of the queue, which the client reads.
    own: MappedWords,
    /// The transfers that have not ended, with their bytes.
    open: BTreeMap<TicketId, u64>,
    /// Tickets in the order of submission, to name them by a byte.
    tickets: Vec<TicketId>,
    /// Tags in words that the service wrote: only their transfers may end, unless the service is lost.
    written: BTreeSet<u32>,
    /// All words that the service wrote: a completion has as many bytes as its transfer, or as one of them says.
    words: BTreeSet<u64>,
}

impl Rig {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 14 {
            0 => self.submit(input.u8(), input.u8(), false),
            1 => self.submit(input.u8(), input.u8(), true),
            2 => self.queue.publish(),
            3 => while self.end.pop().is_some() {},
            4 => self.complete(input.u8()),
            5 => self.forge(input.u8(), u64::from(input.u32()) << 16, input.u64(), input.u64()),
            6 => self.stage(&input.words()),
            7 => self.scribble(usize::from(input.u8()) << 2 | usize::from(input.u8() % 4), input.u64()),
            8 => {
                let polled = self.queue.poll();
                self.ended(polled);
            }
            9 => self.wait(input.u8()),
            10 => {
                let waited = self.queue.wait_any_for(Duration::ZERO).transpose();
                self.ended(waited);
            }
            11 => {
                let id = self.ticket(input.u8());
                let known = self.open.contains_key(&id);
                let asked =
                    if input.u8().is_multiple_of(2) { self.queue.cancel(id) } else { self.queue.stop(id) };
                // What the queue took from the ring while it waited for another one is open here, and has ended there.
                assert!(known || asked.is_err(), "{id:?} was cancelled, which has ended");
            }
            12 => self.wait_range(input.u8(), u64::from(input.u32())),
            _ => {
                let id = self.ticket(input.u8());
                let bytes = input.u64();
                self.end.publish_progress(id.tag() as u32, bytes & !(1 << 63), bytes >> 63 == 1);
                if let Some(progress) = self.queue.progress(id) {
                    assert!(self.open.contains_key(&id), "progress of {id:?}, which has ended");
                    assert!(progress.bytes < 1 << 40);
                }
            }
        }
    }

    fn submit(&mut self, kind: u8, length: u8, stage: bool) {
        let length = 8 * u64::from(length);
        let frame = &self.frame;
        let transfer = match kind % 6 {
            0 => nop().untyped(),
            1 => copy(frame.slice(..length), frame.slice(2048..)).untyped(),
            2 => crc32c(frame.slice(..length)).untyped(),
            3 => compare(frame.slice(..length), frame.slice(2048..2048 + length)).untyped(),
            4 => copy(frame.slice(..length), frame.slice(2048..)).linked().untyped(),
            _ => repeat(3).untyped(),
        };
        let whole = if matches!(kind % 6, 1..=4) { length } else { 0 };
        let refused = self.queue.outstanding() == self.queue.capacity() as usize;
        let ticket = if stage { self.queue.stage(transfer) } else { self.queue.submit(transfer) };
        if let Ok(ticket) = ticket {
            assert!(!refused, "more requests than the queue holds");
            assert_eq!(self.open.insert(ticket.id(), whole), None, "a ticket is used again");
            self.tickets.push(ticket.id());
        }
    }

    /// A ticket, the latest first; none if there was none.
    fn ticket(&self, back: u8) -> TicketId {
        let index = self.tickets.len().checked_sub(usize::from(back) + 1);
        index.map_or(TicketId::NONE, |index| self.tickets[index])
    }

    /// Completes a transfer as an honest worker does.
    fn complete(&mut self, back: u8) {
        let id = self.ticket(back);
        let Some(length) = self.open.get(&id).copied() else { return };
        let outcome = Outcome { result: Ok(()), bytes_done: length, value: length, engine: EngineKind::Cpu };
        let completion = Completion { tag: u64::from(id.tag() as u32), inherited: false, outcome };
        self.stage(&wire::encode_completion(&completion));
    }

    /// A completion of a known tag with any status, bytes and detail.
    fn forge(&mut self, back: u8, header: u64, bytes_done: u64, detail: u64) {
        let tag = u64::from(self.ticket(back).tag() as u32) << 32;
        self.stage(&[tag | header & 0xffff_0000, bytes_done, detail]);
    }

    fn stage(&mut self, slot: &[u64; COMPLETION_WORDS]) {
        self.written.extend(slot.map(wire::tag_of_completion));
        self.words.extend(slot);
        let _ = self.end.completion_room();
        let _ = self.end.stage(slot);
        let _ = self.end.publish();
    }

    fn scribble(&mut self, index: usize, value: u64) {
        self.written.insert(wire::tag_of_completion(value));
        self.words.insert(value);
        self.own.word(index % self.own.words()).store(value, Ordering::Relaxed);
    }

    fn wait(&mut self, back: u8) {
        let id = self.ticket(back);
        let ended = self.queue.wait_for(id.into(), Duration::ZERO).transpose();
        match ended {
            Some(Err(TransferError { failure: Failure::UnknownTicket, .. })) => {
                assert!(!self.open.contains_key(&id), "{id:?} is open, and unknown to the queue");
            }
            other => self.ended(other),
        }
    }

    fn wait_range(&mut self, back: u8, end: u64) {
        let id = self.ticket(back);
        match self.queue.wait_range_for(id, 0..end, Duration::ZERO) {
            Ok(Some(Arrival::Moved | Arrival::Ended)) => {
                assert!(self.open.contains_key(&id), "{id:?} has ended and was taken");
            }
            Ok(None) => {}
            Err(error) => {
                let is_unknown = error.failure == Failure::UnknownTicket;
                assert_eq!((error.id, is_unknown), (id, !self.open.contains_key(&id)));
            }
        }
    }

    /// What a poll or a wait took.
    fn ended(&mut self, ended: Option<Result<Done<u64>, TransferError>>) {
        let Some(ended) = ended else { return };
        let (id, failure, bytes_done) = match &ended {
            Ok(done) => (done.id, None, done.bytes_done),
            Err(error) => (error.id, Some(error.failure), error.bytes_done),
        };
        let length = self.open.remove(&id);
        let whole = length.unwrap_or_else(|| panic!("{ended:?} of a transfer that is not open"));
        let is_said = failure.is_none() && bytes_done == whole || self.words.contains(&bytes_done);
        assert!(is_said || failure.is_some() && bytes_done == 0, "{ended:?} of {whole} bytes");
        let is_written = self.written.contains(&(id.tag() as u32));
        assert!(is_written || failure == Some(Failure::ServiceLost), "{ended:?} without a completion");
        let text = failure.map_or(String::new(), |failure| failure.to_string());
        assert!(text.chars().all(|letter| !letter.is_control()));
    }

    /// What must hold after each step.
    fn check(&self) {
        assert!(self.queue.outstanding() <= self.open.len(), "more requests than were submitted");
        assert!(self.queue.outstanding() <= self.queue.capacity() as usize);
    }

    /// The service closes the queue: all that is open ends, each once.
    fn end(mut self) {
        self.end.close();
        let most = 2 * self.open.len() + 2;
        for _ in 0..most {
            let polled = self.queue.poll();
            self.ended(polled);
        }
        assert!(self.open.is_empty(), "{:?} never end", self.open);
        assert_eq!(self.queue.outstanding(), 0);
        assert!(self.queue.poll().is_none());
    }
}
