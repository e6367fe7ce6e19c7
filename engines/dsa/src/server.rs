//! Requests of the service, done by work queues.
//!
//! ```text
//! Engine::next ─► operands by address ─► waiting ─► the queue with the fewest requests ─► descriptors ─► records ─► complete
//! a descriptor fails ─► its request fails alone, the service has the CPU repeat it
//! a queue takes or completes nothing any more ─► the process ends without completing: that takes all memory from the device
//! ```
//!
//! Requests that the service sends do not depend on each other, so they may run on any queue and end in any order.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use memferry_driven_engines::DsaControl;
use memferry_engine::{Engine, Failure, Job, Operation, Outcome, Pauses, Region, Reports};
use memferry_transfer::{Descriptor, Engine as _, EngineCompletion, Reach, Ticket};
use thiserror::Error;

use crate::error::OpenError;
use crate::frames::Prefault;
use crate::kernel::QueueFile;
use crate::memory::Reached;
use crate::name::QueueName;
use crate::open::QueueEngine;

/// Requests that are taken before the queues are looked at again.
const MOST_TAKEN: u32 = 64;
/// Failures that are reported one by one.
const REPORTED_FAILURES: u32 = 20;

/// Why an engine's process ends.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A queue cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A thread could not be started.
    #[error("starting the thread that makes pages present: {0}; raise TasksMax= of the unit")]
    Thread(io::Error),
    /// A queue does not complete what it has.
    #[error(
        "{0} did not complete a descriptor in time: it was disabled, or the device is halted. The end of this process takes memory from the \
         device; the keeper starts another one, which opens the queue again"
    )]
    Stuck(QueueName),
    /// A queue takes nothing any more.
    #[error(
        "{0} takes no descriptors any more: it was disabled, or this kernel has no write() for it. The keeper starts another process, which \
         opens the queue again"
    )]
    Closed(QueueName),
}

struct Waiting {
    job: Job,
    operation: Operation<Region<Reached>>,
}

struct Running {
    job: Job,
    ticket: Ticket,
    done_bytes: u64,
}

struct Place<F: QueueFile> {
    name: QueueName,
    engine: QueueEngine<F>,
    /// The request of each channel.
    running: Vec<Option<Running>>,
    busy: usize,
}

pub(crate) struct Server<F: QueueFile> {
    queues: Vec<Place<F>>,
    frames: Prefault,
    waiting: VecDeque<Waiting>,
    completions: Vec<EngineCompletion>,
    pauses: Pauses,
    failures: Reports,
}

impl<F: QueueFile> Drop for Server<F> {
    fn drop(&mut self) {
        self.frames.close();
    }
}

impl<F: QueueFile> Server<F> {
    pub(crate) fn new(name: &str, queues: Vec<(QueueName, QueueEngine<F>)>) -> Self {
        let place = |(name, engine): (QueueName, QueueEngine<F>)| {
            let channels = engine.capabilities().channels;
            Place { name, engine, running: (0..channels).map(|_| None).collect(), busy: 0 }
        };
        Self {
            queues: queues.into_iter().map(place).collect(),
            frames: Prefault::default(),
            waiting: VecDeque::new(),
            completions: Vec::new(),
            pauses: Pauses::new(),
            failures: Reports::new(name, REPORTED_FAILURES),
        }
    }

    /// Follows the frames of the engine.
    pub(crate) fn watch(&self, engine: &mut Engine) -> Result<(), ServeError> {
        self.frames.start().map_err(ServeError::Thread)?;
        engine.watch_frames(self.frames.clone());
        Ok(())
    }

    pub(crate) fn serve(mut self, engine: &mut Engine) -> Result<(), ServeError> {
        loop {
            let mut wait = self.pauses.next(self.is_idle());
            // Requests that are refused at once could come without an end.
            for _ in 0..MOST_TAKEN {
                let Some(job) = engine.next(wait) else { break };
                self.pauses.note_news();
                self.accept(engine, job);
                wait = Duration::ZERO;
            }
            if engine.take_cancels() {
                self.cancel(engine);
            }
            self.start(engine);
            if self.poll(engine)? {
                self.pauses.note_news();
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.queues.iter().all(|queue| queue.busy == 0)
    }

    fn accept(&mut self, engine: &mut Engine, job: Job) {
        let operation = job.operation().try_map(|_, region, reach| match reach {
            Reach::Bytes(_) => {
                let reached = Reached::of(region.memory()).ok_or(())?;
                Ok((Region::new(reached, region.offset(), region.length()).ok_or(())?, 0))
            }
            // No walk is announced.
            Reach::Walk(..) => Err(()),
        });
        match operation {
            Ok(operation) => self.waiting.push_back(Waiting { job, operation }),
            Err(()) => engine.complete(job.id(), Outcome::refused(Failure::Unsupported)),
        }
    }

    /// Ends early what the service no longer wants.
    fn cancel(&mut self, engine: &mut Engine) {
        self.waiting.retain(|Waiting { job, .. }| {
            let is_cancelled = engine.is_cancelled(job.id());
            if is_cancelled {
                engine.complete(job.id(), Outcome::refused(Failure::Cancelled));
            }
            !is_cancelled
        });
        for queue in &mut self.queues {
            for running in queue.running.iter().flatten() {
                if engine.is_cancelled(running.job.id()) {
                    queue.engine.cancel(running.ticket);
                }
            }
        }
    }

    /// Gives the requests that wait to the queue that has the fewest.
    fn start(&mut self, engine: &mut Engine) {
        while !self.waiting.is_empty() {
            let free = self.queues.iter_mut().filter(|queue| queue.busy < queue.running.len());
            let Some(queue) = free.min_by_key(|queue| queue.busy) else { break };
            let Some(number) = queue.running.iter().position(Option::is_none) else { break };
            let Some(Waiting { job, operation }) = self.waiting.pop_front() else { break };
            let posted = Descriptor::new(number as u32, operation).ok();
            match posted.and_then(|descriptor| queue.engine.post(descriptor).ok()) {
                Some(ticket) => {
                    queue.running[number] = Some(Running { job, ticket, done_bytes: 0 });
                    queue.busy += 1;
                }
                None => engine.complete(job.id(), Outcome::refused(Failure::Unsupported)),
            }
        }
        // After all were posted, so that small ones go together.
        for queue in self.queues.iter_mut().filter(|queue| queue.busy > 0) {
            queue.engine.ring_doorbell();
        }
    }

    /// Takes what the device has done. Returns whether anything came further.
    fn poll(&mut self, engine: &mut Engine) -> Result<bool, ServeError> {
        let mut any = false;
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            if queue.busy == 0 {
                continue;
            }
            let now = queue.engine.control().now();
            // It stops at a bound if pages go on faulting.
            any |= queue.engine.poll(now, &mut self.completions);
            if queue.engine.is_lost() {
                // The device may still write the memory of requests, so none of them must end while this process lives.
                return Err(ServeError::Stuck(queue.name));
            }
            let is_closed = queue.engine.is_closed();
            for EngineCompletion { ticket, outcome } in std::mem::take(&mut self.completions) {
                let queue = &mut self.queues[index];
                let place = queue.running.get_mut(ticket.channel as usize);
                let Some(running) = place.and_then(|place| place.take_if(|running| running.ticket == ticket))
                else {
                    continue;
                };
                queue.busy -= 1;
                any = true;
                self.complete(engine, index, &running.job, outcome);
            }
            let queue = &mut self.queues[index];
            if is_closed {
                return Err(ServeError::Closed(queue.name));
            }
            for running in queue.running.iter_mut().flatten() {
                let done = queue.engine.bytes_done(running.ticket);
                if done > running.done_bytes {
                    running.done_bytes = done;
                    engine.progress(running.job.id(), done, false);
                    any = true;
                }
            }
        }
        Ok(any)
    }

    fn complete(&mut self, engine: &mut Engine, queue: usize, job: &Job, outcome: Outcome) {
        if let Err(failure) = outcome.result
            && failure != Failure::Cancelled
        {
            self.report_failure(queue, failure);
        }
        let ended = match outcome.result {
            // Of a comparison, the value says how far the operands are equal.
            Ok(()) => Outcome { bytes_done: outcome.bytes_done, ..job.succeeded_with(outcome.value) },
            // The device has nothing of it any more; only a service can say that a channel is faulted.
            Err(Failure::ChannelFaulted) => job.failed(Failure::EngineReset, outcome.bytes_done),
            Err(failure) => job.failed(failure, outcome.bytes_done),
        };
        engine.complete(job.id(), ended);
    }

    fn report_failure(&mut self, queue: usize, failure: Failure) {
        let queue = self.queues[queue].name;
        self.failures.report(format_args!("a request on {queue} failed: {failure}"));
    }
}
