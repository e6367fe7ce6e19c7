//! Copies that leave the destination out of the caches.
//!
//! ```text
//! copy_streaming  head to a line's begin ─ blocks of four lines: prefetch ahead, load, stream ─ tail
//! copy_flushing   the same, and every source line that was used up is put out of the caches
//! ```
//!
//! A fence after it is the caller's. Ranges are apart. Copies that stay in the caches are the C library's. Invariants as in the module above.

use std::ptr;

use super::{AHEAD, LINE, Vector, at_level, prefetch};
use crate::level::Cpu;

/// Bytes of a turn of the loop.
const BLOCK: usize = 4 * LINE;

at_level! {
    /// Copies past the caches.
    ///
    /// # Safety
    /// M1 to M4 for `length` bytes at `from` and `to`, which are apart.
    copy_streaming(from: *const u8, to: *mut u8, length: usize) = streaming
}

at_level! {
    /// Copies past the caches and flushes the source's lines with `clflushopt`.
    ///
    /// # Safety
    /// As [`copy_streaming`]; the CPU has `clflushopt` (M4).
    flushing_with_clflushopt(from: *const u8, to: *mut u8, length: usize) = flushing
}

/// Copies past the caches, and puts the source's lines out of them where the CPU has an instruction for that.
///
/// # Safety
/// As [`copy_streaming`].
pub(in super::super) unsafe fn copy_flushing(cpu: Cpu, from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: M1 to M4, the caller's promise; `clflushopt` is used where it is.
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
    // SAFETY: M1 to M4: all offsets are below `length`, but for prefetches, which touch nothing. Streams begin at `head`,
    // a line's begin, and go on by whole vectors.
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
                // At once: a little later is a little faster, and leaves more of the source behind.
                flush_four_lines_before(from.add(at));
            }
        }
        ptr::copy_nonoverlapping(from.add(blocks_end), to.add(blocks_end), length - blocks_end);
    }
}

/// Puts the last four lines that end at or before an address out of the caches.
///
/// # Safety
/// The 256 bytes before the address are there (M1), and the CPU has `clflushopt` (M4).
#[inline(always)]
#[cfg(target_arch = "x86_64")]
unsafe fn flush_four_lines_before(end: *const u8) {
    let last = end.wrapping_sub(end.addr() % LINE);
    for line in 1..=4 {
        // SAFETY: M1: each of them holds one of the 256 bytes before `end`. M4.
        unsafe {
            std::arch::asm!("clflushopt [{}]", in(reg) last.wrapping_sub(line * LINE),
                options(nostack, preserves_flags));
        }
    }
}

#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
unsafe fn flush_four_lines_before(_end: *const u8) {}
