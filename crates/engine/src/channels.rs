//! Requests of the service on the channels of a device's engine, one on each.
//!
//! ```text
//! Waiting ─ start ─► post ─ poll ─► device ─ settle ─► progress, complete
//!    └─ refused: unsupported            └─ the caller looks at the device between these two
//! ```
//!
//! A device that may still access the memory of a request must be known before anything is completed: the process has to end then.

use std::collections::VecDeque;

use memferry_clock::Instant;
use memferry_transfer::{
    Descriptor, Engine as Device, EngineCompletion, Failure, Operation, Outcome, Region, Ticket,
};

use crate::engine::{Engine, Job};

/// A request for a device.
#[derive(Debug)]
pub struct Waiting<M> {
    /// As the service wrote it.
    pub job: Job,
    /// Its operation, over memory as the device addresses it.
    pub operation: Operation<Region<M>>,
}

#[derive(Debug)]
struct Running {
    job: Job,
    ticket: Ticket,
    done_bytes: u64,
}

/// The channels of a device, and the request that each of them has.
#[derive(Debug)]
pub struct Channels<D: Device> {
    device: D,
    running: Vec<Option<Running>>,
    busy: usize,
    /// What the last polls brought.
    completions: Vec<EngineCompletion>,
}

impl<D: Device> Channels<D> {
    /// All channels of a device that has no work.
    #[must_use]
    pub fn new(device: D) -> Self {
        let running = (0..device.capabilities().channels).map(|_| None).collect();
        Self { device, running, busy: 0, completions: Vec::new() }
    }

    /// Says whether it is lost or closed, and what its last errors were.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Channels with a request.
    pub const fn busy(&self) -> usize {
        self.busy
    }

    /// Whether no channel has a request.
    pub const fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// Whether a channel has no request.
    pub const fn has_room(&self) -> bool {
        self.busy < self.running.len()
    }

    /// Gives a request to a free channel; it begins at the next poll. Without a free channel, or if the device cannot do it, it is
    /// completed as unsupported: the service leaves it to the CPU.
    pub fn start(&mut self, engine: &mut Engine, waiting: Waiting<D::Memory>) {
        let Waiting { job, operation } = waiting;
        let free = (0..).zip(&mut self.running).find(|(_, place)| place.is_none());
        let posted = free.and_then(|(number, place)| {
            let ticket = self.device.post(Descriptor::new(number, operation).ok()?).ok()?;
            Some((ticket, place))
        });
        match posted {
            Some((ticket, place)) => {
                *place = Some(Running { job, ticket, done_bytes: 0 });
                self.busy += 1;
            }
            None => engine.complete(job.id(), Outcome::refused(Failure::Unsupported)),
        }
    }

    /// Asks the device to end early what the service no longer wants.
    pub fn cancel(&mut self, engine: &Engine) {
        for running in self.running.iter().flatten() {
            if engine.is_cancelled(running.job.id()) {
                self.device.cancel(running.ticket);
            }
        }
    }

    /// Begins what was started since the last poll, all at once so that small requests go together, and lets the device work. Returns
    /// whether it has more to do without waiting. Nothing is completed before [`settle`](Self::settle).
    pub fn poll(&mut self, now: Instant) -> bool {
        self.device.ring_doorbell();
        self.device.poll(now, &mut self.completions)
    }

    /// Completes what the device has ended, and reports the progress of the rest. Returns whether anything came further. `failed` learns of
    /// each failure that no cancel explains, with its channel, as the service does.
    pub fn settle(&mut self, engine: &mut Engine, mut failed: impl FnMut(&D, u32, Failure)) -> bool {
        let mut any = false;
        for EngineCompletion { ticket, outcome } in self.completions.drain(..) {
            let place = self.running.get_mut(ticket.channel as usize);
            let Some(running) = place.and_then(|place| place.take_if(|running| running.ticket == ticket))
            else {
                continue;
            };
            self.busy -= 1;
            any = true;
            let ended = ended(&running.job, outcome);
            if let Err(failure) = ended.result
                && failure != Failure::Cancelled
            {
                failed(&self.device, ticket.channel, failure);
            }
            engine.complete(running.job.id(), ended);
        }
        for running in self.running.iter_mut().flatten() {
            let done = self.device.bytes_done(running.ticket);
            if done > running.done_bytes {
                running.done_bytes = done;
                engine.progress(running.job.id(), done, false);
                any = true;
            }
        }
        any
    }
}

/// What the service learns of a request that has ended so on the device.
fn ended(job: &Job, outcome: Outcome) -> Outcome {
    match outcome.result {
        // Of a comparison, the value says how far the operands are equal.
        Ok(()) => Outcome { bytes_done: outcome.bytes_done, ..job.succeeded_with(outcome.value) },
        // The device has nothing of it any more; only a service can say that a channel is faulted.
        Err(Failure::ChannelFaulted) => job.failed(Failure::EngineReset, outcome.bytes_done),
        Err(failure) => job.failed(failure, outcome.bytes_done),
    }
}

/// Completes those requests that have no channel yet and that the service no longer wants.
pub fn cancel_waiting<M>(waiting: &mut VecDeque<Waiting<M>>, engine: &mut Engine) {
    waiting.retain(|Waiting { job, .. }| {
        let is_cancelled = engine.is_cancelled(job.id());
        if is_cancelled {
            engine.complete(job.id(), Outcome::refused(Failure::Cancelled));
        }
        !is_cancelled
    });
}

#[cfg(test)]
mod tests;
