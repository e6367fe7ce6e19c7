//! Transposes squares of 16 bytes in registers and collects them in a stage until whole lines can be written.
//!
//! ```text
//! source  256 bytes of pixels deep   stage: a row for each column   destination
//! ┌─ 64 bytes ─┐                      ┌─ 256 bytes ─┐
//! │ 16-byte    │ ─── zip, zip, ... ──► │ column 0    │ ─ four lines ─► row 0
//! │ squares    │                      │ column 1    │ ─ four lines ─► row 1
//! ```
//!
//! Writing single lines of distant rows reaches half the speed of a few adjacent lines, so each destination row gets four at
//! once. The next tile is prefetched while this one is transposed. Zipping row `i` with row `i + N / 2` rotates the address
//! bits of a square of N x N pixels by one place, so log2 N rounds exchange row and column. The stage is local to a call.

use std::mem::MaybeUninit;
use std::ptr;

use super::lanes::{LANE, LINE, Vector};
use super::{Band, Rows, Stores};

/// Bytes of a destination row per tile: four lines.
pub(crate) const DEPTH_BYTES: usize = 256;
/// Bytes of a source row per tile: one line.
pub(crate) const WIDTH_BYTES: usize = LINE;
/// Bytes between rows of the stage: a line more than a row, so that rows do not share few cache sets.
const STAGE_PITCH: usize = DEPTH_BYTES + LINE;

/// A transposed tile: [`DEPTH_BYTES`] per column.
#[repr(C, align(64))]
struct Stage(MaybeUninit<[u8; STAGE_PITCH * WIDTH_BYTES]>);

/// A part of the source, with at most as many rows as a square.
#[derive(Clone, Copy)]
struct Slab {
    from: Rows,
    rows: usize,
    bytes: usize,
    /// Source rows to prefetch meanwhile.
    ahead: Rows,
}

/// Vectors that hold a pixel of each row in each column of their lanes: as many as a lane has pixels. The macro unrolls all
/// loops, because the compiler otherwise keeps large squares in memory.
pub(super) trait Square<V: Vector>: Copy {
    /// Number of vectors: 16, 8 or 4.
    const ROWS: usize;

    fn of(row: impl Fn(usize) -> V) -> Self;

    /// Zips every row of the upper half with its counterpart in the lower half.
    ///
    /// # Safety
    /// The CPU has the level.
    unsafe fn zipped<const E: usize>(self) -> Self;

    /// Calls `act` with every row.
    fn each(self, act: impl FnMut(usize, V));
}

macro_rules! square {
    ($rows:literal: $($row:literal)*, $($upper:literal)*) => {
        impl<V: Vector> Square<V> for [V; $rows] {
            const ROWS: usize = $rows;

            #[inline(always)]
            fn of(row: impl Fn(usize) -> V) -> Self {
                [$(row($row)),*]
            }

            #[inline(always)]
            unsafe fn zipped<const E: usize>(self) -> Self {
                // SAFETY: the caller's promise.
                let pairs = unsafe { [$(self[$upper].zip::<E>(self[$upper + $rows / 2])),*] };
                [$(if $row % 2 == 0 { pairs[$row / 2].0 } else { pairs[$row / 2].1 }),*]
            }

            #[inline(always)]
            fn each(self, mut act: impl FnMut(usize, V)) {
                $(act($row, self[$row]);)*
            }
        }
    };
}

square!(16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15, 0 1 2 3 4 5 6 7);
square!(8: 0 1 2 3 4 5 6 7, 0 1 2 3);
square!(4: 0 1 2 3, 0 1);

/// Exchanges rows and columns in every lane.
///
/// # Safety
/// The CPU has the level.
#[inline(always)]
unsafe fn turned<V: Vector, S: Square<V>, const E: usize>(square: S) -> S {
    // SAFETY: the caller's promise.
    unsafe {
        let square = square.zipped::<E>().zipped::<E>();
        match S::ROWS {
            4 => square,
            8 => square.zipped::<E>(),
            _ => square.zipped::<E>().zipped::<E>(),
        }
    }
}

/// # Safety
/// As for [`super::transpose`]; `S::ROWS` times `E` is [`LANE`].
#[inline(always)]
pub(super) unsafe fn transpose<V: Vector, S: Square<V>, const E: usize>(band: Band, stores: Stores) {
    let mut stage = Stage(MaybeUninit::uninit());
    let stage = stage.0.as_mut_ptr().cast::<u8>();
    let width = WIDTH_BYTES / E;
    let mut x = 0;
    while x < band.columns {
        let columns = width.min(band.columns - x);
        let from = Rows { first: band.from.first.wrapping_add(x * E), ..band.from };
        let next = if band.columns - x > width { from.first.wrapping_add(WIDTH_BYTES) } else { band.after };
        let next = Rows { first: next, ..from };
        let mut y = 0;
        while y < band.rows {
            let ahead = Rows { first: next.at(y), ..next };
            let rows = S::ROWS.min(band.rows - y);
            let slab = Slab { from: Rows { first: from.at(y), ..from }, rows, bytes: columns * E, ahead };
            // SAFETY: the caller's promise: the slab is part of the band. The stage has a row for each of its columns, and
            // `y + S::ROWS` pixels fit one, because it holds a whole number of squares.
            unsafe {
                if rows == S::ROWS && columns == width {
                    gather::<V, S, E>(Slab { rows: S::ROWS, bytes: WIDTH_BYTES, ..slab }, stage.add(y * E));
                } else {
                    gather::<V, S, E>(slab, stage.add(y * E));
                }
            }
            y += S::ROWS;
        }
        let to = Rows { first: band.to.at(x), ..band.to };
        // SAFETY: the caller's promise; `band.rows` pixels of `columns` rows of the stage were just written.
        unsafe { flush::<V>(stage, to, columns, band.rows * E, stores) };
        x += columns;
    }
}

/// Transposes a slab into the stage; `stage` points at the row of its first column.
///
/// # Safety
/// The slab is readable; the stage has [`DEPTH_BYTES`] for each of its columns, of which [`LANE`] bytes remain.
#[inline(always)]
unsafe fn gather<V: Vector, S: Square<V>, const E: usize>(slab: Slab, stage: *mut u8) {
    let mut x = 0;
    // SAFETY: the caller's promise: rows and bytes are those of the slab. A partial vector is assembled
    // in local memory, and columns beyond the slab are not stored.
    unsafe {
        while x + V::BYTES <= slab.bytes {
            if x == 0 {
                // For rows that begin within a line, the rest of it was loaded already.
                (0..S::ROWS).for_each(|row| V::prefetch(slab.ahead.at(row).wrapping_add(LINE - 1)));
            }
            let square = S::of(|row| match row < slab.rows {
                true => V::load(slab.from.at(row).add(x)),
                false => V::zeroed(),
            });
            turned::<V, S, E>(square).each(|column, vector| {
                vector.store_lanes(stage.add((x / E + column) * STAGE_PITCH), S::ROWS * STAGE_PITCH);
            });
            x += V::BYTES;
        }
        if x < slab.bytes {
            gather_rest::<V, S, E>(slab, x, stage);
        }
    }
}

/// Transposes the last columns of a slab, from byte `x` on, fewer than a vector holds.
///
/// # Safety
/// As for [`gather`].
#[inline(always)]
unsafe fn gather_rest<V: Vector, S: Square<V>, const E: usize>(slab: Slab, x: usize, stage: *mut u8) {
    let rest = slab.bytes - x;
    // SAFETY: the caller's promise; `rest` is less than a line.
    unsafe {
        let square = S::of(|row| {
            let mut line = [0; LINE];
            if row < slab.rows {
                ptr::copy_nonoverlapping(slab.from.at(row).add(x), line.as_mut_ptr(), rest);
            }
            V::load(line.as_ptr())
        });
        turned::<V, S, E>(square).each(|column, vector| {
            let bytes = vector.spilled();
            for (lane, bytes) in bytes.0.chunks_exact(LANE).enumerate() {
                let column = lane * S::ROWS + column;
                if column * E < rest {
                    let at = stage.add((x / E + column) * STAGE_PITCH);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), at, LANE);
                }
            }
        });
    }
}

/// Writes the first `bytes` of each of the stage's rows to a row of the destination.
///
/// # Safety
/// Those bytes of the stage are initialised; the destination is writable. Streamed rows begin at a line.
#[inline(always)]
unsafe fn flush<V: Vector>(stage: *const u8, to: Rows, columns: usize, bytes: usize, stores: Stores) {
    for column in 0..columns {
        let from = stage.wrapping_add(column * STAGE_PITCH);
        let to = to.at(column);
        // SAFETY: the caller's promise: every offset is below `bytes`.
        unsafe {
            if bytes == DEPTH_BYTES {
                for at in (0..DEPTH_BYTES).step_by(V::BYTES) {
                    let vector = V::load(from.add(at));
                    match stores {
                        Stores::Streaming => vector.stream(to.add(at)),
                        Stores::Cached => vector.store(to.add(at)),
                    }
                }
            } else {
                ptr::copy_nonoverlapping(from, to, bytes);
            }
        }
    }
}
