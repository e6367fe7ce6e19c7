//! The path of one engine: the stages joined into steps that a live worker or a simulation drives.
//!
//! ```text
//! reserve ─ submit(request) ┐                ┌─ run: engine makes progress (no table needed)
//! cancel, deadlines ────────┼─► stages ──────┤
//! close_queue, stop ────────┘                └─ settle: releases claims, starts waiting requests ─► completions
//!
//! submit ─┬─ nothing holds it back ─┬─ short: done at once
//!         │                         └─ admitted ─► place ─► post
//!         └─ links, fences, loops ─► order ─ advance ─► place ─► post
//! ```
//!
//! Completion is the last stage, and the ledger here keeps it: a reservation is made before a request is taken, so completions
//! cannot overflow a client's ring. Each accepted request gets exactly one. The engine's completion says whether the request
//! ended early; the first reason given for that stands. Writing completions into rings is the caller's.
//!
//! `run` is apart from `settle` so that a live worker copies without holding the capability table. How requests are ended early
//! is in `ending`, how policies pace running ones in `pacing`, and which requests are done at once in `lending`.

mod ending;
mod lending;
mod pacing;

use std::collections::BTreeMap;

use memferry_clock::Instant;
use memferry_transfer::{
    Completion, Descriptor, Engine, EngineCompletion, Failure, IMMEDIATE_OPERANDS, Operation, Operations,
    Outcome, PriorityClass, RefusalReason, Request, SessionId, Span, Task, Terms, Ticket, Watermark,
};

use crate::capability::{Admitted, Capabilities, Claims};
use crate::channel::{Channels, Placed, ask};
use crate::immediate::{self, Immediate};
use crate::order::{Arrived, Orders};
use crate::policy::{Acts, Ask, ChannelState, Outstanding, Policy};
use crate::request::{Origin, QueueCompletion, QueueKey, Retired};
pub use lending::AtOnce;
use lending::Loan;
use pacing::Pacing;

/// Limits of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathLimits {
    /// Maximum requests of one user that wait for a channel or are held by a link, a fence or a loop. A list counts as one more for
    /// every 64 of its segments.
    pub waiting_per_user: usize,
}

/// The stages of one engine.
pub struct Path<E: Engine> {
    engine: E,
    policy: Box<dyn Policy>,
    /// The policy's [`Policy::acts`], kept because every request needs it.
    acts: Acts,
    channels: Channels<E::Memory>,
    orders: Orders<E::Memory>,
    ledger: Ledger,
    longest_bytes: u64,
    immediate_bytes: u64,
    /// Engine completions that [`settle`](Self::settle) has not handled yet.
    reported: Vec<EngineCompletion>,
    completions: Vec<QueueCompletion>,
    /// Requests that ended in an order and have no completion yet.
    retired: Vec<Retired>,
    /// Queues whose next held request may be able to start.
    unblocked: Vec<QueueKey>,
    /// Claims of requests on failed channels, with the channel.
    quarantined: Vec<(u32, Claims)>,
    /// Bytes moved by ended requests of the classes low, normal and high.
    bytes_moved: [u64; 3],
    pacing: Pacing,
    /// Queues for which the policy lent bytes, some more than once.
    borrowers: Vec<QueueKey>,
    /// The engine channel that [`run_for`](Self::run_for) has served last.
    last_channel: u32,
    /// The latest time that a caller passed.
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
            borrowers: Vec::new(),
            last_channel: 0,
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

    /// Sets up to how many bytes a request is done at once. The default is what the engine announced.
    pub fn set_immediate_bytes(&mut self, bytes: u64) {
        self.immediate_bytes = bytes;
    }

    /// Opens a queue of `session`, which belongs to `user`, for requests of the normal class and below.
    pub fn open_queue(&mut self, session: SessionId, user: u32) -> QueueKey {
        let key = self.ledger.open(session, user);
        self.channels.set_crowded(self.ledger.is_crowded());
        key
    }

    /// Sets the highest class the requests of a queue may use.
    pub fn grant_class(&mut self, key: QueueKey, class: PriorityClass) {
        if let Some(queue) = self.ledger.queue(key) {
            queue.class = class;
        }
    }

    /// Whether a closed queue is gone: none of its requests runs any more.
    pub fn queue_gone(&mut self, key: QueueKey) -> bool {
        self.ledger.queue(key).is_none()
    }

    /// Whether a queue has nothing here: no request is outstanding, held or waited for, and the next one depends on none before it.
    pub fn is_quiet(&mut self, key: QueueKey) -> bool {
        self.outstanding(key) == 0 && !self.channels.waits(key) && self.orders.get(key).is_none()
    }

    /// Reserves the completion of one request, if fewer than `room` are outstanding: as many as the queue's ring has space for.
    #[inline]
    pub fn reserve(&mut self, queue: QueueKey, room: u32) -> Option<Reservation> {
        let entry = self.ledger.queue(queue)?;
        if entry.closing || entry.outstanding >= room {
            return None;
        }
        entry.outstanding += 1;
        Some(Reservation { queue })
    }

    /// Requests of a queue whose completions were not taken yet, and reservations.
    #[inline]
    pub fn outstanding(&mut self, queue: QueueKey) -> u32 {
        self.ledger.queue(queue).map_or(0, |queue| queue.outstanding)
    }

    /// Why the next request of a queue would be refused, if it is because its user has too many requests waiting. Cheap, so that a
    /// caller can ask before it decodes a long list.
    pub fn full_for(&mut self, queue: QueueKey) -> Option<Failure> {
        let user = self.ledger.queue(queue)?.user;
        let has_to_wait = self.channels.waits(queue) || self.orders.get(queue).is_some();
        if has_to_wait { self.channels.room_for(user).err() } else { None }
    }

    /// Gives a reservation back unused.
    #[cfg(test)]
    pub(crate) fn give_back(&mut self, reservation: Reservation) {
        self.ledger.ended(reservation.queue);
        self.forget(reservation.queue);
    }

    pub fn ring_doorbell(&mut self) {
        self.engine.ring_doorbell();
    }

    /// Lets the engine make progress. Returns whether it has more to do without waiting.
    pub fn run(&mut self, now: Instant) -> bool {
        self.end_late(now);
        if !self.acts.contains(Acts::PACES) {
            return self.engine.poll(now, &mut self.reported);
        }
        self.end_batch();
        // The policy's turns are for a whole round: asked in between, it would grant more than is moved.
        if self.engine.round_is_over() {
            self.pace(now);
        }
        let more = self.engine.poll(now, &mut self.reported);
        self.charge(now);
        more
    }

    /// Lets the engine make progress on one running request of `user`, by about `bytes`; on another one each time. For callers that
    /// divide their time among users. Requests that are being ended count for each user, also for none: others may wait for their end,
    /// which costs nothing. Under a policy that [paces](Self::paces), call [`run`](Self::run).
    pub fn run_for(&mut self, now: Instant, user: Option<u32>, bytes: u64) -> bool {
        self.end_late(now);
        let channels = || {
            let selected = self
                .ledger
                .running_now()
                .filter(|running| Some(running.origin.user) == user || running.ending.is_some());
            selected.map(|running| running.ticket.channel)
        };
        let last = self.last_channel;
        let next = channels().filter(|channel| *channel > last).min().or_else(|| channels().min());
        self.last_channel = next.unwrap_or(last);
        self.engine.advance(now, next, bytes, &mut self.reported)
    }

    /// The users of running requests, some more than once.
    pub fn running_users(&self) -> impl Iterator<Item = u32> {
        self.ledger.running_now().map(|running| running.origin.user)
    }

    /// The queues of running requests of `user`, or of all users, some more than once.
    pub fn running_queues(&self, user: Option<u32>) -> impl Iterator<Item = QueueKey> {
        let of_user = move |running: &&Running| user.is_none_or(|user| running.origin.user == user);
        self.ledger.running_now().filter(of_user).map(|running| running.origin.queue)
    }

    /// Whether a running request is being ended.
    pub fn ends_any(&self) -> bool {
        self.ledger.running_now().any(|running| running.ending.is_some())
    }

    /// Whether the policy divides the engine's time among running requests.
    pub fn paces(&self) -> bool {
        self.acts.contains(Acts::PACES)
    }

    /// Ends running requests whose deadline has passed.
    fn end_late(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.ledger.timed() > 0 {
            for running in self.ledger.running() {
                if running.ask.deadline.is_some_and(|deadline| deadline <= now) && running.ending.is_none() {
                    running.ending = Some(Failure::DeadlineExceeded);
                    self.engine.cancel(running.ticket);
                }
            }
        }
    }

    /// Whether [`settle`](Self::settle) has work.
    pub fn must_settle(&self) -> bool {
        !self.reported.is_empty() || self.channels.must_settle() || !self.orders.is_empty()
    }

    /// Completes ended requests, ends overdue ones, and starts waiting ones. Returns whether a request started.
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
        // Before loops advance: a loop would always take the channel that its last member freed.
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

    /// Completes a started request, unless it is part of a loop that continues.
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

    /// Completes a request that the order of its queue held or refused.
    fn retire_held(&mut self, retired: Retired, capabilities: &mut Capabilities<E::Memory>) {
        self.channels.free_places(retired.origin.user, retired.places);
        self.release(retired.claims, retired.quarantine, capabilities);
        self.complete(retired.origin, retired.outcome, retired.inherited, retired.watermarked);
    }

    /// Releases claims, or keeps them until the failed channel is reset.
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

    /// Frees a failed channel after its engine was reset, and releases the memory quarantined with it. Other channels do not change.
    pub fn channel_was_reset(&mut self, channel: u32, capabilities: &mut Capabilities<E::Memory>) {
        for (_, claims) in self.quarantined.extract_if(.., |(failed, _)| *failed == channel) {
            capabilities.release_quarantined(claims);
        }
        if self.channels.states().get(channel as usize) == Some(&ChannelState::Faulted) {
            self.channels.set(channel, ChannelState::Free);
        }
    }

    /// Takes the completions to write into rings, oldest first. They count as outstanding until then.
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

    /// Whether [`run`](Self::run) and [`settle`](Self::settle) need the time: a request could be overdue, the policy paces, or the
    /// engine has a timer. Otherwise a worker need not read the clock.
    pub fn needs_time(&self) -> bool {
        let waits = self.channels.waiting() > 0 || !self.orders.is_empty();
        let paces = self.acts.contains(Acts::PACES);
        waits || paces || self.ledger.timed() > 0 || self.engine.next_wake().is_some()
    }

    /// The latest time of the next step if nothing arrives: an engine's wake, the policy's, or a deadline.
    pub fn next_wake(&mut self) -> Option<Instant> {
        let running = self.ledger.running().filter(|running| running.ending.is_none());
        let running = running.filter_map(|running| running.ask.deadline).min();
        let waiting = self.channels.next_deadline();
        let held = self.orders.next_deadline();
        [self.engine.next_wake(), running, waiting, held, self.pacing.wake].into_iter().flatten().min()
    }

    /// The state of each engine channel.
    pub fn channel_states(&self) -> &[ChannelState] {
        self.channels.states()
    }

    /// The engine has no more work for the places of this group: what waits for one needs none, and ends as the engine ends it.
    pub fn places_are_gone(&mut self, group: u64) {
        self.channels.places_are_gone(group);
    }

    /// Requests that wait for a channel.
    pub fn waiting(&self) -> usize {
        self.channels.waiting()
    }

    /// Reports how many requests wait for a channel, of each queue for which that changed since the last call.
    pub fn report_waiting(&mut self, report: impl FnMut(QueueKey, u32)) {
        self.channels.report_waiting(report);
    }

    /// Requests of a queue that wait for a channel.
    #[cfg(test)]
    pub(crate) fn waiting_of(&self, key: QueueKey) -> u32 {
        self.channels.waiting_of(key)
    }

    /// Bytes visited for the classes low, normal and high, by ended requests and, as far as a pacing policy was charged, by running
    /// ones.
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

impl<E: Engine> Path<E> {
    /// Takes a request through admission and placement, and posts it if a channel is free. A short one is complete when this
    /// returns, if it may be [done at once](Immediate).
    #[inline]
    pub fn submit(
        &mut self,
        now: Instant,
        reservation: Reservation,
        tag: u64,
        request: &Request,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        self.now = self.now.max(now);
        let queue = reservation.queue;
        let Some(&mut Queue { session, user, closing, active, class, .. }) = self.ledger.queue(queue) else {
            return;
        };
        let terms = &request.terms;
        let origin = Origin { queue, user, tag, linked: terms.linked, member: false };
        if closing {
            return self.refused(origin, Failure::Cancelled);
        }
        if let Task::Transfer(operation) = &request.task
            && let Some(outcome) = self.at_once(queue, u32::MAX, Some(now), operation, terms, capabilities)
        {
            return self.complete(origin, outcome, false, false);
        }
        let failure = if terms.deadline.is_some_and(|deadline| deadline <= now) {
            Some(Failure::DeadlineExceeded)
        } else {
            (terms.class > class).then_some(Failure::ClassNotGranted { granted: class })
        };
        let free = !terms.linked && (!terms.fenced || active == 0) && self.orders.get(queue).is_none();
        match (&request.task, failure) {
            (_, Some(failure)) if free => self.refused(origin, failure),
            (Task::Transfer(operation), None) if free => {
                match capabilities.resolve(session, operation, self.longest_bytes) {
                    Ok(resolved) => {
                        let admitted = capabilities.claim(session, resolved, *terms);
                        self.place(admitted, origin, false, capabilities);
                    }
                    Err(failure) => self.refused(origin, failure),
                }
            }
            (task, failure) => self.arrange(session, origin, task, terms, failure, capabilities),
        }
    }

    /// Completes a reserved request as failed before admission; what is `linked` to it fails too.
    pub fn refuse(&mut self, reservation: Reservation, tag: u64, linked: bool, failure: Failure) {
        // The user matters only to placement.
        let queue = reservation.queue;
        let origin = Origin { queue, user: 0, tag, linked, member: false };
        if !linked && self.orders.get(queue).is_none() {
            return self.refused(origin, failure);
        }
        self.orders.accept(origin, Arrived::Refused(failure), &Terms::default(), &mut self.retired);
        self.unblocked.push(queue);
    }

    fn refused(&mut self, origin: Origin, failure: Failure) {
        self.complete(origin, Outcome::refused(failure), false, false);
    }

    /// Does a short request of a queue now, if [nothing holds it back](Immediate). The caller makes the completion from the outcome.
    /// It needs no reservation, but fewer than `room` must be outstanding. On `None`, [submit](Self::submit) the request.
    #[inline]
    pub fn try_at_once(
        &mut self,
        queue: QueueKey,
        room: u32,
        operation: &Operation<Span>,
        terms: &Terms,
        capabilities: &Capabilities<E::Memory>,
    ) -> Option<Outcome> {
        self.at_once(queue, room, None, operation, terms, capabilities)
    }

    /// Does a request that the rule allows. `None` if it has to go through a channel or is refused.
    #[inline]
    fn at_once(
        &mut self,
        queue: QueueKey,
        room: u32,
        now: Option<Instant>,
        operation: &Operation<Span>,
        terms: &Terms,
        capabilities: &Capabilities<E::Memory>,
    ) -> Option<Outcome> {
        let &mut Queue { class, active, .. } = self.ledger.queue(queue)?;
        let rule = Immediate {
            longest_bytes: self.immediate_bytes,
            except: Operations::empty(),
            class,
            fence_waits: active > 0,
            // A policy that promises deadlines decides on each request that has one.
            now: now.filter(|_| !self.acts.contains(Acts::ACCEPTS)),
        };
        // No engine does a long list at once, and asking one would cost a check of each segment.
        if operation.segments() > IMMEDIATE_OPERANDS || !rule.allows(operation, terms) {
            return None;
        }
        let session = self.may_do_at_once(queue, room, terms.class, operation.total_bytes())?;
        let operation = capabilities.borrowed(session, operation, self.longest_bytes).ok()?;
        let engine = &mut self.engine;
        let outcome =
            immediate::perform(&operation, terms.hint, |confined| engine.perform(confined)).ok()??;
        self.did_at_once(queue, terms.class, outcome.bytes_done);
        Some(outcome)
    }

    /// Gives a request to the order of its queue. If the user's quota of waiting requests is used up, the request fails, and those
    /// linked to it fail too.
    fn arrange(
        &mut self,
        session: SessionId,
        origin: Origin,
        task: &Task,
        terms: &Terms,
        failure: Option<Failure>,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        let failure = failure.or_else(|| self.channels.room_for(origin.user).err());
        let arrived = match (failure, task) {
            (Some(failure), _) => Arrived::Refused(failure),
            (None, Task::Repeat { rounds }) => Arrived::Repeat(*rounds),
            (None, Task::Transfer(operation)) => {
                match capabilities.resolve(session, operation, self.longest_bytes) {
                    Ok(resolved) => Arrived::Transfer(capabilities.claim(session, resolved, *terms)),
                    Err(failure) => Arrived::Refused(failure),
                }
            }
        };
        let places = arrived.places();
        if self.orders.accept(origin, arrived, terms, &mut self.retired) {
            self.channels.take_places(origin.user, places);
        }
        self.unblocked.push(origin.queue);
        self.advance_orders(capabilities);
    }

    /// Starts requests that orders no longer hold, and completes those that ended in them. Returns whether a request started.
    fn advance_orders(&mut self, capabilities: &mut Capabilities<E::Memory>) -> bool {
        let mut started = false;
        while let Some(key) = self.unblocked.pop() {
            loop {
                let active = self.ledger.queue(key).map_or(0, |queue| queue.active);
                let Some(order) = self.orders.get(key) else { break };
                let next = order.next(active, &mut self.retired);
                self.complete_retired(capabilities);
                let Some((admitted, origin)) = next else { break };
                if !origin.member {
                    self.channels.free_places(origin.user, admitted.places());
                }
                self.place(admitted, origin, true, capabilities);
                started = true;
            }
            self.orders.tidy(key, false);
        }
        self.complete_retired(capabilities);
        started
    }

    /// Completes requests that ended in orders.
    fn complete_retired(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        if self.retired.is_empty() {
            return;
        }
        for retired in std::mem::take(&mut self.retired) {
            self.retire_held(retired, capabilities);
        }
    }

    /// Gives a request a channel, or lets it wait. One that was `held` passed the quota when it arrived.
    fn place(
        &mut self,
        admitted: Admitted<E::Memory>,
        origin: Origin,
        held: bool,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        self.count_active(origin.queue);
        if let Err(failure) = self.accept(&admitted, origin) {
            let (_, claims) = admitted.into_parts();
            return self.retire_started(Retired::refused(origin, claims, failure), capabilities);
        }
        let promises = self.acts.contains(Acts::ACCEPTS);
        let places = self.engine.places(admitted.operation());
        match self.channels.place(admitted, origin, places, (held, promises), &mut *self.policy) {
            Ok(Some(placed)) => self.post(placed, capabilities),
            Ok(None) => {}
            Err(retired) => self.retire_started(retired, capabilities),
        }
    }

    /// Asks the policy whether it accepts the request, given all accepted before.
    fn accept(&mut self, admitted: &Admitted<E::Memory>, origin: Origin) -> Result<(), Failure> {
        if !self.acts.contains(Acts::ACCEPTS) {
            return Ok(());
        }
        self.end_batch();
        let engine = &self.engine;
        let ledger = &self.ledger;
        let channels = &self.channels;
        let outstanding = || {
            let running = ledger.running_now().map(|running| Outstanding {
                ask: running.ask,
                done: engine.bytes_done(running.ticket),
                at_rest: engine.is_at_rest(running.ticket.channel),
            });
            running.chain(channels.asks()).collect()
        };
        self.policy.accept(self.now, &ask(admitted, origin.user), &outstanding)
    }

    fn count_active(&mut self, key: QueueKey) {
        if let Some(queue) = self.ledger.queue(key) {
            queue.active += 1;
        }
    }

    fn post(&mut self, placed: Placed<E::Memory>, capabilities: &mut Capabilities<E::Memory>) {
        let unfolded = placed.unfold();
        let by_device =
            |descriptor: &Descriptor<E::Memory>| descriptor.operation().kind() == Operations::SYNCHRONIZED;
        let is_paced = !unfolded.descriptor.as_ref().is_ok_and(by_device);
        // It may have waited, or be a round of a loop.
        let expired = unfolded.limit.filter(|limit| capabilities.has_passed(limit));
        let descriptor = expired.map_or(unfolded.descriptor, |limit| Err(limit.failure()));
        let posted = descriptor.and_then(|descriptor| {
            self.engine.post(descriptor).map_err(|refused| match refused.reason {
                RefusalReason::Unsupported => Failure::Unsupported,
                RefusalReason::Busy(_) | RefusalReason::NoSuchChannel(_) => Failure::ChannelFaulted,
            })
        });
        let claims = unfolded.claims;
        let origin = unfolded.origin;
        let ask = unfolded.ask;
        match posted {
            Ok(ticket) => {
                self.has_changed();
                self.ledger.start(Running {
                    ticket,
                    origin,
                    claims,
                    ask,
                    charged: 0,
                    is_paced,
                    ending: None,
                    reported_bytes: 0,
                });
            }
            Err(failure) => {
                // If the engine has no such channel, or it is busy, the channel stage's view of it is wrong: stop using it.
                let lost = failure == Failure::ChannelFaulted;
                let state = if lost { ChannelState::Faulted } else { ChannelState::Free };
                self.channels.set(unfolded.channel, state);
                self.retire_started(Retired::refused(origin, claims, failure), capabilities);
            }
        }
    }

    /// Completes requests that will get no channel.
    fn retire_all(&mut self, all: Vec<Retired>, capabilities: &mut Capabilities<E::Memory>) {
        all.into_iter().for_each(|retired| self.retire_started(retired, capabilities));
    }
}

/// Space for one completion in a queue's ring, consumed when the request is submitted or refused.
#[derive(Debug)]
#[must_use = "a reservation counts as outstanding"]
pub struct Reservation {
    pub(crate) queue: QueueKey,
}

/// A request in an engine.
pub(crate) struct Running {
    pub(crate) ticket: Ticket,
    pub(crate) origin: Origin,
    pub(crate) claims: Claims,
    /// The request as the policy sees it.
    pub(crate) ask: Ask,
    /// Policies pace it, because no device does.
    pub(crate) is_paced: bool,
    /// Bytes charged by the policy so far.
    pub(crate) charged: u64,
    /// The first reason to end it early.
    pub(crate) ending: Option<Failure>,
    /// Progress reported to the client, in bytes.
    pub(crate) reported_bytes: u64,
}

impl Running {
    /// The ended request, with the engine's outcome; `quarantine` names its channel if that failed.
    pub(crate) fn retire(self, reported: &Outcome, quarantine: Option<u32>) -> Retired {
        let result = match (reported.result, self.ending) {
            (Err(Failure::Cancelled), Some(reason)) => Err(reason),
            (result, _) => result,
        };
        Retired {
            origin: self.origin,
            claims: self.claims,
            quarantine,
            places: 0,
            outcome: Outcome { result, ..*reported },
            inherited: false,
            watermarked: self.reported_bytes > 0,
        }
    }
}

/// A client's queue, as the ledger knows it.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) session: SessionId,
    pub(crate) user: u32,
    /// Reservations, requests, and completions not taken yet.
    pub(crate) outstanding: u32,
    /// Started requests that have not ended.
    pub(crate) active: u32,
    /// The client closed it, so it gets no more completions.
    pub(crate) closing: bool,
    /// The highest class its requests may use.
    pub(crate) class: PriorityClass,
    /// Bytes that the policy lent for requests done at once, by class.
    pub(crate) loans: [Loan; 3],
}

/// The queues of one path and the requests running for them.
pub(crate) struct Ledger {
    queues: Vec<Option<Queue>>,
    /// Keys of queues that are gone.
    free: Vec<QueueKey>,
    /// Queues that are not closing, by user.
    users: BTreeMap<u32, u32>,
    /// Queues that are not gone, by session.
    sessions: BTreeMap<SessionId, u32>,
    running: Vec<Option<Running>>,
    /// How many run, and how many of them have a deadline. Kept so that an idle path need not look at every channel.
    count: usize,
    timed: usize,
}

/// Counts one off, and forgets what there is none of.
fn count_off<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Ledger {
    pub(crate) fn new(channels: u32) -> Self {
        let running = (0..channels).map(|_| None).collect();
        let free = Vec::new();
        let users = BTreeMap::new();
        let sessions = BTreeMap::new();
        Self { queues: Vec::new(), free, users, sessions, running, count: 0, timed: 0 }
    }

    pub(crate) fn open(&mut self, session: SessionId, user: u32) -> QueueKey {
        let class = PriorityClass::Normal;
        let loans = Default::default();
        let queue = Queue { session, user, outstanding: 0, active: 0, closing: false, class, loans };
        *self.users.entry(user).or_default() += 1;
        *self.sessions.entry(session).or_default() += 1;
        if let Some(key) = self.free.pop() {
            self.queues[key.0 as usize] = Some(queue);
            return key;
        }
        self.queues.push(Some(queue));
        QueueKey(self.queues.len() as u32 - 1)
    }

    /// Marks a queue as closing, so that it counts for its user no more. False if it is not open.
    pub(crate) fn close(&mut self, key: QueueKey) -> bool {
        let Some(queue) = self.queue(key) else { return false };
        let user = queue.user;
        if !std::mem::replace(&mut queue.closing, true) {
            count_off(&mut self.users, user);
        }
        true
    }

    #[inline]
    pub(crate) fn queue(&mut self, key: QueueKey) -> Option<&mut Queue> {
        self.queues.get_mut(key.0 as usize)?.as_mut()
    }

    /// Forgets a closing queue with nothing outstanding; returns its session.
    #[inline]
    pub(crate) fn forget_closed(&mut self, key: QueueKey) -> Option<SessionId> {
        let slot = self.queues.get_mut(key.0 as usize)?;
        let queue = slot.take_if(|queue| queue.closing && queue.outstanding == 0)?;
        self.free.push(key);
        count_off(&mut self.sessions, queue.session);
        Some(queue.session)
    }

    /// Whether queues of more than one user are open.
    pub(crate) fn is_crowded(&self) -> bool {
        self.users.len() > 1
    }

    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    pub(crate) fn start(&mut self, running: Running) {
        let channel = running.ticket.channel as usize;
        if let Some(slot) = self.running.get_mut(channel) {
            self.count += 1;
            self.timed += usize::from(running.ask.deadline.is_some());
            *slot = Some(running);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Requests running that have a deadline.
    pub(crate) fn timed(&self) -> usize {
        self.timed
    }

    pub(crate) fn running_now(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().flatten()
    }

    pub(crate) fn running(&mut self) -> impl Iterator<Item = &mut Running> {
        self.running.iter_mut().flatten()
    }

    /// Takes the running request of a ticket; `None` if the channel holds another one.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Running> {
        let slot = self.running.get_mut(ticket.channel as usize)?;
        let running = slot.take_if(|running| running.ticket == ticket)?;
        self.count -= 1;
        self.timed -= usize::from(running.ask.deadline.is_some());
        Some(running)
    }

    /// Counts off one outstanding request of a queue.
    #[inline]
    pub(crate) fn ended(&mut self, key: QueueKey) {
        if let Some(queue) = self.queue(key) {
            queue.outstanding = queue.outstanding.saturating_sub(1);
        }
    }

    /// The completion of an ended request; `None` if its queue is closing.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        origin: Origin,
        outcome: Outcome,
        inherited: bool,
        watermarked: bool,
    ) -> Option<QueueCompletion> {
        if self.queue(origin.queue)?.closing {
            self.ended(origin.queue);
            return None;
        }
        let completion = Completion { tag: origin.tag, inherited, outcome };
        Some(QueueCompletion { queue: origin.queue, completion, watermarked })
    }
}
