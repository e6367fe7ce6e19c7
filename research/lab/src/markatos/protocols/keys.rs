//! Register contexts protected by a key (TR 182, 3.1 and figure 3).
//!
//! ```text
//! STORE key#context TO shadow(destination) ─► right key? ─► context.destination
//! STORE key#context TO shadow(source)      ─► right key? ─► context.source
//! STORE size TO context page               ────────────────► context.size
//! LOAD status FROM context page ─► all three present: start ─► units left; -1 failed, 0 done
//! ```
//!
//! The page of a context is mapped only for its owner. Both addresses are passed by stores, so the source must be writable. A key
//! has [`KEY_BITS`] bits here, so that all guesses can be tried; a malicious process knows its own key and tries all except the
//! owner's. Processes without a context use the kernel.

use super::kernel;
use crate::markatos::machine::{
    Access, Answer, Caller, FAIL, Held, Idle, Kind, MINUS_ONE, Meaning, Page, PageTable, Place, Protocol,
    Step, Transfer, Word, shadow,
};

/// Register contexts of this engine; the paper has 4 to 8.
pub const CONTEXTS: usize = 2;

/// Bits of a key here; the paper has close to 60.
pub const KEY_BITS: u32 = 2;

/// The key of a context, drawn by the kernel.
pub const fn key_of(context: u8) -> Word {
    [2, 1][context as usize % CONTEXTS]
}

const fn opened_by(key: Word, context: u8) -> Word {
    key << 4 | context as Word
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Context {
    destination: Option<Page>,
    source: Option<Page>,
    size: Option<u8>,
    left: Word,
}

impl Context {
    /// Stores an address: first the destination, second the source; a third one starts again.
    fn pass(&mut self, page: Page) {
        if self.destination.is_some() && self.source.is_none() {
            self.source = Some(page);
        } else {
            *self = Self { destination: Some(page), left: self.left, ..Self::default() };
        }
    }

    /// Starts a complete initiation; an incomplete one fails.
    fn status(&mut self) -> Answer {
        let incomplete = self.destination.is_some() || self.size.is_some();
        let Self { destination: Some(destination), source: Some(source), size: Some(size), .. } = *self
        else {
            let word = if incomplete { MINUS_ONE } else { self.left };
            *self = Self { left: word, ..Self::default() };
            return Answer::word(word);
        };
        *self = Self { left: Word::from(size), ..Self::default() };
        Answer::starts(self.left, Transfer { source, destination, size })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    contexts: [Context; CONTEXTS],
    registers: kernel::Registers,
}

impl Engine {
    /// The status of a context, without starting anything.
    pub fn left(&self, context: u8) -> Word {
        self.contexts.get(usize::from(context)).map_or(FAIL, |context| context.left)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Whether the engine compares the key.
    pub compares: bool,
    /// Whether malicious processes also guess the right key.
    pub guessed: bool,
}

impl Keys {
    fn has_context(who: u8) -> bool {
        usize::from(who) < CONTEXTS
    }
}

impl Protocol for Keys {
    type Engine = Engine;

    fn reset(&self, _tables: &[PageTable]) -> Engine {
        Engine::default()
    }

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step> {
        if !Self::has_context(who) {
            return kernel::initiation(wants, Held::Lock);
        }
        let opened = opened_by(key_of(who), who);
        let accesses = [
            Access::store(shadow(wants.destination), opened),
            Access::store(shadow(wants.source), opened),
            Access::store(Place::Context(who), Word::from(wants.size)),
            Access::load(Place::Context(who)),
        ];
        accesses.map(Step::plain).to_vec()
    }

    fn meaning(&self, who: u8, _read: usize, word: Word) -> Meaning {
        match word {
            _ if !Self::has_context(who) => kernel::meaning(word),
            MINUS_ONE => Meaning::Rejected,
            _ => Meaning::Started,
        }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        match (access.at, access.kind) {
            (Place::Shadow { page, .. }, Kind::Store) => {
                let key = access.data >> 4;
                let id = access.data & 15;
                let right = !self.compares || key == key_of(id as u8);
                if let (true, Some(context)) = (right, engine.contexts.get_mut(usize::from(id))) {
                    context.pass(page);
                }
                Answer::default()
            }
            (Place::Context(id), kind) => {
                let Some(context) = engine.contexts.get_mut(usize::from(id)) else {
                    return Answer::word(MINUS_ONE);
                };
                if kind == Kind::Load {
                    return context.status();
                }
                context.size = Some(access.data as u8);
                Answer::default()
            }
            (Place::Register(_), _) => engine.registers.arrive(access),
            _ => Answer::word(FAIL),
        }
    }

    fn idle(&self, engine: &Engine) -> Vec<Idle<Engine>> {
        let moving = (0..CONTEXTS).filter(|id| !matches!(engine.contexts[*id].left, 0 | MINUS_ONE));
        let moved = moving.map(|id| {
            let mut next = *engine;
            next.contexts[id].left -= 1;
            Idle { engine: next, starts: None, says: "a unit is moved" }
        });
        moved.collect()
    }

    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        let mut attacks = Vec::new();
        for (page, _) in caller.table.pages().filter(|(_, rights)| rights.write) {
            for id in 0..CONTEXTS as u8 {
                let own = id == caller.who;
                let keys = (0..1 << KEY_BITS).filter(|key| own || self.guessed || *key != key_of(id));
                attacks.extend(
                    keys.map(|key| vec![Step::plain(Access::store(shadow(page), opened_by(key, id)))]),
                );
            }
        }
        if !Self::has_context(caller.who) {
            attacks.extend(kernel::calls(caller, Held::Lock, true));
            return attacks;
        }
        let own = Place::Context(caller.who);
        attacks
            .extend(caller.sizes.iter().map(|size| vec![Step::plain(Access::store(own, Word::from(*size)))]));
        attacks.push(vec![Step::plain(Access::load(own))]);
        attacks
    }
}
