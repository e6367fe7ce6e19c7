//! Plans an operation as a sequence of I/OAT descriptors.
//!
//! ```text
//! copy   chunks, downward if an upward copy would overwrite its source; if both overlap, fenced and at most their distance
//! fill   chunks of an eight-byte pattern, byte by byte until the destination is a multiple of eight
//! xor    chunks; with too many sources several passes over the same chunk, the destination being a source of later passes
//! lists  one copy for each part between segment ends; fenced if one part touches what another writes
//! ```
//!
//! Each step counts the bytes of the operation that it completes, so that the sum over finished steps is the progress.
//! Steps that belong together count with the last of them. No register is accessed here.

use memferry_ioat_registers::descriptor::MAX_SOURCES;
use memferry_transfer::{Lists, Operation, Pattern, Region};

use crate::copies::{Chunks, Cuts, Part};
use crate::memory::{DeviceMemory, Unplannable, address};

/// Work of one descriptor (an XOR may need an extension).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Null,
    Copy { source: u64, destination: u64, bytes: u64 },
    Fill { pattern: u64, destination: u64, bytes: u64 },
    Xor { sources: Vec<u64>, destination: u64, bytes: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) work: Work,
    /// Bytes of the operation completed with this step, including those of earlier steps that belong to it.
    pub(super) bytes: u64,
    /// Whether the operation may end after this step.
    pub(super) whole: bool,
    /// Whether the next step must wait, because it reads or overwrites what this one wrote.
    pub(super) fence: bool,
}

/// The rest of an operation.
#[derive(Debug)]
pub(super) enum Plan {
    Nothing,
    Null,
    Copy(Chunks),
    Fill(Fill),
    Xor(Xor),
    Lists(Box<Pieces>),
}

impl Plan {
    /// Plans steps of about `limit` bytes at most.
    ///
    /// # Errors
    /// If device memory is involved, or an XOR's destination partly overlaps a source.
    pub(super) fn of<M: DeviceMemory>(
        operation: &Operation<Region<M>>,
        limit: u64,
    ) -> Result<Self, Unplannable> {
        operation
            .visit(|_, region, _| if region.memory().is_device() { Err(Unplannable) } else { Ok(()) })?;
        Ok(match operation {
            Operation::Nop => Self::Null,
            Operation::Copy { source, destination, length } => {
                let whole =
                    Part { source: address(source), destination: address(destination), bytes: *length };
                Self::Copy(chunks(whole, limit))
            }
            Operation::Fill { destination, length, pattern } => {
                let destination = address(destination);
                Self::Fill(Fill { destination, length: *length, done: 0, pattern: *pattern, limit })
            }
            Operation::Xor { sources, destination, length } => {
                let sources = sources.iter().map(address).collect();
                Self::Xor(Xor::new(sources, (address(destination), *length), limit)?)
            }
            Operation::ScatterGather { lists } => Self::Lists(Box::new(Pieces::new(lists, limit))),
            _ => Self::Nothing,
        })
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        match self {
            Self::Nothing => None,
            Self::Null => {
                *self = Self::Nothing;
                Some(Step { work: Work::Null, bytes: 0, whole: true, fence: false })
            }
            Self::Copy(copy) => next_chunk(copy),
            Self::Fill(fill) => fill.next(),
            Self::Xor(xor) => xor.next(),
            Self::Lists(pieces) => pieces.next(),
        }
    }
}

fn next_chunk(chunks: &mut Chunks) -> Option<Step> {
    let Part { source, destination, bytes } = chunks.next()?;
    chunks.moved(bytes);
    Some(Step {
        work: Work::Copy { source, destination, bytes },
        bytes,
        whole: true,
        fence: chunks.overlaps(),
    })
}

/// Splits a copy; a descriptor holds a chunk in either direction.
fn chunks(whole: Part, limit: u64) -> Chunks {
    Chunks::new(whole, limit, limit)
}

#[derive(Debug)]
pub(super) struct Fill {
    destination: u64,
    length: u64,
    done: u64,
    pattern: Pattern,
    limit: u64,
}

impl Fill {
    fn next(&mut self) -> Option<Step> {
        let at = self.destination + self.done;
        let left = self.length - self.done;
        let word = self.pattern.word_bytes();
        let byte = |index: u64| word[((self.done + index) % 4) as usize];
        let uniform = word == [word[0]; 4];
        // At a multiple of eight it makes no difference whether the device aligns the pattern to the fill or to the address.
        let (limit, pattern) = if uniform || at.is_multiple_of(8) {
            ((self.limit & !7).max(8), [0, 1, 2, 3, 4, 5, 6, 7].map(byte))
        } else {
            (1, [byte(0); 8])
        };
        let bytes = left.min(limit);
        if bytes == 0 {
            return None;
        }
        self.done += bytes;
        let work = Work::Fill { pattern: u64::from_le_bytes(pattern), destination: at, bytes };
        Some(Step { work, bytes, whole: true, fence: false })
    }
}

#[derive(Debug)]
pub(super) struct Xor {
    sources: Vec<u64>,
    destination: u64,
    length: u64,
    done: u64,
    limit: u64,
    /// Sources already processed for the current chunk.
    seen: usize,
}

impl Xor {
    fn new(sources: Vec<u64>, (destination, length): (u64, u64), limit: u64) -> Result<Self, Unplannable> {
        let clashes = |source: &u64| *source != destination && source.abs_diff(destination) < length;
        if sources.iter().any(clashes) {
            return Err(Unplannable);
        }
        let (own, others): (Vec<u64>, Vec<u64>) =
            sources.into_iter().partition(|source| *source == destination);
        // The destination comes first, before it is overwritten. Pairs of it cancel out, so at most two are needed.
        let kept = if own.len() > 2 { 2 - own.len() % 2 } else { own.len() };
        let sources = own.into_iter().take(kept).chain(others).collect();
        Ok(Self { sources, destination, length, done: 0, limit, seen: 0 })
    }

    fn next(&mut self) -> Option<Step> {
        let bytes = (self.length - self.done).min(self.limit);
        if bytes == 0 {
            return None;
        }
        let at = |first: &u64| first + self.done;
        let destination = at(&self.destination);
        let before = (self.seen > 0).then_some(destination);
        let room = MAX_SOURCES - usize::from(before.is_some());
        let fresh = self.sources.get(self.seen..)?.iter().take(room).map(at);
        let sources: Vec<u64> = before.into_iter().chain(fresh).collect();
        self.seen += sources.len() - usize::from(before.is_some());
        let whole = self.seen >= self.sources.len();
        if whole {
            (self.done, self.seen) = (self.done + bytes, 0);
        }
        let work = match sources.as_slice() {
            [] => return None,
            [source] => Work::Copy { source: *source, destination, bytes },
            _ => Work::Xor { sources, destination, bytes },
        };
        Some(Step { work, bytes: if whole { bytes } else { 0 }, whole, fence: !whole })
    }
}

/// The parts of a scatter-gather list.
#[derive(Debug)]
pub(super) struct Pieces {
    cuts: Cuts,
    limit: u64,
    /// Whether a part touches what another one writes.
    ordered: bool,
    current: Option<Chunks>,
}

impl Pieces {
    fn new<M: DeviceMemory>(lists: &Lists<Region<M>>, limit: u64) -> Self {
        let cuts = Cuts::new(lists);
        let ordered = has_dependent_segments(cuts.left());
        Self { cuts, limit, ordered, current: None }
    }

    fn next(&mut self) -> Option<Step> {
        if self.current.is_none() {
            self.current = Some(chunks(self.cuts.take()?, self.limit));
        }
        let copy = self.current.as_mut()?;
        let mut step = next_chunk(copy)?;
        let over = copy.is_over();
        // The order within an overlapping part is visible, so its chunks count as one step.
        if copy.overlaps() {
            step.bytes = if over { copy.length() } else { 0 };
            step.whole = over;
        }
        step.fence |= self.ordered;
        if over {
            self.current = None;
        }
        Some(step)
    }
}

/// Whether a destination segment overlaps any other segment.
fn has_dependent_segments([from, to]: &[Vec<(u64, u64)>; 2]) -> bool {
    let read = from.iter().map(|(start, length)| (*start, start + length, false));
    let written = to.iter().map(|(start, length)| (*start, start + length, true));
    let mut all: Vec<(u64, u64, bool)> = read.chain(written).collect();
    all.sort_unstable();
    // Ends of the earlier segments: of the written ones, and of all.
    let mut written_until = 0;
    let mut until = 0;
    all.iter().any(|(start, end, writes)| {
        let overlaps = *start < written_until || (*writes && *start < until);
        until = until.max(*end);
        if *writes {
            written_until = written_until.max(*end);
        }
        overlaps
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_xor_pass_reads_the_destination() {
        let sources: Vec<u64> = (1..=17).map(|index| index * 0x1000).chain([0x10_0000; 3]).collect();
        let steps: Vec<Step> = {
            let mut xor = Xor::new(sources, (0x10_0000, 64), 48).unwrap();
            std::iter::from_fn(|| xor.next()).collect()
        };
        let shape: Vec<(usize, u64, bool, bool)> = steps
            .iter()
            .map(|step| match &step.work {
                Work::Xor { sources, .. } => (sources.len(), step.bytes, step.whole, step.fence),
                other => panic!("{other:?}"),
            })
            .collect();
        let passes = [(8, 0, false, true), (8, 0, false, true), (4, 48, true, false)];
        assert_eq!(shape[..3], passes);
        assert_eq!(shape[3..], passes.map(|(count, bytes, whole, fence)| (count, bytes / 3, whole, fence)));
        let firsts: Vec<u64> = steps
            .iter()
            .filter_map(
                |step| if let Work::Xor { sources, .. } = &step.work { Some(sources[0]) } else { None },
            )
            .collect();
        assert_eq!(firsts[..3], [0x10_0000; 3], "each pass has the destination once");
    }

    #[test]
    fn a_partly_overlapping_xor_is_refused() {
        assert!(Xor::new(vec![0, 0x1001], (0x1000, 2), 64).is_err());
        assert!(Xor::new(vec![0, 0x1002], (0x1000, 2), 64).is_ok());
    }

    #[test]
    fn unaligned_patterns_start_byte_by_byte() {
        let mut fill =
            Fill { destination: 5, length: 20, done: 0, pattern: Pattern::Word(0x0403_0201), limit: 8 };
        let steps: Vec<Work> = std::iter::from_fn(|| fill.next()).map(|step| step.work).collect();
        let byte = |value: u64, destination| Work::Fill {
            pattern: value * 0x0101_0101_0101_0101,
            destination,
            bytes: 1,
        };
        assert_eq!(steps[..3], [byte(1, 5), byte(2, 6), byte(3, 7)]);
        let pattern = 0x0302_0104_0302_0104;
        assert_eq!(steps[3], Work::Fill { pattern, destination: 8, bytes: 8 });
        assert_eq!(steps.last(), Some(&Work::Fill { pattern, destination: 24, bytes: 1 }));
    }

    #[test]
    fn only_dependent_lists_are_ordered() {
        let ordered =
            |from: &[(u64, u64)], to: &[(u64, u64)]| has_dependent_segments(&[from.into(), to.into()]);
        assert!(!ordered(&[(0, 8), (0, 8), (4, 8)], &[(100, 8), (108, 16)]));
        assert!(ordered(&[(0, 8)], &[(100, 8), (104, 8)]), "two writes overlap");
        assert!(ordered(&[(0, 8), (100, 4)], &[(102, 8)]), "a read and a write overlap");
        assert!(ordered(&[(101, 1)], &[(100, 8)]), "a read within a write");
        assert!(ordered(&[(0, 200)], &[(100, 8)]), "a write within a read");
    }
}
