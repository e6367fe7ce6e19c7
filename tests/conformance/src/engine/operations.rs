//! Operations one at a time, including guard bytes around their regions.
//!
//! ```text
//! fixed operations x chunk sizes ──► Bench::run ──► memory equals the oracle's
//! ```
//!
//! `random` tests random shapes; `lifecycle` tests concurrent transfers.

use std::sync::Arc;

use memferry_transfer::{
    Color24, Copy2d, Count2d, Engine, EngineCapabilities, Fill2d, Lists, Operation, Pattern, PixelSize,
    Plane, Segment,
};

use super::bench::Bench;
use super::{EngineFixture, EngineSetup};
use crate::oracle::Place;

/// Size of each memory; regions leave a margin of at least 16 bytes on both sides.
const BYTES: u64 = 512;
/// Chunk sizes: smaller than most operations, odd, equal to some, larger than all.
const CHUNKS: [u64; 6] = [1, 3, 7, 64, 100, 4096];

/// Aperiodic bytes, so that no pattern or chunk size matches their period.
pub(super) fn noise(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|at| ((at * at).wrapping_mul(31) + at * 7 + seed * 101) as u8).collect()
}

pub(super) fn memories() -> Vec<Vec<u8>> {
    vec![noise(BYTES, 1), noise(BYTES, 2)]
}

pub(super) const fn place(memory: usize, offset: u64, length: u64) -> Place {
    Place { memory, offset, length }
}

pub(super) fn every_operation_equals_the_oracle<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    for chunk_bytes in CHUNKS {
        let mut bench = Bench::new(make, EngineSetup { channels: 1, chunk_bytes }, &memories());
        let announced = bench.engine().capabilities();
        for operation in all_operations(&announced) {
            bench.run(&operation);
        }
    }
}

/// All operations of this module whose kind the engine announces.
pub(super) fn all_operations(capabilities: &EngineCapabilities) -> impl Iterator<Item = Operation<Place>> {
    let capabilities = *capabilities;
    let all = simple_operations()
        .into_iter()
        .chain(lists())
        .chain(inspections())
        .chain(shapes())
        .chain(neighbours());
    all.filter(move |operation| is_announced(&capabilities, operation))
}

/// Whether an engine with these capabilities performs the operation.
pub(super) fn is_announced(capabilities: &EngineCapabilities, operation: &Operation<Place>) -> bool {
    let aligned = !capabilities.aligned_pixels || has_aligned_pixels(operation);
    aligned && capabilities.operations.contains(operation.kind())
}

/// Whether the pixels of a 2-D operation are aligned to their size; memories are aligned.
fn has_aligned_pixels(operation: &Operation<Place>) -> bool {
    let aligned = |place: &Place, plane: &Plane, count: &Count2d| {
        let size = count.pixel.bytes() as i128;
        let strays = |step: i128, steps: u32| steps > 1 && step % size != 0;
        (i128::from(place.offset) + i128::from(plane.start)) % size == 0
            && !strays(plane.x_step.into(), count.x_count)
            && !strays(plane.row_advance(count), count.y_count)
    };
    match operation {
        Operation::Copy2d { source, destination, shape } => {
            aligned(source, &shape.source, &shape.count)
                && aligned(destination, &shape.destination, &shape.count)
        }
        Operation::Fill2d { destination, shape } => aligned(destination, &shape.destination, &shape.count),
        _ => true,
    }
}

/// Lists with equal and different cuts, empty, in any order, overlapping within a list and between both.
fn lists() -> Vec<Operation<Place>> {
    let list = |memory, segments: &[(u64, u64)]| {
        let segment = |(offset, length): &(u64, u64)| Segment {
            place: place(memory, *offset, *length),
            length: *length,
        };
        segments.iter().map(segment).collect()
    };
    let cuts: [(&[_], &[_]); 7] = [
        (&[], &[]),
        (&[(20, 0)], &[]),
        (&[(20, 100)], &[(30, 100)]),
        (&[(20, 7), (100, 0), (40, 93)], &[(300, 50), (30, 1), (31, 0), (200, 49)]),
        (&[(200, 64), (40, 64), (20, 64)], &[(30, 192)]),
        (&[(16, 150), (150, 30)], &[(40, 30), (40, 30), (60, 120)]),
        (&[(100, 5), (60, 130)], &[(16, 1), (20, 1), (90, 133)]),
    ];
    let operations = cuts.iter().flat_map(|(source, destination)| {
        [0, 1].map(|memory| Lists { source: list(0, source), destination: list(memory, destination) })
    });
    operations.map(|lists| Operation::ScatterGather { lists: Arc::new(lists) }).collect()
}

/// Operations that read or combine bytes: XOR, comparisons, checksums, and copies to two places.
fn inspections() -> Vec<Operation<Place>> {
    let mut operations = Vec::new();
    for length in [0, 1, 7, 64, 200] {
        let source = place(0, 17, length);
        let destination = place(1, 33, length);
        for count in [1, 2, 5] {
            let sources: Box<[_]> = (0..count).map(|index| place(0, 20 + 9 * index, length)).collect();
            operations.push(Operation::Xor { sources: sources.clone(), destination, length });
            // In place: the destination is also a source.
            let sources = sources.iter().copied().chain([destination]).collect();
            operations.push(Operation::Xor { sources, destination, length });
        }
        operations.push(Operation::Compare { first: source, second: source, length });
        operations.push(Operation::Compare { first: source, second: destination, length });
        let destinations = [destination, place(1, 240, length)];
        operations.push(Operation::DualCopy { source, destinations, length });
        for seed in [0, 0xdead_beef] {
            operations.push(Operation::Crc { source, length, seed });
            operations.push(Operation::CopyCrc { source, destination, length, seed });
            for offset in [16, 20, 90] {
                let destination = place(0, offset, length);
                operations.push(Operation::CopyCrc { source, destination, length, seed });
            }
            // Equal up to a point, thanks to the copy just made.
            let second = place(1, 33, 240);
            operations.push(Operation::CopyCrc { source, destination, length, seed });
            let first = place(0, 17, 240);
            operations.push(Operation::Compare { first, second, length: length + 40 });
        }
    }
    operations
}

fn simple_operations() -> Vec<Operation<Place>> {
    let mut operations = vec![Operation::Nop];
    for length in [1, 3, 64, 65, 200] {
        let source = place(0, 17, 201);
        let destination = place(1, 100, 203);
        operations.push(Operation::Copy { source, destination, length });
    }
    let color = Color24::new(0xab_cdef).expect("24 bits");
    let patterns =
        [Pattern::Byte(0x5a), Pattern::Half(0x1234), Pattern::Word(0x89ab_cdef), Pattern::Color(color)];
    for pattern in patterns {
        for pieces in [1, 2, 25, 51] {
            let destination = place(1, 33, 300);
            let length = pieces * pattern.length_bytes();
            operations.push(Operation::Fill { destination, length, pattern });
        }
    }
    operations
}

/// Whole rows, rows with a pitch, columns, mirrored rows, repeated pixels; some rows are longer than some chunks.
fn shapes() -> Vec<Operation<Place>> {
    let mut operations = Vec::new();
    let color = Color24::new(0x12_3456).expect("24 bits");
    for pixel in [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32] {
        let size = pixel.bytes() as i64;
        let count = Count2d { pixel, x_count: 9, y_count: 5 };
        let row = 9 * size;
        let walks = [
            Plane { start: 0, x_step: size, y_step: size },
            Plane { start: 3, x_step: size, y_step: size + 5 },
            Plane { start: 1, x_step: 5 * size, y_step: size - 8 * 5 * size },
            Plane { start: 8 * size as u64, x_step: -size, y_step: row + 8 * size },
            Plane { start: 4 * row as u64, x_step: size, y_step: size - 2 * row },
            Plane { start: 2, x_step: 0, y_step: 0 },
        ];
        for destination_walk in walks {
            let shape = Fill2d { count, destination: destination_walk, color };
            operations.push(Operation::Fill2d { destination: place(1, 21, 400), shape });
            for source_walk in walks {
                let shape =
                    Copy2d { count, source: source_walk, destination: destination_walk, transparent: None };
                let source = place(0, 18, 400);
                let destination = place(1, 21, 400);
                operations.push(Operation::Copy2d { source, destination, shape });
                // Overlapping itself: in place, and shifted by one byte in both directions.
                for offset in [20, 21, 22] {
                    operations.push(Operation::Copy2d { source: place(1, offset, 400), destination, shape });
                }
            }
        }
    }
    operations
}

/// Packed images that touch or share one or two bytes, where the order of pixels starts to matter.
fn neighbours() -> Vec<Operation<Place>> {
    let mut operations = Vec::new();
    for (pixel, y_count) in [(PixelSize::Bits8, 1), (PixelSize::Bits8, 3), (PixelSize::Bits32, 2)] {
        let count = Count2d { pixel, x_count: 7, y_count };
        let walk = Plane::contiguous(0, pixel);
        // The same pixels, rows from last to first.
        let row = 7 * pixel.bytes() as i64;
        let last_row = u64::from(y_count - 1) * row as u64;
        let upwards = Plane { start: last_row, y_step: pixel.bytes() as i64 - 2 * row, ..walk };
        let length = count.total_bytes();
        for distance in length - 2..=length + 1 {
            let low = place(0, 60, length);
            let high = place(0, 60 + distance, length);
            for (source, destination) in [(low, high), (high, low)] {
                for walks in [[walk, walk], [upwards, walk], [walk, upwards], [upwards, upwards]] {
                    let shape = Copy2d { count, source: walks[0], destination: walks[1], transparent: None };
                    operations.push(Operation::Copy2d { source, destination, shape });
                }
            }
        }
    }
    operations
}

pub(super) fn overlapping_copies_are_memmoves<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    const CHUNK: u64 = 32;
    let setup = EngineSetup { channels: 1, chunk_bytes: CHUNK };
    let mut bench = Bench::new(make, setup, &memories());
    if !bench.engine().capabilities().overlapping_copy {
        return;
    }
    for length in [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5] {
        for distance in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, length - 1, length, length + 1] {
            let low = place(0, 40, length);
            let high = place(0, 40 + distance, length);
            for (source, destination) in [(low, high), (high, low)] {
                bench.run(&Operation::Copy { source, destination, length });
            }
        }
    }
}

pub(super) fn empty_operations_finish<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let setup = EngineSetup { channels: 1, chunk_bytes: 16 };
    let mut bench = Bench::new(make, setup, &memories());
    let source = place(0, 16, 8);
    let destination = place(1, BYTES, 0);
    let announced = bench.engine().capabilities();
    let mut operations = vec![
        Operation::Nop,
        Operation::Copy { source, destination, length: 0 },
        Operation::Fill { destination, length: 0, pattern: Pattern::Word(1) },
    ];
    let color = Color24::new(1).expect("24 bits");
    for (x_count, y_count) in [(0, 0), (0, 5), (5, 0), (0, u32::MAX), (u32::MAX, 0)] {
        let count = Count2d { pixel: PixelSize::Bits32, x_count, y_count };
        // A walk without pixels may start anywhere.
        let wild = Plane { start: u64::MAX, x_step: i64::MIN, y_step: i64::MAX };
        let shape = Copy2d { count, source: wild, destination: wild, transparent: None };
        operations.push(Operation::Copy2d { source, destination, shape });
        operations.push(Operation::Fill2d { destination, shape: Fill2d { count, destination: wild, color } });
    }
    for operation in operations.iter().filter(|operation| announced.operations.contains(operation.kind())) {
        bench.run(operation);
    }
}
