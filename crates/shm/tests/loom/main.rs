//! Loom model checks of the shipped ring, queue pair, parking and job sharing: all interleavings and weak-memory outcomes.
//!
//! ```text
//! HeapWords over loom's atomics ── Producer/Consumer, ClientEnd/ServiceEnd, park/must_wake ── every schedule, up to a bound
//!   eventfd  = Token  (a flag and a condition variable)        loom reports a lost wake-up as a deadlock
//!   futex    = Futex  (compare under a lock, then wait)
//! ```
//!
//! Run it by `RUSTFLAGS="--cfg loom" cargo test -p memferry-shm --release --test loom`. Each rule of a protocol has a
//! broken variant, which differs from the shipped code in that rule only and must fail. A parking test also fails if no
//! schedule slept, or if in every schedule the parker slept.
//!
//! Limits of loom: it never moves a store before an earlier load, so no broken variant can show that the release on the
//! consumer's count or the producer's acquire of it is needed. It has no `membarrier`: under loom the light side is a full
//! fence, which is the effect of the heavy side's barrier. That fence also orders later stores of the publisher, so the
//! release on the closed flag is verified by reading the code only. These tests do not check Linux's `membarrier`.

#![cfg(loom)]

mod epoch;
mod parking;
mod queue_pair;
mod ring;
mod team_word;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering as TallyOrdering};

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use memferry_shm::parking::Fences;

const FENCES: Fences = Fences::Asymmetric;

/// Runs `scenario` in every schedule with at most `preemptions` preemptions; `None` sets no bound.
fn explore(preemptions: impl Into<Option<usize>>, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(scenario);
}

/// Counts how often parkers slept, and how often the last check made the sleep unnecessary. Loom does not see these counters.
#[derive(Default)]
struct Sleeps {
    slept: Tally,
    avoided: Tally,
}

impl Sleeps {
    fn record(&self, slept: bool) {
        (if slept { &self.slept } else { &self.avoided }).fetch_add(1, TallyOrdering::Relaxed);
    }

    /// A test without both cases does not exercise the protocol.
    fn assert_both_happened(&self) {
        assert!(self.slept.load(TallyOrdering::Relaxed) > 0, "no schedule slept");
        assert!(
            self.avoided.load(TallyOrdering::Relaxed) > 0,
            "no schedule avoided its sleep by the last check"
        );
    }
}

/// Models an eventfd: a wake-up before the sleep is kept.
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

/// Models a futex: Linux compares the word under the lock that wakers take, and sleeps only if the word has not changed.
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
