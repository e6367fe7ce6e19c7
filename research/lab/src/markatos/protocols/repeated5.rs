//! Repeated passing with five accesses, on the prototype's state machine (TR 182, 3.3 figure 7, 4.1, 4.2 figure 10).
//!
//! ```text
//! STORE d ─► LOAD s = OK1? ─► STORE d ─► LOAD s = OK2? ─► LOAD d = OK3? ─► started
//!    ▲______________no: start again______________________________│
//! ```
//!
//! The engine is [`DataPath`], which compares twelve bits of bus addresses. Pages are 8 KiB apart, so that they differ in
//! these bits; or, aliased, C and E compare equal to A, and D and F to B. The transfer uses the whole addresses of the first
//! two accesses and the size of the last store; the prototype moved nothing.

use crate::markatos::machine::{
    Access, Answer, FAIL, Kind, Meaning, Page, PageTable, Place, Protocol, Step, Transfer, Word,
};
use crate::markatos::state_machine::{ALIASED_BYTES, At, DataPath, OK1, OK2, OK3};

use super::repeated::{Passes, accesses};

/// The sequence of figure 7.
pub const FIVE: [Passes; 5] =
    [Passes::Destination, Passes::Source, Passes::Destination, Passes::Source, Passes::DestinationRead];

/// Bytes of a page.
const PAGE_BYTES: u32 = 8192;

/// The memory barriers of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// Between any two accesses, and before the first (section 4.2).
    Every,
    /// As in figure 10: before the first access and after each store.
    Figure10,
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    path: DataPath,
    destination: Option<Page>,
    source: Option<Page>,
    size: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct Repeated5 {
    pub barriers: Barriers,
    /// Whether pages alias in the twelve bits.
    pub aliased: bool,
    /// Whether the address of the fifth access is compared; not in the weakened variant.
    pub fifth: bool,
}

/// The protocol of the paper.
pub const FIGURE_10: Repeated5 = Repeated5 { barriers: Barriers::Figure10, aliased: false, fifth: true };

impl Repeated5 {
    fn bus_address(&self, page: Page) -> u32 {
        let page = u32::from(page.0);
        if self.aliased { (page & 1) * PAGE_BYTES + (page >> 1) * ALIASED_BYTES } else { page * PAGE_BYTES }
    }
}

impl Protocol for Repeated5 {
    type Engine = Engine;

    fn reset(&self, _tables: &[PageTable]) -> Engine {
        Engine::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        let mut program = Vec::new();
        let mut after_store = true;
        for access in accesses(&FIVE, wants) {
            if self.barriers == Barriers::Every || self.barriers == Barriers::Figure10 && after_store {
                program.push(Step::Barrier);
            }
            program.push(Step::plain(access));
            after_store = access.kind == Kind::Store;
        }
        program
    }

    fn meaning(&self, _who: u8, read: usize, word: Word) -> Meaning {
        match (read, word) {
            (0, OK1) | (1, OK2) => Meaning::Continue,
            (2, OK3) => Meaning::Started,
            _ => Meaning::Rejected,
        }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        let Place::Shadow { page, .. } = access.at else { return Answer::word(FAIL) };
        let compared = match (self.fifth, engine.path.at(), engine.destination) {
            (false, At::S4, Some(destination)) => destination,
            _ => page,
        };
        let done = engine.path.transact(self.bus_address(compared), access.kind == Kind::Load);
        if done.loads_destination {
            engine.destination = Some(page);
        }
        if done.loads_source {
            engine.source = Some(page);
        }
        if access.kind == Kind::Store {
            engine.size = access.data as u8;
        }
        let both = engine.source.zip(engine.destination).filter(|_| done.starts);
        let size = engine.size;
        if done.to == At::S0 {
            *engine = Engine::default();
        }
        let starts = both.map(|(source, destination)| Transfer { source, destination, size });
        Answer { word: done.status, starts }
    }
}

#[cfg(test)]
mod tests {
    use super::super::repeated;
    use super::*;
    use crate::markatos::machine::shadow;

    /// The sequence matcher of three and four accesses, applied to five, equals the prototype's state machine.
    #[test]
    fn state_machine_and_sequence_agree() {
        let alphabet: Vec<Access> = (0..2)
            .flat_map(|page| [Access::load(shadow(Page(page))), Access::store(shadow(Page(page)), 2)])
            .collect();
        let mut started = 0;
        for run in 0..4usize.pow(7) {
            let mut machine = Engine::default();
            let mut sequence = repeated::Engine::default();
            for place in 0..7 {
                let access = alphabet[run >> (2 * place) & 3];
                let answer = FIGURE_10.arrive(&mut machine, access);
                assert_eq!(answer, sequence.arrive(&FIVE, access), "run {run}, access {place}");
                started += usize::from(answer.starts.is_some());
            }
        }
        assert!(started > 0);
    }

    #[test]
    fn figure_10_has_three_barriers() {
        let count = |barriers| {
            let program = Repeated5 { barriers, ..FIGURE_10 }.program(0, Transfer::new(0, 1, 2));
            program.iter().filter(|step| **step == Step::Barrier).count()
        };
        assert_eq!([Barriers::Every, Barriers::Figure10, Barriers::None].map(count), [5, 3, 0]);
    }
}
