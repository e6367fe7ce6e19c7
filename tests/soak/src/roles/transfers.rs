//! Draws random requests and converts them to the client's transfers.
//!
//! ```text
//! Random ─┬─ small: every kind, over four frames of a page, odd shapes, some out of bounds ─┐
//!         └─ long: copies, fills, sums of hundreds of kilobytes, odd offsets ───────────────┴─► Draft ─► Transfer
//! ```

use memferry::{
    Frame, Pattern, Transfer, compare, copy, copy_2d, copy_crc32c, crc32c, dual_copy, fill, fill_2d, nop,
    scatter_gather, xor,
};
use memferry_conformance::requests::{self, Draft};
use memferry_transfer::{Operation, Segment, Side};
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::random::Random;

/// Bytes of the long frames: several chunks of a worker and a remainder.
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

    /// A request over frames of one page. `None` if none can be drawn, which does not happen.
    pub(super) fn small(&mut self) -> Option<Draft> {
        self.small.new_tree(&mut self.runner).ok().map(|tree| tree.current())
    }
}

/// A request within frames of [`LONG`] bytes.
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
        // Within one frame, source and destination mostly overlap.
        6 => Operation::Copy { source, destination: own, length },
        _ => Operation::Copy { source, destination: other, length },
    }
}

/// Whether the two lists of a scatter-gather draft have equal lengths. The library refuses others.
pub(super) fn is_even(draft: &Draft) -> bool {
    match draft {
        Operation::ScatterGather { lists } => {
            lists.total_bytes(Side::Source) == lists.total_bytes(Side::Destination)
        }
        _ => true,
    }
}

/// Converts a draft to a transfer.
pub(super) fn transfer(draft: &Draft, frames: &[Frame]) -> Transfer<u64> {
    let range = |(frame, offset): &(usize, u64), length| frames[*frame].slice(*offset..*offset + length);
    let segments = |list: &[Segment<(usize, u64)>]| -> Vec<_> {
        list.iter().map(|segment| range(&segment.place, segment.length)).collect()
    };
    match draft {
        // Clients of a service without devices cannot name one.
        Operation::Nop | Operation::Synchronized { .. } => nop().untyped(),
        Operation::Copy { source, destination, length } => {
            copy(range(source, *length), range(destination, *length)).untyped()
        }
        Operation::Fill { destination, length, pattern } => {
            fill(range(destination, *length), *pattern).untyped()
        }
        Operation::Copy2d { source, destination, shape } => {
            copy_2d(range(source, 0), range(destination, 0), *shape).untyped()
        }
        Operation::Fill2d { destination, shape } => fill_2d(range(destination, 0), *shape).untyped(),
        Operation::ScatterGather { lists } => {
            scatter_gather(segments(&lists.source), segments(&lists.destination)).untyped()
        }
        Operation::Xor { sources, destination, length } => {
            let sources = sources.iter().map(|source| range(source, *length));
            xor(sources, range(destination, *length)).untyped()
        }
        Operation::Compare { first, second, length } => {
            compare(range(first, *length), range(second, *length)).untyped()
        }
        Operation::Crc { source, length, seed } => crc32c(range(source, *length)).seed(*seed).untyped(),
        Operation::CopyCrc { source, destination, length, seed } => {
            copy_crc32c(range(source, *length), range(destination, *length)).seed(*seed).untyped()
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            dual_copy(range(source, *length), [range(one, *length), range(other, *length)]).untyped()
        }
    }
}
