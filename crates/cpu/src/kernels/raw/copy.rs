//! Copies whose destination bypasses the caches.
//!
//! ```text
//! copy_streaming  head up to a line boundary ─ blocks of four lines: prefetch, load, stream ─ tail
//! copy_flushing   the same, and evicts every source line after use
//! ```
//!
//! The caller must fence. Ranges are disjoint. Cached copies use the C library. Invariants as in the module above.

use std::ptr;

use super::{AHEAD, LINE, Vector, at_level, prefetch};
use crate::level::Cpu;

/// Bytes per loop iteration.
const BLOCK: usize = 4 * LINE;

at_level! {
    /// Copies past the caches.
    ///
    /// # Safety
    /// M1 to M4 for `length` bytes at `from` and `to`, which are apart.
    copy_streaming(from: *const u8, to: *mut u8, length: usize) = streaming
}

at_level! {
    /// Copies past the caches and evicts the source's lines with `clflushopt`.
    ///
    /// # Safety
    /// As [`copy_streaming`]; the CPU has `clflushopt` (M4).
    flushing_with_clflushopt(from: *const u8, to: *mut u8, length: usize) = flushing
}

/// Copies past the caches, and evicts the source's lines if the CPU has `clflushopt`.
///
/// # Safety
/// As [`copy_streaming`].
pub(in super::super) unsafe fn copy_flushing(cpu: Cpu, from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: M1 to M4, the caller's promise; `clflushopt` is used only if the CPU has it.
    unsafe {
        if cpu.clflushopt {
            flushing_with_clflushopt(cpu.level, from, to, length);
        } else {
            copy_streaming(cpu.level, from, to, length);
        }
    }
}

#[inline(always)]
unsafe fn streaming<V: Vector>(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: M1 to M4, the caller's promise.
    unsafe { by_lines::<V, false>(from, to, length) }
}

#[inline(always)]
unsafe fn flushing<V: Vector>(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: M1 to M4, the caller's promise.
    unsafe { by_lines::<V, true>(from, to, length) }
}

/// # Safety
/// As [`copy_streaming`]; with `FLUSH` as [`flushing_with_clflushopt`].
#[inline(always)]
unsafe fn by_lines<V: Vector, const FLUSH: bool>(from: *const u8, to: *mut u8, length: usize) {
    let head = to.align_offset(LINE).min(length);
    let blocks_end = head + (length - head) / BLOCK * BLOCK;
    // SAFETY: M1 to M4: all offsets are below `length`, except those of prefetches, which access nothing. Streams start at `head`,
    // a line boundary, and advance by whole vectors.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        let mut at = head;
        while at < blocks_end {
            for line in 0..4 {
                prefetch(from.wrapping_add(at + AHEAD + line * LINE));
            }
            for offset in (at..at + BLOCK).step_by(V::BYTES) {
                V::load(from.add(offset)).stream(to.add(offset));
            }
            at += BLOCK;
            if FLUSH {
                // Immediately: slightly later is slightly faster, but leaves more of the source cached.
                flush_four_lines_before(from.add(at));
            }
        }
        ptr::copy_nonoverlapping(from.add(blocks_end), to.add(blocks_end), length - blocks_end);
    }
}

/// Evicts the last four lines that end at or before an address.
///
/// # Safety
/// The 256 bytes before the address are mapped (M1), and the CPU has `clflushopt` (M4).
#[inline(always)]
#[cfg(target_arch = "x86_64")]
unsafe fn flush_four_lines_before(end: *const u8) {
    let last = end.wrapping_sub(end.addr() % LINE);
    for line in 1..=4 {
        // SAFETY: M1: each line holds one of the 256 bytes before `end`. M4.
        unsafe {
            std::arch::asm!("clflushopt [{}]", in(reg) last.wrapping_sub(line * LINE),
                options(nostack, preserves_flags));
        }
    }
}

#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
unsafe fn flush_four_lines_before(_end: *const u8) {}
