//! How long things take, and how large the device is.
//!
//! ```text
//! turn ──► request ──► the way there ──► Bus::serve ──► the way back ──► data, a port's width each cycle
//! ```
//!
//! The numbers are parameters to be calibrated: the defaults are plausible for the OMAP4460's L3 interconnect at
//! 200 MHz and were fitted to nothing. A zero is taken for one, so that time always passes.

/// Times of the interconnect and the device in picoseconds, and what they count in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A cycle of the interconnect.
    pub cycle: u64,
    /// Bytes that a port moves in a cycle; also the width that packed accesses fill.
    pub port_bytes: u32,
    /// What a transaction takes of its port besides its data.
    pub transaction: u64,
    /// From a channel's turn on a thread to its first transaction: the port loads the channel's context.
    pub turn: u64,
    /// The way of a read to memory and of its first data back.
    pub read_latency: u64,
    /// The way of a write's last data to memory and of its acknowledgement back, which non-posted writes wait for.
    pub write_latency: u64,
    /// Reads that the only channel on the read port has on the way: the port issues ahead with the context that it has.
    pub reads_ahead: u32,
    /// Reads of one turn where channels take turns, since the port stores a channel's context when its data comes.
    pub reads_in_turn: u32,
    /// Posted writes that a channel may send in its turn on a thread.
    pub outstanding_writes: u32,
    /// From a descriptor's arrival to the block's start.
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
            reads_ahead: 4,
            reads_in_turn: 4,
            outstanding_writes: 4,
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

    /// Picoseconds that the data of a transaction of `bytes` bytes takes of its port.
    pub(super) fn data(&self, bytes: u32) -> u128 {
        u128::from(self.cycle.max(1)) * u128::from(bytes.div_ceil(self.port_width()).max(1))
    }
}

/// The device that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub timing: Timing,
    /// Bytes of one entry of GCR's FIFO depth. The paper (2.3.2.1) reads the reset value 16 as 16 bytes.
    pub fifo_entry_bytes: u32,
    /// Bytes of the FIFO pool that all channels share.
    pub fifo_pool_bytes: u32,
    pub revision: u32,
    /// What registers without a reset value hold after a reset; a driver must not rely on it.
    pub undefined: u32,
    /// The interconnect reports errors of posted writes too. Without it, only non-posted writes can fail.
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

/// The largest power of two that is not above `value`; one for zero.
pub(super) fn prev_power_of_two(value: u32) -> u32 {
    1 << (31 - value.max(1).leading_zeros())
}
