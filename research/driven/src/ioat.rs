//! The I/OAT engine: its driver in front of the device, or of a model of it.
//!
//! ```text
//! post ─► job: plan of descriptors ─ doorbell ─► as many as half the ring holds, and again when those before are done
//! poll(now) ─► device.advance ─ line high, or time to look ─► completion words ─► bytes done, more descriptors, or a completion
//!           ├► asked to end early, or suspended ─► suspend ─ acknowledged ─► what was not done is taken back
//!           └► nothing done in time ─► suspend; not acknowledged: reset; not reset: ChannelFaulted
//! reset ─► each channel is reset; what ran ended with EngineReset
//! ```
//!
//! Single-threaded: interrupts and posts come by turns. Nothing is counted as done before the device reported it. The engine copies,
//! fills, does XOR and follows lists as chains of descriptors; it has no 2-D walks. A lost interrupt costs time only: when
//! the patience is over the channel's own status is looked at first.

mod plan;
mod slot;

use core::time::Duration;

use memferry_clock::Instant;
use memferry_drivers::ioat::{
    self, DmaMemory, InitError, Ioat, Notice, OpenError, Progress, Request, RingConfig, StopError, TakeError,
};
use memferry_registers::ioat::descriptor::PLAIN_SOURCES;
use memferry_registers::ioat::{CHANNELS, Chanerr, DESCRIPTOR_BYTES, TransferState};
use memferry_registers::{Device, NarrowIo};
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Memory, Operations,
    Refused, Ticket,
};
use thiserror::Error;

use super::device::Shared;
use super::memory::BusMemory;
use super::{admit, ended};
use plan::{Plan, Step, Work};
use slot::{Given, Job, Motion, Slot};

/// How the engine hears of what is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The device interrupts after each half of its ring.
    Interrupt,
    /// The completion words are looked at so often; nothing interrupts but errors.
    Poll(Duration),
}

/// What a service chooses for the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoatOptions {
    /// Bytes of a descriptor at most (eight at least for fills): a suspension or an end that is asked for is honoured so often.
    pub chunk_bytes: u64,
    /// How long a channel may do nothing, as far as it is heard of.
    pub patience: Duration,
    /// How long a channel may take to stand still before it is reset.
    pub drain: Duration,
    /// How long a reset may take.
    pub reset: Duration,
    /// How it is heard of.
    pub completion: Completion,
}

impl Default for IoatOptions {
    /// Chunks of 64 KiB: some 30 µs each at 2 GB/s. A policy that gives slices wants chunks much shorter than a slice.
    fn default() -> Self {
        Self {
            chunk_bytes: 64 << 10,
            patience: Duration::from_millis(100),
            drain: Duration::from_millis(1),
            reset: Duration::from_millis(1),
            completion: Completion::Interrupt,
        }
    }
}

/// Why the engine cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IoatInitError {
    /// The device is not one that the driver knows.
    #[error(transparent)]
    Init(#[from] InitError),
    /// A channel could not be had.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// A channel could not be set up; the memory for the rings may be too small.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Longest transfer, bytes: what a [`BusMemory`] addresses.
const LONGEST_BYTES: u64 = 1 << 32;
const LINE: usize = 0;
/// Descriptors of a ring at most: more would only be in memory longer.
const MOST_SLOTS: u64 = 256;

/// The engine. `M` is how the processor reaches the memory of the rings.
#[derive(Debug)]
pub struct IoatEngine<D: Device + NarrowIo, M: DmaMemory> {
    device: Shared<D>,
    driver: Ioat<Shared<D>, M, Shared<D>>,
    slots: Vec<Slot>,
    options: IoatOptions,
    /// What a reset ended, for the next poll.
    ended: Vec<EngineCompletion>,
    /// Descriptors that a channel is given together.
    batch: u64,
    /// Somebody wished for something since the last poll.
    stirred: bool,
    /// When the completion words are looked at next.
    look: Option<Instant>,
}

impl<D: Device + NarrowIo, M: DmaMemory> IoatEngine<D, M> {
    /// Asks the device what it can do and sets so many of its channels up, at most as many as it has. `rings` is what they share for
    /// their rings, and `memory` how the processor reaches it.
    ///
    /// # Errors
    /// [`IoatInitError`].
    pub fn new(
        device: Shared<D>,
        (memory, rings): (M, BusMemory),
        channels: u32,
        options: IoatOptions,
    ) -> Result<Self, IoatInitError> {
        let mut driver = Ioat::new(device.clone(), memory, device.clone());
        driver.initialize()?;
        let count = u64::from(channels).min(u64::from(driver.channels()).min(CHANNELS as u64)).max(1);
        // Of each share, the first descriptor's room is for the completion word.
        let first = u64::from(rings.address()).next_multiple_of(DESCRIPTOR_BYTES);
        let room = (u64::from(rings.address()) + rings.length()).saturating_sub(first);
        let share = room / count / DESCRIPTOR_BYTES;
        let ring_slots = share.saturating_sub(1).min(MOST_SLOTS);
        let mut slots = Vec::new();
        for index in 0..count {
            let completion = first + index * share * DESCRIPTOR_BYTES;
            let ring =
                RingConfig { ring: completion + DESCRIPTOR_BYTES, slots: ring_slots as u16, completion };
            let channel = driver.take(index as u8)?;
            driver.open(&channel, ring, options.reset)?;
            slots.push(Slot { channel, serial: 0, job: None, motion: Motion::Going, held: false });
        }
        let batch = (ring_slots.saturating_sub(1) / 2).max(2);
        Ok(Self { device, driver, slots, options, ended: Vec::new(), batch, stirred: false, look: None })
    }

    /// Resets the channels, which brings those back that had failed. What runs ends with [`Failure::EngineReset`], as the next
    /// poll reports; what was posted and not started stays; suspended channels stay so.
    ///
    /// # Errors
    /// The first channel that did not end its reset; its transfer ended with [`Failure::ChannelFaulted`], the others serve.
    pub fn reset(&mut self) -> Result<(), StopError> {
        let mut first = Ok(());
        let mut completions = std::mem::take(&mut self.ended);
        for index in 0..self.slots.len() {
            let reset = self.driver.recover(&self.slots[index].channel, self.options.reset);
            self.slots[index].motion = Motion::Going;
            if self.slots[index].job.as_ref().is_some_and(|job| !job.given.is_empty()) {
                let failure = if reset.is_ok() { Failure::EngineReset } else { Failure::ChannelFaulted };
                self.finish(index, Err(failure), &mut completions);
            }
            first = first.and(reset);
        }
        self.ended = completions;
        self.stirred = true;
        first
    }

    fn finish(&mut self, index: usize, result: Result<(), Failure>, completions: &mut Vec<EngineCompletion>) {
        let slot = &mut self.slots[index];
        if let Some(job) = slot.job.take() {
            completions.push(ended((index as u32, slot.serial), result, job.done));
        }
    }

    /// Serves the line; what it is about is in the completion words.
    fn hear(&mut self) {
        while self.device.with(|device| device.is_high(LINE)) {
            if self.driver.handle_interrupt(|_| {}).channels == 0 {
                break;
            }
        }
    }

    fn now(&self) -> Instant {
        self.device.with(|device| device.now())
    }

    /// Does for a channel what may be done now; whether anything was.
    fn serve(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let progress = self.driver.poll(&self.slots[index].channel);
        if self.account(index, progress) {
            self.fail(index, completions);
            return true;
        }
        match self.slots[index].motion {
            Motion::Going => self.go(index, completions),
            Motion::Asked { until } => {
                let overdue = until.is_some_and(|until| until <= self.now());
                self.await_stillness(index, overdue, completions)
            }
            Motion::Still => self.stand(index, completions),
        }
    }

    /// Counts what a channel says is done; whether it halted at work.
    fn account(&mut self, index: usize, progress: Progress) -> bool {
        let until = self.now().after(self.options.patience);
        let Some(job) = self.slots[index].job.as_mut() else { return false };
        let was_given = !job.given.is_empty();
        if job.collect(progress.done) && job.until.is_some() {
            job.until = (!job.given.is_empty()).then_some(until);
        }
        was_given && progress.state == TransferState::Halted
    }

    fn go(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let until = self.now().after(self.options.drain);
        let slot = &mut self.slots[index];
        let Some(job) = slot.job.as_mut() else { return false };
        if let Some(result) = job.result() {
            self.finish(index, result, completions);
            return true;
        }
        let ends = job.end.is_some() && !job.closing;
        // One that is to end goes on to where it can, suspended or not.
        let held = slot.held && job.end.is_none();
        if !job.given.is_empty() && (ends || held) {
            self.driver.ask_suspend(&slot.channel);
            slot.motion = Motion::Asked { until: ends.then_some(until) };
            return true;
        }
        let may_go_on = job.started && !held && job.wants_more();
        may_go_on && self.give(index, completions)
    }

    /// Gives the device the next steps, where there is room for a batch; whether there were any.
    fn give(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let now = self.now();
        let Self { driver, slots, options, batch, .. } = self;
        let Slot { channel, job: Some(job), .. } = &mut slots[index] else { return false };
        if driver.free(channel) < *batch && job.given.is_empty() {
            // Completion writes got lost.
            let _at_work = driver.rewind(channel);
        }
        if driver.free(channel) < *batch {
            return false;
        }
        // Any step may take two descriptors.
        let mut room = *batch;
        let mut written = Ok(0);
        while room >= 2
            && written.is_ok()
            && let Some(step) = job.next()
        {
            room -= slots_of(&step.work);
            job.given.push_back(Given { step, position: u64::MAX });
            let last = room < 2 || !job.wants_more();
            let interrupts = last && options.completion == Completion::Interrupt;
            let notice = if interrupts { Notice::Interrupt } else { Notice::Completion };
            if let Some(given) = job.given.back_mut() {
                written = driver.write(channel, &request(&given.step, notice));
                given.position = written.unwrap_or(u64::MAX);
            }
        }
        driver.ring_doorbell(channel);
        job.until = job.until.or(Some(now.after(options.patience)));
        if written.is_err() {
            // The plan keeps the driver's rules, so this is an error of this module, or a quarantined channel.
            self.abandon(index, Failure::ChannelFaulted, completions);
        }
        true
    }

    /// Looks whether a channel that was asked to stands still; whether something came of it.
    fn await_stillness(
        &mut self,
        index: usize,
        overdue: bool,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        let progress = self.driver.inspect(&self.slots[index].channel);
        if self.account(index, progress) {
            self.fail(index, completions);
        } else if progress.state == TransferState::Suspended {
            self.slots[index].motion = Motion::Still;
        } else if overdue {
            let end = self.slots[index].job.as_ref().and_then(|job| job.end);
            self.abandon(index, end.unwrap_or(Failure::EngineTimedOut), completions);
        } else {
            return false;
        }
        true
    }

    /// Goes on from where a channel stands still, if it may.
    fn stand(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let until = self.now().after(self.options.patience);
        if let Some(result) = self.slots[index].job.as_mut().and_then(Job::result) {
            self.finish(index, result, completions);
            return true;
        }
        let Slot { channel, job, motion, held, .. } = &mut self.slots[index];
        let going_on = match job {
            Some(job) if job.end.is_some() => {
                job.take_back();
                job.closing = true;
                self.driver.rewind(channel).is_ok()
            }
            _ if *held => return false,
            job => {
                let job = job.as_mut().filter(|job| !job.given.is_empty());
                job.into_iter().for_each(|job| job.until = Some(until));
                self.driver.resume(channel).is_ok()
            }
        };
        *motion = Motion::Going;
        if !going_on {
            self.abandon(index, Failure::ChannelFaulted, completions);
        }
        true
    }

    /// Ends the job of a channel that halted.
    fn fail(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) {
        let errors = self.driver.failure(&self.slots[index].channel).map(|failure| failure.errors);
        let of_memory = Chanerr::new()
            .with_read_data(true)
            .with_write_data(true)
            .with_source_address(true)
            .with_destination_address(true);
        let is_memory = |errors: Chanerr| errors.into_bits() & of_memory.into_bits() != 0;
        let failure =
            if errors.is_some_and(is_memory) { Failure::MemoryFault } else { Failure::ChannelFaulted };
        self.abandon(index, failure, completions);
    }

    /// Resets a channel and ends its job so, or with [`Failure::ChannelFaulted`] when it may go on all the same.
    fn abandon(&mut self, index: usize, failure: Failure, completions: &mut Vec<EngineCompletion>) {
        let progress = self.driver.inspect(&self.slots[index].channel);
        self.account(index, progress);
        let reset = self.driver.recover(&self.slots[index].channel, self.options.reset);
        let failure = if reset.is_ok() { failure } else { Failure::ChannelFaulted };
        self.slots[index].motion = Motion::Going;
        self.finish(index, Err(failure), completions);
    }

    /// Looks after channels that were not heard of for too long; whether there were any.
    fn give_up(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let now = self.now();
        let overdue = |slot: &Slot| slot.is_overdue(now);
        let late: Vec<usize> = (0..self.slots.len()).filter(|index| overdue(&self.slots[*index])).collect();
        for index in &late {
            let progress = self.driver.inspect(&self.slots[*index].channel);
            if self.account(*index, progress) {
                self.fail(*index, completions);
                continue;
            }
            // A channel whose interrupt got lost believes that it raised it.
            self.driver.arm_interrupt(&self.slots[*index].channel);
            let slot = &mut self.slots[*index];
            if slot.is_overdue(now)
                && let Some(job) = &mut slot.job
            {
                (job.end, job.until) = (job.end.or(Some(Failure::EngineTimedOut)), None);
                self.driver.ask_suspend(&slot.channel);
                slot.motion = Motion::Asked { until: Some(now.after(self.options.drain)) };
            }
        }
        !late.is_empty()
    }

    /// Whether there is something to look at.
    fn is_due(&self, now: Instant) -> bool {
        let asked = |slot: &Slot| matches!(slot.motion, Motion::Asked { .. });
        self.stirred
            || self.device.with(|device| device.is_high(LINE))
            || self.look.is_some_and(|look| look <= now)
            || self.slots.iter().any(|slot| asked(slot) || slot.is_overdue(now))
    }
}

/// Descriptors that a step takes.
fn slots_of(work: &Work) -> u64 {
    match work {
        Work::Xor { sources, .. } if sources.len() > PLAIN_SOURCES => 2,
        _ => 1,
    }
}

/// A step as the driver is asked for it.
fn request(step: &Step, notice: Notice) -> Request<'_> {
    let operation = match &step.work {
        Work::Null => ioat::Operation::Null,
        Work::Copy { source, destination, bytes } => {
            ioat::Operation::Copy { source: *source, destination: *destination, bytes: *bytes }
        }
        Work::Fill { pattern, destination, bytes } => {
            ioat::Operation::Fill { pattern: *pattern, destination: *destination, bytes: *bytes }
        }
        Work::Xor { sources, destination, bytes } => {
            ioat::Operation::Xor { sources, destination: *destination, bytes: *bytes }
        }
    };
    Request { operation, notice, fence: step.fence }
}

impl<D: Device + NarrowIo, M: DmaMemory> Engine for IoatEngine<D, M> {
    type Memory = BusMemory;

    fn capabilities(&self) -> EngineCapabilities {
        let limits = self.driver.limits();
        let mut operations = Operations::NOP | Operations::COPY | Operations::SCATTER_GATHER;
        operations.set(Operations::FILL, limits.fills);
        operations.set(Operations::XOR, limits.xor);
        EngineCapabilities {
            kind: EngineKind::Simulated,
            channels: self.slots.len() as u32,
            longest_bytes: LONGEST_BYTES,
            preemption_bytes: Some(self.options.chunk_bytes.max(8)),
            overlapping_copy: true,
            aligned_pixels: false,
            operations,
            immediate_bytes: 0,
        }
    }

    fn post(&mut self, descriptor: Descriptor<BusMemory>) -> Result<Ticket, Refused<Descriptor<BusMemory>>> {
        let number = descriptor.channel();
        let limit = self.options.chunk_bytes.clamp(1, self.driver.limits().longest);
        let plan = Plan::of(descriptor.operation(), limit);
        let announced = self.capabilities();
        let slot = self.slots.get_mut(number as usize);
        match admit(&descriptor, &announced, slot, |slot| slot.job.is_some(), plan) {
            Ok((slot, plan)) => {
                slot.serial = slot.serial.wrapping_add(1);
                slot.job = Some(Job::new(plan));
                Ok(Ticket { channel: number, serial: slot.serial })
            }
            Err(reason) => Err(Refused { descriptor, reason }),
        }
    }

    fn ring_doorbell(&mut self) {
        for job in self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()) {
            self.stirred |= !job.started;
            job.started = true;
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.device.with(|device| device.advance(now));
        if !self.is_due(self.now()) {
            return false;
        }
        (self.stirred, self.look) = (false, None);
        completions.append(&mut self.ended);
        loop {
            self.hear();
            // First: a channel that is found done is not late any more, and its lost interrupt would stay lost.
            let mut any = self.give_up(completions);
            for index in 0..self.slots.len() {
                any |= self.serve(index, completions);
            }
            if !any {
                break;
            }
        }
        if let Completion::Poll(period) = self.options.completion {
            let busy = self.slots.iter().any(Slot::is_at_work);
            self.look = busy.then(|| self.now().after(period));
        }
        false
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        let slot = self.slots.get(ticket.channel as usize).filter(|slot| slot.serial == ticket.serial);
        slot.and_then(|slot| slot.job.as_ref()).map_or(0, |job| job.done)
    }

    /// Suspended, a channel stands still at the end of the descriptor at work; what was given to it is kept.
    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(slot) = self.slots.get_mut(channel as usize) {
            let held = turns == 0;
            self.stirred |= slot.held != held;
            slot.held = held;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        self.slots.get(channel as usize).is_none_or(|slot| {
            let quiet = !slot.is_at_work() && !self.driver.is_quarantined(&slot.channel);
            quiet && (slot.held || slot.job.is_none())
        })
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slots.get_mut(ticket.channel as usize)
            && slot.serial == ticket.serial
            && let Some(job) = &mut slot.job
        {
            job.end = job.end.or(Some(Failure::Cancelled));
            self.stirred = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.stirred {
            return Some(self.now());
        }
        let asked = self.slots.iter().any(|slot| matches!(slot.motion, Motion::Asked { .. }));
        let interrupts = self.options.completion == Completion::Interrupt;
        let watched = asked || (interrupts && self.slots.iter().any(Slot::is_at_work));
        let device = watched.then(|| self.device.with(|device| device.next_wake())).flatten();
        let deadlines = self.slots.iter().filter_map(Slot::deadline);
        deadlines.chain(device).chain(self.look).min()
    }
}
