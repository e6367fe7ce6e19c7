//! How long memory takes: channels, banks with open rows, a data bus that turns round, and writes held back.
//!
//! ```text
//! access ── interleave ──► channel ── bank ── row open? ──► activate, precharge ──► data bus ──► when
//!                             └── posted writes are held, and sent together ──┘
//! ```
//!
//! [`Dram`] stands before any [`Bus`] and adds [`Bus::serve`]; bytes are moved by what stands behind it. Accesses are
//! served in the order they come in, but posted writes are held until a few are there, or nothing was read meanwhile, so
//! that the bus turns round once for all of them. Refresh, power-down and reordering among reads are not modelled.
//! Source: JESD209-2 (LPDDR2) for what a row and a turn of the bus cost; the EMIF's chapter of the OMAP4460 manual for
//! the held writes and the interleaving.

use alloc::vec;
use alloc::vec::Vec;
use memferry_clock::Instant;

use crate::bus::{Access, AccessKind, Bus, BusError};

/// Organization and times of a memory, in bytes and picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DramTiming {
    /// Channels, each with banks and a data bus of its own.
    pub channels: u32,
    /// Bytes after which addresses go on in the next channel.
    pub interleave_bytes: u32,
    /// Banks of a channel.
    pub banks: u32,
    /// Bytes of a row of one bank.
    pub row_bytes: u32,
    /// Bytes that the data bus moves at least: a memory burst.
    pub burst_bytes: u32,
    /// Picoseconds of a memory burst on the data bus.
    pub burst: u64,
    /// Picoseconds to open a row (tRCD).
    pub activate: u64,
    /// Picoseconds to close one (tRP).
    pub precharge: u64,
    /// Picoseconds from a read command to its first data (RL and tDQSCK).
    pub read: u64,
    /// Picoseconds from a write command to its data (WL).
    pub write: u64,
    /// Picoseconds from a write's data until its row may be closed (tWR).
    pub write_recovery: u64,
    /// Picoseconds that the bus rests between a read's and a write's data.
    pub read_to_write: u64,
    /// Picoseconds that the bus rests between a write's and a read's data (tWTR and RL).
    pub write_to_read: u64,
    /// Posted writes that a channel holds back while there are reads.
    pub held_writes: u32,
}

/// A row of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    bank: usize,
    row: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bank {
    open: Option<u32>,
    /// When it takes the next command for the open row, and when that row may be closed.
    ready: Instant,
    closable: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Channel {
    banks: Vec<Bank>,
    /// Memory bursts of each write that is held back, and where they go.
    held: Vec<(Place, u64)>,
    bus_free: Instant,
    writes_last: bool,
}

impl Channel {
    fn new(banks: u32) -> Self {
        let banks = vec![Bank::default(); banks as usize];
        Self { banks, held: Vec::new(), bus_free: Instant::ORIGIN, writes_last: false }
    }

    /// Moves `bursts` memory bursts and says when the first of them is on the bus.
    fn transfer(
        &mut self,
        timing: &DramTiming,
        from: Instant,
        place: Place,
        bursts: u64,
        writes: bool,
    ) -> Instant {
        let after = |instant: Instant, picoseconds: u64| instant.after_picoseconds(picoseconds.into());
        let turn = match (self.writes_last, writes) {
            (true, false) => timing.write_to_read,
            (false, true) => timing.read_to_write,
            _ => 0,
        };
        let bus_free = after(self.bus_free, turn);
        let Some(bank) = self.banks.get_mut(place.bank) else {
            return from;
        };
        let command = match bank.open {
            Some(row) if row == place.row => from.max(bank.ready),
            Some(_) => after(from.max(bank.closable), timing.precharge + timing.activate),
            None => after(from.max(bank.ready), timing.activate),
        };
        let latency = if writes { timing.write } else { timing.read };
        let begin = after(command, latency).max(bus_free);
        let end = after(begin, timing.burst * bursts);
        bank.open = Some(place.row);
        bank.ready = after(command, timing.burst * bursts);
        bank.closable = if writes { after(end, timing.write_recovery) } else { bank.ready };
        self.bus_free = end;
        self.writes_last = writes;
        after(begin, timing.burst)
    }

    /// Sends every write that is held back and says when the last one's data is in.
    fn drain(&mut self, timing: &DramTiming, from: Instant) -> Instant {
        for (place, bursts) in core::mem::take(&mut self.held) {
            self.transfer(timing, from, place, bursts, true);
        }
        self.bus_free.max(from)
    }
}

/// Memory with times, before the bus that holds its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dram<B> {
    bus: B,
    timing: DramTiming,
    channels: Vec<Channel>,
}

impl<B: Bus> Dram<B> {
    /// Memory with every row closed. A size of zero is taken for one.
    pub fn new(timing: DramTiming, bus: B) -> Self {
        let at_least_one = |size: u32| size.max(1);
        let timing = DramTiming {
            channels: at_least_one(timing.channels),
            interleave_bytes: at_least_one(timing.interleave_bytes),
            banks: at_least_one(timing.banks),
            row_bytes: at_least_one(timing.row_bytes),
            burst_bytes: at_least_one(timing.burst_bytes),
            held_writes: at_least_one(timing.held_writes),
            ..timing
        };
        let channels = (0..timing.channels).map(|_| Channel::new(timing.banks)).collect();
        Self { bus, timing, channels }
    }

    /// The bus behind it.
    pub const fn bus(&self) -> &B {
        &self.bus
    }

    /// The bus behind it, to change.
    pub const fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// The channel of an address, and where in it: rows of all banks follow each other, then the next row of each.
    fn place(&self, address: u32) -> (usize, Place) {
        let DramTiming { channels, interleave_bytes, banks, row_bytes, .. } = self.timing;
        let stripe = address / interleave_bytes;
        let within = stripe / channels * interleave_bytes + address % interleave_bytes;
        let row = within / row_bytes;
        ((stripe % channels) as usize, Place { bank: (row % banks) as usize, row: row / banks })
    }
}

impl<B: Bus> Bus for Dram<B> {
    fn read(&mut self, address: u32, bytes: &mut [u8]) -> Result<(), BusError> {
        self.bus.read(address, bytes)
    }

    fn write(&mut self, address: u32, bytes: &[u8]) -> Result<(), BusError> {
        self.bus.write(address, bytes)
    }

    /// An access lies in one channel and one row, as those of a device in aligned windows do.
    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        let (channel, place) = self.place(access.address);
        let timing = self.timing;
        let bursts = u64::from(access.bytes.div_ceil(timing.burst_bytes).max(1));
        let Some(channel) = self.channels.get_mut(channel) else {
            return arrival;
        };
        match access.kind {
            AccessKind::Read => channel.transfer(&timing, arrival, place, bursts, false),
            AccessKind::Write => {
                channel.drain(&timing, arrival);
                channel.transfer(&timing, arrival, place, bursts, true);
                channel.bus_free
            }
            AccessKind::PostedWrite => {
                // Accepted when the writes before it have begun to leave: there is room for one set only.
                let accepted = if channel.held.is_empty() && channel.writes_last {
                    arrival.max(channel.bus_free)
                } else {
                    arrival
                };
                channel.held.push((place, bursts));
                if channel.writes_last || channel.held.len() >= timing.held_writes as usize {
                    channel.drain(&timing, accepted);
                }
                accepted
            }
        }
    }
}
