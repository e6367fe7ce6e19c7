//! Complaints: uses of registers and portals that the specification forbids or ignores.
//!
//! The model then does something harmless, stated at each reason. Errors that the device reports in completion records, in SWERROR or in
//! CMDSTATUS are no complaints.

use core::fmt;
use memferry_clock::Instant;

use crate::complaint::reasons;

reasons! {
    /// No register is at the offset; reads return zero, writes are ignored (9.2).
    NoSuchRegister => "there is no register at this offset",
    /// The access is not aligned to its width; reads return zero, writes are ignored (chapter 9).
    Misaligned => "an access must be aligned to its width of 1, 2, 4 or 8 bytes",
    /// The register is read only, in general or in this state; the write is ignored (tables 9-4, 9-7).
    ReadOnly => "the register is read only now",
    /// A write to BAR 2 that is not of 64 bytes, or not at a portal; ignored (9.3).
    NoPortal => "a portal takes aligned writes of 64 bytes",
    /// A portal was read; all ones (9.3).
    PortalRead => "a portal cannot be read",
    /// A descriptor for a work queue that is not enabled; dropped (5.3).
    QueueNotEnabled => "the work queue is not enabled",
    /// A posted write to a shared work queue; dropped (5.3).
    PostedToShared => "a shared work queue takes deferrable writes (ENQCMD)",
    /// A deferrable write to a dedicated work queue; Retry (5.3).
    DeferrableToDedicated => "a dedicated work queue takes posted writes (MOVDIR64B)",
}

/// A rule that software broke, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub at: Instant,
    /// 0 for registers, 2 for portals.
    pub bar: u8,
    pub offset: u64,
    /// What was written; zero for reads and portals.
    pub value: u64,
    pub reason: Reason,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BAR {} at {:#x}, value {:#x}: {}", self.bar, self.offset, self.value, self.reason)
    }
}
