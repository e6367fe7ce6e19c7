//! DRAM timing: channels, banks with open rows, data bus turnaround, and a queue of posted writes.
//!
//! ```text
//! access ── interleave ──► channel ── bank ── row open? ──► activate, precharge ──► data bus ──► time served
//!                             └── posted writes queue until no read needs the bus ──┘
//! ```
//!
//! [`Dram`] wraps any [`Bus`] and implements [`Bus::serve`]; the wrapped bus moves the bytes. The rules of the queue are
//! those of TI's EMIF (SPRUI30, "EMIF command ordering and scheduling"): a read goes before a write, a write to an open
//! row before one to a closed row, the older one first. A read waits for older writes to its own row, and after a
//! number of reads the oldest write takes its turn. A write leaves as soon as the bus is idle, so batches form only
//! while reads keep the bus busy.
//!
//! Reads are served in order of arrival. Power-down, tRRD and tFAW are not modelled. Sources: JESD209-2 (LPDDR2) for row
//! and turnaround times.

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
    /// Minimum picoseconds from opening a row until it may close (tRAS).
    pub row_active: u64,
    /// Picoseconds from a write's data until its row may close (tWR).
    pub write_recovery: u64,
    /// Idle time of the bus between a read's and a write's data, in picoseconds.
    pub read_to_write: u64,
    /// Idle time of the bus between a write's and a read's data, in picoseconds (tWTR and RL).
    pub write_to_read: u64,
    /// Maximum posted writes in a channel's queue, and bytes of their data in words of 16 bytes.
    pub held_writes: u32,
    pub held_words: u32,
    /// Reads that may go before an older write.
    pub reads_first: u32,
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

/// Bytes of a word of the data queue.
const WORD_BYTES: u32 = 16;

/// Later than any access.
const LATEST: Instant = Instant::from_picoseconds(u128::MAX);

/// A posted write in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    arrived: Instant,
    place: Place,
    /// Memory bursts, and words of the data queue.
    bursts: u64,
    words: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Channel {
    banks: Vec<Bank>,
    /// Posted writes that have not started, oldest first.
    held: Vec<Held>,
    /// Reads that went before the oldest write.
    passed: u32,
    bus_free: Instant,
    writes_last: bool,
    /// Time of the next refresh.
    refresh: Instant,
}

impl Channel {
    fn new(banks: u32) -> Self {
        let banks = vec![Bank::default(); banks as usize];
        let start = Instant::ORIGIN;
        Self { banks, held: Vec::new(), passed: 0, bus_free: start, writes_last: false, refresh: start }
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
        let opened = match bank.open {
            Some(row) if row == place.row => None,
            Some(_) => Some(after(from.max(bank.closable), timing.precharge)),
            None => Some(from.max(bank.ready)),
        };
        let command = opened.map_or(from.max(bank.ready), |opened| after(opened, timing.activate));
        let active_until = opened.map_or(bank.closable, |opened| after(opened, timing.row_active));
        let latency = if writes { timing.write } else { timing.read };
        let begin = after(command, latency).max(bus_free);
        let end = after(begin, timing.burst * bursts);
        bank.open = Some(place.row);
        bank.ready = after(command, timing.burst * bursts);
        let moved = if writes { after(end, timing.write_recovery) } else { bank.ready };
        bank.closable = moved.max(active_until);
        self.bus_free = end;
        self.writes_last = writes;
        after(begin, timing.burst)
    }

    /// Starts the write at `index` of the queue and returns the time at which its data starts.
    fn start(&mut self, timing: &DramTiming, index: usize) -> Instant {
        let Held { arrived, place, bursts, words: _ } = self.held.remove(index);
        if index == 0 {
            self.passed = 0;
        }
        self.transfer(timing, arrived, place, bursts, true);
        let moved = u128::from(timing.burst) * u128::from(bursts);
        Instant::from_picoseconds(self.bus_free.picoseconds().saturating_sub(moved))
    }

    /// The write that goes next: the oldest one to an open row, or the oldest.
    fn next_write(&self, until: Instant) -> Option<usize> {
        let is_open =
            |place: &Place| self.banks.get(place.bank).is_some_and(|bank| bank.open == Some(place.row));
        let here = |held: &Held| held.arrived <= until;
        let open = self.held.iter().position(|held| here(held) && is_open(&held.place));
        open.or_else(|| self.held.iter().position(here))
    }

    /// Starts the writes for which the bus was idle before `until`.
    fn use_idle_bus(&mut self, timing: &DramTiming, until: Instant) {
        while let Some(oldest) = self.held.iter().map(|held| held.arrived).min() {
            let idle = self.bus_free.max(oldest);
            if idle >= until {
                return;
            }
            let Some(index) = self.next_write(idle) else { return };
            self.start(timing, index);
        }
    }

    /// Starts the writes that a read of `place` has to wait for.
    fn let_writes_pass(&mut self, timing: &DramTiming, place: Place) {
        while let Some(index) = self.held.iter().position(|held| held.place == place) {
            self.start(timing, index);
        }
        if !self.held.is_empty() {
            if self.passed >= timing.reads_first {
                self.start(timing, 0);
                self.passed = 0;
            }
            self.passed += 1;
        }
    }

    /// Whether the queue has no room for a write of so many words.
    fn is_full(&self, timing: &DramTiming, words: u32) -> bool {
        let held: u32 = self.held.iter().map(|held| held.words).sum();
        self.held.len() >= timing.held_writes as usize || held + words > timing.held_words.max(words)
    }

    /// Starts all writes, for an access that must come after them.
    fn drain(&mut self, timing: &DramTiming) {
        while let Some(index) = self.next_write(LATEST) {
            self.start(timing, index);
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
            held_words: at_least_one(timing.held_words),
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
        channel.use_idle_bus(&timing, arrival);
        match access.kind {
            AccessKind::Read => {
                channel.let_writes_pass(&timing, place);
                channel.transfer(&timing, arrival, place, bursts, false)
            }
            AccessKind::Write => {
                channel.drain(&timing);
                channel.transfer(&timing, arrival, place, bursts, true);
                channel.bus_free
            }
            AccessKind::PostedWrite => {
                // A full queue accepts a write when another one starts.
                let mut accepted = arrival;
                let words = access.bytes.div_ceil(WORD_BYTES);
                while channel.is_full(&timing, words) {
                    let Some(index) = channel.next_write(LATEST) else { break };
                    accepted = accepted.max(channel.start(&timing, index));
                }
                channel.held.push(Held { arrived: accepted, place, bursts, words });
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
        row_active: 42,
        write_recovery: 15,
        read_to_write: 5,
        write_to_read: 25,
        held_writes: 2,
        held_words: 20,
        reads_first: 4,
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

    /// When a read gets its data while others arrive with it.
    fn posted(dram: &mut Dram<Ram>, at: u128, address: u64) -> u128 {
        serve(dram, at, address, 32, AccessKind::PostedWrite)
    }

    /// The other side of the row of address 0 is this row's bank.
    const OTHER_BANK: u64 = 2 * 1024;

    #[test]
    fn a_write_starts_when_the_bus_is_idle() {
        let mut dram = memory(TIMING);
        read(&mut dram, 0, 0);
        assert_eq!(posted(&mut dram, 1_000, OTHER_BANK), 1_000);
        // The write took the idle bus long before this read, which pays for nothing.
        assert_eq!(read(&mut dram, 2_000, 64), 2_000 + 17 + 10);
        assert_eq!(posted(&mut dram, 3_000, OTHER_BANK), 3_000);
        // 3,000 + 7 and a burst; then the bus turns round.
        assert_eq!(read(&mut dram, 3_001, 64), 3_000 + 7 + 10 + 25 + 10);
    }

    #[test]
    fn reads_go_before_writes_up_to_a_number() {
        let order = |reads_first| {
            let mut dram = memory(DramTiming { reads_first, ..TIMING });
            posted(&mut dram, 0, OTHER_BANK);
            let first = read(&mut dram, 0, 0);
            let second = read(&mut dram, 0, 64);
            (first, second)
        };
        assert_eq!(order(2), (18 + 17 + 10, 18 + 17 + 30), "both reads before the write");
        let (first, second) = order(1);
        assert_eq!(first, 18 + 17 + 10);
        assert_eq!(second, (18 + 17 + 20) + 5 + 10 + 25 + 10, "the write between them");
        assert!(order(0).0 > first);
    }

    #[test]
    fn a_read_waits_for_a_write_to_its_row() {
        let mut dram = memory(TIMING);
        posted(&mut dram, 0, 32);
        assert_eq!(read(&mut dram, 0, 0), 18 + 7 + 10 + 25 + 10);
    }

    #[test]
    fn a_full_queue_delays_posted_writes() {
        let mut dram = memory(TIMING);
        serve(&mut dram, 0, 0, 32, AccessKind::Write);
        let accepted: Vec<u128> = [32, 64, 96, 32].map(|at| posted(&mut dram, 0, at)).to_vec();
        assert_eq!(accepted[..2], [0, 0]);
        assert!(accepted[1..].is_sorted_by(|a, b| a < b), "{accepted:?}");
    }

    #[test]
    fn writes_to_open_rows_go_first() {
        let timing = DramTiming { held_writes: 4, ..TIMING };
        let end = |addresses: [u64; 4]| {
            let mut dram = memory(timing);
            read(&mut dram, 0, 0);
            for address in addresses {
                posted(&mut dram, 1_000, address);
            }
            serve(&mut dram, 1_000, 64, 32, AccessKind::Write)
        };
        assert_eq!(end([NEXT_ROW, 0, NEXT_ROW + 32, 32]), end([0, 32, NEXT_ROW, NEXT_ROW + 32]));
    }

    #[test]
    fn a_row_stays_open_for_a_minimum_time() {
        let end = |row_active| {
            let mut dram = memory(DramTiming { row_active, ..TIMING });
            read(&mut dram, 0, 0);
            read(&mut dram, 0, NEXT_ROW)
        };
        assert_eq!(end(100), 100 + 19 + 18 + 17 + 10);
        assert!(end(0) < end(100));
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
