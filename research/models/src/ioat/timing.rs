//! Timing parameters and configuration of the device.
//!
//! ```text
//! bytes, kind of access ── Timing ──► cycles ── × cycle ──► picoseconds
//!
//! rate of one channel   outstanding × burst_bytes per (2 occupancies + read latency + write latency)
//! rate of all channels  half of bus_bytes per cycle minus turns, since a copy's bytes cross the port twice
//! ```
//!
//! Zeros count as ones, so that time always passes. "Uncalibrated" marks a plausible value without measurement behind
//! it; an experiment that calibrates a value states the source.

use memferry_registers::ioat::{CHANNELS, Cbver, DmaCapability};

/// Timing of the engine and of memory as the engine sees it, in engine cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Picoseconds per cycle. 3000: a core clock of 333 MHz, as in the 5000X with a bus of 1333 MT/s.
    pub cycle: u64,
    /// Bytes that the memory port carries per cycle, reads and writes together. 32: uncalibrated.
    pub bus_bytes: u32,
    /// Cycles that an access occupies the port besides its data. 1: uncalibrated.
    pub turn: u64,
    /// Maximum bytes of an access: a power of two from 64 to 4096; no write crosses a multiple of it. 256: uncalibrated.
    pub burst_bytes: u32,
    /// Maximum bursts in flight per channel; a burst is a read and the write that follows it. 4: uncalibrated.
    pub outstanding: u32,
    /// Cycles from the end of a read's port occupancy to its data. 100: uncalibrated (300 ns, a loaded FB-DIMM).
    pub read_latency: u64,
    /// Cycles from the end of a write's port occupancy until it is in memory. 60: uncalibrated.
    pub write_latency: u64,
    /// Cycles from the DMACOUNT write to an idle channel's first fetch. 30: uncalibrated.
    pub start: u64,
    /// Cycles from a descriptor's arrival to its execution. 8: uncalibrated.
    pub decode: u64,
    /// Descriptors in flight per channel; the next one's reads follow the last one's. 2: uncalibrated; the C5500 datasheet
    /// (volume 1, QuickData features) says that the engine pipelines.
    pub pipeline: u32,
    /// Cycles of a channel reset. 300: uncalibrated.
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
    /// Maximum bytes of an access.
    pub(super) fn burst(&self) -> u64 {
        let bytes = u64::from(self.burst_bytes.clamp(64, 4096));
        1 << (63 - bytes.leading_zeros())
    }

    /// Cycles that an access of `bytes` bytes occupies the port.
    pub(super) fn occupancy(&self, bytes: u64) -> u64 {
        self.turn.saturating_add(bytes.div_ceil(u64::from(self.bus_bytes.max(1))))
    }

    /// Duration of `cycles` cycles in picoseconds; at least one cycle.
    pub(super) fn picoseconds(&self, cycles: u64) -> u128 {
        u128::from(self.cycle.max(1)) * u128::from(cycles.max(1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub timing: Timing,
    pub version: Cbver,
    /// Base-2 logarithm of the maximum bytes of a descriptor, 6 to 31. 20 (1 MiB): C5500 datasheet, volume 1.
    pub transfer_capacity: u8,
    /// Supported operations. The model uses only the fill and XOR bits.
    pub capability: DmaCapability,
    /// 1 to 4.
    pub channels: u8,
    pub unarmed: Unarmed,
    /// Whether CHANSTS still names the descriptor that completed last after a new chain was written. No document says that it forgets.
    pub keeps_completed: bool,
}

/// What happens to an interrupt that a channel requests between two arms, when its handler has not written CHANCTRL yet. The rule of
/// the hardware is not known: no document states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unarmed {
    /// It is lost: the harder case for a driver, which must look for completions again after it has armed the interrupt.
    #[default]
    Lost,
    /// It waits for the next arm. Linux's driver cleans up first and then arms without another look; with lost interrupts it stalls
    /// until a timer of two seconds ends, which is no plausible behaviour of machines that run it.
    Held,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timing: Timing::default(),
            version: Cbver::new().with_major(3).with_minor(2),
            transfer_capacity: 20,
            capability: DmaCapability::new().with_block_fill(true).with_xor(true),
            channels: CHANNELS as u8,
            unarmed: Unarmed::Lost,
            keeps_completed: false,
        }
    }
}

impl Config {
    pub(super) fn channels(&self) -> usize {
        usize::from(self.channels).clamp(1, CHANNELS)
    }

    /// Maximum bytes of a descriptor.
    pub(super) fn longest(&self) -> u64 {
        1 << self.transfer_capacity.clamp(6, 31)
    }
}
