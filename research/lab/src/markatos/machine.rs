//! The vocabulary of the explored machine: pages, rights, accesses, programs, and the interface of a protocol.
//!
//! ```text
//! program: Step, Step, ... ──access──► write buffer ──► Protocol::arrive(engine) ──► answer, transfer started
//!                              ▲                              ▲
//!                  page table: shadow mappings          context-switch hook
//! ```
//!
//! A page table has a shadow mapping exactly where it has the real one (TR 182, 2.3), so a process may pass to the engine what it
//! may read (by a load) or write (by a store). The engine sees the kind, address and data of an access, but not its issuer.
//! [`super::world`] schedules.

use std::fmt;
use std::hash::Hash;

/// The value of a load or a store.
pub type Word = u16;

/// The answer of an engine that did not start a transfer, if given in the paper (4.1).
pub const FAIL: Word = 0;

/// -1: the status of a register context whose initiation failed (3.1).
pub const MINUS_ONE: Word = Word::MAX;

/// Units in a page. Transfers start at the first unit of their pages.
pub const PAGE_UNITS: u8 = 4;

pub const PAGES: usize = 6;

/// Maximum number of processes explored together.
pub const MAX_PROCESSES: usize = 3;

/// A physical page; printed as a letter, as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u8);

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A' + self.0 % 26))
    }
}

/// A requested or started transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    pub source: Page,
    pub destination: Page,
    /// Units; more than [`PAGE_UNITS`] go beyond the pages.
    pub size: u8,
}

impl Transfer {
    /// From a source page, to a destination page, units.
    pub const fn new(source: u8, destination: u8, size: u8) -> Self {
        Self { source: Page(source), destination: Page(destination), size }
    }

    /// The transfer by an engine that stops at the end of a page.
    #[must_use]
    pub fn clamped(self) -> Self {
        Self { size: self.size.min(PAGE_UNITS), ..self }
    }

    /// The number of pages touched on either side.
    pub fn page_count(self) -> u8 {
        self.size.div_ceil(PAGE_UNITS).max(1)
    }

    /// Packs it into one word of a descriptor.
    pub fn encoded(self) -> Word {
        Word::from(self.source.0) << 8 | Word::from(self.destination.0) << 4 | Word::from(self.size)
    }

    /// Unpacks one word of a descriptor.
    pub fn decoded(word: Word) -> Self {
        let [high, low] = word.to_be_bytes();
        Self { source: Page(high & 15), destination: Page(low >> 4), size: low & 15 }
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, {} units", self.source, self.destination, self.size)
    }
}

/// Rights on one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Loads, of the page and of its shadow.
    pub read: bool,
    /// Stores, to the page and to its shadow.
    pub write: bool,
}

impl Rights {
    pub const BOTH: Self = Self { read: true, write: true };
    pub const READ: Self = Self { read: true, write: false };
    pub const WRITE: Self = Self { read: false, write: true };
}

/// The rights of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageTable([Rights; PAGES]);

impl PageTable {
    pub fn of(rights: &[(u8, Rights)]) -> Self {
        let mut table = Self::default();
        for (page, right) in rights {
            if let Some(entry) = table.0.get_mut(usize::from(*page)) {
                *entry = *right;
            }
        }
        table
    }

    /// The rights on a page; none if it does not exist.
    pub fn on(&self, page: Page) -> Rights {
        self.0.get(usize::from(page.0)).copied().unwrap_or_default()
    }

    /// Whether the first source page may be read and the first destination page written.
    pub fn names(&self, transfer: Transfer) -> bool {
        self.on(transfer.source).read && self.on(transfer.destination).write
    }

    /// Whether all source pages may be read and all destination pages written.
    pub fn covers(&self, transfer: Transfer) -> bool {
        let on = |first: Page, offset: u8| self.on(Page(first.0 + offset));
        (0..transfer.page_count())
            .all(|offset| on(transfer.source, offset).read && on(transfer.destination, offset).write)
    }

    /// All pages with the rights on them.
    pub fn pages(&self) -> impl Iterator<Item = (Page, Rights)> {
        (0u8..).zip(self.0).map(|(page, rights)| (Page(page), rights))
    }
}

/// Registers that only the kernel maps (figure 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Register {
    Source,
    Destination,
    /// DMA_SIZE, which starts the transfer.
    Size,
    Status,
}

/// The target of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The shadow of a page. The context is set by the kernel in the physical address (3.2), otherwise zero.
    Shadow { page: Page, context: u8 },
    /// The page of a register context (3.1).
    Context(u8),
    /// A register of the engine, mapped only by the kernel.
    Register(Register),
    /// The address for descriptors, with the process id added by the processor.
    Portal(u8),
    /// A word of a process's completion record.
    Record(u8),
    /// A word of a private ring.
    Ring { of: u8, word: u8 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Shadow { page, context: 0 } => write!(f, "shadow({page})"),
            Place::Shadow { page, context } => write!(f, "shadow({page})#{context}"),
            Place::Context(context) => write!(f, "context {context}"),
            Place::Register(register) => write!(f, "DMA_{}", format!("{register:?}").to_uppercase()),
            Place::Portal(pasid) => write!(f, "portal, PASID {pasid}"),
            Place::Record(of) => write!(f, "record {of}"),
            Place::Ring { of, word } => write!(f, "ring {of}[{word}]"),
        }
    }
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Load,
    Store,
    /// Load and store at once: SHRIMP's compare-and-exchange, or ENQCMD.
    Exchange,
}

/// One access to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    pub kind: Kind,
    pub at: Place,
    /// The value stored; zero for a load.
    pub data: Word,
}

impl Access {
    pub const fn load(at: Place) -> Self {
        Self { kind: Kind::Load, at, data: 0 }
    }

    pub const fn store(at: Place, data: Word) -> Self {
        Self { kind: Kind::Store, at, data }
    }

    pub const fn exchange(at: Place, data: Word) -> Self {
        Self { kind: Kind::Exchange, at, data }
    }
}

/// The shadow of a page, in context 0.
pub const fn shadow(page: Page) -> Place {
    Place::Shadow { page, context: 0 }
}

/// Protection between two steps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// None: the process may be interrupted.
    Nothing,
    /// Preemption is masked on its CPU.
    Cpu,
    /// Also, no other CPU can be in such a section: the kernel's lock.
    Lock,
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A memory barrier: earlier accesses have reached the engine.
    Barrier,
    Access(Access, Held),
}

impl Step {
    /// An access without protection after it.
    pub const fn plain(access: Access) -> Self {
        Step::Access(access, Held::Nothing)
    }

    /// The protection between this step and the next.
    pub fn held(&self) -> Held {
        match self {
            Step::Barrier => Held::Nothing,
            Step::Access(_, held) => *held,
        }
    }
}

/// The conclusion of a process from a word that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// Undecided: take the next step.
    Continue,
    /// Undecided: repeat the step.
    Again,
    /// The transfer was started.
    Started,
    /// The transfer was not started: begin again.
    Rejected,
}

/// The engine's reaction to an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Answer {
    /// The word that a load reads.
    pub word: Word,
    /// The transfer that starts.
    pub starts: Option<Transfer>,
}

impl Answer {
    /// A word without a transfer.
    pub const fn word(word: Word) -> Self {
        Self { word, starts: None }
    }

    /// A word and a transfer that starts.
    pub const fn starts(word: Word, transfer: Transfer) -> Self {
        Self { word, starts: Some(transfer) }
    }
}

/// A step of the engine by itself.
#[derive(Clone, Debug)]
pub struct Idle<E> {
    /// The state after the step.
    pub engine: E,
    /// The transfer that starts.
    pub starts: Option<Transfer>,
    pub says: &'static str,
}

/// A process as seen by a protocol: its number, its rights, and the sizes that it tries if malicious.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub who: u8,
    pub table: &'a PageTable,
    pub sizes: &'a [u8],
}

/// A method to start a transfer: the accesses of processes, and the engine's front end.
pub trait Protocol {
    /// The state of the front end.
    type Engine: Clone + Eq + Hash + fmt::Debug;

    /// The front end after a reset; the kernel has set up contexts, keys and page tables for these processes.
    fn reset(&self, tables: &[PageTable]) -> Self::Engine;

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step>;

    /// The conclusion of an honest process from a word, after `read` other words of this initiation.
    fn meaning(&self, who: u8, read: usize, word: Word) -> Meaning;

    fn arrive(&self, engine: &mut Self::Engine, access: Access) -> Answer;

    /// The kernel's hook in the context switch, if the protocol has one.
    fn switched(&self, _engine: &mut Self::Engine, _to: u8) {}

    /// The possible steps of the engine by itself.
    fn idle(&self, _engine: &Self::Engine) -> Vec<Idle<Self::Engine>> {
        Vec::new()
    }

    /// All short programs that a malicious process can issue, with their protected sections.
    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        shadow_attacks(caller, 0)
    }

    /// Whether the protocol checks or cuts the size itself; otherwise the machine's clamp decides.
    fn checks_size(&self) -> bool {
        false
    }
}

/// All accesses allowed by a page table on shadow addresses of one context.
pub fn shadow_attacks(caller: Caller<'_>, context: u8) -> Vec<Vec<Step>> {
    let mut attacks = Vec::new();
    for (page, rights) in caller.table.pages() {
        let at = Place::Shadow { page, context };
        if rights.read {
            attacks.push(vec![Step::plain(Access::load(at))]);
        }
        if rights.write {
            attacks.extend(
                caller.sizes.iter().map(|size| vec![Step::plain(Access::store(at, Word::from(*size)))]),
            );
        }
    }
    attacks
}

/// Whether a page table allows a program: loads need the right to read, stores the right to write.
pub fn is_allowed(program: &[Step], table: &PageTable) -> bool {
    program.iter().all(|step| match step {
        Step::Access(Access { kind, at: Place::Shadow { page, .. }, .. }, _) => {
            let rights = table.on(*page);
            (*kind == Kind::Store || rights.read) && (*kind == Kind::Load || rights.write)
        }
        _ => true,
    })
}

/// The transfers tried by a malicious process if a descriptor can name any: its own within a page and beyond it, that of the
/// first process, and two mixtures.
pub fn tried_transfers(caller: Caller<'_>) -> Vec<Transfer> {
    let own = || caller.table.pages().filter(|(_, rights)| rights.write).map(|(page, _)| page.0);
    let (Some(first), Some(last)) = (own().next(), own().last()) else { return Vec::new() };
    let sizes = caller.sizes.iter().map(|size| Transfer::new(first, last, *size));
    sizes.chain([Transfer::new(0, 1, 2), Transfer::new(first, 1, 1), Transfer::new(0, last, 1)]).collect()
}
