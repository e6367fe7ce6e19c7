//! A client that writes anything anywhere in its memory, at any time between the service's looks at it.
//!
//! ```text
//! bytes ──► scribble a word of the client's memory ─┐
//!       ──► hand_over a slot, cancel as a client does ───┤──► ServiceEnd ──► compared with an oracle that reads the words
//!       ──► pop, room, cancels, stage, publish ─────┘                   and with what the client's memory was before
//! ```
//!
//! One thread: races within one look are loom's part. The layout is known here only by what it promises: submission
//! slots fill the end of the client's memory, and control words come before them.

use std::sync::atomic::Ordering;

use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{
    COMPLETION_WORDS, ClientEnd, LIST_WORDS, Layout, SUBMISSION_WORDS, ServiceEnd,
};
use memferry_shm::ring::LONG;
use memferry_shm::storage::{HeapWords, RingStorage};

use crate::input::Input;

const SEQUENCE: u64 = 0xffff_ffff;
/// Words of a submission slot that are read when it is not long.
const SHORT_WORDS: usize = 8;

/// Input: a byte for the capacity, then steps to the end, each a byte and its operands (see `step`).
pub fn ring_reader(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new(2 << (input.u8() % 4));
    // The list area is most of the memory: that nothing wrote there is looked at once.
    let often = rig.client.words() - LIST_WORDS;
    while !input.is_empty() {
        rig.step(&mut input);
        rig.assert_unwritten(often);
    }
    rig.assert_unwritten(rig.client.words());
}

/// The service's end, both memories, and what the oracle knows of them.
struct Rig {
    capacity: u32,
    service: ServiceEnd<HeapWords>,
    /// Asks for cancels as an honest client does; it shares the memory that is scribbled on.
    honest: ClientEnd<HeapWords>,
    client: HeapWords,
    /// What the client wrote there.
    written: Vec<u64>,
    taken: u32,
    staged: u32,
    published: u32,
    /// What the client had consumed when it last gave a possible count.
    known: u32,
}

impl Rig {
    fn new(capacity: u32) -> Self {
        let layout = Layout::new(capacity).expect("a power of two from 2 to 16");
        let client = HeapWords::zeroed(layout.client_words());
        let own = HeapWords::zeroed(layout.service_words());
        let sized = "memories of the layout's size";
        let honest = ClientEnd::new(layout, client.clone(), own.clone(), Fences::Full).expect(sized);
        let service = ServiceEnd::new(layout, client.clone(), own, Fences::Full).expect(sized);
        let written = vec![0; client.words()];
        Self { capacity, service, honest, client, written, taken: 0, staged: 0, published: 0, known: 0 }
    }

    /// The first so many words are as the client left them.
    fn assert_unwritten(&self, words: usize) {
        let same = (0..words).all(|index| self.load(index) == self.written[index]);
        assert!(same, "the service wrote to the client's memory");
    }

    fn load(&self, index: usize) -> u64 {
        self.client.word(index).load(Ordering::Relaxed)
    }

    /// First word of the slot of position `position`.
    fn slot(&self, position: u32) -> usize {
        let slots = self.client.words() - LIST_WORDS - self.capacity as usize * SUBMISSION_WORDS;
        slots + (position % self.capacity) as usize * SHORT_WORDS
    }

    /// Where word `index` of a slot lies: the first parts of all slots come before the second parts.
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
            2 => self.hand_over(u32::from(input.u8() % 4), u64::from(input.u32()), input.u8()),
            3 => self.pop(),
            4 => self.room(),
            5 => self.stage(input.u64()),
            6 => self.publish(),
            7 => self.cancels(input.u64()),
            8 => self.tell(),
            9 => self.cancel(input.u64()),
            10 => self.fetch(input.u64(), input.u32()),
            _ => (0..self.client.words()).for_each(|index| self.scribble(index, input.u64())),
        }
    }

    fn scribble(&mut self, index: usize, value: u64) {
        let index = index % self.client.words();
        self.client.word(index).store(value, Ordering::Relaxed);
        self.written[index] = value;
    }

    /// Puts the sequence of a position `ahead` of the next, and a header, into that position's slot.
    fn hand_over(&mut self, ahead: u32, header: u64, body: u8) {
        let position = self.taken.wrapping_add(ahead);
        let at = self.slot(position);
        for index in 1..SUBMISSION_WORDS {
            self.scribble(self.word_of(position, index), u64::from(body) + index as u64);
        }
        let long = if body % 2 == 1 { LONG } else { 0 };
        self.scribble(at, long | header << 32 | u64::from(position.wrapping_add(1)));
    }

    /// What the words say the next request is.
    fn expected(&self) -> Option<[u64; SUBMISSION_WORDS]> {
        let at = self.slot(self.taken);
        let header = self.load(at);
        if header & SEQUENCE != u64::from(self.taken.wrapping_add(1)) {
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
        // A claim is the low half of any word before the slots; which one, the layout keeps to itself.
        let claims = (0..self.slot(0)).map(|index| self.load(index) as u32);
        let possible: Vec<u32> = claims.filter(|claim| self.is_possible(*claim)).collect();
        match self.service.completion_room() {
            Ok(room) => {
                let slots = 2 * self.capacity;
                assert!(room <= slots, "room for {room} of {slots}");
                let known = room.wrapping_sub(slots).wrapping_add(self.staged);
                assert!(possible.contains(&known), "a count nobody gave was believed");
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
    }

    fn publish(&mut self) {
        let wakes = self.service.publish();
        assert!(!wakes || self.staged != self.published, "nothing was published: nobody is to be woken");
        self.published = self.staged;
    }

    fn cancels(&mut self, tag: u64) {
        let pending = self.service.cancels_pending();
        assert_eq!(self.service.cancels_changed(), pending);
        assert!(!self.service.cancels_changed(), "a change is told once");
        let written = (0..self.slot(0)).any(|index| self.load(index) == tag.wrapping_add(1));
        assert!(written || !self.service.cancel_requested(tag), "nobody asked to cancel {tag}");
    }

    fn cancel(&mut self, tag: u64) {
        // Scribbles may have put the generation one before what the service saw: only an untouched one must differ.
        let untouched = !self.service.cancels_pending();
        self.honest.cancel(tag);
        // It writes before the slots.
        (0..self.slot(0)).for_each(|index| self.written[index] = self.load(index));
        assert!(!untouched || self.service.cancels_pending(), "the generation did not change");
        assert!(self.service.cancel_requested(tag), "a cancel of {tag} was lost");
    }

    /// Takes a list from where a request may say it lies.
    fn fetch(&self, first: u64, words: u32) {
        let area = self.client.words() - LIST_WORDS;
        // Within the area about half of the time.
        let first = if words.is_multiple_of(2) { first % (LIST_WORDS as u64 + 8) } else { first };
        let words = words as usize % (LIST_WORDS + 8);
        let inside = first.checked_add(words as u64).is_some_and(|end| end <= LIST_WORDS as u64);
        let expected = inside
            .then(|| (0..words).map(|word| self.load(area + first as usize + word)).collect::<Vec<_>>());
        assert_eq!(self.service.fetch_list(first, words), expected);
    }

    fn tell(&mut self) {
        self.service.tell_consumed();
        self.service.set_parked(u64::from(self.taken % 2));
        self.service.change_wake_word();
    }
}
