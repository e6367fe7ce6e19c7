//! Loops over several inputs: exclusive or, and the search for a difference.
//!
//! ```text
//! xor_all           to = exclusive or of the bytes at several addresses
//! first_difference  vectors of both ─► index of the first byte that differs
//! ```
//!
//! Every byte is loaded once. Invariants as in the module above.

use super::{LINE, Vector, at_level};

at_level! {
    /// Sets the bytes at `to` to the exclusive or of those at `sources`. `to` may be one of the sources; with any other overlap the
    /// result is unspecified.
    ///
    /// # Safety
    /// M1 to M4 for `length` bytes at all of them.
    xor_all(to: *mut u8, length: usize, sources: &[*const u8]) = xor
}

at_level! {
    /// As [`xor_all`], past the caches; the caller must fence.
    ///
    /// # Safety
    /// As [`xor_all`].
    xor_all_streaming(to: *mut u8, length: usize, sources: &[*const u8]) = xor_streaming
}

at_level! {
    /// Index of the first byte that differs; `length` if none does.
    ///
    /// # Safety
    /// M1, M2 and M4 for `length` bytes at both.
    first_difference(first: *const u8, second: *const u8, length: usize) -> usize = difference
}

/// # Safety
/// As [`xor_all`].
#[inline(always)]
unsafe fn xor<V: Vector>(to: *mut u8, length: usize, sources: &[*const u8]) {
    // SAFETY: M1 to M4, the caller's promise.
    unsafe { xor_by::<V, false>(to, length, sources) }
}

/// # Safety
/// As [`xor_all`].
#[inline(always)]
unsafe fn xor_streaming<V: Vector>(to: *mut u8, length: usize, sources: &[*const u8]) {
    // SAFETY: M1 to M4, the caller's promise.
    unsafe { xor_by::<V, true>(to, length, sources) }
}

/// # Safety
/// As [`xor_all`].
#[inline(always)]
unsafe fn xor_by<V: Vector, const STREAM: bool>(to: *mut u8, length: usize, sources: &[*const u8]) {
    let Some((first, others)) = sources.split_first() else { return };
    let head = if STREAM { to.align_offset(LINE).min(length) } else { 0 };
    let whole = head + (length - head) / LINE * LINE;
    // SAFETY: M1 to M4: all offsets are below `length`. Streams start at `head`, a line boundary, and advance by whole vectors.
    unsafe {
        let byte = |offset: usize| {
            others.iter().fold(first.add(offset).read(), |byte, source| byte ^ source.add(offset).read())
        };
        for offset in (0..head).chain(whole..length) {
            to.add(offset).write(byte(offset));
        }
        for offset in (head..whole).step_by(V::BYTES) {
            let mut vector = V::load(first.add(offset));
            for source in others {
                vector = vector.xor(V::load(source.add(offset)));
            }
            if STREAM { vector.stream(to.add(offset)) } else { vector.store(to.add(offset)) }
        }
    }
}

/// # Safety
/// As [`first_difference`].
#[inline(always)]
unsafe fn difference<V: Vector>(first: *const u8, second: *const u8, length: usize) -> usize {
    let whole = length - length % V::BYTES;
    let mut offset = 0;
    let turn = 4 * V::BYTES;
    // SAFETY: M1, M2, M4: all offsets are below `length`.
    unsafe {
        while offset < whole {
            if whole - offset >= turn {
                let load = |index: usize| {
                    let at = offset + index * V::BYTES;
                    V::load(first.add(at)).xor(V::load(second.add(at)))
                };
                let differences = [load(0), load(1), load(2), load(3)];
                let [zeroth, next, third, last] = differences;
                if zeroth.or(next).or(third.or(last)).is_zero() {
                    offset += turn;
                    continue;
                }
                // Uses the loaded values: the memory may have changed since.
                let zero = V::splat(0);
                let found =
                    |index: usize| Some(index * V::BYTES + differences[index].first_difference(zero)?);
                return offset + (0..4).find_map(found).unwrap_or(0);
            }
            if let Some(within) = V::load(first.add(offset)).first_difference(V::load(second.add(offset))) {
                return offset + within;
            }
            offset += V::BYTES;
        }
        let equal = |offset: &usize| first.add(*offset).read() == second.add(*offset).read();
        whole + (whole..length).take_while(equal).count()
    }
}
