//! Compares plans of 2-D transfers with the thesis's loop, pixel by pixel.

extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::{ChannelConfig, Operation};
use super::*;

/// The addresses that the device accesses on one side, by the equations of section 2.3.2.2 of the thesis.
fn side_addresses(side: Side, size: TransferSize) -> Vec<u64> {
    let element_size = i64::from(size.element.bytes());
    let mut address = side.address as i64;
    let mut addresses = Vec::new();
    for n in 1..=u64::from(size.elements) * u64::from(size.frames) {
        addresses.push(address as u64);
        let ends_frame = n % u64::from(size.elements) == 0;
        address += match side.addressing {
            Addressing::Constant => 0,
            Addressing::PostIncrement => element_size,
            Addressing::SingleIndex { element_index } => (element_size - 1) + element_index,
            Addressing::DoubleIndex { frame_index, .. } if ends_frame => (element_size - 1) + frame_index,
            Addressing::DoubleIndex { element_index, .. } => (element_size - 1) + element_index,
        };
    }
    addresses
}

/// Source and destination of every element that the pieces move, in the device's order.
pub(crate) fn visited(pieces: PlanePieces) -> std::vec::IntoIter<(u64, u64)> {
    let mut all = Vec::new();
    for piece in pieces {
        let config = ChannelConfig::new(Operation::Copy, piece);
        assert_eq!(config.validate(None), Ok(()), "{piece:?}");
        let from = side_addresses(piece.source, piece.size);
        all.extend(from.into_iter().zip(side_addresses(piece.destination, piece.size)));
    }
    all.into_iter()
}

/// Listing 3 of the thesis, with modifiers in pixels.
fn listing3(start: i64, x_modify: i64, y_modify: i64, grid: &Grid) -> Vec<u64> {
    let size = i64::from(grid.element.bytes());
    let mut address = start;
    let mut visited = Vec::new();
    for _ in 1..=grid.y_count {
        for x in 1..=grid.x_count {
            visited.push(address as u64);
            address += size * if x < grid.x_count { x_modify } else { y_modify };
        }
    }
    visited
}

fn grid(element: Element, x_count: u32, y_count: u32) -> Grid {
    Grid { element, x_count, y_count }
}

fn walk(start: u64, step: i64, row: i64) -> Walk {
    Walk { start, step, row }
}

/// Elements and frames of each piece.
fn shapes(pieces: PlanePieces) -> Vec<(u32, u32)> {
    pieces.map(|piece| (piece.size.elements, piece.size.frames)).collect()
}

#[test]
fn indexes_follow_the_thesis() {
    assert_eq!(index_of_modify(1, Element::Bits8), 1);
    assert_eq!(index_of_modify(3, Element::Bits16), (3 - 1) * 2 + 1);
    assert_eq!(index_of_modify(-5, Element::Bits32), (-5 - 1) * 4 + 1);
    let grid = grid(Element::Bits32, 8, 4);
    let element = Element::Bits32;
    let source = Walk::from_modify(0x1000, 3, -10, &grid).unwrap();
    let to = Walk::from_modify(0x8000, 1, 1, &grid).unwrap();
    let piece = PlanePieces::copy(grid, source, to).unwrap().next().unwrap();
    let expected = Addressing::DoubleIndex {
        element_index: index_of_modify(3, element),
        frame_index: index_of_modify(-10, element),
    };
    assert_eq!(piece.source.addressing, expected);
    assert_eq!(piece.destination, Side::memory(0x8000));
}

#[test]
fn moves_rows_with_gaps_in_one_transfer() {
    let from = walk(0x1000, 4, 0x400);
    let to = walk(0x8000, 4, 64);
    let pieces: Vec<Piece> = PlanePieces::copy(grid(Element::Bits32, 16, 8), from, to).unwrap().collect();
    assert_eq!(pieces.len(), 1);
    let addressing = Addressing::DoubleIndex { element_index: 1, frame_index: 0x400 - 60 - 3 };
    assert_eq!(pieces[0].source, Side { addressing, ..Side::memory(0x1000) });
}

#[test]
fn swaps_the_axes_for_steps_beyond_16_bits() {
    // A quarter turn of a picture with a pitch of 64 KiB: the steps of a row exceed the element index.
    let grid = grid(Element::Bits32, 16, 8);
    let from = walk(0x10_0000, -0x1_0000, 4);
    let plan = PlanePieces::copy(grid, from, walk(0x80_0000, 4, 64)).unwrap();
    assert_eq!(shapes(plan.clone()), [(8, 16)], "columns of the destination along the frame");
    assert_eq!(plan.clone().next().unwrap().destination.addressing.element_index(), 64 - 3);
    assert_eq!(visited(plan).count(), 128);
}

#[test]
fn plans_row_by_row_beyond_16_bits_on_both_axes() {
    let grid = grid(Element::Bits32, 5, 3);
    let from = walk(0x10_0000, 0x1_0000, 0x8_0000);
    let plan = PlanePieces::copy(grid, from, walk(0x80_0000, 4, 0x1_0000)).unwrap();
    assert_eq!(shapes(plan.clone()), [(1, 5); 3], "each row consists of frames of one element");
    assert_eq!(visited(plan).count(), 15);
}

#[test]
fn plans_row_by_row_beyond_32_bits() {
    let from = walk(0, 4, 0x9000_0000);
    let to = walk(0xf000_0000, 4, 0x100);
    let plan = PlanePieces::copy(grid(Element::Bits32, 8, 2), from, to).unwrap();
    assert_eq!(shapes(plan), [(8, 1); 2]);
    let from = walk(0, 0x9000_0000, 4);
    let to = walk(0xf000_0000, 0x9000, 0x9_0000);
    let plan = PlanePieces::copy(grid(Element::Bits32, 2, 2), from, to).unwrap();
    assert_eq!(visited(plan).count(), 4);
}

#[test]
fn splits_counts_beyond_the_registers() {
    let from = walk(0, 1, 0x1000);
    let to = walk(0x4000_0000, 1, 0x800);
    let rows = PlanePieces::copy(grid(Element::Bits8, 3, 70_000), from, to).unwrap();
    assert_eq!(shapes(rows), [(3, 65_535), (3, 4465)]);
    let from = walk(0, 1, 0x200_0000);
    let to = walk(0x4000_0000, 1, 0x180_0000);
    let long = PlanePieces::copy(grid(Element::Bits8, (1 << 24) + 5, 2), from, to).unwrap();
    assert_eq!(shapes(long.clone()), [((1 << 24) - 1, 2), (6, 2)]);
    let second = long.last().unwrap();
    assert_eq!(second.source.address, (1 << 24) - 1);
    let (first, end) = second.source.extent(&second.size);
    assert_eq!((first, end), ((1 << 24) - 1, 0x200_0000 + (1 << 24) + 5));
}

#[test]
fn merges_adjoining_rows() {
    let from = walk(0x1000, 4, 64);
    let to = walk(0x8000, 4, 64);
    let plan = PlanePieces::copy(grid(Element::Bits32, 16, 100), from, to).unwrap();
    assert_eq!(shapes(plan), [(1600, 1)]);
}

#[test]
fn moves_misaligned_rows_in_smaller_elements() {
    let grid = grid(Element::Bits32, 4, 3);
    let to = walk(0x8000, 4, 32);
    let plan = PlanePieces::copy(grid, walk(0x1002, 4, 32), to).unwrap();
    assert_eq!(shapes(plan), [(8, 3)]);
    let odd_pitch = PlanePieces::copy(grid, walk(0x1000, 4, 33), to).unwrap();
    assert_eq!(shapes(odd_pitch), [(16, 3)]);
    let misaligned = PlaneError::Misaligned { port: Port::Source, bytes: 4 };
    let transparent = PlanePieces::transparent_copy(grid, walk(0x1002, 4, 32), to);
    assert_eq!(transparent.err(), Some(misaligned), "a transparent copy must not split pixels");
    assert_eq!(PlanePieces::copy(grid, walk(0x1002, -4, 32), to).err(), Some(misaligned));
}

#[test]
fn refuses_empty_grids_and_walks_beyond_32_bits() {
    let side = walk(0, 1, 1);
    let none = PlaneError::NoPixels { x_count: 0, y_count: 4 };
    assert_eq!(PlanePieces::fill(grid(Element::Bits8, 0, 4), side).err(), Some(none));
    let below = PlaneError::LeavesAddressSpace { port: Port::Source, first: -3, end: 2 };
    let down = PlanePieces::copy(grid(Element::Bits8, 5, 1), walk(1, -1, 0), walk(0x100, 1, 5));
    assert_eq!(down.err(), Some(below));
    let far = PlanePieces::fill(grid(Element::Bits8, 2, 1), walk(0xffff_ffff, 1, 0));
    assert!(matches!(far.err(), Some(PlaneError::LeavesAddressSpace { end: 0x1_0000_0001, .. })));
    let huge = walk(u64::MAX, i64::MIN, i64::MAX);
    assert!(PlanePieces::fill(grid(Element::Bits8, u32::MAX, u32::MAX), huge).is_err());
    assert_eq!(Walk::from_steps(0, i64::MAX, 0, 3), None);
}

#[test]
fn keeps_the_order_of_overlapping_sides() {
    // The order matters and the step along x exceeds 16 bits, so each row consists of frames of one element.
    let from = walk(0x10_0000, 0x1_0000, 4);
    let to = walk(0x10_0004, 0x1_0000, 4);
    let plan = PlanePieces::copy(grid(Element::Bits32, 4, 3), from, to).unwrap();
    assert_eq!(shapes(plan), [(1, 4); 3]);
}

proptest! {
    #[test]
    fn visits_pixels_in_the_order_of_the_thesis(
        element in prop::sample::select(&Element::ALL),
        x_count in 1..9u32, y_count in 1..9u32,
        source in (-9..9i32, -99..99i32), destination in (-9..9i32, -99..99i32),
    ) {
        let grid = grid(element, x_count, y_count);
        let from = 0x10_0000;
        let to = 0x20_0000;
        let plan = PlanePieces::transparent_copy(
            grid,
            Walk::from_modify(from, source.0, source.1, &grid).unwrap(),
            Walk::from_modify(to, destination.0, destination.1, &grid).unwrap(),
        ).unwrap();
        let expected = listing3(from as i64, source.0.into(), source.1.into(), &grid).into_iter()
            .zip(listing3(to as i64, destination.0.into(), destination.1.into(), &grid));
        prop_assert_eq!(visited(plan).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn any_steps_move_the_same_pixels_as_the_loop(
        element in prop::sample::select(&Element::ALL),
        x_count in 1..6u32, y_count in 1..6u32,
        steps in prop::array::uniform4(prop::sample::select(
            &[-0x10_0000i64, -32_772, -32_768, -64, -4, 0, 4, 8, 1000, 32_768, 32_772, 0x4_0000],
        )),
    ) {
        let grid = grid(element, x_count, y_count);
        let from = walk(0x4000_0000, steps[0], steps[1]);
        let to = walk(0x8000_0000, steps[2], steps[3]);
        let address = |side: Walk, x: u32, y: u32| {
            (side.start as i64 + side.step * i64::from(x) + side.row * i64::from(y)) as u64
        };
        let mut expected = BTreeMap::new();
        let mut moved = BTreeMap::new();
        for y in 0..y_count {
            for x in 0..x_count {
                expected.insert(address(to, x, y), address(from, x, y));
            }
        }
        for (source, destination) in visited(PlanePieces::transparent_copy(grid, from, to).unwrap()) {
            moved.insert(destination, source);
        }
        prop_assert_eq!(moved, expected);
    }
}
