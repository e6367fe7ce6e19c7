//! Timing parameters and sizes of the device.
//!
//! ```text
//! turn ──► request ──► latency ──► Bus::serve ──► latency ──► data, a port's width each cycle
//! ```
//!
//! The defaults are plausible for the OMAP4460's L3 interconnect at 200 MHz but were not calibrated against any
//! measurement. A zero counts as one, so that time always passes.

/// Timing of the interconnect and the device, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A cycle of the interconnect.
    pub cycle: u64,
    /// Bytes that a port moves per cycle; also the width of packed accesses.
    pub port_bytes: u32,
    /// Time that a transaction occupies its port besides its data.
    pub transaction: u64,
    /// Time from the start of a turn to its transaction: the port loads the channel's context, while the other threads go on.
    pub turn: u64,
    /// Latency of a read: to memory, and of its first data back.
    pub read_latency: u64,
    /// Latency of a write: of its last data to memory, and of the acknowledgement (which non-posted writes wait for) back.
    pub write_latency: u64,
    /// Maximum reads of one channel in flight, whatever the other channels do. Each takes a thread of the read port.
    pub channel_reads: u32,
    /// Maximum posted writes of one channel in flight. Each takes a thread of the write port.
    pub channel_writes: u32,
    /// Time from a descriptor's arrival to the start of the block.
    pub descriptor: u64,
    pub reset: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            cycle: 5_000,
            port_bytes: 8,
            transaction: 5_000,
            turn: 10_000,
            read_latency: 120_000,
            write_latency: 80_000,
            channel_reads: 4,
            channel_writes: 2,
            descriptor: 20_000,
            reset: 80_000,
        }
    }
}

impl Timing {
    /// Width of a port: a power of two of 4 to 64 bytes.
    pub(super) fn port_width(&self) -> u32 {
        prev_power_of_two(self.port_bytes.clamp(4, 64))
    }

    /// Time that the data of a transaction of `bytes` bytes occupies its port, in picoseconds.
    pub(super) fn data(&self, bytes: u32) -> u128 {
        u128::from(self.cycle.max(1)) * u128::from(bytes.div_ceil(self.port_width()).max(1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub timing: Timing,
    /// Bytes per entry of GCR's FIFO depth. The paper (2.3.2.1) reads the reset value 16 as 16 bytes.
    pub fifo_entry_bytes: u32,
    /// Bytes of the FIFO pool that all channels share.
    pub fifo_pool_bytes: u32,
    pub revision: u32,
    /// Content of registers without a defined reset value; a driver must not rely on it.
    pub undefined: u32,
    /// Whether the interconnect reports errors of posted writes too. If not, only non-posted writes can fail.
    pub posted_errors: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timing: Timing::default(),
            fifo_entry_bytes: 1,
            fifo_pool_bytes: 1024,
            revision: 0x0001_0900,
            undefined: 0xA5A5_A5A5,
            posted_errors: true,
        }
    }
}

/// The largest power of two up to `value`; one for zero.
pub(super) fn prev_power_of_two(value: u32) -> u32 {
    1 << (31 - value.max(1).leading_zeros())
}
