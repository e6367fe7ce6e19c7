//! The SDMA controller of the OMAP4430 and OMAP4460 in virtual time.
//!
//! ```text
//! registers ──► channels ──► scheduler ──► read threads ──► FIFOs ──► write threads ──► Bus
//! requests ────────┘             ▲                                          │
//!                                └───────────── step(now) ◄── events ◄──────┘──► CSR, interrupt lines
//! ```
//!
//! Behaviour follows section 16.4 of the OMAP4460 manual as described in Wicki's thesis (sections 2.3.1 to 2.3.2.2).
//! Where neither defines the behaviour, the model does something harmless and files a complaint. Register accesses
//! happen at the time of the last step. Caches, address translation and power are not modelled.
//!
//! Choices where the sources are open: a request is dropped while the one before it has elements left to move; a posted
//! write is in memory once the port has sent it; a running block uses the register values from its start; events set a
//! line's status, so enabling a line later does not raise it for earlier events.

mod addressing;
mod channel;
mod complaint;
mod faults;
mod fifo;
mod interrupts;
mod linked_list;
mod register_file;
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

/// An event at the end of an action.
#[derive(Clone, Copy, Debug)]
enum Event {
    Read { channel: usize, thread: usize, address: u32, bytes: u32 },
    Write { channel: usize, thread: usize, address: u32, data: Data, elements: u32, waited_for: bool },
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
    /// Time at which the read port can accept the next read's data.
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
    /// A device after a reset, at the clock's origin, in front of `bus`.
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

    /// Processes all events due until `now` and returns the time of the next one. With none, the device waits for a
    /// register access or a request. A time in the past counts as the current time.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        // Register accesses before this step may have made channels ready; after an event nothing is left to schedule.
        let mut is_scheduled = false;
        while let Some((due, event)) = self.events.pop_due(now) {
            self.now = self.now.max(due);
            self.process_event(event);
            self.schedule();
            is_scheduled = true;
        }
        self.now = self.now.max(now);
        if !is_scheduled {
            self.schedule();
        }
        self.next_wake()
    }

    /// Time of the next event; call it after register accesses and requests.
    pub fn next_wake(&self) -> Option<Instant> {
        self.events.next_due()
    }

    fn process_event(&mut self, event: Event) {
        match event {
            Event::Read { channel, thread, address, bytes } => {
                self.ports[Port::Read as usize].release(thread);
                self.read_done(channel, address, bytes);
            }
            Event::Write { channel, thread, address, data, elements, waited_for } => {
                self.ports[Port::Write as usize].release(thread);
                self.write_done(channel, address, data, elements, waited_for);
            }
            Event::Descriptor { channel, address, form } => self.loaded(channel, address, form),
            Event::Reset => self.reset_until = None,
        }
    }

    /// Starts a reset: all channels stop at once and drop all that is in flight.
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

    /// The device's current time: that of the last step.
    pub const fn now(&self) -> Instant {
        self.now
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

    /// The device's injected faults. A released channel continues at the next step.
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
