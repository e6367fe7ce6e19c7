//! Intel's Data Streaming Accelerator (DSA): its registers, its 64-byte descriptors and its 32-byte completion records.
//!
//! ```text
//! BAR 0   capabilities, control, tables ── capability, control, error, table, offset ──► typed values
//! BAR 2   portals ──────────────────────── offset::portal
//! memory  descriptors, completion records ─ descriptor, record
//! ```
//!
//! A driver and the model of its device share this crate and nothing else. The crate holds no state and accesses no device.
//!
//! Source: Intel's architecture specification, document 341204, revision 3.0 (June 2025); numbers in comments are its sections. Names follow
//! Linux's `idxd` where the specification renamed a field. "Assumed" marks what no source confirms. Not covered: the event log,
//! performance counters, interrupt message storage, inter-domain operations, delta records, DIF, and what version 3 added.

#![no_std]

pub mod capability;
pub mod control;
pub mod descriptor;
pub mod error;
mod io;
pub mod offset;
pub mod record;
pub mod table;

pub use io::RegisterIo;

/// The PCI vendor of the device.
pub const VENDOR: u16 = 0x8086;
/// The PCI device number of the first generation (Sapphire Rapids).
pub const DEVICE: u16 = 0x0B25;
/// Work queues that the table of a device can describe (9.2.3).
pub const MAX_QUEUES: usize = 256;
/// Bytes of a page: portals are a page each (9.3), and page faults are counted in pages of this size.
pub const PAGE_BYTES: u64 = 4096;
