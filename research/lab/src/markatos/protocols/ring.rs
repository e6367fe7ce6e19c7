//! Memferry's method: a private ring in shared memory, and a service that copies each slot once and checks the copy.
//!
//! ```text
//! client: body of the slot at its position ─► header with the sequence of this lap ─► poll for the completion
//! worker: header has the expected sequence? ─► copy the body ─► check the copy ─► start, or refuse ─► completion
//! ```
//!
//! The rules of the positions are those of `crates/shm/src/ring.rs`, with two slots and sequences modulo four so that all
//! laps are visited; `research/lab/tests/markatos_ring.rs` compares [`Slots`] with the shipped ring step by step. Client and
//! worker keep their own positions: nothing written by the other side is used as an index. A malicious client writes any word
//! of its ring at any time, also while the worker reads. In the weakened variant, the worker checks its copy and then reads
//! the slot again. Parking and batches are not explored here; loom runs the shipped code for these.

use crate::markatos::machine::{
    Access, Answer, Caller, FAIL, Idle, Kind, MAX_PROCESSES, Meaning, PageTable, Place, Protocol, Step,
    Transfer, Word, tried_transfers,
};

/// Slots in a ring.
pub const CAPACITY: u8 = 2;
/// Number of positions before sequences repeat; twice the capacity distinguishes successive laps.
pub const LAPS: u8 = 2 * CAPACITY;

/// Words of a slot: header and body.
const SLOT_WORDS: u8 = 2;
/// The client library's write of the body of the slot at its position.
const BODY: u8 = 16;
/// Its write of the header, which makes the slot visible.
const HEADER: u8 = 17;
/// Its read of the completion of the last visible slot.
const COMPLETION: u8 = 18;

const DONE: Word = 1;
const REFUSED: Word = 2;

/// The words of a ring shared by both sides, and the rules of their positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots {
    /// Header and body of each slot.
    pub words: [Word; (CAPACITY * SLOT_WORDS) as usize],
}

impl Slots {
    /// The sequence in a slot that holds the element at a position.
    pub const fn sequence(position: u8) -> Word {
        (position.wrapping_add(1) % LAPS) as Word
    }

    /// Index of the header of the slot at a position; its body follows.
    pub const fn at(position: u8) -> usize {
        ((position & (CAPACITY - 1)) * SLOT_WORDS) as usize
    }

    /// Writes the body of the slot at a position; it is not yet visible.
    pub fn write_body(&mut self, position: u8, body: Word) {
        self.words[Self::at(position) + 1] = body;
    }

    /// Makes the slot at a position visible.
    pub fn write_header(&mut self, position: u8) {
        self.words[Self::at(position)] = Self::sequence(position);
    }

    /// Whether the element at a position is visible.
    pub fn ready(&self, position: u8) -> bool {
        self.words[Self::at(position)] == Self::sequence(position)
    }

    /// The body of the slot at a position.
    pub fn body(&self, position: u8) -> Word {
        self.words[Self::at(position) + 1]
    }
}

/// One client's queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Pair {
    slots: Slots,
    published: u8,
    consumed: u8,
    /// The sequence of the last completion, and its status.
    completion: (Word, Word),
}

/// The worker's present slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InHand {
    of: u8,
    copy: Option<Word>,
}

/// The rings and the worker that reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    pairs: [Pair; MAX_PROCESSES],
    hand: Option<InHand>,
    tables: [PageTable; MAX_PROCESSES],
}

impl Engine {
    /// The worker's next step with its present slot.
    fn advance(&self, hand: InHand, copies_once: bool) -> Option<Idle<Self>> {
        let mut next = *self;
        let pair = next.pairs.get_mut(usize::from(hand.of))?;
        let body = pair.slots.body(pair.consumed);
        let Some(copy) = hand.copy else {
            next.hand = Some(InHand { copy: Some(body), ..hand });
            return Some(Idle { engine: next, starts: None, says: "the worker copies a slot" });
        };
        let covered = self.tables[usize::from(hand.of)].covers(Transfer::decoded(copy));
        let used = Transfer::decoded(if copies_once { copy } else { body });
        pair.completion = (Slots::sequence(pair.consumed), if covered { DONE } else { REFUSED });
        pair.consumed = (pair.consumed + 1) % LAPS;
        next.hand = None;
        let says = if covered { "the worker starts it" } else { "the worker refuses it" };
        Some(Idle { engine: next, starts: covered.then_some(used), says })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Whether the worker uses the copy that it checked.
    pub copies_once: bool,
}

impl Protocol for Ring {
    type Engine = Engine;

    fn reset(&self, tables: &[PageTable]) -> Engine {
        let mut engine = Engine::default();
        for (entry, table) in engine.tables.iter_mut().zip(tables) {
            *entry = *table;
        }
        engine
    }

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step> {
        let word = |word| Place::Ring { of: who, word };
        let accesses = [
            Access::store(word(BODY), wants.encoded()),
            Access::store(word(HEADER), 0),
            Access::load(word(COMPLETION)),
        ];
        accesses.map(Step::plain).to_vec()
    }

    fn meaning(&self, _who: u8, _read: usize, word: Word) -> Meaning {
        match word {
            0 => Meaning::Again,
            DONE => Meaning::Started,
            _ => Meaning::Rejected,
        }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        let Place::Ring { of, word } = access.at else { return Answer::word(FAIL) };
        let Some(pair) = engine.pairs.get_mut(usize::from(of)) else { return Answer::word(FAIL) };
        match (word, access.kind) {
            (BODY, _) => pair.slots.write_body(pair.published, access.data),
            (HEADER, _) => {
                pair.slots.write_header(pair.published);
                pair.published = (pair.published + 1) % LAPS;
            }
            (COMPLETION, _) => {
                let awaited = Slots::sequence((pair.published + LAPS - 1) % LAPS);
                let (completed, how) = pair.completion;
                return Answer::word(if completed == awaited { how } else { 0 });
            }
            (raw, Kind::Store) => {
                if let Some(word) = pair.slots.words.get_mut(usize::from(raw)) {
                    *word = access.data;
                }
            }
            _ => {}
        }
        Answer::default()
    }

    fn idle(&self, engine: &Engine) -> Vec<Idle<Engine>> {
        if let Some(hand) = engine.hand {
            return engine.advance(hand, self.copies_once).into_iter().collect();
        }
        let ready = (0u8..).zip(engine.pairs).filter(|(_, pair)| pair.slots.ready(pair.consumed));
        let takes = |(of, _)| Idle {
            engine: Engine { hand: Some(InHand { of, copy: None }), ..*engine },
            starts: None,
            says: "the worker sees a slot",
        };
        ready.map(takes).collect()
    }

    /// Any header; as bodies its own transfer, one beyond its page, and another process's.
    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        // The two mixtures are refused like the first process's transfer; without them every lap can be visited.
        let bodies: Vec<Word> = tried_transfers(caller).into_iter().take(3).map(Transfer::encoded).collect();
        let words = (0..CAPACITY * SLOT_WORDS).flat_map(|word| {
            let data = if word % SLOT_WORDS == 0 { (0..LAPS.into()).collect() } else { bodies.clone() };
            data.into_iter().map(move |data| Access::store(Place::Ring { of: caller.who, word }, data))
        });
        words.map(|access| vec![Step::plain(access)]).collect()
    }

    fn checks_size(&self) -> bool {
        true
    }
}
