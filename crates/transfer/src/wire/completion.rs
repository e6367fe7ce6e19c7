//! The encoding of completions in ring slots.
//!
//! ```text
//! header, word 0 of every slot
//!      ring sequence (15:0) | status (23:16) | engine (27:24) | side (28) | inherited (29) | LONG (31) | tag (63:32)
//! short slot, 1 word: a success that did all bytes of the request, and whose value is 0
//! long slot, 3 words: any completion
//!   1  bytes done        2  detail of the status, or the value found
//! ```
//!
//! Eight short slots fill a cache line. Slots may be hostile, as those of requests.

use crate::completion::{Completion, EngineKind, Failure, Outcome, PeerReason};
use crate::handle::Handle;
use crate::request::PriorityClass;
use crate::side::Side;
use crate::slot_error::SlotError;

use super::LONG;

/// Words of a completion slot.
pub const COMPLETION_WORDS: usize = 3;
/// Words of the first part, which is all of a slot without [`LONG`].
pub const COMPLETION_SHORT_WORDS: usize = 1;

/// A completion slot without the ring's sequence. A short one uses the first word.
pub type CompletionSlot = [u64; COMPLETION_WORDS];

const STATUS_SHIFT: u32 = 16;
const ENGINE_SHIFT: u32 = 24;
const SIDE_SHIFT: u32 = 28;
const INHERITED: u64 = 1 << 29;
const RESERVED: u64 = 1 << 30;
const TAG_SHIFT: u32 = 32;
/// Everything of a header between sequence and tag.
const HEADER_FORM: u64 = 0xffff_0000;
const CPU_SUCCESS: u64 = engine_code(EngineKind::Cpu) << ENGINE_SHIFT;

#[inline]
const fn engine_code(engine: EngineKind) -> u64 {
    match engine {
        EngineKind::None => 0,
        EngineKind::Cpu => 1,
        EngineKind::Simulated => 2,
        EngineKind::Module => 3,
        EngineKind::External => 4,
    }
}

/// The short slot of a success that did all bytes of its request, with the value 0.
#[inline]
pub const fn encode_success(tag: u32, engine: EngineKind) -> u64 {
    engine_code(engine) << ENGINE_SHIFT | (tag as u64) << TAG_SHIFT
}

/// Encodes a completion as a long slot. Of the tag, 32 bits are in use.
#[inline]
pub fn encode_completion(completion: &Completion) -> CompletionSlot {
    let outcome = &completion.outcome;
    let (status, side, detail) = match outcome.result {
        Ok(()) => (0, Side::Source, outcome.value),
        Err(failure) => encode_failure(failure),
    };
    let inherited = if completion.inherited { INHERITED } else { 0 };
    let header = encode_success(completion.tag as u32, outcome.engine)
        | LONG
        | status << STATUS_SHIFT
        | u64::from(side == Side::Destination) << SIDE_SHIFT
        | inherited;
    [header, outcome.bytes_done, detail]
}

fn encode_failure(failure: Failure) -> (u64, Side, u64) {
    let none = Side::Source;
    match failure {
        Failure::Malformed(error) => {
            let (code, side, operand) = encode_slot_error(error);
            (1, side, code | operand << 8)
        }
        Failure::UnknownHandle { side, handle } => (2, side, handle.bits()),
        Failure::StaleHandle { side, handle } => (3, side, handle.bits()),
        Failure::Revoked { side, handle } => (4, side, handle.bits()),
        Failure::MissingRight { side, handle } => (5, side, handle.bits()),
        Failure::OutOfBounds { side, available } => (6, side, available),
        Failure::TooLong { limit } => (7, none, limit),
        Failure::FillLength { pattern_bytes } => (8, none, pattern_bytes),
        Failure::ChannelsBusy { channels } => (9, none, channels),
        Failure::WaitingQuota { limit } => (10, none, limit),
        Failure::Cancelled => (11, none, 0),
        Failure::DeadlineExceeded => (12, none, 0),
        Failure::MemoryFault => (13, none, 0),
        Failure::ChannelFaulted => (14, none, 0),
        Failure::Unsupported => (15, none, 0),
        Failure::ServiceStopping => (16, none, 0),
        // Only clients make these, for requests whose outcome they cannot learn.
        Failure::ServiceLost | Failure::UnknownTicket | Failure::Forked => (17, none, 0),
        Failure::SegmentTotals { source_bytes } => (18, none, source_bytes),
        Failure::ClassNotGranted { granted } => (19, none, granted as u64),
        Failure::BadLoop => (20, none, 0),
        Failure::EngineTimedOut => (21, none, 0),
        Failure::RequestDropped => (22, none, 0),
        Failure::EngineReset => (23, none, 0),
        Failure::DeadlineUnreachable => (24, none, 0),
        Failure::Overlap { operand } => (25, none, operand),
        Failure::Expired { side, handle } => (26, side, handle.bits()),
        Failure::PeerLost => (27, none, 0),
        Failure::PeerRefused { reason } => (28, none, reason.code()),
    }
}

fn encode_slot_error(error: SlotError) -> (u64, Side, u64) {
    let none = Side::Source;
    match error {
        SlotError::Opcode(code) => (1, none, u64::from(code)),
        SlotError::Reserved => (2, none, 0),
        SlotError::Width(code) => (3, none, u64::from(code)),
        SlotError::Value => (4, none, 0),
        SlotError::Length => (5, none, 0),
        SlotError::Start(side) => (6, side, 0),
        SlotError::Status(code) => (7, none, u64::from(code)),
        SlotError::Engine(code) => (8, none, u64::from(code)),
        SlotError::Count(count) => (9, none, u64::from(count)),
        SlotError::List => (10, none, 0),
    }
}

/// The tag in a completion's header, valid even if the rest is malformed.
#[inline]
pub const fn tag_of_completion(header: u64) -> u32 {
    (header >> TAG_SHIFT) as u32
}

/// Whether a header belongs to a success of the CPU engine that did all bytes, with the value 0: nearly all completions are such.
#[inline]
pub const fn is_plain_success(header: u64) -> bool {
    header & HEADER_FORM == CPU_SUCCESS
}

/// Decodes a private copy of a completion slot. `whole` is the number of bytes of the whole request, which a short slot leaves out.
///
/// # Errors
/// [`SlotError::Reserved`], [`SlotError::Status`], [`SlotError::Engine`], [`SlotError::Value`]; [`SlotError::Length`] for a short slot
/// that is no plain success.
#[inline]
pub fn decode_completion(slot: &CompletionSlot, whole: u64) -> Result<Completion, SlotError> {
    let header = slot[0];
    let tag = u64::from(tag_of_completion(header));
    if is_plain_success(header) {
        let outcome = Outcome { result: Ok(()), bytes_done: whole, value: 0, engine: EngineKind::Cpu };
        return Ok(Completion { tag, inherited: false, outcome });
    }
    if header & RESERVED != 0 {
        return Err(SlotError::Reserved);
    }
    let engine = match (header >> ENGINE_SHIFT & 0xf) as u8 {
        0 => EngineKind::None,
        1 => EngineKind::Cpu,
        2 => EngineKind::Simulated,
        3 => EngineKind::Module,
        4 => EngineKind::External,
        other => return Err(SlotError::Engine(other)),
    };
    let status = (header >> STATUS_SHIFT) as u8;
    let inherited = header & INHERITED != 0;
    let side = if header >> SIDE_SHIFT & 1 == 1 { Side::Destination } else { Side::Source };
    if header & LONG == 0 {
        if status != 0 || inherited || side == Side::Destination {
            return Err(SlotError::Length);
        }
        let outcome = Outcome { result: Ok(()), bytes_done: whole, value: 0, engine };
        return Ok(Completion { tag, inherited, outcome });
    }
    let bytes_done = slot[1];
    let outcome = match status {
        0 => Outcome { result: Ok(()), bytes_done, value: slot[2], engine },
        _ => Outcome { result: Err(decode_failure(status, side, slot[2])?), bytes_done, value: 0, engine },
    };
    Ok(Completion { tag, inherited, outcome })
}

fn decode_failure(status: u8, side: Side, detail: u64) -> Result<Failure, SlotError> {
    let handle = Handle::from_bits(detail);
    Ok(match status {
        1 => Failure::Malformed(decode_slot_error(side, detail)?),
        2 => Failure::UnknownHandle { side, handle },
        3 => Failure::StaleHandle { side, handle },
        4 => Failure::Revoked { side, handle },
        5 => Failure::MissingRight { side, handle },
        6 => Failure::OutOfBounds { side, available: detail },
        7 => Failure::TooLong { limit: detail },
        8 => Failure::FillLength { pattern_bytes: detail },
        9 => Failure::ChannelsBusy { channels: detail },
        10 => Failure::WaitingQuota { limit: detail },
        11 => Failure::Cancelled,
        12 => Failure::DeadlineExceeded,
        13 => Failure::MemoryFault,
        14 => Failure::ChannelFaulted,
        15 => Failure::Unsupported,
        16 => Failure::ServiceStopping,
        17 => Failure::ServiceLost,
        18 => Failure::SegmentTotals { source_bytes: detail },
        19 => Failure::ClassNotGranted { granted: decode_class(detail)? },
        20 => Failure::BadLoop,
        21 => Failure::EngineTimedOut,
        22 => Failure::RequestDropped,
        23 => Failure::EngineReset,
        24 => Failure::DeadlineUnreachable,
        25 => Failure::Overlap { operand: detail },
        26 => Failure::Expired { side, handle },
        27 => Failure::PeerLost,
        28 => Failure::PeerRefused { reason: PeerReason::from_code(detail).ok_or(SlotError::Value)? },
        other => return Err(SlotError::Status(u16::from(other))),
    })
}

fn decode_class(detail: u64) -> Result<PriorityClass, SlotError> {
    match detail {
        0 => Ok(PriorityClass::Low),
        1 => Ok(PriorityClass::Normal),
        2 => Ok(PriorityClass::High),
        _ => Err(SlotError::Value),
    }
}

fn decode_slot_error(side: Side, detail: u64) -> Result<SlotError, SlotError> {
    let operand = detail >> 8;
    Ok(match detail & 0xff {
        1 => SlotError::Opcode(operand as u8),
        2 => SlotError::Reserved,
        3 => SlotError::Width(operand as u8),
        4 => SlotError::Value,
        5 => SlotError::Length,
        6 => SlotError::Start(side),
        7 => SlotError::Status(operand as u16),
        8 => SlotError::Engine(operand as u8),
        9 => SlotError::Count(operand as u32),
        10 => SlotError::List,
        _ => return Err(SlotError::Value),
    })
}
