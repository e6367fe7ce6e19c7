//! Tests of the slot encoding: round trips of every request and completion, and refusal of every other slot.

use proptest::prelude::*;

use super::*;

fn spans() -> impl Strategy<Value = Span> {
    (any::<u64>(), 0..u64::MAX / 2).prop_map(|(bits, offset)| Span::new(Handle::from_bits(bits), offset))
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
        (spans(), spans(), any::<u64>()).prop_map(|(source, destination, length)| Operation::Copy {
            source,
            destination,
            length
        }),
        (spans(), any::<u64>(), patterns()).prop_map(|(destination, length, pattern)| Operation::Fill {
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

/// The request with each 2-D span's offset moved into its walk's start, as it comes out of a slot.
fn offsets_folded(mut request: Request) -> Request {
    let fold = |span: &mut Span, plane: &mut Plane| {
        plane.start += core::mem::take(&mut span.offset);
    };
    match &mut request.operation {
        Operation::Copy2d { source, destination, shape } => {
            fold(source, &mut shape.source);
            fold(destination, &mut shape.destination);
        }
        Operation::Fill2d { destination, shape } => fold(destination, &mut shape.destination),
        _ => {}
    }
    request
}

proptest! {
    // Miri runs these too, slowly.
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 16 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_survives_its_slot(
        operation in operations(), refuse in any::<bool>(), deadline in any::<u64>(), tag in any::<u64>()
    ) {
        let when_busy = if refuse { WhenBusy::Refuse } else { WhenBusy::Wait };
        let deadline = (deadline != 0).then(|| Instant::from_nanoseconds(deadline));
        let request = Request { operation, when_busy, deadline };
        let slot = encode_request(tag, &request).unwrap();
        prop_assert_eq!(slot[0] & HEADER_SEQUENCE, 0);
        prop_assert_eq!(tag_of(&slot), tag);
        prop_assert_eq!(decode_request(&slot), Ok(offsets_folded(request)));
    }

    #[test]
    fn any_slot_decodes_or_is_refused_and_what_decodes_encodes_again(words in any::<[u64; SUBMISSION_WORDS]>(),
        opcode in 0u64..8, width in 0u64..6, long in any::<bool>()
    ) {
        let mut slot = words;
        slot[0] = opcode << 32 | width << 48 | if long { LONG } else { 0 };
        if let Ok(request) = decode_request(&slot) {
            let again = encode_request(tag_of(&slot), &request).unwrap();
            prop_assert_eq!(decode_request(&again), Ok(request));
        }
        let _ = decode_request(&words);
    }

    #[test]
    fn any_completion_slot_decodes_or_is_refused(words in any::<[u64; COMPLETION_WORDS]>(), status in 0u64..20) {
        let _ = decode_completion(&words);
        let mut slot = words;
        slot[0] = status << 32 | (words[0] & 1) << 56;
        if let Ok(completion) = decode_completion(&slot) {
            prop_assert_eq!(decode_completion(&encode_completion(&completion)), Ok(completion));
        }
    }
}

#[test]
fn unknown_bits_widths_and_codes_are_each_refused() {
    let copy = encode_request(1, &Request::new(Operation::Nop)).unwrap();
    let with = |header: u64| {
        let mut slot = copy;
        slot[0] = header;
        decode_request(&slot)
    };
    assert_eq!(with(0), Err(SlotError::Opcode(0)));
    assert_eq!(with(99 << 32), Err(SlotError::Opcode(99)));
    assert_eq!(with(99 << 32 | LONG), Err(SlotError::Opcode(99)));
    assert_eq!(with(NOP << 32 | 1 << 47), Err(SlotError::Reserved));
    assert_eq!(with(NOP << 32 | 1 << 56), Err(SlotError::Reserved));
    assert_eq!(with(NOP << 32 | LONG), Err(SlotError::Length));
    assert_eq!(with(COPY_2D << 32), Err(SlotError::Length));
    assert_eq!(with(NOP << 32 | FLAG_TRANSPARENT), Err(SlotError::Reserved));
    assert_eq!(with(COPY << 32 | 1 << 48), Err(SlotError::Width(1)));
    assert_eq!(with(FILL << 32 | 5 << 48), Err(SlotError::Width(5)));
    assert_eq!(with(COPY_2D << 32 | LONG | 3 << 48), Err(SlotError::Width(3)));
}

#[test]
fn colours_and_patterns_wider_than_their_width_are_refused() {
    for (width, value) in [(1, 1u64 << 8), (2, 1 << 16), (WIDTH_COLOR, 1 << 24), (4, 1 << 32), (1, u64::MAX)]
    {
        let mut slot = [0; SUBMISSION_WORDS];
        slot[0] = FILL << 32 | width << 48;
        slot[3] = value;
        assert_eq!(decode_request(&slot), Err(SlotError::Value), "width {width}");
    }
    let mut slot = [0; SUBMISSION_WORDS];
    slot[0] = FILL_2D << 32 | LONG | 4 << 48;
    slot[12] = 1 << 24;
    assert_eq!(decode_request(&slot), Err(SlotError::Value));
}

#[test]
fn a_start_beyond_64_bits_is_refused_before_it_reaches_the_ring() {
    let handle = Handle::new(1, 1);
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1, y_count: 1 };
    let plane = Plane { start: u64::MAX, x_step: 1, y_step: 1 };
    let shape = Fill2d { count, destination: plane, color: Color24::new(0).unwrap() };
    let request = Request::fill_2d(Span::new(handle, 1), shape);
    assert_eq!(encode_request(0, &request), Err(SlotError::Start(Side::Destination)));
}
