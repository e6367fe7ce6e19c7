//! Random walks over a small memory, against sets of bytes.

use std::collections::BTreeSet;

use memferry_transfer::image::{Image, Turn, turned_copy};
use memferry_transfer::{Count2d, PixelSize};
use proptest::prelude::*;

use super::*;

/// The offsets of a walk's pixels in its order.
fn offsets(count: &Count2d, plane: &Plane) -> Vec<i128> {
    let row = |y| (0..count.x_count).map(move |x| plane.offset_of(count, x, y));
    (0..count.y_count).flat_map(row).collect()
}

fn bytes(count: &Count2d, plane: &Plane) -> BTreeSet<i128> {
    let pixel = count.pixel.bytes() as i128;
    offsets(count, plane).into_iter().flat_map(|first| first..first + pixel).collect()
}

/// Moves the pixels one by one.
fn moved(memory: &[u8], shape: &Copy2d) -> Vec<u8> {
    let mut memory = memory.to_vec();
    let pixel = shape.count.pixel.bytes() as usize;
    let places =
        offsets(&shape.count, &shape.source).into_iter().zip(offsets(&shape.count, &shape.destination));
    for (from, to) in places {
        memory.copy_within(from as usize..from as usize + pixel, to as usize);
    }
    memory
}

/// What the copy gives when everything is read before anything is written.
fn read_first(memory: &[u8], shape: &Copy2d) -> Vec<u8> {
    let pixel = shape.count.pixel.bytes() as usize;
    let mut after = memory.to_vec();
    let places =
        offsets(&shape.count, &shape.source).into_iter().zip(offsets(&shape.count, &shape.destination));
    for (from, to) in places {
        after[to as usize..to as usize + pixel]
            .copy_from_slice(&memory[from as usize..from as usize + pixel]);
    }
    after
}

const MEMORY: usize = 4096;

fn memory() -> Vec<u8> {
    (0..MEMORY).map(|at| (at * 167 + at / 251) as u8).collect()
}

fn count() -> impl Strategy<Value = Count2d> {
    let pixel = prop_oneof![Just(PixelSize::Bits8), Just(PixelSize::Bits16), Just(PixelSize::Bits32)];
    (pixel, 0..7_u32, 0..7_u32).prop_map(|(pixel, x_count, y_count)| Count2d { pixel, x_count, y_count })
}

fn plane() -> impl Strategy<Value = Plane> {
    let step = || prop_oneof![Just(1_i64), Just(2), Just(4), Just(-4), Just(0), -40..40_i64];
    // In the middle of the memory: no walk is longer than 36 steps of 40 bytes and a few more, to either side.
    (2000..2100_u64, step(), step()).prop_map(|(start, x_step, y_step)| Plane { start, x_step, y_step })
}

proptest! {
    #[test]
    fn an_admitted_copy_reads_before_it_writes(
        count in count(), source in plane(), other in plane(), shifted in any::<bool>(), before in 0..50_u64
    ) {
        let destination = if shifted { Plane { start: other.start, ..source } } else { other };
        let shape = Copy2d { count, source, destination, transparent: None };
        let share = bytes(&count, &source).intersection(&bytes(&count, &destination)).next().is_some();
        // Both count from `before` bytes into the memory, so that only the difference of the two matters.
        if let Ok(ordered) = in_safe_order(&shape, before, before) {
                let expected = if share { read_first(&memory(), &shape) } else { moved(&memory(), &shape) };
                prop_assert_eq!(moved(&memory(), &ordered), expected);
                prop_assert_eq!(ordered.count.total_bytes(), count.total_bytes());
        }
    }

    #[test]
    fn parts_of_one_picture_are_refused_if_they_share_pixels(
        (x, y, other_x, other_y) in (0..12_u32, 0..12_u32, 0..12_u32, 0..12_u32),
        (width, height) in (1..8_u32, 1..8_u32),
        turn in prop_oneof![
            Just(Turn::FlipHorizontal), Just(Turn::FlipVertical), Just(Turn::Rotate90), Just(Turn::Rotate180),
            Just(Turn::Rotate270), Just(Turn::Transpose)
        ],
    ) {
        let picture = Image { origin: 64, width: 20, height: 20, pitch_bytes: 48, pixel: PixelSize::Bits16 };
        let part = picture.crop(x, y, width, height).unwrap();
        let (width, height) = if turn.swaps_axes() { (height, width) } else { (width, height) };
        let other = picture.crop(other_x, other_y, width, height).unwrap();
        let shape = turned_copy(&part, turn, &other, None).unwrap();
        let shared = bytes(&shape.count, &shape.source).intersection(&bytes(&shape.count, &shape.destination)).count();
        let answer = in_safe_order(&shape, 0, 0);
        prop_assert!(shared > 0 || answer.is_ok());
        if let Ok(ordered) = answer {
            prop_assert_eq!(moved(&memory(), &ordered), read_first(&memory(), &shape));
        }
    }
}

#[test]
fn channels_of_one_picture_are_apart() {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 10, y_count: 10 };
    let channel = |start| Plane { start, x_step: 3, y_step: 3 };
    let shape =
        |from, to| Copy2d { count, source: channel(from), destination: channel(to), transparent: None };
    assert_eq!(in_safe_order(&shape(0, 1), 0, 0), Ok(shape(0, 1)));
    assert!(in_safe_order(&shape(0, 3), 0, 0).is_ok_and(|ordered| ordered.source.x_step == -3));
}

#[test]
fn numbers_at_their_limits_do_not_overflow() {
    let steps = [i64::MIN, -1, 0, 1, i64::MAX];
    let count = Count2d { pixel: PixelSize::Bits32, x_count: u32::MAX, y_count: u32::MAX };
    for x_step in steps {
        for y_step in steps {
            for start in [0, u64::MAX] {
                let plane = Plane { start, x_step, y_step };
                for destination in [plane, Plane { start: 1, ..plane }, Plane { x_step: y_step, ..plane }] {
                    let shape = Copy2d { count, source: plane, destination, transparent: None };
                    let _ = in_safe_order(&shape, u64::MAX, 0);
                }
            }
        }
    }
}
