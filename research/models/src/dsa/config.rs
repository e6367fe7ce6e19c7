//! What a modelled device has, and its times.
//!
//! ```text
//! first byte of an idle device    portal + dispatch + decode + read latency
//! rate of a device                line bytes / line time, in each direction
//! rate that read buffers permit   buffers × line bytes / (read latency + time on the link)
//! ```
//!
//! The numbers of resources are those that `accel-config list` printed for a Sapphire Rapids server in public reports. "Assumed" marks a plausible
//! time that no source gives. Nothing was compared with silicon.

use memferry_dsa_registers::capability::{Engcap, Gencap, Grpcap, Opcap, Wqcap};
use memferry_dsa_registers::control::ResetType;
use memferry_dsa_registers::descriptor::opcode;

/// Times in picoseconds. Zeros count as ones where time has to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From a store to a portal until the descriptor is in its work queue. 60 ns: assumed.
    pub portal: u64,
    /// Between two descriptors that an engine takes. 20 ns: assumed; with batches it bounds the rate of small transfers, which pay from
    /// 256 to 512 bytes in Kuper et al. (ASPLOS 2024).
    pub dispatch: u64,
    /// From an engine's taking a descriptor to its first access. 30 ns: assumed.
    pub decode: u64,
    /// Bytes of a line: what a read buffer holds. 64: assumed.
    pub line_bytes: u32,
    /// Time of a line on the link of the device, in each direction. 2133 ps: 30 GB/s, the most that Kuper et al. got from one device.
    pub line: u64,
    /// Lines that are read or written by one access. 4: the model's choice; more are faster to simulate. At most a page.
    pub burst_lines: u32,
    /// From the end of a read on the link to its data. 150 ns: assumed.
    pub read_latency: u64,
    /// From the end of a write on the link until it is in memory. 80 ns: assumed.
    pub write_latency: u64,
    /// Bursts of writes in flight for one descriptor that reads nothing. 16: assumed.
    pub writes_in_flight: u32,
    /// Until a page request is answered. 20 µs: assumed.
    pub page_request: u64,
    /// Least time of a command. 1 µs: assumed.
    pub command: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            portal: 60_000,
            dispatch: 20_000,
            decode: 30_000,
            line_bytes: 64,
            line: 2_133,
            burst_lines: 4,
            read_latency: 150_000,
            write_latency: 80_000,
            writes_in_flight: 16,
            page_request: 20_000_000,
            command: 1_000_000,
        }
    }
}

impl Timing {
    /// Bytes of a burst.
    pub(super) fn burst(&self) -> u64 {
        u64::from(self.line_bytes()) * u64::from(self.burst_lines.clamp(1, 64))
    }

    pub(super) fn line_bytes(&self) -> u32 {
        self.line_bytes.clamp(1, 64)
    }

    /// Lines that hold `bytes` bytes.
    pub(super) fn lines(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.line_bytes()))
    }

    /// Time of `bytes` bytes on the link.
    pub(super) fn on_link(&self, bytes: u64) -> u128 {
        u128::from(self.line.max(1)) * u128::from(self.lines(bytes).max(1))
    }
}

/// What a device has, and its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub timing: Timing,
    /// VERSION: 0x100 is 1.0.
    pub version: u32,
    pub general: Gencap,
    /// At most 64 queues.
    pub queues: Wqcap,
    /// At most 16 groups.
    pub groups: Grpcap,
    /// At most 64 engines. What is in progress counts whether or not it can be limited.
    pub engines: Engcap,
    pub operations: Opcap,
    /// MSI-X vectors, 1 to 64.
    pub vectors: u8,
    /// Bus errors are page faults: there is address translation, as with shared virtual memory. Else they are errors of the hardware.
    pub translated: bool,
    /// What a halted device needs. `Software`: assumed; the specification leaves it to the cause.
    pub halt_reset: ResetType,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timing: Timing::default(),
            version: 0x100,
            // Printed as 0x40915f0107; without the entries of the interrupt message storage, which is not modelled.
            general: Gencap::new()
                .with_block_on_fault(true)
                .with_overlapping_copy(true)
                .with_cache_control(true)
                .with_destination_readback(true)
                .with_max_transfer(31)
                .with_max_batch(10)
                .with_configurable(true),
            queues: Wqcap::new()
                .with_total_size(128)
                .with_queues(8)
                // Entries of 64 bytes.
                .with_entry_log2(1)
                .with_shared(true)
                .with_dedicated(true)
                .with_priority(true)
                .with_occupancy(true),
            groups: Grpcap::new().with_groups(4).with_read_buffers(96).with_read_buffer_control(true),
            // In progress: the numbers of an example of the specification (7.5.8).
            engines: Engcap::new().with_engines(4).with_work_in_progress(128).with_batches_in_progress(16),
            operations: Opcap::of(&opcode::ALL),
            vectors: 9,
            translated: false,
            halt_reset: ResetType::Software,
        }
    }
}

impl Config {
    pub(super) fn queue_count(&self) -> usize {
        usize::from(self.queues.queues()).min(64)
    }

    pub(super) fn group_count(&self) -> usize {
        usize::from(self.groups.groups()).min(16)
    }

    pub(super) fn engine_count(&self) -> usize {
        usize::from(self.engines.engines()).min(64)
    }

    pub(super) fn vector_count(&self) -> usize {
        usize::from(self.vectors).clamp(1, 64)
    }
}

/// What PCI configuration space says, as far as the device depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pci {
    pub bus_master: bool,
    /// The PASID capability is enabled.
    pub pasid: bool,
    /// Privileged mode of the PASID capability is enabled.
    pub privileged: bool,
    /// Page requests are enabled.
    pub page_requests: bool,
}

impl Default for Pci {
    /// A device that a kernel without shared virtual memory uses.
    fn default() -> Self {
        Self { bus_master: true, pasid: false, privileged: false, page_requests: false }
    }
}
