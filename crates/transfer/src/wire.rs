//! How requests and completions lie in ring slots: fixed words, checked on the way in.
//!
//! ```text
//! submission slot, 16 words; the first 8 (one cache line) suffice for most requests
//!   0  ring sequence (31:0) | opcode (39:32) | refuse, transparent, linked, fenced (43:40) | hint (45:44) | class (47:46)
//!      | width (55:48) | LONG (63)
//!   1  tag                      4  source offset or start      8   source x_step, copy's CRC seed, or second destination handle
//!   2  deadline, ns, 0 = none   5  destination handle, or the  9   source y_step, or second destination offset
//!                                  seed of a CRC alone
//!   3  source handle, fill      6  destination offset/start    10  destination x_step
//!      pattern or rounds        7  length or x_count|y_count   11  destination y_step, 12 colour
//!   with a list: 3 its first word in the channel's list area, 4 source count (31:0) | destination count (63:32);
//!   segments are handle, offset, length; sources of an xor handle, offset
//!   synchronized: 7 elements (31:0) | frames (63:32), 8 unit (7:0) | device is the destination (8) | packet (31:16)
//! completion slot, 4 words
//!   0  ring sequence (31:0) | status (47:32) | engine (55:48) | side (56) | inherited (57)
//!   1  tag        2  bytes done        3  detail of the status, or the value found
//! ```
//!
//! The ring owns the low half of word 0. Both directions are hostile: decoding checks every field it uses and answers with
//! an error, never a panic; words that an operation does not use are ignored. Handles and ranges are checked later, at
//! admission.

mod completion;
mod submission;

use thiserror::Error;

use crate::completion::Side;

pub use completion::{decode_completion, encode_completion, tag_of_completion};
pub use submission::{
    SEGMENT_WORDS, decode_plain, decode_request, encode_request, is_linked, place_list, tag_of,
};

/// Words of a submission slot.
pub const SUBMISSION_WORDS: usize = 16;
/// Words of its first half, beyond which only one with [`LONG`] is read.
pub const SUBMISSION_SHORT_WORDS: usize = 8;
/// Words of a completion slot.
pub const COMPLETION_WORDS: usize = 4;
/// Bit of word 0 that says the second half of a submission slot is used.
pub const LONG: u64 = 1 << 63;

/// Bits of word 0 that are the ring's: the sequence that says which element is in the slot.
pub const HEADER_SEQUENCE: u64 = 0xffff_ffff;

/// A submission slot without the ring's sequence.
pub type SubmissionSlot = [u64; SUBMISSION_WORDS];
/// A completion slot without the ring's sequence.
pub type CompletionSlot = [u64; COMPLETION_WORDS];

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

#[cfg(test)]
mod tests;
