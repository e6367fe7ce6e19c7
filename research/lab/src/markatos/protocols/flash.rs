//! The FLASH method: the context switch announces the running process to the engine (TR 182, 2.6).
//!
//! ```text
//! context switch ──► running
//! STORE size TO shadow(destination) ──► latched for running ──► LOAD status FROM shadow(source), of the same: start
//! ```
//!
//! The engine has one register for the running process, as in the paper; but with two CPUs two processes run at once.

use super::shrimp2::{Latch, meaning, pair};
use crate::markatos::machine::{
    Access, Answer, FAIL, Kind, Meaning, PageTable, Protocol, Step, Transfer, Word,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    running: u8,
    /// The owner of the latched arguments.
    owner: u8,
    latch: Latch,
}

#[derive(Clone, Copy, Debug)]
pub struct Flash {
    /// Whether the context switch sets the engine's register.
    pub hook: bool,
}

impl Protocol for Flash {
    type Engine = Engine;

    fn reset(&self, _tables: &[PageTable]) -> Engine {
        Engine::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        pair(wants).map(Step::plain).to_vec()
    }

    fn meaning(&self, _who: u8, _read: usize, word: Word) -> Meaning {
        meaning(word)
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        if access.kind == Kind::Store {
            engine.owner = engine.running;
        } else if engine.owner != engine.running {
            return Answer::word(FAIL);
        }
        engine.latch.arrive(access)
    }

    fn switched(&self, engine: &mut Engine, to: u8) {
        if self.hook {
            engine.running = to;
        }
    }
}
