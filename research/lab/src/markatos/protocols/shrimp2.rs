//! The second SHRIMP method: two accesses, and a context switch that invalidates them (TR 182, 2.5 and figure 2).
//!
//! ```text
//! STORE size TO shadow(destination) ──► latched ──┬── LOAD status FROM shadow(source) ──► start
//!                                                 └── context switch: the kernel's hook drops it
//! ```
//!
//! The PAL method uses the same [`Latch`] between its two accesses.

use crate::markatos::machine::{
    Access, Answer, FAIL, Kind, Meaning, Page, PageTable, Place, Protocol, Step, Transfer, Word, shadow,
};

/// Read by the load when the transfer was started.
pub const STARTED: Word = 1;

/// A destination and a size, waiting for their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Latch(pub Option<(Page, u8)>);

impl Latch {
    /// A store is kept; a load starts the kept transfer.
    pub fn arrive(&mut self, access: Access) -> Answer {
        let Place::Shadow { page, .. } = access.at else { return Answer::word(FAIL) };
        if access.kind == Kind::Store {
            self.0 = Some((page, access.data as u8));
            return Answer::default();
        }
        let Some((destination, size)) = self.0.take() else { return Answer::word(FAIL) };
        Answer::starts(STARTED, Transfer { source: page, destination, size })
    }
}

/// The two accesses of figure 2.
pub fn pair(wants: Transfer) -> [Access; 2] {
    [Access::store(shadow(wants.destination), Word::from(wants.size)), Access::load(shadow(wants.source))]
}

/// The conclusion from the second access.
pub fn meaning(word: Word) -> Meaning {
    if word == STARTED { Meaning::Started } else { Meaning::Rejected }
}

#[derive(Clone, Copy, Debug)]
pub struct Shrimp2 {
    /// Whether the context switch drops a half-started transfer.
    pub invalidates: bool,
}

impl Protocol for Shrimp2 {
    type Engine = Latch;

    fn reset(&self, _tables: &[PageTable]) -> Latch {
        Latch::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        pair(wants).map(Step::plain).to_vec()
    }

    fn meaning(&self, _who: u8, _read: usize, word: Word) -> Meaning {
        meaning(word)
    }

    fn arrive(&self, engine: &mut Latch, access: Access) -> Answer {
        engine.arrive(access)
    }

    fn switched(&self, engine: &mut Latch, _to: u8) {
        if self.invalidates {
            *engine = Latch::default();
        }
    }
}
