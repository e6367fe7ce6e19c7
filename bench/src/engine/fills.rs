//! Fills on one thread against glibc's memset: zeros, possibly with a special instruction, and another byte.
//!
//! ```text
//! field ─ a place of the destination ─► glibc: memset(0)      against slices::fill
//!                                       glibc: memset(0xa7)   against slices::fill
//! ```
//!
//! `slices::fill` chooses the stores itself (hint auto), or streams because the zeros are not read soon (hint stream). The byte is
//! unknown at compile time. Zeroing cold memory must be faster than glibc's; in a cache memset writes a line per cycle, so there ours
//! must only not be slower.

use std::hint::black_box;

use fastrand::Rng;
use memferry_cpu::slices;
use memferry_transfer::CacheHint;

use super::arena::Field;
use super::sides::{Heat, Piece, Point, Sides, Way, doubling, draw_speeds};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 101;
const BYTE: u8 = 0xa7;
const GLIBC: usize = 0;
const OURS: usize = 1;
/// Ours, with the hint to bypass the caches.
const STREAM: usize = 2;
const NAMES: [&str; 3] = ["glibc memset", "memferry, auto", "memferry, stream"];
const ZERO: [Way<Field>; 3] = [glibc_zero, zero, zero_streaming];
const FILL: [Way<Field>; 2] = [glibc_fill, fill];
/// Sizes of zero fills with a target, from and to.
const ZERO_SIZES: [usize; 2] = [4 << 10, 16 << 20];
/// Sizes with their own rows.
const ZERO_ROWS: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
const ZERO_AT_LEAST: f64 = 2.3;
const ZERO_NEVER_BELOW: f64 = 0.95;
const FILL_AT_LEAST: f64 = 0.97;

fn each(field: &mut Field, places: &[usize], piece: &Piece, fill: impl Fn(&mut [u8])) {
    let (destination, _) = field.both();
    for at in places {
        let to = at + piece.to_skew;
        fill(&mut destination[to..to + piece.bytes]);
    }
}

#[inline(never)]
fn glibc_zero(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    each(field, places, piece, |to| to.fill(0));
    Ok(())
}

#[inline(never)]
fn zero(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    each(field, places, piece, |to| slices::fill(to, 0, CacheHint::Auto));
    Ok(())
}

#[inline(never)]
fn zero_streaming(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    each(field, places, piece, |to| slices::fill(to, 0, CacheHint::Stream));
    Ok(())
}

#[inline(never)]
fn glibc_fill(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let byte = black_box(BYTE);
    each(field, places, piece, |to| to.fill(byte));
    Ok(())
}

#[inline(never)]
fn fill(field: &mut Field, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    let byte = black_box(BYTE);
    each(field, places, piece, |to| slices::fill(to, byte, CacheHint::Auto));
    Ok(())
}

fn points(from: usize, to: usize, heat: Heat, field: &Field) -> Vec<Point> {
    let mut rng = Rng::with_seed(0xf111);
    doubling(from, to)
        .map(|bytes| Point::new(Piece::aligned(bytes), heat, field.length(), &mut rng))
        .collect()
}

fn zeros(run: &Run, field: &mut Field, heat: Heat, file: &'static str) -> Result<Vec<Row>, BenchError> {
    let heat_name = heat.name();
    let mut points = points(ZERO_SIZES[0], ZERO_SIZES[1], heat, field);
    let mut sides = Sides::new(field, &ZERO);
    sides.measure(run, &format!("zeros {heat_name}"), ROUNDS, &mut points)?;
    let title = format!("zero fill on one thread, {heat_name}, huge pages");
    draw_speeds(run, file, &title, points.iter(), &NAMES[..ZERO.len()])?;
    let reported = points.iter().filter(|point| ZERO_ROWS.contains(&point.piece.bytes));
    let mut rows = Vec::new();
    for point in reported {
        for (way, hint) in [(OURS, "auto"), (STREAM, "stream")] {
            let title = format!("zero fill, {}, {heat_name}, {hint}", point.piece.name());
            rows.push(Row::new(title, "ratio", Target::None, &point.ratios(GLIBC, way)));
        }
    }
    let (way, hint, least) = match heat {
        Heat::Hot => (OURS, "auto", ZERO_NEVER_BELOW),
        Heat::Cold => (STREAM, "stream", ZERO_AT_LEAST),
    };
    let (piece, ratios) = sides.worst(run, ROUNDS, &mut points, [GLIBC, way])?;
    run.say(&format!("zero fill, {heat_name}, {hint}: least against glibc at {}", piece.name()));
    let title = format!("zero fill, 4 KiB to 16 MiB, {heat_name}, {hint}: the least");
    rows.push(Row::new(title, "ratio", Target::AtLeast(least), &ratios));
    Ok(rows)
}

fn bytes(run: &Run, field: &mut Field, heat: Heat, file: &'static str) -> Result<Row, BenchError> {
    let heat_name = heat.name();
    let mut points = points(64, 64 << 20, heat, field);
    let mut sides = Sides::new(field, &FILL);
    sides.measure(run, &format!("fills {heat_name}"), ROUNDS, &mut points)?;
    let title = format!("fill with a byte on one thread, {heat_name}, huge pages");
    draw_speeds(run, file, &title, points.iter(), &NAMES[..FILL.len()])?;
    let (piece, ratios) = sides.worst(run, ROUNDS, &mut points, [GLIBC, OURS])?;
    run.say(&format!("fill with a byte, {heat_name}: least against glibc at {}", piece.name()));
    let title = format!("fill with a byte, 64 B to 64 MiB, {heat_name}: the least");
    Ok(Row::new(title, "ratio", Target::AtLeast(FILL_AT_LEAST), &ratios))
}

pub(super) fn measure(run: &Run, field: &mut Field) -> Result<Vec<Row>, BenchError> {
    let mut rows = zeros(run, field, Heat::Hot, "zero-hot")?;
    rows.extend(zeros(run, field, Heat::Cold, "zero-cold")?);
    rows.push(bytes(run, field, Heat::Hot, "fill-hot")?);
    rows.push(bytes(run, field, Heat::Cold, "fill-cold")?);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::arena::Pages;
    use super::*;

    #[test]
    fn fills_write_only_their_range() {
        for (ways, byte) in [(&ZERO[..], 0), (&FILL[..], BYTE)] {
            for way in ways {
                let mut field = Field::new(1 << 16, Pages::Ordinary).unwrap();
                let before = field.both().0.to_vec();
                way(&mut field, &[64], &Piece { bytes: 5000, to_skew: 1, from_skew: 0 }).unwrap();
                let after = field.both().0;
                assert!(after[65..5065].iter().all(|found| *found == byte));
                assert_eq!((&after[..65], &after[5065..]), (&before[..65], &before[5065..]));
            }
        }
    }
}
