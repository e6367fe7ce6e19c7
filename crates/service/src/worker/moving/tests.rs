//! Tests of two workers, whose turns the tests run, and a queue that goes from one to the other.

use memferry_cpu::CpuEngine;
use memferry_cpu::team::CopyTeam;
use memferry_path::{Path, PathLimits, PolicyKind};
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, Layout, ParkedWord, ServiceEnd};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{
    Failure, Handle, Operation, Pattern, PriorityClass, Request, Rights, Span, Task, Terms, wire,
};
use rustix::fd::{AsFd, OwnedFd};

use super::super::Spins;
use super::*;
use crate::bells::Bells;
use crate::counters::{Loads, QueueCounters};
use crate::shared::{Clients, Shared, WorkerHandle};
use crate::worker_engine::WorkerEngine;

const SESSION: SessionId = SessionId(1);
const FRAME_BYTES: u64 = 1 << 16;

struct Bed {
    workers: [Worker; 2],
    client: ClientEnd<MappedWords>,
    doorbell: OwnedFd,
    counters: Arc<QueueCounters>,
    frame: Handle,
    submitted: u32,
}

impl Bed {
    /// Two workers that move 64 bytes per turn, and a queue at the first one.
    fn new() -> Self {
        let handles = WorkerHandle::all(2).unwrap();
        let team = Arc::new(CopyTeam::new(0, |_| ()));
        let shared = Shared::new(8, (handles.clone(), vec![0, 0], Fences::Full), team, 0).unwrap();
        let shared = Arc::new(shared);
        let (_, memory) = frame::allocate_sealed(FRAME_BYTES, true).unwrap();
        let frame = Worker::capabilities(&shared).register(SESSION, memory, Rights::all()).unwrap();
        let worker = |number: usize| {
            let engine = WorkerEngine::new(CpuEngine::new(4, 64));
            let path = Path::new(engine, PolicyKind::Shared.build(), PathLimits { waiting_per_user: 64 });
            let settings = (Spins::No, Clients::Here, 64);
            let handle = Arc::clone(&handles[number]);
            Worker::new(number, handle, Arc::clone(&shared), path, None, settings).unwrap()
        };
        let layout = Layout::new(64).unwrap();
        let [of_client, of_service] = [layout.client_words(), layout.service_words()].map(|words| {
            MappedWords::new(frame::allocate_sealed(words as u64 * 8, true).unwrap().1).unwrap()
        });
        let end = ServiceEnd::new(layout, of_client.clone(), of_service.clone(), Fences::Full).unwrap();
        let parked = handles[0].parked_memory().unwrap();
        let bytes = ParkedWord::<MappedWords>::BYTES;
        let parked = Mapping::shared(parked.as_fd(), bytes, Access::ReadOnly, 4096).unwrap();
        let parked = MappedWords::new(parked).unwrap();
        let client = ClientEnd::new(layout, of_client, of_service, parked, Fences::Full).unwrap();
        let (doorbell, bells) = Bells::default().open(0, 0, true).unwrap();
        let counters = Arc::new(QueueCounters::at(0, &Loads::new(2)));
        handles[0].send(WorkerCommand::Open(NewQueue {
            session: SESSION,
            number: 0,
            user: 0,
            class: PriorityClass::Normal,
            end: Box::new(end),
            bells,
            target: None,
            counters: Arc::clone(&counters),
        }));
        let mut bed = Self { workers: [0, 1].map(worker), client, doorbell, counters, frame, submitted: 0 };
        bed.turn();
        bed
    }

    fn turn(&mut self) {
        for worker in &mut self.workers {
            worker.turn();
        }
    }

    /// Publishes a request; returns whether the doorbell has to ring.
    fn submit(&mut self, request: &Request) -> bool {
        let mut slot = wire::encode_request(self.submitted, request, &mut Default::default()).unwrap();
        slot[0] = wire::with_tag(slot[0], self.submitted);
        self.submitted += 1;
        self.client.stage(&slot).unwrap();
        self.client.publish()
    }

    fn nop(&mut self) -> bool {
        self.submit(&Request::new(Operation::Nop))
    }

    fn fill(&mut self, bytes: u64) -> bool {
        self.submit(&Request::fill(Span::new(self.frame, 0), bytes, Pattern::Byte(1)))
    }

    fn give(&mut self, from: usize, to: usize) {
        self.workers[from].handle.send(WorkerCommand::Give { session: SESSION, number: 0, to });
    }

    /// The tags of the completions so far, all of which must have succeeded.
    fn completed(&mut self) -> Vec<u64> {
        let slots: Vec<_> = std::iter::from_fn(|| self.client.pop()).collect();
        let completions = slots.iter().map(|slot| wire::decode_completion(slot, 64).unwrap());
        completions.inspect(|done| assert_eq!(done.outcome.result, Ok(()))).map(|done| done.tag).collect()
    }

    fn taken(&self) -> [u64; 2] {
        self.workers.each_ref().map(|worker| worker.handle.counters.requests.get())
    }

    /// Runs turns until the queue has left, or stays.
    fn until_decided(&mut self) {
        while !self.workers[0].leaving.is_empty() || self.workers[0].handle.pending.load(Ordering::Relaxed) {
            self.turn();
        }
    }
}

#[test]
fn an_idle_queue_moves_at_once_and_back() {
    let mut bed = Bed::new();
    for (from, to) in [(0, 1), (1, 0)] {
        bed.nop();
        bed.turn();
        let before = bed.taken();
        bed.give(from, to);
        bed.turn();
        assert_eq!(bed.counters.worker(), to);
        bed.turn();
        bed.nop();
        bed.turn();
        let after = bed.taken();
        assert_eq!((after[from] - before[from], after[to] - before[to]), (0, 1));
        assert_eq!(bed.workers.each_ref().map(|worker| worker.queues.count())[to], 1);
        assert_eq!(bed.workers[from].queues.count(), 0);
    }
    assert_eq!(bed.completed(), [0, 1, 2, 3]);
    assert_eq!(bed.workers[0].queues.guests(), 0);
}

#[test]
fn requests_that_were_taken_end_at_the_old_worker() {
    let mut bed = Bed::new();
    bed.fill(FRAME_BYTES);
    bed.turn();
    bed.give(0, 1);
    bed.workers[0].turn();
    bed.fill(64);
    bed.nop();
    bed.workers[0].turn();
    assert_eq!((bed.taken(), bed.completed()), ([1, 0], vec![]), "nothing more is taken");
    // However slow this machine is.
    let queue = bed.workers[0].queues.get_mut(0).unwrap();
    queue.leaving.as_mut().unwrap().until += Duration::from_secs(600);
    bed.until_decided();
    assert_eq!((bed.counters.worker(), bed.taken()[0]), (1, 1));
    for _ in 0..10 {
        bed.turn();
    }
    assert_eq!(bed.completed(), [0, 1, 2]);
    assert_eq!(bed.taken(), [1, 2]);
}

#[test]
fn a_queue_whose_requests_take_too_long_stays() {
    let mut bed = Bed::new();
    let linked = Terms { linked: true, ..Terms::default() };
    bed.submit(&Request { task: Task::Repeat { rounds: 0 }, terms: linked });
    bed.fill(64);
    bed.turn();
    bed.give(0, 1);
    bed.turn();
    bed.nop();
    bed.until_decided();
    bed.turn();
    assert_eq!((bed.counters.worker(), bed.taken()), (0, [3, 0]), "an endless loop");
    bed.client.stop(0);
    let mut completed = Vec::new();
    while completed.len() < 3 {
        bed.turn();
        completed.extend(bed.completed());
    }
    bed.give(0, 1);
    bed.until_decided();
    assert_eq!(bed.counters.worker(), 1);
}

#[test]
fn a_half_submitted_chain_stays_together() {
    let mut bed = Bed::new();
    let linked = Terms { linked: true, ..Terms::default() };
    bed.submit(&Request { terms: linked, ..Request::new(Operation::Nop) });
    bed.turn();
    bed.give(0, 1);
    bed.until_decided();
    assert_eq!(bed.counters.worker(), 0, "the next request depends on this one");
    bed.nop();
    bed.turn();
    bed.turn();
    assert_eq!(bed.completed(), [0, 1]);
}

#[test]
fn commands_go_before_the_move_or_behind_it() {
    let mut bed = Bed::new();
    bed.give(0, 1);
    bed.workers[0].handle_commands();
    // The control side sends this before the queue has left.
    let close = || WorkerCommand::CloseQueue { session: SESSION, number: 0 };
    bed.workers[0].handle.send(close());
    bed.workers[0].hand_over_quiet();
    assert_eq!(bed.counters.worker(), 0);
    bed.turn();
    assert!(bed.client.closed() && bed.workers.iter().all(|worker| worker.queues.count() == 0));

    let mut bed = Bed::new();
    bed.give(0, 1);
    bed.workers[0].turn();
    bed.workers[bed.counters.worker()].handle.send(close());
    bed.workers[1].turn();
    assert!(bed.client.closed() && bed.workers[1].queues.count() == 0);
}

#[test]
fn a_stopping_worker_keeps_its_queues() {
    let mut bed = Bed::new();
    bed.give(0, 1);
    bed.workers[0].handle.send(WorkerCommand::Stop { deadline: memferry_clock::Instant::ORIGIN });
    bed.nop();
    bed.turn();
    assert_eq!(bed.counters.worker(), 0);
    let slot = std::iter::from_fn(|| {
        bed.workers[0].turn();
        bed.client.pop()
    });
    let done = wire::decode_completion(&slot.take(1).next().unwrap(), 64).unwrap();
    assert_eq!(done.outcome.result, Err(Failure::ServiceStopping));
}

#[test]
fn the_new_worker_is_woken_when_it_sleeps() {
    let mut bed = Bed::new();
    bed.give(0, 1);
    bed.turn();
    bed.turn();
    for (worker, wakes) in [(0, false), (1, true)] {
        bed.workers[worker].handle.parked.set(1);
        assert_eq!(bed.nop(), wakes);
        bed.workers[worker].handle.parked.set(0);
    }
    bed.workers[1].turn();
    let _ = rustix::io::read(&bed.workers[1].handle.wake, &mut [0; 8]);
    // The write comes before the sleep, which therefore ends at once.
    rustix::io::write(&bed.doorbell, &1u64.to_ne_bytes()).unwrap();
    bed.workers[1].park();
    assert_eq!(bed.workers[1].handle.counters.parks.get(), 1);
    assert_eq!(bed.completed(), [0, 1]);
}

#[test]
fn busy_time_is_divided_by_measured_time() {
    assert_eq!([part(1000, 1, 4), part(600, 3, 4), part(1000, 0, 0)], [250, 450, 0]);
    let mut meter = Meter::new();
    let timed = (0..16_000).filter(|_| meter.times_turn()).count();
    assert!((900..1100).contains(&timed), "{timed}");
    let start = meter.since;
    assert_eq!(meter.end_interval(start + INTERVAL / 2), None);
    meter.idle = INTERVAL / 4;
    assert_eq!(meter.end_interval(start + INTERVAL), Some(750));
    meter.idle = 2 * INTERVAL;
    assert_eq!(meter.end_interval(start + 2 * INTERVAL), Some(0));
}
