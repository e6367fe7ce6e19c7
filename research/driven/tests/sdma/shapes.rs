//! Contiguous and 2-D transfers, compared with loops over bytes and pixels.
//!
//! Sources are in the lower half of memory and destinations in the upper half, so that the order does not matter.

use std::collections::BTreeMap;

use memferry_drivers::sdma::{
    Element, Grid, LinearPieces, Operation, Picture, PlanePieces, QuarterTurns, Walk, rotate,
};
use proptest::prelude::*;

use super::machine::{BASE, Machine, SIZE, changed, transfer};

const LOWER: u64 = BASE + SIZE / 4;
const UPPER: u64 = BASE + SIZE / 4 * 3;

fn byte(memory: &[u8], address: u64) -> u8 {
    memory[(address - BASE) as usize]
}

/// The bytes written by listing 3 of the thesis; pixels of `color` are skipped, as in a transparent copy.
fn expected_bytes(memory: &[u8], grid: Grid, from: Walk, to: Walk, color: Option<u32>) -> BTreeMap<u64, u8> {
    let size = u64::from(grid.element.bytes());
    let mask = if size == 4 { 0x00ff_ffff } else { (1 << (8 * size)) - 1 };
    let mut changes = BTreeMap::new();
    for y in 0..i64::from(grid.y_count) {
        for x in 0..i64::from(grid.x_count) {
            let at = |walk: Walk| walk.start.wrapping_add_signed(walk.step * x + walk.row * y);
            let bytes: Vec<u8> = (0..size).map(|part| byte(memory, at(from) + part)).collect();
            let pixel = bytes.iter().rev().fold(0u32, |pixel, byte| pixel << 8 | u32::from(*byte));
            if color.is_none_or(|color| (pixel ^ color) & mask != 0) {
                changes.extend((0..size).map(|part| (at(to) + part, bytes[part as usize])));
            }
        }
    }
    changes
}

fn any_walk(start: u64) -> impl Strategy<Value = (u64, i64, i64)> {
    let pixels = prop_oneof![Just(1i64), Just(-1), -40..40i64];
    (Just(start), pixels, prop_oneof![-600..600i64, Just(20)])
}

fn in_pixels((start, step, row): (u64, i64, i64), element: Element) -> Walk {
    let size = i64::from(element.bytes());
    Walk { start, step: step * size, row: row * size }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn linear_copy_equals_the_loop(
        skew in (0..8u64, 0..8u64), length in prop_oneof![1..200u64, 1..20_000u64],
    ) {
        let machine = Machine::new();
        let before = machine.memory();
        let from = LOWER + skew.0;
        let to = UPPER - SIZE / 8 + skew.1;
        transfer(&machine, Operation::Copy, LinearPieces::copy(from, to, length).unwrap());
        let changes = (0..length).map(|at| (to + at, byte(&before, from + at))).collect();
        prop_assert_eq!(machine.memory(), changed(before, changes));
    }

    #[test]
    fn linear_fill_equals_the_loop(skew in 0..8u64, length in 1..5000u64, value: u8) {
        let machine = Machine::new();
        let before = machine.memory();
        let to = LOWER + skew;
        let plan = LinearPieces::fill_byte(to, length).unwrap();
        transfer(&machine, Operation::fill_byte(value), plan);
        let changes = (0..length).map(|at| (to + at, value)).collect();
        prop_assert_eq!(machine.memory(), changed(before, changes));
    }

    #[test]
    fn plane_copies_equal_the_loop(
        element in prop::sample::select(&Element::ALL),
        counts in (1..20u32, 1..20u32),
        from in any_walk(LOWER),
        to in any_walk(UPPER),
        is_transparent: bool,
    ) {
        let machine = Machine::new();
        let before = machine.memory();
        let grid = Grid { element, x_count: counts.0, y_count: counts.1 };
        let from = in_pixels(from, element);
        let to = in_pixels(to, element);
        let color = u32::from(byte(&before, from.start)) * 0x01_0101;
        if is_transparent {
            // The first pixel has the transparent color, so that at least one is skipped.
            machine.set_memory(from.start, &color.to_le_bytes()[..element.bytes() as usize]);
        }
        let before = machine.memory();
        let (operation, plan) = if is_transparent {
            (Operation::TransparentCopy { color }, PlanePieces::transparent_copy(grid, from, to).unwrap())
        } else {
            (Operation::Copy, PlanePieces::copy(grid, from, to).unwrap())
        };
        transfer(&machine, operation, plan);
        let changes = expected_bytes(&before, grid, from, to, is_transparent.then_some(color));
        prop_assert_eq!(machine.memory(), changed(before, changes));
    }

    #[test]
    fn plane_fills_equal_the_loop(
        element in prop::sample::select(&Element::ALL),
        counts in (1..20u32, 1..20u32),
        to in any_walk(UPPER),
        color in 0..1u32 << 24,
    ) {
        let machine = Machine::new();
        let before = machine.memory();
        let grid = Grid { element, x_count: counts.0, y_count: counts.1 };
        let to = in_pixels(to, element);
        transfer(&machine, Operation::Fill { color }, PlanePieces::fill(grid, to).unwrap());
        let size = u64::from(element.bytes());
        let pixels = expected_bytes(&before, grid, to, to, None).into_keys();
        let changes = pixels.map(|at| (at, color.to_le_bytes()[(at % size) as usize]));
        prop_assert_eq!(machine.memory(), changed(before, changes.collect()));
    }

    #[test]
    fn rotated_pictures_equal_the_loop(
        element in prop::sample::select(&Element::ALL),
        size in (1..24u32, 1..24u32),
        turns in prop::sample::select(&[QuarterTurns::One, QuarterTurns::Two, QuarterTurns::Three]),
    ) {
        let machine = Machine::new();
        let before = machine.memory();
        let picture = |start| Picture { start, pitch_bytes: 32 * element.bytes() };
        let (grid, from, to) = rotate(picture(LOWER), picture(UPPER), size, element, turns).unwrap();
        transfer(&machine, Operation::Copy, PlanePieces::copy(grid, from, to).unwrap());
        let changes = expected_bytes(&before, grid, from, to, None);
        prop_assert_eq!(machine.memory(), changed(before, changes));
    }
}

#[test]
fn large_steps_equal_the_loop() {
    for (from, to) in [
        (Walk { start: LOWER, step: 0x9000, row: 4 }, Walk { start: UPPER, step: 4, row: 64 }),
        (Walk { start: LOWER, step: 0x9000, row: -0x8800 }, Walk { start: UPPER, step: 4, row: 0xa000 }),
    ] {
        let machine = Machine::new();
        let before = machine.memory();
        let grid = Grid { element: Element::Bits32, x_count: 3, y_count: 2 };
        transfer(&machine, Operation::Copy, PlanePieces::copy(grid, from, to).unwrap());
        let changes = expected_bytes(&before, grid, from, to, None);
        assert_eq!(machine.memory(), changed(before, changes));
    }
}
