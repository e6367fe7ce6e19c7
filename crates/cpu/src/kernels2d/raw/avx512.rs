//! Vectors of four lanes: AVX-512 F, BW, DQ and VL.
//!
//! ```text
//! transpose, copy, reverse, copy_keyed ─► the generic kernels over Wide, with these instructions enabled
//! ```
//!
//! Masked stores touch no byte whose bit is clear.

use std::arch::x86_64::*;

use memferry_transfer::Color24;

use super::lanes::{Vector, compared};
use super::{Band, Stores, Strip, keyed, strips, tiles};

/// # Safety
/// As for [`super::transpose`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
pub(super) unsafe fn transpose<const E: usize>(band: Band, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            1 => tiles::transpose::<Wide, [Wide; 16], 1>(band, stores),
            2 => tiles::transpose::<Wide, [Wide; 8], 2>(band, stores),
            _ => tiles::transpose::<Wide, [Wide; 4], 4>(band, stores),
        }
    }
}

/// # Safety
/// As for [`super::copy`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
pub(super) unsafe fn copy<const E: usize>(strip: Strip, stores: Stores) {
    let bytes = Strip { count: strip.count * E, ..strip };
    // SAFETY: the caller's promise.
    unsafe { strips::copy::<Wide>(bytes, stores) }
}

/// # Safety
/// As for [`super::reverse`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
pub(super) unsafe fn reverse<const E: usize>(strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { strips::reverse::<Wide, E>(strip, stores) }
}

/// # Safety
/// As for [`super::copy_keyed`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
pub(super) unsafe fn copy_keyed<const E: usize>(strip: Strip, key: Color24, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { keyed::copy_keyed::<Wide, E>(strip, key, stores) }
}

#[derive(Clone, Copy)]
struct Wide(__m512i);

impl Vector for Wide {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn zeroed() -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn store_lanes(self, to: *mut u8, apart: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm512_castsi512_si128(self.0));
            _mm_storeu_si128(to.add(apart).cast(), _mm512_extracti32x4_epi32::<1>(self.0));
            _mm_storeu_si128(to.add(2 * apart).cast(), _mm512_extracti32x4_epi32::<2>(self.0));
            _mm_storeu_si128(to.add(3 * apart).cast(), _mm512_extracti32x4_epi32::<3>(self.0));
        }
    }

    #[inline(always)]
    unsafe fn zip<const E: usize>(self, other: Self) -> (Self, Self) {
        let one = self.0;
        let other = other.0;
        // SAFETY: the caller's promise.
        let (low, high) = unsafe {
            match E {
                1 => (_mm512_unpacklo_epi8(one, other), _mm512_unpackhi_epi8(one, other)),
                2 => (_mm512_unpacklo_epi16(one, other), _mm512_unpackhi_epi16(one, other)),
                _ => (_mm512_unpacklo_epi32(one, other), _mm512_unpackhi_epi32(one, other)),
            }
        };
        (Self(low), Self(high))
    }

    #[inline(always)]
    unsafe fn reversed<const E: usize>(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let order = _mm512_broadcast_i32x4(super::avx2::order::<E>());
            let lanes = _mm512_shuffle_epi8(self.0, order);
            Self(_mm512_shuffle_i64x2::<0b00_01_10_11>(lanes, lanes))
        }
    }

    #[inline(always)]
    unsafe fn opaque<const E: usize>(self, key: Color24) -> u64 {
        let value = (key.value() & compared::<E>()) as i32;
        // SAFETY: the caller's promise.
        unsafe {
            match E {
                1 => _mm512_cmpneq_epi8_mask(self.0, _mm512_set1_epi8(value as i8)),
                2 => u64::from(_mm512_cmpneq_epi16_mask(self.0, _mm512_set1_epi16(value as i16))),
                _ => {
                    let difference = _mm512_xor_si512(self.0, _mm512_set1_epi32(value));
                    let compared = _mm512_set1_epi32(compared::<E>() as i32);
                    u64::from(_mm512_test_epi32_mask(difference, compared))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_pixels<const E: usize>(self, to: *mut u8, bits: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            match E {
                1 => _mm512_mask_storeu_epi8(to.cast(), bits, self.0),
                2 => _mm512_mask_storeu_epi16(to.cast(), bits as u32, self.0),
                _ => _mm512_mask_storeu_epi32(to.cast(), bits as u16, self.0),
            }
        }
    }

    #[inline(always)]
    fn prefetch_once(at: *const u8) {
        super::avx2::prefetch_once(at);
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        super::avx2::prefetch(at);
    }
}
