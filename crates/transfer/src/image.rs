//! Images over frames: crop, flip, rotate and transpose with a row pitch, as 2-D shapes.
//!
//! ```text
//! Image (origin, width, height, pitch) ──crop──► Image
//! (source Image, Turn, destination Image) ──turned_copy──► Copy2d
//! ```
//!
//! The destination is written row by row and the source is read in strides, so stores fill whole cache lines. The thesis's call
//! multiplies `y_start` by the transfer's height; these helpers compute starts from the pitch. Nothing here decodes or touches
//! pixels.

use thiserror::Error;

use crate::geometry::{Color24, Copy2d, Count2d, Extent, Fill2d, GeometryError, PixelSize, Plane};

/// A rectangle of pixels in a frame.
///
/// ```
/// use memferry_transfer::{PixelSize, image::Image};
///
/// let picture = Image::packed(640, 480, PixelSize::Bits32);
/// let part = picture.crop(100, 50, 20, 10)?;
/// assert_eq!((part.origin, part.pitch_bytes), ((50 * 640 + 100) * 4, 2560));
/// # Ok::<(), memferry_transfer::image::ImageError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// Offset of the top left pixel, bytes.
    pub origin: u64,
    /// Pixels of a row.
    pub width: u32,
    /// Rows of the rectangle.
    pub height: u32,
    /// Bytes from one row to the next.
    pub pitch_bytes: u64,
    /// Size of a pixel.
    pub pixel: PixelSize,
}

/// How a picture is turned while it is copied.
///
/// ```
/// use memferry_transfer::{PixelSize, image::{Image, Turn, turned_copy}};
///
/// let source = Image::packed(640, 480, PixelSize::Bits32);
/// let turned = Image::packed(480, 640, PixelSize::Bits32);
/// assert!(Turn::Rotate90.swaps_axes());
/// assert!(turned_copy(&source, Turn::Rotate90, &turned, None).is_ok());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A plain copy, not turned.
    Upright,
    /// Left and right exchanged.
    FlipHorizontal,
    /// Top and bottom exchanged.
    FlipVertical,
    /// A quarter turn clockwise.
    Rotate90,
    /// A half turn, which exchanges opposite corners.
    Rotate180,
    /// A quarter turn counter-clockwise.
    Rotate270,
    /// Mirrored at the main diagonal: rows become columns.
    Transpose,
}

impl Turn {
    /// Every turn once, for tests and tables that must leave none out.
    pub const ALL: [Self; 7] = [
        Self::Upright,
        Self::FlipHorizontal,
        Self::FlipVertical,
        Self::Rotate90,
        Self::Rotate180,
        Self::Rotate270,
        Self::Transpose,
    ];

    /// Whether width and height change places.
    pub const fn swaps_axes(self) -> bool {
        matches!(self, Self::Rotate90 | Self::Rotate270 | Self::Transpose)
    }
}

/// Why an image operation is impossible.
///
/// ```
/// use memferry_transfer::{PixelSize, image::{Image, ImageError}};
///
/// let picture = Image::packed(640, 480, PixelSize::Bits32);
/// let refused = picture.crop(600, 0, 100, 100).unwrap_err();
/// assert!(matches!(refused, ImageError::OutsideImage { right: 700, bottom: 100, .. }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ImageError {
    /// Rows would overlap, because the pitch is shorter than a row.
    #[error("a pitch of {pitch_bytes} bytes is shorter than the row's {row_bytes}")]
    PitchTooShort {
        /// Bytes from one row to the next, as given.
        pitch_bytes: u64,
        /// Bytes of a row's pixels.
        row_bytes: u64,
    },
    /// A pitch beyond 2^63 bytes.
    #[error("a pitch of {pitch_bytes} bytes is beyond any memory")]
    PitchTooLong {
        /// Bytes from one row to the next, as given.
        pitch_bytes: u64,
    },
    /// The rectangle leaves the image.
    #[error("the rectangle ends at ({right}, {bottom}), outside the {width} x {height} image")]
    OutsideImage {
        /// The rectangle's right edge.
        right: u64,
        /// The rectangle's bottom edge.
        bottom: u64,
        /// Pixels of a row of the image.
        width: u32,
        /// Rows of the image.
        height: u32,
    },
    /// Source and destination differ in pixel size.
    #[error("source and destination differ in pixel size")]
    PixelSizesDiffer,
    /// The destination's size is not that of the turned picture.
    #[error("the turned picture is {width} x {height} and does not fit the destination's size")]
    SizesDiffer {
        /// Width after the turn.
        width: u32,
        /// Height after the turn.
        height: u32,
    },
    /// The image reaches beyond 64-bit offsets.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

impl Image {
    /// A packed image at the start of a frame.
    pub const fn packed(width: u32, height: u32, pixel: PixelSize) -> Self {
        Self { origin: 0, width, height, pitch_bytes: width as u64 * pixel.bytes(), pixel }
    }

    /// The rectangle of `width` x `height` pixels whose top left is at (`x`, `y`).
    ///
    /// # Errors
    /// [`ImageError::OutsideImage`], and [`ImageError::Geometry`] when its origin does not fit 64 bits.
    pub fn crop(&self, x: u32, y: u32, width: u32, height: u32) -> Result<Self, ImageError> {
        let right = u64::from(x) + u64::from(width);
        let bottom = u64::from(y) + u64::from(height);
        if right > u64::from(self.width) || bottom > u64::from(self.height) {
            let width = self.width;
            let height = self.height;
            return Err(ImageError::OutsideImage { right, bottom, width, height });
        }
        let origin = u64::from(y)
            .checked_mul(self.pitch_bytes)
            .and_then(|rows| rows.checked_add(u64::from(x) * self.pixel.bytes()))
            .and_then(|offset| offset.checked_add(self.origin))
            .ok_or(GeometryError::EndOverflows)?;
        Ok(Self { origin, width, height, ..*self })
    }

    /// The bytes from the first pixel to the last; `None` for an image without pixels.
    ///
    /// # Errors
    /// [`ImageError`] as for [`turned_copy`].
    pub fn extent(&self) -> Result<Option<Extent>, ImageError> {
        let (count, plane) = self.rows()?;
        Ok(plane.extent(&count)?)
    }

    /// A fill of the whole rectangle with `color`.
    ///
    /// # Errors
    /// [`ImageError`] as for [`turned_copy`].
    pub fn fill(&self, color: Color24) -> Result<Fill2d, ImageError> {
        let (count, destination) = self.rows()?;
        Ok(Fill2d { count, destination, color })
    }

    /// The walk along rows, top to bottom.
    fn rows(&self) -> Result<(Count2d, Plane), ImageError> {
        let count = Count2d { pixel: self.pixel, x_count: self.width, y_count: self.height };
        let size = self.pixel.bytes() as i64;
        let plane = self.walk(&count, (0, 0), size, self.pitch()?)?;
        Ok((count, plane))
    }

    fn pitch(&self) -> Result<i64, ImageError> {
        let row_bytes = u64::from(self.width) * self.pixel.bytes();
        if self.pitch_bytes < row_bytes && self.height > 1 {
            return Err(ImageError::PitchTooShort { pitch_bytes: self.pitch_bytes, row_bytes });
        }
        i64::try_from(self.pitch_bytes)
            .map_err(|_| ImageError::PitchTooLong { pitch_bytes: self.pitch_bytes })
    }

    /// The walk that starts at pixel `from`, moves `across` bytes within a row and `down` bytes from row to row.
    fn walk(&self, count: &Count2d, from: (u32, u32), across: i64, down: i64) -> Result<Plane, ImageError> {
        let start = i128::from(self.origin)
            + i128::from(from.1) * i128::from(self.pitch_bytes)
            + i128::from(from.0) * i128::from(self.pixel.bytes());
        let within = i128::from(count.x_count.saturating_sub(1)) * i128::from(across);
        let y_step = i128::from(down) - within;
        Ok(Plane {
            start: u64::try_from(start).map_err(|_| GeometryError::EndOverflows)?,
            x_step: across,
            y_step: i64::try_from(y_step).map_err(|_| GeometryError::EndOverflows)?,
        })
    }
}

/// Copies `source` to `destination` turned, leaving out source pixels of the `transparent` colour.
///
/// # Errors
/// [`ImageError::PixelSizesDiffer`], [`ImageError::SizesDiffer`] if the destination's size is not that of the turned picture, and
/// errors of pitches and offsets.
pub fn turned_copy(
    source: &Image,
    turn: Turn,
    destination: &Image,
    transparent: Option<Color24>,
) -> Result<Copy2d, ImageError> {
    if source.pixel != destination.pixel {
        return Err(ImageError::PixelSizesDiffer);
    }
    let (width, height) =
        if turn.swaps_axes() { (source.height, source.width) } else { (source.width, source.height) };
    if (destination.width, destination.height) != (width, height) {
        return Err(ImageError::SizesDiffer { width, height });
    }
    let (count, rows) = destination.rows()?;
    let size = source.pixel.bytes() as i64;
    let pitch = source.pitch()?;
    let right = source.width.saturating_sub(1);
    let bottom = source.height.saturating_sub(1);
    let (from, across, down) = match turn {
        Turn::Upright => ((0, 0), size, pitch),
        Turn::FlipHorizontal => ((right, 0), -size, pitch),
        Turn::FlipVertical => ((0, bottom), size, -pitch),
        Turn::Rotate90 => ((0, bottom), -pitch, size),
        Turn::Rotate180 => ((right, bottom), -size, -pitch),
        Turn::Rotate270 => ((right, 0), pitch, -size),
        Turn::Transpose => ((0, 0), pitch, size),
    };
    let walk = source.walk(&count, from, across, down)?;
    Ok(Copy2d { count, source: walk, destination: rows, transparent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Source offsets in the order the destination's pixels are written.
    fn order(turn: Turn) -> Vec<i128> {
        let source = Image::packed(3, 2, PixelSize::Bits8);
        let (width, height) = if turn.swaps_axes() { (2, 3) } else { (3, 2) };
        let shape =
            turned_copy(&source, turn, &Image::packed(width, height, PixelSize::Bits8), None).unwrap();
        let count = shape.count;
        (0..height).flat_map(|y| (0..width).map(move |x| shape.source.offset_of(&count, x, y))).collect()
    }

    #[test]
    fn turns_read_the_source_in_the_right_order() {
        // The picture is  0 1 2 / 3 4 5.
        assert_eq!(order(Turn::Upright), [0, 1, 2, 3, 4, 5]);
        assert_eq!(order(Turn::FlipHorizontal), [2, 1, 0, 5, 4, 3]);
        assert_eq!(order(Turn::FlipVertical), [3, 4, 5, 0, 1, 2]);
        assert_eq!(order(Turn::Rotate90), [3, 0, 4, 1, 5, 2]);
        assert_eq!(order(Turn::Rotate180), [5, 4, 3, 2, 1, 0]);
        assert_eq!(order(Turn::Rotate270), [2, 5, 1, 4, 0, 3]);
        assert_eq!(order(Turn::Transpose), [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn crop_keeps_the_pitch_and_moves_the_origin() {
        let image = Image { origin: 16, width: 10, height: 8, pitch_bytes: 64, pixel: PixelSize::Bits32 };
        let part = image.crop(2, 3, 4, 5).unwrap();
        assert_eq!(part, Image { origin: 16 + 3 * 64 + 2 * 4, width: 4, height: 5, ..image });
        assert_eq!(part.extent().unwrap().unwrap(), Extent { first: 216, length: 4 * 64 + 16 });
        assert!(matches!(image.crop(7, 0, 4, 1), Err(ImageError::OutsideImage { right: 11, .. })));
        assert!(matches!(image.crop(u32::MAX, 0, u32::MAX, 1), Err(ImageError::OutsideImage { .. })));
    }

    #[test]
    fn impossible_images_are_refused() {
        let good = Image::packed(4, 4, PixelSize::Bits16);
        let short = Image { pitch_bytes: 7, ..good };
        let long = Image { pitch_bytes: u64::MAX, ..good };
        let other = Image::packed(4, 4, PixelSize::Bits8);
        let turn =
            |source: &Image, destination: &Image| turned_copy(source, Turn::Upright, destination, None);
        assert!(matches!(
            turn(&short, &good),
            Err(ImageError::PitchTooShort { pitch_bytes: 7, row_bytes: 8 })
        ));
        assert!(matches!(turn(&good, &long), Err(ImageError::PitchTooLong { .. })));
        assert_eq!(turn(&good, &other), Err(ImageError::PixelSizesDiffer));
        assert!(matches!(
            turned_copy(&good, Turn::Rotate90, &Image::packed(4, 5, PixelSize::Bits16), None),
            Err(ImageError::SizesDiffer { width: 4, height: 4 })
        ));
        assert_eq!(Image { width: 0, ..good }.extent(), Ok(None));
    }
}
