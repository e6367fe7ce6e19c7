//! Fills: a repeated word, and whole lines of zeros.
//!
//! ```text
//! fill_words  vectors of the word ─ tail byte by byte        fill_words_streaming  the same by lines, past the caches
//! zero_lines  head ─ one `clzero` per line ─ tail
//! ```
//!
//! Fills of one byte use the C library; after streaming fills the caller must fence. Invariants as in the module above.

use std::ptr;

use super::{LINE, Vector, at_level};

at_level! {
    /// Repeats `word` over `length` bytes; the first byte becomes `word[0]`.
    ///
    /// # Safety
    /// M1 to M4 for `length` bytes at `to`.
    fill_words(to: *mut u8, length: usize, word: [u8; 4]) = words
}

at_level! {
    /// As [`fill_words`], past the caches.
    ///
    /// # Safety
    /// As [`fill_words`].
    fill_words_streaming(to: *mut u8, length: usize, word: [u8; 4]) = words_streaming
}

/// # Safety
/// As [`fill_words`].
#[inline(always)]
unsafe fn words_streaming<V: Vector>(to: *mut u8, length: usize, mut word: [u8; 4]) {
    let head = to.align_offset(LINE).min(length);
    let whole = head + (length - head) / LINE * LINE;
    // SAFETY: M1 to M4: all offsets are below `length`. Streams start at `head`, a line boundary, and advance by whole vectors.
    unsafe {
        words::<V>(to, head, word);
        word.rotate_left(head % 4);
        let vector = V::splat(u32::from_ne_bytes(word));
        for offset in (head..whole).step_by(V::BYTES) {
            vector.stream(to.add(offset));
        }
        words::<V>(to.add(whole), length - whole, word);
    }
}

/// # Safety
/// As [`fill_words`].
#[inline(always)]
unsafe fn words<V: Vector>(to: *mut u8, length: usize, word: [u8; 4]) {
    let whole = length - length % V::BYTES;
    // SAFETY: M1 to M4: `offset + V::BYTES <= whole <= length`.
    unsafe {
        let vector = V::splat(u32::from_ne_bytes(word));
        for offset in (0..whole).step_by(V::BYTES) {
            vector.store(to.add(offset));
        }
    }
    for (offset, byte) in (whole..length).zip(word.into_iter().cycle()) {
        // SAFETY: M1, M2, M3: `offset < length`. A vector holds whole words, so the tail begins with the word's first byte.
        unsafe { to.add(offset).write(byte) };
    }
}

/// Zeroes `length` bytes; uses `clzero` for whole lines, which writes past the caches and reads nothing.
///
/// # Safety
/// M1 to M3 for `length` bytes at `to`; the CPU has `clzero` (M4).
#[cfg(target_arch = "x86_64")]
pub(in super::super) unsafe fn zero_lines(to: *mut u8, length: usize) {
    let head = to.align_offset(LINE).min(length);
    let end = head + (length - head) / LINE * LINE;
    // SAFETY: M1, M2, M3: all offsets are below `length`, and a line that begins below `end` ends there at the latest. M4.
    // `clzero` takes the line's address in rax (AMD's manual 3).
    unsafe {
        // The C library may store nothing into a line by a masked store, which fetches the line all the same.
        if head > 0 {
            ptr::write_bytes(to, 0, head);
        }
        for line in (head..end).step_by(LINE) {
            std::arch::asm!("clzero", in("rax") to.add(line), options(nostack, preserves_flags));
        }
        if end < length {
            ptr::write_bytes(to.add(end), 0, length - end);
        }
    }
}

/// Zeroes `length` bytes.
///
/// # Safety
/// M1 to M3 for `length` bytes at `to`.
#[cfg(not(target_arch = "x86_64"))]
pub(in super::super) unsafe fn zero_lines(to: *mut u8, length: usize) {
    // SAFETY: M1, M2, M3.
    unsafe { ptr::write_bytes(to, 0, length) };
}
