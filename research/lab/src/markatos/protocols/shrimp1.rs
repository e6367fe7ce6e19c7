//! The first SHRIMP method: mapped-out pages and one atomic access (TR 182, 2.4).
//!
//! ```text
//! COMPARE-AND-EXCHANGE size WITH shadow(source) ──► engine: destination = mapped_out(source) ─► start ─► status
//! ```
//!
//! One access passes all arguments and reads the answer, so nothing can come in between; but a page is copied only to its
//! mapped-out page. Here page A is mapped out to B and back, C and D, E and F. In the weakened variant, a second access reads
//! the status, which may belong to another process.

use crate::markatos::machine::{
    Access, Answer, Caller, FAIL, Idle, Kind, Meaning, Page, PageTable, Place, Protocol, Step, Transfer,
    Word, shadow,
};

const STARTED: Word = 1;

/// The page to which a page is mapped out.
pub const fn mapped_out(page: Page) -> Page {
    Page(page.0 ^ 1)
}

/// The front end, with one transfer at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    busy: bool,
    status: Word,
}

#[derive(Clone, Copy, Debug)]
pub struct Shrimp1 {
    /// Whether size and status pass in one access.
    pub atomic: bool,
}

impl Protocol for Shrimp1 {
    type Engine = Engine;

    fn reset(&self, _tables: &[PageTable]) -> Engine {
        Engine::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        let at = shadow(wants.source);
        let size = Word::from(wants.size);
        if self.atomic {
            vec![Step::plain(Access::exchange(at, size))]
        } else {
            vec![Step::plain(Access::store(at, size)), Step::plain(Access::load(at))]
        }
    }

    fn meaning(&self, _who: u8, _read: usize, word: Word) -> Meaning {
        if word == STARTED { Meaning::Started } else { Meaning::Rejected }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        let Place::Shadow { page, .. } = access.at else { return Answer::word(FAIL) };
        if access.kind == Kind::Load {
            return Answer::word(engine.status);
        }
        engine.status = if engine.busy { FAIL } else { STARTED };
        if engine.busy {
            return Answer::word(FAIL);
        }
        engine.busy = true;
        let destination = mapped_out(page);
        Answer::starts(STARTED, Transfer { source: page, destination, size: access.data as u8 })
    }

    fn idle(&self, engine: &Engine) -> Vec<Idle<Engine>> {
        let done = Engine { busy: false, ..*engine };
        let ends = Idle { engine: done, starts: None, says: "the transfer ends" };
        if engine.busy { vec![ends] } else { Vec::new() }
    }

    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        let both = caller.table.pages().filter(|(_, rights)| rights.read && rights.write);
        both.flat_map(|(source, _)| {
            let wants = move |size: &u8| Transfer { source, destination: mapped_out(source), size: *size };
            caller.sizes.iter().map(move |size| self.program(caller.who, wants(size)))
        })
        .flat_map(|program| program.into_iter().map(|step| vec![step]))
        .collect()
    }
}
