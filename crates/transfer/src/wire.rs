//! The encoding of requests in ring slots: fixed words, checked when decoded. The other direction is in `completion`.
//!
//! ```text
//! header, word 0 of every slot
//!      ring sequence (15:0) | opcode (23:16) | refuse, linked, fenced (26:24) | hint (28:27) | class (30:29) | LONG (31) | tag (63:32)
//! short slot, 4 words: nop, copy, fill, compare and crc without a deadline whose operands fit
//!   1  source (31:0) | destination (63:32), each a handle's index (19:0) and generation (31:20)
//!      in place of one: a fill's value, a CRC's seed
//!   2  source offset, or a fill's width (47:0) | length, bits 15:0 (63:48)
//!   3  destination offset (47:0) | length, bits 31:16 (63:48)
//! long slot, 16 words: any request
//!   1  width (7:0) | transparent (8)
//!   2  deadline, ns, 0 = none   5  destination handle, or the  8   source x_step, copy's CRC seed, or second destination handle
//!   3  source handle, fill         seed of a CRC alone         9   source y_step, or second destination offset
//!      pattern or rounds        6  destination offset/start    10  destination x_step
//!   4  source offset or start   7  length or x_count|y_count   11  destination y_step, 12 colour
//!   with a list: 3 its first word in the queue's list area, 4 source count (31:0) | destination count (63:32);
//!   segments are handle, offset, length; sources of an xor handle, offset
//!   synchronized: 7 elements (31:0) | frames (63:32), 8 unit (7:0) | device is the destination (8) | packet (31:16)
//! ```
//!
//! Two short slots fill a cache line, so a batch of plain requests moves half as many lines as one of long slots. The ring owns the
//! sequence. Slots may be hostile: decoding checks every field it uses and returns an error, never panics, and ignores words that an
//! operation does not use. Admission checks handles and ranges later.

mod completion;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use memferry_clock::Instant;

use crate::geometry::{Color24, Copy2d, Count2d, Fill2d, PixelSize, Plane};
use crate::handle::Handle;
use crate::operation::{Lists, MAX_SEGMENTS, MAX_SOURCES, Operation, Pattern, Segment};
use crate::request::{CacheHint, PriorityClass, Request, Span, Task, Terms, WhenBusy};
use crate::side::Side;
use crate::synchronized::{SyncUnit, Synchronized};

pub use crate::slot_error::SlotError;
pub use completion::{
    COMPLETION_SHORT_WORDS, COMPLETION_WORDS, CompletionSlot, decode_completion, encode_completion,
    encode_success, is_plain_success, tag_of_completion,
};

/// Words of a submission slot.
pub const SUBMISSION_WORDS: usize = 16;
/// Words of the first part, which is all of a slot without [`LONG`].
pub const SUBMISSION_SHORT_WORDS: usize = 4;
/// Header bit of slots in both directions: the second part of the slot is used.
pub const LONG: u64 = 1 << 31;
/// Header bits that belong to the ring: the sequence number of the element in the slot.
pub const HEADER_SEQUENCE: u64 = 0xffff;

/// A submission slot without the ring's sequence. A short one uses the first four words.
pub type SubmissionSlot = [u64; SUBMISSION_WORDS];
/// The first part of a submission slot without the ring's sequence.
pub type ShortSlot = [u64; SUBMISSION_SHORT_WORDS];

const OPCODE_SHIFT: u32 = 16;
const FLAG_REFUSE_WHEN_BUSY: u64 = 1 << 24;
const FLAG_LINKED: u64 = 1 << 25;
const FLAG_FENCED: u64 = 1 << 26;
const HINT_SHIFT: u32 = 27;
const CLASS_SHIFT: u32 = 29;
const TAG_SHIFT: u32 = 32;
/// Opcode and terms of a header.
const HEADER_FORM: u64 = 0xffff_0000;

/// Word 1 of a long slot, above the width: pixels of one colour are not written.
const FLAG_TRANSPARENT: u64 = 1 << 8;

/// Bits of a handle's index, and of its generation, in a short slot.
const SHORT_INDEX_BITS: u32 = 20;
const SHORT_GENERATION_BITS: u32 = 12;
/// The last generation of a handle that fits into a short slot.
pub const MAX_SHORT_GENERATION: u32 = (1 << SHORT_GENERATION_BITS) - 1;
/// Bits of an offset in a short slot. The bits above hold a half of the length.
const SHORT_OFFSET_BITS: u32 = 48;
const SHORT_OFFSET: u64 = (1 << SHORT_OFFSET_BITS) - 1;

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

/// Encodes `request` with the client's `tag`, and the words of its list, if any, into `list`, which must be empty. The slot is short if
/// [`encode_short`] can encode the request. The caller copies the list to the queue's list area and writes its place into the slot
/// ([`place_list`]).
///
/// # Errors
/// [`SlotError::Start`] if a span's offset plus the walk's start does not fit 64 bits; [`SlotError::Count`] if a list is too
/// long.
#[inline]
pub fn encode_request(tag: u32, request: &Request, list: &mut Vec<u64>) -> Result<SubmissionSlot, SlotError> {
    match encode_short(tag, request) {
        Some([header, first, second, third]) => {
            let mut slot = [0; SUBMISSION_WORDS];
            [slot[0], slot[1], slot[2], slot[3]] = [header, first, second, third];
            Ok(slot)
        }
        None => encode_long(tag, request, list),
    }
}

/// Encodes `request` as a short slot; `None` if it needs a long one.
#[inline(always)]
pub fn encode_short(tag: u32, request: &Request) -> Option<ShortSlot> {
    let Task::Transfer(operation) = &request.task else { return None };
    if request.terms.deadline.is_some() {
        return None;
    }
    let header = encode_terms(&request.terms) | u64::from(tag) << TAG_SHIFT;
    let slot = |opcode: u64, words: [u64; 3]| [header | opcode << OPCODE_SHIFT, words[0], words[1], words[2]];
    Some(match operation {
        Operation::Nop => slot(NOP, [0; 3]),
        Operation::Copy { source, destination, length } => {
            slot(COPY, short_spans(source, destination, *length)?)
        }
        Operation::Fill { destination, length, pattern } => {
            let (width, value) = encode_pattern(*pattern);
            slot(FILL, short_words(value, short_handle(destination)?, width, destination.offset, *length)?)
        }
        Operation::Compare { first, second, length } => slot(COMPARE, short_spans(first, second, *length)?),
        Operation::Crc { source, length, seed } => {
            slot(CRC, short_words(short_handle(source)?, u64::from(*seed), source.offset, 0, *length)?)
        }
        _ => return None,
    })
}

#[inline]
fn short_spans(source: &Span, destination: &Span, length: u64) -> Option<[u64; 3]> {
    let first = short_handle(source)?;
    let second = short_handle(destination)?;
    short_words(first, second, source.offset, destination.offset, length)
}

/// Words 1 to 3 of a short slot. `first` and `second` have 32 bits each.
#[inline]
fn short_words(first: u64, second: u64, from: u64, to: u64, length: u64) -> Option<[u64; 3]> {
    if (from | to) > SHORT_OFFSET || length > u64::from(u32::MAX) {
        return None;
    }
    let low = length << SHORT_OFFSET_BITS;
    let high = length >> 16 << SHORT_OFFSET_BITS;
    Some([first | second << 32, from | low, to | high])
}

/// The handle of a span in the 32 bits of a short slot, if it fits.
#[inline]
fn short_handle(span: &Span) -> Option<u64> {
    let index = u64::from(span.handle.index());
    let generation = u64::from(span.handle.generation());
    let fits = index >> SHORT_INDEX_BITS == 0 && generation >> SHORT_GENERATION_BITS == 0;
    fits.then_some(index | generation << SHORT_INDEX_BITS)
}

/// Encodes `request` as a long slot, which has room for any. Otherwise as [`encode_request`].
///
/// # Errors
/// As [`encode_request`].
pub fn encode_long(tag: u32, request: &Request, list: &mut Vec<u64>) -> Result<SubmissionSlot, SlotError> {
    let mut slot = [0; SUBMISSION_WORDS];
    // Zero means no deadline, so a deadline at the clock's origin becomes the first nanosecond, which is also past.
    if let Some(deadline) = request.terms.deadline {
        slot[2] = deadline.nanoseconds().max(1);
    }
    let opcode = match &request.task {
        Task::Transfer(operation) => encode_operation(&mut slot, list, operation)?,
        Task::Repeat { rounds } => {
            slot[3] = u64::from(*rounds);
            REPEAT
        }
    };
    slot[0] = LONG | opcode << OPCODE_SHIFT | encode_terms(&request.terms) | u64::from(tag) << TAG_SHIFT;
    Ok(slot)
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

/// Encodes the operands of a long slot and returns the opcode.
fn encode_operation(
    slot: &mut SubmissionSlot,
    list: &mut Vec<u64>,
    operation: &Operation<Span>,
) -> Result<u64, SlotError> {
    let mut first = |span: &Span| (slot[3], slot[4]) = (span.handle.bits(), span.offset);
    Ok(match operation {
        Operation::Nop => NOP,
        Operation::Copy { source, destination, length } => {
            first(source);
            second(slot, destination, *length);
            COPY
        }
        Operation::Fill { destination, length, pattern } => {
            (slot[1], slot[3]) = encode_pattern(*pattern);
            second(slot, destination, *length);
            FILL
        }
        Operation::Copy2d { source, destination, shape } => {
            encode_plane(slot, Side::Source, *source, &shape.source)?;
            encode_plane(slot, Side::Destination, *destination, &shape.destination)?;
            encode_count(slot, &shape.count);
            slot[12] = u64::from(shape.transparent.map_or(0, Color24::value));
            slot[1] |= if shape.transparent.is_some() { FLAG_TRANSPARENT } else { 0 };
            COPY_2D
        }
        Operation::Fill2d { destination, shape } => {
            encode_plane(slot, Side::Destination, *destination, &shape.destination)?;
            encode_count(slot, &shape.count);
            slot[12] = u64::from(shape.color.value());
            FILL_2D
        }
        Operation::ScatterGather { lists } => {
            slot[4] = encode_lists(list, lists)?;
            SCATTER_GATHER
        }
        Operation::Xor { sources, destination, length } => {
            slot[4] = counted(sources.len(), 1, MAX_SOURCES)?;
            list.extend(sources.iter().flat_map(|source| [source.handle.bits(), source.offset]));
            second(slot, destination, *length);
            XOR
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
            COMPARE
        }
        Operation::Crc { source, length, seed } => {
            first(source);
            (slot[5], slot[7]) = (u64::from(*seed), *length);
            CRC
        }
        Operation::CopyCrc { source, destination, length, seed } => {
            first(source);
            second(slot, destination, *length);
            slot[8] = u64::from(*seed);
            COPY_CRC
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            first(source);
            second(slot, one, *length);
            (slot[8], slot[9]) = (other.handle.bits(), other.offset);
            DUAL_COPY
        }
        Operation::Synchronized { source, destination, shape } => {
            first(source);
            second(slot, destination, u64::from(shape.elements) | u64::from(shape.frames) << 32);
            slot[1] = shape.element.bytes();
            slot[8] = encode_unit(shape);
            SYNCHRONIZED
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
    list.reserve((lists.source.len() + lists.destination.len()) * SEGMENT_WORDS);
    for Segment { place, length } in lists.source.iter().chain(&lists.destination) {
        list.extend_from_slice(&[place.handle.bits(), place.offset, *length]);
    }
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

fn encode_count(slot: &mut SubmissionSlot, count: &Count2d) {
    slot[1] = count.pixel.bytes();
    slot[7] = u64::from(count.x_count) | u64::from(count.y_count) << 32;
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

/// The tag in a submission's header, valid even if the rest is malformed.
#[inline]
pub const fn tag_of(header: u64) -> u32 {
    (header >> TAG_SHIFT) as u32
}

/// The header of a submission with another tag.
#[inline]
pub const fn with_tag(header: u64, tag: u32) -> u64 {
    header & ((1 << TAG_SHIFT) - 1) | (tag as u64) << TAG_SHIFT
}

/// Whether the next request is linked to the one with this header, valid even if the rest is malformed.
pub const fn is_linked(header: u64) -> bool {
    header & FLAG_LINKED != 0
}

/// A NOP or a copy with default terms, in the form that the fields of a short slot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    /// Whether it is a copy. A NOP has no operands.
    pub copies: bool,
    /// Source of a copy.
    pub source: Span,
    /// Destination of a copy.
    pub destination: Span,
    /// Bytes of a copy.
    pub length: u64,
}

impl Plain {
    /// The operation that the general decoder gives for the same slot.
    pub const fn operation(self) -> Operation<Span> {
        let Self { copies, source, destination, length } = self;
        if copies { Operation::Copy { source, destination, length } } else { Operation::Nop }
    }
}

const PLAIN_NOP: u64 = NOP << OPCODE_SHIFT;
const PLAIN_COPY: u64 = COPY << OPCODE_SHIFT;

/// A fast path for the most common requests, which stay in registers. `None` says nothing about the slot: decode it with
/// [`decode_request`].
#[inline]
pub const fn decode_plain(slot: &ShortSlot) -> Option<Plain> {
    let copies = match slot[0] & HEADER_FORM {
        PLAIN_NOP => false,
        PLAIN_COPY => true,
        _ => return None,
    };
    let Short { source, destination, length, .. } = Short::of(slot);
    Some(Plain { copies, source, destination, length })
}

/// The operands of a short slot.
struct Short {
    source: Span,
    destination: Span,
    length: u64,
    /// What an operation may have in place of the handles.
    values: [u32; 2],
}

impl Short {
    #[inline]
    const fn of(slot: &ShortSlot) -> Self {
        let values = [slot[1] as u32, (slot[1] >> 32) as u32];
        Self {
            source: Span::new(short_to_handle(values[0]), slot[2] & SHORT_OFFSET),
            destination: Span::new(short_to_handle(values[1]), slot[3] & SHORT_OFFSET),
            length: short_length(slot),
            values,
        }
    }
}

#[inline]
const fn short_to_handle(bits: u32) -> Handle {
    Handle::new(bits & ((1 << SHORT_INDEX_BITS) - 1), bits >> SHORT_INDEX_BITS)
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
    let header = slot[0];
    let opcode = header >> OPCODE_SHIFT & 0xff;
    if !(NOP..=SYNCHRONIZED).contains(&opcode) {
        return Err(SlotError::Opcode(opcode as u8));
    }
    if header & LONG == 0 {
        let [first, second, third, fourth, ..] = *slot;
        return decode_short_request(&[first, second, third, fourth]);
    }
    let width = slot[1] as u8;
    let transparent = slot[1] & FLAG_TRANSPARENT != 0;
    if slot[1] & !(FLAG_TRANSPARENT | 0xff) != 0 || transparent && opcode != COPY_2D {
        return Err(SlotError::Reserved);
    }
    if width != 0 && !matches!(opcode, FILL | COPY_2D | FILL_2D | SYNCHRONIZED) {
        return Err(SlotError::Width(width));
    }
    let task = match opcode {
        REPEAT => Task::Repeat { rounds: narrow(slot[3])? },
        NOP => Task::Transfer(Operation::Nop),
        _ => Task::Transfer(decode_operation(slot, opcode, width, transparent, fetch)?),
    };
    Ok(Request { task, terms: decode_terms(header, slot[2])? })
}

/// Decodes a private copy of a short slot. As [`decode_request`] otherwise.
///
/// # Errors
/// As [`decode_request`].
#[inline]
pub fn decode_short_request(slot: &ShortSlot) -> Result<Request, SlotError> {
    let header = slot[0];
    let operation = decode_short(header >> OPCODE_SHIFT & 0xff, slot)?;
    Ok(Request { task: Task::Transfer(operation), terms: decode_terms(header, 0)? })
}

/// Bytes that the operation of a short slot visits.
#[inline]
pub const fn short_length(slot: &ShortSlot) -> u64 {
    slot[2] >> SHORT_OFFSET_BITS | slot[3] >> SHORT_OFFSET_BITS << 16
}

#[inline]
fn decode_short(opcode: u64, slot: &ShortSlot) -> Result<Operation<Span>, SlotError> {
    let Short { source, destination, length, values } = Short::of(slot);
    Ok(match opcode {
        NOP => Operation::Nop,
        COPY => Operation::Copy { source, destination, length },
        FILL => {
            // The width is in the place of the source's offset, whose other bits must be 0.
            let width = u8::try_from(source.offset).unwrap_or(u8::MAX);
            let pattern = decode_pattern(width, u64::from(values[0]))?;
            Operation::Fill { destination, length, pattern }
        }
        COMPARE => Operation::Compare { first: source, second: destination, length },
        CRC => Operation::Crc { source, length, seed: values[1] },
        _ => return Err(SlotError::Length),
    })
}

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

fn decode_operation(
    slot: &SubmissionSlot,
    opcode: u64,
    width: u8,
    transparent: bool,
    fetch: impl FnOnce(u64, usize) -> Option<Vec<u64>>,
) -> Result<Operation<Span>, SlotError> {
    let span = |at: usize| Span::new(Handle::from_bits(slot[at]), slot[at + 1]);
    let source = span(3);
    let destination = span(5);
    let length = slot[7];
    Ok(match opcode {
        COPY => Operation::Copy { source, destination, length },
        FILL => Operation::Fill { destination, length, pattern: decode_pattern(width, slot[3])? },
        COPY_2D => decode_copy_2d(slot, width, transparent)?,
        FILL_2D => decode_fill_2d(slot, width)?,
        SCATTER_GATHER => Operation::ScatterGather { lists: Arc::new(decode_lists(slot, fetch)?) },
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

#[cfg(test)]
mod tests;
