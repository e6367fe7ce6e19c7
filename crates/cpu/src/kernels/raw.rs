//! Loops over raw memory, each written once and compiled for every level: the caller has checked every byte.
//!
//! ```text
//! (Cpu, addresses, lengths) ──► at_level! ─┬─ avx512: loop over 64-byte vectors
//!                                          ├─ avx2: over 32
//!                                          ├─ neon: over 16
//!                                          └─ portable: over 8, or what the C library has
//! ```
//!
//! Nothing here knows regions, requests or choices: `kernels` checks ranges and `choice` says how. Every function is unsafe
//! for the same reasons, and every block in it rests on them: the memory it is told of is there (M1), frame memory is
//! reached through raw pointers only (M2), what it writes may be written (M3), and the CPU has the level it is told of (M4).

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

/// Bytes of a cache line, wherever lines are named here.
pub(super) const LINE: usize = 64;

/// How far ahead of the loads lines are asked for, bytes. Measured on Zen 4: 1 to 4 KiB do equally well.
const AHEAD: usize = 2048;

/// Asks for the line at an address, to be used once; any address will do.
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

/// Orders what was streamed before what comes after.
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

/// A vector of bytes as a level has it.
///
/// # Safety
/// Implementations touch no memory but the [`Vector::BYTES`] at the pointer they are given.
unsafe trait Vector: Copy {
    /// Its bytes; a power of two, at most [`LINE`].
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
    /// Stores past the caches to an address that is a multiple of [`Vector::BYTES`]; [`fence`] orders it.
    ///
    /// # Safety
    /// M1, M2, M3, M4.
    unsafe fn stream(self, to: *mut u8);
    /// `word` over and over.
    ///
    /// # Safety
    /// M4.
    unsafe fn splat(word: u32) -> Self;
    /// Both, bit by bit, exclusively.
    ///
    /// # Safety
    /// M4.
    unsafe fn xor(self, other: Self) -> Self;
    /// Both, bit by bit.
    ///
    /// # Safety
    /// M4.
    unsafe fn or(self, other: Self) -> Self;
    /// Whether all bits are zero.
    ///
    /// # Safety
    /// M4.
    unsafe fn is_zero(self) -> bool;
    /// The first byte in which they differ.
    ///
    /// # Safety
    /// M4.
    unsafe fn first_difference(self, other: Self) -> Option<usize>;
}

/// Compiles a loop over vectors for every level, and chooses among them when called.
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
