//! Complaints: uses of the device that the manual forbids.
//!
//! ```text
//! register write, start of a channel, request ── rule broken ──► Complaint in a list ──► test or log
//! ```
//!
//! The device does not report these, and its behaviour is then undefined. The model does something harmless, stated at
//! each reason. Errors that the device reports in CSR are not complaints.

use core::fmt;
use memferry_clock::Instant;
use memferry_registers::sdma::{describe, offset};

use crate::complaint::reasons;

reasons! {
    /// No register is at the offset; reads return zero, writes are ignored.
    NoSuchRegister => "there is no register at this offset",
    /// The register is read only; the write is ignored.
    ReadOnly => "the register is read only",
    /// Reserved bits were written as one; the bits are ignored.
    ReservedBits => "reserved bits must be written as zero",
    /// An access during the reset; ignored.
    DuringReset => "registers must not be accessed before SYSSTATUS says that the reset is done",
    /// A register of a running channel was written; the transfer keeps the old value.
    WhileEnabled => "a channel's registers must not be changed while it is enabled",
    /// The channel was enabled before its disabling finished; it is not enabled.
    StillActive => "the channel must not be enabled before RD_ACTIVE and WR_ACTIVE are zero",
    /// The channel was enabled with status bits set; it runs.
    StatusNotCleared => "CSR and IRQSTATUS must be cleared before a channel is enabled",
    /// FIFO depth zero; the old value is kept.
    FifoDepthZero => "the FIFO depth must not be zero",
    /// A reserved value of a power mode; stored.
    ReservedMode => "the power mode is reserved",
    /// No elements; the channel is not enabled.
    NoElements => "CEN must not be zero",
    /// No frames; the channel is not enabled.
    NoFrames => "CFN must not be zero",
    /// The reserved element size; the channel is not enabled.
    ReservedDataType => "the element size is reserved",
    /// The undefined write mode; writes are non-posted.
    UndefinedWriteMode => "the write mode is undefined",
    /// The undefined transfer modes; the channel is not enabled.
    UndefinedTransferMode => "the transfer mode is undefined",
    /// Fill and transparent copy at once; the channel is not enabled.
    FillAndTransparent => "constant fill and transparent copy exclude each other",
    /// Constant addresses from memory to memory; the channel is not enabled.
    ConstantMemory => "constant addressing is not supported from memory to memory",
    /// Bursts of elements that are not packed; there are no bursts.
    BurstNotPacked => "bursts need packed accesses",
    /// A burst that the channel's FIFO cannot hold; bursts are smaller.
    BurstAboveFifo => "the burst is larger than the channel's FIFO depth",
    /// Big-endian data; bytes are swapped if the two sides differ.
    BigEndian => "the device is little-endian; CSDP must not select big-endian data",
    /// Prefetch in a channel not synchronized with its destination; ignored.
    PrefetchNotDestination => "prefetch needs a channel synchronized with its destination",
    /// Buffering disabled in a channel not synchronized with its source; ignored.
    BufferingNotSource => "buffering can be disabled only in a channel synchronized with its source",
    /// Packets of no elements; the channel is not enabled.
    NoPacket => "the packet must have elements",
    /// Packets on a side whose frame index is in use; the channel is not enabled.
    PacketNeedsFrameIndex => "the frame index cannot be the packet size and an index at once",
    /// Another enabled channel uses the request line; the lower channel is served.
    RequestShared => "only one enabled channel may use a request line",
    /// The next descriptor has an undefined type; the list ends without an event.
    BadDescriptor => "the next descriptor's type or address validity is undefined",
    /// Software set the pause; ignored.
    PauseSet => "software must not set PAUSE_LINK_LIST",
    /// A link to an enabled channel; the link is ignored.
    LinkToEnabled => "the linked channel is already enabled",
    /// A link to a channel that starts by loading a descriptor; the channel does so.
    LinkToFastStart => "only the head of a chain may start by loading a descriptor",
    /// A running channel was disabled with its link enabled; it stops, and the link is not followed.
    DisabledWhileLinked => "ENABLE_LNK must be cleared before a linked channel is disabled",
    /// A draining channel was disabled in smart standby; it drains.
    DrainInSmartStandby => "smart standby must be left before a channel that drains is disabled",
    /// A user access to a supervisor channel; reads return zero, writes are ignored.
    NotPrivileged => "the channel is reserved for the supervisor",
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub at: Instant,
    /// Byte offset of the register from the device's base.
    pub offset: u32,
    /// The value written or held.
    pub value: u32,
    pub reason: Reason,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", describe(self.offset, self.value), self.reason)?;
        match offset::locate(self.offset) {
            Some(_) => Ok(()),
            None => write!(f, " ({:#x})", self.offset),
        }
    }
}
