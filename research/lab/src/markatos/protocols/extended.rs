//! Extended shadow addressing: the kernel puts the context into the physical address (TR 182, 3.2 and figure 4).
//!
//! ```text
//! STORE size TO shadow(destination)#id ──► latched, in context id or with the id beside it
//! LOAD status FROM shadow(source)#id   ──► same context: start; another: an error
//! ```
//!
//! With register contexts each id has its own arguments; without, one pair is stored and the ids are compared. There are few ids
//! ([`IDS`] here); further processes use the kernel.

use super::kernel;
use super::shrimp2::{Latch, meaning};
use crate::markatos::machine::{
    Access, Answer, Caller, FAIL, Held, Kind, Meaning, PageTable, Place, Protocol, Step, Transfer, Word,
    shadow_attacks,
};

/// Number of processes with an id; the paper has 2 to 4.
pub const IDS: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    /// One for each id; without register contexts only the first is used.
    latches: [Latch; IDS],
    /// Without register contexts: the owner of the stored arguments.
    owner: u8,
    registers: kernel::Registers,
}

#[derive(Clone, Copy, Debug)]
pub struct Extended {
    /// Whether the engine has register contexts.
    pub contexts: bool,
    /// Whether ids are compared; the weakened engine ignores them.
    pub ids: bool,
}

impl Extended {
    /// The id in the shadow addresses of a process, starting at 1.
    fn id(who: u8) -> Option<u8> {
        (usize::from(who) < IDS).then_some(who + 1)
    }
}

impl Protocol for Extended {
    type Engine = Engine;

    fn reset(&self, _tables: &[PageTable]) -> Engine {
        Engine::default()
    }

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step> {
        let Some(context) = Self::id(who) else { return kernel::initiation(wants, Held::Lock) };
        vec![
            Step::plain(Access::store(
                Place::Shadow { page: wants.destination, context },
                Word::from(wants.size),
            )),
            Step::plain(Access::load(Place::Shadow { page: wants.source, context })),
        ]
    }

    fn meaning(&self, who: u8, _read: usize, word: Word) -> Meaning {
        if Self::id(who).is_some() { meaning(word) } else { kernel::meaning(word) }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        let Place::Shadow { context, .. } = access.at else { return engine.registers.arrive(access) };
        let context = if self.ids { context } else { 1 };
        let kept = if self.contexts { usize::from(context.saturating_sub(1)) } else { 0 };
        let Some(latch) = engine.latches.get_mut(kept) else { return Answer::word(FAIL) };
        if access.kind == Kind::Store {
            engine.owner = if self.contexts { 0 } else { context };
        } else if !self.contexts && engine.owner != context {
            *latch = Latch::default();
            return Answer::word(FAIL);
        }
        latch.arrive(access)
    }

    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        match Self::id(caller.who) {
            Some(context) => shadow_attacks(caller, context),
            None => kernel::calls(caller, Held::Lock, true),
        }
    }
}
