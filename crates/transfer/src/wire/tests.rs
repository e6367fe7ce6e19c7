//! Tests of the slot encoding: round trips of every request and completion, and refusal of every other slot.

mod golden;

use alloc::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::completion::{Completion, EngineKind, Failure, Outcome};
use alloc::vec;

/// Spans that fit a short slot, that miss it by one bit, and others.
fn spans() -> impl Strategy<Value = Span> {
    let short = (0..1_u32 << 20, 0..1_u32 << 12, 0..1_u64 << 48);
    let near = (0..1_u32 << 21, 0..1_u32 << 13, 0..1_u64 << 49);
    let any = (any::<u32>(), any::<u32>(), 0..u64::MAX / 2);
    prop_oneof![4 => short, 1 => near, 1 => any]
        .prop_map(|(index, generation, offset)| Span::new(Handle::new(index, generation), offset))
}

/// Lengths that fit a short slot, and others.
fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![2 => any::<u32>().prop_map(u64::from), 1 => 0..1_u64 << 33, 1 => any::<u64>()]
}

fn colors() -> impl Strategy<Value = Color24> {
    (0u32..1 << 24).prop_map(|value| Color24::new(value).unwrap())
}

fn counts() -> impl Strategy<Value = Count2d> {
    let pixels = prop_oneof![Just(PixelSize::Bits8), Just(PixelSize::Bits16), Just(PixelSize::Bits32)];
    (pixels, any::<u32>(), any::<u32>()).prop_map(|(pixel, x_count, y_count)| Count2d {
        pixel,
        x_count,
        y_count,
    })
}

fn planes() -> impl Strategy<Value = Plane> {
    (0..u64::MAX / 2, any::<i64>(), any::<i64>()).prop_map(|(start, x_step, y_step)| Plane {
        start,
        x_step,
        y_step,
    })
}

fn patterns() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        any::<u8>().prop_map(Pattern::Byte),
        any::<u16>().prop_map(Pattern::Half),
        colors().prop_map(Pattern::Color),
        any::<u32>().prop_map(Pattern::Word),
    ]
}

fn operations() -> impl Strategy<Value = Operation<Span>> {
    prop_oneof![
        Just(Operation::Nop),
        (spans(), spans(), lengths()).prop_map(|(source, destination, length)| Operation::Copy {
            source,
            destination,
            length
        }),
        (spans(), lengths(), patterns()).prop_map(|(destination, length, pattern)| Operation::Fill {
            destination,
            length,
            pattern
        }),
        (spans(), spans(), counts(), planes(), planes(), proptest::option::of(colors())).prop_map(
            |(source, destination, count, from, to, transparent)| Operation::Copy2d {
                source,
                destination,
                shape: Copy2d { count, source: from, destination: to, transparent }
            }
        ),
        (spans(), counts(), planes(), colors()).prop_map(|(destination, count, plane, color)| {
            Operation::Fill2d { destination, shape: Fill2d { count, destination: plane, color } }
        }),
    ]
}

/// A list area in which the place of each list follows from its length.
const LIST_AT: u64 = 77;

type Encode = fn(u32, &Request, &mut Vec<u64>) -> Result<SubmissionSlot, SlotError>;

/// The request in a slot and its list, and both decoded again.
fn through_a_slot(
    encode: Encode,
    tag: u32,
    request: &Request,
) -> (SubmissionSlot, Result<Request, SlotError>) {
    let mut list = Vec::new();
    let mut slot = encode(tag, request, &mut list).unwrap();
    if !list.is_empty() {
        place_list(&mut slot, LIST_AT);
    }
    let fetch = |first: u64, words: usize| {
        assert_eq!((first, words), (if list.is_empty() { 0 } else { LIST_AT }, list.len()));
        Some(list.clone())
    };
    (slot, decode_request(&slot, fetch))
}

/// Decodes a slot without a list area.
fn decode(slot: &SubmissionSlot) -> Result<Request, SlotError> {
    decode_request(slot, |_, _| None)
}

fn lists() -> impl Strategy<Value = Operation<Span>> {
    let segments = || {
        let segment = (spans(), any::<u64>()).prop_map(|(place, length)| Segment { place, length });
        proptest::collection::vec(segment, 0..5).prop_map(Vec::into_boxed_slice)
    };
    let gather = (segments(), segments()).prop_map(|(source, destination)| Operation::ScatterGather {
        lists: Arc::new(Lists { source, destination }),
    });
    let sources = proptest::collection::vec(spans(), 1..6).prop_map(Vec::into_boxed_slice);
    let xor = (sources, spans(), any::<u64>()).prop_map(|(sources, destination, length)| Operation::Xor {
        sources,
        destination,
        length,
    });
    prop_oneof![gather, xor]
}

fn looks() -> impl Strategy<Value = Operation<Span>> {
    (0..5, [spans(), spans(), spans()], lengths(), any::<u32>()).prop_map(
        |(kind, [source, destination, other], length, seed)| match kind {
            0 => Operation::Compare { first: source, second: destination, length },
            1 => Operation::Crc { source, length, seed },
            2 => Operation::CopyCrc { source, destination, length, seed },
            3 => Operation::Synchronized { source, destination, shape: synchronized(length, seed) },
            _ => Operation::DualCopy { source, destinations: [destination, other], length },
        },
    )
}

/// A synchronized transfer derived from two numbers.
fn synchronized(length: u64, seed: u32) -> Synchronized {
    let device = if seed & 1 == 0 { Side::Source } else { Side::Destination };
    let element = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32][seed as usize / 2 % 3];
    let packet = SyncUnit::Packet { elements: (seed >> 8) as u16 | 1 };
    let unit = [SyncUnit::Element, SyncUnit::Frame, packet, SyncUnit::Block][seed as usize / 6 % 4];
    Synchronized { device, element, elements: length as u32, frames: (length >> 32) as u32, unit }
}

fn tasks() -> impl Strategy<Value = Task> {
    prop_oneof![
        5 => operations().prop_map(Task::Transfer),
        2 => lists().prop_map(Task::Transfer),
        2 => looks().prop_map(Task::Transfer),
        1 => any::<u32>().prop_map(|rounds| Task::Repeat { rounds }),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let hint = prop_oneof![Just(CacheHint::Auto), Just(CacheHint::Keep), Just(CacheHint::Stream)];
    let class = prop_oneof![Just(PriorityClass::Low), Just(PriorityClass::Normal), Just(PriorityClass::High)];
    (any::<[bool; 3]>(), any::<u64>(), hint, class).prop_map(
        |([refuse, linked, fenced], deadline, hint, class)| {
            let when_busy = if refuse { WhenBusy::Refuse } else { WhenBusy::Wait };
            let deadline = (deadline != 0).then(|| Instant::from_nanoseconds(deadline));
            Terms { when_busy, deadline, hint, class, linked, fenced }
        },
    )
}

/// The request as it is decoded from a slot: each 2-D span's offset is added to its walk's start.
fn offsets_folded(mut request: Request) -> Request {
    let fold = |span: &mut Span, plane: &mut Plane| {
        plane.start += core::mem::take(&mut span.offset);
    };
    match &mut request.task {
        Task::Transfer(Operation::Copy2d { source, destination, shape }) => {
            fold(source, &mut shape.source);
            fold(destination, &mut shape.destination);
        }
        Task::Transfer(Operation::Fill2d { destination, shape }) => fold(destination, &mut shape.destination),
        _ => {}
    }
    request
}

proptest! {
    // Miri runs these too, with fewer cases because it is slow.
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 16 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_survives_its_slot(task in tasks(), terms in terms(), tag in any::<u32>()) {
        let request = Request { task, terms };
        let folded = offsets_folded(request.clone());
        for encode in [encode_request, encode_long] {
            let (slot, decoded) = through_a_slot(encode, tag, &request);
            prop_assert_eq!(slot[0] & HEADER_SEQUENCE, 0);
            prop_assert_eq!((tag_of(slot[0]), is_linked(slot[0])), (tag, request.terms.linked));
            prop_assert_eq!(decoded.as_ref(), Ok(&folded));
        }
        let short = encode_short(tag, &request);
        let (slot, _) = through_a_slot(encode_request, tag, &request);
        prop_assert_eq!(short.is_none(), slot[0] & LONG != 0);
        if let Some(short) = short {
            prop_assert_eq!(&slot[..SUBMISSION_SHORT_WORDS], &short[..]);
            prop_assert!(slot[SUBMISSION_SHORT_WORDS..].iter().all(|word| *word == 0));
        }
        let plain = short.and_then(|short| decode_plain(&short));
        if let Some(plain) = plain {
            prop_assert_eq!(Ok(Request::new(plain.operation())), decode(&slot));
        }
    }

    /// The fast decoder takes what the general one decodes, or leaves it to that one.
    #[test]
    fn hostile_plain_slots_decode_alike(words in any::<[u64; SUBMISSION_SHORT_WORDS]>(), opcode in 0..SYNCHRONIZED + 2,
        flags in prop_oneof![3 => Just(0_u64), 1 => 0_u64..256]
    ) {
        let mut slot = [0; SUBMISSION_WORDS];
        slot[..SUBMISSION_SHORT_WORDS].copy_from_slice(&words);
        slot[0] = words[0] & !0xffff_0000 | opcode << 16 | flags << 24;
        let short = [slot[0], slot[1], slot[2], slot[3]];
        let general = decode(&slot);
        if let Some(plain) = decode_plain(&short) {
            prop_assert_eq!(general, Ok(Request::new(plain.operation())));
        } else if slot[0] & LONG == 0 && let Ok(request) = general {
            let plain = matches!(request.operation(), Some(Operation::Nop | Operation::Copy { .. }));
            prop_assert!(!plain || request.terms != Terms::PLAIN);
        }
    }

    /// Admission names operands, descriptors see them: both have to check the same ones.
    #[test]
    fn operands_are_seen_and_named_alike(task in tasks()) {
        let Task::Transfer(operation) = task else { return Ok(()) };
        let mut seen = Vec::new();
        let mut named = Vec::new();
        let _ = operation.visit(|side, span, reach| {
            seen.push((side, *span, reach));
            Ok::<_, ()>(())
        });
        let _ = operation.try_map(|side, span, reach| {
            named.push((side, *span, reach));
            Ok::<_, ()>(((), 0))
        });
        prop_assert_eq!(seen, named);
    }

    #[test]
    fn hostile_slots_are_refused_or_round_trip(words in any::<[u64; SUBMISSION_WORDS]>(),
        list in proptest::collection::vec(any::<u64>(), 0..40), opcode in 0..SYNCHRONIZED + 2, width in 0u64..0x202,
        flags in 0u64..256, long in any::<bool>(), small in any::<bool>()
    ) {
        let mut slot = words;
        slot[0] = words[0] & !0xffff_0000 | opcode << 16 | flags << 24;
        slot[0] = if long { slot[0] | LONG } else { slot[0] & !LONG };
        slot[1] = if long { width } else { words[1] };
        if small {
            slot[1] &= 0x1ff | 0xff << 32;
            slot[2] &= 7 | 0xffff << 48;
            slot[4] &= 7 | 7 << 32;
        }
        let fetch = |_: u64, words: usize| list.get(..words).map(<[u64]>::to_vec);
        if let Ok(request) = decode_request(&slot, fetch) {
            for encode in [encode_request, encode_long] {
                let (again, decoded) = through_a_slot(encode, tag_of(slot[0]), &request);
                prop_assert_eq!(tag_of(again[0]), tag_of(slot[0]));
                prop_assert_eq!(decoded.as_ref(), Ok(&request));
            }
        }
        let _ = decode_request(&words, fetch);
    }

    #[test]
    fn hostile_completion_slots_never_panic(words in any::<[u64; COMPLETION_WORDS]>(), status in 0u64..27) {
        let _ = decode_completion(&words, 5);
        let mut slot = words;
        slot[0] = words[0] & !0x7fff_0000 | status << 16 | (words[0] & 3) << 28;
        if let Ok(completion) = decode_completion(&slot, 5) {
            prop_assert_eq!(decode_completion(&encode_completion(&completion), 6), Ok(completion));
        }
    }
}

#[test]
fn successes_of_every_engine_round_trip() {
    for engine in
        [EngineKind::None, EngineKind::Cpu, EngineKind::Simulated, EngineKind::Module, EngineKind::External]
    {
        let outcome = Outcome { result: Ok(()), bytes_done: 5, value: 7, engine };
        let completion = Completion { tag: 9, inherited: false, outcome };
        let slot = encode_completion(&completion);
        assert_eq!((tag_of_completion(slot[0]), slot[1], slot[2]), (9, 5, 7));
        assert_eq!(decode_completion(&slot, 8), Ok(completion));
    }
}

#[test]
fn failures_keep_their_operands() {
    let failures = [
        Failure::SegmentTotals { source_bytes: 1 << 40 },
        Failure::ClassNotGranted { granted: PriorityClass::Low },
        Failure::Overlap { operand: 63 },
        Failure::BadLoop,
        Failure::Malformed(SlotError::Count(1 << 20)),
        Failure::Malformed(SlotError::List),
    ];
    for failure in failures {
        let completion = Completion { tag: 1, inherited: true, outcome: Outcome::refused(failure) };
        assert_eq!(decode_completion(&encode_completion(&completion), 0), Ok(completion));
    }
}

#[test]
fn long_and_missing_lists_are_refused() {
    let span = Span::new(Handle::new(1, 1), 0);
    let lists = |count| Lists {
        source: vec![Segment { place: span, length: 0 }; count].into(),
        destination: vec![].into(),
    };
    let gather = |count| Request::new(Operation::ScatterGather { lists: Arc::new(lists(count)) });
    assert!(encode_request(1, &gather(MAX_SEGMENTS), &mut Vec::new()).is_ok());
    let million = encode_request(1, &gather(1_000_000), &mut Vec::new());
    assert_eq!(million, Err(SlotError::Count(1_000_000)));
    let xor = |count| {
        Request::new(Operation::Xor { sources: vec![span; count].into(), destination: span, length: 0 })
    };
    for count in [0, MAX_SOURCES + 1] {
        assert_eq!(encode_request(1, &xor(count), &mut Vec::new()), Err(SlotError::Count(count as u32)));
    }
    let with = |opcode: u64, counts: u64| {
        let mut slot = [0; SUBMISSION_WORDS];
        (slot[0], slot[4]) = (opcode << 16 | LONG, counts);
        decode_request(&slot, |_, words| (words <= 1 << 13).then(|| vec![0; words]))
    };
    assert!(with(6, 2).is_ok() && with(6, 2 << 32).is_ok() && with(7, 2).is_ok());
    let segments = MAX_SEGMENTS as u64;
    for counts in [segments + 1, (segments + 1) << 32, u64::MAX] {
        assert!(matches!(with(6, counts), Err(SlotError::Count(_))), "{counts:#x}");
    }
    for counts in [0, MAX_SOURCES as u64 + 1, 1 << 32, u64::MAX] {
        assert!(matches!(with(7, counts), Err(SlotError::Count(_))), "{counts:#x}");
    }
    let mut slot = [0; SUBMISSION_WORDS];
    (slot[0], slot[4]) = (6 << 16 | LONG, 1);
    assert_eq!(decode(&slot), Err(SlotError::List));
}

#[test]
fn unknown_bits_widths_and_codes_are_refused() {
    let with = |opcode: u64, bits: u64, form: u64| {
        let mut slot = [0; SUBMISSION_WORDS];
        slot[0] = opcode << 16 | bits;
        slot[1] = form;
        decode(&slot)
    };
    assert!(with(NOP, 0, u64::MAX).is_ok() && with(NOP, LONG, 0).is_ok());
    for bits in [0, LONG] {
        assert_eq!(with(0, bits, 0), Err(SlotError::Opcode(0)));
        assert_eq!(with(99, bits, 0), Err(SlotError::Opcode(99)));
        assert_eq!(with(NOP, bits | 3 << 27, 0), Err(SlotError::Reserved));
        assert_eq!(with(NOP, bits | 3 << 29, 0), Err(SlotError::Reserved));
    }
    for long_only in [COPY_2D, FILL_2D, SCATTER_GATHER, XOR, COPY_CRC, DUAL_COPY, REPEAT, SYNCHRONIZED] {
        assert_eq!(with(long_only, 0, 0), Err(SlotError::Length));
    }
    assert_eq!(with(NOP, LONG, FLAG_TRANSPARENT), Err(SlotError::Reserved));
    assert_eq!(with(COPY_2D, LONG, 1 << 9), Err(SlotError::Reserved));
    assert_eq!(with(COPY, LONG, 1), Err(SlotError::Width(1)));
    assert_eq!(with(FILL, LONG, 5), Err(SlotError::Width(5)));
    assert_eq!(with(COPY_2D, LONG, 3), Err(SlotError::Width(3)));
    assert_eq!(with(SYNCHRONIZED, LONG, 3), Err(SlotError::Width(3)));
}

#[test]
fn wide_values_of_short_fills_are_refused() {
    let with = |value: u64, width: u64| decode_short(FILL, &[0, value, width, 0]);
    assert!(with(0xff, 1).is_ok() && with(0xffff, 2).is_ok() && with(0xff_ffff, 3).is_ok());
    assert!(with(0xffff_ffff, 4).is_ok());
    for (value, width) in [(1 << 8, 1), (1 << 16, 2), (1 << 24, 3)] {
        assert_eq!(with(value, width), Err(SlotError::Value));
    }
    assert_eq!(with(0, 0), Err(SlotError::Width(0)));
    assert_eq!(with(0, 5), Err(SlotError::Width(5)));
    assert_eq!(with(0, 1 << 8 | 1), Err(SlotError::Width(255)));
}

#[test]
fn unknown_device_units_are_refused() {
    let with = |word: u64| {
        let mut slot = [0; SUBMISSION_WORDS];
        (slot[0], slot[1], slot[8]) = (SYNCHRONIZED << 16 | LONG, 4, word);
        decode(&slot)
    };
    for good in [0, 1, 2 | 1 << 16, 2 | 0xffff << 16, 3, 3 | 1 << 8] {
        assert!(with(good).is_ok(), "{good:#x}");
    }
    for bad in [2, 4, 1 << 9, 1 | 1 << 16, 2 | 1 << 32, u64::MAX] {
        assert_eq!(with(bad), Err(SlotError::Value), "{bad:#x}");
    }
}

#[test]
fn wide_colours_and_patterns_are_refused() {
    for (width, value) in [(1, 1u64 << 8), (2, 1 << 16), (WIDTH_COLOR, 1 << 24), (4, 1 << 32), (1, u64::MAX)]
    {
        let mut slot = [0; SUBMISSION_WORDS];
        (slot[0], slot[1], slot[3]) = (FILL << 16 | LONG, width, value);
        assert_eq!(decode(&slot), Err(SlotError::Value), "width {width}");
    }
    let mut slot = [0; SUBMISSION_WORDS];
    (slot[0], slot[1], slot[12]) = (FILL_2D << 16 | LONG, 4, 1 << 24);
    assert_eq!(decode(&slot), Err(SlotError::Value));
}

#[test]
fn a_start_beyond_64_bits_is_not_encoded() {
    let handle = Handle::new(1, 1);
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1, y_count: 1 };
    let plane = Plane { start: u64::MAX, x_step: 1, y_step: 1 };
    let shape = Fill2d { count, destination: plane, color: Color24::new(0).unwrap() };
    let request = Request::fill_2d(Span::new(handle, 1), shape);
    let encoded = encode_request(0, &request, &mut Vec::new());
    assert_eq!(encoded, Err(SlotError::Start(Side::Destination)));
}
