//! Repeated passing: the common part of the engines with three and four accesses (TR 182, 3.3).
//!
//! ```text
//! access ──► fits the sequence, repeated addresses equal? ──► next place in it ──► its end: start
//!                        └── no: start again
//! ```
//!
//! An access that does not fit resets the engine and is not taken as the first of a new sequence, as in the prototype's
//! state machine (4.1). Processes check only the last answer, as in figures 5 and 6. The sequences are in
//! [`super::repeated3`] and [`super::repeated4`]; five accesses use the prototype's own machine, [`super::repeated5`].

use crate::markatos::machine::{
    Access, Answer, FAIL, Kind, Meaning, Page, PageTable, Place, Protocol, Step, Transfer, Word, shadow,
};

/// The address passed by an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// The source, by a load.
    Source,
    /// The destination, by a store.
    Destination,
    /// The destination, by a load.
    DestinationRead,
}

/// The front end: position in the sequence, and its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    at: u8,
    loads: Word,
    source: Option<Page>,
    destination: Option<Page>,
    size: u8,
}

impl Engine {
    /// Applies an access for this sequence. A load of the sequence reads the number of loads so far.
    pub fn arrive(&mut self, sequence: &[Passes], access: Access) -> Answer {
        let Place::Shadow { page, .. } = access.at else { return Answer::word(FAIL) };
        let awaited = sequence.get(usize::from(self.at)).copied();
        let kept = match awaited {
            Some(Passes::Source) => &mut self.source,
            _ => &mut self.destination,
        };
        let kind = if awaited == Some(Passes::Destination) { Kind::Store } else { Kind::Load };
        if access.kind != kind || *kept.get_or_insert(page) != page {
            *self = Self::default();
            return Answer::word(FAIL);
        }
        self.at += 1;
        if kind == Kind::Store {
            self.size = access.data as u8;
            return Answer::default();
        }
        self.loads += 1;
        let Self { at, loads, source, destination, size } = *self;
        let starts = source.zip(destination).filter(|_| usize::from(at) == sequence.len());
        if starts.is_some() {
            *self = Self::default();
        }
        let transfer = starts.map(|(source, destination)| Transfer { source, destination, size });
        Answer { word: loads, starts: transfer }
    }
}

/// The accesses of a sequence.
pub fn accesses(sequence: &[Passes], wants: Transfer) -> impl Iterator<Item = Access> {
    sequence.iter().map(move |passes| match passes {
        Passes::Source => Access::load(shadow(wants.source)),
        Passes::Destination => Access::store(shadow(wants.destination), Word::from(wants.size)),
        Passes::DestinationRead => Access::load(shadow(wants.destination)),
    })
}

/// A protocol of repeated passing in which the second and last load decides.
#[derive(Clone, Copy, Debug)]
pub struct Repeated {
    pub sequence: &'static [Passes],
}

impl Protocol for Repeated {
    type Engine = Engine;

    fn reset(&self, _tables: &[PageTable]) -> Engine {
        Engine::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        accesses(self.sequence, wants).map(Step::plain).collect()
    }

    fn meaning(&self, _who: u8, read: usize, word: Word) -> Meaning {
        match (read, word) {
            (0, _) => Meaning::Continue,
            (_, 2) => Meaning::Started,
            _ => Meaning::Rejected,
        }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        engine.arrive(self.sequence, access)
    }
}
