//! Drafts of requests: drawn at random, and written down as a client does.
//!
//! ```text
//! Random ─┬─ small: every kind, over four frames of a page, odd shapes, some out of bounds ─┐
//!         └─ long: copies, fills, sums of hundreds of kilobytes, odd offsets ───────────────┴─► Draft ─► Transfer
//! ```

use memferry::{Frame, Pattern, Transfer, TransferError};
use memferry_conformance::requests::{self, Draft};
use memferry_transfer::{Operation, Segment};
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::random::Random;

/// Bytes of the long frames: chunks of a worker and an odd rest.
pub(super) const LONG: u64 = (600 << 10) + 4096;

pub(super) struct Drafts {
    runner: TestRunner,
    small: BoxedStrategy<Draft>,
}

impl Drafts {
    pub(super) fn new(random: &mut Random) -> Self {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &random.seed());
        Self { runner: TestRunner::new_with_rng(Config::default(), rng), small: requests::draft().boxed() }
    }

    /// A request over frames of a page. `None` when none can be drawn, which does not happen.
    pub(super) fn small(&mut self) -> Option<Draft> {
        self.small.new_tree(&mut self.runner).ok().map(|tree| tree.current())
    }
}

/// A request over frames of [`LONG`] bytes, within them.
pub(super) fn long(random: &mut Random) -> Draft {
    let length = if random.once_in(8) { random.below(5000) } else { random.between(1 << 17, 1 << 19) };
    let mut place = |frame| (frame, random.below(LONG - length + 1));
    let source = place(0);
    let other = place(1);
    let own = place(0);
    let third = place(2);
    let seed = random.next() as u32;
    match random.below(8) {
        0 => Operation::Fill { destination: source, length, pattern: Pattern::Byte(seed as u8) },
        1 => Operation::Crc { source, length, seed },
        2 => Operation::CopyCrc { source, destination: other, length, seed },
        3 => Operation::Compare { first: source, second: other, length },
        4 => Operation::DualCopy { source, destinations: [other, third], length },
        5 => Operation::Xor { sources: Box::new([source, third]), destination: other, length },
        // Within one frame the two mostly overlap.
        6 => Operation::Copy { source, destination: own, length },
        _ => Operation::Copy { source, destination: other, length },
    }
}

/// The draft as a client writes it down.
pub(super) fn transfer(draft: &Draft, frames: &[Frame]) -> Result<Transfer, TransferError> {
    let range = |(frame, offset): &(usize, u64), length| frames[*frame].range(*offset, length);
    let segments = |list: &[Segment<(usize, u64)>]| -> Vec<_> {
        list.iter().map(|segment| range(&segment.place, segment.length)).collect()
    };
    Ok(match draft {
        // Clients of a service with CPUs have no device to name.
        Operation::Nop | Operation::Synchronized { .. } => Transfer::nop(),
        Operation::Copy { source, destination, length } => {
            Transfer::copy(&range(source, *length), &range(destination, *length))?
        }
        Operation::Fill { destination, length, pattern } => {
            Transfer::fill(&range(destination, *length), *pattern)
        }
        Operation::Copy2d { source, destination, shape } => {
            Transfer::copy_2d(&range(source, 0), &range(destination, 0), *shape)
        }
        Operation::Fill2d { destination, shape } => Transfer::fill_2d(&range(destination, 0), *shape),
        Operation::ScatterGather { lists } => {
            Transfer::scatter_gather(&segments(&lists.source), &segments(&lists.destination))?
        }
        Operation::Xor { sources, destination, length } => {
            let sources: Vec<_> = sources.iter().map(|source| range(source, *length)).collect();
            Transfer::xor(&sources, &range(destination, *length))?
        }
        Operation::Compare { first, second, length } => {
            Transfer::compare(&range(first, *length), &range(second, *length))?
        }
        Operation::Crc { source, length, seed } => Transfer::crc32c(&range(source, *length), *seed),
        Operation::CopyCrc { source, destination, length, seed } => {
            Transfer::copy_crc32c(&range(source, *length), &range(destination, *length), *seed)?
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            Transfer::dual_copy(&range(source, *length), [&range(one, *length), &range(other, *length)])?
        }
    })
}
