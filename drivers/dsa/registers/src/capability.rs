//! Capability registers, all read only.

use bitfield_struct::bitfield;

/// Version of the specification that the device keeps (9.2.1): 0x100 is 1.0.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Version {
    pub minor: u8,
    pub major: u8,
    #[bits(16)]
    __: u16,
}

/// General capabilities (9.2.2).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Gencap {
    pub block_on_fault: bool,
    pub overlapping_copy: bool,
    /// The cache control 1 flag: data may be written to the cache.
    pub cache_control: bool,
    #[bits(1)]
    __: u8,
    /// CMDCAP says which commands there are.
    pub command_capabilities: bool,
    pub durable_write: bool,
    pub inter_domain: bool,
    pub fetch_stride: bool,
    pub destination_readback: bool,
    pub drain_readback: bool,
    pub fill_16: bool,
    pub crc_64: bool,
    /// Completion records say which operand had the fault.
    pub fault_info: bool,
    /// 0: no event log.
    #[bits(2)]
    pub event_log: u8,
    pub batch_continuation: bool,
    /// Base-2 logarithm of the largest transfer.
    #[bits(5)]
    pub max_transfer: u8,
    /// Base-2 logarithm of the largest batch.
    #[bits(4)]
    pub max_batch: u8,
    /// Entries of the interrupt message storage, in units of 256.
    #[bits(6)]
    pub interrupt_storage: u8,
    /// Groups and work queues can be configured.
    pub configurable: bool,
    pub event_log_overflow: bool,
    #[bits(19)]
    __: u32,
    /// A batch may consist of one descriptor.
    pub batch_of_one: bool,
    #[bits(11)]
    __: u16,
}

/// Work queue capabilities (9.2.3).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Wqcap {
    /// Entries that all work queues share.
    pub total_size: u16,
    pub queues: u8,
    /// Base-2 logarithm of the bytes of a WQCFG entry, minus 5.
    #[bits(4)]
    pub entry_log2: u8,
    #[bits(20)]
    __: u32,
    pub shared: bool,
    pub dedicated: bool,
    pub ats_control: bool,
    pub priority: bool,
    pub occupancy: bool,
    pub occupancy_interrupt: bool,
    /// Each work queue has a set of operations of its own.
    pub operations_control: bool,
    pub prs_control: bool,
    #[bits(8)]
    __: u8,
}

impl Wqcap {
    /// Bytes of a WQCFG entry.
    pub const fn entry_bytes(self) -> u32 {
        32 << self.entry_log2()
    }
}

/// Group capabilities (9.2.4).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Grpcap {
    pub groups: u8,
    pub read_buffers: u8,
    pub read_buffer_control: bool,
    pub read_buffer_limit: bool,
    /// Descriptors in progress can be limited.
    pub progress_limit: bool,
    pub bandwidth_limit: bool,
    #[bits(44)]
    __: u64,
}

/// Engine capabilities (9.2.5).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Engcap {
    pub engines: u8,
    /// Undefined unless descriptors in progress can be limited.
    pub work_in_progress: u8,
    /// Undefined unless descriptors in progress can be limited.
    pub batches_in_progress: u8,
    #[bits(40)]
    __: u64,
}

/// A set of operations, by operation code: OPCAP (9.2.6), or a work queue's OPCFG (9.2.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Opcap(pub [u64; 4]);

impl Opcap {
    /// The set with these operation codes.
    pub const fn of(codes: &[u8]) -> Self {
        let mut words = [0; 4];
        let mut at = 0;
        while at < codes.len() {
            words[codes[at] as usize / 64] |= 1 << (codes[at] % 64);
            at += 1;
        }
        Self(words)
    }

    /// Whether it has an operation code.
    pub const fn contains(&self, code: u8) -> bool {
        self.0[code as usize / 64] >> (code % 64) & 1 == 1
    }

    /// Whether every operation of `other` is in it.
    pub const fn contains_all(&self, other: &Self) -> bool {
        let mut at = 0;
        while at < 4 {
            if other.0[at] & !self.0[at] != 0 {
                return false;
            }
            at += 1;
        }
        true
    }
}

/// First word of OFFSETS (9.2.7), in units of [`Offsets::UNIT`].
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Offsets {
    pub groups: u16,
    pub queues: u16,
    pub permissions: u16,
    pub interrupt_storage: u16,
}

impl Offsets {
    /// Bytes of a unit.
    pub const UNIT: u32 = 0x100;
}
