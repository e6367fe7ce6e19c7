//! The SDMA of the OMAP4430 and OMAP4460 behind its registers, in virtual time.
//!
//! ```text
//! registers ──► channels ──► scheduler ──► read threads ──► FIFOs ──► write threads ──► Bus
//! requests ────────┘             ▲                                          │
//!                                └───────────── step(now) ◄── events ◄──────┘──► CSR, interrupt lines
//! ```
//!
//! The behaviour is that of the OMAP4460 manual's section 16.4 as Wicki's thesis (sections 2.3.1 to 2.3.2.2) tells it.
//! Where neither says what happens, the model does something harmless and complains. Register accesses happen at the
//! instant of the last step. Caches, address translation and power are not modelled.
//!
//! Where the sources leave room, the model chose: a request is dropped while the one before it has not moved all its
//! elements; a posted write is in memory once the port has sent it; a register of a running block is taken when
//! the block starts; a line's status is set by events, so enabling a line later does not bring old ones up.

mod addressing;
mod channel;
mod complaint;
mod faults;
mod fifo;
mod interrupts;
mod linked_list;
mod registers;
mod scheduler;
mod setup;
mod sync;
mod timing;
mod transfer;

pub use complaint::{Complaint, Reason};
pub use faults::Faults;
pub use registers::Unprivileged;
pub use scheduler::{Port, READ_THREADS, WRITE_THREADS};
pub use timing::{Config, Timing};

use crate::Bus;
use crate::complaint::Complaints;
use alloc::vec::Vec;
use channel::Channel;
use interrupts::Interrupts;
use memferry_clock::{EventQueue, Instant};
use memferry_registers::Device;
use memferry_registers::sdma::descriptor::Form;
use memferry_registers::sdma::{CHANNELS, Gcr, OcpSysconfig};
use scheduler::{Running, Threads};
use transfer::Data;

/// What ends at an instant.
#[derive(Clone, Copy, Debug)]
enum Event {
    Read { channel: usize, address: u32, bytes: u32 },
    Write { channel: usize, address: u32, data: Data, elements: u32, waited_for: bool },
    Descriptor { channel: usize, address: u32, form: Form },
    Reset,
}

#[derive(Debug)]
pub struct Sdma<B> {
    config: Config,
    bus: B,
    now: Instant,
    events: EventQueue<Event>,
    channels: Vec<Channel>,
    running: Running,
    ports: [Threads; 2],
    /// When the read port can take the next read's data.
    read_data_free: Instant,
    turns: u64,
    interrupts: Interrupts,
    gcr: Gcr,
    sysconfig: OcpSysconfig,
    reset_until: Option<Instant>,
    suspended: bool,
    complaints: Complaints<Complaint>,
    faults: Faults,
}

impl<B: Bus> Sdma<B> {
    /// A device that was reset, at the clock's origin, in front of `bus`.
    pub fn new(config: Config, bus: B) -> Self {
        Self {
            config,
            bus,
            now: Instant::ORIGIN,
            events: EventQueue::new(),
            channels: (0..CHANNELS).map(|_| Channel::reset(config.undefined)).collect(),
            running: Running::default(),
            ports: [Threads::new(READ_THREADS), Threads::new(WRITE_THREADS)],
            read_data_free: Instant::ORIGIN,
            turns: 0,
            interrupts: Interrupts::default(),
            gcr: Gcr::RESET,
            sysconfig: OcpSysconfig::new(),
            reset_until: None,
            suspended: false,
            complaints: Complaints::default(),
            faults: Faults::default(),
        }
    }

    /// Lets everything happen that is due until `now`, and says when the next thing is. Without one, the device waits
    /// for a register access or a request. An instant of the past is the present.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        while self.events.next_due().is_some_and(|due| due <= now) {
            let Some((due, event)) = self.events.pop() else {
                break;
            };
            self.now = self.now.max(due);
            self.happen(event);
            self.schedule();
        }
        self.now = self.now.max(now);
        self.schedule();
        self.next_wake()
    }

    /// When the next thing happens; asked after register accesses and requests.
    pub fn next_wake(&self) -> Option<Instant> {
        self.events.next_due()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read { channel, address, bytes } => self.read_done(channel, address, bytes),
            Event::Write { channel, address, data, elements, waited_for } => {
                self.write_done(channel, address, data, elements, waited_for);
            }
            Event::Descriptor { channel, address, form } => self.loaded(channel, address, form),
            Event::Reset => self.reset_until = None,
        }
    }

    /// Begins a reset: all channels stop at once, and what was on its way is lost.
    fn reset(&mut self) {
        let config = self.config;
        let done = self.now.after_picoseconds(config.timing.reset.max(1).into());
        self.events = EventQueue::new();
        self.events.push(done, Event::Reset);
        self.channels = (0..CHANNELS).map(|_| Channel::reset(config.undefined)).collect();
        self.running = Running::default();
        self.ports = [Threads::new(READ_THREADS), Threads::new(WRITE_THREADS)];
        self.read_data_free = self.now;
        self.interrupts = Interrupts::default();
        self.gcr = Gcr::RESET;
        self.sysconfig = OcpSysconfig::new();
        self.reset_until = Some(done);
    }

    /// The present of the device: the last step's instant.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// What the device reads and writes.
    pub const fn bus(&self) -> &B {
        &self.bus
    }

    /// What the device reads and writes, to change.
    pub const fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Rules that software broke, oldest first, as many as are kept.
    pub fn complaints(&self) -> &[Complaint] {
        self.complaints.list()
    }

    /// Complaints that were not kept, since the list was full.
    pub const fn complaints_left_out(&self) -> u64 {
        self.complaints.left_out()
    }

    /// Takes the complaints away.
    pub fn take_complaints(&mut self) -> Vec<Complaint> {
        self.complaints.take()
    }

    /// The faults of the device, to change. A released channel goes on at the next step.
    pub const fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }
}

impl<B: Bus> Device for Sdma<B> {
    fn advance(&mut self, now: Instant) {
        self.step(now);
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn next_wake(&self) -> Option<Instant> {
        Self::next_wake(self)
    }

    fn is_high(&self, line: usize) -> bool {
        self.line(line)
    }
}
