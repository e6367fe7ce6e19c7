//! Completion slots. The layout is in the parent module.

use super::{CompletionSlot, HEADER_SEQUENCE, SlotError};
use crate::completion::{Completion, EngineKind, Failure, Outcome, Side};
use crate::handle::Handle;
use crate::request::PriorityClass;

const INHERITED: u64 = 1 << 57;

#[inline]
const fn engine_code(engine: EngineKind) -> u64 {
    match engine {
        EngineKind::None => 0,
        EngineKind::Cpu => 1,
        EngineKind::Simulated => 2,
        EngineKind::Module => 3,
    }
}

/// Encodes a completion.
#[inline]
pub fn encode_completion(completion: &Completion) -> CompletionSlot {
    let outcome = &completion.outcome;
    let (status, side, detail) = match outcome.result {
        Ok(()) => (0, Side::Source, outcome.value),
        Err(failure) => encode_failure(failure),
    };
    let engine = engine_code(outcome.engine);
    let inherited = if completion.inherited { INHERITED } else { 0 };
    let header =
        u64::from(status) << 32 | engine << 48 | u64::from(side == Side::Destination) << 56 | inherited;
    [header, completion.tag, outcome.bytes_done, detail]
}

fn encode_failure(failure: Failure) -> (u16, Side, u64) {
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
        // Only a client makes these, of requests that it cannot learn the end of.
        Failure::ServiceLost | Failure::UnknownTicket | Failure::Forked => (17, none, 0),
        Failure::SegmentTotals { source_bytes } => (18, none, source_bytes),
        Failure::ClassNotGranted { granted } => (19, none, granted as u64),
        Failure::BadLoop => (20, none, 0),
        Failure::EngineTimedOut => (21, none, 0),
        Failure::RequestDropped => (22, none, 0),
        Failure::EngineReset => (23, none, 0),
        Failure::DeadlineUnreachable => (24, none, 0),
        Failure::Overlap { operand } => (25, none, operand),
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

/// The tag of a slot, readable even when the rest is malformed.
#[inline]
pub const fn tag_of_completion(slot: &CompletionSlot) -> u64 {
    slot[1]
}

/// Decodes a private copy of a completion slot.
///
/// # Errors
/// [`SlotError::Reserved`], [`SlotError::Status`], [`SlotError::Engine`], [`SlotError::Value`].
#[inline]
pub fn decode_completion(slot: &CompletionSlot) -> Result<Completion, SlotError> {
    let header = slot[0] & !HEADER_SEQUENCE;
    if header == engine_code(EngineKind::Cpu) << 48 {
        // The common case: a success on a CPU.
        let outcome =
            Outcome { result: Ok(()), bytes_done: slot[2], value: slot[3], engine: EngineKind::Cpu };
        return Ok(Completion { tag: slot[1], inherited: false, outcome });
    }
    if header >> 58 != 0 {
        return Err(SlotError::Reserved);
    }
    let side = if header >> 56 & 1 == 1 { Side::Destination } else { Side::Source };
    let engine = match (header >> 48 & 0xff) as u8 {
        0 => EngineKind::None,
        1 => EngineKind::Cpu,
        2 => EngineKind::Simulated,
        3 => EngineKind::Module,
        other => return Err(SlotError::Engine(other)),
    };
    let status = (header >> 32) as u16;
    let bytes_done = slot[2];
    let outcome = if status == 0 {
        Outcome { result: Ok(()), bytes_done, value: slot[3], engine }
    } else {
        Outcome { result: Err(decode_failure(status, side, slot[3])?), bytes_done, value: 0, engine }
    };
    Ok(Completion { tag: slot[1], inherited: header & INHERITED != 0, outcome })
}

fn decode_failure(status: u16, side: Side, detail: u64) -> Result<Failure, SlotError> {
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
        other => return Err(SlotError::Status(other)),
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
