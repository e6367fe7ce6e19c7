//! Colour-keyed copies: classifies four vectors at a time by how many of their pixels match the key.
//!
//! ```text
//! four vectors ─► all key ─► nothing: the destination's lines are not even fetched
//!                 none    ─► stored whole, streaming if requested and no recent group was mixed
//!                 mixed   ─► stores the opaque pixels only; prefetches the same lines 2 KiB ahead
//! ```
//!
//! One branch per four vectors: run boundaries are unpredictable, and a misprediction costs as much as ten lines. A
//! blend would write back a pixel's old value, which another process may have overwritten. Pixels are loaded once, then
//! tested and stored from the register.

use memferry_transfer::Color24;

use super::lanes::{LINE, Vector, compared, copy_pixel};
use super::{Stores, Strip};

/// Prefetch distance in bytes.
const AHEAD_BYTES: usize = 2048;

/// Groups after a mixed one that are not streamed, because more mixed ones are likely: fetched and streamed lines
/// interfere with each other.
const STIRRED: u32 = 8;

/// # Safety
/// As for [`super::copy_keyed`].
#[inline(always)]
pub(super) unsafe fn copy_keyed<V: Vector, const E: usize>(strip: Strip, key: Color24, stores: Stores) {
    let Strip { from, to, count } = strip;
    let total = count * E;
    let to_line = (LINE - to.addr() % LINE) % LINE;
    let streaming = stores == Stores::Streaming && to_line.is_multiple_of(E);
    let head = if to_line.is_multiple_of(E) { to_line.min(total) } else { 0 };
    let unit = 4 * V::BYTES;
    let whole = head + (total - head) / unit * unit;
    // SAFETY: the caller's promise: every offset is below `total` on both sides.
    unsafe {
        (0..head).step_by(E).for_each(|at| single::<E>(from.add(at), to.add(at), key));
        let mut stirred = 0;
        for at in (head..whole).step_by(unit) {
            stirred = four::<V, E>(from.add(at), to.add(at), key, streaming, stirred);
        }
        (whole..total).step_by(E).for_each(|at| single::<E>(from.add(at), to.add(at), key));
    }
}

/// Copies the opaque pixels of four vectors. `stirred` is the number of groups still treated as mixed; returns its next
/// value.
///
/// # Safety
/// The vectors are readable and writable; a streamed destination begins at a line.
#[inline(always)]
unsafe fn four<V: Vector, const E: usize>(
    from: *const u8,
    to: *mut u8,
    key: Color24,
    streaming: bool,
    stirred: u32,
) -> u32 {
    let full = u64::MAX >> (64 - V::BYTES / E);
    // SAFETY: the caller's promise.
    unsafe {
        let load = |part: usize| V::load(from.add(part * V::BYTES));
        let vectors = [load(0), load(1), load(2), load(3)];
        let bits = vectors.map(|vector| vector.opaque::<E>(key));
        let any = bits[0] | bits[1] | bits[2] | bits[3];
        let all = bits[0] & bits[1] & bits[2] & bits[3];
        if any == 0 {
            return stirred.saturating_sub(1);
        }
        let mixed = all != full;
        if mixed || stirred > 0 {
            let ahead = to.wrapping_add(AHEAD_BYTES);
            (0..4 * V::BYTES).step_by(LINE).for_each(|line| V::prefetch(ahead.wrapping_add(line)));
        }
        for (part, (vector, bits)) in vectors.into_iter().zip(bits).enumerate() {
            let to = to.add(part * V::BYTES);
            if !mixed && streaming && stirred == 0 {
                vector.stream(to);
            } else if bits == full {
                vector.store(to);
            } else if bits != 0 {
                vector.store_pixels::<E>(to, bits);
            }
        }
        if mixed { STIRRED } else { stirred.saturating_sub(1) }
    }
}

/// Copies a pixel unless it has the key's colour.
///
/// # Safety
/// The pixel is readable and writable.
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
