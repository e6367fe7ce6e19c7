//! Lists of copies, and whether they may run in any order.
//!
//! ```text
//! push(from, to) ─ checks ─► copies, of which adjacent ones are one ─┐
//!                      └───► the memory that they lie in, held ──────┴─► a job
//! ```
//!
//! A list may have a thousand pieces of some KiB, so each of them must cost little.

use std::sync::Arc;

use crate::checks::{Copy, JobError, check_lengths, check_sides};
use crate::driver::DeviceAddress;
use crate::place::{Memory, Place};

/// Copies from ranges to ranges, in order or as if.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    copies: Vec<Copy>,
    /// Kept while the job runs.
    memories: Vec<Arc<dyn Memory>>,
    /// Of the piece pushed last.
    last: Option<[Place; 2]>,
    refused: Option<JobError>,
}

impl Pieces {
    /// Appends a piece. What is wrong with it is the error of the job that gets the list.
    pub fn push(&mut self, from: &Place, to: &Place) {
        let checked = check_lengths(from, to).and_then(|()| check_sides(from, to));
        match checked {
            Ok(()) => self.push_part((from, 0), (to, 0), from.length_bytes()),
            Err(error) => _ = self.refused.get_or_insert(error),
        }
    }

    /// Appends a piece whose sides were checked: so many bytes from one place, at an offset, to the other.
    pub(crate) fn push_part(
        &mut self,
        (from, from_at): (&Place, u64),
        (to, to_at): (&Place, u64),
        length: u64,
    ) {
        if length == 0 {
            return;
        }
        let next = Copy { from: from.address().plus(from_at), to: to.address().plus(to_at), length };
        let (is_from_held, is_to_held) = match &self.last {
            Some([last_from, last_to]) => (last_from.is_same_memory(from), last_to.is_same_memory(to)),
            None => (false, false),
        };
        if is_from_held && is_to_held {
            // Within one memory a piece may read what the one before wrote.
            let may_be_one = !from.is_same_memory(to);
            if let Some(run) = self.copies.last_mut()
                && may_be_one
                && run.from.plus(run.length) == next.from
                && run.to.plus(run.length) == next.to
            {
                run.length += length;
                return;
            }
        } else {
            if !is_from_held {
                self.memories.push(Arc::clone(from.memory()));
            }
            if !is_to_held {
                self.memories.push(Arc::clone(to.memory()));
            }
            self.last = Some([from.clone(), to.clone()]);
        }
        self.copies.push(next);
    }

    /// How many copies it has become.
    pub fn count(&self) -> usize {
        self.copies.len()
    }

    /// Takes the copies out, or the first error. The memory stays.
    pub(crate) fn take(&mut self) -> Result<Vec<Copy>, JobError> {
        match self.refused.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.copies)),
        }
    }
}

impl FromIterator<(Place, Place)> for Pieces {
    /// Of pairs of source and destination.
    fn from_iter<T: IntoIterator<Item = (Place, Place)>>(pairs: T) -> Self {
        let mut pieces = Self::default();
        pairs.into_iter().for_each(|(from, to)| pieces.push(&from, &to));
        pieces
    }
}

/// Blocks that are marked, at most, to find out whether two pieces have one in common.
const MOST_CELLS: u64 = 1 << 16;

/// A range for the device: its first address, and the one after its last.
type Span = (DeviceAddress, DeviceAddress);

/// Whether the copies may run in any order, and the device reaches all their memory by itself.
pub(crate) fn are_independent(copies: &[Copy]) -> bool {
    let mut read = Vec::with_capacity(copies.len());
    let mut written: Vec<Span> = Vec::with_capacity(copies.len());
    for copy in copies {
        let (Some(from), Some(to)) = (copy.from.by_device(), copy.to.by_device()) else { return false };
        read.push((from, from.plus(copy.length)));
        written.push((to, to.plus(copy.length)));
    }
    if are_apart(&read, &written) {
        return are_disjoint(written);
    }
    let reads = read.into_iter().map(|(start, end)| (start, end, false));
    let writes = written.into_iter().map(|(start, end)| (start, end, true));
    let mut spans: Vec<_> = reads.chain(writes).collect();
    spans.sort_unstable();
    let mut read_until = DeviceAddress(0);
    let mut written_until = DeviceAddress(0);
    for (start, end, writes) in spans {
        if start < written_until || (writes && start < read_until) {
            return false;
        }
        let until = if writes { &mut written_until } else { &mut read_until };
        *until = end.max(*until);
    }
    true
}

/// Whether no two of them have a byte in common.
fn are_disjoint(mut spans: Vec<Span>) -> bool {
    let Some((first, end)) = hull(&spans) else { return true };
    // Blocks of a cache begin and end at multiples of a block: marking these is much faster than sorting.
    let shift = spans.iter().fold(0, |bits, (start, end)| bits | start.0 | end.0).trailing_zeros();
    let cells = (end.0 - first.0) >> shift;
    if cells > MOST_CELLS {
        spans.sort_unstable();
        return spans.is_sorted_by(|one, next| one.1 <= next.0);
    }
    let mut taken = vec![0_u64; cells as usize / 64 + 1];
    let mut take = |cell: u64| {
        let word = &mut taken[cell as usize / 64];
        let bit = 1 << (cell % 64);
        std::mem::replace(word, *word | bit) & bit == 0
    };
    spans.iter().all(|(start, end)| ((start.0 - first.0) >> shift..(end.0 - first.0) >> shift).all(&mut take))
}

/// The first address of all, and the one after the last.
fn hull(spans: &[Span]) -> Option<Span> {
    Some((spans.iter().map(|span| span.0).min()?, spans.iter().map(|span| span.1).max()?))
}

/// Whether all of one lie before all of the other, as host memory and memory of the device do.
fn are_apart(one: &[Span], other: &[Span]) -> bool {
    match (hull(one), hull(other)) {
        (Some(one), Some(other)) => one.1 <= other.0 || other.1 <= one.0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Address;

    fn copies(ranges: &[(u64, u64, u64)]) -> Vec<Copy> {
        let address = |at| Address::Vram(DeviceAddress(at));
        let copy = |&(from, to, length)| Copy { from: address(from), to: address(to), length };
        ranges.iter().map(copy).collect()
    }

    #[test]
    fn copies_are_independent_unless_one_writes_what_another_touches() {
        for (ranges, expected) in [
            (&[(0, 1000, 10), (5, 1010, 10)][..], true),
            (&[(0, 1010, 10), (5, 1000, 11)], false),
            (&[(1000, 0, 10), (2000, 10, 10)], true),
            (&[(0, 1000, 10), (1005, 2000, 10)], false),
            (&[(1005, 2000, 10), (0, 1000, 10)], false),
            (&[(0, 1000, 10), (1010, 2000, 10)], true),
            (&[(0, 1000, 100), (50, 20, 10)], false),
            (&[(0, 1000, 10), (500, 1000, 10)], false),
            (&[(0, 1 << 20, 4096), (4096, (1 << 20) + 8192, 4096), (8192, (1 << 20) + 4096, 4096)], true),
            (&[(0, 1 << 20, 4096), (4096, (1 << 20) + 8192, 8192), (12288, (1 << 20) + 12288, 4096)], false),
            (&[(0, 1 << 40, 3), (9, 1 << 50, 3), (3, (1 << 40) + 3, 3)], true),
            (&[(0, 1 << 40, 3), (9, 1 << 50, 3), (3, (1 << 40) + 2, 3)], false),
            (&[], true),
        ] {
            assert_eq!(are_independent(&copies(ranges)), expected, "{ranges:?}");
        }
        let host = Copy { from: Address::Host(1), to: Address::Vram(DeviceAddress(5)), length: 1 };
        assert!(!are_independent(&[host]), "the device does not reach it");
    }
}
