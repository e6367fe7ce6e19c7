//! The list of all protocols; each has its own file.
//!
//! ```text
//! CATALOGUE: name, section, weakened? ──► Explorable (a protocol without its type) ──► explored in a scene
//! ```
//!
//! A weakened protocol lacks the one condition of its safety. It shows that the exploration finds the breaches that the condition
//! prevents.

pub mod enqcmd;
pub mod extended;
pub mod flash;
pub mod kernel;
pub mod keys;
pub mod pal;
pub mod repeated;
pub mod repeated3;
pub mod repeated4;
pub mod repeated5;
pub mod ring;
pub mod shrimp1;
pub mod shrimp2;

use super::explore::{Bounds, Exploration, explore};
use super::machine::{Held, PageTable, Protocol, Step, Transfer, is_allowed};
use super::progress::{self, Progress};
use super::story::{self, Story};
use super::world::{Machine, Move, Scene};

/// A protocol with its type erased.
pub trait Explorable: Sync {
    /// Visits every state of a scene.
    fn explore(&self, scene: &Scene, bounds: Bounds) -> Exploration;
    /// Whether honest processes get their transfers.
    fn progress(&self, scene: &Scene) -> Progress;
    /// The moves as a story, line by line.
    fn story(&self, scene: &Scene, moves: &[Move]) -> Story;
    fn program(&self, who: u8, wants: Transfer) -> Vec<Step>;
    /// Whether a page table allows an honest initiation.
    fn is_allowed(&self, who: u8, wants: Transfer, table: &PageTable) -> bool;
}

impl<P: Protocol + Sync> Explorable for P {
    fn explore(&self, scene: &Scene, bounds: Bounds) -> Exploration {
        explore(&Machine::new(self, scene), bounds)
    }

    fn progress(&self, scene: &Scene) -> Progress {
        progress::progress(&Machine::new(self, scene))
    }

    fn story(&self, scene: &Scene, moves: &[Move]) -> Story {
        story::lay_out(&Machine::new(self, scene), moves)
    }

    fn program(&self, who: u8, wants: Transfer) -> Vec<Step> {
        Protocol::program(self, who, wants)
    }

    fn is_allowed(&self, who: u8, wants: Transfer, table: &PageTable) -> bool {
        is_allowed(&Protocol::program(self, who, wants), table)
    }
}

#[derive(Clone, Copy)]
pub struct Entry {
    /// The name in commands and rows.
    pub name: &'static str,
    /// The section of the paper, or another origin.
    pub source: &'static str,
    /// The missing condition of a weakened protocol.
    pub lacks: Option<&'static str>,
    pub protocol: &'static dyn Explorable,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name)
    }
}

const fn entry(name: &'static str, source: &'static str, protocol: &'static dyn Explorable) -> Entry {
    Entry { name, source, lacks: None, protocol }
}

const fn weakened(name: &'static str, lacks: &'static str, protocol: &'static dyn Explorable) -> Entry {
    Entry { name, source: "weakened", lacks: Some(lacks), protocol }
}

/// Every protocol, and weakened variants.
pub const CATALOGUE: &[Entry] = &[
    entry("kernel", "2.2, figure 1", &kernel::Kernel { held: Held::Lock, checks_size: true }),
    weakened(
        "kernel-interruptible",
        "interrupts disabled during the call",
        &kernel::Kernel { held: Held::Nothing, checks_size: true },
    ),
    weakened(
        "kernel-unlocked",
        "a lock beside disabled interrupts",
        &kernel::Kernel { held: Held::Cpu, checks_size: true },
    ),
    weakened(
        "kernel-unchecked",
        "the check of the whole range",
        &kernel::Kernel { held: Held::Lock, checks_size: false },
    ),
    entry("shrimp-1", "2.4", &shrimp1::Shrimp1 { atomic: true }),
    weakened("shrimp-1-split", "one access for size and status", &shrimp1::Shrimp1 { atomic: false }),
    entry("shrimp-2", "2.5, figure 2", &shrimp2::Shrimp2 { invalidates: true }),
    weakened("shrimp-2-unmodified", "the switch that invalidates", &shrimp2::Shrimp2 { invalidates: false }),
    entry("flash", "2.6", &flash::Flash { hook: true }),
    weakened(
        "flash-unmodified",
        "the switch that announces the running process",
        &flash::Flash { hook: false },
    ),
    entry("pal", "2.7", &pal::Pal { masked: true }),
    weakened("pal-unmasked", "masked preemption", &pal::Pal { masked: false }),
    entry("keys", "3.1, figure 3", &keys::Keys { compares: true, guessed: false }),
    weakened("keys-unchecked", "the comparison of keys", &keys::Keys { compares: false, guessed: false }),
    weakened("keys-guessed", "a key that cannot be guessed", &keys::Keys { compares: true, guessed: true }),
    entry("extended-contexts", "3.2, figure 4", &extended::Extended { contexts: true, ids: true }),
    weakened(
        "extended-contexts-no-ids",
        "ids in the addresses",
        &extended::Extended { contexts: true, ids: false },
    ),
    entry("extended", "3.2, figure 4", &extended::Extended { contexts: false, ids: true }),
    weakened("extended-no-ids", "the comparison of ids", &extended::Extended { contexts: false, ids: false }),
    entry("repeated-3", "3.3, figure 5", &repeated3::THREE),
    entry("repeated-4", "3.3, figure 6", &repeated4::FOUR),
    entry("repeated-5", "3.3, figures 7 and 10", &repeated5::FIGURE_10),
    weakened(
        "repeated-5-unchecked",
        "the comparison of the fifth address",
        &repeated5::Repeated5 { fifth: false, ..repeated5::FIGURE_10 },
    ),
    weakened(
        "repeated-5-aliased",
        "pages that differ in the twelve bits",
        &repeated5::Repeated5 { aliased: true, ..repeated5::FIGURE_10 },
    ),
    entry(
        "repeated-5-every-barrier",
        "4.2",
        &repeated5::Repeated5 { barriers: repeated5::Barriers::Every, ..repeated5::FIGURE_10 },
    ),
    weakened(
        "repeated-5-no-barriers",
        "memory barriers",
        &repeated5::Repeated5 { barriers: repeated5::Barriers::None, ..repeated5::FIGURE_10 },
    ),
    entry("enqcmd", "Intel DSA", &enqcmd::Enqcmd { trusted: true }),
    weakened("enqcmd-own-pasid", "the processor's process id", &enqcmd::Enqcmd { trusted: false }),
    entry("ring", "memferry", &ring::Ring { copies_once: true }),
    weakened("ring-read-twice", "the private copy", &ring::Ring { copies_once: false }),
];

/// The protocol with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.name == name)
}
