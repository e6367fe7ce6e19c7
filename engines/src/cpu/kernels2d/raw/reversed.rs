//! Reversing: the destination is written upwards in whole lines, the source read downwards.
//!
//! ```text
//! source       ◄── ... line 2 │ line 1 │ line 0      (downwards, at any alignment)
//! destination  pixels up to a line │ line 0 │ line 1 │ ... │ pixels after the last whole line
//! ```
//!
//! Which rows there are is not known here.

use super::lanes::{LINE, Vector, copy_pixel};
use super::{Stores, Strip};

/// How far ahead of the loads, downwards, the source is prefetched, bytes.
const AHEAD_BYTES: usize = 2048;

/// # Safety
/// As for [`super::reverse`].
#[inline(always)]
pub(super) unsafe fn reverse<V: Vector, const E: usize>(strip: Strip, stores: Stores) {
    let Strip { from, to, count } = strip;
    let total = count * E;
    // A destination whose pixels do not meet the beginning of a line cannot be streamed.
    let to_line = (LINE - to.addr() % LINE) % LINE;
    let streaming = stores == Stores::Streaming && to_line.is_multiple_of(E);
    let head = if to_line.is_multiple_of(E) { to_line.min(total) } else { 0 };
    let whole = head + (total - head) / LINE * LINE;
    // SAFETY: the caller's promise: every offset is below `total` on both sides.
    unsafe {
        let single = |at: usize| copy_pixel::<E>(from.add(total - E - at), to.add(at));
        (0..head).step_by(E).for_each(single);
        for line in (head..whole).step_by(LINE) {
            if streaming {
                V::prefetch_once(from.wrapping_add(total - LINE - line).wrapping_sub(AHEAD_BYTES));
            }
            for at in (line..line + LINE).step_by(V::BYTES) {
                let vector = V::load(from.add(total - V::BYTES - at)).reversed::<E>();
                if streaming { vector.stream(to.add(at)) } else { vector.store(to.add(at)) }
            }
        }
        (whole..total).step_by(E).for_each(single);
    }
}
