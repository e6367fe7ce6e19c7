//! The 2-D kernels over raw pointers: transposing, reversing and colour-keyed copies, at every level.
//!
//! ```text
//! transpose     ─► band of rows ─► tile: 16-byte squares turned in registers ─► stage ─► whole lines of the destination
//! copy, reverse ─► vectors, as they are or turned round in a register ────────────► whole lines of the destination
//! copy_keyed    ─► vectors: all key ─► nothing   none ─► stored whole   mixed ─► masked or single stores
//! ```
//!
//! The algorithms are written once over `lanes::Vector`; a level says what a vector is. Each source pixel is loaded once, and
//! what was loaded is judged and stored, for another process may write it meanwhile. A destination pixel that must stay is
//! never written, not even with what it held. Nothing here checks ranges: `kernels2d` does.

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
    /// Past them, where a whole line is written at once.
    Streaming,
}

/// Rows of pixels that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// The first row's first pixel.
    pub(super) first: *mut u8,
    /// Bytes from one row to the next.
    pub(super) pitch: isize,
}

impl Rows {
    /// Row `index`, which may lie outside: it is only an address.
    #[inline(always)]
    fn at(self, index: usize) -> *mut u8 {
        self.first.wrapping_offset((index as isize).wrapping_mul(self.pitch))
    }
}

/// Pixels side by side on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    /// The lowest address of the source.
    pub(super) from: *const u8,
    /// The lowest address of the destination.
    pub(super) to: *mut u8,
    pub(super) count: usize,
}

/// A rectangle to transpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pub(super) from: Rows,
    /// The destination's rows: as many as the source has columns.
    pub(super) to: Rows,
    /// Rows of the source, at most [`DEPTH_BYTES`] of pixels.
    pub(super) rows: usize,
    /// Columns of the source.
    pub(super) columns: usize,
    /// Where the source goes on after it: only an address, to be prefetched.
    pub(super) after: *mut u8,
}

/// Calls a function of the level's module for the pixel size.
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

/// Writes the source's columns as the destination's rows. Streaming stores need every destination row to begin at a line when
/// the band is [`DEPTH_BYTES`] deep; other bands are written through the caches.
///
/// # Safety
/// The CPU has the level. Every pixel of the source can be read, every one of the destination written, and they are apart.
pub(super) unsafe fn transpose(level: Level, size: PixelSize, band: Band, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, transpose, size, band, stores) }
}

/// Copies the strip's pixels.
///
/// # Safety
/// The CPU has the level. The source can be read, the destination written, and they are apart.
pub(super) unsafe fn copy(level: Level, size: PixelSize, strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, copy, size, strip, stores) }
}

/// Writes the strip's pixels in opposite order.
///
/// # Safety
/// The CPU has the level. The source can be read, the destination written, and they are apart.
pub(super) unsafe fn reverse(level: Level, size: PixelSize, strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, reverse, size, strip, stores) }
}

/// Copies the strip's pixels but those of the colour `key`.
///
/// # Safety
/// The CPU has the level. The source can be read, the destination written, and they are apart.
pub(super) unsafe fn copy_keyed(level: Level, size: PixelSize, strip: Strip, key: Color24, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { at_level!(level, copy_keyed, size, strip, key, stores) }
}
