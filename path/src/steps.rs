//! The path of one engine: the stages joined into steps that a live lane or a simulation drives.
//!
//! ```text
//! reserve ─ submit(request) ┐                ┌─ run: engine makes progress (no table needed)
//! cancel, deadlines ────────┼─► stages ──────┤
//! close_queue, stop ────────┘                └─ settle: releases claims, starts who waits ─► deliveries
//! ```
//!
//! `run` is apart from `settle` so that a live lane copies without holding the capability table.

use memferry_clock::Instant;
use memferry_transfer::{Engine, Failure, Finished, RefusalReason, Request, SessionId};

use crate::capability::{Capabilities, Claims};
use crate::channel::{ChannelState, Channels, Origin, Placed, Unplaced};
use crate::completion::{Delivery, Ledger, Queue, QueueKey, Reservation, Running};
use crate::policy::Policy;

/// Bounds of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathLimits {
    /// Requests of one client that may wait for a channel.
    pub waiting_per_session: usize,
}

/// The stages of one engine.
pub struct Path<E: Engine> {
    engine: E,
    policy: Box<dyn Policy>,
    channels: Channels<E::Memory>,
    ledger: Ledger,
    longest_bytes: u64,
    finished: Vec<Finished>,
    deliveries: Vec<Delivery>,
    /// Claims of requests on failed channels, with the channel.
    quarantined: Vec<(u32, Claims)>,
    bytes_moved: u64,
}

impl<E: Engine> Path<E> {
    /// A path over `engine`.
    pub fn new(engine: E, policy: Box<dyn Policy>, limits: PathLimits) -> Self {
        let capabilities = engine.capabilities();
        Self {
            channels: Channels::new(capabilities.channels, limits.waiting_per_session),
            ledger: Ledger::new(capabilities.channels, capabilities.kind),
            longest_bytes: capabilities.longest_bytes,
            engine,
            policy,
            finished: Vec::new(),
            deliveries: Vec::new(),
            quarantined: Vec::new(),
            bytes_moved: 0,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The engine, for control outside the data path.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Adds a queue of `session`, which belongs to `user`.
    pub fn open_queue(&mut self, session: SessionId, user: u32) -> QueueKey {
        let key = self.ledger.open(session, user);
        self.channels.crowded = self.ledger.is_crowded();
        key
    }

    /// Stops listening to a queue: what waits is dropped, what runs is cancelled, no delivery follows. The queue is gone
    /// once nothing of it runs ([`queue_gone`](Self::queue_gone)).
    pub fn close_queue(&mut self, key: QueueKey, capabilities: &mut Capabilities<E::Memory>) {
        let Some(queue) = self.ledger.queue(key) else { return };
        queue.closing = true;
        self.channels.crowded = self.ledger.is_crowded();
        for _ in self.deliveries.extract_if(.., |delivery| delivery.queue == key) {
            self.ledger.ended(key);
        }
        self.give_up(capabilities, |origin| (origin.queue == key).then_some(Failure::Cancelled));
        self.end_running(Failure::Cancelled, |running| running.origin.queue == key);
        self.forget(key);
    }

    /// Whether a closed queue has nothing running any more.
    pub fn queue_gone(&mut self, key: QueueKey) -> bool {
        self.ledger.queue(key).is_none()
    }

    /// Makes room for one request, given that `room` completions fit the queue's ring now.
    pub fn reserve(&mut self, queue: QueueKey, room: u32) -> Option<Reservation> {
        let entry = self.ledger.queue(queue)?;
        if entry.closing || entry.outstanding >= room {
            return None;
        }
        entry.outstanding += 1;
        Some(Reservation { queue })
    }

    /// Gives a reservation back unused.
    pub fn give_back(&mut self, reservation: Reservation) {
        self.ledger.ended(reservation.queue);
        self.forget(reservation.queue);
    }

    /// Takes a request through admission and placement, and posts it when a channel is free.
    pub fn submit(
        &mut self,
        now: Instant,
        reservation: Reservation,
        tag: u64,
        request: &Request,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        let queue = reservation.queue;
        let Some(&mut Queue { session, user, closing, .. }) = self.ledger.queue(queue) else { return };
        let origin = Origin { queue, user, tag };
        if closing {
            return self.refused(origin, Failure::Cancelled);
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return self.refused(origin, Failure::DeadlineExceeded);
        }
        let admitted = match capabilities.admit(session, request, self.longest_bytes) {
            Ok(admitted) => admitted,
            Err(failure) => return self.refused(origin, failure),
        };
        match self.channels.place(admitted, origin, &mut *self.policy) {
            Ok(Some(placed)) => self.post(placed, capabilities),
            Ok(None) => {}
            Err(unplaced) => self.unplaced(unplaced, capabilities),
        }
    }

    /// Completes a reserved request as failed before admission.
    pub fn refuse(&mut self, reservation: Reservation, tag: u64, failure: Failure) {
        // Who asked matters only to placement.
        self.refused(Origin { queue: reservation.queue, user: 0, tag }, failure);
    }

    /// Starts what was posted.
    pub fn ring_doorbell(&mut self) {
        self.engine.ring_doorbell();
    }

    /// Lets the engine make progress. Returns whether it has more to do at once.
    pub fn run(&mut self, now: Instant) -> bool {
        if self.ledger.timed() > 0 {
            for running in self.ledger.running() {
                if running.deadline.is_some_and(|deadline| deadline <= now) && running.ending.is_none() {
                    running.ending = Some(Failure::DeadlineExceeded);
                    self.engine.cancel(running.ticket);
                }
            }
        }
        self.engine.poll(now, &mut self.finished)
    }

    /// Whether [`settle`](Self::settle) has work.
    pub fn must_settle(&self) -> bool {
        !self.finished.is_empty() || self.channels.waiting() > 0
    }

    /// Completes what finished, gives up what waited too long, and starts what waits. Returns whether something started.
    pub fn settle(&mut self, now: Instant, capabilities: &mut Capabilities<E::Memory>) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        for report in finished.drain(..) {
            self.settle_one(&report, capabilities);
        }
        self.finished = finished;
        if self.channels.waiting() == 0 {
            return false;
        }
        let overdue = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let all_faulted = self.channels.usable() == 0;
        if all_faulted || overdue(self.channels.next_deadline()) {
            let given_up = self.channels.give_up(|admitted, _| match overdue(admitted.deadline()) {
                true => Some(Failure::DeadlineExceeded),
                false => all_faulted.then_some(Failure::ChannelFaulted),
            });
            self.unplaced_all(given_up, capabilities);
        }
        let mut started = false;
        while let Some(placed) = self.channels.place_waiting(&mut *self.policy) {
            self.post(placed, capabilities);
            started = true;
        }
        started
    }

    fn settle_one(&mut self, report: &Finished, capabilities: &mut Capabilities<E::Memory>) {
        let Some(running) = self.ledger.take(report.ticket) else { return };
        self.bytes_moved += report.bytes_done;
        let delivery = self.ledger.finish(&running, report);
        self.deliveries.extend(delivery);
        let channel = report.ticket.channel;
        if report.outcome == Err(Failure::ChannelFaulted) {
            self.channels.set(channel, ChannelState::Faulted);
            self.quarantined.push((channel, running.claims));
        } else {
            self.channels.set(channel, ChannelState::Free);
            capabilities.release(running.claims);
        }
        self.forget(running.origin.queue);
    }

    /// Asks that the request a queue knows by `tag` end early.
    pub fn cancel(&mut self, queue: QueueKey, tag: u64, capabilities: &mut Capabilities<E::Memory>) {
        self.cancel_where(queue, |candidate| candidate == tag, capabilities);
    }

    /// Asks that the requests of a queue whose tag `named` accepts end early.
    pub fn cancel_where(
        &mut self,
        queue: QueueKey,
        named: impl Fn(u64) -> bool,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        let hit = |origin: Origin| origin.queue == queue && named(origin.tag);
        self.give_up(capabilities, |origin| hit(origin).then_some(Failure::Cancelled));
        self.end_running(Failure::Cancelled, |running| hit(running.origin));
    }

    /// Asks that requests which use revoked memory end early.
    pub fn cancel_revoked(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        let given_up = self.channels.give_up(|admitted, _| {
            capabilities.uses_revoked(admitted.claims()).then_some(Failure::Cancelled)
        });
        self.unplaced_all(given_up, capabilities);
        self.end_running(Failure::Cancelled, |running| capabilities.uses_revoked(&running.claims));
    }

    /// Fails everything that waits because the service stops.
    pub fn stop(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        self.give_up(capabilities, |_| Some(Failure::ServiceStopping));
    }

    /// Asks that everything that runs end early.
    pub fn cancel_all(&mut self) {
        self.end_running(Failure::Cancelled, |_| true);
    }

    /// Frees a failed channel after its engine was reset and releases the memory quarantined with it. A channel that has
    /// not failed stays as it is.
    pub fn channel_was_reset(&mut self, channel: u32, capabilities: &mut Capabilities<E::Memory>) {
        for (_, claims) in self.quarantined.extract_if(.., |(failed, _)| *failed == channel) {
            capabilities.release(claims);
        }
        if self.channels.states().get(channel as usize) == Some(&ChannelState::Faulted) {
            self.channels.set(channel, ChannelState::Free);
        }
    }

    /// Completions to be written into rings, oldest first. They count as outstanding until they are taken.
    pub fn take_deliveries(&mut self) -> std::vec::Drain<'_, Delivery> {
        for delivery in &self.deliveries {
            self.ledger.ended(delivery.queue);
        }
        self.deliveries.drain(..)
    }

    /// Whether the engine has work: something runs, or ended and was not settled.
    pub fn running(&self) -> bool {
        self.ledger.count() > 0 || !self.finished.is_empty()
    }

    /// Whether nothing runs and nothing waits.
    pub fn idle(&self) -> bool {
        self.channels.waiting() == 0 && !self.running()
    }

    /// Whether the present matters to [`run`](Self::run) and [`settle`](Self::settle): something runs or waits that could
    /// be overdue, or the engine keeps time. A lane saves itself the look at the clock otherwise.
    pub fn needs_time(&self) -> bool {
        self.ledger.timed() > 0 || self.channels.waiting() > 0 || self.engine.next_wake().is_some()
    }

    /// When the path has to be stepped again although nothing arrives: an engine's wake, or the deadline of a request.
    pub fn next_wake(&mut self) -> Option<Instant> {
        let running = self.ledger.running().filter(|running| running.ending.is_none());
        let running = running.filter_map(|running| running.deadline).min();
        let waiting = self.channels.next_deadline();
        [self.engine.next_wake(), running, waiting].into_iter().flatten().min()
    }

    /// What each engine channel is doing.
    pub fn channel_states(&self) -> &[ChannelState] {
        self.channels.states()
    }

    /// Requests that wait for a channel.
    pub fn waiting(&self) -> usize {
        self.channels.waiting()
    }

    /// Destination bytes visited by finished requests.
    pub fn bytes_moved(&self) -> u64 {
        self.bytes_moved
    }

    fn post(&mut self, placed: Placed<E::Memory>, capabilities: &mut Capabilities<E::Memory>) {
        let unfolded = placed.unfold();
        let posted = unfolded.descriptor.and_then(|descriptor| {
            self.engine.post(descriptor).map_err(|refused| match refused.reason {
                RefusalReason::Unsupported => Failure::Unsupported,
                RefusalReason::Busy(_) | RefusalReason::NoSuchChannel(_) => Failure::ChannelFaulted,
            })
        });
        let (claims, origin, deadline) = (unfolded.claims, unfolded.origin, unfolded.deadline);
        match posted {
            Ok(ticket) => self.ledger.start(Running { ticket, origin, claims, deadline, ending: None }),
            Err(failure) => {
                // An engine that has no such channel, or has it busy, is not what the channel stage believes it is.
                let lost = failure == Failure::ChannelFaulted;
                let state = if lost { ChannelState::Faulted } else { ChannelState::Free };
                self.channels.set(unfolded.channel, state);
                self.unplaced(Unplaced { claims, origin, failure }, capabilities);
            }
        }
    }

    fn end_running(&mut self, reason: Failure, named: impl Fn(&Running) -> bool) {
        for running in self.ledger.running().filter(|running| named(running)) {
            running.ending.get_or_insert(reason);
            self.engine.cancel(running.ticket);
        }
    }

    fn give_up(
        &mut self,
        capabilities: &mut Capabilities<E::Memory>,
        gives_up: impl Fn(Origin) -> Option<Failure>,
    ) {
        let given_up = self.channels.give_up(|_, origin| gives_up(origin));
        self.unplaced_all(given_up, capabilities);
    }

    fn unplaced_all(&mut self, unplaced: Vec<Unplaced>, capabilities: &mut Capabilities<E::Memory>) {
        for unplaced in unplaced {
            self.unplaced(unplaced, capabilities);
        }
    }

    fn unplaced(&mut self, unplaced: Unplaced, capabilities: &mut Capabilities<E::Memory>) {
        capabilities.release(unplaced.claims);
        self.refused(unplaced.origin, unplaced.failure);
    }

    fn refused(&mut self, origin: Origin, failure: Failure) {
        let delivery = self.ledger.refuse(origin, failure);
        self.deliveries.extend(delivery);
        self.forget(origin.queue);
    }

    /// Forgets a closed queue once nothing of it is left, and tells the policy when its client is gone.
    fn forget(&mut self, key: QueueKey) {
        if let Some(session) = self.ledger.forget_closed(key)
            && !self.ledger.has_session(session)
        {
            self.policy.departed(session);
        }
    }
}
