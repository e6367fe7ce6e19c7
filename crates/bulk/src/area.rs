//! The circular area for contents too long for a slot. Space is returned in the order it was taken.
//!
//! ```text
//! take(bytes) ─► offset, bytes taken including a skipped rest of the lap ─ retired ─► give(taken)
//! ```

use crate::wire::AREA_BYTES;

/// Every offset is a multiple of this, so that two pieces share no cache line.
const LINE: u32 = 64;

/// The free part of a circular area.
#[derive(Debug, Default)]
pub(crate) struct Area {
    next: u32,
    used: u32,
}

impl Area {
    /// Takes space for `bytes`; returns its offset and the bytes taken. `None` while there is no room.
    pub(crate) fn take(&mut self, bytes: u32) -> Option<(u32, u32)> {
        let bytes = bytes.next_multiple_of(LINE);
        let rest = AREA_BYTES - self.next;
        let skipped = if bytes > rest { rest } else { 0 };
        let took = bytes + skipped;
        if took > AREA_BYTES - self.used {
            return None;
        }
        let at = if skipped > 0 { 0 } else { self.next };
        self.next = (at + bytes) % AREA_BYTES;
        self.used += took;
        Some((at, took))
    }

    /// Returns the oldest space.
    pub(crate) fn give(&mut self, took: u32) {
        self.used -= took;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::PIECE_BYTES;

    proptest! {
        #[test]
        fn places_in_use_share_no_byte(lengths in prop::collection::vec(prop_oneof![1..=PIECE_BYTES / 16, 1..=PIECE_BYTES], 1..300), keep in 1usize..20) {
            let mut area = Area::default();
            let mut held: VecDeque<(u32, u32, u32)> = VecDeque::new();
            for length in lengths {
                let place = loop {
                    match area.take(length) {
                        Some(place) => break place,
                        None => area.give(held.pop_front().expect("an empty area has room for any piece").2),
                    }
                };
                prop_assert!(place.0 + length <= AREA_BYTES && place.0.is_multiple_of(LINE));
                // A sender must not wait for room that cannot exist.
                prop_assert!(place.1 <= AREA_BYTES);
                for (at, other, _) in &held {
                    prop_assert!(place.0 + length <= *at || at + other <= place.0);
                }
                held.push_back((place.0, length, place.1));
                if held.len() > keep {
                    area.give(held.pop_front().map_or(0, |oldest| oldest.2));
                }
            }
        }
    }
}
