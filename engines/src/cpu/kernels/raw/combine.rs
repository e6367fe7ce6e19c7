//! Loops that read two things at once: exclusive or, and the search for a difference.
//!
//! ```text
//! xor_into          private bytes ^= bytes at an address
//! first_difference  vectors of both ─ the first byte that differs
//! ```
//!
//! Every byte is loaded once. Invariants as in the module above.

use super::{Vector, at_level};

at_level! {
    /// Puts the bytes at `from` on top of those at `block`, exclusively.
    ///
    /// # Safety
    /// M1 to M4 for `length` bytes at both; those at `block` belong to this process alone.
    xor_into(block: *mut u8, from: *const u8, length: usize) = xor
}

at_level! {
    /// How many bytes are equal before the first that is not; `length` when all are.
    ///
    /// # Safety
    /// M1, M2 and M4 for `length` bytes at both.
    first_difference(first: *const u8, second: *const u8, length: usize) -> usize = difference
}

#[inline(always)]
unsafe fn xor<V: Vector>(block: *mut u8, from: *const u8, length: usize) {
    let whole = length - length % V::BYTES;
    // SAFETY: M1 to M4: all offsets are below `length`.
    unsafe {
        for offset in (0..whole).step_by(V::BYTES) {
            V::load(block.add(offset)).xor(V::load(from.add(offset))).store(block.add(offset));
        }
        for offset in whole..length {
            *block.add(offset) ^= from.add(offset).read();
        }
    }
}

#[inline(always)]
unsafe fn difference<V: Vector>(first: *const u8, second: *const u8, length: usize) -> usize {
    let whole = length - length % V::BYTES;
    // SAFETY: M1, M2, M4: all offsets are below `length`.
    unsafe {
        for offset in (0..whole).step_by(V::BYTES) {
            if let Some(within) = V::load(first.add(offset)).first_difference(V::load(second.add(offset))) {
                return offset + within;
            }
        }
        let equal = |offset: &usize| first.add(*offset).read() == second.add(*offset).read();
        whole + (whole..length).take_while(equal).count()
    }
}
