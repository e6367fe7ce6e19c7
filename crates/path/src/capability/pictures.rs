//! 2-D copies within one memory: which may be made, and in which order their pixels are moved.
//!
//! ```text
//! two walks ─ no byte in common, or equal ─────────────► as they are
//!           ─ one is the other, shifted; no pixel twice ─► walked from the end that overwrites nothing before it is read
//!           ─ otherwise: a turn in its own place ─────────► refused
//! ```
//!
//! The walks are compared as [`Rows`], without looking at single pixels: a client chooses the numbers, and admission takes the same
//! time for all of them.

use memferry_transfer::{Copy2d, Plane, Rows};

/// Two walks have bytes in common, and no order of the pixels gives what a copy over other memory would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tangled;

/// The copy with its pixels in an order in which none is overwritten before it is read. `source` and `destination` are the bytes
/// before the walks' frames of reference, in the memory that both have in common.
pub(super) fn in_safe_order(shape: &Copy2d, source: u64, destination: u64) -> Result<Copy2d, Tangled> {
    let from = Rows::new(&shape.count, &shape.source, source);
    let to = Rows::new(&shape.count, &shape.destination, destination);
    let (Some(from), Some(to)) = (from, to) else { return Ok(*shape) };
    let distance = to.first() - from.first();
    let rows = |plane: &Plane| plane.row_advance(&shape.count);
    let is_shift = (shape.count.x_count == 1 || shape.source.x_step == shape.destination.x_step)
        && (shape.count.y_count == 1 || rows(&shape.source) == rows(&shape.destination));
    if (is_shift && distance == 0) || !from.share_bytes(&to) {
        return Ok(*shape);
    }
    if !is_shift || !from.visits_once() {
        return Err(Tangled);
    }
    let [source, destination] = [(from, source), (to, destination)]
        .map(|(rows, before)| rows.plane(before, distance > 0).ok_or(Tangled));
    Ok(Copy2d { count: from.count(), source: source?, destination: destination?, ..*shape })
}

#[cfg(test)]
mod tests;
