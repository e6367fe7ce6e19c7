//! Rotates pictures by quarter turns: orders the source pixels so that the destination is written row by row.
//!
//! ```text
//! Picture (start, pitch) + width, height ── rotate ──► Grid, source Walk, destination Walk ──► PlanePieces
//! ```
//!
//! The destination advances in order so that writes stay packed, which makes rotation cheapest. The module does not check
//! whether the pictures overlap.

use thiserror::Error;

use super::config::Element;
use super::plane::{Grid, Walk};

/// A picture in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Physical address of the upper left pixel.
    pub start: u64,
    /// Distance between the starts of two rows.
    pub pitch_bytes: u32,
}

/// Angle of a clockwise rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuarterTurns {
    None,
    /// By 90 degrees.
    One,
    /// By 180 degrees.
    Two,
    /// By 270 degrees.
    Three,
}

/// Reason why a rotation cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RotationError {
    #[error("a picture of {width} by {height} pixels is empty: give it at least one pixel")]
    NoPixels {
        /// Pixels of a row of the source.
        width: u32,
        /// Rows of the source.
        height: u32,
    },
    /// A row is longer than the pitch.
    #[error("rows of {row_bytes} bytes overlap with a pitch of {pitch_bytes} bytes: increase the pitch")]
    PitchTooSmall {
        /// Size of a row.
        row_bytes: u64,
        /// Distance between the starts of two rows.
        pitch_bytes: u32,
    },
    /// The address of the source's first pixel in the walk exceeds 64 bits.
    #[error("the picture at {start:#x} exceeds the address space: place it lower, or make it smaller")]
    TooTall { start: u64 },
}

/// Plans the rotation of a picture of `width` by `height` pixels: the grid, the source walk and the destination walk.
///
/// # Errors
/// [`RotationError`] when there are no pixels, the rows of a picture overlap, or the source exceeds 64 bits.
pub fn rotate(
    source: Picture,
    destination: Picture,
    (width, height): (u32, u32),
    element: Element,
    turns: QuarterTurns,
) -> Result<(Grid, Walk, Walk), RotationError> {
    if width == 0 || height == 0 {
        return Err(RotationError::NoPixels { width, height });
    }
    let size = i64::from(element.bytes());
    let pitch = i64::from(source.pitch_bytes);
    let last_row = u64::from(source.pitch_bytes) * u64::from(height - 1);
    let last_column = u64::from(element.bytes()) * u64::from(width - 1);
    let (offset, step, row) = match turns {
        QuarterTurns::None => (0, size, pitch),
        QuarterTurns::One => (last_row, -pitch, size),
        QuarterTurns::Two => (last_row + last_column, -size, -pitch),
        QuarterTurns::Three => (last_column, pitch, -size),
    };
    let (x_count, y_count) = match turns {
        QuarterTurns::None | QuarterTurns::Two => (width, height),
        QuarterTurns::One | QuarterTurns::Three => (height, width),
    };
    for (columns, picture) in [(width, source), (x_count, destination)] {
        let row_bytes = u64::from(columns) * u64::from(element.bytes());
        if row_bytes > u64::from(picture.pitch_bytes) {
            return Err(RotationError::PitchTooSmall { row_bytes, pitch_bytes: picture.pitch_bytes });
        }
    }
    let start = source.start.checked_add(offset).ok_or(RotationError::TooTall { start: source.start })?;
    let to = Walk { start: destination.start, step: size, row: i64::from(destination.pitch_bytes) };
    Ok((Grid { element, x_count, y_count }, Walk { start, step, row }, to))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::PlanePieces;
    use super::super::plane::tests::visited;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn picture(start: u64, pitch_bytes: u32) -> Picture {
        Picture { start, pitch_bytes }
    }

    /// Position of a source pixel in the destination, by the definition of a clockwise turn.
    fn turned(x: u32, y: u32, (width, height): (u32, u32), turns: QuarterTurns) -> (u32, u32) {
        match turns {
            QuarterTurns::None => (x, y),
            QuarterTurns::One => (height - 1 - y, x),
            QuarterTurns::Two => (width - 1 - x, height - 1 - y),
            QuarterTurns::Three => (y, width - 1 - x),
        }
    }

    #[test]
    fn refuses_empty_pictures_and_overlapping_rows() {
        let turn = |size, pitch| {
            rotate(picture(0, pitch), picture(0x1000, 64), size, Element::Bits16, QuarterTurns::One).err()
        };
        assert_eq!(turn((0, 1), 64), Some(RotationError::NoPixels { width: 0, height: 1 }));
        let small = RotationError::PitchTooSmall { row_bytes: 8, pitch_bytes: 7 };
        assert_eq!(turn((4, 1), 7), Some(small));
        let tall = RotationError::PitchTooSmall { row_bytes: 66, pitch_bytes: 64 };
        assert_eq!(turn((4, 33), 64), Some(tall));
        let high = rotate(picture(u64::MAX, 4), picture(0, 8), (1, 2), Element::Bits32, QuarterTurns::One);
        assert_eq!(high.err(), Some(RotationError::TooTall { start: u64::MAX }));
    }

    proptest! {
        #[test]
        fn moves_every_pixel_to_its_rotated_place(
            width in 1..12u32,
            height in 1..12u32,
            element in prop::sample::select(&Element::ALL),
            turns in prop::sample::select(
                &[QuarterTurns::None, QuarterTurns::One, QuarterTurns::Two, QuarterTurns::Three],
            ),
        ) {
            let bytes = u64::from(element.bytes());
            let from = picture(0x1_0000, 16 * element.bytes());
            let to = picture(0x8_0000, 12 * element.bytes());
            let (grid, source, destination) = rotate(from, to, (width, height), element, turns).unwrap();
            let mut moved: Vec<(u64, u64)> =
                visited(PlanePieces::transparent_copy(grid, source, destination).unwrap()).collect();
            moved.sort_unstable();
            let mut expected = Vec::new();
            for y in 0..height {
                for x in 0..width {
                    let (to_x, to_y) = turned(x, y, (width, height), turns);
                    expected.push((
                        from.start + u64::from(y) * 16 * bytes + u64::from(x) * bytes,
                        to.start + u64::from(to_y) * 12 * bytes + u64::from(to_x) * bytes,
                    ));
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(moved, expected);
        }
    }
}
