//! Two-dimensional transfers: the addressing scheme of Wicki 2014, section 3.3.2 (after Katz and Gentile).
//!
//! ```text
//! Addr2d (pixels, as in listing 2) ──plane()──► Plane (bytes) ──extent()──► bytes touched, checked
//! image helpers (row pitch)        ───────────► Plane
//! ```
//!
//! A walk starts at a pixel, adds one step after every pixel but the last of a row, and another after the last.
//! [`Plane`] holds these in bytes, which covers pitches that are no multiple of the pixel. All address arithmetic
//! is done in 128 bits before anything moves. Nothing here touches memory.

use thiserror::Error;

/// Bits of one pixel (`data_type` of Wicki 2014, listing 2).
///
/// ```
/// use memferry_transfer::PixelSize;
///
/// assert_eq!(PixelSize::from_bytes(4), Some(PixelSize::Bits32));
/// assert_eq!(PixelSize::from_bytes(3), None, "RGB is moved in passes of single bytes");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PixelSize {
    /// 1 byte.
    Bits8,
    /// 2 bytes.
    Bits16,
    /// 4 bytes.
    Bits32,
}

impl PixelSize {
    /// Bytes of one pixel: 1, 2 or 4.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bits8 => 1,
            Self::Bits16 => 2,
            Self::Bits32 => 4,
        }
    }

    /// The pixel size of that many bytes.
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            1 => Some(Self::Bits8),
            2 => Some(Self::Bits16),
            4 => Some(Self::Bits32),
            _ => None,
        }
    }
}

/// A colour of 24 bits, the widest the SDMA engine compares or fills (Wicki 2014, 2.3.2.2).
///
/// Smaller pixels use its low bits. In a 32-bit pixel the upper eight bits are zero when filled and ignored when
/// compared.
///
/// ```
/// use memferry_transfer::{Color24, PixelSize};
///
/// let magenta = Color24::new(0xff_00ff).unwrap();
/// assert!(magenta.matches(PixelSize::Bits32, 0x80ff_00ff), "alpha is ignored");
/// assert_eq!(Color24::new(1 << 24), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Color24(u32);

impl Color24 {
    /// A colour, or `None` when `value` needs more than 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value >> 24 == 0 { Some(Self(value)) } else { None }
    }

    /// The colour as a number below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Whether `pixel`, the little-endian value of a pixel of `size`, is this colour.
    pub const fn matches(self, size: PixelSize, pixel: u32) -> bool {
        let compared = match size {
            PixelSize::Bits8 => 0xff,
            PixelSize::Bits16 => 0xffff,
            PixelSize::Bits32 => 0x00ff_ffff,
        };
        (pixel ^ self.0) & compared == 0
    }
}

/// The size of a 2-D transfer: pixels per row, and rows (`count_2d` of Wicki 2014, listing 2).
///
/// ```
/// use memferry_transfer::{Count2d, PixelSize};
///
/// let count = Count2d { pixel: PixelSize::Bits32, x_count: 640, y_count: 480 };
/// assert_eq!((count.pixels(), count.total_bytes()), (307_200, 1_228_800));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count2d {
    /// Size of a pixel.
    pub pixel: PixelSize,
    /// Pixels of a row.
    pub x_count: u32,
    /// Rows of the walk.
    pub y_count: u32,
}

impl Count2d {
    /// Pixels visited on one side.
    pub const fn pixels(&self) -> u64 {
        self.x_count as u64 * self.y_count as u64
    }

    /// Bytes visited on one side, saturating.
    pub const fn total_bytes(&self) -> u64 {
        self.pixels().saturating_mul(self.pixel.bytes())
    }
}

/// One side's addressing as the thesis gives it, in pixels (`addr_2d` of Wicki 2014, listing 2, without the capability).
///
/// ```
/// use memferry_transfer::{Count2d, PixelSize, Plane, geometry::Addr2d};
///
/// // Every second pixel of rows of eight, from the last pixel backwards.
/// let count = Count2d { pixel: PixelSize::Bits16, x_count: 4, y_count: 2 };
/// let addresses = Addr2d { x_start: 15, y_start: 0, x_modify: -2, y_modify: -2 };
/// assert_eq!(addresses.plane(&count)?, Plane { start: 30, x_step: -4, y_step: -4 });
/// # Ok::<(), memferry_transfer::geometry::GeometryError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addr2d {
    /// Pixels added to the frame's base.
    pub x_start: u32,
    /// Rows of `y_count` pixels added to the frame's base: listing 3 computes `x_start + y_count * y_start`.
    pub y_start: u32,
    /// Pixels added after each pixel but the last of a row; may be negative.
    pub x_modify: i32,
    /// Pixels added after the last pixel of a row; may be negative.
    pub y_modify: i32,
}

impl Addr2d {
    /// The same walk in bytes.
    ///
    /// The start is that of listing 3, which multiplies `y_start` by the transfer's `y_count` (not by a row's width).
    ///
    /// # Errors
    /// [`GeometryError::StartOverflows`] when the start does not fit 64 bits of bytes.
    pub fn plane(&self, count: &Count2d) -> Result<Plane, GeometryError> {
        let size = count.pixel.bytes();
        let start_pixels = u64::from(self.x_start) + u64::from(count.y_count) * u64::from(self.y_start);
        let start =
            start_pixels.checked_mul(size).ok_or(GeometryError::StartOverflows { pixels: start_pixels })?;
        Ok(Plane {
            start,
            x_step: i64::from(self.x_modify) * size as i64,
            y_step: i64::from(self.y_modify) * size as i64,
        })
    }
}

/// One side's walk over its frame, in bytes.
///
/// ```
/// use memferry_transfer::{Count2d, PixelSize, Plane};
///
/// // The left half of a picture of 8 x 2 pixels: from a row's fourth pixel it is five to the next row.
/// let count = Count2d { pixel: PixelSize::Bits32, x_count: 4, y_count: 2 };
/// let half = Plane { start: 0, x_step: 4, y_step: 5 * 4 };
/// assert_eq!(half.offset_of(&count, 0, 1), 8 * 4);
/// assert_eq!(half.extent(&count)?.unwrap().length, (8 + 4) * 4);
/// # Ok::<(), memferry_transfer::geometry::GeometryError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plane {
    /// Offset of the first pixel's first byte.
    pub start: u64,
    /// Added after each pixel but the last of a row.
    pub x_step: i64,
    /// Added after the last pixel of a row.
    pub y_step: i64,
}

/// The smallest range that contains all bytes of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of the lowest byte.
    pub first: u64,
    /// Bytes from the lowest to the highest, both included.
    pub length: u64,
}

/// Why a 2-D walk is impossible.
///
/// ```
/// use memferry_transfer::{Count2d, PixelSize, Plane, geometry::GeometryError};
///
/// let count = Count2d { pixel: PixelSize::Bits8, x_count: 10, y_count: 1 };
/// let backwards = Plane { start: 4, x_step: -1, y_step: 0 };
/// assert_eq!(backwards.extent(&count), Err(GeometryError::BeforeFrame { bytes: 5 }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum GeometryError {
    /// The start lies beyond 64 bits.
    #[error("the walk starts at pixel {pixels}, beyond any memory; reduce x_start or y_start")]
    StartOverflows {
        /// Pixels before the first one visited.
        pixels: u64,
    },
    /// A pixel lies before the frame's first byte.
    #[error("the walk reaches {bytes} bytes before the start of the frame; check the signs of the modifiers")]
    BeforeFrame {
        /// Distance from the frame's start to the lowest byte visited.
        bytes: u64,
    },
    /// A pixel lies beyond 64 bits.
    #[error("the walk reaches beyond 64-bit addresses; check counts and modifiers")]
    EndOverflows,
}

impl Plane {
    /// A walk over consecutive pixels from `start`.
    pub const fn contiguous(start: u64, pixel: PixelSize) -> Self {
        Self { start, x_step: pixel.bytes() as i64, y_step: pixel.bytes() as i64 }
    }

    /// Bytes from the first pixel of a row to the first pixel of the next.
    pub const fn row_advance(&self, count: &Count2d) -> i128 {
        let within = if count.x_count == 0 { 0 } else { count.x_count as i128 - 1 };
        within * self.x_step as i128 + self.y_step as i128
    }

    /// Offset of pixel (`x`, `y`) of the walk. It may lie outside the frame unless [`Plane::extent`] was checked.
    pub const fn offset_of(&self, count: &Count2d, x: u32, y: u32) -> i128 {
        self.start as i128 + y as i128 * self.row_advance(count) + x as i128 * self.x_step as i128
    }

    /// The range of bytes the walk touches; `None` if it visits no pixel.
    ///
    /// Offsets are linear in x and in y, so the extremes are among the four corners.
    ///
    /// # Errors
    /// [`GeometryError::BeforeFrame`], [`GeometryError::EndOverflows`].
    pub fn extent(&self, count: &Count2d) -> Result<Option<Extent>, GeometryError> {
        if count.pixels() == 0 {
            return Ok(None);
        }
        let right = count.x_count - 1;
        let bottom = count.y_count - 1;
        let corners = [(0, 0), (right, 0), (0, bottom), (right, bottom)];
        let offsets = corners.map(|(x, y)| self.offset_of(count, x, y));
        let lowest = offsets.into_iter().fold(i128::MAX, i128::min);
        let highest = offsets.into_iter().fold(i128::MIN, i128::max);
        if lowest < 0 {
            let bytes = u64::try_from(-lowest).unwrap_or(u64::MAX);
            return Err(GeometryError::BeforeFrame { bytes });
        }
        let end = highest + i128::from(count.pixel.bytes());
        let first = u64::try_from(lowest).map_err(|_| GeometryError::EndOverflows)?;
        let end = u64::try_from(end).map_err(|_| GeometryError::EndOverflows)?;
        Ok(Some(Extent { first, length: end - first }))
    }
}

/// The shape of `mem_copy_2d` (Wicki 2014, listing 4).
///
/// ```
/// use memferry_transfer::{Copy2d, Count2d, PixelSize, Plane};
///
/// // Rows of 100 bytes, out of a picture with rows of 128 bytes, packed.
/// let count = Count2d { pixel: PixelSize::Bits8, x_count: 100, y_count: 50 };
/// let source = Plane { start: 0, x_step: 1, y_step: 29 };
/// let destination = Plane::contiguous(0, count.pixel);
/// let shape = Copy2d { count, source, destination, transparent: None };
/// assert_eq!(shape.destination.extent(&shape.count)?.unwrap().length, 5000);
/// # Ok::<(), memferry_transfer::geometry::GeometryError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy2d {
    /// Pixel size and counts, common to both sides.
    pub count: Count2d,
    /// How the source is walked.
    pub source: Plane,
    /// How the destination is walked.
    pub destination: Plane,
    /// A source pixel of this colour leaves its destination untouched.
    pub transparent: Option<Color24>,
}

impl Copy2d {
    /// The call of listing 4 with both sides in the thesis's terms.
    ///
    /// # Errors
    /// [`GeometryError::StartOverflows`].
    pub fn from_listing(
        count: Count2d,
        source: &Addr2d,
        destination: &Addr2d,
        transparent: Option<Color24>,
    ) -> Result<Self, GeometryError> {
        let source = source.plane(&count)?;
        let destination = destination.plane(&count)?;
        Ok(Self { count, source, destination, transparent })
    }
}

/// The shape of `mem_fill_2d` (Wicki 2014, listing 4).
///
/// ```
/// use memferry_transfer::{Color24, Count2d, Fill2d, PixelSize, Plane};
///
/// let count = Count2d { pixel: PixelSize::Bits32, x_count: 16, y_count: 16 };
/// let destination = Plane::contiguous(0, count.pixel);
/// let black = Fill2d { count, destination, color: Color24::new(0).unwrap() };
/// assert_eq!(black.count.total_bytes(), 1024);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill2d {
    /// Pixel size and counts.
    pub count: Count2d,
    /// How the destination is walked.
    pub destination: Plane,
    /// The colour written to every visited pixel.
    pub color: Color24,
}

impl Fill2d {
    /// The call of listing 4 with the destination in the thesis's terms.
    ///
    /// # Errors
    /// [`GeometryError::StartOverflows`].
    pub fn from_listing(count: Count2d, destination: &Addr2d, color: Color24) -> Result<Self, GeometryError> {
        Ok(Self { count, destination: destination.plane(&count)?, color })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Count2d = Count2d { pixel: PixelSize::Bits32, x_count: 3, y_count: 2 };

    #[test]
    fn start_follows_listing_3() {
        let addr = Addr2d { x_start: 5, y_start: 7, x_modify: -1, y_modify: 2 };
        let plane = addr.plane(&COUNT).unwrap();
        assert_eq!(plane, Plane { start: (5 + 2 * 7) * 4, x_step: -4, y_step: 8 });
    }

    #[test]
    fn start_beyond_64_bits_is_refused() {
        let count = Count2d { pixel: PixelSize::Bits32, x_count: 1, y_count: u32::MAX };
        let addr = Addr2d { x_start: u32::MAX, y_start: u32::MAX, x_modify: 0, y_modify: 0 };
        assert!(matches!(addr.plane(&count), Err(GeometryError::StartOverflows { .. })));
    }

    #[test]
    fn extent_covers_negative_steps() {
        let plane = Plane { start: 100, x_step: -4, y_step: -12 };
        // Rows start at 100 and 100 - 8 - 12 = 80; the lowest pixel is 80 - 8 = 72.
        assert_eq!(plane.extent(&COUNT), Ok(Some(Extent { first: 72, length: 32 })));
    }

    #[test]
    fn a_walk_before_the_frame_is_refused() {
        let plane = Plane { start: 4, x_step: -4, y_step: 8 };
        assert_eq!(plane.extent(&COUNT), Err(GeometryError::BeforeFrame { bytes: 4 }));
    }

    #[test]
    fn extreme_counts_and_steps_never_wrap() {
        for x_count in [0, 1, u32::MAX] {
            for step in [i64::MIN, -1, 0, 1, i64::MAX] {
                for start in [0, 1, u64::MAX] {
                    let count = Count2d { pixel: PixelSize::Bits32, x_count, y_count: u32::MAX };
                    let plane = Plane { start, x_step: step, y_step: step };
                    if let Ok(Some(extent)) = plane.extent(&count) {
                        assert!(extent.first.checked_add(extent.length).is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn a_walk_without_pixels_touches_nothing() {
        let count = Count2d { pixel: PixelSize::Bits8, x_count: 0, y_count: 9 };
        let plane = Plane { start: u64::MAX, x_step: i64::MIN, y_step: i64::MIN };
        assert_eq!(plane.extent(&count), Ok(None));
    }

    #[test]
    fn colours_ignore_the_top_byte_of_a_pixel() {
        let color = Color24::new(0x12_3456).unwrap();
        assert!(color.matches(PixelSize::Bits32, 0xff12_3456));
        assert!(!color.matches(PixelSize::Bits32, 0xff12_3457));
        assert!(color.matches(PixelSize::Bits16, 0x3456));
        assert!(color.matches(PixelSize::Bits8, 0x56));
        assert_eq!(Color24::new(1 << 24), None);
    }
}
