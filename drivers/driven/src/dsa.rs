//! The DSA engine: the driver in front of a work queue of the device or its model.
//!
//! ```text
//! post ─► job: plan of steps ─ doorbell ─► requests, alone or in batches ─► one work queue for all channels
//! poll(now) ─► control.advance ─► completion records ─┬► bytes done, next steps, or a completion
//!                                                    ├► page fault: Pages touches it, the rest is submitted again, as soon as there is room
//!                                                    └► no progress in time ─► control.stop drains the queue; that fails: ChannelFaulted, and nothing is taken any more
//! ```
//!
//! Single-threaded, in the device's time. The device cannot take steps back: a cancel or a suspension takes effect when those that it has are done. Steps
//! that depend on others go in a batch with fences, or wait; those of a CRC wait always, because each needs the last one's result. Channels that have
//! one step each share a batch, without fences: a failure of one is nothing to the others. A poll does a bounded number of things, so that pages that
//! go on faulting do not keep the caller.

mod plan;

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::VecDeque;
use std::iter::Peekable;

use memferry_clock::Instant;
use memferry_dsa::registers::descriptor::Operation as Hardware;
use memferry_dsa::{
    DmaMemory, Fault, Outcome as Ended, Portal, Queue, Request, ResumeError, Stopped, SubmitError,
    Ticket as Submitted, Value,
};
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, Failure, Operation, Operations, Outcome,
    Refused, Ticket,
};
use thiserror::Error;

use crate::admission::admit;
use crate::memory::DeviceMemory;
use plan::{Plan, Rules, Step};

/// Requests of the queue.
pub const DSA_SLOTS: usize = 64;
/// Rounds of a poll. In each, at most as many requests end, or come to an absent page, as the queue has.
const ROUNDS: u32 = 4;

/// Options of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DsaOptions {
    /// Maximum bytes of a request. A suspension or cancel takes effect between requests.
    pub chunk_bytes: u64,
    /// Steps of a transfer that are submitted together. Less than two: each alone.
    pub batch: usize,
    /// Maximum time without progress of a transfer.
    pub patience: Duration,
    /// Time between two looks at the completion records.
    pub period: Duration,
    /// Page faults of a transfer without progress in between, after which it fails.
    pub faults: u32,
}

impl Default for DsaOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: 64 << 10,
            batch: 8,
            patience: Duration::from_millis(100),
            period: Duration::from_nanos(500),
            faults: 4,
        }
    }
}

/// Makes pages present that the device found absent.
pub trait Pages {
    /// Touches the page of a fault; `false` if it cannot be present.
    fn touch(&mut self, fault: &Fault) -> bool;
}

/// What the engine needs besides its work queue: the time, and a way to stop the queue.
pub trait DsaControl {
    /// The time of the device. It must go on while the caller waits.
    fn now(&self) -> Instant;

    /// Lets a model work until `now`; a device needs no help.
    fn advance(&mut self, now: Instant) {
        let _ = now;
    }

    /// Waits, for a bounded time, until the device has nothing of the work queue any more.
    ///
    /// # Errors
    /// [`NotStopped`]: it may still access memory.
    fn stop(&mut self) -> Result<Stopped, NotStopped>;
}

/// The device could not be stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the work queue was not drained: the device may still access memory")]
pub struct NotStopped;

/// Memory whose pages are always present.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present;

impl Pages for Present {
    fn touch(&mut self, _fault: &Fault) -> bool {
        false
    }
}

/// A step that the device has or had.
#[derive(Clone, Copy, Debug)]
struct Sent {
    ticket: Submitted,
    step: Step,
    /// Bytes that were done at its last page fault.
    done: u32,
    /// Those of them that count if it goes no further.
    kept: u64,
    /// Its page faults since its last progress.
    faults: u32,
    /// How it ended; `None` while it runs.
    ended: Option<Result<Value, Broken>>,
}

/// A step that failed.
#[derive(Clone, Copy, Debug)]
struct Broken {
    failure: Failure,
    /// Its first bytes that are done.
    bytes: u64,
    /// It was never begun, because one before it in the batch was not done.
    again: bool,
}

impl Sent {
    const fn new(ticket: Submitted, step: Step) -> Self {
        Self { ticket, step, done: 0, kept: 0, faults: 0, ended: None }
    }

    /// It goes no further than its last page fault.
    const fn give_up(&mut self, failure: Failure) {
        self.ended = Some(Err(Broken { bytes: self.kept, ..Broken::new(failure) }));
    }
}

impl Broken {
    const fn new(failure: Failure) -> Self {
        Self { failure, bytes: 0, again: false }
    }
}

#[derive(Debug)]
struct Job {
    /// Steps that the device did not take or did not begin; they come before the rest of the plan.
    returned: VecDeque<Step>,
    plan: Peekable<Plan>,
    sent: VecDeque<Sent>,
    done: u64,
    value: u64,
    /// The value is the CRC of the steps so far.
    has_crc: bool,
    /// The operation may end after the last finished step.
    whole: bool,
    started: bool,
    /// The failure to end with, once the operation may end.
    end: Option<Failure>,
    /// The result, which no further step changes: there was a failure or a difference.
    closed: Option<Result<(), Failure>>,
    until: Instant,
    /// Times that steps were not begun because of others, since the last progress.
    restarts: u32,
}

impl Job {
    fn peek(&mut self) -> Option<Step> {
        self.returned.front().copied().or_else(|| self.plan.peek().copied())
    }

    fn next(&mut self) -> Option<Step> {
        self.returned.pop_front().or_else(|| self.plan.next())
    }

    /// Takes back steps that come before all that are left.
    fn take_back(&mut self, steps: impl IntoIterator<Item = Step>) {
        self.returned = steps.into_iter().chain(core::mem::take(&mut self.returned)).collect();
    }

    /// The next steps to submit together, at most `most`; the device has to take them in this order if they are `ordered`.
    fn take_due(&mut self, most: usize) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        // More would only delay a cancel.
        if self.sent.len() > most {
            return steps;
        }
        while steps.len() < most
            && let Some(step) = self.peek()
        {
            let is_crc = matches!(step.operation, Hardware::Crc { .. } | Hardware::CopyCrc { .. });
            let first = steps.is_empty();
            if step.ordered && !self.sent.is_empty() || is_crc && !first {
                break;
            }
            steps.extend(self.next());
        }
        steps.iter_mut().for_each(|step| continue_crc(step, self));
        steps
    }

    /// Whether the operation may end once the steps that run are done.
    fn whole_when_done(&self) -> bool {
        self.sent.back().map_or(self.whole, |sent| sent.step.whole)
    }

    /// The result, if no step runs and none is to follow.
    fn result(&mut self) -> Option<Result<(), Failure>> {
        if !self.sent.is_empty() {
            return None;
        }
        if let Some(result) = self.closed {
            return Some(result);
        }
        if self.started && self.peek().is_none() {
            return Some(Ok(()));
        }
        self.end.filter(|_| self.whole).map(Err)
    }
}

#[derive(Debug, Default)]
struct Slot {
    serial: u32,
    job: Option<Job>,
    held: bool,
}

/// The engine over memory `B`. `P` is the way to its work queue, which is enabled; `C` can stop that.
#[derive(Debug)]
pub struct DsaEngine<C, P, M, G, B> {
    control: C,
    queue: Queue<P, M, DSA_SLOTS>,
    pages: G,
    slots: Vec<Slot>,
    /// Steps behind a page fault whose page is present, and for whose rest the work queue had no room; the oldest first.
    resumptions: VecDeque<Submitted>,
    options: DsaOptions,
    changed: bool,
    /// A drain failed: the device may still access memory.
    is_lost: bool,
    is_closed: bool,
    /// The channel that submits first next time, and whether it had no room before.
    first: usize,
    had_no_room: bool,
    /// Of the channels that have no room in this round, the one whose turn it is next.
    left: Option<usize>,
    memory: PhantomData<fn() -> B>,
}

impl<C: DsaControl, P: Portal, M: DmaMemory, G: Pages, B: DeviceMemory> DsaEngine<C, P, M, G, B> {
    /// An engine of `channels` channels that share an enabled work queue.
    pub fn new(
        control: C,
        queue: Queue<P, M, DSA_SLOTS>,
        pages: G,
        channels: u32,
        options: DsaOptions,
    ) -> Self {
        let slots = (0..channels.max(1)).map(|_| Slot::default()).collect();
        Self {
            control,
            queue,
            pages,
            slots,
            resumptions: VecDeque::new(),
            options,
            changed: false,
            is_lost: false,
            is_closed: false,
            first: 0,
            had_no_room: false,
            left: None,
            memory: PhantomData,
        }
    }

    fn now(&self) -> Instant {
        self.control.now()
    }

    /// Requests that the device has.
    pub fn outstanding(&self) -> u16 {
        self.queue.outstanding()
    }

    /// Whether the queue could not be stopped, so that the device may still access the memory of earlier requests.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether the queue takes nothing any more.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The engine's clock and way to stop.
    pub const fn control(&self) -> &C {
        &self.control
    }

    fn rules(&self) -> Rules {
        let limits = self.queue.limits();
        let limit = self.options.chunk_bytes.clamp(1, limits.longest.min(1 << 31));
        Rules { limit, overlapping_moves: limits.overlapping_moves }
    }

    fn finish(&mut self, index: usize, result: Result<(), Failure>, completions: &mut Vec<EngineCompletion>) {
        let slot = &mut self.slots[index];
        let Some(job) = slot.job.take() else { return };
        let ticket = Ticket { channel: index as u32, serial: slot.serial };
        completions.push(EngineCompletion {
            ticket,
            outcome: Outcome { result, bytes_done: job.done, value: job.value, engine: B::KIND },
        });
    }

    /// Takes what the device has completed.
    fn collect(&mut self) -> bool {
        let mut any = false;
        // A step may come to an absent page each time that it is resumed.
        for _ in 0..DSA_SLOTS {
            let Some(completion) = self.queue.poll() else { break };
            any = true;
            let until = self.now().after(self.options.patience);
            let Some((job, at)) = owner(&mut self.slots, completion.ticket) else { continue };
            let sent = &mut job.sent[at];
            match completion.outcome {
                Ended::Done(value) => {
                    sent.ended = Some(Ok(value));
                    (job.restarts, job.until) = (0, until);
                }
                Ended::Failed(failure) => {
                    sent.ended = Some(Err(broken(failure)));
                }
                Ended::Faulted(fault) => {
                    job.until = until;
                    if fault.bytes_done > sent.done {
                        (sent.faults, sent.done) = (0, fault.bytes_done);
                    }
                    // Of this step alone: many at once can come to absent pages.
                    sent.faults += 1;
                    sent.kept = if fault.reversed || !sent.step.whole { 0 } else { fault.bytes_done.into() };
                    if sent.faults <= self.options.faults && self.pages.touch(&fault) {
                        self.resumptions.push_back(completion.ticket);
                    } else {
                        sent.give_up(Failure::MemoryFault);
                        self.queue.release(completion.ticket);
                    }
                }
            }
        }
        self.resume() || any
    }

    /// Submits the rests of steps whose pages are present, until the work queue is full; returns whether any was taken or ended.
    fn resume(&mut self) -> bool {
        let mut any = false;
        while let Some(ticket) = self.resumptions.front().copied() {
            match self.queue.resume(ticket) {
                Ok(()) => {
                    let until = self.now().after(self.options.patience);
                    owner(&mut self.slots, ticket).into_iter().for_each(|(job, _)| job.until = until);
                }
                Err(ResumeError::Submit(SubmitError::Closed)) => {
                    self.is_closed = true;
                    self.queue.release(ticket);
                    if let Some((job, at)) = owner(&mut self.slots, ticket) {
                        job.sent[at].give_up(Failure::ChannelFaulted);
                    }
                }
                Err(ResumeError::NotFaulted) => debug_assert!(false, "it waits at a page fault"),
                // The queue is full: again at the next poll.
                Err(ResumeError::Submit(_)) => break,
            }
            self.resumptions.pop_front();
            any = true;
        }
        any
    }

    /// Gives up the steps of a channel that wait for room after a page fault. The device has nothing of them.
    fn give_up_resumptions(&mut self, index: usize, failure: Failure) {
        let Self { slots, resumptions, queue, .. } = self;
        let Some(job) = slots[index].job.as_mut() else { return };
        for sent in &mut job.sent {
            if let Some(at) = resumptions.iter().position(|ticket| *ticket == sent.ticket) {
                resumptions.remove(at);
                queue.release(sent.ticket);
                sent.give_up(failure);
            }
        }
    }

    /// Whether the device may have something of a channel.
    fn is_with_device(&self, index: usize) -> bool {
        let is_there = |sent: &Sent| sent.ended.is_none() && !self.resumptions.contains(&sent.ticket);
        self.slots[index].job.as_ref().is_some_and(|job| job.sent.iter().any(is_there))
    }

    /// Counts the steps that are done, in order.
    fn account(&mut self, index: usize) {
        let Some(job) = self.slots[index].job.as_mut() else { return };
        let mut again = Vec::new();
        while let Some(sent) = job.sent.pop_front_if(|sent| sent.ended.is_some()) {
            let Some(ended) = sent.ended.filter(|_| job.closed.is_none()) else { continue };
            match ended {
                Ok(Value::Difference(at)) => {
                    job.done += u64::from(at);
                    (job.value, job.closed) = (job.done, Some(Ok(())));
                    continue;
                }
                Ok(Value::Crc(crc)) => (job.value, job.has_crc) = (crc.into(), true),
                Ok(_) => {}
                Err(broken) if broken.again && job.restarts < self.options.faults => {
                    again.push(sent.step);
                    continue;
                }
                Err(broken) => {
                    job.done += broken.bytes;
                    job.closed = Some(Err(job.end.unwrap_or(broken.failure)));
                    continue;
                }
            }
            job.done += sent.step.bytes;
            job.whole = sent.step.whole;
        }
        if !again.is_empty() {
            job.restarts += 1;
            job.take_back(again);
        }
    }

    /// Advances a channel; returns whether anything changed.
    fn advance(
        &mut self,
        index: usize,
        singles: &mut Vec<(usize, Step)>,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        self.account(index);
        let slot = &mut self.slots[index];
        let Some(job) = slot.job.as_mut() else { return false };
        if let Some(result) = job.result() {
            self.finish(index, result, completions);
            return true;
        }
        let ends = job.closed.is_some() || job.end.is_some() && job.whole_when_done();
        let held = slot.held && job.end.is_none();
        job.started && !held && !ends && self.submit(index, singles)
    }

    /// Steps that are submitted together at most.
    fn most(&self) -> usize {
        self.options.batch.clamp(1, DSA_SLOTS / 2)
    }

    /// Steps of one channel that are submitted together at most. A channel has up to two batches with the device, each with a slot of
    /// its own, and leaves the others their part of the slots.
    fn share(&self) -> usize {
        let busy = self.slots.iter().filter(|slot| slot.job.is_some()).count().max(1);
        (DSA_SLOTS / (2 * busy)).saturating_sub(1).clamp(1, self.most())
    }

    /// Submits the next steps of a channel, as many as are due, or adds a single one to `singles`; returns whether it submitted any.
    fn submit(&mut self, index: usize, singles: &mut Vec<(usize, Step)>) -> bool {
        let most = self.share();
        let Some(job) = self.slots[index].job.as_mut() else { return false };
        let steps = job.take_due(most);
        // One that had no room goes before the batches of others.
        let is_first = self.had_no_room && self.first == index;
        if let &[step] = steps.as_slice()
            && !is_first
        {
            singles.push((index, step));
            return false;
        }
        let requests: Vec<Request> = steps
            .iter()
            .map(|step| Request { fence: step.ordered, ..Request::new(step.operation) })
            .collect();
        let sent = if steps.is_empty() { Ok(Vec::new()) } else { send(&mut self.queue, &requests) };
        let taken = sent.as_ref().map_or(0, Vec::len);
        let is_refused = self.refuse(index, sent.as_ref().err());
        if taken == 0 && !is_refused && !steps.is_empty() {
            self.leave(index);
        }
        let Some(job) = self.slots[index].job.as_mut() else { return false };
        // The device's queue may be full: they come first at the next try.
        job.take_back(steps.iter().skip(taken).copied());
        for (ticket, step) in sent.unwrap_or_default().into_iter().zip(steps) {
            job.sent.push_back(Sent::new(ticket, step));
        }
        taken > 0 || is_refused
    }

    /// Submits steps of different channels, which do not depend on each other; returns whether any was taken or refused.
    fn submit_singles(&mut self, singles: &[(usize, Step)]) -> bool {
        let mut any = false;
        for chunk in singles.chunks(self.most()) {
            let requests: Vec<Request> = chunk.iter().map(|(_, step)| Request::new(step.operation)).collect();
            let sent = send(&mut self.queue, &requests);
            // Alone or before the others, the first one has the blame.
            any |= self.refuse(chunk[0].0, sent.as_ref().err());
            let mut tickets = sent.unwrap_or_default().into_iter();
            for (index, step) in chunk {
                let Some(job) = self.slots[*index].job.as_mut() else { continue };
                match tickets.next() {
                    Some(ticket) => {
                        any = true;
                        job.sent.push_back(Sent::new(ticket, *step));
                    }
                    None => {
                        job.take_back([*step]);
                        self.leave(*index);
                    }
                }
            }
        }
        any
    }

    /// A channel had no room.
    fn leave(&mut self, index: usize) {
        let count = self.slots.len();
        let turn = |index: usize| (index + count - self.first) % count;
        if self.left.is_none_or(|left| turn(index) < turn(left)) {
            self.left = Some(index);
        }
    }

    /// The next round begins with the channel that had no room, or with the one behind the first.
    fn end_round(&mut self) {
        let left = self.left.take().filter(|left| self.slots[*left].job.is_some());
        self.had_no_room = left.is_some();
        self.first = left.unwrap_or((self.first + 1) % self.slots.len());
    }

    /// Ends a channel's job if trying again is of no use; returns whether it is.
    fn refuse(&mut self, index: usize, error: Option<&SubmitError>) -> bool {
        let failure = match error {
            Some(SubmitError::Closed) => {
                self.is_closed = true;
                Failure::ChannelFaulted
            }
            Some(SubmitError::Request { .. }) => Failure::Unsupported,
            _ => return false,
        };
        if let Some(job) = self.slots[index].job.as_mut() {
            job.closed = Some(Err(failure));
        }
        true
    }

    /// Drains the work queue for channels without progress; returns whether there were any.
    fn handle_overdue(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let now = self.now();
        let overdue = |slot: &Slot| {
            slot.job
                .as_ref()
                .is_some_and(|job| job.until <= now && job.started && !(slot.held && job.sent.is_empty()))
        };
        let late: Vec<usize> = (0..self.slots.len()).filter(|index| overdue(&self.slots[*index])).collect();
        if late.is_empty() {
            return false;
        }
        let until = now.after(self.options.patience);
        if !late.iter().any(|index| self.is_with_device(*index)) {
            // The queue stayed full of what others have. The device has nothing of these.
            late.iter().for_each(|index| self.time_out(*index, until));
            return true;
        }
        match self.control.stop() {
            Ok(stopped) => {
                self.queue.stopped(&stopped);
                self.collect();
                for index in late {
                    self.account(index);
                    self.time_out(index, until);
                }
            }
            Err(_) => {
                self.is_lost = true;
                self.resumptions.clear();
                (0..self.slots.len())
                    .for_each(|index| self.finish(index, Err(Failure::ChannelFaulted), completions));
            }
        }
        true
    }

    /// Ends a job when the operation may end, and the second time at once.
    fn time_out(&mut self, index: usize, until: Instant) {
        self.give_up_resumptions(index, Failure::EngineTimedOut);
        let Some(job) = self.slots[index].job.as_mut() else { return };
        if job.end.is_some() && job.sent.is_empty() && job.closed.is_none() {
            job.closed = Some(Err(Failure::EngineTimedOut));
        }
        (job.end, job.until) = (job.end.or(Some(Failure::EngineTimedOut)), until);
    }
}

/// The job of a step that was submitted, and the step's place in it.
fn owner(slots: &mut [Slot], ticket: Submitted) -> Option<(&mut Job, usize)> {
    slots.iter_mut().filter_map(|slot| slot.job.as_mut()).find_map(|job| {
        let at = job.sent.iter().position(|sent| sent.ticket == ticket)?;
        Some((job, at))
    })
}

/// Gives a CRC's step the result of the steps before it.
fn continue_crc(step: &mut Step, job: &Job) {
    if !job.has_crc {
        return;
    }
    if let Hardware::Crc { seed, .. } | Hardware::CopyCrc { seed, .. } = &mut step.operation {
        *seed = job.value as u32;
    }
}

/// What became of a step that failed on the device.
fn broken(failure: memferry_dsa::Failure) -> Broken {
    match failure {
        memferry_dsa::Failure::NotExecuted => Broken { again: true, ..Broken::new(Failure::ChannelFaulted) },
        memferry_dsa::Failure::Stopped => Broken::new(Failure::EngineTimedOut),
        memferry_dsa::Failure::Device(_) => Broken::new(Failure::MemoryFault),
        _ => Broken::new(Failure::ChannelFaulted),
    }
}

/// Submits requests, in a batch if there are several; the tickets of those that were taken, the first ones.
fn send<P: Portal, M: DmaMemory>(
    queue: &mut Queue<P, M, DSA_SLOTS>,
    requests: &[Request],
) -> Result<Vec<Submitted>, SubmitError> {
    let [first, others @ ..] = requests else { return Ok(Vec::new()) };
    if !others.is_empty() {
        let mut tickets = vec![Submitted::default(); requests.len()];
        match queue.submit_batch(requests, &mut tickets) {
            Ok(()) => return Ok(tickets),
            Err(SubmitError::Closed) => return Err(SubmitError::Closed),
            // Alone it may be taken, and has no need of a fence.
            Err(_) => {}
        }
    }
    queue.submit(&Request { fence: false, ..*first }).map(|ticket| vec![ticket])
}

impl<C: DsaControl, P: Portal, M: DmaMemory, G: Pages, B: DeviceMemory> Engine for DsaEngine<C, P, M, G, B> {
    type Memory = B;

    fn capabilities(&self) -> EngineCapabilities {
        let of = [
            Operations::NOP,
            Operations::COPY,
            Operations::FILL,
            Operations::SCATTER_GATHER,
            Operations::COMPARE,
            Operations::CRC,
            Operations::COPY_CRC,
            Operations::DUAL_COPY,
        ];
        EngineCapabilities {
            kind: B::KIND,
            channels: self.slots.len() as u32,
            longest_bytes: B::LONGEST_BYTES,
            preemption_bytes: Some(self.rules().limit),
            // Otherwise those at a short distance are left to others.
            overlapping_copy: self.queue.limits().overlapping_moves,
            aligned_pixels: true,
            operations: of.into_iter().collect(),
            immediate_bytes: 0,
        }
    }

    fn post(&mut self, descriptor: Descriptor<B>) -> Result<Ticket, Refused<Descriptor<B>>> {
        let index = descriptor.channel() as usize;
        let announced = self.capabilities();
        let plan = Plan::of(descriptor.operation(), self.rules());
        let busy = |slot: &Slot| slot.job.is_some() || self.is_lost;
        match admit(&descriptor, &announced, self.slots.get_mut(index), busy, plan) {
            Ok((slot, plan)) => {
                slot.serial = slot.serial.wrapping_add(1);
                let value = match descriptor.operation() {
                    Operation::Crc { seed, .. } | Operation::CopyCrc { seed, .. } => (*seed).into(),
                    Operation::Compare { length, .. } => *length,
                    _ => 0,
                };
                slot.job = Some(Job {
                    returned: VecDeque::new(),
                    plan: plan.peekable(),
                    sent: VecDeque::new(),
                    done: 0,
                    value,
                    has_crc: false,
                    whole: true,
                    started: false,
                    end: None,
                    closed: None,
                    until: Instant::ORIGIN,
                    restarts: 0,
                });
                Ok(Ticket { channel: descriptor.channel(), serial: slot.serial })
            }
            Err(reason) => Err(Refused { descriptor, reason }),
        }
    }

    fn ring_doorbell(&mut self) {
        let until = self.now().after(self.options.patience);
        for job in self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()).filter(|job| !job.started) {
            (job.started, job.until) = (true, until);
        }
        self.changed = true;
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.control.advance(now);
        self.changed = false;
        for _ in 0..ROUNDS {
            let mut changed = self.collect();
            let mut singles = Vec::new();
            // In turn, so that no channel takes every entry of the queue that gets free.
            for index in (self.first..self.slots.len()).chain(0..self.first) {
                changed |= self.advance(index, &mut singles, completions);
            }
            changed |= self.submit_singles(&singles);
            self.end_round();
            changed |= self.handle_overdue(completions);
            if !changed {
                return false;
            }
        }
        // The rest is for the next poll, which is due at once.
        self.changed = self.slots.iter().any(|slot| slot.job.is_some());
        self.changed
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        let slot = self.slots.get(ticket.channel as usize).filter(|slot| slot.serial == ticket.serial);
        slot.and_then(|slot| slot.job.as_ref()).map_or(0, |job| job.done)
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        let until = self.now().after(self.options.patience);
        if let Some(slot) = self.slots.get_mut(channel as usize) {
            slot.held = turns == 0;
            if let Some(job) = slot.job.as_mut().filter(|_| turns > 0) {
                job.until = until;
            }
            self.changed = true;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        let at_rest = |slot: &Slot| slot.job.as_ref().is_none_or(|job| slot.held && job.sent.is_empty());
        !self.is_lost && self.slots.get(channel as usize).is_none_or(at_rest)
    }

    fn cancel(&mut self, ticket: Ticket) {
        let slot = self.slots.get_mut(ticket.channel as usize).filter(|slot| slot.serial == ticket.serial);
        if let Some(job) = slot.and_then(|slot| slot.job.as_mut()) {
            job.end = job.end.or(Some(Failure::Cancelled));
            self.changed = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let now = self.now();
        if self.changed {
            return Some(now);
        }
        let waits = |job: &Job| job.started || job.end.is_some();
        let works = |slot: &Slot| {
            let job = slot.job.as_ref().filter(|job| waits(job));
            job.is_some_and(|job| !job.sent.is_empty() || !slot.held || job.end.is_some())
        };
        self.slots.iter().any(works).then(|| now.after(self.options.period))
    }
}
