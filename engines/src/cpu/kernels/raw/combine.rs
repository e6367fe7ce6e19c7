//! Loops that read two things at once: exclusive or, and the search for a difference.
//!
//! ```text
//! xor_all           private bytes = bytes at several addresses
//! first_difference  vectors of both ─ the first byte that differs
//! ```
//!
//! Every byte is loaded once. Invariants as in the module above.

use super::{Vector, at_level};

at_level! {
    /// Makes the bytes at `block` the exclusive or of those at `sources`, of which it may be one.
    ///
    /// # Safety
    /// M1, M2 and M4 for `length` bytes at all of them; those at `block` belong to this process alone.
    xor_all(block: *mut u8, length: usize, sources: &[*const u8]) = xor
}

at_level! {
    /// How many bytes are equal before the first that is not; `length` when all are.
    ///
    /// # Safety
    /// M1, M2 and M4 for `length` bytes at both.
    first_difference(first: *const u8, second: *const u8, length: usize) -> usize = difference
}

/// # Safety
/// As [`xor_all`].
#[inline(always)]
unsafe fn xor<V: Vector>(block: *mut u8, length: usize, sources: &[*const u8]) {
    let Some((first, others)) = sources.split_first() else { return };
    let whole = length - length % V::BYTES;
    // SAFETY: M1, M2, M4: all offsets are below `length`.
    unsafe {
        for offset in (0..whole).step_by(V::BYTES) {
            let mut vector = V::load(first.add(offset));
            for source in others {
                vector = vector.xor(V::load(source.add(offset)));
            }
            vector.store(block.add(offset));
        }
        for offset in whole..length {
            let byte =
                others.iter().fold(first.add(offset).read(), |byte, source| byte ^ source.add(offset).read());
            block.add(offset).write(byte);
        }
    }
}

/// # Safety
/// As [`first_difference`].
#[inline(always)]
unsafe fn difference<V: Vector>(first: *const u8, second: *const u8, length: usize) -> usize {
    let whole = length - length % V::BYTES;
    let (mut offset, turn) = (0, 4 * V::BYTES);
    // SAFETY: M1, M2, M4: all offsets are below `length`.
    unsafe {
        while offset < whole {
            if whole - offset >= turn {
                let at = |index| offset + index * V::BYTES;
                let ones = [0, 1, 2, 3].map(|index| V::load(first.add(at(index))));
                let others = [0, 1, 2, 3].map(|index| V::load(second.add(at(index))));
                let all = |index: usize| ones[index].xor(others[index]);
                if all(0).or(all(1)).or(all(2).or(all(3))).is_zero() {
                    offset += turn;
                    continue;
                }
                // What was loaded is what counts: the memory may have changed since.
                let differs = |index: &usize| ones[*index].first_difference(others[*index]).is_some();
                let index = (0..3).find(differs).unwrap_or(3);
                return at(index) + ones[index].first_difference(others[index]).unwrap_or(0);
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
