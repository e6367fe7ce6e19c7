//! The request suite: tests any implementation that serves requests (embedded, through a service, or in another language).
//!
//! ```text
//! Draft over numbered frames ─► RequestFixture::run ─► outcome, bytes, value, memory
//!                             └► oracle ────────────────────── equal? ◄──┘
//! ```
//!
//! Random requests of every kind, most within their frames, some beyond. Ordering, cancelling and timing are not tested
//! here.

use std::sync::Arc;

use memferry_transfer::{
    Color24, Copy2d, Count2d, Failure, Fill2d, Lists, Operation, Pattern, PixelSize, Plane, Segment, Side,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::noise;
use crate::oracle::{self, Place};

/// Size of each frame in bytes.
pub const FRAME_BYTES: u64 = 4096;
pub const FRAMES: usize = 4;

/// An operation over numbered frames; each operand is a frame and an offset.
pub type Draft = Operation<(usize, u64)>;

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    pub outcome: Result<(), Failure>,
    pub bytes_done: u64,
    pub value: u64,
}

/// An implementation that serves requests over [`FRAMES`] frames of [`FRAME_BYTES`] bytes.
pub trait RequestFixture {
    /// Runs the operation and waits for its end.
    fn run(&mut self, draft: &Draft) -> Served;
    fn fill(&mut self, frame: usize, bytes: &[u8]);
    fn contents(&mut self, frame: usize) -> Vec<u8>;
}

/// Runs `cases` sequences of random requests.
///
/// # Panics
/// If a result differs from the oracle; the message has the failing input.
pub fn request_suite(fixture: impl RequestFixture, cases: u32) {
    let fixture = std::cell::RefCell::new(fixture);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let drafts = proptest::collection::vec(draft(), 1..12);
    let outcome = TestRunner::new(config).run(&(drafts, any::<u64>()), |(drafts, seed)| {
        check(&mut *fixture.borrow_mut(), &drafts, seed);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn check(fixture: &mut impl RequestFixture, drafts: &[Draft], seed: u64) {
    // Frames are equal in pairs, so that comparisons do not end at once.
    let mut expected: Vec<_> =
        (0..FRAMES).map(|frame| noise(FRAME_BYTES as usize, seed ^ (frame / 2) as u64)).collect();
    for (frame, bytes) in expected.iter().enumerate() {
        fixture.fill(frame, bytes);
    }
    for draft in drafts {
        let served = fixture.run(draft);
        assert_eq!(served, judged(draft, &mut expected), "{draft:?}");
        // Comparing whole frames includes the bytes outside the operation's ranges.
        for (frame, bytes) in expected.iter().enumerate() {
            assert!(
                fixture.contents(frame) == *bytes,
                "{draft:?} left frame {frame} different from the oracle's"
            );
        }
    }
}

/// The failure with which admission refuses an operation over frames of `available` bytes.
pub fn refusal(operation: &Operation<Place>, available: u64) -> Option<Failure> {
    if let Operation::ScatterGather { lists } = operation {
        let source_bytes = lists.total_bytes(Side::Source);
        if source_bytes != lists.total_bytes(Side::Destination) {
            return Some(Failure::SegmentTotals { source_bytes });
        }
    }
    if let Err(left) = oracle::fits(operation) {
        return Some(Failure::OutOfBounds { side: left.side, available });
    }
    let operand = oracle::overlapping_operand(operation)? as u64;
    Some(Failure::Overlap { operand })
}

/// The expected result of a request; applies it to `memories`, which are frames of equal length.
///
/// # Panics
/// If the request names a frame that does not exist.
pub fn judged(draft: &Draft, memories: &mut [Vec<u8>]) -> Served {
    let available = memories.first().map_or(0, |memory| memory.len() as u64);
    let operation = placed(draft, available);
    if let Some(failure) = refusal(&operation, available) {
        return Served { outcome: Err(failure), bytes_done: 0, value: 0 };
    }
    let value = oracle::value(&operation, memories);
    let bytes_done = match operation {
        // Admission chooses an order in which nothing is overwritten before it is read.
        Operation::Copy2d { source, destination, shape } if source.memory == destination.memory => {
            let written = &mut memories[destination.memory];
            let mut apart = [written.clone(), std::mem::take(written)];
            let operation = Operation::Copy2d {
                source: Place { memory: 0, ..source },
                destination: Place { memory: 1, ..destination },
                shape,
            };
            let bytes_done = oracle::apply(&operation, &mut apart).unwrap_or(0);
            let [_, after] = apart;
            *written = after;
            bytes_done
        }
        operation => oracle::apply(&operation, memories).unwrap_or(0),
    };
    Served { outcome: Ok(()), bytes_done, value }
}

fn operand() -> impl Strategy<Value = (usize, u64)> {
    (0..FRAMES, prop_oneof![4 => 0..600_u64, 1 => FRAME_BYTES - 40..=FRAME_BYTES])
}

fn count() -> impl Strategy<Value = Count2d> {
    let pixel = prop_oneof![Just(PixelSize::Bits8), Just(PixelSize::Bits16), Just(PixelSize::Bits32)];
    (pixel, 0..40_u32, 0..12_u32).prop_map(|(pixel, x_count, y_count)| Count2d { pixel, x_count, y_count })
}

fn plane() -> impl Strategy<Value = Plane> {
    let step = || prop_oneof![3 => Just(1_i64), 2 => Just(4), 1 => Just(-4), 1 => Just(0), 2 => -60..60_i64];
    (0..2500_u64, step(), step()).prop_map(|(start, x_step, y_step)| Plane { start, x_step, y_step })
}

/// Requests of every kind over [`FRAMES`] frames, most within their [`FRAME_BYTES`], some beyond.
pub fn draft() -> impl Strategy<Value = Draft> {
    let color = (0..1_u32 << 24).prop_map(|value| Color24::new(value).expect("24 bits"));
    let pattern = prop_oneof![
        any::<u8>().prop_map(Pattern::Byte),
        any::<u16>().prop_map(Pattern::Half),
        any::<u32>().prop_map(Pattern::Word),
        color.clone().prop_map(Pattern::Color),
    ];
    let lengths = prop_oneof![0..50_u64, 0..1500_u64];
    prop_oneof![
        1 => Just(Operation::Nop),
        4 => (operand(), operand(), lengths)
            .prop_map(|(source, destination, length)| Operation::Copy { source, destination, length }),
        3 => (operand(), pattern, 0..300_u64).prop_map(|(destination, pattern, times)| {
            Operation::Fill { destination, length: times * pattern.length_bytes(), pattern }
        }),
        5 => (operand(), operand(), count(), plane(), plane(), proptest::option::of(color.clone())).prop_map(
            |(from, to, count, source, destination, transparent)| {
                let shape = Copy2d { count, source, destination, transparent };
                Operation::Copy2d { source: from, destination: to, shape }
            }
        ),
        3 => lists(),
        4 => looks(),
        3 => (operand(), count(), plane(), color).prop_map(|(to, count, destination, color)| {
            Operation::Fill2d { destination: to, shape: Fill2d { count, destination, color } }
        }),
    ]
}

fn lists() -> impl Strategy<Value = Draft> {
    let segments = || proptest::collection::vec((operand(), 0..300_u64), 0..7);
    (segments(), segments(), any::<bool>()).prop_map(|(source, destination, uneven)| {
        let segment = |(place, length): &((usize, u64), u64)| Segment { place: *place, length: *length };
        let source: Box<[_]> = source.iter().map(segment).collect();
        let mut left: u64 = source.iter().map(|segment| segment.length).sum();
        let mut destination: Vec<_> = destination.iter().map(segment).collect();
        if !uneven {
            // Cut to the source's total; the remainder goes to a last segment.
            for segment in &mut destination {
                segment.length = segment.length.min(left);
                left -= segment.length;
            }
            destination.push(Segment { place: (0, 7), length: left });
        }
        Operation::ScatterGather { lists: Arc::new(Lists { source, destination: destination.into() }) }
    })
}

/// Xor and the like. Partial overlaps of source and destination occur where the service refuses them or their result is specified.
fn looks() -> impl Strategy<Value = Draft> {
    // Those in the destination's frame overlap it in part now and then, and are refused then.
    let sources =
        proptest::collection::vec((prop_oneof![7 => Just(0), 1 => Just(1_usize)], 0..3500_u64), 1..6);
    let numbers = (0..5, 0..1500_u64, any::<u32>(), any::<bool>());
    (numbers, operand(), operand(), sources).prop_map(
        |((kind, length, seed, own), first, second, sources)| {
            let apart = (1, second.1);
            match kind {
                0 => Operation::Compare { first, second, length },
                1 => Operation::Crc { source: first, length, seed },
                2 => Operation::CopyCrc { source: first, destination: second, length, seed },
                3 => {
                    let other = if own { (2, second.1) } else { first };
                    Operation::DualCopy { source: (0, first.1), destinations: [apart, other], length }
                }
                _ => {
                    let in_place = own.then_some(apart);
                    let sources = sources.into_iter().chain(in_place).collect();
                    Operation::Xor { sources, destination: apart, length }
                }
            }
        },
    )
}

/// The draft in the oracle's terms: 2-D walks cover whole frames of `frame_bytes`, with the operands' offsets added to
/// their starts.
pub fn placed(draft: &Draft, frame_bytes: u64) -> Operation<Place> {
    let moved = |plane: Plane, (_, offset): (usize, u64)| Plane { start: plane.start + offset, ..plane };
    let mut operation = draft.clone();
    match &mut operation {
        Operation::Copy2d { source, destination, shape } => {
            shape.source = moved(shape.source, *source);
            shape.destination = moved(shape.destination, *destination);
            (source.1, destination.1) = (0, 0);
        }
        Operation::Fill2d { destination, shape } => {
            shape.destination = moved(shape.destination, *destination);
            destination.1 = 0;
        }
        _ => {}
    }
    oracle::renamed(&operation, |&(memory, offset)| Place { memory, offset, length: frame_bytes - offset })
}
