//! Random operations, complete and cancelled, with random chunk sizes.
//!
//! ```text
//! Draft (small numbers) ──► Case { memories, operation confined to its places, chunk } ──► Bench ──► oracle
//! ```
//!
//! Failures are shrunk and reported with their seed. `PROPTEST_RNG_SEED` repeats a run; `PROPTEST_CASES` sets the number
//! of cases.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use memferry_transfer::{
    Color24, Copy2d, Count2d, Engine, Fill2d, Lists, Operation, Pattern, PixelSize, Plane, Segment,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::bench::Bench;
use super::operations::is_announced;
use super::{EngineFixture, EngineSetup};
use crate::oracle::Place;

/// Default number of cases per property; `PROPTEST_CASES` overrides it.
const CASES: u32 = 3000;
/// Untouched bytes at the end of every memory.
const MARGIN: u64 = 16;

pub(super) fn random_operations_equal_the_oracle<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    check(draft(), |draft| {
        let case = draft.case();
        let setup = EngineSetup { channels: 1, chunk_bytes: draft.chunk_bytes };
        let mut bench = Bench::new(make, setup, &case.memories);
        if is_announced(&bench.engine().capabilities(), &case.operation) {
            bench.run(&case.operation);
        }
    });
}

pub(super) fn random_cancels_leave_a_prefix<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    check((draft(), 0_u32..8), |(draft, polls)| {
        let case = draft.case();
        let setup = EngineSetup { channels: 1, chunk_bytes: draft.chunk_bytes };
        let mut bench = Bench::new(make, setup, &case.memories);
        if !is_announced(&bench.engine().capabilities(), &case.operation) {
            return;
        }
        let ticket = bench.post(0, &case.operation);
        bench.engine().ring_doorbell();
        let mut completions = Vec::new();
        for _ in 0..polls {
            bench.poll(&mut completions);
        }
        bench.engine().cancel(ticket);
        completions.extend(bench.drive(1 - completions.len()));
        // The engine may choose in which direction an overlapping copy proceeds.
        if !overlaps(&case.operation) || completions[0].outcome.result.is_ok() {
            bench.verify_cancelled(&case.operation, ticket, &completions[0]);
        }
    });
}

fn overlaps(operation: &Operation<Place>) -> bool {
    match operation {
        Operation::Copy { source, destination, .. } | Operation::CopyCrc { source, destination, .. } => {
            source.memory == destination.memory
        }
        Operation::ScatterGather { lists } => {
            let memory = |list: &[Segment<Place>]| list.first().map(|segment| segment.place.memory);
            memory(&lists.source) == memory(&lists.destination)
        }
        _ => false,
    }
}

fn check<S: Strategy>(strategy: S, test: impl Fn(S::Value)) {
    let defaults = Config::default();
    let seed = match defaults.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { defaults.cases } else { CASES };
    let config = Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..defaults };
    let outcome = TestRunner::new(config).run(&strategy, |value| {
        test(value);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("repeat with PROPTEST_RNG_SEED={seed}: {error}");
    }
}

/// A generated test case.
struct Case {
    memories: Vec<Vec<u8>>,
    operation: Operation<Place>,
}

/// Random numbers from which a case is built; every combination is valid.
#[derive(Clone, Debug)]
struct Draft {
    kind: Kind,
    /// Whether source and destination are in the same memory.
    same: bool,
    /// Offsets of the places in their memories.
    offsets: [u64; 2],
    /// Bytes of the places before and after the accessed bytes.
    slack: [u64; 2],
    chunk_bytes: u64,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Copy {
        length: u64,
    },
    Fill {
        pattern: Pattern,
        pieces: u64,
    },
    Copy2d {
        count: Count2d,
        source: [i64; 2],
        destination: [i64; 2],
        transparent: Option<Color24>,
    },
    Fill2d {
        count: Count2d,
        destination: [i64; 2],
        color: Color24,
    },
    /// Offsets and lengths of the source's segments; offsets and maximum lengths of the destination's.
    Lists {
        source: Vec<(u64, u64)>,
        destination: Vec<(u64, u64)>,
    },
    Xor {
        sources: Vec<u64>,
        in_place: bool,
        length: u64,
    },
    Compare {
        length: u64,
        equal: bool,
    },
    CopyCrc {
        length: u64,
        seed: u32,
    },
}

fn draft() -> impl Strategy<Value = Draft> {
    let numbers = (any::<bool>(), [0..48_u64, 0..48], [0..9_u64, 0..9], 1..200_u64, any::<u64>());
    (kind(), numbers).prop_map(|(kind, (same, offsets, slack, chunk_bytes, seed))| Draft {
        kind,
        same,
        offsets,
        slack,
        chunk_bytes,
        seed,
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    let length = prop_oneof![0..40_u64, 0..600_u64];
    let pattern = prop_oneof![
        any::<u8>().prop_map(Pattern::Byte),
        any::<u16>().prop_map(Pattern::Half),
        any::<u32>().prop_map(Pattern::Word),
        color().prop_map(Pattern::Color),
    ];
    let copy_2d = (count(), proptest::option::of(faint_color())).prop_flat_map(|(count, transparent)| {
        (steps(count), steps(count)).prop_map(move |(source, destination)| Kind::Copy2d {
            count,
            source,
            destination,
            transparent,
        })
    });
    let fill_2d = (count(), color()).prop_flat_map(|(count, color)| {
        steps(count).prop_map(move |destination| Kind::Fill2d { count, destination, color })
    });
    let places = |limit: u64| proptest::collection::vec((0..300_u64, 0..limit), 0..6);
    let lists =
        (places(60), places(300)).prop_map(|(source, destination)| Kind::Lists { source, destination });
    let xor = (proptest::collection::vec(0..60_u64, 1..6), any::<bool>(), length.clone())
        .prop_map(|(sources, in_place, length)| Kind::Xor { sources, in_place, length });
    let compare = (length.clone(), any::<bool>()).prop_map(|(length, equal)| Kind::Compare { length, equal });
    let crc = (length.clone(), any::<u32>()).prop_map(|(length, seed)| Kind::CopyCrc { length, seed });
    prop_oneof![
        2 => lists,
        1 => xor,
        1 => compare,
        1 => crc,
        1 => length.prop_map(|length| Kind::Copy { length }),
        1 => (pattern, 0..80_u64).prop_map(|(pattern, pieces)| Kind::Fill { pattern, pieces }),
        4 => copy_2d,
        2 => fill_2d,
    ]
}

fn color() -> impl Strategy<Value = Color24> {
    (0..1_u32 << 24).prop_map(|value| Color24::new(value).expect("24 bits"))
}

/// A color that pixels of [`Draft::bytes`] match now and then.
fn faint_color() -> impl Strategy<Value = Color24> {
    (0..8_u32).prop_map(|bits| {
        let value = (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14;
        Color24::new(value).expect("24 bits")
    })
}

fn count() -> impl Strategy<Value = Count2d> {
    let pixel = prop_oneof![Just(PixelSize::Bits8), Just(PixelSize::Bits16), Just(PixelSize::Bits32)];
    (pixel, 0..14_u32, 0..9_u32).prop_map(|(pixel, x_count, y_count)| Count2d { pixel, x_count, y_count })
}

/// `[x_step, y_step]`, often those of contiguous, padded or mirrored rows.
fn steps(count: Count2d) -> impl Strategy<Value = [i64; 2]> {
    let size = count.pixel.bytes() as i64;
    let row = size * i64::from(count.x_count);
    let x_step = prop_oneof![4 => Just(size), 2 => Just(-size), 1 => Just(row), 3 => -40..40_i64];
    let y_step = prop_oneof![
        2 => Just(size),
        2 => (0..20_i64).prop_map(move |gap| size + gap),
        2 => Just(size - 2 * row),
        1 => -300..300_i64,
    ];
    let equal = (-40..40_i64).prop_map(|step| [step, step]);
    prop_oneof![5 => (x_step, y_step).prop_map(|(x, y)| [x, y]), 1 => equal]
}

/// Lists within two places of 400 bytes; the destination's segments are cut or extended to the source's total.
fn cut(from: &Place, source: &[(u64, u64)], to: &Place, destination: &[(u64, u64)]) -> Lists<Place> {
    let segment = |within: &Place, offset, length: u64| Segment {
        place: Place { memory: within.memory, offset: within.offset + offset, length },
        length,
    };
    let source: Box<[_]> =
        source.iter().map(|(offset, length)| segment(from, *offset, (*length).min(400 - offset))).collect();
    let mut left: u64 = source.iter().map(|segment| segment.length).sum();
    let mut cut: Vec<_> = destination
        .iter()
        .map(|(offset, length)| {
            let length = (*length).min(left).min(400 - offset);
            left -= length;
            segment(to, *offset, length)
        })
        .collect();
    cut.push(segment(to, 400 - left, left));
    Lists { source, destination: cut.into() }
}

impl Draft {
    fn case(&self) -> Case {
        let places = |lengths: [u64; 2]| {
            let padded = [lengths[0] + self.slack[1], lengths[1] + self.slack[1]];
            let memory = if self.same { 0 } else { 1 };
            let source = Place { memory: 0, offset: self.offsets[0], length: padded[0] };
            (source, Place { memory, offset: self.offsets[1], length: padded[1] })
        };
        let (source, destination, operation) = match &self.kind {
            Kind::Copy { length } => {
                let (source, destination) = places([*length; 2]);
                (source, destination, Operation::Copy { source, destination, length: *length })
            }
            Kind::Fill { pattern, pieces } => {
                let length = pieces * pattern.length_bytes();
                let (source, destination) = places([length; 2]);
                (source, destination, Operation::Fill { destination, length, pattern: *pattern })
            }
            Kind::Copy2d { count, source: from, destination: to, transparent } => {
                let ((from, reach), (to, other)) = (self.plane(count, *from), self.plane(count, *to));
                let (source, destination) = places([reach, other]);
                let shape =
                    Copy2d { count: *count, source: from, destination: to, transparent: *transparent };
                (source, destination, Operation::Copy2d { source, destination, shape })
            }
            Kind::Fill2d { count, destination: to, color } => {
                let (to, reach) = self.plane(count, *to);
                let (source, destination) = places([reach; 2]);
                let shape = Fill2d { count: *count, destination: to, color: *color };
                (source, destination, Operation::Fill2d { destination, shape })
            }
            Kind::Lists { source, destination } => {
                let (from, to) = places([400; 2]);
                let lists = Arc::new(cut(&from, source, &to, destination));
                (from, to, Operation::ScatterGather { lists })
            }
            Kind::Xor { sources, in_place, length } => {
                let (source, destination) = places([*length + 60, *length]);
                // The sources are in another memory, or exactly the destination.
                let destination = Place { memory: 1, ..destination };
                let at = |offset: &u64| Place { offset: source.offset + offset, length: *length, ..source };
                let own = in_place.then_some(destination);
                let sources = sources.iter().map(at).chain(own).collect();
                (source, destination, Operation::Xor { sources, destination, length: *length })
            }
            Kind::Compare { length, equal } => {
                let (first, other) = places([*length; 2]);
                let second = if *equal { first } else { other };
                (first, other, Operation::Compare { first, second, length: *length })
            }
            Kind::CopyCrc { length, seed } => {
                let (source, destination) = places([*length; 2]);
                let length = *length;
                let seed = *seed;
                (source, destination, Operation::CopyCrc { source, destination, length, seed })
            }
        };
        let length = source.offset + source.length + destination.offset + destination.length + MARGIN;
        Case { memories: vec![self.bytes(length, 0), self.bytes(length, 1)], operation }
    }

    /// A plane whose lowest offset is the slack before it, and the bytes it needs.
    fn plane(&self, count: &Count2d, [x_step, y_step]: [i64; 2]) -> (Plane, u64) {
        let mut at = 0;
        let mut lowest = 0;
        let mut highest = 0;
        for _ in 0..count.y_count {
            for x in 1..=count.x_count {
                (lowest, highest) = (lowest.min(at), highest.max(at));
                at += if x < count.x_count { x_step } else { y_step };
            }
        }
        let start = self.slack[0] + lowest.unsigned_abs();
        (Plane { start, x_step, y_step }, start + highest.unsigned_abs() + count.pixel.bytes())
    }

    /// Random bytes; only zeros and ones if a transparent color should match some of them.
    fn bytes(&self, length: u64, memory: u64) -> Vec<u8> {
        let mask = match self.kind {
            Kind::Copy2d { transparent: Some(_), .. } => 1,
            _ => 0xff,
        };
        let noise = crate::noise(length as usize, self.seed.wrapping_add(memory));
        noise.into_iter().map(|byte| byte & mask).collect()
    }
}
