//! The conformance suite for requests, run through a client and compared with the oracle.

use memferry::{
    Done, Failure, Frame, InvalidTransfer, Queue, Region, RunError, SubmitError, SubmitReason, Transfer,
    TransferError, compare, copy, copy_2d, copy_crc32c, crc32c, dual_copy, fill, fill_2d, nop,
    scatter_gather, xor,
};
use memferry_conformance::requests::{self, Draft, RequestFixture, request_suite};
use memferry_transfer::{Operation, Segment};

use super::*;

/// Runs the requests of the suite.
pub(crate) struct Served {
    frames: Vec<Frame>,
    queue: Queue,
    /// Number of requests; selects in turn `run`, `submit`, and `submit` to the worker.
    turns: u32,
    /// Through it go the bytes of frames that are not mapped here.
    staging: Frame,
}

/// Runs the suite on frames that the client has allocated, one for each number.
pub(crate) fn suite_on(client: &Client, frame: impl Fn(usize) -> Frame, cases: u32) {
    request_suite(Served::new(client, frame), cases);
}

impl Served {
    pub(crate) fn new(client: &Client, frame: impl Fn(usize) -> Frame) -> Self {
        let frames = (0..requests::FRAMES).map(frame).collect();
        let queue = client.queue(8).expect("a queue");
        let staging = client.frame(FRAME_BYTES).alloc().expect("a frame");
        Self { frames, queue, turns: 0, staging }
    }

    /// Submits a transfer and waits for it.
    fn submitted(&mut self, transfer: Transfer<u64>) -> Result<Done<u64>, RunError<u64>> {
        let ticket = self.queue.submit(transfer)?;
        Ok(end_of(&mut self.queue, ticket)?)
    }
}

impl RequestFixture for Served {
    fn run(&mut self, draft: &Draft) -> requests::Served {
        let transfer = transfer(draft, &self.frames);
        self.turns += 1;
        let ended = match self.turns % 3 {
            0 => self.queue.run(transfer),
            1 => self.submitted(transfer),
            // A transfer with a deadline goes to the worker even if it is short.
            _ => self.submitted(transfer.within(Duration::from_secs(60))),
        };
        match ended {
            Ok(Done { bytes_done, output, .. }) => {
                requests::Served { outcome: Ok(()), bytes_done, value: output }
            }
            Err(RunError::Transfer(TransferError { failure, bytes_done, .. })) => {
                requests::Served { outcome: Err(failure), bytes_done, value: 0 }
            }
            Err(RunError::Submit(SubmitError {
                reason: SubmitReason::Invalid(InvalidTransfer::Unequal { one_bytes, .. }),
                ..
            })) => {
                // The client library refuses it with the error that the service would give.
                let outcome = Err(Failure::SegmentTotals { source_bytes: one_bytes });
                requests::Served { outcome, bytes_done: 0, value: 0 }
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn fill(&mut self, frame: usize, bytes: &[u8]) {
        if self.frames[frame].pointer().is_some() {
            return self.frames[frame].write(0, bytes).expect("access to the frame");
        }
        self.staging.write(0, bytes).expect("access to the frame");
        self.queue.run(copy(&self.staging, &self.frames[frame])).expect("a copy");
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        if self.frames[frame].pointer().is_some() {
            return contents(&self.frames[frame]);
        }
        self.queue.run(copy(&self.frames[frame], &self.staging)).expect("a copy");
        contents(&self.staging)
    }
}

/// Turns a draft into a transfer.
fn transfer(draft: &Draft, frames: &[Frame]) -> Transfer<u64> {
    let region =
        |(frame, offset): &(usize, u64), length: &u64| frames[*frame].slice(*offset..*offset + *length);
    let place = |(frame, offset): &(usize, u64)| frames[*frame].slice(*offset..);
    let regions = |list: &[Segment<(usize, u64)>]| -> Vec<Region> {
        list.iter().map(|segment| region(&segment.place, &segment.length)).collect()
    };
    match draft {
        Operation::Nop => nop().untyped(),
        Operation::Copy { source, destination, length } => {
            copy(region(source, length), region(destination, length)).untyped()
        }
        Operation::Fill { destination, length, pattern } => {
            fill(region(destination, length), *pattern).untyped()
        }
        Operation::Copy2d { source, destination, shape } => {
            copy_2d(place(source), place(destination), *shape).untyped()
        }
        Operation::Fill2d { destination, shape } => fill_2d(place(destination), *shape).untyped(),
        Operation::ScatterGather { lists } => {
            scatter_gather(regions(&lists.source), regions(&lists.destination)).untyped()
        }
        Operation::Xor { sources, destination, length } => {
            let sources = sources.iter().map(|source| region(source, length));
            xor(sources, region(destination, length)).untyped()
        }
        Operation::Compare { first, second, length } => {
            compare(region(first, length), region(second, length)).untyped()
        }
        Operation::Crc { source, length, seed } => crc32c(region(source, length)).seed(*seed).untyped(),
        Operation::CopyCrc { source, destination, length, seed } => {
            copy_crc32c(region(source, length), region(destination, length)).seed(*seed).untyped()
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            dual_copy(region(source, length), [region(one, length), region(other, length)]).untyped()
        }
        Operation::Synchronized { .. } => unreachable!("a service without devices gets no such request"),
    }
}

#[test]
fn requests_of_every_kind_match_the_oracle() {
    let client = client();
    suite_on(&client, |_| frame(&client), 200);
}
