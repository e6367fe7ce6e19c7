//! Errors of decoding (and of encoding) a ring slot.

use thiserror::Error;

use crate::side::Side;

/// Why a slot is not a valid request or completion.
///
/// ```
/// use memferry_transfer::{Failure, wire::SlotError};
///
/// let failure = Failure::Malformed(SlotError::Opcode(250));
/// assert_eq!(failure.to_string(), "the request is malformed: unknown operation code 250");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SlotError {
    /// The operation code is unknown.
    #[error("unknown operation code {0}")]
    Opcode(u8),
    /// A reserved bit of the header is set.
    #[error("reserved bits are set in the header")]
    Reserved,
    /// The pixel or pattern width does not exist.
    #[error("width code {0} does not exist for this operation")]
    Width(u8),
    /// A pattern, colour, seed or count does not fit its width.
    #[error("the pattern, colour, seed or count does not fit its width")]
    Value,
    /// The slot's length bit does not fit the operation.
    #[error("the slot's length does not fit the operation")]
    Length,
    /// A start plus its offset does not fit 64 bits.
    #[error("the {0} start lies beyond 64 bits")]
    Start(Side),
    /// The status code is unknown.
    #[error("unknown status code {0}")]
    Status(u16),
    /// The engine code is unknown.
    #[error("unknown engine code {0}")]
    Engine(u8),
    /// A list has more segments or sources than one request may have, or no source.
    #[error("{0} segments or sources in one list, which is none or more than one request may name")]
    Count(u32),
    /// The list lies outside the queue's list area.
    #[error("the segment list lies outside the queue's list area")]
    List,
}
