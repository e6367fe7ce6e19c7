//! What the driver is asked for.
//!
//! ```text
//! RingConfig { ring, slots, completion }      where a channel's descriptors and its completion word are
//! Request { operation, notice, fence }        one descriptor, or two for an XOR of more than five sources
//! ```
//!
//! Addresses are the device's. Whether the caller may touch the memory was decided before.

use super::validate::{Limits, RequestError, RingError, check_request, check_ring};

/// Where a channel's ring and its completion word are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Address of the first descriptor.
    pub ring: u64,
    /// Descriptors of the ring.
    pub slots: u16,
    /// Address of the word that the device writes its status to.
    pub completion: u64,
}

impl RingConfig {
    /// Whether the device takes it.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn validate(&self) -> Result<(), RingError> {
        check_ring(self)
    }

    /// Address of the descriptor with number `position` since the chain was given.
    pub(super) fn slot(&self, position: u64) -> u64 {
        self.ring + position % u64::from(self.slots.max(1)) * memferry_registers::ioat::DESCRIPTOR_BYTES
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Nothing; it completes in its turn.
    Null,
    Copy {
        source: u64,
        destination: u64,
        bytes: u64,
    },
    /// Writes a pattern of eight bytes again and again, its lowest first. Where the destination is no multiple of eight, it is unsure with
    /// which of its bytes the device begins.
    Fill {
        pattern: u64,
        destination: u64,
        bytes: u64,
    },
    /// Writes the exclusive or of its sources. The destination may be one of them.
    Xor {
        /// First byte of each, 2 to 8.
        sources: &'a [u64],
        destination: u64,
        bytes: u64,
    },
}

/// How the end of a request is made known, besides in CHANSTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Notice {
    /// Not at all: that of a later one says that this one is done too.
    Silent,
    /// By the completion word.
    #[default]
    Completion,
    /// By the completion word and then an interrupt.
    Interrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub operation: Operation<'a>,
    /// How its end is made known.
    pub notice: Notice,
    /// What follows in the channel begins after its bytes are in memory.
    pub fence: bool,
}

impl<'a> Request<'a> {
    /// With a completion write and no fence.
    pub const fn new(operation: Operation<'a>) -> Self {
        Self { operation, notice: Notice::Completion, fence: false }
    }

    /// Whether a device with these limits carries it out.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn validate(&self, limits: &Limits) -> Result<(), RequestError> {
        check_request(&self.operation, limits)
    }
}
