//! Intel's Data Streaming Accelerator in virtual time: work queues, groups, engines and their accesses to memory.
//!
//! ```text
//! portals ──► work queues ── arbiter of the group ──► engines ── bursts ──► link ──► Bus
//!    BAR 2         │              (priorities)          │  ▲                  │
//! registers ── commands: enable, drain, abort, reset    │  └─ children ◄── batches
//!    BAR 0                                              └──► completion record, interrupt, or SWERROR
//! ```
//!
//! Behaviour follows Intel's specification (document 341204, revision 3.0), whose sections the comments cite. Where it leaves a choice, the
//! model mostly takes the one that is harder for a driver: descriptors of different engines, and those of a batch, overtake each other; a drop at
//! a portal leaves no trace but a complaint; an abort completes what engines have and abandons what waits in queues.
//!
//! The model is not the hardware: its times come from [`Timing`], caches and the cache of translations are missing, traffic classes have no effect, and
//! accesses name their PASID to the one [`Bus`]. Not modelled: event log, interrupt message storage, occupancy interrupts, performance counters,
//! delta records, DIF, inter-domain operations, and the operations of version 3.

mod batches;
mod checks;
mod commands;
mod complaint;
mod config;
mod crc;
mod faults;
mod finish;
mod origin;
mod queues;
mod registers;
mod work;

pub use complaint::{Complaint, Reason};
pub use config::{Config, Pci, Timing};
pub use faults::Faults;

use crate::Bus;
use crate::complaint::Complaints;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use batches::Batch;
use commands::Running;
use memferry_clock::{EventQueue, Instant};
use memferry_dsa_registers::control::{Cmdsts, DeviceState, Gencfg, Genctrl, Intcause, ResetType};
use memferry_dsa_registers::error::SoftwareError;
use memferry_dsa_registers::table::Msixperm;
use queues::{Engine, Group, WorkQueue};
use work::Work;

/// Who a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Work(u64),
    Batch(u64),
}

/// An event at the end of an action.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Something may be dispatched.
    Wake,
    /// A descriptor is decoded.
    Started(Owner),
    /// The list of a batch has arrived.
    Listed(u64),
    /// The data of a burst has arrived.
    Read { work: u64, at: u64 },
    /// A burst is in memory.
    Written { work: u64, at: u64 },
    /// A page request was answered.
    Resolved { work: u64 },
    /// The completion record is in memory.
    Recorded(Owner),
    /// The least time of a command is over.
    Command,
}

/// When the link is free, in each direction.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    reads: Instant,
    writes: Instant,
}

/// The registers that are not tables.
#[derive(Clone, Copy, Debug, Default)]
struct Control {
    gencfg: Gencfg,
    genctrl: Genctrl,
    intcause: Intcause,
    cmdsts: Cmdsts,
    error: SoftwareError,
    state: DeviceState,
    reset: ResetType,
}

/// A device in front of `B`.
#[derive(Debug)]
pub struct Dsa<B> {
    config: Config,
    bus: B,
    now: Instant,
    events: EventQueue<Event>,
    pci: Pci,
    control: Control,
    queues: Vec<WorkQueue>,
    groups: Vec<Group>,
    engines: Vec<Engine>,
    permissions: Vec<Msixperm>,
    works: BTreeMap<u64, Work>,
    batches: BTreeMap<u64, Batch>,
    serial: u64,
    /// Counts accepted descriptors, for drains.
    order: u64,
    link: Link,
    command: Option<Running>,
    /// Vectors that send a message, a bit each.
    messages: u64,
    complaints: Complaints<Complaint>,
    faults: Faults,
}

impl<B: Bus> Dsa<B> {
    /// A device after power-up, at the clock's origin.
    pub fn new(config: Config, bus: B) -> Self {
        let mut device = Self {
            config,
            bus,
            now: Instant::ORIGIN,
            events: EventQueue::new(),
            pci: Pci::default(),
            control: Control::default(),
            queues: vec![WorkQueue::default(); config.queue_count()],
            groups: vec![Group::default(); config.group_count()],
            engines: vec![Engine::default(); config.engine_count()],
            permissions: vec![Msixperm::new(); config.vector_count()],
            works: BTreeMap::new(),
            batches: BTreeMap::new(),
            serial: 0,
            order: 0,
            link: Link::default(),
            command: None,
            messages: 0,
            complaints: Complaints::default(),
            faults: Faults::default(),
        };
        device.clear_configuration();
        device
    }

    /// Processes all events due until `now` and returns the time of the next one. With none, the device waits for an access. A time in the
    /// past counts as the current time.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        while let Some((at, event)) = self.events.pop_due(now) {
            self.now = self.now.max(at);
            self.process_event(event);
            self.schedule();
        }
        self.now = self.now.max(now);
        self.schedule();
        self.next_wake()
    }

    fn process_event(&mut self, event: Event) {
        match event {
            Event::Wake => {}
            Event::Started(Owner::Work(work)) => self.work_started(work),
            Event::Started(Owner::Batch(batch)) => self.batch_started(batch),
            Event::Listed(batch) => self.batch_listed(batch),
            Event::Read { work, at } => self.burst_read(work, at),
            Event::Written { work, at } => self.burst_written(work, at),
            Event::Resolved { work } => self.page_resolved(work),
            Event::Recorded(owner) => self.recorded(owner),
            Event::Command => self.advance_command(),
        }
    }

    /// Starts everything that can start now.
    fn schedule(&mut self) {
        self.dispatch();
        for engine in 0..self.engines.len() {
            self.issue(engine);
        }
    }

    fn after(&mut self, picoseconds: u64, event: Event) {
        self.events.push(self.now.after_picoseconds(picoseconds.max(1).into()), event);
    }

    /// Time of the next event; call it after accesses.
    pub fn next_wake(&self) -> Option<Instant> {
        self.events.next_due()
    }

    /// The device's current time: that of the last step.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Takes the MSI-X vectors that send a message, a bit each.
    pub const fn take_messages(&mut self) -> u64 {
        core::mem::replace(&mut self.messages, 0)
    }

    /// Tells the device what PCI configuration space says. A change while it is not disabled halts it (5.7, 9.1.3).
    pub fn set_pci(&mut self, pci: Pci) {
        let changed = pci != core::mem::replace(&mut self.pci, pci);
        let state = self.control.state;
        if changed && !matches!(state, DeviceState::Disabled | DeviceState::Halted) {
            self.halt();
        }
    }

    /// Descriptors that the device has, in queues and engines, batches with their children as one.
    pub fn pending(&self) -> usize {
        let queued: usize = self.queues.iter().map(WorkQueue::occupancy).sum();
        queued + self.batches.len() + self.works.values().filter(|work| work.batch.is_none()).count()
    }

    /// The bus behind the device.
    pub const fn bus(&self) -> &B {
        &self.bus
    }

    pub const fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Rules that software broke, oldest first, as far as they were stored.
    pub fn complaints(&self) -> &[Complaint] {
        self.complaints.list()
    }

    /// Complaints that were dropped because the list was full.
    pub const fn complaints_left_out(&self) -> u64 {
        self.complaints.left_out()
    }

    pub fn take_complaints(&mut self) -> Vec<Complaint> {
        self.complaints.take()
    }

    /// The device's injected faults. What they held continues at the next step.
    pub const fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }
}
