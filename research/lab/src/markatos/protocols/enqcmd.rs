//! ENQCMD with a process id in the descriptor, as in Intel's DSA (not in the paper).
//!
//! ```text
//! ENQCMD descriptor ─► portal: queue full? retry : queued with the PASID that the processor adds
//! engine: head of the queue ─► pages of that PASID ─► start, or fault ─► completion record ◄─ polled
//! ```
//!
//! One instruction passes a whole descriptor, and the processor adds the process id set by the kernel. So the engine knows
//! the issuer and translates with that process's page table. Two descriptors fit into the queue. In the weakened variant, the
//! process writes the id itself. Source: Intel Data Streaming Accelerator Architecture Specification, shared work queues and
//! PASID; Intel SDM, ENQCMD.

use crate::markatos::machine::{
    Access, Answer, Caller, FAIL, Idle, Kind, MAX_PROCESSES, Meaning, PageTable, Place, Protocol, Step,
    Transfer, Word, tried_transfers,
};

/// The queue accepted the descriptor.
const QUEUED: Word = 1;
/// The record of a completed transfer.
const DONE: Word = 1;
/// The record of a fault: the process has no right to a page.
const FAULT: Word = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    queue: [Option<(u8, Transfer)>; 2],
    records: [Word; MAX_PROCESSES],
    tables: [PageTable; MAX_PROCESSES],
}

#[derive(Clone, Copy, Debug)]
pub struct Enqcmd {
    /// Whether the processor adds the process id.
    pub trusted: bool,
}

impl Protocol for Enqcmd {
    type Engine = Engine;

    fn reset(&self, tables: &[PageTable]) -> Engine {
        let mut engine = Engine::default();
        for (entry, table) in engine.tables.iter_mut().zip(tables) {
            *entry = *table;
        }
        engine
    }

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step> {
        let accesses = [
            Access::store(Place::Record(who), 0),
            Access::exchange(Place::Portal(who), wants.encoded()),
            Access::load(Place::Record(who)),
        ];
        accesses.map(Step::plain).to_vec()
    }

    fn meaning(&self, _who: u8, read: usize, word: Word) -> Meaning {
        match (read, word) {
            (0, QUEUED) => Meaning::Continue,
            (1, 0) => Meaning::Again,
            (1, DONE) => Meaning::Started,
            _ => Meaning::Rejected,
        }
    }

    fn arrive(&self, engine: &mut Engine, access: Access) -> Answer {
        match access.at {
            Place::Portal(pasid) => {
                let Some(free) = engine.queue.iter_mut().find(|entry| entry.is_none()) else {
                    return Answer::word(FAIL);
                };
                *free = Some((pasid, Transfer::decoded(access.data)));
                Answer::word(QUEUED)
            }
            Place::Record(of) => {
                let Some(record) = engine.records.get_mut(usize::from(of)) else { return Answer::default() };
                if access.kind == Kind::Store {
                    *record = access.data;
                }
                Answer::word(*record)
            }
            _ => Answer::word(FAIL),
        }
    }

    fn idle(&self, engine: &Engine) -> Vec<Idle<Engine>> {
        let Some((pasid, transfer)) = engine.queue[0] else { return Vec::new() };
        let mut next = *engine;
        next.queue = [engine.queue[1], None];
        let table = engine.tables.get(usize::from(pasid)).copied().unwrap_or_default();
        let covered = table.covers(transfer);
        if let Some(record) = next.records.get_mut(usize::from(pasid)) {
            *record = if covered { DONE } else { FAULT };
        }
        let says = if covered { "the engine takes a descriptor" } else { "the engine records a fault" };
        vec![Idle { engine: next, starts: covered.then_some(transfer), says }]
    }

    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        let pasids = if self.trusted { caller.who..caller.who + 1 } else { 0..MAX_PROCESSES as u8 };
        let asks = |pasid, asked: &Transfer| Access::exchange(Place::Portal(pasid), asked.encoded());
        let all = tried_transfers(caller);
        pasids.flat_map(|pasid| all.iter().map(move |asked| vec![Step::plain(asks(pasid, asked))])).collect()
    }

    fn checks_size(&self) -> bool {
        true
    }
}
