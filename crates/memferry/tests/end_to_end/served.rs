//! Requests of every kind through a client, held against the oracle by the suite for whoever serves requests.

use memferry::{Failure, Queue, TransferError};
use memferry_conformance::requests::{self, Draft, RequestFixture, request_suite};
use memferry_transfer::{Operation, Segment};

use super::*;

/// A client as the suite for requests drives it.
struct Served {
    frames: Vec<Frame>,
    queue: Queue,
    /// Requests are performed, submitted, and submitted to the worker by turns.
    turns: u32,
}

impl RequestFixture for Served {
    fn run(&mut self, draft: &Draft) -> requests::Served {
        let transfer = match transfer(draft, &self.frames) {
            Ok(transfer) => transfer,
            Err(TransferError::Unequal { one_bytes, .. }) => {
                // The library sees what the service would say.
                let outcome = Err(Failure::SegmentTotals { source_bytes: one_bytes });
                return requests::Served { outcome, bytes_done: 0, value: 0 };
            }
            Err(error) => panic!("{error}"),
        };
        self.turns += 1;
        let mut submitted = |transfer| {
            let ticket = self.queue.submit(transfer).expect("room in the ring");
            self.queue.wait(ticket, PATIENCE).expect("a completion")
        };
        let Completion { outcome, bytes_done, value, .. } = match self.turns % 3 {
            0 => self.queue.perform(transfer).expect("room in the ring"),
            1 => submitted(transfer),
            // With a deadline it goes to the worker, short as it is.
            _ => submitted(transfer.within(Duration::from_secs(60))),
        };
        requests::Served { outcome, bytes_done, value }
    }

    fn fill(&mut self, frame: usize, bytes: &[u8]) {
        self.frames[frame].write(0, bytes).expect("the frame's own bytes");
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        contents(&self.frames[frame])
    }
}

/// The draft as a client writes it down.
fn transfer(draft: &Draft, frames: &[Frame]) -> Result<Transfer, TransferError> {
    let range = |(frame, offset): &(usize, u64), length| frames[*frame].range(*offset, length);
    let segments = |list: &[Segment<(usize, u64)>]| -> Vec<_> {
        list.iter().map(|segment| range(&segment.place, segment.length)).collect()
    };
    match draft {
        Operation::Nop => Ok(Transfer::nop()),
        Operation::Copy { source, destination, length } => {
            Transfer::copy(&range(source, *length), &range(destination, *length))
        }
        Operation::Fill { destination, length, pattern } => {
            Ok(Transfer::fill(&range(destination, *length), *pattern))
        }
        Operation::Copy2d { source, destination, shape } => {
            Ok(Transfer::copy_2d(&range(source, 0), &range(destination, 0), *shape))
        }
        Operation::Fill2d { destination, shape } => Ok(Transfer::fill_2d(&range(destination, 0), *shape)),
        Operation::ScatterGather { lists } => {
            Transfer::scatter_gather(&segments(&lists.source), &segments(&lists.destination))
        }
        Operation::Xor { sources, destination, length } => {
            let sources: Vec<_> = sources.iter().map(|source| range(source, *length)).collect();
            Transfer::xor(&sources, &range(destination, *length))
        }
        Operation::Compare { first, second, length } => {
            Transfer::compare(&range(first, *length), &range(second, *length))
        }
        Operation::Crc { source, length, seed } => Ok(Transfer::crc32c(&range(source, *length), *seed)),
        Operation::CopyCrc { source, destination, length, seed } => {
            Transfer::copy_crc32c(&range(source, *length), &range(destination, *length), *seed)
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            Transfer::dual_copy(&range(source, *length), [&range(one, *length), &range(other, *length)])
        }
        Operation::Synchronized { .. } => unreachable!("clients of a CPU engine have no device to name"),
    }
}

#[test]
fn requests_of_every_kind_are_as_the_oracle_has_them() {
    let client = client();
    let frames = (0..requests::FRAMES).map(|_| frame(&client)).collect();
    let queue = client.queue(8).expect("a queue");
    request_suite(Served { frames, queue, turns: 0 }, 200);
}
