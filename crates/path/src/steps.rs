//! The path of one engine: the stages joined into steps that a live worker or a simulation drives.
//!
//! ```text
//! reserve ─ submit(request) ┐                ┌─ run: engine makes progress (no table needed)
//! cancel, deadlines ────────┼─► stages ──────┤
//! close_queue, stop ────────┘                └─ settle: releases claims, starts who waits ─► deliveries
//! ```
//!
//! `run` is apart from `settle` so that a live worker copies without holding the capability table. How a request starts is in
//! `starting`, how it is ended before its time in `ending`.

mod ending;
mod pacing;
mod starting;

pub use starting::Performing;

use memferry_clock::Instant;
use memferry_transfer::{Engine, EngineKind, Failure, Finished, PriorityClass, SessionId, Watermark};

use crate::capability::{Capabilities, Claims};
use crate::channel::{ChannelState, Channels, Origin};
use crate::completion::{Delivery, End, Ledger, QueueKey, Reservation};
use crate::order::{Fate, Orders};
use crate::policy::{Acts, Policy};
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
    /// Of what is done at once.
    kind: EngineKind,
    finished: Vec<Finished>,
    deliveries: Vec<Delivery>,
    /// What ended in an order and was not delivered yet.
    fates: Vec<Fate>,
    /// Queues whose next held request may be able to start.
    stirred: Vec<QueueKey>,
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
            kind: capabilities.kind,
            engine,
            acts: policy.acts(),
            policy,
            finished: Vec::new(),
            deliveries: Vec::new(),
            fates: Vec::new(),
            stirred: Vec::new(),
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
            return self.engine.poll(now, &mut self.finished);
        }
        self.pace(now);
        let more = self.engine.poll(now, &mut self.finished);
        self.charge(now);
        more
    }

    /// Whether [`settle`](Self::settle) has work.
    pub fn must_settle(&self) -> bool {
        !self.finished.is_empty() || self.channels.waiting() > 0 || !self.orders.is_empty()
    }

    /// Completes what finished, gives up what waited too long, and starts what waits. Returns whether something started.
    pub fn settle(&mut self, now: Instant, capabilities: &mut Capabilities<E::Memory>) -> bool {
        self.now = self.now.max(now);
        let mut finished = std::mem::take(&mut self.finished);
        for report in finished.drain(..) {
            self.settle_one(&report, capabilities);
        }
        self.finished = finished;
        if self.channels.waiting() == 0 && self.orders.is_empty() {
            return self.stir(capabilities);
        }
        self.give_up_overdue(now, capabilities);
        let mut started = false;
        // Before loops go on: one would take the channel that its member left again and again.
        while let Some(placed) = self.channels.place_waiting(&mut *self.policy) {
            self.post(placed, capabilities);
            started = true;
        }
        self.stir(capabilities) | started
    }

    fn settle_one(&mut self, report: &Finished, capabilities: &mut Capabilities<E::Memory>) {
        let Some(running) = self.ledger.take(report.ticket) else { return };
        self.bytes_moved[running.ask.class.index()] += report.bytes_done;
        let channel = report.ticket.channel;
        if report.outcome == Err(Failure::ChannelFaulted) {
            self.channels.set(channel, ChannelState::Faulted);
            if running.origin.member
                && let Some(order) = self.orders.get(running.origin.queue)
            {
                order.quarantine(channel);
            }
            let end = Ledger::end(&running, report);
            capabilities.quarantine(&running.claims);
            self.quarantined.push((channel, running.claims));
            self.ended(running.origin, end);
        } else {
            self.channels.set(channel, ChannelState::Free);
            let end = Ledger::end(&running, report);
            capabilities.release(running.claims);
            self.ended(running.origin, end);
        }
    }

    /// A started request has ended.
    fn ended(&mut self, origin: Origin, end: End) {
        if let Some(queue) = self.ledger.queue(origin.queue) {
            queue.active = queue.active.saturating_sub(1);
        }
        let end = match self.orders.get(origin.queue) {
            None => Some(end),
            Some(order) => {
                self.stirred.push(origin.queue);
                order.ended(origin, end)
            }
        };
        if let Some(end) = end {
            self.deliver(origin, &end, false);
        }
    }

    fn deliver(&mut self, origin: Origin, end: &End, inherited: bool) {
        let delivery = self.ledger.deliver(origin, end, inherited);
        self.deliveries.extend(delivery);
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
    pub fn take_deliveries(&mut self) -> std::vec::Drain<'_, Delivery> {
        for delivery in &self.deliveries {
            self.ledger.ended(delivery.queue);
        }
        self.deliveries.drain(..)
    }

    /// Whether [`take_deliveries`](Self::take_deliveries) has any.
    #[inline]
    pub fn has_deliveries(&self) -> bool {
        !self.deliveries.is_empty()
    }

    /// Tells how far long requests have come whose watermark has risen since this was last called.
    pub fn tell_progress(&mut self, mut tell: impl FnMut(QueueKey, u64, Watermark)) {
        for running in self.ledger.running().filter(|running| !running.origin.member) {
            if let Some(watermark) = self.engine.watermark(running.ticket)
                && watermark.bytes > running.told
            {
                running.told = watermark.bytes;
                tell(running.origin.queue, running.origin.tag, watermark);
            }
        }
    }

    /// Whether the engine has work: something runs, or ended and was not settled.
    pub fn running(&self) -> bool {
        self.ledger.count() > 0 || !self.finished.is_empty()
    }

    /// Whether nothing runs, nothing waits for a channel, and nothing is left to settle.
    pub fn idle(&self) -> bool {
        self.channels.waiting() == 0 && !self.running() && self.stirred.is_empty()
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
