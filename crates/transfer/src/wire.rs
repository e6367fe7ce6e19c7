//! The encoding of requests and completions in ring slots: fixed words, checked when decoded.
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
//!   with a list: 3 its first word in the queue's list area, 4 source count (31:0) | destination count (63:32);
//!   segments are handle, offset, length; sources of an xor handle, offset
//!   synchronized: 7 elements (31:0) | frames (63:32), 8 unit (7:0) | device is the destination (8) | packet (31:16)
//! completion slot, 4 words
//!   0  ring sequence (31:0) | status (47:32) | engine (55:48) | side (56) | inherited (57)
//!   1  tag        2  bytes done        3  detail of the status, or the value found
//! ```
//!
//! The ring owns the low half of word 0. Slots of both directions may be hostile: decoding checks every field it uses and returns
//! an error, never panics, and ignores words that an operation does not use. Admission checks handles and ranges later.

use alloc::boxed::Box;
use alloc::vec::Vec;

use memferry_clock::Instant;

use crate::completion::{Completion, EngineKind, Failure, Outcome};
use crate::geometry::{Color24, Copy2d, Count2d, Fill2d, PixelSize, Plane};
use crate::handle::Handle;
use crate::operation::{Lists, MAX_SEGMENTS, MAX_SOURCES, Operation, Pattern, Segment};
use crate::request::{CacheHint, PriorityClass, Request, Span, Task, Terms, WhenBusy};
use crate::side::Side;
use crate::synchronized::{SyncUnit, Synchronized};

pub use crate::slot_error::SlotError;

/// Words of a submission slot.
pub const SUBMISSION_WORDS: usize = 16;
/// Words of the first half. The second half is used only with [`LONG`].
pub const SUBMISSION_SHORT_WORDS: usize = 8;
/// Words of a completion slot.
pub const COMPLETION_WORDS: usize = 4;
/// Bit of word 0: the second half of the submission slot is used.
pub const LONG: u64 = 1 << 63;

/// Bits of word 0 that belong to the ring: the sequence number of the element in the slot.
pub const HEADER_SEQUENCE: u64 = 0xffff_ffff;

/// A submission slot without the ring's sequence.
pub type SubmissionSlot = [u64; SUBMISSION_WORDS];
/// A completion slot without the ring's sequence.
pub type CompletionSlot = [u64; COMPLETION_WORDS];

const FLAG_REFUSE_WHEN_BUSY: u64 = 1 << 40;
const FLAG_TRANSPARENT: u64 = 1 << 41;
const FLAG_LINKED: u64 = 1 << 42;
const FLAG_FENCED: u64 = 1 << 43;
const HINT_SHIFT: u32 = 44;
const CLASS_SHIFT: u32 = 46;
/// All defined bits of a header except the sequence.
const KNOWN: u64 = LONG | 0xff_ffff << 32;

const NOP: u64 = 1;
const COPY: u64 = 2;
const FILL: u64 = 3;
const COPY_2D: u64 = 4;
const FILL_2D: u64 = 5;
const SCATTER_GATHER: u64 = 6;
const XOR: u64 = 7;
const COMPARE: u64 = 8;
const CRC: u64 = 9;
const COPY_CRC: u64 = 10;
const DUAL_COPY: u64 = 11;
const REPEAT: u64 = 12;
const SYNCHRONIZED: u64 = 13;
/// Width code of a 24-bit colour in a 32-bit fill.
const WIDTH_COLOR: u64 = 3;

/// Words of a segment in a list.
pub const SEGMENT_WORDS: usize = 3;
/// Words of an xor's source in a list.
const SOURCE_WORDS: usize = 2;

/// Encodes `request` with the client's `tag` into `slot`, which must be zero, and the words of its list, if any, into `list`,
/// which must be empty. The caller copies them to the queue's list area and writes their place into the slot ([`place_list`]).
///
/// # Errors
/// [`SlotError::Start`] if a span's offset plus the walk's start does not fit 64 bits; [`SlotError::Count`] if a list is too
/// long.
#[inline]
pub fn encode_request(
    tag: u64,
    request: &Request,
    slot: &mut SubmissionSlot,
    list: &mut Vec<u64>,
) -> Result<(), SlotError> {
    slot[1] = tag;
    // Zero means no deadline, so a deadline at the clock's origin becomes the first nanosecond, which is also past.
    if let Some(deadline) = request.terms.deadline {
        slot[2] = deadline.nanoseconds().max(1);
    }
    let task = match &request.task {
        Task::Transfer(operation) => encode_operation(slot, list, operation)?,
        Task::Repeat { rounds } => {
            slot[3] = u64::from(*rounds);
            REPEAT << 32
        }
    };
    slot[0] = task | encode_terms(&request.terms);
    Ok(())
}

/// Writes the place of a slot's list into the slot.
#[inline]
pub const fn place_list(slot: &mut SubmissionSlot, first_word: u64) {
    slot[3] = first_word;
}

#[inline]
fn encode_terms(terms: &Terms) -> u64 {
    let flag = |set, bit| if set { bit } else { 0 };
    let hint = match terms.hint {
        CacheHint::Auto => 0,
        CacheHint::Keep => 1,
        CacheHint::Stream => 2,
    };
    let class = match terms.class {
        PriorityClass::Normal => 0,
        PriorityClass::Low => 1,
        PriorityClass::High => 2,
    };
    flag(terms.when_busy == WhenBusy::Refuse, FLAG_REFUSE_WHEN_BUSY)
        | flag(terms.linked, FLAG_LINKED)
        | flag(terms.fenced, FLAG_FENCED)
        | hint << HINT_SHIFT
        | class << CLASS_SHIFT
}

#[inline]
fn encode_operation(
    slot: &mut SubmissionSlot,
    list: &mut Vec<u64>,
    operation: &Operation<Span>,
) -> Result<u64, SlotError> {
    let mut first = |span: &Span| (slot[3], slot[4]) = (span.handle.bits(), span.offset);
    Ok(match operation {
        Operation::Nop => NOP << 32,
        Operation::Copy { source, destination, length } => {
            first(source);
            second(slot, destination, *length);
            COPY << 32
        }
        Operation::Fill { destination, length, pattern } => {
            let (width, value) = encode_pattern(*pattern);
            slot[3] = value;
            second(slot, destination, *length);
            FILL << 32 | width << 48
        }
        Operation::Copy2d { source, destination, shape } => {
            encode_plane(slot, Side::Source, *source, &shape.source)?;
            encode_plane(slot, Side::Destination, *destination, &shape.destination)?;
            slot[12] = u64::from(shape.transparent.map_or(0, Color24::value));
            let flag = if shape.transparent.is_some() { FLAG_TRANSPARENT } else { 0 };
            COPY_2D << 32 | flag | encode_count(slot, &shape.count)
        }
        Operation::Fill2d { destination, shape } => {
            encode_plane(slot, Side::Destination, *destination, &shape.destination)?;
            slot[12] = u64::from(shape.color.value());
            FILL_2D << 32 | encode_count(slot, &shape.count)
        }
        Operation::ScatterGather { lists } => {
            slot[4] = encode_lists(list, lists)?;
            SCATTER_GATHER << 32
        }
        Operation::Xor { sources, destination, length } => {
            slot[4] = counted(sources.len(), 1, MAX_SOURCES)?;
            list.extend(sources.iter().flat_map(|source| [source.handle.bits(), source.offset]));
            second(slot, destination, *length);
            XOR << 32
        }
        Operation::Compare { .. }
        | Operation::Crc { .. }
        | Operation::CopyCrc { .. }
        | Operation::DualCopy { .. }
        | Operation::Synchronized { .. } => encode_looks(slot, operation),
    })
}

/// Encodes operations that read bytes for a result, and those of devices.
fn encode_looks(slot: &mut SubmissionSlot, operation: &Operation<Span>) -> u64 {
    let mut first = |span: &Span| (slot[3], slot[4]) = (span.handle.bits(), span.offset);
    match operation {
        Operation::Compare { first: one, second: other, length } => {
            first(one);
            second(slot, other, *length);
            COMPARE << 32
        }
        Operation::Crc { source, length, seed } => {
            first(source);
            (slot[5], slot[7]) = (u64::from(*seed), *length);
            CRC << 32
        }
        Operation::CopyCrc { source, destination, length, seed } => {
            first(source);
            second(slot, destination, *length);
            slot[8] = u64::from(*seed);
            COPY_CRC << 32 | LONG
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            first(source);
            second(slot, one, *length);
            (slot[8], slot[9]) = (other.handle.bits(), other.offset);
            DUAL_COPY << 32 | LONG
        }
        Operation::Synchronized { source, destination, shape } => {
            first(source);
            second(slot, destination, u64::from(shape.elements) | u64::from(shape.frames) << 32);
            slot[8] = encode_unit(shape);
            SYNCHRONIZED << 32 | LONG | shape.element.bytes() << 48
        }
        // The caller encodes all others.
        _ => 0,
    }
}

/// Set when the device's register is the destination.
const TO_DEVICE: u64 = 1 << 8;

fn encode_unit(shape: &Synchronized) -> u64 {
    let to_device = if shape.device == Side::Destination { TO_DEVICE } else { 0 };
    to_device
        | match shape.unit {
            SyncUnit::Element => 0,
            SyncUnit::Frame => 1,
            SyncUnit::Packet { elements } => 2 | u64::from(elements) << 16,
            SyncUnit::Block => 3,
        }
}

fn decode_synchronized(slot: &SubmissionSlot, width: u8) -> Result<Synchronized, SlotError> {
    let element = PixelSize::from_bytes(u64::from(width)).ok_or(SlotError::Width(width))?;
    let word = slot[8];
    let device = if word & TO_DEVICE == 0 { Side::Source } else { Side::Destination };
    let unit = match (word & !TO_DEVICE & 0xffff, word >> 16) {
        (0, 0) => SyncUnit::Element,
        (1, 0) => SyncUnit::Frame,
        (2, elements @ 1..=0xffff) => SyncUnit::Packet { elements: elements as u16 },
        (3, 0) => SyncUnit::Block,
        _ => return Err(SlotError::Value),
    };
    let elements = slot[7] as u32;
    let frames = (slot[7] >> 32) as u32;
    Ok(Synchronized { device, element, elements, frames, unit })
}

fn second(slot: &mut SubmissionSlot, span: &Span, length: u64) {
    (slot[5], slot[6], slot[7]) = (span.handle.bits(), span.offset, length);
}

fn counted(count: usize, least: usize, most: usize) -> Result<u64, SlotError> {
    let error = SlotError::Count(u32::try_from(count).unwrap_or(u32::MAX));
    if (least..=most).contains(&count) { Ok(count as u64) } else { Err(error) }
}

fn encode_lists(list: &mut Vec<u64>, lists: &Lists<Span>) -> Result<u64, SlotError> {
    let counts = counted(lists.source.len(), 0, MAX_SEGMENTS)?
        | counted(lists.destination.len(), 0, MAX_SEGMENTS)? << 32;
    let segments = lists.source.iter().chain(&lists.destination);
    list.extend(
        segments.flat_map(|segment| [segment.place.handle.bits(), segment.place.offset, segment.length]),
    );
    Ok(counts)
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

/// The tag of a submission slot, valid even if the rest is malformed.
#[inline]
pub const fn tag_of(slot: &SubmissionSlot) -> u64 {
    slot[1]
}

/// Whether the next request is linked to the one in this slot, valid even if the rest is malformed.
pub const fn is_linked(slot: &SubmissionSlot) -> bool {
    slot[0] & FLAG_LINKED != 0
}

/// Decodes a private copy of a slot. `fetch(first, count)` returns a private copy of `count` words of the queue's list area, or
/// `None` if they lie outside it.
///
/// # Errors
/// Any [`SlotError`] except the two of completions, and [`SlotError::Start`], since a slot has offset and start in one word.
#[inline]
pub fn decode_request(
    slot: &SubmissionSlot,
    fetch: impl FnOnce(u64, usize) -> Option<Vec<u64>>,
) -> Result<Request, SlotError> {
    let header = slot[0] & !HEADER_SEQUENCE;
    if header & !KNOWN != 0 {
        return Err(SlotError::Reserved);
    }
    let opcode = header >> 32 & 0xff;
    let width = (header >> 48 & 0xff) as u8;
    if !(NOP..=SYNCHRONIZED).contains(&opcode) {
        return Err(SlotError::Opcode(opcode as u8));
    }
    if (header & LONG != 0) != matches!(opcode, COPY_2D | FILL_2D | COPY_CRC | DUAL_COPY | SYNCHRONIZED) {
        return Err(SlotError::Length);
    }
    if header & FLAG_TRANSPARENT != 0 && opcode != COPY_2D {
        return Err(SlotError::Reserved);
    }
    if width != 0 && !matches!(opcode, FILL | COPY_2D | FILL_2D | SYNCHRONIZED) {
        return Err(SlotError::Width(width));
    }
    let task = match opcode {
        REPEAT => Task::Repeat { rounds: narrow(slot[3])? },
        NOP => Task::Transfer(Operation::Nop),
        _ => Task::Transfer(decode_operation(slot, opcode, width, header, fetch)?),
    };
    Ok(Request { task, terms: decode_terms(header, slot[2])? })
}

/// A fast path for the most common operations with default terms. `None` says nothing about the slot: decode it with
/// [`decode_request`].
#[inline]
pub fn decode_plain(slot: &SubmissionSlot) -> Option<Operation<Span>> {
    let span = |at: usize| Span::new(Handle::from_bits(slot[at]), slot[at + 1]);
    match slot[0] & !HEADER_SEQUENCE {
        PLAIN_NOP if slot[2] == 0 => Some(Operation::Nop),
        PLAIN_COPY if slot[2] == 0 => {
            Some(Operation::Copy { source: span(3), destination: span(5), length: slot[7] })
        }
        _ => None,
    }
}

const PLAIN_NOP: u64 = NOP << 32;
const PLAIN_COPY: u64 = COPY << 32;

#[inline]
fn decode_terms(header: u64, deadline: u64) -> Result<Terms, SlotError> {
    let hint = match header >> HINT_SHIFT & 3 {
        0 => CacheHint::Auto,
        1 => CacheHint::Keep,
        2 => CacheHint::Stream,
        _ => return Err(SlotError::Reserved),
    };
    let class = match header >> CLASS_SHIFT & 3 {
        0 => PriorityClass::Normal,
        1 => PriorityClass::Low,
        2 => PriorityClass::High,
        _ => return Err(SlotError::Reserved),
    };
    Ok(Terms {
        when_busy: if header & FLAG_REFUSE_WHEN_BUSY != 0 { WhenBusy::Refuse } else { WhenBusy::Wait },
        deadline: (deadline != 0).then(|| Instant::from_nanoseconds(deadline)),
        hint,
        class,
        linked: header & FLAG_LINKED != 0,
        fenced: header & FLAG_FENCED != 0,
    })
}

fn narrow(value: u64) -> Result<u32, SlotError> {
    u32::try_from(value).map_err(|_| SlotError::Value)
}

#[inline]
fn decode_operation(
    slot: &SubmissionSlot,
    opcode: u64,
    width: u8,
    header: u64,
    fetch: impl FnOnce(u64, usize) -> Option<Vec<u64>>,
) -> Result<Operation<Span>, SlotError> {
    let span = |at: usize| Span::new(Handle::from_bits(slot[at]), slot[at + 1]);
    let source = span(3);
    let destination = span(5);
    let length = slot[7];
    Ok(match opcode {
        COPY => Operation::Copy { source, destination, length },
        FILL => Operation::Fill { destination, length, pattern: decode_pattern(width, slot[3])? },
        COPY_2D => decode_copy_2d(slot, width, header & FLAG_TRANSPARENT != 0)?,
        FILL_2D => decode_fill_2d(slot, width)?,
        SCATTER_GATHER => Operation::ScatterGather { lists: Box::new(decode_lists(slot, fetch)?) },
        XOR => Operation::Xor { sources: decode_sources(slot, fetch)?, destination, length },
        COMPARE => Operation::Compare { first: source, second: destination, length },
        CRC => Operation::Crc { source, length, seed: narrow(slot[5])? },
        SYNCHRONIZED => {
            Operation::Synchronized { source, destination, shape: decode_synchronized(slot, width)? }
        }
        COPY_CRC => Operation::CopyCrc { source, destination, length, seed: narrow(slot[8])? },
        DUAL_COPY => Operation::DualCopy { source, destinations: [destination, span(8)], length },
        _ => return Err(SlotError::Opcode(opcode as u8)),
    })
}

fn decode_lists(
    slot: &SubmissionSlot,
    fetch: impl FnOnce(u64, usize) -> Option<Vec<u64>>,
) -> Result<Lists<Span>, SlotError> {
    let sources = slot[4] as u32 as usize;
    let destinations = (slot[4] >> 32) as usize;
    counted(sources, 0, MAX_SEGMENTS)?;
    counted(destinations, 0, MAX_SEGMENTS)?;
    let words = (sources + destinations) * SEGMENT_WORDS;
    let words = fetch(slot[3], words).filter(|list| list.len() == words).ok_or(SlotError::List)?;
    let segment =
        |words: &[u64]| Segment { place: Span::new(Handle::from_bits(words[0]), words[1]), length: words[2] };
    let (source, destination) = words.split_at(sources * SEGMENT_WORDS);
    Ok(Lists {
        source: source.chunks_exact(SEGMENT_WORDS).map(segment).collect(),
        destination: destination.chunks_exact(SEGMENT_WORDS).map(segment).collect(),
    })
}

fn decode_sources(
    slot: &SubmissionSlot,
    fetch: impl FnOnce(u64, usize) -> Option<Vec<u64>>,
) -> Result<Box<[Span]>, SlotError> {
    let count = usize::try_from(slot[4]).unwrap_or(usize::MAX);
    counted(count, 1, MAX_SOURCES)?;
    let words = count * SOURCE_WORDS;
    let words = fetch(slot[3], words).filter(|list| list.len() == words).ok_or(SlotError::List)?;
    let source = |words: &[u64]| Span::new(Handle::from_bits(words[0]), words[1]);
    Ok(words.chunks_exact(SOURCE_WORDS).map(source).collect())
}

fn decode_pattern(width: u8, value: u64) -> Result<Pattern, SlotError> {
    let fits = |bits: u32| u32::try_from(value).ok().filter(|value| u64::from(*value) >> bits == 0);
    match u64::from(width) {
        1 => fits(8).map(|value| Pattern::Byte(value as u8)),
        2 => fits(16).map(|value| Pattern::Half(value as u16)),
        WIDTH_COLOR => fits(24).and_then(Color24::new).map(Pattern::Color),
        4 => fits(32).map(Pattern::Word),
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

/// Encodes a completion into the words of a ring slot.
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

/// The tag of a completion slot, valid even if the rest is malformed.
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

#[cfg(test)]
mod tests;
