//! Copies on one thread against glibc's memcpy: cold ones, repeated ones, and every size.
//!
//! ```text
//! field ─ a place ─► glibc: copy_from_slice            at some sizes: a row each
//!                    ours:  slices::copy, with a hint  at every size: the lowest ratio is a row, the sweep a plot
//! ```
//!
//! Cold copies use the hint auto, where the engine decides, and stream, where the caller knows. glibc's function is
//! memcpy, not memmove: the compiler calls it for slices.

use fastrand::Rng;
use memferry_cpu::slices::{self, LengthsDiffer};
use memferry_transfer::CacheHint;

use super::arena::{Field, Pages};
use super::field_bytes;
use super::sides::{Heat, Piece, Point, Sides, Way, doubling, draw_speeds, size_name};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 101;
const NAMES: [&str; 3] = ["glibc", "auto", "stream"];
const WAYS: [Way<Field>; 3] = [glibc, auto, stream];
const GLIBC: usize = 0;
const AUTO: usize = 1;
/// Replaces stream where every size is measured: glibc again.
const ITSELF: usize = 2;

/// Sizes of cold copies and their required ratios.
const COLD: [(usize, f64); 5] =
    [(64 << 10, 1.2), (2 << 20, 1.45), (4 << 20, 1.6), (32 << 20, 1.7), (128 << 20, 1.7)];
/// Sizes of repeated copies and their required ratios.
const AGAIN: [(usize, f64); 2] = [(16 << 20, 1.2), (64 << 20, 1.6)];
/// Required ratio for every size.
const NEVER_BELOW: f64 = 0.95;
/// Maximum size; a quick run has a smaller field.
const MOST: usize = 256 << 20;
/// Odd and misaligned sizes: bytes, and offsets of destination and source from a line.
const ODD: [[usize; 3]; 8] = [
    [65, 0, 0],
    [100, 3, 0],
    [1000, 0, 7],
    [4096, 1, 33],
    [5000, 32, 0],
    [65_536, 8, 8],
    [100_001, 5, 60],
    [3_000_001, 17, 0],
];

fn each(
    field: &mut Field,
    places: &[usize],
    piece: &Piece,
    copy: impl Fn(&mut [u8], &[u8]) -> Result<(), LengthsDiffer>,
) -> Result<(), BenchError> {
    let (destination, source) = field.both();
    for at in places {
        let to = at + piece.to_skew;
        let from = at + piece.from_skew;
        copy(&mut destination[to..to + piece.bytes], &source[from..from + piece.bytes])?;
    }
    Ok(())
}

#[inline(never)]
pub(super) fn glibc(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    each(field, places, piece, |to, from| {
        to.copy_from_slice(from);
        Ok(())
    })
}

/// Measures glibc against itself: the difference shows how accurate the figures are.
fn glibc_again(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    glibc(field, places, piece)
}

#[inline(never)]
pub(super) fn auto(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    each(field, places, piece, |to, from| slices::copy(to, from, CacheHint::Auto))
}

#[inline(never)]
fn stream(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    each(field, places, piece, |to, from| slices::copy(to, from, CacheHint::Stream))
}

/// Points for aligned pieces of those sizes that fit the field.
fn points(sizes: impl IntoIterator<Item = usize>, heat: Heat, field: &Field) -> Vec<Point> {
    let mut rng = Rng::with_seed(0xc01d);
    let fitting = sizes.into_iter().filter(|bytes| *bytes <= field.length());
    fitting.map(|bytes| Point::new(Piece::aligned(bytes), heat, field.length(), &mut rng)).collect()
}

/// Measures cold copies as rows.
fn cold_rows(run: &Run, field: &mut Field, pages: Pages) -> Result<Vec<Row>, BenchError> {
    let mut points = points(COLD.map(|(bytes, _)| bytes), Heat::Cold, field);
    Sides::new(field, &WAYS).measure(run, "cold copies", ROUNDS, &mut points)?;
    let mut rows = Vec::new();
    for (point, (_, least)) in points.iter().zip(COLD) {
        let size = point.piece.name();
        let title = format!("cold copy, {}, {size}", pages.name());
        rows.push(Row::new(format!("{title}, glibc"), "GB/s", Target::None, &point.speeds(GLIBC)));
        for (way, hint) in NAMES.iter().enumerate().skip(AUTO) {
            // Flushing the source is not for speed; group `pollution` measures its benefit.
            let judged = pages == Pages::Huge && way == AUTO;
            let target = if judged { Target::AtLeast(least) } else { Target::None };
            rows.push(Row::new(format!("{title}, {hint}"), "ratio", target, &point.ratios(GLIBC, way)));
        }
    }
    Ok(rows)
}

pub(super) fn cold(run: &Run, field: &mut Field) -> Result<Vec<Row>, BenchError> {
    cold_rows(run, field, Pages::Huge)
}

pub(super) fn ordinary_pages(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.part("memory", 1);
    cold_rows(run, &mut Field::new(field_bytes(run), Pages::Ordinary)?, Pages::Ordinary)
}

pub(super) fn again(run: &Run, field: &mut Field) -> Result<Vec<Row>, BenchError> {
    let mut points = points(AGAIN.map(|(bytes, _)| bytes), Heat::Hot, field);
    Sides::new(field, &WAYS[..=AUTO]).measure(run, "same buffers", ROUNDS, &mut points)?;
    let row = |(point, (_, least)): (&Point, (usize, f64))| {
        let title = format!("copy between the same buffers again, {}, auto", point.piece.name());
        Row::new(title, "ratio", Target::AtLeast(least), &point.ratios(GLIBC, AUTO))
    };
    Ok(points.iter().zip(AGAIN).map(row).collect())
}

pub(super) fn sizes(run: &Run, field: &mut Field) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for (heat, file) in [(Heat::Hot, "copy-hot"), (Heat::Cold, "copy-cold")] {
        let mut rng = Rng::with_seed(0x0dd);
        let length = field.length();
        // A cold place needs other places between its uses.
        let most = if heat == Heat::Hot { length } else { length / 4 };
        let mut points = points(doubling(64, MOST.min(most)), heat, field);
        let aligned = points.len();
        points.extend(ODD.map(|[bytes, to_skew, from_skew]| {
            Point::new(Piece { bytes, to_skew, from_skew }, heat, length, &mut rng)
        }));
        let mut sides = Sides::new(field, &[glibc, auto, glibc_again]);
        sides.measure(run, &format!("sizes {}", heat.name()), ROUNDS, &mut points)?;
        let title = format!("copy on one thread, {}, huge pages", heat.name());
        draw_speeds(run, file, &title, points[..aligned].iter(), &NAMES[..=AUTO])?;
        let (piece, ratios) = sides.worst(run, ROUNDS, &mut points, [GLIBC, AUTO])?;
        let least = piece.name();
        let heat = heat.name();
        run.say(&format!("copy, every size, {heat}: least against glibc at {least}"));
        let title =
            format!("copy, every size from 64 B to {}, {heat}, auto: the least", size_name(MOST.min(most)));
        rows.push(Row::new(title, "ratio", Target::AtLeast(NEVER_BELOW), &ratios));
        let (_, ratios) = sides.worst(run, ROUNDS, &mut points, [GLIBC, ITSELF])?;
        let title = format!("copy, every size, {heat}, glibc against itself: the least");
        rows.push(Row::new(title, "ratio", Target::None, &ratios));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_copy_the_same_bytes() {
        for way in WAYS {
            let mut field = Field::new(1 << 20, Pages::Ordinary).unwrap();
            let piece = Piece { bytes: 5001, to_skew: 3, from_skew: 9 };
            way(&mut field, &[0, 8192, 65_536], &piece).unwrap();
            let (destination, source) = field.both();
            for at in [0, 8192, 65_536] {
                assert_eq!(destination[at + 3..at + 5004], source[at + 9..at + 5010]);
            }
        }
    }
}
