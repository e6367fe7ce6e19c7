//! Requests of a worker in this process on the channels of a fake engine.

use std::time::Duration;

use memferry_conformance::{FakeEngine, Fault, SimMemory, Timing};
use memferry_external::{ExternalEngine, ExternalFrame};
use memferry_shm::frame;
use memferry_transfer::{Handle, Memory, Pattern};

use super::*;
use crate::frames::Frames;
use crate::pair::pair;
use crate::watcher::Watcher;

const BYTES: u64 = 100;

struct Stage {
    worker: ExternalEngine,
    /// Of the worker, for each request.
    tickets: Vec<Ticket>,
    engine: Engine,
    waiting: VecDeque<Waiting<SimMemory>>,
    channels: Channels<FakeEngine>,
}

fn fill<M: Memory>(memory: M) -> Operation<Region<M>> {
    let destination = Region::new(memory, 0, BYTES).unwrap();
    Operation::Fill { destination, length: BYTES, pattern: Pattern::Byte(7) }
}

impl Stage {
    /// So many requests, each a fill of a byte in a nanosecond, that wait for so many channels.
    fn new(requests: u32, channels: u32) -> Self {
        let stall = Duration::from_secs(1);
        let (mut worker, mut end) = pair(requests, stall);
        let frame =
            ExternalFrame { handle: Handle::new(0, 1), length: BYTES, is_writable: true, is_own: false };
        let posted = (0..requests).map(|channel| Descriptor::new(channel, fill(frame)).unwrap());
        let tickets = posted.map(|descriptor| worker.post(descriptor).unwrap()).collect();
        worker.ring_doorbell();
        let waiting = std::iter::from_fn(|| end.next_work()).map(|work| {
            let located = Descriptor::new(0, fill(frame::allocate_half(BYTES).unwrap().1)).unwrap();
            Waiting { job: Job::new(work.id, located), operation: fill(SimMemory::new(vec![0; 100])) }
        });
        let waiting = waiting.collect();
        let engine = Engine::new(end, (Frames::default(), Watcher::default()), stall, None);
        let timing = Timing { latency_ps: 0, ps_per_byte: 1000, preemption_bytes: Some(1) };
        let channels = Channels::new(FakeEngine::new(channels, timing));
        Self { worker, tickets, engine, waiting, channels }
    }

    fn start(&mut self) {
        while self.channels.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.channels.start(&mut self.engine, waiting);
        }
    }

    /// Lets the device work; whether anything came further, and the failures.
    fn turn(&mut self, nanoseconds: u64) -> (bool, Vec<(u32, Failure)>) {
        self.channels.poll(Instant::from_nanoseconds(nanoseconds));
        let mut failures = Vec::new();
        let any =
            self.channels.settle(&mut self.engine, |_, channel, failure| failures.push((channel, failure)));
        (any, failures)
    }

    /// What the worker gets: the numbers of requests that have ended, and how.
    fn ends(&mut self) -> Vec<(u32, Result<(), Failure>, u64)> {
        let mut completions = Vec::new();
        self.worker.poll(Instant::ORIGIN, &mut completions);
        assert_eq!(self.worker.fault(), None);
        completions.sort_by_key(|completion| completion.ticket.channel);
        let end = |EngineCompletion { ticket, outcome }| (ticket.channel, outcome.result, outcome.bytes_done);
        completions.into_iter().map(end).collect()
    }
}

#[test]
fn each_request_ends_once_as_the_device_says() {
    let mut stage = Stage::new(3, 2);
    stage.start();
    assert_eq!((stage.channels.busy(), stage.channels.has_room(), stage.waiting.len()), (2, false, 1));
    let fault = Fault::Fails { failure: Failure::ChannelFaulted, after_bytes: 40 };
    stage.channels.device.inject(1, fault);
    assert_eq!(stage.turn(0), (false, vec![]), "they have only begun");
    assert_eq!(stage.ends(), []);
    assert_eq!(stage.turn(BYTES), (true, vec![(1, Failure::EngineReset)]));
    // The service faults its own channels; of an engine it takes that for a lie.
    assert_eq!(stage.ends(), [(0, Ok(()), BYTES), (1, Err(Failure::EngineReset), 40)]);
    assert!(stage.channels.is_idle());
    stage.start();
    stage.turn(BYTES);
    assert_eq!(stage.turn(2 * BYTES), (true, vec![]));
    assert_eq!(stage.ends(), [(2, Ok(()), BYTES)]);
    assert_eq!((stage.channels.busy(), stage.turn(9 * BYTES)), (0, (false, vec![])));
}

#[test]
fn cancelled_requests_end_without_a_report() {
    let mut stage = Stage::new(3, 2);
    stage.start();
    stage.turn(0);
    for number in [1, 2] {
        stage.worker.cancel(stage.tickets[number]);
    }
    assert!(stage.engine.take_cancels());
    cancel_waiting(&mut stage.waiting, &mut stage.engine);
    stage.channels.cancel(&stage.engine);
    assert_eq!(stage.ends(), [(2, Err(Failure::Cancelled), 0)], "it had no channel");
    assert_eq!(stage.turn(BYTES / 2), (true, vec![]));
    assert_eq!(stage.ends(), [(1, Err(Failure::Cancelled), 0)]);
    stage.turn(BYTES);
    assert_eq!(stage.ends(), [(0, Ok(()), BYTES)]);
}

#[test]
fn what_the_device_does_not_take_is_refused() {
    let mut stage = Stage::new(1, 0);
    let waiting = stage.waiting.pop_front().unwrap();
    stage.channels.start(&mut stage.engine, waiting);
    assert_eq!(stage.ends(), [(0, Err(Failure::Unsupported), 0)]);
    assert!(stage.channels.is_idle());
}

#[test]
fn a_comparison_is_done_up_to_its_difference() {
    let stage = Stage::new(1, 1);
    let job = &stage.waiting[0].job;
    let outcome = ended(job, Outcome { bytes_done: 40, ..job.succeeded_with(40) });
    assert_eq!((outcome.result, outcome.bytes_done, outcome.value), (Ok(()), 40, 40));
}
