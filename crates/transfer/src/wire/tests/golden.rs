//! The words of every slot, written by hand: a client in another language relies on them.
//!
//! ```text
//! request ─ encode ─► words below ─ decode ─► request        completion words ─ decode ─► completion ─ encode ─► same words
//! ```
//!
//! A test that fails here means that the protocol changed. Then it needs a new version, and `docs/protocol.md` a change.

use alloc::vec;

use super::super::*;

/// Index 7 in generation 1, and its neighbours.
const A: u64 = 0x1_0000_0007;
const B: u64 = 0x1_0000_0008;
const C: u64 = 0x1_0000_0009;
const TAG: u64 = 0x44;
const FIRST: u64 = 0x30;

fn at(handle: u64, offset: u64) -> Span {
    Span::new(Handle::from_bits(handle), offset)
}

/// A slot with these words from word 3 on.
fn slot(header: u64, words: &[u64]) -> SubmissionSlot {
    let mut slot = [0; SUBMISSION_WORDS];
    slot[0] = header;
    slot[1] = TAG;
    slot[3..3 + words.len()].copy_from_slice(words);
    slot
}

#[track_caller]
fn pin(request: &Request, words: &SubmissionSlot, list: &[u64]) {
    let mut encoded = [0; SUBMISSION_WORDS];
    let mut found = Vec::new();
    encode_request(TAG, request, &mut encoded, &mut found).unwrap();
    if !found.is_empty() {
        place_list(&mut encoded, FIRST);
    }
    assert_eq!((&encoded, found.as_slice()), (words, list), "{request:?}");
    let decoded = decode_request(words, |first, count| {
        assert_eq!((first, count), (if count == 0 { 0 } else { FIRST }, list.len()));
        Some(list.to_vec())
    });
    assert_eq!(decoded.as_ref(), Ok(request));
    assert_eq!(tag_of(words), TAG);
}

#[track_caller]
fn pin_operation(operation: Operation<Span>, header: u64, words: &[u64]) {
    pin(&Request::new(operation), &slot(header, words), &[]);
}

#[test]
fn sizes() {
    assert_eq!((SUBMISSION_WORDS, SUBMISSION_SHORT_WORDS, COMPLETION_WORDS), (16, 8, 4));
    assert_eq!((LONG, HEADER_SEQUENCE), (1 << 63, 0xffff_ffff));
    assert_eq!((SEGMENT_WORDS, SOURCE_WORDS, MAX_SEGMENTS, MAX_SOURCES), (3, 2, 1024, 64));
}

#[test]
fn operations_in_eight_words() {
    let source = at(A, 0x11);
    let destination = at(B, 0x22);
    let length = 0x30;
    pin_operation(Operation::Nop, 1 << 32, &[]);
    let copy = Operation::Copy { source, destination, length };
    pin_operation(copy, 2 << 32, &[A, 0x11, B, 0x22, 0x30]);
    for (pattern, width, value) in [
        (Pattern::Byte(0xab), 1, 0xab),
        (Pattern::Half(0xabcd), 2, 0xabcd),
        (Pattern::Color(Color24::new(0xab_cdef).unwrap()), 3, 0xab_cdef),
        (Pattern::Word(0x89ab_cdef), 4, 0x89ab_cdef),
    ] {
        let fill = Operation::Fill { destination, length, pattern };
        pin_operation(fill, 3 << 32 | width << 48, &[value, 0, B, 0x22, 0x30]);
    }
    let compare = Operation::Compare { first: source, second: destination, length };
    pin_operation(compare, 8 << 32, &[A, 0x11, B, 0x22, 0x30]);
    let crc = Operation::Crc { source, length, seed: 0x5eed };
    pin_operation(crc, 9 << 32, &[A, 0x11, 0x5eed, 0, 0x30]);
    let repeat = Request::repeat(9);
    pin(&repeat, &slot(12 << 32 | 1 << 42, &[9]), &[]);
}

#[test]
fn operations_in_sixteen_words() {
    let source = at(A, 0x11);
    let destination = at(B, 0x22);
    let length = 0x30;
    let copy_crc = Operation::CopyCrc { source, destination, length, seed: 0x5eed };
    pin_operation(copy_crc, 1 << 63 | 10 << 32, &[A, 0x11, B, 0x22, 0x30, 0x5eed]);
    let dual = Operation::DualCopy { source, destinations: [destination, at(C, 0x33)], length };
    pin_operation(dual, 1 << 63 | 11 << 32, &[A, 0x11, B, 0x22, 0x30, C, 0x33]);
    let count = Count2d { pixel: PixelSize::Bits16, x_count: 5, y_count: 6 };
    let walk = |start, x_step, y_step| Plane { start, x_step, y_step };
    let from = walk(0x100, 2, -2);
    let to = walk(0x200, -4, 4);
    let color = Color24::new(0xab_cdef).unwrap();
    for (transparent, flag, word) in [(None, 0, 0), (Some(color), 1 << 41, 0xab_cdef)] {
        let shape = Copy2d { count, source: from, destination: to, transparent };
        let words = [A, 0x100, B, 0x200, 6 << 32 | 5, 2, 2_u64.wrapping_neg(), 4_u64.wrapping_neg(), 4, word];
        let header = 1 << 63 | 2 << 48 | flag | 4 << 32;
        pin_operation(Operation::Copy2d { source: at(A, 0), destination: at(B, 0), shape }, header, &words);
    }
    for (pixel, width) in [(PixelSize::Bits8, 1), (PixelSize::Bits16, 2), (PixelSize::Bits32, 4)] {
        let shape = Fill2d { count: Count2d { pixel, ..count }, destination: to, color };
        let words = [0, 0, B, 0x200, 6 << 32 | 5, 0, 0, 4_u64.wrapping_neg(), 4, 0xab_cdef];
        let fill = Operation::Fill2d { destination: at(B, 0), shape };
        pin_operation(fill, 1 << 63 | width << 48 | 5 << 32, &words);
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
        pin_operation(operation, 1 << 63 | 4 << 48 | 13 << 32, &words);
    }
}

#[test]
fn operations_with_lists() {
    let segment = |handle, offset, length| Segment { place: at(handle, offset), length };
    let lists = Lists {
        source: vec![segment(A, 1, 2), segment(B, 3, 4)].into(),
        destination: vec![segment(C, 5, 6)].into(),
    };
    let gather = Request::new(Operation::ScatterGather { lists: Box::new(lists) });
    pin(&gather, &slot(6 << 32, &[FIRST, 1 << 32 | 2]), &[A, 1, 2, B, 3, 4, C, 5, 6]);
    let sources = vec![at(A, 1), at(B, 2)].into();
    let xor = Request::new(Operation::Xor { sources, destination: at(C, 3), length: 4 });
    pin(&xor, &slot(7 << 32, &[FIRST, 2, C, 3, 4]), &[A, 1, B, 2]);
}

#[test]
fn terms_in_the_header() {
    let plain = Terms::PLAIN;
    let deadline = Instant::from_nanoseconds(0x1234);
    for (terms, bits, word) in [
        (plain, 0, 0),
        (Terms { when_busy: WhenBusy::Refuse, ..plain }, 1 << 40, 0),
        (Terms { linked: true, ..plain }, 1 << 42, 0),
        (Terms { fenced: true, ..plain }, 1 << 43, 0),
        (Terms { hint: CacheHint::Keep, ..plain }, 1 << 44, 0),
        (Terms { hint: CacheHint::Stream, ..plain }, 2 << 44, 0),
        (Terms { class: PriorityClass::Low, ..plain }, 1 << 46, 0),
        (Terms { class: PriorityClass::High, ..plain }, 2 << 46, 0),
        (Terms { deadline: Some(deadline), ..plain }, 0, 0x1234),
    ] {
        let request = Request { task: Task::Transfer(Operation::Nop), terms };
        let mut words = slot(1 << 32 | bits, &[]);
        words[2] = word;
        pin(&request, &words, &[]);
        assert_eq!(is_linked(&words), terms.linked);
    }
}

/// A completion with these words: header, bytes done, detail.
#[track_caller]
fn pin_completion(completion: Completion, header: u64, bytes_done: u64, detail: u64) {
    let words = [header, TAG, bytes_done, detail];
    assert_eq!(encode_completion(&completion), words, "{completion:?}");
    assert_eq!(decode_completion(&words), Ok(completion));
    assert_eq!(tag_of_completion(&words), TAG);
}

#[test]
fn success_names_its_engine() {
    for (engine, code) in
        [(EngineKind::None, 0), (EngineKind::Cpu, 1), (EngineKind::Simulated, 2), (EngineKind::Module, 3)]
    {
        let outcome = Outcome { result: Ok(()), bytes_done: 0x55, value: 0x66, engine };
        let completion = Completion { tag: TAG, inherited: false, outcome };
        pin_completion(completion, code << 48, 0x55, 0x66);
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
    ];
    for (status, side, failure, detail) in failures {
        let side = u64::from(side == Side::Destination) << 56;
        let mut completion = Completion { tag: TAG, inherited: false, outcome: Outcome::refused(failure) };
        pin_completion(completion, status << 32 | side, 0, detail);
        completion.inherited = true;
        completion.outcome.bytes_done = 0x55;
        completion.outcome.engine = EngineKind::Cpu;
        pin_completion(completion, status << 32 | side | 1 << 57 | 1 << 48, 0x55, detail);
    }
    assert_eq!(decode_completion(&[26 << 32, TAG, 0, 0]), Err(SlotError::Status(26)));
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
        let completion = Completion { tag: TAG, inherited: false, outcome };
        pin_completion(completion, 1 << 32, 0, code | operand << 8);
    }
}
