//! A client that writes anything anywhere in its memory between the service's accesses.
//!
//! ```text
//! bytes ──► scribble a word of the client's memory ─┐
//!       ──► fill a slot, cancel as a client does ────────┤──► ServiceEnd ──► compared with an oracle that reads the words
//!       ──► pop, room, cancels, stage, publish ─────┘                   and with the client's memory before
//! ```
//!
//! Single-threaded: loom tests the races. Only two facts of the layout are assumed: submission slots fill the end of the
//! client's memory, and control words precede them.

use std::sync::atomic::Ordering;

use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{
    COMPLETION_WORDS, ClientEnd, Layout, ParkedWord, SUBMISSION_WORDS, ServiceEnd,
};
use memferry_shm::ring::LONG;
use memferry_shm::storage::{HeapWords, RingStorage};

use crate::input::Input;

const SEQUENCE: u64 = 0xffff;
/// Completions that are published together, without a call to publish them.
const LINE: u32 = 8;
/// Words that are read of a short submission slot.
const SHORT_WORDS: usize = 4;

/// Input: a byte for the capacity, then steps of one byte and its operands (see `step`).
pub fn ring_reader(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new(2 << (input.u8() % 4));
    // The list area is most of the memory: it is checked only once, at the end.
    let control_words = rig.client.words() - rig.list_words();
    while !input.is_empty() {
        rig.step(&mut input);
        rig.assert_unwritten(control_words);
    }
    rig.assert_unwritten(rig.client.words());
}

/// The service's end, both memories, and the oracle's state.
struct Rig {
    capacity: u32,
    service: ServiceEnd<HeapWords>,
    /// Requests cancels like an honest client, on the same memory that is scribbled on.
    honest: ClientEnd<HeapWords>,
    client: HeapWords,
    /// The words that the client wrote.
    written: Vec<u64>,
    taken: u32,
    staged: u32,
    published: u32,
    /// Completions for which the service looked at the client's flag.
    announced: u32,
    /// The last possible count of consumed completions that the client gave.
    known: u32,
}

impl Rig {
    fn new(capacity: u32) -> Self {
        let layout = Layout::new(capacity).expect("a power of two from 2 to 16");
        let client = HeapWords::zeroed(layout.client_words());
        let own = HeapWords::zeroed(layout.service_words());
        let sized = "memories of the layout's size";
        let honest = ClientEnd::new(
            layout,
            client.clone(),
            own.clone(),
            HeapWords::zeroed(ParkedWord::<HeapWords>::BYTES / 8),
            Fences::Full,
        );
        let honest = honest.expect(sized);
        let service = ServiceEnd::new(layout, client.clone(), own, Fences::Full).expect(sized);
        let written = vec![0; client.words()];
        Self {
            capacity,
            service,
            honest,
            client,
            written,
            taken: 0,
            staged: 0,
            published: 0,
            announced: 0,
            known: 0,
        }
    }

    /// Asserts that the service wrote none of the client's first `words` words.
    fn assert_unwritten(&self, words: usize) {
        let same = (0..words).all(|index| self.load(index) == self.written[index]);
        assert!(same, "the service wrote to the client's memory");
    }

    fn list_words(&self) -> usize {
        Layout::new(self.capacity).expect("a good capacity").list_words()
    }

    fn load(&self, index: usize) -> u64 {
        self.client.word(index).load(Ordering::Relaxed)
    }

    /// First word of the slot at `position`.
    fn slot(&self, position: u32) -> usize {
        let slots = self.client.words() - self.list_words() - self.capacity as usize * SUBMISSION_WORDS;
        slots + (position % self.capacity) as usize * SHORT_WORDS
    }

    /// Index of word `index` of a slot: the first parts of all slots precede the second parts.
    fn word_of(&self, position: u32, index: usize) -> usize {
        let second = self.slot(0) + self.capacity as usize * SHORT_WORDS;
        match index.checked_sub(SHORT_WORDS) {
            None => self.slot(position) + index,
            Some(rest) => {
                second + (position % self.capacity) as usize * (SUBMISSION_WORDS - SHORT_WORDS) + rest
            }
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0 => self.scribble(usize::from(input.u8()) * 3, input.u64()),
            1 => self.scribble(usize::from(input.u8()), u64::from(input.u8())),
            2 => self.fill_slot(u32::from(input.u8() % 4), u64::from(input.u32()), input.u8()),
            3 => self.pop(),
            4 => self.room(),
            5 => self.stage(input.u64()),
            6 => self.publish(),
            7 => self.cancels(input.u64() as u32),
            8 => self.update_flags(),
            9 => self.cancel(input.u64() as u32),
            10 => self.fetch(input.u64(), input.u32()),
            _ => (0..self.client.words()).for_each(|index| self.scribble(index, input.u64())),
        }
    }

    fn scribble(&mut self, index: usize, value: u64) {
        let index = index % self.client.words();
        self.client.word(index).store(value, Ordering::Relaxed);
        self.written[index] = value;
    }

    /// Fills the slot `ahead` positions after the next one, with its sequence and a header.
    fn fill_slot(&mut self, ahead: u32, header: u64, body: u8) {
        let position = self.taken.wrapping_add(ahead);
        let at = self.slot(position);
        for index in 1..SUBMISSION_WORDS {
            self.scribble(self.word_of(position, index), u64::from(body) + index as u64);
        }
        let long = if body % 2 == 1 { LONG } else { 0 };
        self.scribble(at, long | header << 32 | u64::from(position.wrapping_add(1)) & SEQUENCE);
    }

    /// The next request by the words in memory.
    fn expected(&self) -> Option<[u64; SUBMISSION_WORDS]> {
        let at = self.slot(self.taken);
        let header = self.load(at);
        if header & SEQUENCE != u64::from(self.taken.wrapping_add(1)) & SEQUENCE {
            return None;
        }
        let words = if header & LONG == 0 { SHORT_WORDS } else { SUBMISSION_WORDS };
        let mut slot = [0; SUBMISSION_WORDS];
        (1..words).for_each(|index| slot[index] = self.load(self.word_of(self.taken, index)));
        slot[0] = header & !SEQUENCE;
        Some(slot)
    }

    fn pop(&mut self) {
        let expected = self.expected();
        assert_eq!(self.service.ready(), expected.is_some());
        let taken = self.service.pop();
        assert_eq!(taken, expected);
        self.taken = self.taken.wrapping_add(u32::from(taken.is_some()));
    }

    fn room(&mut self) {
        // A claimed count is the low half of some word before the slots; the layout does not reveal which one.
        let claims = (0..self.slot(0)).map(|index| self.load(index) as u32);
        let possible: Vec<u32> = claims.filter(|claim| self.is_possible(*claim)).collect();
        match self.service.completion_room() {
            Ok(room) => {
                let slots = 2 * self.capacity;
                assert!(room <= slots, "room for {room} of {slots}");
                let known = room.wrapping_sub(slots).wrapping_add(self.staged);
                assert!(
                    possible.contains(&known),
                    "the service accepted a count that the client did not write"
                );
                self.known = known;
            }
            Err(lie) => {
                assert_eq!((lie.published, lie.known), (self.published, self.known));
                assert!(!self.is_possible(lie.claimed), "a possible count was refused: {lie}");
            }
        }
    }

    /// Whether the client may have consumed `claim` completions.
    fn is_possible(&self, claim: u32) -> bool {
        claim.wrapping_sub(self.known) <= self.published.wrapping_sub(self.known)
    }

    fn stage(&mut self, value: u64) {
        let free = self.staged.wrapping_sub(self.known) < 2 * self.capacity;
        assert_eq!(self.service.stage(&[value; COMPLETION_WORDS]).is_ok(), free);
        self.staged = self.staged.wrapping_add(u32::from(free));
        if self.staged.is_multiple_of(LINE) {
            self.published = self.staged;
        }
    }

    fn publish(&mut self) {
        let wakes = self.service.publish();
        assert!(!wakes || self.staged != self.announced, "a wake-up without a publication");
        self.published = self.staged;
        self.announced = self.staged;
    }

    fn cancels(&mut self, tag: u32) {
        let pending = self.service.cancels_pending();
        assert_eq!(self.service.cancels_changed(), pending);
        assert!(!self.service.cancels_changed(), "a change is reported once");
        let written = (0..self.slot(0)).any(|index| self.load(index) == u64::from(tag) + 1);
        assert!(written || !self.service.cancel_requested(tag), "{tag} was cancelled without a request");
    }

    fn cancel(&mut self, tag: u32) {
        // Scribbling may have set the generation just before the value that the service saw; only without it must it differ.
        let untouched = !self.service.cancels_pending();
        self.honest.cancel(tag);
        // The honest client writes only before the slots.
        (0..self.slot(0)).for_each(|index| self.written[index] = self.load(index));
        assert!(!untouched || self.service.cancels_pending(), "the generation did not change");
        assert!(self.service.cancel_requested(tag), "a cancel of {tag} was lost");
    }

    /// Fetches a list from a position that a request could name.
    fn fetch(&self, first: u64, words: u32) {
        let area = self.client.words() - self.list_words();
        // Within the area in about half of the cases.
        let first = if words.is_multiple_of(2) { first % (self.list_words() as u64 + 8) } else { first };
        let words = words as usize % (self.list_words() + 8);
        let inside = first.checked_add(words as u64).is_some_and(|end| end <= self.list_words() as u64);
        let expected = inside
            .then(|| (0..words).map(|word| self.load(area + first as usize + word)).collect::<Vec<_>>());
        assert_eq!(self.service.fetch_list(first, words), expected);
    }

    fn update_flags(&mut self) {
        self.service.publish_consumed();
        self.service.change_wake_word();
    }
}
