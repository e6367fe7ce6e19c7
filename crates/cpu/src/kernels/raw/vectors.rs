//! The vector type of each level.
//!
//! ```text
//! Vector ─┬─ Avx512  64 bytes   ┐ x86-64
//!         ├─ Avx2    32 bytes   ┘
//!         ├─ Neon    16 bytes     64-bit Arm
//!         └─ Portable 8 bytes     any CPU; cannot stream
//! ```
//!
//! Each method is one or two instructions; the loops are in other modules. Invariants as in the module above.

use super::Vector;

/// Eight bytes in a general register.
#[derive(Clone, Copy)]
pub(super) struct Portable(u64);

// SAFETY: `load`, `store` and `stream` touch eight bytes.
unsafe impl Vector for Portable {
    const BYTES: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: M1, M2.
        Self(unsafe { from.cast::<u64>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: M1, M2, M3.
        unsafe { to.cast::<u64>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: M1, M2, M3.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        Self(u64::from(word) << 32 | u64::from(word))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    unsafe fn first_difference(self, other: Self) -> Option<usize> {
        let different = (self.0 ^ other.0).to_le();
        (different != 0).then_some(different.trailing_zeros() as usize / 8)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::Vector;

    /// A vector of AVX-512 F and BW.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512i);

    // SAFETY: `load`, `store` and `stream` touch 64 bytes.
    unsafe impl Vector for Avx512 {
        const BYTES: usize = 64;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: M1, M2, M4.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: M1, M2, M3, M4.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: M1, M2, M3, M4, and the address is aligned.
            unsafe { _mm512_stream_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn splat(word: u32) -> Self {
            // SAFETY: M4.
            Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: M4.
            Self(unsafe { _mm512_xor_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: M4.
            Self(unsafe { _mm512_or_si512(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            // SAFETY: M4.
            unsafe { _mm512_test_epi64_mask(self.0, self.0) == 0 }
        }

        #[inline(always)]
        unsafe fn first_difference(self, other: Self) -> Option<usize> {
            // SAFETY: M4.
            let different = unsafe { _mm512_cmpneq_epi8_mask(self.0, other.0) };
            (different != 0).then_some(different.trailing_zeros() as usize)
        }
    }

    /// A vector of AVX2.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256i);

    // SAFETY: `load`, `store` and `stream` touch 32 bytes.
    unsafe impl Vector for Avx2 {
        const BYTES: usize = 32;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: M1, M2, M4.
            Self(unsafe { _mm256_loadu_si256(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: M1, M2, M3, M4.
            unsafe { _mm256_storeu_si256(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: M1, M2, M3, M4, and the address is aligned.
            unsafe { _mm256_stream_si256(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn splat(word: u32) -> Self {
            // SAFETY: M4.
            Self(unsafe { _mm256_set1_epi32(word.cast_signed()) })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: M4.
            Self(unsafe { _mm256_xor_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: M4.
            Self(unsafe { _mm256_or_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            // SAFETY: M4.
            unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
        }

        #[inline(always)]
        unsafe fn first_difference(self, other: Self) -> Option<usize> {
            // SAFETY: M4.
            let equal = unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(self.0, other.0)) };
            (equal != -1).then_some((!equal).trailing_zeros() as usize)
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::arch::asm;

    use super::super::Vector;

    /// A vector of NEON, which every 64-bit Arm CPU has.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Neon(uint8x16_t);

    // SAFETY: `load`, `store` and `stream` touch 16 bytes.
    unsafe impl Vector for Neon {
        const BYTES: usize = 16;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: M1, M2.
            Self(unsafe { vld1q_u8(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: M1, M2, M3.
            unsafe { vst1q_u8(to, self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // The non-temporal hint exists for pairs of registers only, here of eight bytes each (Arm ARM, C6.2, STNP).
            // SAFETY: M1, M2, M3.
            unsafe {
                let halves = vreinterpretq_u64_u8(self.0);
                let low = vgetq_lane_u64::<0>(halves);
                let high = vgetq_lane_u64::<1>(halves);
                asm!("stnp {low}, {high}, [{to}]", low = in(reg) low, high = in(reg) high, to = in(reg) to,
                    options(nostack, preserves_flags));
            }
        }

        #[inline(always)]
        unsafe fn splat(word: u32) -> Self {
            // SAFETY: NEON is part of 64-bit Arm.
            Self(unsafe { vreinterpretq_u8_u32(vdupq_n_u32(word)) })
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: NEON is part of 64-bit Arm.
            Self(unsafe { veorq_u8(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: NEON is part of 64-bit Arm.
            Self(unsafe { vorrq_u8(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn is_zero(self) -> bool {
            // SAFETY: NEON is part of 64-bit Arm.
            unsafe { vmaxvq_u8(self.0) == 0 }
        }

        #[inline(always)]
        unsafe fn first_difference(self, other: Self) -> Option<usize> {
            // Four bits per byte: a narrowing shift is NEON's cheapest mask.
            // SAFETY: NEON is part of 64-bit Arm.
            let equal = unsafe {
                let equal = vreinterpretq_u16_u8(vceqq_u8(self.0, other.0));
                vget_lane_u64::<0>(vreinterpret_u64_u8(vshrn_n_u16::<4>(equal)))
            };
            (equal != u64::MAX).then_some((!equal).trailing_zeros() as usize / 4)
        }
    }
}
