//! How requests and completions lie in ring slots: fixed words, checked on the way in.
//!
//! ```text
//! submission slot, 16 words; the first 8 (one cache line) suffice for all but 2-D requests
//!   0  ring sequence (31:0) | opcode (39:32) | flags (47:40) | width (55:48) | LONG (63)
//!   1  tag                      4  source offset or start      8   source x_step
//!   2  deadline, ns, 0 = none   5  destination handle          9   source y_step
//!   3  source handle            6  destination offset/start    10  destination x_step
//!      or fill pattern          7  length or x_count|y_count   11  destination y_step, 12 colour
//! completion slot, 4 words
//!   0  ring sequence (31:0) | status (47:32) | engine (55:48) | side (56)
//!   1  tag        2  bytes done        3  detail of the status
//! ```
//!
//! The ring owns the low half of word 0. Both directions are hostile: decoding checks every field it uses and answers with
//! an error, never a panic; words that an operation does not use are ignored. Handles and ranges are checked later, at
//! admission.

use memferry_clock::Instant;
use thiserror::Error;

use crate::completion::{Completion, EngineKind, Failure, Side};
use crate::geometry::{Color24, Copy2d, Count2d, Fill2d, PixelSize, Plane};
use crate::handle::Handle;
use crate::request::{Operation, Pattern, Request, Span, WhenBusy};

/// Words of a submission slot.
pub const SUBMISSION_WORDS: usize = 16;
/// Words of a completion slot.
pub const COMPLETION_WORDS: usize = 4;
/// Bit of word 0 that says the second half of a submission slot is used.
pub const LONG: u64 = 1 << 63;

const FLAG_REFUSE_WHEN_BUSY: u64 = 1 << 40;
const FLAG_TRANSPARENT: u64 = 1 << 41;
const KNOWN_FLAGS: u64 = FLAG_REFUSE_WHEN_BUSY | FLAG_TRANSPARENT;
const HEADER_SEQUENCE: u64 = 0xffff_ffff;

const NOP: u64 = 1;
const COPY: u64 = 2;
const FILL: u64 = 3;
const COPY_2D: u64 = 4;
const FILL_2D: u64 = 5;
/// Width code of a 24-bit colour in a 32-bit fill.
const WIDTH_COLOR: u64 = 3;

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
    /// A pattern or colour wider than its width.
    #[error("the pattern or colour does not fit its width")]
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
}

/// Encodes `request` under the client's `tag`.
///
/// # Errors
/// [`SlotError::Start`] when a span's offset plus the walk's start does not fit 64 bits.
pub fn encode_request(tag: u64, request: &Request) -> Result<SubmissionSlot, SlotError> {
    let mut slot = [0; SUBMISSION_WORDS];
    slot[1] = tag;
    // Zero means no deadline, so a deadline at the clock's origin becomes the first nanosecond: as long past.
    slot[2] = request.deadline.map_or(0, |instant| instant.nanoseconds().max(1));
    let header = match request.operation {
        Operation::Nop => NOP << 32,
        Operation::Copy { source, destination, length } => {
            (slot[3], slot[4]) = (source.handle.bits(), source.offset);
            (slot[5], slot[6], slot[7]) = (destination.handle.bits(), destination.offset, length);
            COPY << 32
        }
        Operation::Fill { destination, length, pattern } => {
            let (width, value) = encode_pattern(pattern);
            slot[3] = value;
            (slot[5], slot[6], slot[7]) = (destination.handle.bits(), destination.offset, length);
            FILL << 32 | width << 48
        }
        Operation::Copy2d { source, destination, shape } => {
            encode_plane(&mut slot, Side::Source, source, &shape.source)?;
            encode_plane(&mut slot, Side::Destination, destination, &shape.destination)?;
            slot[12] = u64::from(shape.transparent.map_or(0, Color24::value));
            let flag = if shape.transparent.is_some() { FLAG_TRANSPARENT } else { 0 };
            COPY_2D << 32 | flag | encode_count(&mut slot, &shape.count)
        }
        Operation::Fill2d { destination, shape } => {
            encode_plane(&mut slot, Side::Destination, destination, &shape.destination)?;
            slot[12] = u64::from(shape.color.value());
            FILL_2D << 32 | encode_count(&mut slot, &shape.count)
        }
    };
    let busy = if request.when_busy == WhenBusy::Refuse { FLAG_REFUSE_WHEN_BUSY } else { 0 };
    slot[0] = header | busy;
    Ok(slot)
}

fn encode_pattern(pattern: Pattern) -> (u64, u64) {
    match pattern {
        Pattern::Byte(value) => (1, u64::from(value)),
        Pattern::Half(value) => (2, u64::from(value)),
        Pattern::Color(color) => (WIDTH_COLOR, u64::from(color.value())),
        Pattern::Word(value) => (4, u64::from(value)),
    }
}

fn encode_count(slot: &mut SubmissionSlot, count: &Count2d) -> u64 {
    slot[7] = u64::from(count.x_count) | u64::from(count.y_count) << 32;
    LONG | count.pixel.bytes() << 48
}

fn encode_plane(slot: &mut SubmissionSlot, side: Side, span: Span, plane: &Plane) -> Result<(), SlotError> {
    let start = span.offset.checked_add(plane.start).ok_or(SlotError::Start(side))?;
    let (at, steps) = match side {
        Side::Source => (3, 8),
        Side::Destination => (5, 10),
    };
    (slot[at], slot[at + 1]) = (span.handle.bits(), start);
    (slot[steps], slot[steps + 1]) = (plane.x_step as u64, plane.y_step as u64);
    Ok(())
}

/// The tag of a slot, readable even when the rest is malformed.
pub const fn tag_of(slot: &SubmissionSlot) -> u64 {
    slot[1]
}

/// Decodes a private copy of a slot.
///
/// # Errors
/// Any [`SlotError`] but the two of completions.
pub fn decode_request(slot: &SubmissionSlot) -> Result<Request, SlotError> {
    let header = slot[0] & !HEADER_SEQUENCE;
    if header & !(LONG | KNOWN_FLAGS | 0xff << 32 | 0xff << 48) != 0 {
        return Err(SlotError::Reserved);
    }
    let (opcode, width) = (header >> 32 & 0xff, (header >> 48 & 0xff) as u8);
    let long = header & LONG != 0;
    if long != matches!(opcode, COPY_2D | FILL_2D) {
        return Err(if (NOP..=FILL_2D).contains(&opcode) { SlotError::Length } else { unknown(opcode) });
    }
    if header & FLAG_TRANSPARENT != 0 && opcode != COPY_2D {
        return Err(SlotError::Reserved);
    }
    if width != 0 && matches!(opcode, NOP | COPY) {
        return Err(SlotError::Width(width));
    }
    let source = Span::new(Handle::from_bits(slot[3]), slot[4]);
    let destination = Span::new(Handle::from_bits(slot[5]), slot[6]);
    let length = slot[7];
    let operation = match opcode {
        NOP => Operation::Nop,
        COPY => Operation::Copy { source, destination, length },
        FILL => Operation::Fill { destination, length, pattern: decode_pattern(width, slot[3])? },
        COPY_2D => decode_copy_2d(slot, width, header & FLAG_TRANSPARENT != 0)?,
        FILL_2D => decode_fill_2d(slot, width)?,
        _ => return Err(unknown(opcode)),
    };
    let when_busy = if header & FLAG_REFUSE_WHEN_BUSY != 0 { WhenBusy::Refuse } else { WhenBusy::Wait };
    let deadline = (slot[2] != 0).then(|| Instant::from_nanoseconds(slot[2]));
    Ok(Request { operation, when_busy, deadline })
}

const fn unknown(opcode: u64) -> SlotError {
    SlotError::Opcode(opcode as u8)
}

fn decode_pattern(width: u8, value: u64) -> Result<Pattern, SlotError> {
    let narrow = |bits: u32| u32::try_from(value).ok().filter(|value| u64::from(*value) >> bits == 0);
    match u64::from(width) {
        1 => narrow(8).map(|value| Pattern::Byte(value as u8)),
        2 => narrow(16).map(|value| Pattern::Half(value as u16)),
        WIDTH_COLOR => narrow(24).and_then(Color24::new).map(Pattern::Color),
        4 => narrow(32).map(Pattern::Word),
        _ => return Err(SlotError::Width(width)),
    }
    .ok_or(SlotError::Value)
}

fn decode_count(slot: &SubmissionSlot, width: u8) -> Result<Count2d, SlotError> {
    let pixel = PixelSize::from_bytes(u64::from(width)).ok_or(SlotError::Width(width))?;
    Ok(Count2d { pixel, x_count: slot[7] as u32, y_count: (slot[7] >> 32) as u32 })
}

fn decode_color(slot: &SubmissionSlot) -> Result<Color24, SlotError> {
    u32::try_from(slot[12]).ok().and_then(Color24::new).ok_or(SlotError::Value)
}

const fn decode_plane(slot: &SubmissionSlot, start: usize, steps: usize) -> Plane {
    Plane { start: slot[start], x_step: slot[steps] as i64, y_step: slot[steps + 1] as i64 }
}

fn decode_copy_2d(slot: &SubmissionSlot, width: u8, transparent: bool) -> Result<Operation<Span>, SlotError> {
    let color = decode_color(slot)?;
    if !transparent && color.value() != 0 {
        return Err(SlotError::Value);
    }
    let shape = Copy2d {
        count: decode_count(slot, width)?,
        source: decode_plane(slot, 4, 8),
        destination: decode_plane(slot, 6, 10),
        transparent: transparent.then_some(color),
    };
    Ok(Operation::Copy2d {
        source: Span::new(Handle::from_bits(slot[3]), 0),
        destination: Span::new(Handle::from_bits(slot[5]), 0),
        shape,
    })
}

fn decode_fill_2d(slot: &SubmissionSlot, width: u8) -> Result<Operation<Span>, SlotError> {
    let shape = Fill2d {
        count: decode_count(slot, width)?,
        destination: decode_plane(slot, 6, 10),
        color: decode_color(slot)?,
    };
    Ok(Operation::Fill2d { destination: Span::new(Handle::from_bits(slot[5]), 0), shape })
}

/// Encodes a completion.
pub fn encode_completion(completion: &Completion) -> CompletionSlot {
    let (status, side, detail) = match completion.outcome {
        Ok(()) => (0, Side::Source, 0),
        Err(failure) => encode_failure(failure),
    };
    let engine = match completion.engine {
        EngineKind::None => 0,
        EngineKind::CpuLane => 1,
        EngineKind::Simulated => 2,
    };
    let header = u64::from(status) << 32 | engine << 48 | u64::from(side == Side::Destination) << 56;
    [header, completion.tag, completion.bytes_done, detail]
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
        Failure::ServiceLost => (17, none, 0),
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
    }
}

/// Decodes a private copy of a completion slot.
///
/// # Errors
/// [`SlotError::Reserved`], [`SlotError::Status`], [`SlotError::Engine`], [`SlotError::Value`].
pub fn decode_completion(slot: &CompletionSlot) -> Result<Completion, SlotError> {
    let header = slot[0] & !HEADER_SEQUENCE;
    if header >> 57 != 0 {
        return Err(SlotError::Reserved);
    }
    let side = if header >> 56 & 1 == 1 { Side::Destination } else { Side::Source };
    let engine = match (header >> 48 & 0xff) as u8 {
        0 => EngineKind::None,
        1 => EngineKind::CpuLane,
        2 => EngineKind::Simulated,
        other => return Err(SlotError::Engine(other)),
    };
    let status = (header >> 32) as u16;
    let outcome = if status == 0 { Ok(()) } else { Err(decode_failure(status, side, slot[3])?) };
    Ok(Completion { tag: slot[1], outcome, bytes_done: slot[2], engine })
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
        other => return Err(SlotError::Status(other)),
    })
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
        _ => return Err(SlotError::Value),
    })
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
