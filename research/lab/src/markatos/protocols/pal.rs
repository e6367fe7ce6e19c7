//! The PAL-code method: the two accesses are one call that cannot be interrupted (TR 182, 2.7).
//!
//! ```text
//! call_pal user_level_dma ──► [ STORE size TO shadow(destination); LOAD status FROM shadow(source) ] ──► start
//!                                 preemption is masked, on this CPU
//! ```
//!
//! Any process may call the installed function with its own addresses, and may also issue single accesses. Masking affects only
//! the CPU that runs it.

use super::shrimp2::{Latch, meaning, pair};
use crate::markatos::machine::{
    Access, Answer, Caller, Held, Meaning, PageTable, Protocol, Step, Transfer, Word, shadow_attacks,
};

#[derive(Clone, Copy, Debug)]
pub struct Pal {
    /// Whether preemption is masked between the two accesses.
    pub masked: bool,
}

impl Protocol for Pal {
    type Engine = Latch;

    fn reset(&self, _tables: &[PageTable]) -> Latch {
        Latch::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        let [store, load] = pair(wants);
        let held = if self.masked { Held::Cpu } else { Held::Nothing };
        vec![Step::Access(store, held), Step::plain(load)]
    }

    fn meaning(&self, _who: u8, _read: usize, word: Word) -> Meaning {
        meaning(word)
    }

    fn arrive(&self, engine: &mut Latch, access: Access) -> Answer {
        engine.arrive(access)
    }

    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        let mut attacks = shadow_attacks(caller, 0);
        for (source, _) in caller.table.pages() {
            for (destination, _) in caller.table.pages() {
                for size in caller.sizes {
                    let wants = Transfer { source, destination, size: *size };
                    if caller.table.names(wants) {
                        attacks.push(self.program(caller.who, wants));
                    }
                }
            }
        }
        attacks
    }
}
