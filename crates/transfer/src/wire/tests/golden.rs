//! The words of every slot, written by hand: a client in another language relies on them.
//!
//! ```text
//! request ─ encode ─► words below ─ decode ─► request        completion words ─ decode ─► completion ─ encode ─► same words
//! ```
//!
//! A test that fails here means that the protocol changed. Then it needs a new version, and `docs/protocol.md` a change.

use alloc::sync::Arc;

use alloc::vec;

use super::super::*;
use crate::completion::{Completion, EngineKind, Failure, Outcome, PeerReason};

/// Index 7 in generation 1, and its neighbours.
const A: u64 = 0x1_0000_0007;
const B: u64 = 0x1_0000_0008;
const C: u64 = 0x1_0000_0009;
const TAG: u32 = 0xfedc_0044;
/// The tag where it is in a header.
const TAG_BITS: u64 = 0xfedc_0044 << 32;
const FIRST: u64 = 0x30;

fn at(handle: u64, offset: u64) -> Span {
    Span::new(Handle::from_bits(handle), offset)
}

/// A long slot with these words from word 3 on.
fn slot(header: u64, words: &[u64]) -> SubmissionSlot {
    let mut slot = [0; SUBMISSION_WORDS];
    slot[0] = header | 1 << 31 | TAG_BITS;
    slot[3..3 + words.len()].copy_from_slice(words);
    slot
}

/// Checks that a request is encoded as these words, and that these words are decoded as the request.
#[track_caller]
fn pin(request: &Request, words: &SubmissionSlot, list: &[u64]) {
    let mut found = Vec::new();
    let long = words[0] >> 31 & 1 == 1;
    let encode = if long { encode_long } else { encode_request };
    let mut encoded = encode(TAG, request, &mut found).unwrap();
    if !found.is_empty() {
        place_list(&mut encoded, FIRST);
    }
    assert_eq!((&encoded, found.as_slice()), (words, list), "{request:?}");
    let decoded = decode_request(words, |first, count| {
        assert_eq!((first, count), (if count == 0 { 0 } else { FIRST }, list.len()));
        Some(list.to_vec())
    });
    assert_eq!(decoded.as_ref(), Ok(request));
    assert_eq!(tag_of(words[0]), TAG);
}

#[track_caller]
fn pin_short(operation: Operation<Span>, opcode: u64, words: [u64; 3]) {
    let mut slot = [0; SUBMISSION_WORDS];
    slot[0] = opcode << 16 | TAG_BITS;
    slot[1..4].copy_from_slice(&words);
    pin(&Request::new(operation), &slot, &[]);
}

#[track_caller]
fn pin_operation(operation: Operation<Span>, opcode: u64, words: &[u64]) {
    pin(&Request::new(operation), &slot(opcode << 16, words), &[]);
}

/// As [`pin_operation`], with word 1.
#[track_caller]
fn pin_form(operation: Operation<Span>, opcode: u64, form: u64, words: &[u64]) {
    let mut slot = slot(opcode << 16, words);
    slot[1] = form;
    pin(&Request::new(operation), &slot, &[]);
}

#[test]
fn sizes() {
    assert_eq!((SUBMISSION_WORDS, SUBMISSION_SHORT_WORDS), (16, 4));
    assert_eq!((COMPLETION_WORDS, COMPLETION_SHORT_WORDS), (3, 1));
    assert_eq!((LONG, HEADER_SEQUENCE), (1 << 31, 0xffff));
    assert_eq!((SEGMENT_WORDS, SOURCE_WORDS, MAX_SEGMENTS, MAX_SOURCES), (3, 2, 1024, 64));
}

const PATTERNS: [(Pattern, u64, u64); 4] = [
    (Pattern::Byte(0xab), 1, 0xab),
    (Pattern::Half(0xabcd), 2, 0xabcd),
    (Pattern::Color(Color24::new(0xab_cdef).unwrap()), 3, 0xab_cdef),
    (Pattern::Word(0x89ab_cdef), 4, 0x89ab_cdef),
];

#[test]
fn operations_in_four_words() {
    // Index 0xabcde in generation 0x123, and 0xfffff in 0xfff: the largest.
    let source = at(0x123_000a_bcde, 0x1234_5678_9abc);
    let destination = at(0xfff_000f_ffff, 0xffff_ffff_fff0);
    let length = 0x89ab_cdef;
    let words = [0xffff_ffff_123a_bcde, 0xcdef_1234_5678_9abc, 0x89ab_ffff_ffff_fff0];
    pin_short(Operation::Nop, 1, [0; 3]);
    pin_short(Operation::Copy { source, destination, length }, 2, words);
    pin_short(Operation::Compare { first: source, second: destination, length }, 8, words);
    let crc = Operation::Crc { source, length, seed: 0xfeed_5eed };
    pin_short(crc, 9, [0xfeed_5eed_123a_bcde, 0xcdef_1234_5678_9abc, 0x89ab << 48]);
    for (pattern, width, value) in PATTERNS {
        let fill = Operation::Fill { destination, length, pattern };
        pin_short(fill, 3, [0xffff_ffff << 32 | value, 0xcdef << 48 | width, words[2]]);
    }
    let mut again = [0; SUBMISSION_SHORT_WORDS];
    again[0] = 2 << 16;
    again[1..].copy_from_slice(&words);
    assert_eq!(decode_plain(&again), Some(Plain { copies: true, source, destination, length }));
}

#[test]
fn operands_that_need_sixteen_words() {
    let near = at(A, 0x11);
    for far in [at(0x1_0010_0007, 0x11), at(0x1000_0000_0007, 0x11), at(A, 1 << 48)] {
        let words = [far.handle.bits(), far.offset, A, 0x11, 0x30];
        let copy = Operation::Copy { source: far, destination: near, length: 0x30 };
        assert_eq!(encode_short(TAG, &Request::new(copy.clone())), None);
        pin_operation(copy, 2, &words);
        let compare = Operation::Compare { first: near, second: far, length: 0x30 };
        assert_eq!(encode_short(TAG, &Request::new(compare.clone())), None);
        pin_operation(compare, 8, &[A, 0x11, words[0], words[1], 0x30]);
    }
    let long = Operation::Copy { source: near, destination: near, length: 1 << 32 };
    assert_eq!(encode_short(TAG, &Request::new(long.clone())), None);
    pin_operation(long, 2, &[A, 0x11, A, 0x11, 1 << 32]);
    let crc = Operation::Crc { source: near, length: 1 << 32, seed: 0x5eed };
    pin_operation(crc, 9, &[A, 0x11, 0x5eed, 0, 1 << 32]);
    for (pattern, width, value) in PATTERNS {
        let fill = Operation::Fill { destination: near, length: 1 << 32, pattern };
        pin_form(fill, 3, width, &[value, 0, A, 0x11, 1 << 32]);
    }
    // Each of these has a long form too.
    pin_operation(Operation::Nop, 1, &[]);
    pin_operation(Operation::Copy { source: near, destination: near, length: 1 }, 2, &[A, 0x11, A, 0x11, 1]);
}

#[test]
fn operations_in_sixteen_words() {
    let source = at(A, 0x11);
    let destination = at(B, 0x22);
    let length = 0x30;
    let mut repeat = slot(12 << 16 | 1 << 25, &[9]);
    pin(&Request::repeat(9), &repeat, &[]);
    repeat[2] = 7;
    pin(&Request::repeat(9).with_deadline(Instant::from_nanoseconds(7)), &repeat, &[]);
    let copy_crc = Operation::CopyCrc { source, destination, length, seed: 0x5eed };
    pin_operation(copy_crc, 10, &[A, 0x11, B, 0x22, 0x30, 0x5eed]);
    let dual = Operation::DualCopy { source, destinations: [destination, at(C, 0x33)], length };
    pin_operation(dual, 11, &[A, 0x11, B, 0x22, 0x30, C, 0x33]);
    let count = Count2d { pixel: PixelSize::Bits16, x_count: 5, y_count: 6 };
    let walk = |start, x_step, y_step| Plane { start, x_step, y_step };
    let from = walk(0x100, 2, -2);
    let to = walk(0x200, -4, 4);
    let color = Color24::new(0xab_cdef).unwrap();
    for (transparent, flag, word) in [(None, 0, 0), (Some(color), 1 << 8, 0xab_cdef)] {
        let shape = Copy2d { count, source: from, destination: to, transparent };
        let words = [A, 0x100, B, 0x200, 6 << 32 | 5, 2, 2_u64.wrapping_neg(), 4_u64.wrapping_neg(), 4, word];
        let copy = Operation::Copy2d { source: at(A, 0), destination: at(B, 0), shape };
        pin_form(copy, 4, 2 | flag, &words);
    }
    for (pixel, width) in [(PixelSize::Bits8, 1), (PixelSize::Bits16, 2), (PixelSize::Bits32, 4)] {
        let shape = Fill2d { count: Count2d { pixel, ..count }, destination: to, color };
        let words = [0, 0, B, 0x200, 6 << 32 | 5, 0, 0, 4_u64.wrapping_neg(), 4, 0xab_cdef];
        let fill = Operation::Fill2d { destination: at(B, 0), shape };
        pin_form(fill, 5, width, &words);
    }
    for (unit, device, word) in [
        (SyncUnit::Element, Side::Source, 0),
        (SyncUnit::Frame, Side::Destination, 1 | 1 << 8),
        (SyncUnit::Packet { elements: 7 }, Side::Source, 2 | 7 << 16),
        (SyncUnit::Block, Side::Source, 3),
    ] {
        let shape = Synchronized { device, element: PixelSize::Bits32, elements: 5, frames: 6, unit };
        let words = [A, 0x11, B, 0x22, 6 << 32 | 5, word];
        let operation = Operation::Synchronized { source, destination, shape };
        pin_form(operation, 13, 4, &words);
    }
}

#[test]
fn operations_with_lists() {
    let segment = |handle, offset, length| Segment { place: at(handle, offset), length };
    let lists = Lists {
        source: vec![segment(A, 1, 2), segment(B, 3, 4)].into(),
        destination: vec![segment(C, 5, 6)].into(),
    };
    let gather = Request::new(Operation::ScatterGather { lists: Arc::new(lists) });
    pin(&gather, &slot(6 << 16, &[FIRST, 1 << 32 | 2]), &[A, 1, 2, B, 3, 4, C, 5, 6]);
    let sources = vec![at(A, 1), at(B, 2)].into();
    let xor = Request::new(Operation::Xor { sources, destination: at(C, 3), length: 4 });
    pin(&xor, &slot(7 << 16, &[FIRST, 2, C, 3, 4]), &[A, 1, B, 2]);
}

#[test]
fn terms_in_the_header() {
    let plain = Terms::PLAIN;
    for (terms, bits) in [
        (plain, 0),
        (Terms { when_busy: WhenBusy::Refuse, ..plain }, 1 << 24),
        (Terms { linked: true, ..plain }, 1 << 25),
        (Terms { fenced: true, ..plain }, 1 << 26),
        (Terms { hint: CacheHint::Keep, ..plain }, 1 << 27),
        (Terms { hint: CacheHint::Stream, ..plain }, 2 << 27),
        (Terms { class: PriorityClass::Low, ..plain }, 1 << 29),
        (Terms { class: PriorityClass::High, ..plain }, 2 << 29),
    ] {
        let request = Request { task: Task::Transfer(Operation::Nop), terms };
        let mut words = [0; SUBMISSION_WORDS];
        words[0] = 1 << 16 | bits | TAG_BITS;
        pin(&request, &words, &[]);
        assert_eq!(is_linked(words[0]), terms.linked);
        let deadline = Instant::from_nanoseconds(0x1234);
        let mut words = slot(1 << 16 | bits, &[]);
        words[2] = 0x1234;
        pin(&request.with_deadline(deadline), &words, &[]);
    }
}

/// A completion with these words: header, bytes done, detail.
#[track_caller]
fn pin_completion(completion: Completion, header: u64, bytes_done: u64, detail: u64) {
    let words = [header | 1 << 31 | TAG_BITS, bytes_done, detail];
    assert_eq!(encode_completion(&completion), words, "{completion:?}");
    assert_eq!(decode_completion(&words, 9), Ok(completion));
    assert_eq!(tag_of_completion(words[0]), TAG);
}

#[test]
fn success_names_its_engine() {
    for (engine, code) in [
        (EngineKind::None, 0),
        (EngineKind::Cpu, 1),
        (EngineKind::Simulated, 2),
        (EngineKind::Module, 3),
        (EngineKind::External, 4),
    ] {
        let outcome = Outcome { result: Ok(()), bytes_done: 0x55, value: 0x66, engine };
        let completion = Completion { tag: TAG.into(), inherited: false, outcome };
        pin_completion(completion, code << 24, 0x55, 0x66);
        let short = code << 24 | TAG_BITS;
        assert_eq!(encode_success(TAG, engine), short);
        let outcome = Outcome { value: 0, ..outcome };
        let completion = Completion { tag: TAG.into(), inherited: false, outcome };
        assert_eq!(decode_completion(&[short, 1, 2], 0x55), Ok(completion));
    }
}

#[test]
fn statuses_with_their_details() {
    let handle = Handle::from_bits(A);
    let [source, destination] = [Side::Source, Side::Destination];
    let failures = [
        (2, source, Failure::UnknownHandle { side: source, handle }, A),
        (3, destination, Failure::StaleHandle { side: destination, handle }, A),
        (4, source, Failure::Revoked { side: source, handle }, A),
        (5, destination, Failure::MissingRight { side: destination, handle }, A),
        (6, destination, Failure::OutOfBounds { side: destination, available: 7 }, 7),
        (7, source, Failure::TooLong { limit: 7 }, 7),
        (8, source, Failure::FillLength { pattern_bytes: 4 }, 4),
        (9, source, Failure::ChannelsBusy { channels: 7 }, 7),
        (10, source, Failure::WaitingQuota { limit: 7 }, 7),
        (11, source, Failure::Cancelled, 0),
        (12, source, Failure::DeadlineExceeded, 0),
        (13, source, Failure::MemoryFault, 0),
        (14, source, Failure::ChannelFaulted, 0),
        (15, source, Failure::Unsupported, 0),
        (16, source, Failure::ServiceStopping, 0),
        (17, source, Failure::ServiceLost, 0),
        (18, source, Failure::SegmentTotals { source_bytes: 7 }, 7),
        (19, source, Failure::ClassNotGranted { granted: PriorityClass::Low }, 0),
        (19, source, Failure::ClassNotGranted { granted: PriorityClass::Normal }, 1),
        (19, source, Failure::ClassNotGranted { granted: PriorityClass::High }, 2),
        (20, source, Failure::BadLoop, 0),
        (21, source, Failure::EngineTimedOut, 0),
        (22, source, Failure::RequestDropped, 0),
        (23, source, Failure::EngineReset, 0),
        (24, source, Failure::DeadlineUnreachable, 0),
        (25, source, Failure::Overlap { operand: 7 }, 7),
        (26, destination, Failure::Expired { side: destination, handle }, A),
        (27, source, Failure::PeerLost, 0),
        (28, source, Failure::PeerRefused { reason: PeerReason::Expired }, 2),
        (28, source, Failure::PeerRefused { reason: PeerReason::EarlierRun }, 7),
    ];
    for (status, side, failure, detail) in failures {
        let side = u64::from(side == Side::Destination) << 28;
        let mut completion =
            Completion { tag: TAG.into(), inherited: false, outcome: Outcome::refused(failure) };
        pin_completion(completion, status << 16 | side, 0, detail);
        completion.inherited = true;
        completion.outcome.bytes_done = 0x55;
        completion.outcome.engine = EngineKind::Cpu;
        pin_completion(completion, status << 16 | side | 1 << 29 | 1 << 24, 0x55, detail);
    }
    assert_eq!(decode_completion(&[29 << 16 | LONG, 0, 0], 0), Err(SlotError::Status(29)));
    assert_eq!(decode_completion(&[28 << 16 | LONG, 0, 8], 0), Err(SlotError::Value));
    for short in [11 << 16, 1 << 28, 1 << 29] {
        assert_eq!(decode_completion(&[short, 0, 0], 0), Err(SlotError::Length));
    }
    for header in [1 << 30, 1 << 30 | LONG] {
        assert_eq!(decode_completion(&[header, 0, 0], 0), Err(SlotError::Reserved));
    }
    assert_eq!(decode_completion(&[5 << 24, 0, 0], 0), Err(SlotError::Engine(5)));
}

#[test]
fn malformed_requests_have_a_reason() {
    for (code, error, operand) in [
        (1, SlotError::Opcode(200), 200),
        (2, SlotError::Reserved, 0),
        (3, SlotError::Width(9), 9),
        (4, SlotError::Value, 0),
        (5, SlotError::Length, 0),
        (6, SlotError::Start(Side::Source), 0),
        (7, SlotError::Status(300), 300),
        (8, SlotError::Engine(200), 200),
        (9, SlotError::Count(100_000), 100_000),
        (10, SlotError::List, 0),
    ] {
        let outcome = Outcome::refused(Failure::Malformed(error));
        let completion = Completion { tag: TAG.into(), inherited: false, outcome };
        pin_completion(completion, 1 << 16, 0, code | operand << 8);
    }
}
