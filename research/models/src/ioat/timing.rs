//! How long things take, and what the device is.
//!
//! ```text
//! bytes, kind of access ── Timing ──► cycles ── × cycle ──► picoseconds
//!
//! one channel alone    outstanding × burst bytes for each (2 occupancies + read latency + write latency)
//! all together         half of bus_bytes for each cycle, less the turns, for a copy's bytes pass twice
//! ```
//!
//! Zeros are taken for ones, so that time always passes. "Uncalibrated" is a plausible value that was fitted to nothing; an
//! experiment that calibrates one names it, and by what.

use memferry_registers::ioat::{Cbver, DmaCapability};

/// Times of the engine and of memory as it sees it, in cycles of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Picoseconds of a cycle. 3000: a core clock of 333 MHz, as the 5000X with a bus of 1333 MT/s has.
    pub cycle: u64,
    /// Bytes that the engine's one way to memory carries in a cycle, reads and writes together. 32: uncalibrated.
    pub bus_bytes: u32,
    /// Cycles that an access takes of that way besides its data. 1: uncalibrated.
    pub turn: u64,
    /// Bytes of an access at most; a power of two of 64 to 4096, no write crosses a multiple of it. 256: uncalibrated.
    pub burst_bytes: u32,
    /// Accesses of a channel that may be under way, a read and the write that follows being one. 4: uncalibrated.
    pub outstanding: u32,
    /// Cycles from a read's last cycle on the way to its data. 100: uncalibrated (300 ns, a loaded FB-DIMM).
    pub read_latency: u64,
    /// Cycles from a write's last cycle on the way until it is in memory. 60: uncalibrated.
    pub write_latency: u64,
    /// Cycles from DMACOUNT's write to a resting channel's first fetch. 30: uncalibrated.
    pub start: u64,
    /// Cycles from a descriptor's arrival until it may be worked on. 8: uncalibrated.
    pub decode: u64,
    /// Descriptors of a channel at work, the next one's reads following the last one's. 2: uncalibrated; that there is such
    /// pipelining is the C5500 datasheet's (volume 1, QuickData features).
    pub pipeline: u32,
    /// Cycles of a channel's reset. 300: uncalibrated.
    pub reset: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            cycle: 3_000,
            bus_bytes: 32,
            turn: 1,
            burst_bytes: 256,
            outstanding: 4,
            read_latency: 100,
            write_latency: 60,
            start: 30,
            decode: 8,
            pipeline: 2,
            reset: 300,
        }
    }
}

impl Timing {
    /// Bytes of an access at most.
    pub(super) fn burst(&self) -> u64 {
        let bytes = u64::from(self.burst_bytes.clamp(64, 4096));
        1 << (63 - bytes.leading_zeros())
    }

    /// Cycles that an access of `bytes` bytes occupies the way to memory.
    pub(super) fn occupancy(&self, bytes: u64) -> u64 {
        self.turn.saturating_add(bytes.div_ceil(u64::from(self.bus_bytes.max(1))))
    }

    /// Picoseconds of `cycles` cycles, at least one cycle.
    pub(super) fn picoseconds(&self, cycles: u64) -> u128 {
        u128::from(self.cycle.max(1)) * u128::from(cycles.max(1))
    }
}

/// The device that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub timing: Timing,
    pub version: Cbver,
    /// The logarithm of a descriptor's most bytes, 6 to 31. 20, a megabyte: the C5500 datasheet's (volume 1).
    pub transfer_capacity: u8,
    /// What it can do. Only fills and XOR make a difference here.
    pub capability: DmaCapability,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timing: Timing::default(),
            version: Cbver::new().with_major(3).with_minor(2),
            transfer_capacity: 20,
            capability: DmaCapability::new().with_block_fill(true).with_xor(true),
        }
    }
}

impl Config {
    /// Bytes of a descriptor at most.
    pub(super) fn longest(&self) -> u64 {
        1 << self.transfer_capacity.clamp(6, 31)
    }
}
