//! Early ends: requests that are cancelled, overdue or revoked, or whose queue or service ends.
//!
//! ```text
//! the request ─┬─ waits for a channel ─► fails at once
//!              ├─ held by its queue's order ─► fails, with the requests linked to it
//!              ├─ runs ─► cancelled in the engine, whose report says how it ended
//!              └─ a loop ─► its running member is cancelled, and the whole loop ends with it
//! ```

use memferry_clock::Instant;
use memferry_transfer::{Engine, Failure, Terms};

use super::Path;
use crate::capability::{Capabilities, Claims};
use crate::request::{Origin, QueueKey};

impl<E: Engine> Path<E> {
    /// Closes a queue: drops its waiting requests, cancels the running ones, and delivers no more completions. The queue is gone
    /// once none of its requests runs ([`queue_gone`](Self::queue_gone)).
    pub fn close_queue(&mut self, key: QueueKey, capabilities: &mut Capabilities<E::Memory>) {
        self.end_batch();
        if !self.ledger.close(key) {
            return;
        }
        self.channels.set_crowded(self.ledger.is_crowded());
        for _ in self.completions.extract_if(.., |completion| completion.queue == key) {
            self.ledger.ended(key);
        }
        self.cancel_where(key, |_| true, capabilities);
        self.forget(key);
    }

    /// Cancels the request that has `tag` in its queue.
    #[cfg(test)]
    pub(crate) fn cancel(&mut self, queue: QueueKey, tag: u64, capabilities: &mut Capabilities<E::Memory>) {
        self.cancel_where(queue, |candidate| candidate == tag, capabilities);
    }

    /// Cancels the requests of a queue for whose tag `named` returns true. Running ones end when the engine reports them.
    pub fn cancel_where(
        &mut self,
        queue: QueueKey,
        named: impl Fn(u64) -> bool,
        capabilities: &mut Capabilities<E::Memory>,
    ) {
        self.end_where(Some(queue), capabilities, |origin, _, _, _| {
            (origin.queue == queue && named(origin.tag)).then_some(Failure::Cancelled)
        });
    }

    /// Ends the loops of a queue for whose tag `named` returns true, after their present round.
    pub fn stop_loops(&mut self, queue: QueueKey, named: impl Fn(u64) -> bool) {
        if let Some(order) = self.orders.get(queue) {
            order.stop(&|origin| named(origin.tag));
        }
    }

    /// Cancels the requests that use revoked memory.
    pub fn cancel_revoked(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        self.end_where(None, capabilities, |_, claims, _, capabilities| {
            capabilities.uses_revoked(claims).then_some(Failure::Cancelled)
        });
    }

    /// Fails all requests that have not started, because the service stops. Loops without a number of rounds end after their present
    /// round; others go on as all running requests do.
    pub fn stop(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        let given_up =
            self.channels.give_up(|_, origin| (!origin.member).then_some(Failure::ServiceStopping));
        for key in self.orders.keys() {
            let Some(order) = self.orders.get(key) else { continue };
            order.stop_endless();
            order.give_up_held(&mut |_, _, _| Some(Failure::ServiceStopping), &mut self.retired);
            self.unblocked.push(key);
        }
        self.retire_all(given_up, capabilities);
        self.advance_orders(capabilities);
    }

    /// Cancels all requests, running or not.
    pub fn cancel_all(&mut self, capabilities: &mut Capabilities<E::Memory>) {
        self.end_where(None, capabilities, |_, _, _, _| Some(Failure::Cancelled));
    }

    /// Fails waiting and held requests that are overdue, and requests that wait although all channels have failed. The caller then
    /// advances the orders.
    pub(super) fn give_up_overdue(&mut self, now: Instant, capabilities: &mut Capabilities<E::Memory>) {
        let overdue = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let all_faulted = self.channels.usable() == 0;
        if all_faulted || overdue(self.channels.next_deadline()) {
            let given_up = self.channels.give_up(|admitted, _| match overdue(admitted.terms().deadline) {
                true => Some(Failure::DeadlineExceeded),
                false => all_faulted.then_some(Failure::ChannelFaulted),
            });
            self.retire_all(given_up, capabilities);
        }
        if overdue(self.orders.next_deadline()) {
            for key in self.orders.keys() {
                let Some(order) = self.orders.get(key) else { continue };
                let mut late = |_: Origin, _: &Claims, terms: &Terms| {
                    overdue(terms.deadline).then_some(Failure::DeadlineExceeded)
                };
                order.give_up_held(&mut late, &mut self.retired);
                self.unblocked.push(key);
            }
            self.orders.deadline_passed();
        }
    }

    /// Ends the requests for which `ends` returns a failure, wherever they are. Looks only at the orders of the queue `only`, if
    /// given.
    fn end_where(
        &mut self,
        only: Option<QueueKey>,
        capabilities: &mut Capabilities<E::Memory>,
        ends: impl Fn(Origin, &Claims, &Terms, &Capabilities<E::Memory>) -> Option<Failure>,
    ) {
        // This visits the waiting requests of all queues, so it is skipped for a queue that has none.
        if only.is_none_or(|queue| self.channels.waits(queue)) {
            let given_up = self
                .channels
                .give_up(|admitted, origin| ends(origin, admitted.claims(), admitted.terms(), capabilities));
            self.retire_all(given_up, capabilities);
        }
        for running in self.ledger.running() {
            if let Some(reason) = ends(running.origin, &running.claims, &Terms::default(), capabilities) {
                running.ending.get_or_insert(reason);
                self.engine.cancel(running.ticket);
            }
        }
        if !self.orders.is_empty() {
            let keys = only.map_or_else(|| self.orders.keys(), |key| vec![key]);
            for key in keys {
                self.end_in_order(key, capabilities, &ends);
            }
        }
        self.advance_orders(capabilities);
    }

    fn end_in_order(
        &mut self,
        key: QueueKey,
        capabilities: &mut Capabilities<E::Memory>,
        ends: &impl Fn(Origin, &Claims, &Terms, &Capabilities<E::Memory>) -> Option<Failure>,
    ) {
        let Some(order) = self.orders.get(key) else { return };
        let mut gives_up =
            |origin: Origin, claims: &Claims, terms: &Terms| ends(origin, claims, terms, capabilities);
        order.give_up_held(&mut gives_up, &mut self.retired);
        let ending = order.end_loop(&mut gives_up);
        self.unblocked.push(key);
        let Some(reason) = ending else { return };
        let of_loop = |origin: Origin| origin.queue == key && origin.member;
        for running in self.ledger.running().filter(|running| of_loop(running.origin)) {
            running.ending.get_or_insert(reason);
            self.engine.cancel(running.ticket);
        }
        let given_up = self.channels.give_up(|_, origin| of_loop(origin).then_some(reason));
        self.retire_all(given_up, capabilities);
    }
}
