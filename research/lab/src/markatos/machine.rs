//! The vocabulary of the explored machine: pages, rights, accesses, programs, and what a protocol has to say.
//!
//! ```text
//! program: Step, Step, ... ──access──► write buffer ──► Protocol::arrive(engine) ──► answer, transfer started
//!                              ▲                              ▲
//!                  page table: shadow mappings          context-switch hook
//! ```
//!
//! A page table has a shadow mapping exactly where it has the real one (TR 182, 2.3), so what a process may pass to the
//! engine is what it may read (by a load) or write (by a store). The engine sees the kind of an access, its address and its
//! data, and never who issued it. Nothing is scheduled here; see [`super::world`].

use std::fmt;
use std::hash::Hash;

/// What a load gives, and what a store carries.
pub type Word = u16;

/// The word of an engine that did not start a transfer, where the paper gives it (4.1).
pub const FAIL: Word = 0;

/// -1: a register context whose initiation failed (3.1).
pub const MINUS_ONE: Word = Word::MAX;

/// Units in a page. Transfers begin at the first unit of their pages.
pub const PAGE_UNITS: u8 = 4;

/// How many pages there are.
pub const PAGES: usize = 6;

/// The most processes that are explored together.
pub const MOST_PROCESSES: usize = 3;

/// A physical page; shown as a letter, as the paper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u8);

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A' + self.0 % 26))
    }
}

/// A transfer that is asked for, or that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    pub source: Page,
    pub destination: Page,
    /// Units; more than [`PAGE_UNITS`] run past the pages.
    pub size: u8,
}

impl Transfer {
    /// From a page, to a page, units.
    pub const fn new(source: u8, destination: u8, size: u8) -> Self {
        Self { source: Page(source), destination: Page(destination), size }
    }

    /// What an engine makes of it that stops at the end of a page.
    #[must_use]
    pub fn clamped(self) -> Self {
        Self { size: self.size.min(PAGE_UNITS), ..self }
    }

    /// How many pages it touches on either side.
    pub fn page_count(self) -> u8 {
        self.size.div_ceil(PAGE_UNITS).max(1)
    }

    /// As one word of a descriptor.
    pub fn encoded(self) -> Word {
        Word::from(self.source.0) << 8 | Word::from(self.destination.0) << 4 | Word::from(self.size)
    }

    /// From one word of a descriptor.
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

/// What a page table allows on one page.
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
    /// No right but these.
    pub fn of(rights: &[(u8, Rights)]) -> Self {
        let mut table = Self::default();
        for (page, right) in rights {
            if let Some(entry) = table.0.get_mut(usize::from(*page)) {
                *entry = *right;
            }
        }
        table
    }

    /// The rights on a page; none on one that does not exist.
    pub fn on(&self, page: Page) -> Rights {
        self.0.get(usize::from(page.0)).copied().unwrap_or_default()
    }

    /// Whether the two first pages of a transfer may be read and written.
    pub fn names(&self, transfer: Transfer) -> bool {
        self.on(transfer.source).read && self.on(transfer.destination).write
    }

    /// Whether every page of a transfer may be.
    pub fn covers(&self, transfer: Transfer) -> bool {
        let on = |first: Page, offset: u8| self.on(Page(first.0 + offset));
        (0..transfer.page_count())
            .all(|offset| on(transfer.source, offset).read && on(transfer.destination, offset).write)
    }

    /// The pages there are, with the rights on them.
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

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The shadow of a page; the context is what the kernel put into the physical address (3.2), zero otherwise.
    Shadow {
        /// The page that is passed.
        page: Page,
        context: u8,
    },
    /// The page of a register context (3.1).
    Context(u8),
    /// A register of the engine that only the kernel maps.
    Register(Register),
    /// Where descriptors are enqueued, with the process id that the processor adds.
    Portal(u8),
    /// A word of a completion record of a process.
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
    /// Both at once: SHRIMP's compare-and-exchange, or ENQCMD.
    Exchange,
}

/// One access that reaches the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    pub kind: Kind,
    pub at: Place,
    /// What it carries; zero for a load.
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

/// What happens between the steps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// The process may be interrupted after this step.
    Nothing,
    /// It may not: preemption is masked on its CPU.
    Cpu,
    /// Nor may another CPU be in such a section: the kernel's lock.
    Lock,
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A memory barrier: what was issued before has reached the engine.
    Barrier,
    Access(Access, Held),
}

impl Step {
    /// An access after which the process may be interrupted.
    pub const fn plain(access: Access) -> Self {
        Step::Access(access, Held::Nothing)
    }

    /// What holds between this step and the next.
    pub fn held(&self) -> Held {
        match self {
            Step::Barrier => Held::Nothing,
            Step::Access(_, held) => *held,
        }
    }
}

/// What a process concludes from a word that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// Nothing yet: the next step.
    GoOn,
    /// The same step again.
    Again,
    /// Its transfer was started.
    Started,
    /// It was not: from the beginning.
    Rejected,
}

/// What the engine makes of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Answer {
    /// What a load reads.
    pub word: Word,
    /// The transfer that begins.
    pub starts: Option<Transfer>,
}

impl Answer {
    /// A word, and nothing begins.
    pub const fn word(word: Word) -> Self {
        Self { word, starts: None }
    }

    /// A word, and this begins.
    pub const fn starts(word: Word, transfer: Transfer) -> Self {
        Self { word, starts: Some(transfer) }
    }
}

/// What the engine does by itself: its next state, what begins, and what a reader calls it.
#[derive(Clone, Debug)]
pub struct Idle<E> {
    /// The state after it.
    pub engine: E,
    /// The transfer that begins.
    pub starts: Option<Transfer>,
    pub says: &'static str,
}

/// A process as a protocol sees it: which it is, what it may touch, and which sizes it passes when it is malicious.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub who: u8,
    pub table: &'a PageTable,
    /// Sizes that it tries.
    pub sizes: &'a [u8],
}

/// A way to start a transfer: what processes issue, and the front end of the engine that it reaches.
pub trait Protocol {
    /// The state of the front end.
    type Engine: Clone + Eq + Hash + fmt::Debug;

    /// The front end after a reset; the kernel has set up contexts, keys and page tables for these processes.
    fn reset(&self, tables: &[PageTable]) -> Self::Engine;

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step>;

    /// What an honest process concludes from a word, having read `read` others before in this initiation.
    fn meaning(&self, who: u8, read: usize, word: Word) -> Meaning;

    /// What an access does.
    fn arrive(&self, engine: &mut Self::Engine, access: Access) -> Answer;

    /// The kernel's hook in the context switch, where the protocol has one.
    fn switched(&self, _engine: &mut Self::Engine, _to: u8) {}

    /// What the engine may do now by itself.
    fn idle(&self, _engine: &Self::Engine) -> Vec<Idle<Self::Engine>> {
        Vec::new()
    }

    /// Everything that a malicious process can issue, each a short program that cannot be interrupted where it says so.
    fn attacks(&self, caller: Caller<'_>) -> Vec<Vec<Step>> {
        shadow_attacks(caller, 0)
    }

    /// Whether the engine checks or cuts the size by itself; otherwise the machine's clamp decides.
    fn checks_size(&self) -> bool {
        false
    }
}

/// Every access that a page table allows on shadow addresses of one context.
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

/// The transfers that a malicious process asks for where a descriptor names them freely: its own within a page and past
/// it, that of the first process, and the two mixtures.
pub fn tried(caller: Caller<'_>) -> Vec<Transfer> {
    let own = || caller.table.pages().filter(|(_, rights)| rights.write).map(|(page, _)| page.0);
    let (Some(first), Some(last)) = (own().next(), own().last()) else { return Vec::new() };
    let sizes = caller.sizes.iter().map(|size| Transfer::new(first, last, *size));
    sizes.chain([Transfer::new(0, 1, 2), Transfer::new(first, 1, 1), Transfer::new(0, last, 1)]).collect()
}
