//! State of an engine channel: its job and whether it is suspended.
//!
//! ```text
//! Running ── cancelled or suspended: suspend ──► Suspending ── acknowledged ──► Suspended ─┬─ resume ──► Running
//!                                                   └─ not in time: reset                  └─ cancelled: rewind ──► Running
//! ```
//!
//! The engine acts on this state.

use std::collections::VecDeque;
use std::iter::Peekable;

use memferry_clock::Instant;
use memferry_driver_ioat::Channel;
use memferry_ioat_registers::Chanerr;
use memferry_transfer::Failure;

use super::plan::{Plan, Step};

/// Whether a channel's device is running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Running,
    /// The suspension is requested; the channel is reset at `until`. Without `until`, the job's patience applies.
    Suspending {
        until: Option<Instant>,
    },
    Suspended,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) channel: Channel,
    pub(super) serial: u32,
    pub(super) job: Option<Job>,
    pub(super) phase: Phase,
    /// Whether the caller suspended the channel.
    pub(super) held: bool,
    /// Errors with which the channel halted last.
    pub(super) errors: Chanerr,
}

impl Slot {
    /// Whether the device may be moving bytes for the job.
    pub(super) fn is_at_work(&self) -> bool {
        self.phase != Phase::Suspended && self.job.as_ref().is_some_and(|job| !job.submitted.is_empty())
    }

    /// Latest time at which the engine must act on it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = self.job.as_ref().and_then(|job| job.until);
        match self.phase {
            Phase::Running => until,
            Phase::Suspending { until: drained } => drained.into_iter().chain(until).min(),
            Phase::Suspended => None,
        }
    }

    /// Whether the device made no progress for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let until = self.job.as_ref().and_then(|job| job.until);
        self.phase != Phase::Suspended && until.is_some_and(|until| until <= now)
    }
}

/// A step submitted to the device.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) step: Step,
    /// The step is done once the driver's progress reaches this position.
    pub(super) position: u64,
}

#[derive(Debug)]
pub(super) struct Job {
    /// Steps taken back from the device; they come before the rest of the plan.
    returned: VecDeque<Step>,
    plan: Peekable<Plan>,
    pub(super) submitted: VecDeque<Submitted>,
    pub(super) done: u64,
    /// Whether the operation may end after the last finished step.
    pub(super) whole: bool,
    pub(super) started: bool,
    /// The failure to end with, once the operation may end.
    pub(super) end: Option<Failure>,
    /// Whether only the steps up to the next boundary are submitted; nothing is taken back any more.
    pub(super) closing: bool,
    /// Time at which the device's progress is overdue.
    pub(super) until: Option<Instant>,
}

impl Job {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            returned: VecDeque::new(),
            plan: plan.peekable(),
            submitted: VecDeque::new(),
            done: 0,
            whole: true,
            started: false,
            end: None,
            closing: false,
            until: None,
        }
    }

    /// The next step to submit; after a cancellation, only until the operation may end.
    pub(super) fn next(&mut self) -> Option<Step> {
        if self.wants_more() { self.returned.pop_front().or_else(|| self.plan.next()) } else { None }
    }

    pub(super) fn wants_more(&mut self) -> bool {
        let last = self.submitted.back().map_or(self.whole, |submitted| submitted.step.whole);
        let ends = self.end.is_some() && last;
        !ends && (!self.returned.is_empty() || self.plan.peek().is_some())
    }

    /// Counts finished steps; returns whether there were any.
    pub(super) fn collect(&mut self, done: u64) -> bool {
        let before = self.submitted.len();
        while let Some(submitted) = self.submitted.pop_front_if(|submitted| submitted.position <= done) {
            self.done += submitted.step.bytes;
            self.whole = submitted.step.whole;
        }
        self.submitted.len() < before
    }

    /// Takes back the unfinished steps.
    pub(super) fn take_back(&mut self) {
        let steps = self.submitted.drain(..).map(|submitted| submitted.step);
        self.returned = steps.chain(std::mem::take(&mut self.returned)).collect();
        self.until = None;
    }

    /// The job's result, once no step is submitted and none is left to submit.
    pub(super) fn result(&mut self) -> Option<Result<(), Failure>> {
        if !self.submitted.is_empty() || self.wants_more() {
            return None;
        }
        let complete = self.started && self.returned.is_empty() && self.plan.peek().is_none();
        if complete { Some(Ok(())) } else { self.end.map(Err) }
    }
}
