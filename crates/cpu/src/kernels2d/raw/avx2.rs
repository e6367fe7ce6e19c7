//! Vectors of two lanes: AVX2.
//!
//! ```text
//! transpose, copy, reverse, copy_keyed ─► the generic kernels over Half, with these instructions enabled
//! ```
//!
//! Single 32-bit pixels use masked stores; smaller ones are stored one by one.

use std::arch::x86_64::*;

use memferry_transfer::Color24;

use super::lanes::{Vector, compared, store_single};
use super::{Band, Stores, Strip, keyed, strips, tiles};

/// # Safety
/// As for [`super::transpose`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn transpose<const E: usize>(band: Band, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            1 => tiles::transpose::<Half, [Half; 16], 1>(band, stores),
            2 => tiles::transpose::<Half, [Half; 8], 2>(band, stores),
            _ => tiles::transpose::<Half, [Half; 4], 4>(band, stores),
        }
    }
}

/// # Safety
/// As for [`super::copy`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy<const E: usize>(strip: Strip, stores: Stores) {
    let bytes = Strip { count: strip.count * E, ..strip };
    // SAFETY: the caller's promise.
    unsafe { strips::copy::<Half>(bytes, stores) }
}

/// # Safety
/// As for [`super::reverse`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn reverse<const E: usize>(strip: Strip, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { strips::reverse::<Half, E>(strip, stores) }
}

/// # Safety
/// As for [`super::copy_keyed`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy_keyed<const E: usize>(strip: Strip, key: Color24, stores: Stores) {
    // SAFETY: the caller's promise.
    unsafe { keyed::copy_keyed::<Half, E>(strip, key, stores) }
}

/// Prefetches a line into the second-level cache.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: a hint for any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}

/// Prefetches a line that is loaded once.
#[inline(always)]
pub(super) fn prefetch_once(at: *const u8) {
    // SAFETY: a hint for any address.
    unsafe { _mm_prefetch::<_MM_HINT_NTA>(at.cast()) }
}

/// Shuffle indices that reverse a lane's pixels.
///
/// # Safety
/// The CPU supports the level.
#[inline(always)]
pub(super) unsafe fn order<const E: usize>() -> __m128i {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            1 => _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
            2 => _mm_setr_epi8(14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1),
            _ => _mm_setr_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3),
        }
    }
}

#[derive(Clone, Copy)]
struct Half(__m256i);

impl Vector for Half {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn zeroed() -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn store_lanes(self, to: *mut u8, apart: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(self.0));
            _mm_storeu_si128(to.add(apart).cast(), _mm256_extracti128_si256::<1>(self.0));
        }
    }

    #[inline(always)]
    unsafe fn zip<const E: usize>(self, other: Self) -> (Self, Self) {
        let one = self.0;
        let other = other.0;
        // SAFETY: the caller's promise.
        let (low, high) = unsafe {
            match E {
                1 => (_mm256_unpacklo_epi8(one, other), _mm256_unpackhi_epi8(one, other)),
                2 => (_mm256_unpacklo_epi16(one, other), _mm256_unpackhi_epi16(one, other)),
                _ => (_mm256_unpacklo_epi32(one, other), _mm256_unpackhi_epi32(one, other)),
            }
        };
        (Self(low), Self(high))
    }

    #[inline(always)]
    unsafe fn reversed<const E: usize>(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let lanes = _mm256_shuffle_epi8(self.0, _mm256_broadcastsi128_si256(order::<E>()));
            Self(_mm256_permute2x128_si256::<1>(lanes, lanes))
        }
    }

    #[inline(always)]
    unsafe fn opaque<const E: usize>(self, key: Color24) -> u64 {
        let value = (key.value() & compared::<E>()) as i32;
        // SAFETY: the caller's promise.
        let keyed = unsafe {
            match E {
                1 => {
                    let keyed = _mm256_cmpeq_epi8(self.0, _mm256_set1_epi8(value as i8));
                    _mm256_movemask_epi8(keyed) as u32
                }
                2 => {
                    let keyed = _mm256_cmpeq_epi16(self.0, _mm256_set1_epi16(value as i16));
                    let bytes =
                        _mm_packs_epi16(_mm256_castsi256_si128(keyed), _mm256_extracti128_si256::<1>(keyed));
                    _mm_movemask_epi8(bytes) as u32
                }
                _ => {
                    let seen = _mm256_and_si256(self.0, _mm256_set1_epi32(compared::<E>() as i32));
                    let keyed = _mm256_cmpeq_epi32(seen, _mm256_set1_epi32(value));
                    _mm256_movemask_ps(_mm256_castsi256_ps(keyed)) as u32
                }
            }
        };
        u64::from(!keyed) & (u64::MAX >> (64 - Self::BYTES / E))
    }

    #[inline(always)]
    unsafe fn store_pixels<const E: usize>(self, to: *mut u8, bits: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            if E == 4 {
                let places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
                let chosen = _mm256_and_si256(_mm256_set1_epi32(bits as i32), places);
                _mm256_maskstore_epi32(to.cast(), _mm256_cmpeq_epi32(chosen, places), self.0);
                return;
            }
            store_single::<Self, E>(self, to, bits);
        }
    }

    #[inline(always)]
    fn prefetch_once(at: *const u8) {
        prefetch_once(at);
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        prefetch(at);
    }
}
