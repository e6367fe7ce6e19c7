//! How a request starts: through admission, order and placement into the engine.
//!
//! ```text
//! submit ─┬─ nothing holds it back ─┬─ short: done at once, before anything else is looked at
//!         │                         └─ admitted ─► place ─► post
//!         └─ links, fences, loops ─► order ─ advance ─► place ─► post
//! ```

use memferry_clock::Instant;
use memferry_transfer::{
    Descriptor, Engine, Failure, Operation, Operations, Outcome, PriorityClass, RefusalReason, Request,
    SessionId, Span, Task, Terms,
};

use super::Path;
use crate::capability::{Admitted, Capabilities};
use crate::channel::{Placed, ask};
use crate::completion::{Queue, Reservation, Running};
use crate::immediate::{self, Immediate};
use crate::order::Arrived;
use crate::policy::{Acts, Ask, ChannelState, Choice, Outstanding};
use crate::request::{Origin, QueueKey, Retired};

impl<E: Engine> Path<E> {
    /// Takes a request through admission and placement, and posts it when a channel is free. A short one is over when this
    /// returns, where the engine does such at once.
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
            && self.immediate(queue, class, active, Some(now)).allows(operation, terms)
            && let Some(outcome) = self.at_once(session, user, operation, terms, capabilities)
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
        // Who asked matters only to placement.
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

    /// Does a short request of a queue now, when [nothing holds it back](Immediate). Nothing is reserved: there has to be `room`
    /// for the completion, which the caller makes of the outcome. On `None` the request is to be [submitted](Self::submit).
    #[inline]
    pub fn try_at_once(
        &mut self,
        queue: QueueKey,
        room: u32,
        operation: &Operation<Span>,
        terms: &Terms,
        capabilities: &Capabilities<E::Memory>,
    ) -> Option<Outcome> {
        let &mut Queue { session, user, outstanding, closing, class, active } = self.ledger.queue(queue)?;
        if closing
            || outstanding >= room
            || !self.immediate(queue, class, active, None).allows(operation, terms)
        {
            return None;
        }
        self.at_once(session, user, operation, terms, capabilities)
    }

    /// What may be done at once for a queue with `active` requests started.
    #[inline]
    fn immediate(
        &mut self,
        queue: QueueKey,
        class: PriorityClass,
        active: u32,
        now: Option<Instant>,
    ) -> Immediate {
        Immediate {
            longest_bytes: self.immediate_bytes,
            except: Operations::empty(),
            class,
            fence_waits: active > 0,
            now,
            held_back: self.orders.get(queue).is_some()
                || self.channels.waits(queue)
                || self.acts.contains(Acts::PACES),
        }
    }

    /// Does a request that may be done at once, `None` when it has to go through a channel or is refused.
    #[inline]
    fn at_once(
        &mut self,
        session: SessionId,
        user: u32,
        operation: &Operation<Span>,
        terms: &Terms,
        capabilities: &Capabilities<E::Memory>,
    ) -> Option<Outcome> {
        let operation = capabilities.borrowed(session, operation, self.longest_bytes).ok()?;
        let bytes = operation.total_bytes();
        let ask = Ask { client: session, user, class: terms.class, bytes, deadline: terms.deadline };
        // No channel is used, but a request that would have to wait for one is not done before others.
        let Choice::Channel(_) = self.channels.choose(&ask, &mut *self.policy) else { return None };
        let engine = &mut self.engine;
        let outcome =
            immediate::perform(&operation, terms.hint, |confined| engine.perform(confined)).ok()??;
        self.bytes_moved[terms.class.index()] += outcome.bytes_done;
        Some(outcome)
    }

    /// Hands a request to its queue's order. Where the user may have no more waiting, none is held either: what is linked to it
    /// fails with it.
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

    /// Starts what orders no longer hold back, and completes what ended in them. Returns whether something started.
    pub(super) fn advance_orders(&mut self, capabilities: &mut Capabilities<E::Memory>) -> bool {
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

    /// Completes what ended in orders.
    fn complete_retired(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        if self.retired.is_empty() {
            return;
        }
        for retired in std::mem::take(&mut self.retired) {
            self.retire_held(retired, capabilities);
        }
    }

    /// Gives a started request a channel, or lets it wait. One that was `held` was within the quota when it came.
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
        match self.channels.place(admitted, origin, held, promises, &mut *self.policy) {
            Ok(Some(placed)) => self.post(placed, capabilities),
            Ok(None) => {}
            Err(retired) => self.retire_started(retired, capabilities),
        }
    }

    /// Whether the policy takes the request in, beside all that was taken in before.
    fn accept(&mut self, admitted: &Admitted<E::Memory>, origin: Origin) -> Result<(), Failure> {
        if !self.acts.contains(Acts::ACCEPTS) {
            return Ok(());
        }
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

    pub(super) fn post(&mut self, placed: Placed<E::Memory>, capabilities: &mut Capabilities<E::Memory>) {
        let unfolded = placed.unfold();
        let by_device =
            |descriptor: &Descriptor<E::Memory>| descriptor.operation().kind() == Operations::SYNCHRONIZED;
        let is_paced = !unfolded.descriptor.as_ref().is_ok_and(by_device);
        let posted = unfolded.descriptor.and_then(|descriptor| {
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
                // An engine that has no such channel, or has it busy, is not what the channel stage believes it is.
                let lost = failure == Failure::ChannelFaulted;
                let state = if lost { ChannelState::Faulted } else { ChannelState::Free };
                self.channels.set(unfolded.channel, state);
                self.retire_started(Retired::refused(origin, claims, failure), capabilities);
            }
        }
    }

    /// Completes started requests that will get no channel.
    pub(super) fn retire_all(&mut self, all: Vec<Retired>, capabilities: &mut Capabilities<E::Memory>) {
        all.into_iter().for_each(|retired| self.retire_started(retired, capabilities));
    }
}
