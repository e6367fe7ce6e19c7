//! DRAM timing: channels, banks with open rows, data bus turnaround, and a buffer of posted writes.
//!
//! ```text
//! access ── interleave ──► channel ── bank ── row open? ──► activate, precharge ──► data bus ──► time served
//!                             └── posted writes are buffered and sent together ──┘
//! ```
//!
//! [`Dram`] wraps any [`Bus`] and implements [`Bus::serve`]; the wrapped bus moves the bytes. Accesses are served in
//! order of arrival. Posted writes are buffered until the buffer is full or no read came since the last write, so that
//! the bus turns around once for all of them. Power-down and reordering among reads are not modelled.
//! Sources: JESD209-2 (LPDDR2) for row and turnaround times; the EMIF chapter of the OMAP4460 manual for the write
//! buffer and the interleaving.

use alloc::vec;
use alloc::vec::Vec;
use memferry_clock::Instant;

use crate::bus::{Access, AccessKind, Bus, BusError};

/// Organization and timing of a memory, in bytes and picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DramTiming {
    /// Channels, each with its own banks and data bus.
    pub channels: u32,
    /// Bytes after which addresses continue in the next channel.
    pub interleave_bytes: u32,
    pub banks: u32,
    /// Bytes per row of one bank.
    pub row_bytes: u32,
    /// Bytes of a memory burst, the smallest transfer on the data bus.
    pub burst_bytes: u32,
    /// Duration of a memory burst on the data bus, in picoseconds.
    pub burst: u64,
    /// Picoseconds to open a row (tRCD).
    pub activate: u64,
    /// Picoseconds to close a row (tRP).
    pub precharge: u64,
    /// Picoseconds from a read command to its first data (RL and tDQSCK).
    pub read: u64,
    /// Picoseconds from a write command to its data (WL).
    pub write: u64,
    /// Picoseconds from a write's data until its row may close (tWR).
    pub write_recovery: u64,
    /// Idle time of the bus between a read's and a write's data, in picoseconds.
    pub read_to_write: u64,
    /// Idle time of the bus between a write's and a read's data, in picoseconds (tWTR and RL).
    pub write_to_read: u64,
    /// Posted writes that a channel buffers while there are reads.
    pub held_writes: u32,
    /// Picoseconds between refreshes (tREFI); zero disables refresh.
    pub refresh_every: u64,
    /// Duration of a refresh of all banks, in picoseconds (tRFCab).
    pub refresh: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    bank: usize,
    row: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bank {
    open: Option<u64>,
    /// Time of the next command to the open row (`ready`), and of that row's closing (`closable`).
    ready: Instant,
    closable: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Channel {
    banks: Vec<Bank>,
    /// Buffered writes: target and number of memory bursts.
    held: Vec<(Place, u64)>,
    bus_free: Instant,
    writes_last: bool,
    /// Time of the next refresh.
    refresh: Instant,
}

impl Channel {
    fn new(banks: u32) -> Self {
        let banks = vec![Bank::default(); banks as usize];
        let start = Instant::ORIGIN;
        Self { banks, held: Vec::new(), bus_free: start, writes_last: false, refresh: start }
    }

    /// Refreshes all banks if a refresh is due before an access at `from`. Refreshes during idle time cost nothing.
    fn refresh(&mut self, timing: &DramTiming, from: Instant) {
        let every = u128::from(timing.refresh_every);
        if every == 0 || from < self.refresh {
            return;
        }
        let passed = (from.picoseconds() - self.refresh.picoseconds()) / every;
        let last = self.refresh.after_picoseconds(passed * every);
        let ready = last.max(self.bus_free).after_picoseconds(timing.refresh.into());
        for bank in &mut self.banks {
            *bank = Bank { open: None, ready: ready.max(bank.closable), closable: ready };
        }
        self.refresh = last.after_picoseconds(every);
    }

    /// Moves `bursts` memory bursts and returns the time at which the first of them is on the bus.
    fn transfer(
        &mut self,
        timing: &DramTiming,
        from: Instant,
        place: Place,
        bursts: u64,
        writes: bool,
    ) -> Instant {
        let after = |instant: Instant, picoseconds: u64| instant.after_picoseconds(picoseconds.into());
        self.refresh(timing, from);
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

    /// Sends all buffered writes, grouped by row, open rows first.
    fn drain(&mut self, timing: &DramTiming, from: Instant) {
        let mut held = core::mem::take(&mut self.held);
        let is_closed =
            |place: &Place| self.banks.get(place.bank).is_none_or(|bank| bank.open != Some(place.row));
        held.sort_by_key(|(place, _)| (is_closed(place), place.bank, place.row));
        for (place, bursts) in held {
            self.transfer(timing, from, place, bursts, true);
        }
    }
}

/// A bus with DRAM timing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dram<B> {
    bus: B,
    timing: DramTiming,
    channels: Vec<Channel>,
}

impl<B: Bus> Dram<B> {
    /// Memory with every row closed. A size of zero counts as one.
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

    pub const fn bus(&self) -> &B {
        &self.bus
    }

    pub const fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// The channel of an address, and its bank and row. Consecutive rows are in consecutive banks.
    fn place(&self, address: u64) -> (usize, Place) {
        let DramTiming { channels, interleave_bytes, banks, row_bytes, .. } = self.timing;
        let [channels, interleave_bytes, banks, row_bytes] =
            [channels, interleave_bytes, banks, row_bytes].map(u64::from);
        let stripe = address / interleave_bytes;
        let within = stripe / channels * interleave_bytes + address % interleave_bytes;
        let row = within / row_bytes;
        ((stripe % channels) as usize, Place { bank: (row % banks) as usize, row: row / banks })
    }
}

impl<B: Bus> Bus for Dram<B> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        self.bus.read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        self.bus.write(address, bytes)
    }

    /// The access must lie in one channel and one row; a device's accesses in aligned windows do.
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
                // The buffer holds one set: a write is accepted once the writes before it have started to leave.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ram;

    const TIMING: DramTiming = DramTiming {
        channels: 2,
        interleave_bytes: 128,
        banks: 4,
        row_bytes: 1024,
        burst_bytes: 32,
        burst: 10,
        activate: 18,
        precharge: 19,
        read: 17,
        write: 7,
        write_recovery: 15,
        read_to_write: 5,
        write_to_read: 25,
        held_writes: 2,
        refresh_every: 0,
        refresh: 130,
    };

    /// Bytes between two rows of one bank.
    const NEXT_ROW: u64 = 2 * 1024 * 4;

    fn memory(timing: DramTiming) -> Dram<Ram> {
        Dram::new(timing, Ram::new(0, vec![0; 64]))
    }

    fn serve(dram: &mut Dram<Ram>, at: u128, address: u64, bytes: u32, kind: AccessKind) -> u128 {
        dram.serve(Instant::from_picoseconds(at), Access { address, bytes, kind }).picoseconds()
    }

    fn read(dram: &mut Dram<Ram>, at: u128, address: u64) -> u128 {
        serve(dram, at, address, 64, AccessKind::Read)
    }

    #[test]
    fn switching_rows_costs_a_precharge() {
        let mut dram = memory(TIMING);
        assert_eq!(read(&mut dram, 1_000, 0), 1_000 + 18 + 17 + 10, "activate, command, first burst");
        assert_eq!(read(&mut dram, 2_000, 64), 2_000 + 17 + 10, "the row is open");
        assert_eq!(read(&mut dram, 3_000, NEXT_ROW), 3_000 + 19 + 18 + 17 + 10, "another row of the bank");
        assert_eq!(read(&mut dram, 4_000, 2048), 4_000 + 18 + 17 + 10, "another bank's row is closed");
    }

    #[test]
    fn simultaneous_reads_share_a_channels_bus() {
        let mut dram = memory(TIMING);
        let first = read(&mut dram, 0, 0);
        assert_eq!(read(&mut dram, 0, 64), first + 20, "after both bursts of the first");
        assert_eq!(read(&mut dram, 0, 128), first, "the other channel has another bus");
    }

    #[test]
    fn reads_pass_buffered_writes() {
        let mut dram = memory(TIMING);
        read(&mut dram, 0, 0);
        assert_eq!(serve(&mut dram, 100, 0, 32, AccessKind::PostedWrite), 100);
        assert_eq!(read(&mut dram, 200, 64), 200 + 17 + 10, "the buffered write causes no delay");
        assert_eq!(serve(&mut dram, 300, 32, 32, AccessKind::PostedWrite), 300);
        // Writes: 300 + 7, two bursts; then the bus turns around before the read's data.
        assert_eq!(read(&mut dram, 300, 64), 300 + 7 + 20 + 25 + 10);
    }

    #[test]
    fn a_full_buffer_delays_posted_writes() {
        let mut dram = memory(TIMING);
        serve(&mut dram, 0, 0, 32, AccessKind::Write);
        let accepted: Vec<u128> =
            (1..4).map(|at| serve(&mut dram, 0, at * 32, 32, AccessKind::PostedWrite)).collect();
        assert!(accepted.is_sorted_by(|a, b| a < b), "{accepted:?}");
    }

    #[test]
    fn buffered_writes_are_sent_row_by_row() {
        let timing = DramTiming { held_writes: 4, ..TIMING };
        let end = |addresses: [u64; 4]| {
            let mut dram = memory(timing);
            read(&mut dram, 0, 0);
            for address in addresses {
                serve(&mut dram, 1_000, address, 32, AccessKind::PostedWrite);
            }
            read(&mut dram, 1_000, 0)
        };
        assert_eq!(end([NEXT_ROW, 0, NEXT_ROW + 32, 32]), end([0, 32, NEXT_ROW, NEXT_ROW + 32]));
    }

    #[test]
    fn refresh_closes_rows_and_is_not_repeated() {
        let timing = DramTiming { refresh_every: 10_000, ..TIMING };
        let mut dram = memory(timing);
        read(&mut dram, 9_000, 0);
        assert_eq!(read(&mut dram, 9_500, 64), 9_500 + 17 + 10);
        assert_eq!(read(&mut dram, 10_000, 0), 10_000 + 130 + 18 + 17 + 10);
        assert_eq!(read(&mut dram, 55_000, 0), 55_000 + 18 + 17 + 10, "closed by an earlier refresh");
    }

    #[test]
    fn bytes_come_from_the_wrapped_bus() {
        let mut dram = memory(TIMING);
        assert_eq!(dram.write(8, &[1, 2]), Ok(()));
        let mut bytes = [0; 2];
        assert_eq!(dram.read(8, &mut bytes), Ok(()));
        assert_eq!((bytes, dram.bus().bytes()[9]), ([1, 2], 2));
        assert_eq!(dram.write(64, &[1]), Err(BusError));
    }
}
