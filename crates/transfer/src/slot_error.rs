//! Why a ring slot was not decoded.

use thiserror::Error;

use crate::side::Side;

/// Why a slot is no request or no completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SlotError {
    /// No such operation.
    #[error("unknown operation code {0}")]
    Opcode(u8),
    /// Bits that mean nothing.
    #[error("reserved bits are set in the header")]
    Reserved,
    /// A pixel or pattern width that does not exist.
    #[error("width code {0} does not exist for this operation")]
    Width(u8),
    /// A pattern, colour, seed or count wider than its width.
    #[error("the pattern, colour, seed or count does not fit its width")]
    Value,
    /// The slot's length bit does not fit the operation.
    #[error("the slot's length does not fit the operation")]
    Length,
    /// A start plus an offset beyond 64 bits.
    #[error("the {0} start lies beyond 64 bits")]
    Start(Side),
    /// No such status.
    #[error("unknown status code {0}")]
    Status(u16),
    /// No such engine.
    #[error("unknown engine code {0}")]
    Engine(u8),
    /// More segments or sources than one request may name, or no source at all.
    #[error("{0} segments or sources in one list, which is none or more than one request may name")]
    Count(u32),
    /// The list is not in the channel's list area.
    #[error("the segment list does not lie in the channel's list area")]
    List,
}
