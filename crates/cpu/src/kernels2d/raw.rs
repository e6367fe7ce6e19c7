//! The 2-D kernels over raw pointers: transposing, reversing and colour-keyed copies, at every level.
//!
//! ```text
//! transpose     ─► band of rows ─► tile: 16-byte squares turned in registers ─► stage ─► whole lines of the destination
//! copy, reverse ─► vectors, reversed in a register if needed ─────────────────────► whole lines of the destination
//! copy_keyed    ─► vectors: all key ─► nothing   none ─► stored whole   mixed ─► masked or single stores
//! ```
//!
//! The algorithms are generic over `lanes::Vector`; each level defines one. Each source pixel is loaded once, then
//! tested and stored from the register, because another process may write it meanwhile. A transparent destination pixel is
//! never written, not even with its own value. `kernels2d` checks ranges.

#![expect(
    unsafe_code,
    reason = "vector loads and stores on memory that other processes share need raw pointers"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod keyed;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod strips;
#[cfg(test)]
mod tests;
mod tiles;

use memferry_transfer::{Color24, PixelSize};

use crate::level::Level;
pub(crate) use tiles::{DEPTH_BYTES, WIDTH_BYTES};

/// How whole lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stores {
    Cached,
    /// Past the caches, for lines written whole.
    Streaming,
}

/// Rows of contiguous pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// First pixel of the first row.
    pub(super) first: *mut u8,
    /// Bytes from one row to the next.
    pub(super) pitch: isize,
}

impl Rows {
    /// Address of row `index`, which may be out of range.
    #[inline(always)]
    fn at(self, index: usize) -> *mut u8 {
        self.first.wrapping_offset((index as isize).wrapping_mul(self.pitch))
    }
}

/// Contiguous pixels on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    /// Lowest address of the source.
    pub(super) from: *const u8,
    /// Lowest address of the destination.
    pub(super) to: *mut u8,
    pub(super) count: usize,
}

/// A rectangle to transpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pub(super) from: Rows,
    /// The destination's rows, one per column of the source.
    pub(super) to: Rows,
    /// Rows of the source, at most [`DEPTH_BYTES`] of pixels.
    pub(super) rows: usize,
    /// Columns of the source.
    pub(super) columns: usize,
    /// Where the source continues: prefetched only.
    pub(super) after: *mut u8,
}

/// Calls the level's function for the pixel size.
macro_rules! at_level {
    ($level:expr, $function:ident, $size:expr, $($argument:expr),+) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => at_level!(@size avx512::$function, $size, $($argument),+),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => at_level!(@size avx2::$function, $size, $($argument),+),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => at_level!(@size neon::$function, $size, $($argument),+),
            _ => at_level!(@size portable::$function, $size, $($argument),+),
        }
    };
    (@size $function:path, $size:expr, $($argument:expr),+) => {{
        use $function as function;
        match $size {
            PixelSize::Bits8 => function::<1>($($argument),+),
            PixelSize::Bits16 => function::<2>($($argument),+),
            PixelSize::Bits32 => function::<4>($($argument),+),
        }
    }};
}

/// Writes the source's columns as the destination's rows. Streaming requires every destination row to begin at a line if
/// the band is [`DEPTH_BYTES`] deep; other bands are written through the caches.
///
/// # Safety
/// The CPU supports the level. The source is readable, the destination writable, and they are disjoint.
pub(super) unsafe fn transpose(level: Level, size: PixelSize, band: Band, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, transpose, size, band, stores) }
}

/// Copies the strip's pixels in order.
///
/// # Safety
/// The CPU supports the level. The source is readable, the destination writable, and they are disjoint.
pub(super) unsafe fn copy(level: Level, size: PixelSize, strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, copy, size, strip, stores) }
}

/// Writes the strip's pixels in reverse order.
///
/// # Safety
/// The CPU supports the level. The source is readable, the destination writable, and they are disjoint.
pub(super) unsafe fn reverse(level: Level, size: PixelSize, strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, reverse, size, strip, stores) }
}

/// Copies the strip's pixels, skipping those of colour `key`.
///
/// # Safety
/// The CPU supports the level. The source is readable, the destination writable, and they are disjoint.
pub(super) unsafe fn copy_keyed(level: Level, size: PixelSize, strip: Strip, key: Color24, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, copy_keyed, size, strip, key, stores) }
}
