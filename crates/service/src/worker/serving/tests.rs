//! Tests of one worker, whose turns the tests run, with a client that violates the rules.
//!
//! ```text
//! ClientEnd ─ slots, cancels ─► shared words ─► Worker::turn ─► completions, and the turn of each
//! ```

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant as Stopwatch};

use memferry_cpu::CpuEngine;
use memferry_cpu::team::{Activity, CopyTeam};
use memferry_external::{ExternalFrame, Lost};
use memferry_path::{PathLimits, PolicyKind};
use memferry_shm::frame;
use memferry_shm::mapping::Access;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, Layout, ParkedWord};
use memferry_transfer::{
    Handle, Lists, MAX_SEGMENTS, Operation, Pattern, PriorityClass, Rights, Segment, SessionId, Span,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::Spins;
use super::super::pace::{LOOKS, LookPace};
use super::super::queues::TURNS_PER_SCAN;
use super::*;
use crate::bells::{Bell, QueueBells};
use crate::counters::{Loads, QueueCounters};
use crate::engine_id::EngineId;
use crate::shared::{Clients, NewQueue, Shared, WorkerCommand, WorkerHandle};
use crate::worker_engine::tests::unserved;

const FRAME_BYTES: u64 = 1 << 20;

struct Bed {
    worker: Worker,
    client: ClientEnd<MappedWords>,
    frame: Handle,
}

/// Opens a queue of `user` and returns the client's end.
fn open(handle: &WorkerHandle, session: SessionId, user: u32) -> ClientEnd<MappedWords> {
    open_with(handle, session, user, QueueBells::with_doorbell().0)
}

fn open_with(
    handle: &WorkerHandle,
    session: SessionId,
    user: u32,
    bells: QueueBells,
) -> ClientEnd<MappedWords> {
    let layout = Layout::new(64).unwrap();
    let [of_client, of_service] = [layout.client_words(), layout.service_words()].map(|words| {
        let (_, mapping) = frame::allocate_sealed(words as u64 * 8, true).unwrap();
        MappedWords::new(mapping).unwrap()
    });
    let end = ServiceEnd::new(layout, of_client.clone(), of_service.clone(), Fences::Full).unwrap();
    let bytes = ParkedWord::<MappedWords>::BYTES;
    let parked = handle.parked_memory().unwrap();
    let parked = Mapping::shared(parked.as_fd(), bytes, Access::ReadOnly, 4096).unwrap();
    let parked = MappedWords::new(parked).unwrap();
    let client = ClientEnd::new(layout, of_client, of_service, parked, Fences::Full).unwrap();
    handle.send(WorkerCommand::Open(NewQueue {
        session,
        number: 0,
        user,
        class: PriorityClass::Normal,
        end: Box::new(end),
        bells,
        target: None,
        counters: Arc::new(QueueCounters::at(0, &Loads::new(1))),
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
        let handles = WorkerHandle::all(1).unwrap();
        let handle = Arc::clone(&handles[0]);
        let team = Arc::new(CopyTeam::new(1, |_| ()));
        let shared = Arc::new(Shared::new(8, (handles, vec![0], Fences::Full), team, 1).unwrap());
        let (_, memory) = frame::allocate_sealed(FRAME_BYTES, true).unwrap();
        let frame = Worker::capabilities(&shared).register(session, memory, Rights::all()).unwrap();
        let limits = PathLimits { waiting_per_user };
        let path = Path::new(WorkerEngine::new(CpuEngine::new(1, 64)), PolicyKind::Shared.build(), limits);
        let worker =
            Worker::new(0, Arc::clone(&handle), shared, path, None, (Spins::No, Clients::Here, 64)).unwrap();
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
    fn next_completed_tag(&mut self) -> (u32, u32) {
        let (completion, turns) = self.next_completion();
        (completion.tag as u32, turns)
    }

    fn next_completion(&mut self) -> (Completion, u32) {
        for turns in 1..1000 {
            self.worker.turn();
            if let Some(slot) = self.client.pop() {
                return (wire::decode_completion(&slot, 0).unwrap(), turns);
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
        let slot = wire::encode_request(tag, &request, &mut Default::default()).unwrap();
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
    let lists = Arc::new(Lists { source: empty(), destination: empty() });
    let mut list = Default::default();
    let mut slot =
        wire::encode_request(0, &Request::new(Operation::ScatterGather { lists }), &mut list).unwrap();
    wire::place_list(&mut slot, bed.client.stage_list(&list).unwrap());
    // All requests name the same list.
    (0..BATCH).for_each(|_| bed.submit(&slot));
    let mut taken = || {
        let before = bed.worker.handle.counters.requests.get();
        bed.worker.take_requests(0);
        bed.worker.handle.counters.requests.get() - before
    };
    assert_eq!([taken(), taken()], [1, 1]);
}

#[test]
fn transfers_of_a_resting_user_rest_but_end_when_cancelled() {
    let mut bed = Bed::new();
    let _other = open(&bed.worker.handle, SessionId(2), 1);
    bed.worker.turn();
    let fill = Request::fill(Span::new(bed.frame, 0), FRAME_BYTES, Pattern::Byte(1));
    let slot = wire::encode_request(0, &fill, &mut Default::default()).unwrap();
    bed.submit(&slot);
    bed.worker.turn();
    let progress = |bed: &Bed| bed.client.progress(0).map_or(0, |(bytes, _)| bytes);
    let before = progress(&bed);
    assert!(bed.worker.turn() && progress(&bed) > before, "it runs");
    bed.worker.shares.rest(0, Duration::from_secs(60));
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
    let mut list = Default::default();
    let fill = Request::fill(Span::new(bed.frame, 0), FRAME_BYTES, Pattern::Byte(1));
    bed.submit(&wire::encode_request(0, &fill, &mut list).unwrap());
    let bytes = || vec![Segment { place: Span::new(bed.frame, 0), length: 1 }; MAX_SEGMENTS].into();
    let lists = Arc::new(Lists { source: bytes(), destination: bytes() });
    let request = Request::new(Operation::ScatterGather { lists });
    let mut slot = wire::encode_request(1, &request, &mut list).unwrap();
    let whole = bed.client.stage_list(&list).unwrap();
    // Each counts as many waiting requests; together they use up the quota of 64.
    for tag in 1..3 {
        slot[0] = wire::with_tag(slot[0], tag);
        wire::place_list(&mut slot, whole);
        bed.submit(&slot);
        bed.worker.turn();
    }
    slot[0] = wire::with_tag(slot[0], 3);
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
        let mut list = Default::default();
        let mut slot = wire::encode_request(tag, &request, &mut list).unwrap();
        wire::place_list(&mut slot, bed.client.stage_list(&list).unwrap());
        bed.submit(&slot);
        let (completion, _) = bed.next_completion();
        let outcome = memferry_transfer::Outcome::refused(Failure::Overlap { operand });
        assert_eq!(completion, Completion { tag: tag.into(), inherited: false, outcome });
    }
}

/// Queues of the tests of dormant ones: so many that all become dormant.
const MANY: usize = 40;

fn nop(client: &mut ClientEnd<MappedWords>) -> bool {
    let slot = wire::encode_request(1, &Request::new(Operation::Nop), &mut Default::default()).unwrap();
    client.stage(&slot).unwrap();
    client.publish()
}

impl Bed {
    fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.worker.turn();
        }
    }

    /// Opens [`MANY`] queues, each of another session of `user`, and lets all queues become dormant.
    fn with_dormant(user: u32) -> (Self, Vec<ClientEnd<MappedWords>>) {
        let mut bed = Self::new();
        // Time does not pass, so that a turn looks at as few as it may.
        static START: LazyLock<Stopwatch> = LazyLock::new(Stopwatch::now);
        bed.worker.pace = LookPace::by(|| *START);
        let clients = (2..).take(MANY).map(|id| open(&bed.worker.handle, SessionId(id), user)).collect();
        bed.worker.turn();
        assert_eq!(bed.worker.queues.awake().len(), MANY + 1);
        bed.turns(1024);
        assert_eq!((bed.worker.queues.awake().len(), bed.worker.queues.dormant()), (0, MANY + 1));
        (bed, clients)
    }
}

#[test]
fn dormant_queues_are_served_within_a_round() {
    let (mut bed, mut clients) = Bed::with_dormant(0);
    for client in &mut clients {
        assert!(!nop(client), "the worker is awake");
    }
    let round = (MANY + 1).div_ceil(LOOKS);
    for turns in 1..=round {
        assert!(bed.worker.turn());
        assert!(bed.worker.queues.awake().len() <= turns * LOOKS, "a turn looks at few");
    }
    assert!(clients.iter_mut().all(|client| client.pop().is_some()));
    bed.client.cancel(7);
    assert!((0..round).any(|_| {
        bed.worker.turn();
        bed.worker.queues.awake().contains(&0)
    }));
}

#[test]
fn few_queues_are_never_dormant() {
    let mut bed = Bed::new();
    bed.turns(2000);
    assert_eq!(bed.worker.queues.dormant(), 0);
}

#[test]
fn a_worker_does_not_sleep_with_a_request_in_a_dormant_queue() {
    let (mut bed, mut clients) = Bed::with_dormant(0);
    nop(&mut clients[MANY - 1]);
    bed.worker.park();
    assert_eq!(bed.worker.handle.counters.parks.get(), 0);
    bed.worker.turn();
    assert!(clients[MANY - 1].pop().is_some(), "the check before the sleep found it");
}

#[test]
fn a_doorbell_wakes_the_worker_and_its_queue() {
    let (mut bed, _clients) = Bed::with_dormant(0);
    let (bells, doorbell) = QueueBells::with_doorbell();
    let mut client = open_with(&bed.worker.handle, SessionId(1000), 0, bells);
    bed.turns(1024);
    let _ = rustix::io::read(&bed.worker.handle.wake, &mut [0; 8]);
    assert_eq!(bed.worker.queues.dormant(), MANY + 2);
    // The write comes before the sleep, which therefore ends at once.
    rustix::io::write(&doorbell, &1u64.to_ne_bytes()).unwrap();
    bed.worker.park();
    assert_eq!(bed.worker.handle.counters.parks.get(), 1);
    nop(&mut client);
    bed.worker.turn();
    assert_eq!(bed.worker.queues.awake(), [MANY + 1], "the first turn looks at all");
}

#[test]
fn clients_of_all_queues_see_a_sleeping_worker() {
    let (mut bed, mut clients) = Bed::with_dormant(0);
    bed.worker.handle.parked.set(1);
    assert!(clients.iter_mut().chain([&mut bed.client]).all(nop));
    bed.worker.handle.parked.set(0);
    assert!(clients.iter_mut().chain([&mut bed.client]).all(|client| !nop(client)));
}

#[test]
fn counters_of_dormant_queues_are_right() {
    let (mut bed, _clients) = Bed::with_dormant(0);
    for tag in 0..2 {
        // Longer than a queue stays awake.
        let request = Request::fill(Span::new(bed.frame, 0), 64 * 1500, Pattern::Byte(1));
        bed.submit(&wire::encode_request(tag, &request, &mut Default::default()).unwrap());
    }
    let waiting = |bed: &Bed| bed.worker.queues.get(0).unwrap().counters.totals().waiting;
    bed.turns(1000);
    assert_eq!((bed.worker.queues.awake().len(), waiting(&bed)), (0, 1));
    bed.turns(1000);
    assert_eq!((bed.worker.queues.awake().len(), waiting(&bed)), (0, 0));
}

#[test]
fn closed_dormant_queues_are_released() {
    let (mut bed, mut clients) = Bed::with_dormant(0);
    for id in 2..2 + MANY as u64 - 1 {
        bed.worker.handle.send(WorkerCommand::CloseSession { session: SessionId(id) });
    }
    bed.worker.turn();
    assert!(clients[..MANY - 1].iter().all(ClientEnd::closed));
    assert_eq!((bed.worker.queues.count(), bed.worker.queues.dormant()), (2, 2));
    assert!(bed.worker.queues.closing().is_empty());
    // The keys and lists are used again, and few queues are awake again.
    let again = open(&bed.worker.handle, SessionId(99), 0);
    bed.turns(1024);
    assert_eq!((bed.worker.queues.awake().len(), bed.worker.queues.dormant()), (3, 0));
    nop(&mut clients[MANY - 1]);
    bed.worker.turn();
    assert!(clients[MANY - 1].pop().is_some() && !again.closed());
}

#[test]
fn a_dormant_queue_of_a_resting_user_rests() {
    let (mut bed, mut clients) = Bed::with_dormant(1);
    bed.worker.shares.rest(1, Duration::from_secs(60));
    nop(&mut clients[3]);
    (0..MANY).for_each(|_| assert!(!bed.worker.turn(), "the worker may sleep"));
    assert_eq!(bed.worker.queues.awake(), []);
    assert!(!bed.worker.has_news(usize::MAX));
    bed.worker.shares.rest(1, Duration::ZERO);
    assert!((0..MANY).any(|_| bed.worker.turn()));
    assert!(clients[3].pop().is_some());
}

#[test]
fn completions_do_not_wait_for_the_table() {
    let mut bed = Bed::new();
    let shared = Arc::clone(&bed.worker.shared);
    assert!((0..2).all(|_| !nop(&mut bed.client)), "the worker is awake");
    let fill = Request::fill(Span::new(bed.frame, 0), FRAME_BYTES, Pattern::Byte(1));
    bed.submit(&wire::encode_request(3, &fill, &mut Default::default()).unwrap());
    let Bed { mut worker, client, .. } = bed;
    client.parked().store(ClientEnd::<MappedWords>::parked_for_completions(), Ordering::SeqCst);
    let before = client.wake_word().load(Ordering::Acquire);
    let wakes = || client.wake_word().load(Ordering::Acquire) - before;
    let table = Worker::capabilities(&shared);
    let woken = std::thread::scope(|scope| {
        // The fill makes it wait for the table.
        scope.spawn(|| worker.turn());
        let started = Stopwatch::now();
        while wakes() < 2 && started.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let woken = wakes();
        drop(table);
        woken
    });
    assert_eq!(woken, 2, "after the first nop, and after the second");
}

#[test]
fn a_list_is_the_services_until_it_was_read() {
    let mut bed = Bed::new();
    let empty = || vec![Segment { place: Span::new(bed.frame, 0), length: 0 }; MAX_SEGMENTS].into();
    let lists = Arc::new(Lists { source: empty(), destination: empty() });
    let mut list = Default::default();
    let mut slot =
        wire::encode_request(9, &Request::new(Operation::ScatterGather { lists }), &mut list).unwrap();
    // So many are done first that the count of taken requests is due.
    (1..BATCH).for_each(|_| _ = nop(&mut bed.client));
    let mut lists_of_client = 0;
    while let Ok(first) = bed.client.stage_list(&list) {
        lists_of_client += 1;
        wire::place_list(&mut slot, first);
        bed.submit(&slot);
    }
    let mut batch = Batch::default();
    let first = bed.worker.take_plain(0, &mut batch).unwrap().expect("the first one with a list");
    assert_eq!(batch.done, BATCH as u64 - 1);
    bed.worker.publish_done(0);
    assert!((1..BATCH).all(|_| bed.client.pop().is_some()));
    assert!(bed.client.stage_list(&list).is_err(), "of {lists_of_client} lists none was read");
    bed.worker.take_others(0, first, &mut batch).unwrap();
    bed.worker.queues.get_mut(0).unwrap().end.publish_all_consumed();
    assert!(bed.client.stage_list(&list).is_ok());
}

#[test]
fn only_a_client_that_sleeps_is_woken() {
    let wakes = |flag: u64, nops: usize, fill_bytes: u64| {
        let mut bed = Bed::new();
        bed.client.parked().store(flag, Ordering::SeqCst);
        let before = bed.client.wake_word().load(Ordering::Acquire);
        for _ in 0..nops {
            nop(&mut bed.client);
        }
        if fill_bytes > 0 {
            let fill = Request::fill(Span::new(bed.frame, 0), fill_bytes, Pattern::Byte(1));
            bed.submit(&wire::encode_request(9, &fill, &mut Default::default()).unwrap());
        }
        bed.worker.turn();
        assert!(bed.client.pop().is_some());
        bed.client.wake_word().load(Ordering::Acquire) - before
    };
    let sleeps = ClientEnd::<MappedWords>::parked_for_completions();
    // One that is plain, two before one that waits for the table, and one that is done at once with the table locked.
    for (nops, fill_bytes, expected) in [(1, 0, 1), (2, FRAME_BYTES, 2), (0, 64, 1)] {
        assert_eq!(wakes(sleeps, nops, fill_bytes), expected, "{nops} nops, {fill_bytes} bytes");
        assert_eq!(wakes(0, nops, fill_bytes), 0, "{nops} nops, {fill_bytes} bytes");
    }
}

impl Bed {
    /// Gives the worker an engine process that nobody serves, and returns the engine's doorbell.
    fn add_engine(&mut self, id: EngineId) -> OwnedFd {
        let (doorbell, mut bells) = Bell::of_engine(1).unwrap();
        let engine = Box::new(unserved());
        let bell = bells.remove(0);
        self.worker.handle.send(WorkerCommand::Engine { id, engine, shortest_bytes: 1, bell });
        self.worker.turn();
        doorbell
    }
}

#[test]
fn a_sleep_takes_all_that_rang() {
    let mut bed = Bed::new();
    let (bells, of_client) = QueueBells::with_doorbell();
    let _client = open_with(&bed.worker.handle, SessionId(2), 0, bells);
    let of_engine = bed.add_engine(EngineId { index: 0, number: 1 });
    let rung = |worker: &Worker| {
        let bells = worker.queues.bells().chain(worker.path.engine().external_bells()).map(AsFd::as_fd);
        let all = bells.chain([worker.handle.wake.as_fd()]);
        let mut entries: Vec<_> = all.map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)).collect();
        poll(&mut entries, Some(&Timespec::default())).unwrap()
    };
    for doorbell in [&of_client, &of_engine] {
        rustix::io::write(doorbell, &1u64.to_ne_bytes()).unwrap();
    }
    assert_eq!(rung(&bed.worker), 3, "the commands woke the worker");
    bed.worker.sleep(None);
    assert_eq!(rung(&bed.worker), 0, "or no later sleep would last");
}

#[test]
fn what_a_gone_engine_did_is_counted() {
    const BYTES: u64 = 4096;
    let mut bed = Bed::new();
    let id = EngineId { index: 0, number: 1 };
    let _doorbell = bed.add_engine(id);
    let far = Mapping::reserved(BYTES as usize).unwrap();
    let handle =
        Worker::capabilities(&bed.worker.shared).register(SessionId(1), far.clone(), Rights::all()).unwrap();
    let frame = ExternalFrame { handle: Handle::new(1, 1), length: BYTES, is_writable: true, is_own: true };
    bed.worker.handle.send(WorkerCommand::EngineFrames(id, vec![(far, frame)]));
    let fill = Request::fill(Span::new(handle, 0), BYTES, Pattern::Byte(1));
    bed.submit(&wire::encode_request(1, &fill, &mut Default::default()).unwrap());
    bed.turns(4);
    assert!(bed.client.pop().is_none(), "the engine has the request");
    bed.worker.handle.send(WorkerCommand::EngineLost(id, Lost::Gone));
    assert!(bed.next_completion().0.outcome.result.is_err());
    let notices = bed.worker.shared.take_notices();
    assert!(notices.iter().any(|notice| matches!(notice, Notice::EngineReleased(_))));
    assert_eq!(bed.worker.shared.externals[0].status().transfers, 1);
}

#[test]
fn a_worker_that_slept_while_it_helped_helps_nobody() {
    let mut bed = Bed::new();
    let announced = |bed: &Bed| {
        bed.worker.idles(Activity::Asleep);
        format!("{:?}", bed.worker.shared.team)
    };
    assert_eq!(announced(&bed), "CopyTeam of 1: 0 spinning, 1 asleep");
    bed.worker.helps_from = Some(Stopwatch::now() + Duration::from_secs(60));
    // Help that is not refused would end the rest.
    assert!(!bed.worker.help());
    assert_eq!(announced(&bed), "CopyTeam of 1: 0 spinning, 0 asleep");
    bed.worker.helps_from = Some(Stopwatch::now());
    assert_eq!(announced(&bed), "CopyTeam of 1: 0 spinning, 1 asleep");
}
