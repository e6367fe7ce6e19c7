//! The slices of the priority policy: a state machine, shared by all workers of a service, that suspends low work.
//!
//! ```text
//! Open ─ a period begins, recent high work ─► Suspending ─ every worker's low work rests ─► Slice ─ over ─► Open
//! ```
//!
//! Papa 2014, "Priority Channel": channels of low priority are suspended for e_s of every p_s, and those of high priority have the
//! engine to themselves. Workers acknowledge suspension: a slice is counted from the moment when the last low transfer has come
//! to rest. After a period without high work there are no slices, so no time is wasted (the slides always suspend). Each worker
//! calls `step` under one lock before it moves bytes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memferry_clock::Instant;

/// How long a worker waits before it checks again whether the others rest.
const RECHECK_INTERVAL: Duration = Duration::from_micros(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// All work may move; the next period begins at `next`.
    Open { next: Instant },
    /// Low work must stop, and some of it is not at rest yet.
    Suspending,
    /// Only high work moves.
    Slice { until: Instant },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SliceCounts {
    pub slices: u64,
    /// Bytes of low work that moved within a slice. More than 0 is a bug.
    pub strayed_bytes: u64,
}

#[derive(Debug)]
struct State {
    period: Duration,
    slice: Duration,
    phase: Phase,
    /// Workers whose low work may be moving.
    moving: Vec<bool>,
    /// For each worker, how many batches of low requests it is doing at once.
    at_once: Vec<u32>,
    /// High requests were done at once since the last step.
    high_at_once: bool,
    /// When high work was last seen.
    high_at: Option<Instant>,
    counts: SliceCounts,
}

/// The slices of one service; clones share one state.
#[derive(Clone, Debug)]
pub struct Slices(Arc<Mutex<State>>);

/// The answer to a worker's step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    /// Low work may move.
    pub(super) low_moves: bool,
    /// The latest time of the worker's next step.
    pub(super) wake: Option<Instant>,
}

/// A worker's present work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    /// It has low work in its engine.
    pub(super) low: bool,
    /// All of its low work has come to rest.
    pub(super) low_rests: bool,
    /// It has high work in its engine.
    pub(super) high: bool,
}

impl Slices {
    /// Slices of `slice` in every `period`, for workers numbered from 0.
    pub fn new(period: Duration, slice: Duration, workers: usize) -> Self {
        let phase = Phase::Open { next: Instant::ORIGIN.after(period) };
        let moving = vec![false; workers];
        let at_once = vec![0; workers];
        let high_at_once = false;
        let high_at = None;
        let counts = SliceCounts::default();
        let state = State { period, slice, phase, moving, at_once, high_at_once, high_at, counts };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The counts since the service started.
    pub fn counts(&self) -> SliceCounts {
        self.with_state(|state| state.counts)
    }

    /// Records a worker's work, advances the phase, and returns whether the worker's low work may move.
    pub(super) fn step(&self, worker: usize, now: Instant, view: View) -> Decision {
        self.with_state(|state| state.step(worker, now, view))
    }

    /// Stops waiting for a worker's low work, because the worker changed its policy.
    pub(super) fn leave(&self, worker: usize) {
        self.with_state(|state| {
            if let Some(moving) = state.moving.get_mut(worker) {
                *moving = false;
            }
            if let Some(batches) = state.at_once.get_mut(worker) {
                *batches = 0;
            }
        });
    }

    /// Notes high requests that are done at once; always true.
    pub(super) fn see_high(&self) -> bool {
        self.with_state(|state| state.high_at_once = true);
        true
    }

    /// Whether a worker may do low requests at once, until it says that they are [over](Self::take_back). No slice begins before.
    pub(super) fn lend(&self, worker: usize) -> bool {
        self.with_state(|state| {
            let is_open = matches!(state.phase, Phase::Open { .. });
            match state.at_once.get_mut(worker) {
                Some(batches) if is_open => {
                    *batches += 1;
                    true
                }
                _ => false,
            }
        })
    }

    /// Ends low requests done at once by a worker, which moved `bytes`.
    pub(super) fn take_back(&self, worker: usize, bytes: u64) {
        self.low_moved(bytes);
        self.with_state(|state| {
            if let Some(batches) = state.at_once.get_mut(worker) {
                *batches = batches.saturating_sub(1);
            }
        });
    }

    /// Records low work that moved, to detect movement within a slice.
    pub(super) fn low_moved(&self, bytes: u64) {
        self.with_state(|state| {
            if matches!(state.phase, Phase::Slice { .. }) {
                state.counts.strayed_bytes += bytes;
            }
        });
    }

    fn with_state<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn step(&mut self, worker: usize, now: Instant, view: View) -> Decision {
        if std::mem::take(&mut self.high_at_once) | view.high {
            self.high_at = Some(now);
        }
        if let Some(moving) = self.moving.get_mut(worker) {
            *moving = view.low && !view.low_rests;
        }
        loop {
            match self.phase {
                Phase::Open { next } if next <= now && self.high_is_recent(now) => {
                    self.phase = Phase::Suspending
                }
                Phase::Open { next } if next <= now => self.phase = Phase::Open { next: self.boundary(now) },
                Phase::Open { next } => {
                    // It may move from now on, until a later step reports that it rests.
                    if let Some(moving) = self.moving.get_mut(worker) {
                        *moving = view.low;
                    }
                    return Decision { low_moves: true, wake: view.low.then_some(next) };
                }
                Phase::Suspending if self.low_moves() => {
                    return Decision {
                        low_moves: false,
                        wake: view.low.then(|| now.after(RECHECK_INTERVAL)),
                    };
                }
                Phase::Suspending => {
                    self.counts.slices += 1;
                    self.phase = Phase::Slice { until: now.after(self.slice) };
                }
                Phase::Slice { until } if until <= now => {
                    self.phase = Phase::Open { next: self.boundary(until) };
                }
                Phase::Slice { until } => {
                    return Decision { low_moves: false, wake: view.low.then_some(until) };
                }
            }
        }
    }

    /// Whether low work of any worker may be moving.
    fn low_moves(&self) -> bool {
        self.moving.contains(&true) || self.at_once.iter().any(|batches| *batches > 0)
    }

    fn high_is_recent(&self, now: Instant) -> bool {
        self.high_at.is_some_and(|seen| now <= seen.after(self.period))
    }

    /// When the first period after `now` begins.
    fn boundary(&self, now: Instant) -> Instant {
        let period = self.period.as_nanos().max(1) * 1000;
        Instant::from_picoseconds((now.picoseconds() / period + 1) * period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: View = View { low: true, low_rests: false, high: false };
    const RESTS: View = View { low: true, low_rests: true, high: false };
    const HIGH: View = View { low: false, low_rests: true, high: true };

    fn at(microseconds: u64) -> Instant {
        Instant::ORIGIN.after(Duration::from_micros(microseconds))
    }

    fn slices(workers: usize) -> Slices {
        Slices::new(Duration::from_micros(90), Duration::from_micros(30), workers)
    }

    #[test]
    fn a_slice_begins_when_the_last_worker_rests() {
        let slices = slices(3);
        assert_eq!(slices.step(0, at(1), LOW), Decision { low_moves: true, wake: Some(at(90)) });
        assert_eq!(slices.step(1, at(2), HIGH), Decision { low_moves: true, wake: None });
        assert!(slices.step(2, at(3), LOW).low_moves);
        // The period begins: both workers with low work must rest first.
        assert_eq!(slices.step(1, at(90), HIGH), Decision { low_moves: false, wake: None });
        assert_eq!(slices.step(0, at(95), LOW), Decision { low_moves: false, wake: Some(at(115)) });
        assert_eq!(slices.step(0, at(96), RESTS), Decision { low_moves: false, wake: Some(at(116)) });
        assert_eq!(slices.counts().slices, 0);
        assert_eq!(slices.step(2, at(100), RESTS), Decision { low_moves: false, wake: Some(at(130)) });
        assert_eq!(slices.step(0, at(129), RESTS), Decision { low_moves: false, wake: Some(at(130)) });
        assert_eq!(slices.step(0, at(130), RESTS), Decision { low_moves: true, wake: Some(at(180)) });
        assert_eq!(slices.counts(), SliceCounts { slices: 1, strayed_bytes: 0 });
    }

    #[test]
    fn low_work_begun_within_a_slice_waits() {
        let slices = slices(2);
        slices.step(0, at(1), HIGH);
        assert!(!slices.step(0, at(91), HIGH).low_moves);
        assert_eq!(slices.step(1, at(100), LOW), Decision { low_moves: false, wake: Some(at(121)) });
        slices.low_moved(5);
        assert_eq!(slices.counts(), SliceCounts { slices: 1, strayed_bytes: 5 });
    }

    #[test]
    fn no_slices_after_a_period_without_high_work() {
        let slices = slices(1);
        slices.step(0, at(1), HIGH);
        for time in [100, 200, 300, 400, 500] {
            slices.step(0, at(time), LOW);
            slices.step(0, at(time), RESTS);
        }
        assert_eq!(slices.counts().slices, 0, "{slices:?}");
        assert!(slices.step(0, at(501), LOW).low_moves);
    }

    #[test]
    fn an_idle_worker_does_not_delay_a_slice() {
        let slices = slices(2);
        slices.step(0, at(1), LOW);
        slices.step(0, at(2), View::default());
        slices.step(1, at(3), HIGH);
        slices.step(1, at(91), HIGH);
        assert_eq!(slices.counts().slices, 1);
    }
    #[test]
    fn a_slice_begins_after_low_requests_done_at_once() {
        let slices = slices(2);
        slices.step(0, at(1), HIGH);
        assert!(slices.lend(1), "no slice has begun");
        slices.step(0, at(91), HIGH);
        assert!(!slices.lend(1), "one is about to");
        assert_eq!(slices.counts().slices, 0);
        slices.take_back(1, 1024);
        slices.step(0, at(92), HIGH);
        assert_eq!(slices.counts(), SliceCounts { slices: 1, strayed_bytes: 0 });
        assert!(!slices.lend(1));
    }

    #[test]
    fn high_requests_done_at_once_cause_slices() {
        let slices = slices(1);
        slices.step(0, at(89), LOW);
        slices.see_high();
        slices.step(0, at(91), LOW);
        slices.step(0, at(92), RESTS);
        assert_eq!(slices.counts().slices, 1);
    }
}
