//! Operations other than copies, each against a plain implementation; without targets.
//!
//! ```text
//! xor of 4       perform_whole ─ a loop over slices          CRC-32C          perform_whole ─ the crate crc32c
//! compare        perform_whole ─ memcmp, of equal bytes      copy and CRC-32C perform_whole ─ memcpy, then the crate
//! ```
//!
//! The same heap buffers every time on both sides: the smaller size fits the second-level cache, the larger no cache.

use std::hint::black_box;

use fastrand::Rng;
use memferry_cpu::perform_whole;
use memferry_shm::mapping::Mapping;
use memferry_transfer::{CacheHint, Confined, Operation, Region};

use super::sides::{Heat, Piece, Point, Sides, Way, size_name};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;

const ROUNDS: usize = 81;
const SIZES: [usize; 2] = [64 << 10, 64 << 20];
/// Maximum number of source buffers.
const SOURCES: usize = 4;

/// Name, plain implementation's name, and both implementations.
const WORK: [(&str, &str, [Way<Buffers>; 2]); 4] = [
    ("xor of 4", "a plain loop", [plain_xor, xor]),
    ("compare", "memcmp", [plain_compare, compare]),
    ("CRC-32C", "the crate crc32c", [plain_crc, crc]),
    ("copy and CRC-32C", "memcpy, then the crate crc32c", [plain_copy_crc, copy_crc]),
];

/// Buffers for the plain side, and mappings with equal bytes for ours. The first two sources are equal.
struct Buffers {
    sources: [Vec<u8>; SOURCES],
    destination: Vec<u8>,
    mappings: [Mapping; SOURCES],
    written: Mapping,
}

impl Buffers {
    fn new(bytes: usize) -> Self {
        let sources = [1, 1, 2, 3].map(|seed| random_bytes(bytes, 0x0b5e + 2 * seed));
        let mappings = sources.clone().map(Mapping::owned);
        let destination = random_bytes(bytes, 0xd57);
        Self { sources, written: Mapping::owned(destination.clone()), destination, mappings }
    }

    fn region(&self, source: usize, bytes: usize) -> Result<Region<Mapping>, BenchError> {
        region(&self.mappings[source], bytes)
    }
}

fn region(mapping: &Mapping, bytes: usize) -> Result<Region<Mapping>, BenchError> {
    Region::new(mapping.clone(), 0, bytes as u64).ok_or_else(|| "a region leaves its memory".into())
}

/// Performs an operation once per place.
fn perform(operation: &Operation<Region<Mapping>>, places: &[usize]) -> Result<(), BenchError> {
    for _ in places {
        let confined = Confined::new(operation, CacheHint::Auto)?;
        let outcome = perform_whole(&confined, None).ok_or("the engine does not support this operation")?;
        outcome.result.map_err(|failure| format!("an operation failed: {failure:?}"))?;
        black_box(outcome.value);
    }
    Ok(())
}

#[inline(never)]
fn plain_xor(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let [a, b, c, d] = buffers.sources.each_ref().map(|source| &source[..piece.bytes]);
    for _ in places {
        let written = buffers.destination[..piece.bytes].iter_mut();
        for ((((to, a), b), c), d) in written.zip(a).zip(b).zip(c).zip(d) {
            *to = a ^ b ^ c ^ d;
        }
        black_box(&buffers.destination);
    }
    Ok(())
}

fn xor(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let sources = (0..SOURCES).map(|source| buffers.region(source, piece.bytes)).collect::<Result<_, _>>()?;
    let destination = region(&buffers.written, piece.bytes)?;
    perform(&Operation::Xor { sources, destination, length: piece.bytes as u64 }, places)
}

#[inline(never)]
fn plain_compare(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    for _ in places {
        let [first, second, ..] = black_box(&buffers.sources);
        if first[..piece.bytes] != second[..piece.bytes] {
            return Err("equal bytes differ".into());
        }
    }
    Ok(())
}

fn compare(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let first = buffers.region(0, piece.bytes)?;
    let second = buffers.region(1, piece.bytes)?;
    perform(&Operation::Compare { first, second, length: piece.bytes as u64 }, places)
}

#[inline(never)]
fn plain_crc(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    for _ in places {
        black_box(crc32c::crc32c(black_box(&buffers.sources[0][..piece.bytes])));
    }
    Ok(())
}

fn crc(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let source = buffers.region(0, piece.bytes)?;
    perform(&Operation::Crc { source, length: piece.bytes as u64, seed: 0 }, places)
}

#[inline(never)]
fn plain_copy_crc(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let Buffers { sources: [source, ..], destination, .. } = buffers;
    for _ in places {
        destination[..piece.bytes].copy_from_slice(&source[..piece.bytes]);
        black_box(crc32c::crc32c(black_box(&destination[..piece.bytes])));
    }
    Ok(())
}

fn copy_crc(buffers: &mut Buffers, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let source = buffers.region(0, piece.bytes)?;
    let destination = region(&buffers.written, piece.bytes)?;
    perform(&Operation::CopyCrc { source, destination, length: piece.bytes as u64, seed: 0 }, places)
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let mut buffers = Buffers::new(SIZES[SIZES.len() - 1]);
    let mut rows = Vec::new();
    for (name, plain, ways) in WORK {
        let mut rng = Rng::with_seed(1);
        let mut points = SIZES.map(|bytes| Point::new(Piece::aligned(bytes), Heat::Hot, bytes, &mut rng));
        Sides::new(&mut buffers, &ways).measure(run, name, ROUNDS, &mut points)?;
        for point in &points {
            let title = format!("{name}, {}", size_name(point.piece.bytes));
            rows.push(Row::new(title.clone(), "GB/s", Target::None, &point.speeds(1)));
            rows.push(Row::new(
                format!("{title}, {plain} against ours"),
                "ratio",
                Target::None,
                &point.ratios(0, 1),
            ));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_implementations_agree() {
        for (name, _, ways) in WORK {
            let mut buffers = Buffers::new(10_000);
            for way in ways {
                way(&mut buffers, &[0], &Piece::aligned(9000)).unwrap();
            }
            let mut written = vec![0; 10_000];
            buffers.written.read(0, &mut written).unwrap();
            assert_eq!(written, buffers.destination, "{name}");
        }
    }
}
