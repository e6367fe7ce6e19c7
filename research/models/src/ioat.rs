//! Intel's I/OAT engine (versions 2 and 3) in virtual time: four channels that share one memory port.
//!
//! ```text
//! registers ──► channels ── fetch ──► descriptors in flight ── reads ──► bursts ── writes ──► Bus
//!                  ▲                  one memory port, channels in round robin              │
//!                  └── CHANSTS, completion writes, interrupt ◄── step(now) ◄── events ◄─────┘
//! ```
//!
//! Register behaviour follows the datasheets named in [`memferry_registers::ioat`]. Where they are silent, the model
//! mostly takes the behaviour that is harder for a driver: a reset clears the completion address and the control bits;
//! an interrupt is lost if the channel's interrupt is not armed ([`Unarmed`] changes that); a resumed channel fetches again the descriptors it had
//! not started; an error always halts unless CHANERR_MASK masks it; a fill's pattern starts at the destination's first
//! byte; a suspend lets the started descriptors finish (at most the pipeline's depth). Register accesses happen at the
//! time of the last step.
//!
//! Memory may add its own time ([`Bus::serve`]) between an access's transfer and its latency. Caches, snooping, address
//! translation and PCI configuration space are not modelled; DCACTRL keeps what is written and has no effect. A source is read when its
//! data arrives: without a fence, a descriptor may or may not see what the one before it writes.

mod access;
mod channel;
mod complaint;
mod faults;
mod registers;
mod timing;

pub use complaint::{Complaint, Reason};
pub use faults::{Faults, Planned, PlannedFault, Until};
pub use timing::{Config, Timing, Unarmed};

use crate::complaint::Complaints;
use crate::{Access, AccessKind, Bus};
use access::Port;
use alloc::vec::Vec;
use channel::Channel;
use memferry_clock::{EventQueue, Instant};
use memferry_registers::Device;
use memferry_registers::ioat::descriptor::WORDS;
use memferry_registers::ioat::{CHANNELS, Genctrl, Intrctrl, LINES};

/// An event at the end of an action. Events of an earlier epoch of their channel are ignored.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A channel may use the memory port.
    Free,
    /// A descriptor has arrived.
    Fetched {
        address: u64,
    },
    /// The data of one source has arrived.
    Read {
        serial: u64,
        offset: u64,
        source: usize,
    },
    /// A burst is in memory.
    Written {
        serial: u64,
        offset: u64,
    },
    /// The completion write is in memory.
    Completed {
        status: u64,
        interrupt: bool,
        lost: bool,
    },
    Reset,
    /// The time of a stuck channel is over.
    Released,
}

/// An event of a channel.
#[derive(Clone, Copy, Debug)]
struct Due {
    channel: usize,
    epoch: u32,
    event: Event,
}

#[derive(Debug)]
pub struct Ioat<B> {
    config: Config,
    bus: B,
    now: Instant,
    events: EventQueue<Due>,
    channels: [Channel; CHANNELS],
    port: Port,
    intrctrl: Intrctrl,
    genctrl: Genctrl,
    /// Channels with a pending interrupt, as a bit mask (ATTNSTATUS).
    attention: u32,
    /// Channels whose own interrupt message was not taken yet.
    messages: u32,
    complaints: Complaints<Complaint>,
    faults: Faults,
}

impl<B: Bus> Ioat<B> {
    /// A device after power-up, at the clock's origin, in front of `bus`.
    pub fn new(config: Config, bus: B) -> Self {
        Self {
            config,
            bus,
            now: Instant::ORIGIN,
            events: EventQueue::new(),
            channels: [const { Channel::new() }; CHANNELS],
            port: Port::default(),
            intrctrl: Intrctrl::new(),
            genctrl: Genctrl::new(),
            attention: 0,
            messages: 0,
            complaints: Complaints::default(),
            faults: Faults::default(),
        }
    }

    /// Processes all events due until `now` and returns the time of the next one. With none, the device waits for a
    /// register access. A time in the past counts as the current time.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        while let Some((at, due)) = self.events.pop_due(now) {
            self.now = self.now.max(at);
            self.process_event(due);
            self.schedule();
        }
        self.now = self.now.max(now);
        self.schedule();
        self.next_wake()
    }

    /// Time of the next event; call it after register accesses.
    pub fn next_wake(&self) -> Option<Instant> {
        self.events.next_due()
    }

    fn process_event(&mut self, due: Due) {
        let Due { channel, epoch, event } = due;
        let is_current = self.channels[channel].epoch == epoch;
        match event {
            Event::Free => {}
            Event::Released => self.faults.unstick(channel, Until::is_elapsed),
            _ if !is_current => {}
            Event::Fetched { address } => self.fetched(channel, address),
            Event::Read { serial, offset, source } => self.read_done(channel, serial, offset, source),
            Event::Written { serial, offset } => self.write_done(channel, serial, offset),
            Event::Completed { status, interrupt, lost } => self.completed(channel, status, interrupt, lost),
            Event::Reset => self.channels[channel].reset(),
        }
    }

    /// Schedules `event` of `channel` in `cycles` cycles.
    fn after(&mut self, cycles: u64, channel: usize, event: Event) {
        self.at(self.now.after_picoseconds(self.config.timing.picoseconds(cycles)), channel, event);
    }

    fn at(&mut self, instant: Instant, channel: usize, event: Event) {
        let epoch = self.channels[channel].epoch;
        self.events.push(instant, Due { channel, epoch, event });
    }

    /// Issues a memory access of `channel`: it leaves the device after `cycles`, memory serves it, and it ends `latency`
    /// cycles later.
    fn access_memory(
        &mut self,
        (address, bytes, kind): (u64, u64, AccessKind),
        (cycles, latency): (u64, u64),
        channel: usize,
        event: Event,
    ) {
        let timing = self.config.timing;
        let left = self.now.after_picoseconds(timing.picoseconds(cycles));
        let served = self.bus.serve(left, Access { address, bytes: bytes as u32, kind });
        let at = served.after_picoseconds(timing.picoseconds(latency));
        self.at(at, channel, event);
    }

    /// The device's current time: that of the last step.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Whether the interrupt line is high; false for any other line.
    pub const fn line(&self, line: usize) -> bool {
        line < LINES && self.intrctrl.master_enable() && self.attention != 0
    }

    /// Takes the channels, as a bit mask, that send an interrupt message of their own: those that interrupt while INTRCTRL gives each
    /// channel a vector. They wait while INTRCTRL disables interrupts.
    pub const fn take_messages(&mut self) -> u32 {
        if self.intrctrl.master_enable() { core::mem::replace(&mut self.messages, 0) } else { 0 }
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

impl<B: Bus> Device for Ioat<B> {
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

/// Little-endian words from bytes.
fn words(bytes: &[u8; 8 * WORDS]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}
