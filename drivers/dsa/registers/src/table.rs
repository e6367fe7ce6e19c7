//! Entries of the tables: interrupt permissions, groups, work queues.

use bitfield_struct::bitfield;

use crate::capability::Opcap;

/// Permission of an MSI-X vector (9.2.22).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Msixperm {
    #[bits(2)]
    __: u8,
    /// Completions of descriptors do not raise it.
    pub ignore: bool,
    /// Must be equal to the work queue's.
    pub pasid_enable: bool,
    #[bits(8)]
    __: u8,
    /// Must be equal to the descriptor's, if PASID is enabled.
    #[bits(20)]
    pub pasid: u32,
}

/// Flags of a group (9.2.23).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Grpflags {
    #[bits(3)]
    pub traffic_class_a: u8,
    #[bits(3)]
    pub traffic_class_b: u8,
    #[bits(1)]
    __: u8,
    pub use_read_buffer_limit: bool,
    pub read_buffers_reserved: u8,
    #[bits(4)]
    __: u8,
    pub read_buffers_allowed: u8,
    #[bits(4)]
    __: u8,
    /// 0 to 3: all, a half, a quarter, an eighth of what an engine can have in progress.
    #[bits(2)]
    pub work_limit: u8,
    #[bits(2)]
    __: u8,
    #[bits(2)]
    pub batch_limit: u8,
    #[bits(2)]
    __: u8,
    #[bits(4)]
    pub read_bandwidth: u8,
    #[bits(4)]
    pub write_bandwidth: u8,
    #[bits(16)]
    pub reserved: u16,
}

/// State of a work queue (9.2.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QueueState {
    #[default]
    Disabled,
    Enabled,
    /// It is being disabled or reset.
    Draining,
    /// A value that the specification does not use.
    Unused,
}

impl QueueState {
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Disabled,
            1 => Self::Enabled,
            2 => Self::Draining,
            _ => Self::Unused,
        }
    }

    pub const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// Bytes 8 to 11 of a work queue's entry.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct QueueMode {
    /// One client that counts the entries; else shared.
    pub dedicated: bool,
    pub block_on_fault: bool,
    pub ats_disable: bool,
    pub prs_disable: bool,
    #[bits(4)]
    pub priority: u8,
    #[bits(20)]
    pub pasid: u32,
    pub pasid_enable: bool,
    pub privileged: bool,
    #[bits(2)]
    __: u8,
}

/// Bytes 12 to 15 of a work queue's entry.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct QueueLimits {
    /// Base-2 logarithm of the largest transfer.
    #[bits(5)]
    pub max_transfer: u8,
    /// Base-2 logarithm of the largest batch.
    #[bits(4)]
    pub max_batch: u8,
    #[bits(23)]
    __: u32,
}

/// Bytes 24 to 27 of a work queue's entry, mostly read only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct QueueStatus {
    pub occupancy: u16,
    pub occupancy_interrupt: bool,
    #[bits(12)]
    __: u16,
    pub mode_support: bool,
    #[bits(2)]
    pub state: QueueState,
}

/// 32-bit words of a work queue's entry (9.2.24).
pub mod word {
    pub const SIZE: u32 = 0;
    pub const THRESHOLD: u32 = 1;
    pub const MODE: u32 = 2;
    pub const LIMITS: u32 = 3;
    pub const OCCUPANCY_INTERRUPT: u32 = 4;
    pub const OCCUPANCY_LIMIT: u32 = 5;
    pub const STATUS: u32 = 6;
    /// The first of eight words of operations.
    pub const OPERATIONS: u32 = 8;
    /// Words of an entry with operations.
    pub const COUNT: u32 = 16;
}

/// The writable part of a work queue's entry that this crate covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Wqcfg {
    /// Entries of the queue. Zero: the queue is unused.
    pub size: u16,
    /// Entries that limited portals may fill, if the queue is shared.
    pub threshold: u16,
    pub mode: QueueMode,
    pub limits: QueueLimits,
    /// Operations that it allows, if the device can limit them.
    pub operations: Opcap,
}
