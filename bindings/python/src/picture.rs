//! Arrays as pictures: rows of pixels with any strides, and the walks that turn or overlay them.
//!
//! ```text
//! shape, strides ─► Picture ─ turned ─► Passes: one walk of the engine, or one for each part of wide pixels
//! ```
//!
//! The engine walks pixels of 1, 2 or 4 bytes. Rows of wider pixels that are contiguous on both sides are rows of narrower ones.
//! Otherwise each pass moves one part of every pixel. Nothing here touches memory.

use memferry::{Color24, Copy2d, Count2d, PixelSize, Plane, Turn};
use memferry_transfer::Rows;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

/// The walks of one transfer, in order. They move disjoint bytes.
pub(crate) type Passes = Vec<Copy2d>;

/// A picture in memory: pixel (0, 0) is at `origin`, counted from the lowest byte. Strides are in bytes, of either sign.
#[derive(Clone, Copy)]
pub(crate) struct Picture {
    origin: u64,
    width: u32,
    height: u32,
    across: i64,
    down: i64,
    pixel_bytes: u64,
}

/// Where a picture lies: bytes from the array's first pixel down to the lowest byte, and bytes from there to the end.
pub(crate) struct Extent {
    pub(crate) below: usize,
    pub(crate) length: usize,
}

impl Picture {
    /// The picture of an array of height, width and maybe channels, whose items have `item` bytes. `None` if it has another shape,
    /// gaps within its pixels, or reaches beyond all memory.
    pub(crate) fn of(shape: &[usize], strides: &[isize], item: usize) -> Option<(Self, Extent)> {
        let pixel = match shape {
            [_, _] => item,
            [_, _, channels] if *channels == 1 || usize::try_from(strides[2]) == Ok(item) => {
                item.checked_mul(*channels)?
            }
            _ => return None,
        };
        let [height, width] = [shape[0], shape[1]];
        if height == 0 || width == 0 || pixel == 0 {
            let empty =
                Self { origin: 0, width: 0, height: 0, across: 0, down: 0, pixel_bytes: pixel.max(1) as u64 };
            let width = u32::try_from(width).ok()?;
            let height = u32::try_from(height).ok()?;
            return Some((Self { width, height, ..empty }, Extent { below: 0, length: 0 }));
        }
        // The stride of a single row or pixel says nothing.
        let down = if height > 1 { strides[0] } else { 0 };
        let across = if width > 1 { strides[1] } else { 0 };
        let reach = |stride: isize, count: usize| stride.checked_mul(isize::try_from(count - 1).ok()?);
        let reaches = [reach(down, height)?, reach(across, width)?];
        let below = reaches.iter().try_fold(0_isize, |sum, reach| sum.checked_sub((*reach).min(0)))?;
        let above = reaches.iter().try_fold(0_isize, |sum, reach| sum.checked_add((*reach).max(0)))?;
        let length = below.checked_add(above)?.checked_add(isize::try_from(pixel).ok()?)?;
        let picture = Self {
            origin: below as u64,
            width: u32::try_from(width).ok()?,
            height: u32::try_from(height).ok()?,
            across: across as i64,
            down: down as i64,
            pixel_bytes: pixel as u64,
        };
        Some((picture, Extent { below: below as usize, length: length as usize }))
    }

    /// Whether it is its bytes from first to last, in order.
    pub(crate) fn is_contiguous(&self) -> bool {
        let row = self.pixel_bytes.checked_mul(self.width.into());
        let is_empty = self.width == 0 || self.height == 0;
        let in_row = self.width == 1 || u64::try_from(self.across) == Ok(self.pixel_bytes);
        is_empty || (in_row && (self.height == 1 || u64::try_from(self.down).ok() == row))
    }

    /// The part of `width` x `height` pixels whose top left is at (`x`, `y`).
    fn part(&self, (x, y): (i64, i64), width: u32, height: u32) -> PyResult<Self> {
        let outside = || {
            let message = format!(
                "a picture of {width} x {height} pixels at ({x}, {y}) leaves the base of {} x {}",
                self.width, self.height
            );
            PyValueError::new_err(message)
        };
        let place = |at: i64, length: u32, available: u32| {
            u32::try_from(at).ok().filter(|at| u64::from(*at) + u64::from(length) <= available.into())
        };
        let x = place(x, width, self.width).ok_or_else(outside)?;
        let y = place(y, height, self.height).ok_or_else(outside)?;
        let offset = i128::from(x) * i128::from(self.across) + i128::from(y) * i128::from(self.down);
        // The empty part at the end of a picture is nowhere.
        let origin = if width == 0 || height == 0 { 0 } else { i128::from(self.origin) + offset };
        Ok(Self { origin: u64::try_from(origin).map_err(|_| outside())?, width, height, ..*self })
    }

    fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }
}

/// A walk by its distances, as the strides of an array.
#[derive(Clone, Copy)]
struct Strides {
    start: i128,
    across: i64,
    down: i64,
}

impl Strides {
    fn plane(&self, count: &Count2d) -> Option<Plane> {
        let within = i128::from(count.x_count.saturating_sub(1)) * i128::from(self.across);
        Some(Plane {
            start: u64::try_from(self.start).ok()?,
            x_step: self.across,
            y_step: i64::try_from(i128::from(self.down) - within).ok()?,
        })
    }
}

fn beyond() -> PyErr {
    PyBufferError::new_err("a picture reaches beyond all memory")
}

/// Copies `source` to `destination`, turned, leaving out source pixels of the colour `key`.
pub(crate) fn turned(
    source: &Picture,
    turn: Turn,
    destination: &Picture,
    key: Option<u32>,
) -> PyResult<Passes> {
    if source.pixel_bytes != destination.pixel_bytes {
        let message = format!(
            "the source has pixels of {} bytes, the destination of {}",
            source.pixel_bytes, destination.pixel_bytes
        );
        return Err(PyValueError::new_err(message));
    }
    let (width, height) = source.size();
    let size = if turn.swaps_axes() { (height, width) } else { (width, height) };
    if destination.size() != size {
        let message = format!(
            "the turned picture is {} x {} pixels, the destination {} x {}",
            size.0, size.1, destination.width, destination.height
        );
        return Err(PyValueError::new_err(message));
    }
    let key = key.map(|key| key_of(key, source.pixel_bytes)).transpose()?;
    let right = i128::from(width.saturating_sub(1)) * i128::from(source.across);
    let bottom = i128::from(height.saturating_sub(1)) * i128::from(source.down);
    let Picture { across, down, .. } = *source;
    let (from, across, down) = match turn {
        Turn::Upright => (0, across, down),
        Turn::FlipHorizontal => (right, -across, down),
        Turn::FlipVertical => (bottom, across, -down),
        Turn::Rotate90 => (bottom, -down, across),
        Turn::Rotate180 => (right + bottom, -across, -down),
        Turn::Rotate270 => (right, down, -across),
        Turn::Transpose => (0, down, across),
    };
    let read = Strides { start: i128::from(source.origin) + from, across, down };
    let written =
        Strides { start: destination.origin.into(), across: destination.across, down: destination.down };
    passes(source.pixel_bytes, size, [read, written], key)
}

/// Copies `top` onto `base` at `at`, without pixels of the colour `key`.
pub(crate) fn overlaid(top: &Picture, base: &Picture, at: (i64, i64), key: Option<u32>) -> PyResult<Passes> {
    turned(top, Turn::Upright, &base.part(at, top.width, top.height)?, key)
}

/// A colour that a pixel of so many bytes can have.
fn key_of(key: u32, pixel_bytes: u64) -> PyResult<Color24> {
    if PixelSize::from_bytes(pixel_bytes).is_none() {
        let message = format!("a key needs pixels of 1, 2 or 4 bytes; these have {pixel_bytes}");
        return Err(PyValueError::new_err(message));
    }
    let bits = (8 * pixel_bytes).min(24);
    let color = Color24::new(key).filter(|_| key >> bits == 0);
    color.ok_or_else(|| {
        PyValueError::new_err(format!(
            "the key {key:#x} has more than the {bits} bits that are compared of pixels of {pixel_bytes} bytes"
        ))
    })
}

/// Refuses passes of which one would overwrite what a later one reads. The engine compares the two sides of a pass, not the passes.
/// The walks begin at these addresses.
pub(crate) fn refuse_overwritten(passes: &Passes, source: usize, destination: usize) -> PyResult<()> {
    let reads = |pass: &Copy2d| Rows::new(&pass.count, &pass.source, source as u64);
    let is_overwritten = |(number, pass): (usize, &Copy2d)| {
        let written = Rows::new(&pass.count, &pass.destination, destination as u64);
        let mut later = passes[number + 1..].iter().filter_map(reads);
        written.is_some_and(|written| later.any(|read| written.share_bytes(&read)))
    };
    if passes.iter().enumerate().any(is_overwritten) {
        let message = "the pictures share memory, and parts of pixels would be overwritten before they are read; copy one of \
                       them first";
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

fn passes(
    pixel_bytes: u64,
    (width, height): (u32, u32),
    walks: [Strides; 2],
    transparent: Option<Color24>,
) -> PyResult<Passes> {
    if width == 0 || height == 0 {
        return Ok(Vec::new());
    }
    let unit = [4, 2, 1].into_iter().find(|unit| pixel_bytes.is_multiple_of(*unit)).unwrap_or(1);
    let parts = pixel_bytes / unit;
    let pixel = PixelSize::from_bytes(unit).ok_or_else(beyond)?;
    let shape = |count: Count2d, [source, destination]: [Strides; 2]| {
        let source = source.plane(&count).ok_or_else(beyond)?;
        let destination = destination.plane(&count).ok_or_else(beyond)?;
        Ok(Copy2d { count, source, destination, transparent })
    };
    if parts == 1 {
        return Ok(vec![shape(Count2d { pixel, x_count: width, y_count: height }, walks)?]);
    }
    let is_row = |count: u32, stride: fn(&Strides) -> i64| {
        count == 1 || walks.iter().all(|walk| u64::try_from(stride(walk)) == Ok(pixel_bytes))
    };
    let in_rows = is_row(width, |walk| walk.across);
    if in_rows || is_row(height, |walk| walk.down) {
        let (columns, rows) = if in_rows { (width, height) } else { (height, width) };
        let x_count = u64::from(columns).checked_mul(parts).and_then(|count| u32::try_from(count).ok());
        let count = Count2d { pixel, x_count: x_count.ok_or_else(beyond)?, y_count: rows };
        let narrow = walks.map(|walk| Strides {
            across: unit as i64,
            down: if in_rows { walk.down } else { walk.across },
            ..walk
        });
        return Ok(vec![shape(count, narrow)?]);
    }
    if parts > MAX_PASSES {
        let message = format!(
            "a picture with pixels of {pixel_bytes} bytes is turned in at most {MAX_PASSES} passes of 4, 2 or 1 bytes of each"
        );
        return Err(PyValueError::new_err(message));
    }
    let count = Count2d { pixel, x_count: width, y_count: height };
    let pass = |part: u64| {
        let from = |walk: Strides| Strides { start: walk.start + i128::from(part * unit), ..walk };
        shape(count, walks.map(from))
    };
    (0..parts).map(pass).collect()
}

/// Most walks of one transfer.
const MAX_PASSES: u64 = 16;
