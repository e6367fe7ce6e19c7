//! Tests of the whole path in virtual time.
//!
//! ```text
//! Bed: VirtualClock, Capabilities, Path<FakeEngine> ─ turn ─► log of (instant, completion)
//! ```
//!
//! With [`TIMING`], a transfer of `n` bytes takes 1000 + 10 `n` picoseconds, and a cancel takes effect at multiples of 8 bytes.

mod channels;
mod endings;
mod faults;
mod interleavings;
mod orders;
mod policies;
mod queues;
mod simulation;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_clock::{Clock, Instant, VirtualClock};
use memferry_conformance::{FakeEngine, Fault, SimMemory, Timing};
use memferry_transfer::{
    Completion, EngineKind, Failure, Handle, Operation, Outcome, Pattern, Places, Request, Rights, SessionId,
    Span,
};

use crate::policy::{Exclusive, Shared};
use crate::{
    Ask, Capabilities, ChannelState, Choice, Grantee, Path, PathLimits, Policy, PolicyKind, QueueCompletion,
    QueueKey,
};

const TIMING: Timing = Timing { latency_ps: 1000, ps_per_byte: 10, preemption_bytes: Some(8) };
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);

/// A clock that tests move on, in nanoseconds.
#[derive(Clone, Default)]
pub(crate) struct Ticks(Arc<AtomicU64>);

impl Ticks {
    pub(crate) fn pass(&self, nanoseconds: u64) {
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn ticks(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for Ticks {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(self.ticks())
    }
}

/// A path with a clock, a capability table and a log of completions.
struct Bed {
    clock: VirtualClock,
    capabilities: Capabilities<SimMemory>,
    path: Path<FakeEngine>,
    log: Vec<(Instant, QueueCompletion)>,
}

impl Bed {
    fn new(channels: u32, policy: impl Policy + 'static, waiting_per_user: usize) -> Self {
        Self::over(FakeEngine::new(channels, TIMING), Box::new(policy), waiting_per_user)
    }

    fn over(engine: FakeEngine, policy: Box<dyn Policy>, waiting_per_user: usize) -> Self {
        Self {
            clock: VirtualClock::new(),
            capabilities: Capabilities::new(64),
            path: Path::new(engine, policy, PathLimits { waiting_per_user }),
            log: Vec::new(),
        }
    }

    /// Registers `length` zeroed bytes for `session`.
    fn frame(&mut self, session: SessionId, length: usize) -> (Handle, SimMemory) {
        let memory = SimMemory::new(vec![0; length]);
        (self.capabilities.register(session, memory.clone(), Rights::all()).unwrap(), memory)
    }

    fn submit(&mut self, queue: QueueKey, tag: u64, request: &Request) {
        let reservation = self.path.reserve(queue, u32::MAX).expect("the queue is open");
        self.path.submit(self.clock.now(), reservation, tag, request, &mut self.capabilities);
        self.collect();
    }

    fn cancel(&mut self, queue: QueueKey, tag: u64) {
        self.path.cancel(queue, tag, &mut self.capabilities);
        self.collect();
    }

    fn close(&mut self, queue: QueueKey) {
        self.path.close_queue(queue, &mut self.capabilities);
        self.collect();
    }

    fn collect(&mut self) {
        let now = self.clock.now();
        self.log.extend(self.path.take_completions().map(|completed| (now, completed)));
    }

    /// One round of a worker.
    fn turn(&mut self) {
        let now = self.clock.now();
        self.path.ring_doorbell();
        self.path.run(now);
        if self.path.must_settle() && self.path.settle(now, &mut self.capabilities) {
            self.path.ring_doorbell();
            self.path.run(now);
        }
        self.collect();
    }

    /// Takes a turn at each time the path asks for, and at `end`.
    fn run_until(&mut self, end: Instant) {
        self.turn();
        for _ in 0..100_000 {
            match self.path.next_wake() {
                Some(next) if next <= end => self.clock.advance_to(next),
                _ => {
                    self.clock.advance_to(end);
                    return self.turn();
                }
            }
            self.turn();
        }
        panic!("the path still asks for turns after 100,000");
    }

    fn run_for(&mut self, picoseconds: u128) {
        self.run_until(self.clock.now().after_picoseconds(picoseconds));
    }

    /// Tags and results of all completions so far.
    fn outcomes(&self) -> Vec<(u64, Result<(), Failure>)> {
        let result = |(_, completed): &(_, QueueCompletion)| {
            (completed.completion.tag, completed.completion.outcome.result)
        };
        self.log.iter().map(result).collect()
    }

    /// The only completion with this tag.
    fn completion(&self, tag: u64) -> Completion {
        let mut named = self.log.iter().map(|(_, completed)| completed.completion);
        let completion = named.find(|completion| completion.tag == tag).expect("no such completion");
        assert!(named.all(|completion| completion.tag != tag), "{tag} was completed twice");
        completion
    }

    fn completed_at(&self, tag: u64) -> u128 {
        let named = |(_, completed): &&(_, QueueCompletion)| completed.completion.tag == tag;
        self.log.iter().find(named).expect("no such completion").0.picoseconds()
    }
}

fn fill(handle: Handle, length: u64) -> Request {
    Request::fill(Span::new(handle, 0), length, Pattern::Byte(1))
}

fn at(picoseconds: u128) -> Instant {
    Instant::from_picoseconds(picoseconds)
}

/// The completion of a request that failed before it reached an engine.
fn refused(tag: u64, failure: Failure) -> Completion {
    Completion { tag, inherited: false, outcome: Outcome::refused(failure) }
}
