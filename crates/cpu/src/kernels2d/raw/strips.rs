//! Copies or reverses strips of pixels: reads the source upwards, writes the destination in whole lines.
//!
//! ```text
//! copy      source ──►   pixels up to a line │ line 0 │ line 1 │ ...    │ pixels after the last whole line
//! reverse   source ──►   pixels after it     │ ...    │ line 1 │ line 0 │ pixels up to a line      (written downwards)
//! ```
//!
//! Upwards, because strips are rows of a picture and the next row lies above, so prefetches beyond the end are useful.
//! The caller fences, because rows may be short.

use std::ptr;

use super::lanes::{LINE, Vector, copy_pixel};
use super::{Stores, Strip};

/// Prefetch distance in the source, bytes.
const AHEAD_BYTES: usize = 2048;

/// The part of the destination written in whole lines, and whether it is streamed.
struct Lines {
    first: usize,
    end: usize,
    streaming: bool,
}

impl Lines {
    /// A destination whose pixels are not aligned to lines cannot be streamed.
    #[inline(always)]
    fn of<const E: usize>(to: *mut u8, total: usize, stores: Stores) -> Self {
        let to_line = (LINE - to.addr() % LINE) % LINE;
        let meets = to_line.is_multiple_of(E);
        let first = if meets { to_line.min(total) } else { 0 };
        let end = first + (total - first) / LINE * LINE;
        Self { first, end, streaming: meets && stores == Stores::Streaming }
    }
}

/// # Safety
/// As for [`super::copy`].
#[inline(always)]
pub(super) unsafe fn copy<V: Vector>(strip: Strip, stores: Stores) {
    let Strip { from, to, count: total } = strip;
    let lines = Lines::of::<1>(to, total, stores);
    // SAFETY: the caller's promise: every offset is below `total` on both sides.
    unsafe {
        ptr::copy_nonoverlapping(from, to, lines.first);
        for line in (lines.first..lines.end).step_by(LINE) {
            if lines.streaming {
                V::prefetch_once(from.wrapping_add(line + AHEAD_BYTES));
            }
            for at in (line..line + LINE).step_by(V::BYTES) {
                let vector = V::load(from.add(at));
                if lines.streaming { vector.stream(to.add(at)) } else { vector.store(to.add(at)) }
            }
        }
        ptr::copy_nonoverlapping(from.add(lines.end), to.add(lines.end), total - lines.end);
    }
}

/// # Safety
/// As for [`super::reverse`].
#[inline(always)]
pub(super) unsafe fn reverse<V: Vector, const E: usize>(strip: Strip, stores: Stores) {
    let Strip { from, to, count } = strip;
    let total = count * E;
    let lines = Lines::of::<E>(to, total, stores);
    // SAFETY: the caller's promise: every offset is below `total` on both sides.
    unsafe {
        let single = |at: usize| copy_pixel::<E>(from.add(total - E - at), to.add(at));
        (lines.end..total).step_by(E).rev().for_each(single);
        for line in (lines.first..lines.end).step_by(LINE).rev() {
            if lines.streaming {
                V::prefetch_once(from.wrapping_add(total - LINE - line + AHEAD_BYTES));
            }
            for at in (line..line + LINE).step_by(V::BYTES) {
                let vector = V::load(from.add(total - V::BYTES - at)).reversed::<E>();
                if lines.streaming { vector.stream(to.add(at)) } else { vector.store(to.add(at)) }
            }
        }
        (0..lines.first).step_by(E).rev().for_each(single);
    }
}
