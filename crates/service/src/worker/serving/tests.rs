//! Tests of one worker, whose turns the tests run, with a client that violates the rules.
//!
//! ```text
//! ClientEnd ─ slots, cancels ─► shared words ─► Worker::turn ─► completions, and the turn of each
//! ```

use std::sync::Arc;

use memferry_cpu::CpuEngine;
use memferry_cpu::team::CopyTeam;
use memferry_path::{PathLimits, PolicyKind};
use memferry_shm::frame;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, Layout};
use memferry_transfer::{
    Handle, Lists, MAX_SEGMENTS, Operation, Pattern, PriorityClass, Rights, Segment, SessionId, Span,
};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::counters::QueueCounters;
use crate::shared::{Clients, NewQueue, Shared, WorkerCommand, WorkerHandle};

const FRAME_BYTES: u64 = 1 << 20;

struct Bed {
    worker: Worker,
    client: ClientEnd<MappedWords>,
    frame: Handle,
}

/// Opens a queue of `user` and returns the client's end.
fn open(handle: &WorkerHandle, session: SessionId, user: u32) -> ClientEnd<MappedWords> {
    let layout = Layout::new(64).unwrap();
    let [of_client, of_service] = [layout.client_words(), layout.service_words()].map(|words| {
        let (_, mapping) = frame::allocate_sealed(words as u64 * 8, true).unwrap();
        MappedWords::new(mapping).unwrap()
    });
    let end = ServiceEnd::new(layout, of_client.clone(), of_service.clone(), Fences::Full).unwrap();
    let client = ClientEnd::new(layout, of_client, of_service, Fences::Full).unwrap();
    handle.send(WorkerCommand::Open(NewQueue {
        session,
        number: 0,
        user,
        class: PriorityClass::Normal,
        end: Box::new(end),
        doorbell: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        counters: Arc::new(QueueCounters::default()),
    }));
    client
}

impl Bed {
    /// A worker with one engine channel that moves 64 bytes per turn.
    fn new() -> Self {
        Self::with_waiting(64)
    }

    /// As [`new`](Self::new), for a user with `waiting_per_user` places for waiting requests.
    fn with_waiting(waiting_per_user: usize) -> Self {
        let session = SessionId(1);
        let shared = Arc::new(Shared::new(8, (1, Fences::Full), Arc::new(CopyTeam::new(0, |_| ()))).unwrap());
        let (_, memory) = frame::allocate_sealed(FRAME_BYTES, true).unwrap();
        let frame = Worker::capabilities(&shared).register(session, memory, Rights::all()).unwrap();
        let limits = PathLimits { waiting_per_user };
        let path = Path::new(WorkerEngine::new(CpuEngine::new(1, 64)), PolicyKind::Shared.build(), limits);
        let handle = Arc::new(WorkerHandle::new().unwrap());
        let worker =
            Worker::new(0, Arc::clone(&handle), shared, path, None, (false, Clients::Here, 64)).unwrap();
        let client = open(&handle, session, 0);
        let mut bed = Self { worker, client, frame };
        bed.worker.turn();
        bed
    }

    fn submit(&mut self, slot: &wire::SubmissionSlot) {
        self.client.stage(slot).unwrap();
        self.client.publish();
    }

    /// Runs turns until a request completes; returns its tag and the number of turns.
    fn next_completed_tag(&mut self) -> (u64, u32) {
        let (completion, turns) = self.next_completion();
        (completion.tag, turns)
    }

    fn next_completion(&mut self) -> (Completion, u32) {
        for turns in 1..1000 {
            self.worker.turn();
            if let Some(slot) = self.client.pop() {
                return (wire::decode_completion(&slot).unwrap(), turns);
            }
        }
        panic!("no request completes");
    }
}

#[test]
fn cancels_are_scanned_at_most_every_16_turns() {
    let mut bed = Bed::new();
    for tag in 0..4 {
        let request = Request::fill(Span::new(bed.frame, 0), FRAME_BYTES, Pattern::Byte(1));
        let mut slot = Default::default();
        let mut list = Default::default();
        wire::encode_request(tag, &request, &mut slot, &mut list).unwrap();
        bed.submit(&slot);
    }
    bed.worker.turn();
    for (tag, turns) in [(0, 1), (1, TURNS_PER_SCAN), (2, TURNS_PER_SCAN)] {
        bed.client.cancel(tag);
        assert_eq!(bed.next_completed_tag(), (tag, turns));
    }
    (0..TURNS_PER_SCAN).for_each(|_| assert!(bed.worker.turn()));
    bed.client.cancel(3);
    assert_eq!(bed.next_completed_tag(), (3, 1), "at once after turns without cancels");
}

#[test]
fn a_batch_is_limited_by_the_length_of_its_lists() {
    let mut bed = Bed::with_waiting(1 << 16);
    let empty = || vec![Segment { place: Span::new(bed.frame, 0), length: 0 }; MAX_SEGMENTS].into();
    let lists = Box::new(Lists { source: empty(), destination: empty() });
    let mut slot = Default::default();
    let mut list = Default::default();
    wire::encode_request(0, &Request::new(Operation::ScatterGather { lists }), &mut slot, &mut list).unwrap();
    wire::place_list(&mut slot, bed.client.stage_list(&list).unwrap());
    // All requests name the same list.
    (0..BATCH).for_each(|_| bed.submit(&slot));
    let mut taken = || {
        let before = bed.worker.handle.counters.requests.get();
        bed.worker.take_requests(0);
        bed.worker.handle.counters.requests.get() - before
    };
    assert_eq!([taken(), taken()], [2, 2]);
}

#[test]
fn transfers_of_a_resting_user_rest_but_end_when_cancelled() {
    let mut bed = Bed::new();
    let _other = open(&bed.worker.handle, SessionId(2), 1);
    bed.worker.turn();
    let mut slot = Default::default();
    let fill = Request::fill(Span::new(bed.frame, 0), FRAME_BYTES, Pattern::Byte(1));
    wire::encode_request(0, &fill, &mut slot, &mut Default::default()).unwrap();
    bed.submit(&slot);
    bed.worker.turn();
    let progress = |bed: &Bed| bed.client.progress(0).map_or(0, |(bytes, _)| bytes);
    let before = progress(&bed);
    assert!(bed.worker.turn() && progress(&bed) > before, "it runs");
    bed.worker.shares.rest(0, std::time::Duration::from_secs(60));
    let at_rest = progress(&bed);
    assert!((0..20).all(|_| !bed.worker.turn()), "the worker may sleep");
    assert_eq!(progress(&bed), at_rest);
    // The owner of the memory takes it back, and need not wait for the end of the rest.
    Worker::capabilities(&bed.worker.shared).revoke(SessionId(1), bed.frame).unwrap();
    bed.worker.handle.cancel_revoked();
    assert!(bed.next_completion().0.outcome.result.is_err());
}

#[test]
fn lists_beyond_the_waiting_quota_are_not_read() {
    let mut bed = Bed::new();
    let mut slot = Default::default();
    let mut list = Default::default();
    let fill = Request::fill(Span::new(bed.frame, 0), FRAME_BYTES, Pattern::Byte(1));
    wire::encode_request(0, &fill, &mut slot, &mut list).unwrap();
    bed.submit(&slot);
    let bytes = || vec![Segment { place: Span::new(bed.frame, 0), length: 1 }; MAX_SEGMENTS].into();
    let lists = Box::new(Lists { source: bytes(), destination: bytes() });
    let request = Request::new(Operation::ScatterGather { lists });
    wire::encode_request(1, &request, &mut slot, &mut list).unwrap();
    let whole = bed.client.stage_list(&list).unwrap();
    // Each counts as many waiting requests; together they use up the quota of 64.
    for tag in 1..3 {
        wire::encode_request(tag, &request, &mut slot, &mut list).unwrap();
        wire::place_list(&mut slot, whole);
        bed.submit(&slot);
        bed.worker.turn();
    }
    wire::encode_request(3, &request, &mut slot, &mut list).unwrap();
    wire::place_list(&mut slot, u64::MAX);
    bed.submit(&slot);
    let (completion, _) = bed.next_completion();
    assert_eq!(completion.tag, 3);
    assert_eq!(completion.outcome.result, Err(Failure::WaitingQuota { limit: 64 }), "not: malformed");
}

#[test]
fn hostile_xor_slots_are_refused_as_overlapping() {
    let mut bed = Bed::new();
    let at = |offset| Span::new(bed.frame, offset);
    // Performed at once and through a channel, as the last of 64 sources, and at the end of the frame.
    let with_last = |last| (0..63).map(|_| at(0)).chain([at(last)]).collect::<Vec<_>>();
    let end = FRAME_BYTES - 512;
    let slots = [
        (vec![at(1)], 0, 512, 0),
        (vec![at(0)], 1, 512, 0),
        (with_last(4608), 4097, 512, 63),
        (vec![at(8192), at(1)], 0, 65536, 0),
        (vec![at(end - 1)], end, 512, 0),
    ];
    let requests = slots.map(|(sources, to, length, operand)| {
        let operation = Operation::Xor { sources: sources.into(), destination: at(to), length };
        (Request::new(operation), operand)
    });
    for (tag, (request, operand)) in (0..).zip(requests) {
        let mut slot = Default::default();
        let mut list = Default::default();
        wire::encode_request(tag, &request, &mut slot, &mut list).unwrap();
        wire::place_list(&mut slot, bed.client.stage_list(&list).unwrap());
        bed.submit(&slot);
        let (completion, _) = bed.next_completion();
        let outcome = memferry_transfer::Outcome::refused(Failure::Overlap { operand });
        assert_eq!(completion, Completion { tag, inherited: false, outcome });
    }
}
