//! Intel's I/OAT engine (versions 2 and 3) behind its registers, in virtual time: four channels that share one way to memory.
//!
//! ```text
//! registers ──► channels ── fetch ──► descriptors at work ── reads ──► bursts ── writes ──► Bus
//!                  ▲                        one way to memory, channels in turn              │
//!                  └── CHANSTS, completion writes, the line ◄── step(now) ◄── events ◄───────┘
//! ```
//!
//! The registers' behaviour is that of the datasheets that [`memferry_registers::ioat`] names. Where they leave room, the model chose,
//! mostly the harsher: a reset forgets the completion address and the control bits; an interrupt that comes while the channel's
//! is not armed is lost; a resumed channel fetches again what it had not begun; an error always halts, unless
//! CHANERR_MASK has it; a fill's pattern begins with the destination's first byte; after a suspend the descriptors already begun
//! (as many as the pipeline holds) end. Register accesses happen at the instant of the last step.
//!
//! Memory may take time of its own ([`Bus::serve`]), between an access's way and its latency. Caches, snooping, address translation, message-signalled interrupts and PCI configuration space are not modelled. Bytes that are read
//! are read when they arrive, so what a descriptor writes may be read by the next one or not, unless there is a fence.

mod access;
mod channel;
mod complaint;
mod faults;
mod registers;
mod timing;

pub use complaint::{Complaint, Reason};
pub use faults::Faults;
pub use timing::{Config, Timing};

use crate::complaint::Complaints;
use crate::{Access, AccessKind, Bus};
use access::Port;
use alloc::vec::Vec;
use channel::Channel;
use memferry_clock::{EventQueue, Instant};
use memferry_registers::Device;
use memferry_registers::ioat::descriptor::WORDS;
use memferry_registers::ioat::{CHANNELS, Genctrl, Intrctrl, LINES};

/// What ends at an instant. What belongs to an earlier epoch of its channel is forgotten.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A channel may use the way to memory.
    Free,
    /// A descriptor has arrived.
    Fetched { address: u64 },
    /// A source's bytes have arrived.
    Read { serial: u64, offset: u64, source: usize },
    /// A burst's bytes are in memory.
    Written { serial: u64, offset: u64 },
    /// The status is in memory.
    Completed { status: u64, interrupt: bool },
    /// A reset is over.
    Reset,
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
    /// Channels that wait for attention.
    attention: u32,
    complaints: Complaints<Complaint>,
    faults: Faults,
}

impl<B: Bus> Ioat<B> {
    /// A device as after power-up, at the clock's origin, in front of `bus`.
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
            complaints: Complaints::default(),
            faults: Faults::default(),
        }
    }

    /// Lets everything happen that is due until `now`, and says when the next thing is. Without one, the device waits for a
    /// register access. An instant of the past is the present.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        while self.events.next_due().is_some_and(|due| due <= now) {
            let Some((at, due)) = self.events.pop() else {
                break;
            };
            self.now = self.now.max(at);
            self.happen(due);
            self.schedule();
        }
        self.now = self.now.max(now);
        self.schedule();
        self.next_wake()
    }

    /// When the next thing happens; asked after register accesses.
    pub fn next_wake(&self) -> Option<Instant> {
        self.events.next_due()
    }

    fn happen(&mut self, due: Due) {
        let Due { channel, epoch, event } = due;
        let is_now = self.channels[channel].epoch == epoch;
        match event {
            Event::Free => {}
            _ if !is_now => {}
            Event::Fetched { address } => self.fetched(channel, address),
            Event::Read { serial, offset, source } => self.read_done(channel, serial, offset, source),
            Event::Written { serial, offset } => self.write_done(channel, serial, offset),
            Event::Completed { status, interrupt } => self.completed(channel, status, interrupt),
            Event::Reset => self.channels[channel].reset(),
        }
    }

    /// Lets something of `channel` end after `cycles`.
    fn after(&mut self, cycles: u64, channel: usize, event: Event) {
        let at = self.now.after_picoseconds(self.config.timing.picoseconds(cycles));
        let epoch = self.channels[channel].epoch;
        self.events.push(at, Due { channel, epoch, event });
    }

    /// Lets an access of `channel` leave the device after `cycles`, be served by memory, and end `latency` cycles later.
    fn reach(
        &mut self,
        (address, bytes, kind): (u64, u64, AccessKind),
        (cycles, latency): (u64, u64),
        channel: usize,
        event: Event,
    ) {
        let timing = self.config.timing;
        let left = self.now.after_picoseconds(timing.picoseconds(cycles));
        let served = match u32::try_from(address) {
            Ok(address) => self.bus.serve(left, Access { address, bytes: bytes as u32, kind }),
            Err(_) => left,
        };
        let at = served.after_picoseconds(timing.picoseconds(latency));
        let epoch = self.channels[channel].epoch;
        self.events.push(at, Due { channel, epoch, event });
    }

    /// The present of the device: the last step's instant.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Whether the interrupt line is high; other lines never are.
    pub const fn line(&self, line: usize) -> bool {
        line < LINES && self.intrctrl.master_enable() && self.attention != 0
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

/// Words from their bytes.
fn words(bytes: &[u8; 8 * WORDS]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}
