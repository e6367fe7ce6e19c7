//! Complaints: uses of the registers that the documentation forbids.
//!
//! ```text
//! register access ── rule broken ──► Complaint in a list ──► test or log
//! ```
//!
//! The model then does something harmless, stated at each reason. Errors that the device reports in CHANERR are not
//! complaints.

use core::fmt;
use memferry_clock::Instant;
use memferry_registers::ioat::describe;
use memferry_registers::ioat::offset::locate;

use crate::complaint::reasons;

reasons! {
    /// No register is at the offset; reads return zero, writes are ignored.
    NoSuchRegister => "there is no register at this offset",
    /// The width differs from the register's; a write is ignored.
    WrongWidth => "the register must be written at its own width",
    /// The register is read only; the write is ignored.
    ReadOnly => "the register is read only",
    /// Reserved bits were written as one; the bits are ignored.
    ReservedBits => "reserved bits must be written as zero",
    /// A write during the channel's reset; ignored.
    DuringReset => "a channel's registers must not be written before CHANCMD says that its reset is done",
    /// CHAINADDR or CHANCMP was written while the channel is active; ignored.
    WhileActive => "the address must not be changed while the channel is active",
    /// CHAINADDR was written while CHANERR holds unmasked errors; ignored.
    ErrorsNotCleared => "CHANERR must be cleared before a chain is given",
    /// Several commands at once; the channel halts with an error.
    SeveralCommands => "only one command may be given at a time",
    /// A command of version 1; ignored.
    OldCommand => "start and append are version 1's: later versions are started by DMACOUNT",
    /// A halted channel was suspended; ignored.
    NothingToSuspend => "a halted channel cannot be suspended",
    /// A channel was resumed that was not suspended; ignored.
    NothingToResume => "the channel was not suspended",
    /// DMACOUNT was written before CHAINADDR; ignored.
    NoChain => "CHAINADDR must be written before DMACOUNT",
    /// DMACOUNT was written with a smaller value; ignored.
    CountWentBack => "DMACOUNT must not decrease",
    /// A completion write was requested without an address; nothing is written.
    NoCompletionAddress => "CHANCMP must be written before a completion is sources_read for",
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub at: Instant,
    /// Byte offset of the register from the device's base.
    pub offset: u32,
    /// The value written or held.
    pub value: u64,
    pub reason: Reason,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match locate(self.offset) {
            Some((location, _)) => write!(f, "{}: {}", describe(location, self.value), self.reason),
            None => write!(f, "{:#x}: {}", self.offset, self.reason),
        }
    }
}
