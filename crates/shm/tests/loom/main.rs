//! Loom runs the shipped ring, queue pair, parking and sharing protocols through their interleavings and weak-memory outcomes.
//!
//! ```text
//! HeapWords over loom's atomics ── Producer/Consumer, ClientEnd/ServiceEnd, park/must_wake ── every schedule, up to a bound
//!   eventfd  = Token  (a flag and a condition variable)        a wake-up that is lost is a deadlock loom reports
//!   futex    = Futex  (compare under a lock, then wait)
//! ```
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p memferry-memory --release --test loom` runs it. Every rule the protocol rests on
//! has a broken variant, which differs from the shipped code in that rule only and must fail. Tests of parking also count:
//! one in which nobody slept, or nobody was spared the sleep, fails.
//!
//! What loom does not show: it never moves a store before an earlier load, so neither the release on the consumer's count
//! nor the producer's acquire of it can be broken visibly. It knows no `membarrier`: under loom the light side is a full
//! fence, which is what the heavy side's barrier makes of it. That fence also orders what comes after a publish, so the
//! release on the closed flag rests on reading the code; and that the kernel keeps membarrier's promise is not tested here.

#![cfg(loom)]

mod berth;
mod parking;
mod queue_pair;
mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering as TallyOrdering};

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use memferry_shm::parking::Fences;

const FENCES: Fences = Fences::Asymmetric;

/// Runs `scenario` in every schedule with at most `preemptions` involuntary switches; `None` sets no bound.
fn explore(preemptions: impl Into<Option<usize>>, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(scenario);
}

/// How often a parker slept and how often its last look spared it; loom does not see these counters.
#[derive(Default)]
struct Sleeps {
    slept: Tally,
    spared: Tally,
}

impl Sleeps {
    fn note(&self, slept: bool) {
        (if slept { &self.slept } else { &self.spared }).fetch_add(1, TallyOrdering::Relaxed);
    }

    /// A test in which nobody ever slept, or nobody ever had to look again, proves nothing.
    fn assert_both_happened(&self) {
        assert!(self.slept.load(TallyOrdering::Relaxed) > 0, "no schedule slept");
        assert!(self.spared.load(TallyOrdering::Relaxed) > 0, "no schedule was spared its sleep");
    }
}

/// An eventfd: a wake-up that comes before the sleep is kept.
struct Token {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Token {
    fn new() -> Arc<Self> {
        Arc::new(Self { raised: Mutex::new(false), changed: Condvar::new() })
    }

    fn wake(&self) {
        *self.raised.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut raised = self.raised.lock().unwrap();
        while !*raised {
            raised = self.changed.wait(raised).unwrap();
        }
        *raised = false;
    }
}

/// A futex: the kernel compares the word under the lock that wakers take, and sleeps only if it has not changed.
struct Futex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(()), woken: Condvar::new() })
    }

    fn sleep(&self, word: &AtomicU64, expected: u64) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) as u32 == expected as u32 {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_all();
    }
}
