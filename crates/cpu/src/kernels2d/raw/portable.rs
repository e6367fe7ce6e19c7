//! Vectors of one lane in plain Rust, compiled for the target's baseline.
//!
//! ```text
//! transpose, copy, reverse, copy_keyed ─► the generic kernels over Plain
//! ```
//!
//! Does not stream.

use super::lanes::{LANE, Vector};
use super::{Band, Stores, Strip, keyed, strips, tiles};
use memferry_transfer::Color24;

/// # Safety
/// As for [`super::transpose`].
pub(super) unsafe fn transpose<const E: usize>(band: Band, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            1 => tiles::transpose::<Plain, [Plain; 16], 1>(band, stores),
            2 => tiles::transpose::<Plain, [Plain; 8], 2>(band, stores),
            _ => tiles::transpose::<Plain, [Plain; 4], 4>(band, stores),
        }
    }
}

/// # Safety
/// As for [`super::copy`].
pub(super) unsafe fn copy<const E: usize>(strip: Strip, stores: Stores) {
    let bytes = Strip { count: strip.count * E, ..strip };
    // SAFETY: the caller's promise.
    unsafe { strips::copy::<Plain>(bytes, stores) }
}

/// # Safety
/// As for [`super::reverse`].
pub(super) unsafe fn reverse<const E: usize>(strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { strips::reverse::<Plain, E>(strip, stores) }
}

/// # Safety
/// As for [`super::copy_keyed`].
pub(super) unsafe fn copy_keyed<const E: usize>(strip: Strip, key: Color24, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { keyed::copy_keyed::<Plain, E>(strip, key, stores) }
}

#[derive(Clone, Copy)]
struct Plain([u8; LANE]);

impl Vector for Plain {
    const BYTES: usize = LANE;

    #[inline(always)]
    unsafe fn zeroed() -> Self {
        Self([0; LANE])
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.cast::<[u8; LANE]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u8; LANE]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn store_lanes(self, to: *mut u8, _apart: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn zip<const E: usize>(self, other: Self) -> (Self, Self) {
        let half = |start: usize| {
            let mut bytes = [0; LANE];
            for (index, pair) in bytes.chunks_exact_mut(2 * E).enumerate() {
                let from = start + index * E;
                pair[..E].copy_from_slice(&self.0[from..from + E]);
                pair[E..].copy_from_slice(&other.0[from..from + E]);
            }
            Self(bytes)
        };
        (half(0), half(LANE / 2))
    }

    #[inline(always)]
    unsafe fn reversed<const E: usize>(self) -> Self {
        let mut bytes = [0; LANE];
        for (pixel, from) in bytes.chunks_exact_mut(E).zip(self.0.chunks_exact(E).rev()) {
            pixel.copy_from_slice(from);
        }
        Self(bytes)
    }

    #[inline(always)]
    fn prefetch(_at: *const u8) {}

    #[inline(always)]
    fn prefetch_once(_at: *const u8) {}
}
