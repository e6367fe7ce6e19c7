//! Turned copies of images put each pixel at its expected coordinates, for any pitch and crop.
//!
//! ```text
//! two random cropped images ──turned_copy──► oracle ──► each pixel at its coordinates, all other bytes unchanged
//! ```
//!
//! The expected coordinates follow from each turn's definition, independent of walks.

use memferry_conformance::oracle::{self, Place};
use memferry_transfer::image::{Image, Turn, turned_copy};
use memferry_transfer::{Color24, Operation, PixelSize};
use proptest::prelude::*;

/// Destination of the source pixel at (`x`, `y`) of a `width` x `height` image.
fn turned((x, y): (u32, u32), (width, height): (u32, u32), turn: Turn) -> (u32, u32) {
    match turn {
        Turn::Upright => (x, y),
        Turn::FlipHorizontal => (width - 1 - x, y),
        Turn::FlipVertical => (x, height - 1 - y),
        // The left column becomes the top row.
        Turn::Rotate90 => (height - 1 - y, x),
        Turn::Rotate180 => (width - 1 - x, height - 1 - y),
        // The right column becomes the top row.
        Turn::Rotate270 => (y, width - 1 - x),
        Turn::Transpose => (y, x),
    }
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        Just(Turn::Upright),
        Just(Turn::FlipHorizontal),
        Just(Turn::FlipVertical),
        Just(Turn::Rotate90),
        Just(Turn::Rotate180),
        Just(Turn::Rotate270),
        Just(Turn::Transpose),
    ]
}

/// The larger image around a picture: origin, pixels on each side, and bytes between rows.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    origin: u64,
    left: u32,
    above: u32,
    right: u32,
    below: u32,
    gap: u64,
}

fn surroundings() -> impl Strategy<Value = Surroundings> {
    (0..9_u64, 0..4_u32, 0..4_u32, 0..4_u32, 0..4_u32, 0..9_u64).prop_map(
        |(origin, left, above, right, below, gap)| Surroundings { origin, left, above, right, below, gap },
    )
}

impl Surroundings {
    /// The picture within the larger image, and that image's size in bytes.
    fn around(self, width: u32, height: u32, pixel: PixelSize) -> (Image, u64) {
        let all_width = self.left + width + self.right;
        let all_height = self.above + height + self.below;
        let pitch_bytes = u64::from(all_width) * pixel.bytes() + self.gap;
        let whole = Image { origin: self.origin, width: all_width, height: all_height, pitch_bytes, pixel };
        let bytes = self.origin + pitch_bytes * u64::from(all_height) + 8;
        (whole.crop(self.left, self.above, width, height).unwrap(), bytes)
    }

    /// Offset of a pixel's first byte in the larger image.
    fn byte_of(self, (x, y): (u32, u32), width: u32, pixel: PixelSize) -> usize {
        let pitch = u64::from(self.left + width + self.right) * pixel.bytes() + self.gap;
        (self.origin + u64::from(self.above + y) * pitch + u64::from(self.left + x) * pixel.bytes()) as usize
    }
}

fn noise(length: u64, factor: u64) -> Vec<u8> {
    (0..length).map(|at| ((at * at * 13 + at * factor) % 251 % 3) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn pixels_land_at_their_coordinates(
        turn in turn(),
        (width, height) in (0..7_u32, 0..7_u32),
        pixel in prop_oneof![Just(PixelSize::Bits8), Just(PixelSize::Bits16), Just(PixelSize::Bits32)],
        (around_source, around_destination) in (surroundings(), surroundings()),
        transparent in proptest::option::of(0..3_u32),
    ) {
        let transparent = transparent.map(|byte| Color24::new(byte * 0x01_0101).unwrap());
        let (turned_width, turned_height) = if turn.swaps_axes() { (height, width) } else { (width, height) };
        let (source, source_bytes) = around_source.around(width, height, pixel);
        let (destination, destination_bytes) = around_destination.around(turned_width, turned_height, pixel);
        let mut memories = [noise(source_bytes, 7), noise(destination_bytes, 17)];
        let mut expected = memories[1].clone();
        let size = pixel.bytes() as usize;
        for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            let from = around_source.byte_of((x, y), width, pixel);
            let to = around_destination.byte_of(turned((x, y), (width, height), turn), turned_width, pixel);
            let bytes = &memories[0][from..from + size];
            let compared = &bytes[..size.min(3)];
            let hidden = transparent.is_some_and(|color| compared.iter().all(|b| u32::from(*b) == color.value() & 0xff));
            if !hidden {
                expected[to..to + size].copy_from_slice(bytes);
            }
        }
        let shape = turned_copy(&source, turn, &destination, transparent).unwrap();
        let whole = |memory, length| Place { memory, offset: 0, length };
        let source = whole(0, source_bytes);
        let destination = whole(1, destination_bytes);
        oracle::apply(&Operation::Copy2d { source, destination, shape }, &mut memories).unwrap();
        prop_assert_eq!(&memories[1], &expected);
    }
}
