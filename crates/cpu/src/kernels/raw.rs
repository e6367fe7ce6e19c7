//! Loops over raw memory, each written once and compiled for every level. The caller has checked all ranges.
//!
//! ```text
//! (Cpu, addresses, lengths) ──► at_level! ─┬─ avx512: loop over 64-byte vectors
//!                                          ├─ avx2: over 32
//!                                          ├─ neon: over 16
//!                                          └─ portable: over 8, or what the C library has
//! ```
//!
//! `kernels` checks ranges and `choice` chooses the manner. All functions and blocks here are unsafe
//! for the same reasons: the memory passed in is mapped (M1), frame memory is
//! accessed through raw pointers only (M2), memory written is writable (M3), and the CPU supports the level passed in (M4).

#![expect(
    unsafe_code,
    reason = "moving bytes of memory that other processes share needs raw pointers and vectors"
)]

mod combine;
mod copy;
mod fill;
mod probe;
#[cfg(test)]
mod tests;
mod vectors;

pub(super) use combine::{first_difference, xor_all, xor_all_streaming};
pub(super) use copy::{copy_flushing, copy_streaming};
pub(super) use fill::{fill_words, fill_words_streaming, zero_lines};
pub(super) use probe::{ask_for_lines, load_ticks};
pub(crate) use probe::{own_load_ticks, untouched_ticks};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Prefetch distance in bytes. Measured on Zen 4: 1 to 4 KiB are equally fast.
const AHEAD: usize = 2048;

/// Prefetches a line that is used once; any address is allowed.
#[inline(always)]
fn prefetch(_at: *const u8) {
    // SAFETY: a prefetch never faults, whatever the address, and SSE is part of x86-64.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_NTA }>(_at.cast());
    }
    // SAFETY: a prefetch never faults, whatever the address.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pldl1strm, [{at}]", at = in(reg) _at, options(nostack, preserves_flags));
    }
}

/// Orders streamed stores before later ones.
#[inline(always)]
pub(super) fn fence() {
    // SAFETY: SSE is part of x86-64.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// A vector of bytes at one level.
///
/// # Safety
/// Implementations access only the [`Vector::BYTES`] bytes at the given pointer.
unsafe trait Vector: Copy {
    /// Size in bytes; a power of two, at most [`LINE`].
    const BYTES: usize;
    /// Loads from any address.
    ///
    /// # Safety
    /// M1, M2, M4.
    unsafe fn load(from: *const u8) -> Self;
    /// Stores to any address.
    ///
    /// # Safety
    /// M1, M2, M3, M4.
    unsafe fn store(self, to: *mut u8);
    /// Stores past the caches to an address that is a multiple of [`Vector::BYTES`]; needs a [`fence`] afterwards.
    ///
    /// # Safety
    /// M1, M2, M3, M4.
    unsafe fn stream(self, to: *mut u8);
    /// Repeats `word`.
    ///
    /// # Safety
    /// M4.
    unsafe fn splat(word: u32) -> Self;
    /// Exclusive or of both, bit by bit.
    ///
    /// # Safety
    /// M4.
    unsafe fn xor(self, other: Self) -> Self;
    /// Or of both, bit by bit.
    ///
    /// # Safety
    /// M4.
    unsafe fn or(self, other: Self) -> Self;
    /// Whether all bits are zero.
    ///
    /// # Safety
    /// M4.
    unsafe fn is_zero(self) -> bool;
    /// Index of the first byte in which they differ.
    ///
    /// # Safety
    /// M4.
    unsafe fn first_difference(self, other: Self) -> Option<usize>;
}

/// Compiles a loop over vectors for every level, and dispatches at run time.
macro_rules! at_level {
    ($(#[$about:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? = $body:ident) => {
        $(#[$about])*
        pub(in super::super) unsafe fn $name(level: $crate::level::Level, $($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
            unsafe fn avx512($($arg: $type),*) $(-> $result)? {
                // SAFETY: M1 to M4, the caller's promise.
                unsafe { $body::<super::vectors::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            unsafe fn avx2($($arg: $type),*) $(-> $result)? {
                // SAFETY: M1 to M4, the caller's promise.
                unsafe { $body::<super::vectors::Avx2>($($arg),*) }
            }
            // SAFETY: M1 to M4, the caller's promise.
            unsafe {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    $crate::level::Level::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::level::Level::Avx2 => avx2($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    $crate::level::Level::Neon => $body::<super::vectors::Neon>($($arg),*),
                    _ => $body::<super::vectors::Portable>($($arg),*),
                }
            }
        }
    };
}
use at_level;
