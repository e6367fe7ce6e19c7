//! Vectors of one lane: the Advanced SIMD instructions of 64-bit Arm.
//!
//! ```text
//! transpose, copy, reverse, copy_keyed ─► the generic kernels over Lane
//! ```
//!
//! Does not stream or prefetch: stable Rust has no intrinsics for it, and no such machine was measured.

use std::arch::aarch64::*;

use super::lanes::{Vector, compared};
use super::{Band, Stores, Strip, keyed, strips, tiles};
use memferry_transfer::Color24;

/// # Safety
/// As for [`super::transpose`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn transpose<const E: usize>(band: Band, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            1 => tiles::transpose::<Lane, [Lane; 16], 1>(band, stores),
            2 => tiles::transpose::<Lane, [Lane; 8], 2>(band, stores),
            _ => tiles::transpose::<Lane, [Lane; 4], 4>(band, stores),
        }
    }
}

/// # Safety
/// As for [`super::copy`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn copy<const E: usize>(strip: Strip, stores: Stores) {
    let bytes = Strip { count: strip.count * E, ..strip };
    // SAFETY: the caller's promise.
    unsafe { strips::copy::<Lane>(bytes, stores) }
}

/// # Safety
/// As for [`super::reverse`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn reverse<const E: usize>(strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { strips::reverse::<Lane, E>(strip, stores) }
}

/// # Safety
/// As for [`super::copy_keyed`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn copy_keyed<const E: usize>(strip: Strip, key: Color24, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { keyed::copy_keyed::<Lane, E>(strip, key, stores) }
}

#[derive(Clone, Copy)]
struct Lane(uint8x16_t);

impl Vector for Lane {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn zeroed() -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_u8(to, self.0) }
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
        // SAFETY: the caller's promise.
        unsafe {
            match E {
                1 => (Self(vzip1q_u8(self.0, other.0)), Self(vzip2q_u8(self.0, other.0))),
                2 => {
                    let one = vreinterpretq_u16_u8(self.0);
                    let other = vreinterpretq_u16_u8(other.0);
                    let low = vzip1q_u16(one, other);
                    let high = vzip2q_u16(one, other);
                    (Self(vreinterpretq_u8_u16(low)), Self(vreinterpretq_u8_u16(high)))
                }
                _ => {
                    let one = vreinterpretq_u32_u8(self.0);
                    let other = vreinterpretq_u32_u8(other.0);
                    let low = vzip1q_u32(one, other);
                    let high = vzip2q_u32(one, other);
                    (Self(vreinterpretq_u8_u32(low)), Self(vreinterpretq_u8_u32(high)))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn reversed<const E: usize>(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = match E {
                1 => vrev64q_u8(self.0),
                2 => vreinterpretq_u8_u16(vrev64q_u16(vreinterpretq_u16_u8(self.0))),
                _ => vreinterpretq_u8_u32(vrev64q_u32(vreinterpretq_u32_u8(self.0))),
            };
            Self(vextq_u8::<8>(halves, halves))
        }
    }

    #[inline(always)]
    unsafe fn opaque<const E: usize>(self, key: Color24) -> u64 {
        let value = key.value() & compared::<E>();
        // SAFETY: the caller's promise.
        unsafe {
            // All ones or zeros per byte, then four bits per byte.
            let keyed = match E {
                1 => vceqq_u8(self.0, vdupq_n_u8(value as u8)),
                2 => {
                    let keyed = vceqq_u16(vreinterpretq_u16_u8(self.0), vdupq_n_u16(value as u16));
                    vreinterpretq_u8_u16(keyed)
                }
                _ => {
                    let seen = vandq_u32(vreinterpretq_u32_u8(self.0), vdupq_n_u32(compared::<E>()));
                    vreinterpretq_u8_u32(vceqq_u32(seen, vdupq_n_u32(value)))
                }
            };
            let nibbles = vshrn_n_u16::<4>(vreinterpretq_u16_u8(keyed));
            let nibbles = !vget_lane_u64::<0>(vreinterpret_u64_u8(nibbles));
            (0..Self::BYTES / E).map(|pixel| (nibbles >> (4 * E * pixel) & 1) << pixel).sum()
        }
    }

    #[inline(always)]
    fn prefetch(_at: *const u8) {}

    #[inline(always)]
    fn prefetch_once(_at: *const u8) {}
}
