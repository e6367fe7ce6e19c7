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
use memferry_engine::{
    Channels, Engine, Failure, Job, Outcome, Pauses, Region, Reports, Waiting, cancel_waiting,
};
use memferry_transfer::Reach;
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

struct Queue<F: QueueFile> {
    name: QueueName,
    channels: Channels<QueueEngine<F>>,
}

pub(crate) struct Server<F: QueueFile> {
    queues: Vec<Queue<F>>,
    frames: Prefault,
    waiting: VecDeque<Waiting<Reached>>,
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
        let queue = |(name, engine)| Queue { name, channels: Channels::new(engine) };
        Self {
            queues: queues.into_iter().map(queue).collect(),
            frames: Prefault::default(),
            waiting: VecDeque::new(),
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
                cancel_waiting(&mut self.waiting, engine);
                self.queues.iter_mut().for_each(|queue| queue.channels.cancel(engine));
            }
            self.start(engine);
            if self.poll(engine)? {
                self.pauses.note_news();
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.queues.iter().all(|queue| queue.channels.is_idle())
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

    /// Gives the requests that wait to the queue that has the fewest.
    fn start(&mut self, engine: &mut Engine) {
        while !self.waiting.is_empty() {
            let free = self.queues.iter_mut().filter(|queue| queue.channels.has_room());
            let Some(queue) = free.min_by_key(|queue| queue.channels.busy()) else { break };
            let Some(waiting) = self.waiting.pop_front() else { break };
            queue.channels.start(engine, waiting);
        }
    }

    /// Takes what the device has done. Returns whether anything came further.
    fn poll(&mut self, engine: &mut Engine) -> Result<bool, ServeError> {
        let Self { queues, failures, .. } = self;
        let mut any = false;
        for Queue { name, channels } in queues.iter_mut().filter(|queue| !queue.channels.is_idle()) {
            let now = channels.device().control().now();
            // It stops at a bound if pages go on faulting.
            any |= channels.poll(now);
            if channels.device().is_lost() {
                // The device may still write the memory of requests, so none of them must end while this process lives.
                return Err(ServeError::Stuck(*name));
            }
            any |= channels.settle(engine, |_, _, failure| {
                failures.report(format_args!("a request on {name} failed: {failure}"));
            });
            if channels.device().is_closed() {
                return Err(ServeError::Closed(*name));
            }
        }
        Ok(any)
    }
}
