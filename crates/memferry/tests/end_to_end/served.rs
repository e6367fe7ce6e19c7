//! The conformance suite for requests, run through a client and compared with the oracle.

use memferry::{
    Client, Done, Failure, Frame, Grantee, InvalidTransfer, Queue, Region, Rights, RunError, SubmitError,
    SubmitReason, Transfer, TransferError, compare, copy, copy_2d, copy_crc32c, crc32c, dual_copy, fill,
    fill_2d, nop, scatter_gather, xor,
};
use memferry_conformance::requests::{self, Draft, RequestFixture, request_suite};
use memferry_transfer::{Operation, Segment};

use super::*;

/// Runs the requests of the suite, by one client after the other.
pub(crate) struct Served {
    /// The frames as their owners have them.
    frames: Vec<Frame>,
    users: Vec<User>,
    /// Number of requests; selects in turn `run`, `submit`, and `submit` to the worker, then the next client.
    turns: usize,
}

/// A client with a queue and frames: first only its own, in the suite also those that others have granted.
pub(crate) struct User {
    client: Client,
    frames: Vec<Frame>,
    queue: Queue,
    /// Through it go the bytes of frames that are not mapped here.
    staging: Frame,
}

impl User {
    /// A client with so many frames of its own.
    pub(crate) fn new(client: Client, frames: usize, allocate: impl Fn(&Client) -> Frame) -> Self {
        let frames = (0..frames).map(|_| allocate(&client)).collect();
        Self { frames, queue: client.queue(8).expect("a queue"), staging: frame(&client), client }
    }

    /// Uses this frame of its own for the bytes of frames that are not mapped here.
    #[allow(dead_code, reason = "for engines that do not have every frame of the host")]
    pub(crate) fn staged_by(self, staging: Frame) -> Self {
        Self { staging, ..self }
    }

    /// Writes all of an own frame.
    fn fill(&mut self, frame: &Frame, bytes: &[u8]) {
        if frame.pointer().is_some() {
            return frame.write(0, bytes).expect("access to the frame");
        }
        self.staging.write(0, bytes).expect("access to the frame");
        self.queue.run(copy(&self.staging, frame)).expect("a copy");
    }

    /// The bytes of an own frame.
    fn contents(&mut self, frame: &Frame) -> Vec<u8> {
        if frame.pointer().is_some() {
            return contents(frame);
        }
        self.queue.run(copy(frame, &self.staging)).expect("a copy");
        contents(&self.staging)
    }

    /// A frame as this client may use it.
    fn sees(&self, owner: &Client, frame: &Frame) -> Frame {
        if owner.session() == self.client.session() {
            return frame.clone();
        }
        let grant = owner.grant(frame, Rights::all(), Grantee::Session(self.client.session()));
        self.client.accept(grant.expect("granted").token()).expect("accepted")
    }

    /// Submits a transfer and waits for it.
    fn submitted(&mut self, transfer: Transfer<u64>) -> Result<Done<u64>, RunError<u64>> {
        let ticket = self.queue.submit(transfer)?;
        Ok(end_of(&mut self.queue, ticket)?)
    }
}

impl RequestFixture for Served {
    fn run(&mut self, draft: &Draft) -> requests::Served {
        let number = self.turns / 3 % self.users.len();
        let user = &mut self.users[number];
        let transfer = transfer(draft, &user.frames);
        self.turns += 1;
        let ended = match self.turns % 3 {
            0 => user.queue.run(transfer),
            1 => user.submitted(transfer),
            // A transfer with a deadline goes to the worker even if it is short.
            _ => user.submitted(transfer.within(Duration::from_secs(60))),
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
        let frame = self.frames[frame].clone();
        self.owner_of(&frame).fill(&frame, bytes);
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        let frame = self.frames[frame].clone();
        self.owner_of(&frame).contents(&frame)
    }
}

impl Served {
    /// The suite for these clients. Each uses its own frames and those of the others.
    pub(crate) fn new(mut users: Vec<User>) -> Self {
        let owned = users.iter().flat_map(|user| user.frames.iter().map(|frame| (&user.client, frame)));
        let frames = owned.clone().map(|(_, frame)| frame.clone()).collect();
        let seen = |user: &User| owned.clone().map(|(owner, frame)| user.sees(owner, frame)).collect();
        let seen: Vec<Vec<Frame>> = users.iter().map(seen).collect();
        for (user, frames) in users.iter_mut().zip(seen) {
            user.frames = frames;
        }
        Self { frames, users, turns: 0 }
    }

    fn owner_of(&mut self, frame: &Frame) -> &mut User {
        self.users.iter_mut().find(|user| user.client.owns(frame)).expect("an owner")
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

/// Runs so many cases of the suite by these clients in turn.
pub(crate) fn run_request_suite(users: Vec<User>, cases: u32) {
    request_suite(Served::new(users), cases);
}

#[test]
fn requests_of_every_kind_match_the_oracle() {
    let user = User::new(client(), requests::FRAMES, frame);
    run_request_suite(vec![user], 200);
}
