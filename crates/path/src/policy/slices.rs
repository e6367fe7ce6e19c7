//! The slices of the priority policy, for all workers of a service together: who may move, and since when.
//!
//! ```text
//! Open ─ a period begins, high work was there lately ─► Suspending ─ every worker's low work rests ─► Slice ─ over ─► Open
//! ```
//!
//! Papa 2014, "Priority Channel": channels of low priority are suspended for e_s of every p_s, and those of high priority have the
//! engine to themselves. Suspension is acknowledged: the slice is counted from the moment when the last low transfer has come
//! to rest. While no high work was there for a period there are no slices, so that nothing is wasted (ours; the slides
//! suspend always). Each worker steps this under one lock before it moves anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memferry_clock::Instant;

/// How long a worker waits before it looks again whether the others rest.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// What is going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Everybody may move, until the next period begins.
    Open { next: Instant },
    /// Low work is to stop, and some has not come to rest.
    Suspending,
    /// Only high work moves.
    Slice { until: Instant },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SliceCounts {
    pub slices: u64,
    /// Bytes of low work that moved within a slice: none, or something is wrong.
    pub strayed_bytes: u64,
}

#[derive(Debug)]
struct Board {
    period: Duration,
    slice: Duration,
    phase: Phase,
    /// Workers whose low work may be moving.
    moving: Vec<bool>,
    /// When high work was last seen.
    high_at: Option<Instant>,
    counts: SliceCounts,
}

/// The slices of one service; clones are the same.
#[derive(Clone, Debug)]
pub struct Slices(Arc<Mutex<Board>>);

/// What a worker is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Told {
    /// Low work may move.
    pub(super) low_moves: bool,
    /// When that has to be asked again.
    pub(super) wake: Option<Instant>,
}

/// What a worker tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    /// It has low work in its engine.
    pub(super) low: bool,
    /// All of that has come to rest.
    pub(super) low_rests: bool,
    /// It has high work in its engine.
    pub(super) high: bool,
}

impl Slices {
    /// Slices of `slice` in every `period`, for so many workers.
    pub fn new(period: Duration, slice: Duration, workers: usize) -> Self {
        let phase = Phase::Open { next: Instant::ORIGIN.after(period) };
        let moving = vec![false; workers];
        let counts = SliceCounts::default();
        Self(Arc::new(Mutex::new(Board { period, slice, phase, moving, high_at: None, counts })))
    }

    /// What was counted so far.
    pub fn counts(&self) -> SliceCounts {
        self.with(|board| board.counts)
    }

    /// A worker tells what it has and asks what may move.
    pub(super) fn step(&self, worker: usize, now: Instant, view: View) -> Told {
        self.with(|board| board.step(worker, now, view))
    }

    /// A worker has another policy now.
    pub(super) fn leave(&self, worker: usize) {
        self.with(|board| {
            if let Some(moving) = board.moving.get_mut(worker) {
                *moving = false;
            }
        });
    }

    /// Low work of a worker has moved.
    pub(super) fn low_moved(&self, bytes: u64) {
        self.with(|board| {
            if matches!(board.phase, Phase::Slice { .. }) {
                board.counts.strayed_bytes += bytes;
            }
        });
    }

    fn with<T>(&self, look: impl FnOnce(&mut Board) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Board {
    fn step(&mut self, worker: usize, now: Instant, view: View) -> Told {
        if view.high {
            self.high_at = Some(now);
        }
        if let Some(moving) = self.moving.get_mut(worker) {
            *moving = view.low && !view.low_rests;
        }
        loop {
            match self.phase {
                Phase::Open { next } if next <= now && self.high_lately(now) => {
                    self.phase = Phase::Suspending
                }
                Phase::Open { next } if next <= now => self.phase = Phase::Open { next: self.boundary(now) },
                Phase::Open { next } => {
                    // It moves from now on, until it says that it rests.
                    if let Some(moving) = self.moving.get_mut(worker) {
                        *moving = view.low;
                    }
                    return Told { low_moves: true, wake: view.low.then_some(next) };
                }
                Phase::Suspending if self.moving.contains(&true) => {
                    return Told { low_moves: false, wake: view.low.then(|| now.after(LOOK_AGAIN)) };
                }
                Phase::Suspending => {
                    self.counts.slices += 1;
                    self.phase = Phase::Slice { until: now.after(self.slice) };
                }
                Phase::Slice { until } if until <= now => {
                    self.phase = Phase::Open { next: self.boundary(until) };
                }
                Phase::Slice { until } => {
                    return Told { low_moves: false, wake: view.low.then_some(until) };
                }
            }
        }
    }

    fn high_lately(&self, now: Instant) -> bool {
        self.high_at.is_some_and(|seen| now <= seen.after(self.period))
    }

    /// The first beginning of a period after an instant.
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
    fn slice_begins_when_the_last_worker_rests_and_lasts_from_then() {
        let slices = slices(3);
        assert_eq!(slices.step(0, at(1), LOW), Told { low_moves: true, wake: Some(at(90)) });
        assert_eq!(slices.step(1, at(2), HIGH), Told { low_moves: true, wake: None });
        assert!(slices.step(2, at(3), LOW).low_moves);
        // The period begins: both workers with low work have to rest first.
        assert_eq!(slices.step(1, at(90), HIGH), Told { low_moves: false, wake: None });
        assert_eq!(slices.step(0, at(95), LOW), Told { low_moves: false, wake: Some(at(115)) });
        assert_eq!(slices.step(0, at(96), RESTS), Told { low_moves: false, wake: Some(at(116)) });
        assert_eq!(slices.counts().slices, 0);
        assert_eq!(slices.step(2, at(100), RESTS), Told { low_moves: false, wake: Some(at(130)) });
        assert_eq!(slices.step(0, at(129), RESTS), Told { low_moves: false, wake: Some(at(130)) });
        assert_eq!(slices.step(0, at(130), RESTS), Told { low_moves: true, wake: Some(at(180)) });
        assert_eq!(slices.counts(), SliceCounts { slices: 1, strayed_bytes: 0 });
    }

    #[test]
    fn worker_that_begins_low_work_within_a_slice_does_not_move_it() {
        let slices = slices(2);
        slices.step(0, at(1), HIGH);
        assert!(!slices.step(0, at(91), HIGH).low_moves);
        assert_eq!(slices.step(1, at(100), LOW), Told { low_moves: false, wake: Some(at(121)) });
        slices.low_moved(5);
        assert_eq!(slices.counts(), SliceCounts { slices: 1, strayed_bytes: 5 });
    }

    #[test]
    fn without_high_work_for_a_period_there_are_no_slices() {
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
    fn worker_that_went_idle_keeps_nobody_waiting() {
        let slices = slices(2);
        slices.step(0, at(1), LOW);
        slices.step(0, at(2), View::default());
        slices.step(1, at(3), HIGH);
        slices.step(1, at(91), HIGH);
        assert_eq!(slices.counts().slices, 1);
    }
}
