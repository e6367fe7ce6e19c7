//! The path of one engine: the stages joined into steps that a live worker or a simulation drives.
//!
//! ```text
//! reserve ─ submit(request) ┐                ┌─ run: engine makes progress (no table needed)
//! cancel, deadlines ────────┼─► stages ──────┤
//! close_queue, stop ────────┘                └─ settle: releases claims, starts who waits ─► completions
//! ```
//!
//! `run` is apart from `settle` so that a live worker copies without holding the capability table. How a request starts is in
//! `starting`, how it is ended before its time in `ending`.

mod ending;
mod pacing;
mod starting;

use memferry_clock::Instant;
use memferry_transfer::{Engine, EngineCompletion, Failure, Outcome, PriorityClass, SessionId, Watermark};

use crate::capability::{Capabilities, Claims};
use crate::channel::Channels;
use crate::completion::{Ledger, Reservation};
use crate::order::Orders;
use crate::policy::{Acts, ChannelState, Policy};
use crate::request::{Origin, QueueCompletion, QueueKey, Retired};
use pacing::Pacing;

/// Bounds of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathLimits {
    /// Requests of one user that may wait for a channel, or be held by a link, a fence or a loop, before the next is refused. A
    /// list counts as one more for every 64 of its segments.
    pub waiting_per_user: usize,
}

/// The stages of one engine.
pub struct Path<E: Engine> {
    engine: E,
    policy: Box<dyn Policy>,
    /// What the policy takes part in: asked once, for every request comes by here.
    acts: Acts,
    channels: Channels<E::Memory>,
    orders: Orders<E::Memory>,
    ledger: Ledger,
    longest_bytes: u64,
    immediate_bytes: u64,
    /// What the engine reported and [`settle`](Self::settle) has not handled yet.
    reported: Vec<EngineCompletion>,
    completions: Vec<QueueCompletion>,
    /// Requests that ended in an order and have no completion yet.
    retired: Vec<Retired>,
    /// Queues whose next held request may be able to start.
    unblocked: Vec<QueueKey>,
    /// Claims of requests on failed channels, with the channel.
    quarantined: Vec<(u32, Claims)>,
    /// For requests of the classes low, normal and high.
    bytes_moved: [u64; 3],
    pacing: Pacing,
    /// The latest that this was told of.
    now: Instant,
}

impl<E: Engine> Path<E> {
    /// A path over `engine`.
    pub fn new(engine: E, policy: Box<dyn Policy>, limits: PathLimits) -> Self {
        let capabilities = engine.capabilities();
        Self {
            channels: Channels::new(capabilities.channels, limits.waiting_per_user),
            orders: Orders::new(),
            ledger: Ledger::new(capabilities.channels),
            longest_bytes: capabilities.longest_bytes,
            immediate_bytes: capabilities.immediate_bytes,
            engine,
            acts: policy.acts(),
            policy,
            reported: Vec::new(),
            completions: Vec::new(),
            retired: Vec::new(),
            unblocked: Vec::new(),
            quarantined: Vec::new(),
            bytes_moved: [0; 3],
            pacing: Pacing::default(),
            now: Instant::ORIGIN,
        }
    }

    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The engine, for control outside the data path.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Adds a queue of `session`, which belongs to `user`, for requests of the normal class and below.
    pub fn open_queue(&mut self, session: SessionId, user: u32) -> QueueKey {
        let key = self.ledger.open(session, user);
        self.channels.crowded = self.ledger.is_crowded();
        key
    }

    /// Sets the highest class the requests of a queue may use.
    pub fn grant_class(&mut self, key: QueueKey, class: PriorityClass) {
        if let Some(queue) = self.ledger.queue(key) {
            queue.class = class;
        }
    }

    /// Whether a closed queue has nothing running any more.
    pub fn queue_gone(&mut self, key: QueueKey) -> bool {
        self.ledger.queue(key).is_none()
    }

    /// Makes room for one request, given that `room` completions fit the queue's ring now.
    #[inline]
    pub fn reserve(&mut self, queue: QueueKey, room: u32) -> Option<Reservation> {
        let entry = self.ledger.queue(queue)?;
        if entry.closing || entry.outstanding >= room {
            return None;
        }
        entry.outstanding += 1;
        Some(Reservation { queue })
    }

    /// Gives a reservation back unused.
    #[cfg(test)]
    pub(crate) fn give_back(&mut self, reservation: Reservation) {
        self.ledger.ended(reservation.queue);
        self.forget(reservation.queue);
    }

    /// Starts what was posted.
    pub fn ring_doorbell(&mut self) {
        self.engine.ring_doorbell();
    }

    /// Lets the engine make progress. Returns whether it has more to do at once.
    pub fn run(&mut self, now: Instant) -> bool {
        self.now = self.now.max(now);
        if self.ledger.timed() > 0 {
            for running in self.ledger.running() {
                if running.ask.deadline.is_some_and(|deadline| deadline <= now) && running.ending.is_none() {
                    running.ending = Some(Failure::DeadlineExceeded);
                    self.engine.cancel(running.ticket);
                }
            }
        }
        if !self.acts.contains(Acts::PACES) {
            return self.engine.poll(now, &mut self.reported);
        }
        self.pace(now);
        let more = self.engine.poll(now, &mut self.reported);
        self.charge(now);
        more
    }

    /// Whether [`settle`](Self::settle) has work.
    pub fn must_settle(&self) -> bool {
        !self.reported.is_empty() || self.channels.waiting() > 0 || !self.orders.is_empty()
    }

    /// Completes what finished, gives up what waited too long, and starts what waits. Returns whether something started.
    pub fn settle(&mut self, now: Instant, capabilities: &mut Capabilities<E::Memory>) -> bool {
        self.now = self.now.max(now);
        let mut reported = std::mem::take(&mut self.reported);
        for completion in reported.drain(..) {
            self.settle_one(&completion, capabilities);
        }
        self.reported = reported;
        if self.channels.waiting() == 0 && self.orders.is_empty() {
            return self.advance_orders(capabilities);
        }
        self.give_up_overdue(now, capabilities);
        let mut started = false;
        // Before loops go on: one would take the channel that its member left again and again.
        while let Some(placed) = self.channels.place_waiting(&mut *self.policy) {
            self.post(placed, capabilities);
            started = true;
        }
        self.advance_orders(capabilities) | started
    }

    fn settle_one(&mut self, reported: &EngineCompletion, capabilities: &mut Capabilities<E::Memory>) {
        let Some(running) = self.ledger.take(reported.ticket) else { return };
        self.bytes_moved[running.ask.class.index()] += reported.outcome.bytes_done;
        let channel = reported.ticket.channel;
        let faulted = reported.outcome.result == Err(Failure::ChannelFaulted);
        self.channels.set(channel, if faulted { ChannelState::Faulted } else { ChannelState::Free });
        if faulted
            && running.origin.member
            && let Some(order) = self.orders.get(running.origin.queue)
        {
            order.quarantine(channel);
        }
        self.retire_started(running.retire(&reported.outcome, faulted.then_some(channel)), capabilities);
    }

    /// Completes a request that was started, unless it is part of a loop that goes on.
    fn retire_started(&mut self, retired: Retired, capabilities: &mut Capabilities<E::Memory>) {
        let origin = retired.origin;
        self.release(retired.claims, retired.quarantine, capabilities);
        if let Some(queue) = self.ledger.queue(origin.queue) {
            queue.active = queue.active.saturating_sub(1);
        }
        if let Some(order) = self.orders.get(origin.queue) {
            self.unblocked.push(origin.queue);
            if !order.ended(origin, &retired.outcome) {
                return;
            }
        }
        self.complete(origin, retired.outcome, false, retired.watermarked);
    }

    /// Completes a request that its queue's order held or refused.
    fn retire_held(&mut self, retired: Retired, capabilities: &mut Capabilities<E::Memory>) {
        self.channels.free_places(retired.origin.user, retired.places);
        self.release(retired.claims, retired.quarantine, capabilities);
        self.complete(retired.origin, retired.outcome, retired.inherited, retired.watermarked);
    }

    /// Releases claims, or keeps them until the channel that failed is reset.
    fn release(
        &mut self,
        claims: Claims,
        quarantine: Option<u32>,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        match quarantine {
            Some(channel) => {
                capabilities.quarantine(&claims);
                self.quarantined.push((channel, claims));
            }
            None => capabilities.release(claims),
        }
    }

    fn complete(&mut self, origin: Origin, outcome: Outcome, inherited: bool, watermarked: bool) {
        let completion = self.ledger.complete(origin, outcome, inherited, watermarked);
        self.completions.extend(completion);
        self.forget(origin.queue);
    }

    /// Frees a failed channel after its engine was reset and releases the memory quarantined with it. A channel that has
    /// not failed stays as it is.
    pub fn channel_was_reset(&mut self, channel: u32, capabilities: &mut Capabilities<E::Memory>) {
        for (_, claims) in self.quarantined.extract_if(.., |(failed, _)| *failed == channel) {
            capabilities.release_quarantined(claims);
        }
        if self.channels.states().get(channel as usize) == Some(&ChannelState::Faulted) {
            self.channels.set(channel, ChannelState::Free);
        }
    }

    /// Completions to be written into rings, oldest first. They count as outstanding until they are taken.
    pub fn take_completions(&mut self) -> std::vec::Drain<'_, QueueCompletion> {
        for completion in &self.completions {
            self.ledger.ended(completion.queue);
        }
        self.completions.drain(..)
    }

    /// Whether [`take_completions`](Self::take_completions) has any.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Reports the progress of each long request whose watermark has risen since the last call.
    pub fn report_progress(&mut self, mut report: impl FnMut(QueueKey, u64, Watermark)) {
        for running in self.ledger.running().filter(|running| !running.origin.member) {
            if let Some(watermark) = self.engine.watermark(running.ticket)
                && watermark.bytes > running.reported_bytes
            {
                running.reported_bytes = watermark.bytes;
                report(running.origin.queue, running.origin.tag, watermark);
            }
        }
    }

    /// Whether the engine has work: something runs, or ended and was not settled.
    pub fn running(&self) -> bool {
        self.ledger.count() > 0 || !self.reported.is_empty()
    }

    /// Whether nothing runs, nothing waits for a channel, and nothing is left to settle.
    pub fn idle(&self) -> bool {
        self.channels.waiting() == 0 && !self.running() && self.unblocked.is_empty()
    }

    /// Whether the present matters to [`run`](Self::run) and [`settle`](Self::settle): something runs or waits that could
    /// be overdue, or the engine keeps time. A worker saves itself the look at the clock otherwise.
    pub fn needs_time(&self) -> bool {
        let waits = self.channels.waiting() > 0 || !self.orders.is_empty();
        let paces = self.acts.contains(Acts::PACES);
        waits || paces || self.ledger.timed() > 0 || self.engine.next_wake().is_some()
    }

    /// When the path has to be stepped again although nothing arrives: an engine's wake, or the deadline of a request.
    pub fn next_wake(&mut self) -> Option<Instant> {
        let running = self.ledger.running().filter(|running| running.ending.is_none());
        let running = running.filter_map(|running| running.ask.deadline).min();
        let waiting = self.channels.next_deadline();
        let held = self.orders.next_deadline();
        [self.engine.next_wake(), running, waiting, held, self.pacing.wake].into_iter().flatten().min()
    }

    /// What each engine channel is doing.
    pub fn channel_states(&self) -> &[ChannelState] {
        self.channels.states()
    }

    /// Requests that wait for a channel.
    pub fn waiting(&self) -> usize {
        self.channels.waiting()
    }

    /// Requests of a queue that wait for a channel.
    pub fn waiting_of(&self, key: QueueKey) -> u32 {
        self.channels.waiting_of(key)
    }

    /// Bytes visited by finished requests, and what running ones have moved as far as a pacing policy was told, of the classes
    /// low, normal and high.
    pub fn moved_by_class(&self) -> [u64; 3] {
        let mut moved = self.bytes_moved;
        for running in self.ledger.running_now() {
            moved[running.ask.class.index()] += running.charged;
        }
        moved
    }

    /// Forgets a closed queue once nothing of it is left, and tells the policy when its client is gone.
    #[inline]
    fn forget(&mut self, key: QueueKey) {
        if let Some(session) = self.ledger.forget_closed(key) {
            self.orders.tidy(key, true);
            if !self.ledger.has_session(session) {
                self.policy.departed(session);
            }
        }
    }
}
