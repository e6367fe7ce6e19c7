//! Which addresses of the device's are in use.
//!
//! ```text
//! range ── frame | guard page | frame | guard page | ... ──   the next one after the last, then from the start again
//! ```
//!
//! Behind each mapping a page stays unmapped, so that an access that runs on past its end is stopped, and finds no other memory.

use std::collections::BTreeMap;

use memferry_vfio::Range;

/// Mappings of at least this length begin on a multiple of it, so that the IOMMU can use large pages.
const LARGE: u64 = 2 << 20;

/// The addresses that the IOMMU maps, and those that are taken.
#[derive(Debug)]
pub(crate) struct Space {
    ranges: Vec<Range>,
    page: u64,
    /// Last addresses of mappings with their guard, by their start.
    taken: BTreeMap<u64, u64>,
    /// Where to look first.
    next: u64,
}

impl Space {
    pub(crate) fn new(ranges: Vec<Range>, page: u64) -> Self {
        Self { ranges, page, taken: BTreeMap::new(), next: 0 }
    }

    /// Takes so many bytes, a multiple of the page; `None` if there is no room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let start = self.find(self.next, bytes).or_else(|| self.find(0, bytes))?;
        let last = start + (bytes + self.page - 1);
        self.taken.insert(start, last);
        self.next = last.saturating_add(1);
        Some(start)
    }

    pub(crate) fn give_back(&mut self, start: u64) {
        self.taken.remove(&start);
    }

    /// The first free place at or after an address.
    fn find(&self, from: u64, bytes: u64) -> Option<u64> {
        let alignment = if bytes >= LARGE { LARGE } else { self.page };
        let whole = bytes.checked_add(self.page)?;
        for range in &self.ranges {
            // Address 0 is left out: a zero that was forgotten somewhere must not be memory.
            let mut start = from.max(range.first).max(self.page);
            while let Some(aligned) = start.checked_next_multiple_of(alignment) {
                let Some(last) = aligned.checked_add(whole - 1).filter(|last| *last <= range.last) else {
                    break;
                };
                match self.conflict(aligned, last) {
                    Some(taken) => start = taken.saturating_add(1),
                    None => return Some(aligned),
                }
            }
        }
        None
    }

    /// The last address of a mapping that has one from `first` to `last`.
    fn conflict(&self, first: u64, last: u64) -> Option<u64> {
        let (_, taken) = self.taken.range(..=last).next_back()?;
        (*taken >= first).then_some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn space(ranges: &[(u64, u64)]) -> Space {
        Space::new(ranges.iter().map(|&(first, last)| Range { first, last }).collect(), PAGE)
    }

    #[test]
    fn a_page_between_two_mappings_stays_free() {
        let mut space = space(&[(0, 0xFFFF)]);
        assert_eq!(
            [1, 2, 1].map(|pages| space.take(pages * PAGE)),
            [Some(0x1000), Some(0x3000), Some(0x6000)]
        );
        assert_eq!(space.take(8 * PAGE), None, "0x8000 to 0xffff have no room for the guard");
        assert_eq!(space.take(7 * PAGE), Some(0x8000));
        space.give_back(0x3000);
        assert_eq!(space.take(3 * PAGE), None);
        assert_eq!(space.take(2 * PAGE), Some(0x3000));
    }

    #[test]
    fn holes_and_ends_of_ranges_are_kept() {
        let mut space = space(&[(0, 0x5FFF), (0x8000, 0xBFFF), (u64::MAX - 0x1FFF, u64::MAX)]);
        assert_eq!(space.take(4 * PAGE), Some(0x1000));
        assert_eq!(space.take(3 * PAGE), Some(0x8000));
        assert_eq!(space.take(PAGE), Some(u64::MAX - 0x1FFF));
        assert_eq!(space.take(PAGE), None);
        assert_eq!(space.take(!(PAGE - 1)), None);
    }

    #[test]
    fn long_mappings_begin_on_large_pages() {
        let mut space = space(&[(0, (1 << 30) - 1)]);
        assert_eq!(space.take(PAGE), Some(PAGE));
        assert_eq!(space.take(LARGE), Some(LARGE));
        assert_eq!(space.take(PAGE), Some(2 * LARGE + PAGE));
    }

    #[test]
    fn no_two_mappings_share_a_page() {
        let mut random = 1_u64;
        let mut next = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let mut space = space(&[(0, 0xF_FFFF), (0x20_0000, 0x7F_FFFF)]);
        let mut held: Vec<u64> = Vec::new();
        for _ in 0..4000 {
            if next(3) == 0 && !held.is_empty() {
                let start = held.swap_remove(next(held.len() as u64) as usize);
                space.give_back(start);
            } else if let Some(start) = space.take((1 + next(600)) * PAGE) {
                held.push(start);
            }
            let ends: Vec<(u64, u64)> = space.taken.iter().map(|(start, last)| (*start, *last)).collect();
            assert_eq!(ends.len(), held.len());
            assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ends:x?}");
            let is_inside =
                |&(start, last): &(u64, u64)| last < 0x10_0000 || start >= 0x20_0000 && last < 0x80_0000;
            assert!(ends.iter().all(is_inside));
        }
        assert!(held.len() > 3);
    }
}
