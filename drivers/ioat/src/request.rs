//! The driver's input: a ring for each channel, and requests.
//!
//! ```text
//! RingConfig { ring, slots, completion }      addresses of a channel's descriptors and completion word
//! Request { operation, notice, fence }        one descriptor, or two for an XOR of more than five sources
//! ```
//!
//! Addresses are the device's. The caller has already checked the client's rights to the memory.

/// Addresses of a channel's ring and completion word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Address of the first descriptor.
    pub ring: u64,
    /// Number of descriptors in the ring.
    pub slots: u16,
    /// Address of the word to which the device writes its status.
    pub completion: u64,
}

impl RingConfig {
    /// Address of the descriptor at `position`, counted since CHAINADDR was written.
    pub(super) fn slot(&self, position: u64) -> u64 {
        self.ring + position % u64::from(self.slots.max(1)) * memferry_ioat_registers::DESCRIPTOR_BYTES
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Moves no bytes; completes in order.
    Null,
    Copy {
        source: u64,
        destination: u64,
        bytes: u64,
    },
    /// Writes a pattern of eight bytes repeatedly, its lowest byte first. Unsure with which byte the device begins when
    /// the destination is not a multiple of eight.
    Fill {
        pattern: u64,
        destination: u64,
        bytes: u64,
    },
    /// Writes the exclusive or of the sources. The destination may be one of them.
    Xor {
        /// Addresses of 2 to 8 sources.
        sources: &'a [u64],
        destination: u64,
        bytes: u64,
    },
}

/// How the device reports the end of a request, besides in CHANSTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Notice {
    /// No report. A later request's report also covers this one.
    Silent,
    /// A write of the completion word.
    #[default]
    Completion,
    /// A write of the completion word, then an interrupt.
    Interrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub operation: Operation<'a>,
    pub notice: Notice,
    /// Later requests of the channel begin only after this one's bytes are in memory.
    pub fence: bool,
}

impl<'a> Request<'a> {
    /// A request with a completion write and no fence.
    pub const fn new(operation: Operation<'a>) -> Self {
        Self { operation, notice: Notice::Completion, fence: false }
    }
}
