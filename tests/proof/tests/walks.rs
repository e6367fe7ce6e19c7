//! 2-D walks: the shipped arithmetic, compiled with integers of 8 bits, for all of their values; and the formulas of `smt/walk.smt2` against
//! the arithmetic as it is.
//!
//! ```text
//! crates/transfer/src/geometry.rs ─► build.rs ─► narrow::Plane::extent ─► every start and step, small counts ─┐
//!                                                visit every pixel ──────────────────────────────────────────┴─► equal
//! ```

use std::ops::RangeInclusive;

use memferry_proof::{Formulas, Value};

/// The shipped code. Its names of integers mean narrower ones here, but for those of 128 bits.
#[allow(
    warnings,
    clippy::all,
    arithmetic_overflow,
    overflowing_literals,
    reason = "shipped code at another width"
)]
mod narrow {
    type u64 = core::primitive::u8;
    type u32 = core::primitive::u8;
    type i64 = core::primitive::i8;
    type i32 = core::primitive::i8;
    include!(concat!(env!("OUT_DIR"), "/walks.rs"));
}

use narrow::{Count2d, Extent, GeometryError, PixelSize, Plane};

type Answer = Result<Option<Extent>, GeometryError>;

/// The answer from a visit to each pixel.
fn visited(plane: &Plane, count: &Count2d) -> Answer {
    let mut at = i32::from(plane.start);
    let mut lowest = i32::MAX;
    let mut end = i32::MIN;
    for _ in 0..count.y_count {
        for x in 0..count.x_count {
            lowest = lowest.min(at);
            end = end.max(at + i32::from(count.pixel.bytes()));
            let is_last = x + 1 == count.x_count;
            at += i32::from(if is_last { plane.y_step } else { plane.x_step });
        }
    }
    if lowest == i32::MAX {
        return Ok(None);
    }
    if lowest < 0 {
        return Err(GeometryError::BeforeFrame { bytes: u8::try_from(-lowest).unwrap_or(u8::MAX) });
    }
    let end = u8::try_from(end).map_err(|_| GeometryError::EndOverflows)?;
    let first = u8::try_from(lowest).expect("before the end");
    Ok(Some(Extent { first, length: end - first }))
}

/// Compares all walks of these counts, with every `stride`th start and steps. Returns how many there were.
fn compare(counts: RangeInclusive<u8>, stride: usize, extent: impl Fn(&Plane, &Count2d) -> Answer) -> u64 {
    let mut walks = 0;
    for pixel in [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32] {
        for x_count in counts.clone() {
            for y_count in counts.clone() {
                let count = Count2d { pixel, x_count, y_count };
                for start in (0..=u8::MAX).step_by(stride) {
                    for x_step in (i8::MIN..=i8::MAX).step_by(stride) {
                        for y_step in (i8::MIN..=i8::MAX).step_by(stride) {
                            let plane = Plane { start, x_step, y_step };
                            assert_eq!(
                                extent(&plane, &count),
                                visited(&plane, &count),
                                "{plane:?} {count:?}"
                            );
                            walks += 1;
                        }
                    }
                }
            }
        }
    }
    walks
}

#[test]
fn narrow_walks_touch_what_their_pixels_touch() {
    assert_eq!(compare(0..=3, 7, Plane::extent), 3 * 16 * 37 * 37 * 37);
}

#[test]
#[ignore = "takes a minute without optimization; ./x test --full proof runs it"]
fn all_narrow_walks_touch_what_their_pixels_touch() {
    assert_eq!(compare(0..=4, 1, Plane::extent), 75 << 24);
}

#[test]
#[should_panic(expected = "assertion")]
fn broken_extent_of_two_corners() {
    compare(1..=2, 7, |plane, count| {
        let last = plane.offset_of(count, count.x_count - 1, count.y_count - 1);
        let lowest = last.min(i128::from(plane.start));
        let end = last.max(i128::from(plane.start)) + i128::from(count.pixel.bytes());
        let first =
            u8::try_from(lowest).map_err(|_| GeometryError::BeforeFrame { bytes: (-lowest) as u8 })?;
        let end = u8::try_from(end).map_err(|_| GeometryError::EndOverflows)?;
        Ok(Some(Extent { first, length: end - first }))
    });
}

#[test]
fn formulas_are_those_of_the_shipped_code() {
    use memferry_transfer::geometry::GeometryError;
    use memferry_transfer::{Count2d, PixelSize, Plane};

    let formulas = Formulas::of(include_str!("../smt/walk.smt2"));
    let mut random = fastrand::Rng::with_seed(33);
    for _ in 0..20_000 {
        let pixel = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32][random.usize(..3)];
        let count = Count2d { pixel, x_count: count_of(&mut random), y_count: count_of(&mut random) };
        let start = start_of(&mut random);
        let plane = Plane { start, x_step: step_of(&mut random), y_step: step_of(&mut random) };
        let [right, bottom] = [count.x_count, count.y_count].map(|count| i128::from(count) - 1);
        let [start, x_step, y_step] = [i128::from(start), plane.x_step.into(), plane.y_step.into()];
        let value = |name, operands: &[i128]| {
            formulas.value(name, &operands.iter().map(|one| Value::Int(*one)).collect::<Vec<_>>())
        };
        let holds = |name, operands: &[i128]| value(name, operands) == Value::Bool(true);
        let row = plane.row_advance(&count);
        assert_eq!(value("row-advance", &[right, x_step, y_step]), Value::Int(row));
        let x = random.u32(..count.x_count);
        let y = random.u32(..count.y_count);
        let offset = value("offset", &[start, row, x_step, x.into(), y.into()]);
        assert_eq!(offset, Value::Int(plane.offset_of(&count, x, y)));
        let walk = [start, row, x_step, right, bottom];
        let Value::Int(lowest) = value("lowest", &walk) else { panic!("no integer") };
        let Value::Int(end) = value("end", &[start, row, x_step, right, bottom, pixel.bytes().into()]) else {
            panic!("no integer")
        };
        let fits = holds("fits-64", &[end]);
        match plane.extent(&count) {
            Ok(Some(extent)) => {
                assert!(!holds("is-before-frame", &walk) && fits, "{plane:?} {count:?}");
                assert_eq!(
                    (i128::from(extent.first), i128::from(extent.first + extent.length)),
                    (lowest, end)
                );
            }
            Ok(None) => panic!("{count:?} has pixels"),
            Err(GeometryError::BeforeFrame { .. }) => assert!(holds("is-before-frame", &walk)),
            Err(_) => assert!(!holds("is-before-frame", &walk) && !fits, "{plane:?} {count:?}"),
        }
    }
}

fn count_of(random: &mut fastrand::Rng) -> u32 {
    let near = random.u32(1..5);
    [near, u32::MAX - near, random.u32(1..), 1][random.usize(..4)]
}

fn start_of(random: &mut fastrand::Rng) -> u64 {
    let near = random.u64(..200);
    [near, u64::MAX - near, random.u64(..), 1 << 40][random.usize(..4)]
}

fn step_of(random: &mut fastrand::Rng) -> i64 {
    let near = random.i64(-9..9);
    [near, i64::MAX - 9 + near, i64::MIN + 9 + near, random.i64(..)][random.usize(..4)]
}
