//! The kernel's own initiation (TR 182, 2.2 and figure 1).
//!
//! ```text
//! system call: check the whole range ─► STORE source ─► STORE destination ─► STORE size (starts) ─► LOAD status
//! ```
//!
//! The four accesses go to registers mapped only by the kernel, with interrupts disabled and, on two CPUs, under a lock. It
//! is safe while both hold; without them two system calls mix their arguments. [`Registers`] and [`initiation`] also serve
//! processes without a register context.

use crate::markatos::machine::{
    Access, Answer, Caller, FAIL, Held, Kind, Meaning, Page, PageTable, Place, Protocol, Register, Step,
    Transfer, Word,
};

/// DMA_STATUS after a started transfer.
const STARTED: Word = 1;

/// The registers of figure 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers {
    source: Option<Page>,
    destination: Option<Page>,
    status: Word,
}

impl Registers {
    /// Applies an access to one of them.
    pub fn arrive(&mut self, access: Access) -> Answer {
        let Place::Register(register) = access.at else { return Answer::word(FAIL) };
        let page = Page(access.data as u8);
        match (access.kind, register) {
            (Kind::Store, Register::Source) => self.source = Some(page),
            (Kind::Store, Register::Destination) => self.destination = Some(page),
            (Kind::Store, Register::Size) => {
                let both = self.source.take().zip(self.destination.take());
                self.status = if both.is_some() { STARTED } else { FAIL };
                let size = access.data as u8;
                let starts = both.map(|(source, destination)| Transfer { source, destination, size });
                return Answer { word: 0, starts };
            }
            (Kind::Load, Register::Status) => return Answer::word(self.status),
            _ => {}
        }
        Answer::default()
    }
}

/// The system call after its checks; `held` is the protection between its accesses.
pub fn initiation(wants: Transfer, held: Held) -> Vec<Step> {
    let store =
        |register, data: u8| Step::Access(Access::store(Place::Register(register), Word::from(data)), held);
    vec![
        store(Register::Source, wants.source.0),
        store(Register::Destination, wants.destination.0),
        store(Register::Size, wants.size),
        Step::plain(Access::load(Place::Register(Register::Status))),
    ]
}

/// The conclusion from the status read by the system call.
pub fn meaning(word: Word) -> Meaning {
    if word == STARTED { Meaning::Started } else { Meaning::Rejected }
}

/// The system calls of a process that pass the kernel's checks: of the whole range, or, without `checks_size`, of the two first
/// pages only.
pub fn calls(caller: Caller<'_>, held: Held, checks_size: bool) -> Vec<Vec<Step>> {
    let mut calls = Vec::new();
    for (source, _) in caller.table.pages() {
        for (destination, _) in caller.table.pages() {
            for size in caller.sizes {
                let wants = Transfer { source, destination, size: *size };
                if caller.table.covers(wants) || (caller.table.names(wants) && !checks_size) {
                    calls.push(initiation(wants, held));
                }
            }
        }
    }
    calls
}

#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The protection during the system call.
    pub held: Held,
    /// Whether the kernel checks the whole range.
    pub checks_size: bool,
}

impl Protocol for Kernel {
    type Engine = Registers;

    fn reset(&self, _tables: &[PageTable]) -> Registers {
        Registers::default()
    }

    fn program(&self, _who: u8, wants: Transfer) -> Vec<Step> {
        initiation(wants, self.held)
    }

    fn meaning(&self, _who: u8, _read: usize, word: Word) -> Meaning {
        meaning(word)
    }

    fn arrive(&self, engine: &mut Registers, access: Access) -> Answer {
        engine.arrive(access)
    }

    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        calls(caller, self.held, self.checks_size)
    }

    fn checks_size(&self) -> bool {
        true
    }
}
