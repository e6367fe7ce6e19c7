//! A channel of the engine: its job, and whether it moves.
//!
//! ```text
//! Going ── to end early, or not to move: suspend ──► Asked ── acknowledged ──► Still ─┬─ resume ──► Going
//!                                                 └─ not in time: reset           └─ to end: rewind ──► Going
//! ```
//!
//! It holds what is known; what is done about it is the engine's.

use std::collections::VecDeque;
use std::iter::Peekable;

use memferry_clock::Instant;
use memferry_drivers::ioat::Channel;
use memferry_transfer::Failure;

use super::plan::{Plan, Step};

/// Whether a channel's device moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Motion {
    Going,
    /// It was asked to stand still; without acknowledgement until then it is reset. One that is only to rest has its transfer's patience.
    Asked {
        until: Option<Instant>,
    },
    Still,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) channel: Channel,
    pub(super) serial: u32,
    pub(super) job: Option<Job>,
    pub(super) motion: Motion,
    /// Nothing is to move.
    pub(super) held: bool,
}

impl Slot {
    /// Whether the device may be moving bytes for it.
    pub(super) fn is_at_work(&self) -> bool {
        self.motion != Motion::Still && self.job.as_ref().is_some_and(|job| !job.given.is_empty())
    }

    /// When something has to be done about it at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = self.job.as_ref().and_then(|job| job.until);
        match self.motion {
            Motion::Going => until,
            Motion::Asked { until: drained } => drained.into_iter().chain(until).min(),
            Motion::Still => None,
        }
    }

    /// Whether it did nothing for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let until = self.job.as_ref().and_then(|job| job.until);
        self.motion != Motion::Still && until.is_some_and(|until| until <= now)
    }
}

/// A step that the device was given.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) step: Step,
    /// It is done when the driver's progress is not below.
    pub(super) position: u64,
}

#[derive(Debug)]
pub(super) struct Job {
    /// Steps that were given and taken back, then the rest of the plan.
    again: VecDeque<Step>,
    plan: Peekable<Plan>,
    pub(super) given: VecDeque<Given>,
    pub(super) done: u64,
    /// Steps before are whole.
    pub(super) whole: bool,
    pub(super) started: bool,
    /// How it is to end early.
    pub(super) end: Option<Failure>,
    /// What it has to end with, to be whole, is all that is given: nothing is to be taken back any more.
    pub(super) closing: bool,
    /// When what the device does for it is overdue.
    pub(super) until: Option<Instant>,
}

impl Job {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            again: VecDeque::new(),
            plan: plan.peekable(),
            given: VecDeque::new(),
            done: 0,
            whole: true,
            started: false,
            end: None,
            closing: false,
            until: None,
        }
    }

    /// The next step that is wanted: of a job that is to end, as many as make it whole.
    pub(super) fn next(&mut self) -> Option<Step> {
        if self.wants_more() { self.again.pop_front().or_else(|| self.plan.next()) } else { None }
    }

    pub(super) fn wants_more(&mut self) -> bool {
        let last = self.given.back().map_or(self.whole, |given| given.step.whole);
        let ends = self.end.is_some() && last;
        !ends && (!self.again.is_empty() || self.plan.peek().is_some())
    }

    /// Counts what is done; whether anything was.
    pub(super) fn collect(&mut self, done: u64) -> bool {
        let before = self.given.len();
        while let Some(given) = self.given.pop_front_if(|given| given.position <= done) {
            self.done += given.step.bytes;
            self.whole = given.step.whole;
        }
        self.given.len() < before
    }

    /// Takes back what was given and not done.
    pub(super) fn take_back(&mut self) {
        let steps = self.given.drain(..).map(|given| given.step);
        self.again = steps.chain(std::mem::take(&mut self.again)).collect();
        self.until = None;
    }

    /// How it ended, when nothing of it is with the device and nothing more is to be.
    pub(super) fn result(&mut self) -> Option<Result<(), Failure>> {
        if !self.given.is_empty() || self.wants_more() {
            return None;
        }
        let complete = self.started && self.again.is_empty() && self.plan.peek().is_none();
        if complete { Some(Ok(())) } else { self.end.map(Err) }
    }
}
