//! Splits operations into requests of the DSA.
//!
//! ```text
//! Operation ─► Plan ─ next ─► Step: a request without CRC's seed, its bytes, and whether it needs the steps before it
//! ```

use memferry_dsa::registers::descriptor::Operation as Hardware;
use memferry_transfer::{Operation, Pattern, Region};

use crate::copies::{Chunks, Cuts, Part};
use crate::memory::{DeviceMemory, Unplannable, address};

/// Shortest piece of a copy over itself that pays if there are many: the pieces wait for each other.
const SHORTEST_PIECE: u64 = 4096;
/// So many shorter ones are taken.
const MOST_SHORT_PIECES: u64 = 64;

/// What the device does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Bytes of a request at most.
    pub(super) limit: u64,
    /// A move may overlap itself. Otherwise a copy that does is cut into pieces as long as its distance.
    pub(super) overlapping_moves: bool,
}

/// A request to submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) operation: Hardware,
    /// Bytes that are done with it.
    pub(super) bytes: u64,
    /// Whether the operation may end after it.
    pub(super) whole: bool,
    /// It begins after the steps before it: their bytes or their CRC matter to it.
    pub(super) ordered: bool,
}

/// The steps of an operation.
#[derive(Debug)]
pub(super) enum Plan {
    Nothing,
    Nop,
    Copy(Chunks),
    /// Steps at equal distances; `next` makes the one at an offset and of a length.
    Linear {
        length: u64,
        done: u64,
        limit: u64,
        kind: Linear,
    },
    /// Both copies of a chunk, the second one pending.
    Dual {
        chunks: [Chunks; 2],
        second: bool,
    },
    Pieces {
        cuts: Cuts,
        rules: Rules,
        current: Option<Chunks>,
    },
    CrcThenCopy(Box<Plan>, Chunks),
}

/// An operation that goes upwards.
#[derive(Clone, Copy, Debug)]
pub(super) enum Linear {
    Fill { destination: u64, pattern: Pattern },
    Compare { first: u64, second: u64 },
    Crc { source: u64, seed: u32 },
    CopyCrc { source: u64, destination: u64, seed: u32 },
    Dualcast { source: u64, destinations: [u64; 2] },
}

impl Plan {
    /// The plan of an operation.
    ///
    /// # Errors
    /// If device memory is involved, or a copy over itself would take very many requests.
    pub(super) fn of<M: DeviceMemory>(
        operation: &Operation<Region<M>>,
        rules: Rules,
    ) -> Result<Self, Unplannable> {
        let limit = rules.limit;
        operation
            .visit(|_, region, _| if region.memory().is_device() { Err(Unplannable) } else { Ok(()) })?;
        let linear = |length: u64, kind| Self::Linear { length, done: 0, limit, kind };
        Ok(match operation {
            Operation::Nop => Self::Nop,
            Operation::Copy { source, destination, length } => {
                let part =
                    Part { source: address(source), destination: address(destination), bytes: *length };
                Self::Copy(rules.paying(part)?)
            }
            Operation::Fill { destination, length, pattern } => {
                linear(*length, Linear::Fill { destination: address(destination), pattern: *pattern })
            }
            Operation::Compare { first, second, length } => {
                linear(*length, Linear::Compare { first: address(first), second: address(second) })
            }
            Operation::Crc { source, length, seed } => {
                linear(*length, Linear::Crc { source: address(source), seed: *seed })
            }
            Operation::CopyCrc { source, destination, length, seed } => {
                let source = address(source);
                let destination = address(destination);
                if source.abs_diff(destination) < *length {
                    // The device refuses it: the CRC of the source, then a move.
                    let crc = linear(*length, Linear::Crc { source, seed: *seed });
                    let copy = rules.paying(Part { source, destination, bytes: *length })?;
                    return Ok(Self::CrcThenCopy(Box::new(crc), copy));
                }
                linear(*length, Linear::CopyCrc { source, destination, seed: *seed })
            }
            Operation::DualCopy { source, destinations, length } => {
                let source = address(source);
                let [first, second] = [address(&destinations[0]), address(&destinations[1])];
                let apart = |one: u64, other: u64| one.abs_diff(other) >= *length;
                let fits = (first ^ second) & 0xFFF == 0
                    && apart(first, second)
                    && apart(source, first)
                    && apart(source, second);
                if fits {
                    linear(*length, Linear::Dualcast { source, destinations: [first, second] })
                } else {
                    let bytes = *length;
                    let chunks = [first, second].map(|to| rules.cut(Part { source, destination: to, bytes }));
                    // Two registrations of the same memory: the second copy would read what the first one wrote.
                    let is_mixed = first != second && !apart(first, second);
                    if is_mixed || chunks.iter().any(Chunks::overlaps) {
                        return Err(Unplannable);
                    }
                    Self::Dual { chunks, second: false }
                }
            }
            Operation::ScatterGather { lists } => {
                let mut cuts = Cuts::new(lists);
                if !rules.overlapping_moves {
                    while let Some(part) = cuts.take() {
                        rules.paying(part)?;
                    }
                    cuts = Cuts::new(lists);
                }
                Self::Pieces { cuts, rules, current: None }
            }
            _ => Self::Nothing,
        })
    }
}

impl Rules {
    /// Chunks of a copy, in the order of a memmove.
    fn cut(self, part: Part) -> Chunks {
        if self.overlapping_moves {
            Chunks::of_moves(part, self.limit)
        } else {
            Chunks::new(part, self.limit, self.limit)
        }
    }

    /// As [`cut`](Self::cut), if the copy does not become very many requests because of its short distance.
    fn paying(self, part: Part) -> Result<Chunks, Unplannable> {
        let chunks = self.cut(part);
        let is_short = !self.overlapping_moves
            && chunks.overlaps()
            && part.source.abs_diff(part.destination) < SHORTEST_PIECE.min(self.limit);
        if is_short && chunks.count() > MOST_SHORT_PIECES { Err(Unplannable) } else { Ok(chunks) }
    }
}

fn next_chunk(chunks: &mut Chunks) -> Option<Step> {
    let Part { source, destination, bytes } = chunks.next()?;
    chunks.moved(bytes);
    let operation = Hardware::Move { source, destination, bytes: bytes as u32 };
    Some(Step { operation, bytes, whole: true, ordered: chunks.overlaps() })
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        match self {
            Self::Nothing => None,
            Self::Nop => {
                *self = Self::Nothing;
                Some(Step { operation: Hardware::Nop, bytes: 0, whole: true, ordered: false })
            }
            Self::Copy(chunks) => next_chunk(chunks),
            Self::CrcThenCopy(crc, copy) => {
                crc.next().map(|step| Step { bytes: 0, ..step }).or_else(|| next_chunk(copy))
            }
            Self::Linear { length, done, limit, kind } => {
                let bytes = (*length - *done).min(*limit);
                let at = *done;
                *done += bytes;
                (bytes > 0).then(|| linear_step(*kind, at, bytes))
            }
            Self::Dual { chunks, second } => {
                let mut step = next_chunk(&mut chunks[usize::from(*second)])?;
                if !*second {
                    (step.bytes, step.whole) = (0, false);
                }
                *second = !*second;
                Some(step)
            }
            Self::Pieces { cuts, rules, current } => {
                if current.is_none() {
                    *current = Some(rules.cut(cuts.take()?));
                }
                let copy = current.as_mut()?;
                let mut step = next_chunk(copy)?;
                let over = copy.is_over();
                // The order within an overlapping part is visible, so its chunks count as one step.
                if copy.overlaps() {
                    step.bytes = if over { copy.length() } else { 0 };
                    step.whole = over;
                }
                // A later segment may read what an earlier one writes.
                step.ordered = true;
                if over {
                    *current = None;
                }
                Some(step)
            }
        }
    }
}

fn linear_step(kind: Linear, at: u64, bytes: u64) -> Step {
    let size = bytes as u32;
    let (operation, ordered) = match kind {
        Linear::Fill { destination, pattern } => {
            let word = pattern.word_bytes();
            let pattern = core::array::from_fn(|index| word[((at + index as u64) % 4) as usize]);
            let pattern = u64::from_le_bytes(pattern);
            (Hardware::Fill { pattern, destination: destination + at, bytes: size }, false)
        }
        Linear::Compare { first, second } => {
            (Hardware::Compare { first: first + at, second: second + at, bytes: size }, false)
        }
        // The CRC of the steps before is filled in when they are done.
        Linear::Crc { source, seed } => (Hardware::Crc { source: source + at, bytes: size, seed }, true),
        Linear::CopyCrc { source, destination, seed } => {
            let operation =
                Hardware::CopyCrc { source: source + at, destination: destination + at, bytes: size, seed };
            (operation, true)
        }
        Linear::Dualcast { source, destinations } => {
            let destinations = destinations.map(|destination| destination + at);
            (Hardware::Dualcast { source: source + at, destinations, bytes: size }, false)
        }
    };
    Step { operation, bytes, whole: true, ordered }
}
