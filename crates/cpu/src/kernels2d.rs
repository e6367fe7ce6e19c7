//! Checks ranges for the 2-D kernels: every byte of a rectangle or strip lies inside its region.
//!
//! ```text
//! (Region, first, steps, counts) ─► the four corners inside? ─► raw at this process's level
//!                                └► OutsideRegion: nothing touched
//! ```
//!
//! Checked once per call, as in `kernels`, whose invariants M1 to M4 apply. `plane` chooses the rectangles and keeps source and
//! destination disjoint; overlap would give wrong pixels, but nothing worse.

#![expect(unsafe_code, reason = "moving bytes of memory that other processes share needs raw pointers")]

mod raw;

use std::borrow::Borrow;

use memferry_shm::mapping::Mapping;
use memferry_transfer::{Color24, PixelSize, Region};

use super::kernels::{self, OutsideRegion, contiguous, writable};
use super::level::Cpu;
use super::manner::Manner;
use raw::{Band, Rows, Strip};
pub(super) use raw::{DEPTH_BYTES, Stores, WIDTH_BYTES};

/// Rows of contiguous pixels.
#[derive(Debug)]
pub(super) struct Rectangle<'a, M> {
    pub(super) region: &'a Region<M>,
    /// Offset of the first row's first pixel.
    pub(super) first: i128,
    /// Bytes from one row to the next.
    pub(super) pitch: i128,
}

impl<M: Borrow<Mapping>> Rectangle<'_, M> {
    /// Address of `count` rows of `bytes` bytes, all checked to lie in the region. Offsets are linear, so checking the first
    /// and last row suffices.
    fn checked(&self, count: u64, bytes: u64) -> Result<Rows, OutsideRegion> {
        let row = |first: i128| {
            let first = u64::try_from(first).map_err(|_| OutsideRegion)?;
            contiguous(self.region, first, bytes)
        };
        let steps = i128::from(count.saturating_sub(1));
        let last = steps.checked_mul(self.pitch).and_then(|bytes| bytes.checked_add(self.first));
        row(last.ok_or(OutsideRegion)?)?;
        // A single row needs no pitch, so any value is allowed.
        let pitch = if steps == 0 { 0 } else { self.pitch };
        Ok(Rows { first: row(self.first)?, pitch: isize::try_from(pitch).map_err(|_| OutsideRegion)? })
    }
}

/// Writes the source's columns as rows of the destination. Prefetches the source that follows, `after` bytes
/// after the first pixel. The caller must call [`settle`] afterwards.
pub(super) fn transpose<M: Borrow<Mapping>>(
    size: PixelSize,
    source: &Rectangle<'_, M>,
    destination: &Rectangle<'_, M>,
    (columns, rows): (u64, u64),
    (after, stores): (i128, Stores),
) -> Result<(), OutsideRegion> {
    let bytes = |pixels: u64| pixels.checked_mul(size.bytes()).ok_or(OutsideRegion);
    if bytes(rows)? > DEPTH_BYTES as u64 {
        return Err(OutsideRegion);
    }
    writable(destination.region)?;
    let from = source.checked(rows, bytes(columns)?)?;
    let to = destination.checked(columns, bytes(rows)?)?;
    let in_lines = to.first.addr() % 64 == 0 && to.pitch % 64 == 0;
    let stores = if in_lines { stores } else { Stores::Cached };
    let after = from.first.wrapping_offset(after as isize);
    let band = Band { after, from, to, rows: rows as usize, columns: columns as usize };
    // SAFETY: M1, M2, M3: both rectangles were just checked to lie in their regions, the destination's mapping is writable;
    // the level is one this CPU has. Streamed rows begin at lines.
    unsafe { raw::transpose(Cpu::of_this_process().level, size, band, stores) };
    Ok(())
}

/// Checks `count` contiguous pixels at `from` in the source and at `to` in the destination.
fn strip<M: Borrow<Mapping>>(
    size: PixelSize,
    (source, from): (&Region<M>, i128),
    (destination, to): (&Region<M>, i128),
    count: u64,
) -> Result<Strip, OutsideRegion> {
    let bytes = count.checked_mul(size.bytes()).ok_or(OutsideRegion)?;
    let offset = |offset: i128| u64::try_from(offset).map_err(|_| OutsideRegion);
    let from = contiguous(source, offset(from)?, bytes)?;
    let to = contiguous(writable(destination)?, offset(to)?, bytes)?;
    Ok(Strip { from, to, count: count as usize })
}

/// Copies `count` pixels. The caller must call [`settle`] afterwards.
pub(super) fn copy<M: Borrow<Mapping>>(
    size: PixelSize,
    source: (&Region<M>, i128),
    destination: (&Region<M>, i128),
    count: u64,
    stores: Stores,
) -> Result<(), OutsideRegion> {
    let strip = strip(size, source, destination, count)?;
    // SAFETY: M1, M2, M3: both ranges were just checked to lie in their regions, the destination's mapping is writable; the
    // level is one this CPU has.
    unsafe { raw::copy(Cpu::of_this_process().level, size, strip, stores) };
    Ok(())
}

/// Writes `count` pixels in reverse order; both offsets are the lowest of their side. The caller must call [`settle`]
/// afterwards.
pub(super) fn reverse<M: Borrow<Mapping>>(
    size: PixelSize,
    source: (&Region<M>, i128),
    destination: (&Region<M>, i128),
    count: u64,
    stores: Stores,
) -> Result<(), OutsideRegion> {
    let strip = strip(size, source, destination, count)?;
    // SAFETY: M1, M2, M3: as in `copy`.
    unsafe { raw::reverse(Cpu::of_this_process().level, size, strip, stores) };
    Ok(())
}

/// Copies `count` pixels, skipping those of colour `key`. The caller must call [`settle`] afterwards.
pub(super) fn copy_keyed<M: Borrow<Mapping>>(
    size: PixelSize,
    source: (&Region<M>, i128),
    destination: (&Region<M>, i128),
    count: u64,
    (key, stores): (Color24, Stores),
) -> Result<(), OutsideRegion> {
    let strip = strip(size, source, destination, count)?;
    // SAFETY: M1, M2, M3: as in `copy`.
    unsafe { raw::copy_keyed(Cpu::of_this_process().level, size, strip, key, stores) };
    Ok(())
}

/// Orders streamed stores before later ones; call it before reporting completion.
pub(super) fn settle(stores: Stores) {
    if stores == Stores::Streaming {
        kernels::settle(Manner::Streaming);
    }
}
