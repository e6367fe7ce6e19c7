//! Colour-keyed copies, a line at a time, by how many of its pixels are of the key.
//!
//! ```text
//! line ─► all key ─► nothing: the destination's line is not even fetched
//!         none    ─► whole line, streaming when asked
//!         mixed   ─► stores of the opaque pixels alone; the line was prefetched when it was seen to be mixed, 2 KiB ahead
//! ```
//!
//! A blend would write back what a pixel held: another process may have written it since. What was seen ahead decides about
//! prefetching only; the pixels are loaded once more when it is their turn, and by those values they are judged and stored.

use memferry_transfer::Color24;

use super::lanes::{LINE, Vector, compared, copy_pixel};
use super::{Stores, Strip};

/// How far ahead lines are looked at, bytes.
const AHEAD_BYTES: usize = 2048;

/// # Safety
/// As for [`super::copy_keyed`].
#[inline(always)]
pub(super) unsafe fn copy_keyed<V: Vector, const E: usize>(strip: Strip, key: Color24, stores: Stores) {
    let Strip { from, to, count } = strip;
    let total = count * E;
    let to_line = (LINE - to.addr() % LINE) % LINE;
    let streaming = stores == Stores::Streaming && to_line.is_multiple_of(E);
    let head = if to_line.is_multiple_of(E) { to_line.min(total) } else { 0 };
    let whole = head + (total - head) / LINE * LINE;
    // SAFETY: the caller's promise: every offset is below `total` on both sides.
    unsafe {
        (0..head).step_by(E).for_each(|at| single::<E>(from.add(at), to.add(at), key));
        for at in (head..whole).step_by(LINE) {
            let later = at + AHEAD_BYTES;
            if later < whole {
                let (any, all) = line_of::<V, E>(from.add(later), key);
                if any && !all {
                    V::prefetch(to.add(later));
                }
            }
            line::<V, E>(from.add(at), to.add(at), key, streaming);
        }
        (whole..total).step_by(E).for_each(|at| single::<E>(from.add(at), to.add(at), key));
    }
}

/// Whether any and whether all pixels of a line are opaque, as it is now.
///
/// # Safety
/// The line can be read.
#[inline(always)]
unsafe fn line_of<V: Vector, const E: usize>(from: *const u8, key: Color24) -> (bool, bool) {
    let (mut any, mut all) = (0, full::<V, E>());
    for at in (0..LINE).step_by(V::BYTES) {
        // SAFETY: the caller's promise.
        let bits = unsafe { V::load(from.add(at)).opaque::<E>(key) };
        (any, all) = (any | bits, all & bits);
    }
    (any != 0, all == full::<V, E>())
}

/// Copies the opaque pixels of a line.
///
/// # Safety
/// The line can be read and written; it is aligned when it is streamed.
#[inline(always)]
unsafe fn line<V: Vector, const E: usize>(from: *const u8, to: *mut u8, key: Color24, streaming: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [V::zeroed(); 4];
        let (mut bits, mut any, mut all) = ([0; 4], 0, full::<V, E>());
        let parts = LINE / V::BYTES;
        for part in 0..parts {
            vectors[part] = V::load(from.add(part * V::BYTES));
            bits[part] = vectors[part].opaque::<E>(key);
            (any, all) = (any | bits[part], all & bits[part]);
        }
        if any == 0 {
            return;
        }
        for part in 0..parts {
            let to = to.add(part * V::BYTES);
            match (all == full::<V, E>(), streaming) {
                (true, true) => vectors[part].stream(to),
                (true, false) => vectors[part].store(to),
                (false, _) => vectors[part].store_pixels::<E>(to, bits[part]),
            }
        }
    }
}

/// A bit for each pixel of a vector.
const fn full<V: Vector, const E: usize>() -> u64 {
    u64::MAX >> (64 - V::BYTES / E)
}

/// Copies a pixel unless it is of the key.
///
/// # Safety
/// It can be read and written.
#[inline(always)]
unsafe fn single<const E: usize>(from: *const u8, to: *mut u8, key: Color24) {
    let mut pixel = [0; 4];
    // SAFETY: the caller's promise.
    unsafe {
        copy_pixel::<E>(from, pixel.as_mut_ptr());
        if (u32::from_le_bytes(pixel) ^ key.value()) & compared::<E>() != 0 {
            copy_pixel::<E>(pixel.as_ptr(), to);
        }
    }
}
