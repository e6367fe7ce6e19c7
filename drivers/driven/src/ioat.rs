//! The I/OAT engine: a driver in front of the device or its model.
//!
//! ```text
//! post ─► job: plan of descriptors ─ doorbell ─► batches of up to half the ring, the next when it has room
//! poll(now) ─► device.advance ─ interrupt or poll time ─► completion words ─► bytes done, next batch, or a completion
//!           ├► cancelled or suspended ─► suspend ─ acknowledged ─► unfinished steps are taken back
//!           └► no progress in time ─► suspend; not acknowledged: reset; reset fails: ChannelFaulted
//! reset ─► resets each channel; running transfers end with EngineReset
//! ```
//!
//! Single-threaded: interrupts are handled within `poll`. Bytes count as done only when the device has reported them. The
//! engine performs copies, fills, XOR and lists as chains of descriptors; it has no 2-D operations. A lost interrupt only
//! costs time: after `patience` the engine reads the channel's status itself.

mod plan;
mod slot;

use core::marker::PhantomData;
use core::time::Duration;

use memferry_clock::Instant;
use memferry_driver_ioat::{
    DmaMemory, InitError, Ioat, Notice, OpenError, Progress, Request, RingConfig, StopError, TakeError,
};
use memferry_ioat_registers::descriptor::PLAIN_SOURCES;
use memferry_ioat_registers::{CHANNELS, Chanerr, DESCRIPTOR_BYTES, Device, NarrowIo, TransferState};
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, Failure, Operations, Refused, Ticket,
};
use thiserror::Error;

use crate::admission::{admit, completion};
use crate::device::Shared;
use crate::memory::DeviceMemory;
use plan::{Plan, Step, Work};
use slot::{Job, Phase, Slot, Submitted};

/// How the engine learns of completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The device interrupts at the end of each batch.
    Interrupt,
    /// The engine polls the completion words with this period; only errors interrupt.
    Poll(Duration),
}

/// Options of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoatOptions {
    /// Maximum bytes of a descriptor (at least eight for fills). A suspension or cancel takes effect between descriptors.
    pub chunk_bytes: u64,
    /// Maximum time without reported progress of a channel.
    pub patience: Duration,
    /// Maximum time until a channel acknowledges a suspension; then it is reset.
    pub drain: Duration,
    /// Maximum time of a reset.
    pub reset: Duration,
    /// How the engine learns of completions.
    pub completion: Completion,
}

impl Default for IoatOptions {
    /// Chunks of 64 KiB: some 30 µs each at 2 GB/s. With time slices, choose chunks much shorter than a slice.
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

/// Why the engine could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IoatInitError {
    /// The driver does not support the device.
    #[error(transparent)]
    Init(#[from] InitError),
    /// A channel is not available.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// A channel could not be set up, for example because the ring memory is too small.
    #[error(transparent)]
    Open(#[from] OpenError),
}

const LINE: usize = 0;
/// Maximum descriptors of a ring; more would bring no gain.
const MAX_SLOTS: u64 = 256;

/// The engine over memory `B`. `M` gives the processor access to the rings' memory.
#[derive(Debug)]
pub struct IoatEngine<D: Device + NarrowIo, M: DmaMemory, B: DeviceMemory> {
    device: Shared<D>,
    driver: Ioat<Shared<D>, M, Shared<D>>,
    slots: Vec<Slot>,
    options: IoatOptions,
    /// Completions of a reset, reported by the next poll.
    finished: Vec<EngineCompletion>,
    /// Maximum descriptors submitted together.
    batch: u64,
    /// Whether a caller changed something since the last poll.
    changed: bool,
    /// Time of the next poll of the completion words.
    next_poll: Option<Instant>,
    memory: PhantomData<fn() -> B>,
}

impl<D: Device + NarrowIo, M: DmaMemory, B: DeviceMemory> IoatEngine<D, M, B> {
    /// Initializes the device and sets up `channels` channels, or as many as it has. `rings` is the memory of all rings;
    /// `memory` gives the processor access to it.
    ///
    /// # Errors
    /// [`IoatInitError`].
    pub fn new(
        device: Shared<D>,
        (memory, rings): (M, B),
        channels: u32,
        options: IoatOptions,
    ) -> Result<Self, IoatInitError> {
        let mut driver = Ioat::new(device.clone(), memory, device.clone());
        driver.initialize()?;
        let count = u64::from(channels).min(u64::from(driver.channels()).min(CHANNELS as u64)).max(1);
        // Each channel's share starts with its completion word, in the room of one descriptor.
        let first = rings.device_address().next_multiple_of(DESCRIPTOR_BYTES);
        let room = (rings.device_address() + rings.length()).saturating_sub(first);
        let share = room / count / DESCRIPTOR_BYTES;
        let ring_slots = share.saturating_sub(1).min(MAX_SLOTS);
        let mut slots = Vec::new();
        for index in 0..count {
            let completion = first + index * share * DESCRIPTOR_BYTES;
            let ring =
                RingConfig { ring: completion + DESCRIPTOR_BYTES, slots: ring_slots as u16, completion };
            let channel = driver.take(index as u8)?;
            driver.open(&channel, ring, options.reset)?;
            slots.push(Slot {
                channel,
                serial: 0,
                job: None,
                phase: Phase::Running,
                held: false,
                errors: Chanerr::new(),
            });
        }
        let batch = (ring_slots.saturating_sub(1) / 2).max(2);
        Ok(Self {
            device,
            driver,
            slots,
            options,
            finished: Vec::new(),
            batch,
            changed: false,
            next_poll: None,
            memory: PhantomData,
        })
    }

    /// Resets the channels, which recovers failed ones. Running transfers end with [`Failure::EngineReset`], reported by
    /// the next poll; transfers posted but not started stay, and suspended channels stay suspended.
    ///
    /// # Errors
    /// The first failed reset. That channel's transfer ends with [`Failure::ChannelFaulted`]; the others remain usable.
    pub fn reset(&mut self) -> Result<(), StopError> {
        let mut first = Ok(());
        let mut completions = std::mem::take(&mut self.finished);
        for index in 0..self.slots.len() {
            let reset = self.driver.recover(&self.slots[index].channel, self.options.reset);
            self.slots[index].phase = Phase::Running;
            if self.slots[index].job.as_ref().is_some_and(|job| !job.submitted.is_empty()) {
                let failure = if reset.is_ok() { Failure::EngineReset } else { Failure::ChannelFaulted };
                self.finish(index, Err(failure), &mut completions);
            }
            first = first.and(reset);
        }
        self.finished = completions;
        self.changed = true;
        first
    }

    /// Whether the reset of a channel failed, so that the device may still access the memory of its last job.
    pub fn is_quarantined(&self, channel: u32) -> bool {
        self.slots.get(channel as usize).is_some_and(|slot| self.driver.is_quarantined(&slot.channel))
    }

    /// The errors with which a channel halted in its last transfer, for people to read.
    pub fn last_errors(&self, channel: u32) -> Chanerr {
        self.slots.get(channel as usize).map_or(Chanerr::new(), |slot| slot.errors)
    }

    fn finish(&mut self, index: usize, result: Result<(), Failure>, completions: &mut Vec<EngineCompletion>) {
        let slot = &mut self.slots[index];
        if let Some(job) = slot.job.take() {
            completions.push(completion((index as u32, slot.serial), result, job.done, B::KIND));
        }
    }

    /// Handles interrupts; the completion words tell what was done.
    fn handle_interrupts(&mut self) {
        while self.device.with(|device| device.is_high(LINE)) {
            if self.driver.handle_interrupt(|_| {}).channels == 0 {
                break;
            }
        }
    }

    fn now(&self) -> Instant {
        self.device.with(|device| device.now())
    }

    /// Advances a channel; returns whether anything changed.
    fn advance(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let progress = self.driver.poll(&self.slots[index].channel);
        if self.account(index, progress) {
            self.fail(index, completions);
            return true;
        }
        match self.slots[index].phase {
            Phase::Running => self.advance_running(index, completions),
            Phase::Suspending { until } => {
                let overdue = until.is_some_and(|until| until <= self.now());
                self.check_suspended(index, overdue, completions)
            }
            Phase::Suspended => self.advance_suspended(index, completions),
        }
    }

    /// Counts a channel's progress; returns whether it halted with steps in the device.
    fn account(&mut self, index: usize, progress: Progress) -> bool {
        let until = self.now().after(self.options.patience);
        let Some(job) = self.slots[index].job.as_mut() else { return false };
        let was_given = !job.submitted.is_empty();
        if job.collect(progress.done) && job.until.is_some() {
            job.until = (!job.submitted.is_empty()).then_some(until);
        }
        was_given && progress.state == TransferState::Halted
    }

    fn advance_running(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let until = self.now().after(self.options.drain);
        let slot = &mut self.slots[index];
        let Some(job) = slot.job.as_mut() else { return false };
        if let Some(result) = job.result() {
            self.finish(index, result, completions);
            return true;
        }
        let ends = job.end.is_some() && !job.closing;
        // A cancelled job continues to its next boundary even when suspended.
        let held = slot.held && job.end.is_none();
        if !job.submitted.is_empty() && (ends || held) {
            self.driver.ask_suspend(&slot.channel);
            slot.phase = Phase::Suspending { until: ends.then_some(until) };
            return true;
        }
        let may_continue = job.started && !held && job.wants_more();
        may_continue && self.submit_batch(index, completions)
    }

    /// Submits the next steps if the ring has room for a batch; returns whether it had.
    fn submit_batch(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let now = self.now();
        let Self { driver, slots, options, batch, .. } = self;
        let Slot { channel, job: Some(job), .. } = &mut slots[index] else { return false };
        if driver.free(channel) < *batch && job.submitted.is_empty() {
            // The ring is full of finished descriptors whose completion writes were lost.
            let _at_work = driver.rewind(channel);
        }
        if driver.free(channel) < *batch {
            return false;
        }
        // A step takes up to two descriptors.
        let mut room = *batch;
        let mut written = Ok(0);
        while room >= 2
            && written.is_ok()
            && let Some(step) = job.next()
        {
            room -= slots_of(&step.work);
            job.submitted.push_back(Submitted { step, position: u64::MAX });
            let last = room < 2 || !job.wants_more();
            let interrupts = last && options.completion == Completion::Interrupt;
            let notice = if interrupts { Notice::Interrupt } else { Notice::Completion };
            if let Some(submitted) = job.submitted.back_mut() {
                written = driver.write(channel, &request(&submitted.step, notice));
                submitted.position = written.unwrap_or(u64::MAX);
            }
        }
        driver.ring_doorbell(channel);
        job.until = job.until.or(Some(now.after(options.patience)));
        if written.is_err() {
            // The plan keeps the driver's rules: the channel is quarantined, or this module has a bug.
            self.abandon(index, Failure::ChannelFaulted, completions);
        }
        true
    }

    /// Checks whether a suspending channel has stopped; returns whether anything changed.
    fn check_suspended(
        &mut self,
        index: usize,
        overdue: bool,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        let progress = self.driver.inspect(&self.slots[index].channel);
        if self.account(index, progress) {
            self.fail(index, completions);
        } else if progress.state == TransferState::Suspended {
            self.slots[index].phase = Phase::Suspended;
        } else if overdue {
            let end = self.slots[index].job.as_ref().and_then(|job| job.end);
            self.abandon(index, end.unwrap_or(Failure::EngineTimedOut), completions);
        } else {
            return false;
        }
        true
    }

    /// Continues after a completed suspension, if permitted; returns whether anything changed.
    fn advance_suspended(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let until = self.now().after(self.options.patience);
        if let Some(result) = self.slots[index].job.as_mut().and_then(Job::result) {
            self.finish(index, result, completions);
            return true;
        }
        let Slot { channel, job, phase, held, .. } = &mut self.slots[index];
        let continues = match job {
            Some(job) if job.end.is_some() => {
                job.take_back();
                job.closing = true;
                self.driver.rewind(channel).is_ok()
            }
            _ if *held => return false,
            job => {
                let job = job.as_mut().filter(|job| !job.submitted.is_empty());
                job.into_iter().for_each(|job| job.until = Some(until));
                self.driver.resume(channel).is_ok()
            }
        };
        *phase = Phase::Running;
        if !continues {
            self.abandon(index, Failure::ChannelFaulted, completions);
        }
        true
    }

    /// Ends the job of a halted channel.
    fn fail(&mut self, index: usize, completions: &mut Vec<EngineCompletion>) {
        let errors = self.driver.failure(&self.slots[index].channel).map(|failure| failure.errors);
        let of_memory = Chanerr::new()
            .with_read_data(true)
            .with_write_data(true)
            .with_source_address(true)
            .with_destination_address(true);
        self.slots[index].errors = errors.unwrap_or_default();
        let is_memory = |errors: Chanerr| errors.into_bits() & of_memory.into_bits() != 0;
        let failure =
            if errors.is_some_and(is_memory) { Failure::MemoryFault } else { Failure::ChannelFaulted };
        self.abandon(index, failure, completions);
    }

    /// Resets a channel and ends its job with `failure`, or with [`Failure::ChannelFaulted`] if the reset fails.
    fn abandon(&mut self, index: usize, failure: Failure, completions: &mut Vec<EngineCompletion>) {
        let progress = self.driver.inspect(&self.slots[index].channel);
        self.account(index, progress);
        let reset = self.driver.recover(&self.slots[index].channel, self.options.reset);
        let failure = if reset.is_ok() { failure } else { Failure::ChannelFaulted };
        self.slots[index].phase = Phase::Running;
        self.finish(index, Err(failure), completions);
    }

    /// Handles channels without progress for too long; returns whether there were any.
    fn handle_overdue(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let now = self.now();
        let overdue = |slot: &Slot| slot.is_overdue(now);
        let late: Vec<usize> = (0..self.slots.len()).filter(|index| overdue(&self.slots[*index])).collect();
        for index in &late {
            let progress = self.driver.inspect(&self.slots[*index].channel);
            if self.account(*index, progress) {
                self.fail(*index, completions);
                continue;
            }
            // After a lost interrupt, the channel's interrupt is disarmed.
            self.driver.arm_interrupt(&self.slots[*index].channel);
            let slot = &mut self.slots[*index];
            if slot.is_overdue(now)
                && let Some(job) = &mut slot.job
            {
                (job.end, job.until) = (job.end.or(Some(Failure::EngineTimedOut)), None);
                self.driver.ask_suspend(&slot.channel);
                slot.phase = Phase::Suspending { until: Some(now.after(self.options.drain)) };
            }
        }
        !late.is_empty()
    }

    /// Whether a poll has anything to do.
    fn is_due(&self, now: Instant) -> bool {
        let asked = |slot: &Slot| matches!(slot.phase, Phase::Suspending { .. });
        self.changed
            || self.device.with(|device| device.is_high(LINE))
            || self.next_poll.is_some_and(|next_poll| next_poll <= now)
            || self.slots.iter().any(|slot| asked(slot) || slot.is_overdue(now))
    }
}

/// Descriptors needed for a step.
fn slots_of(work: &Work) -> u64 {
    match work {
        Work::Xor { sources, .. } if sources.len() > PLAIN_SOURCES => 2,
        _ => 1,
    }
}

/// The driver's request for a step.
fn request(step: &Step, notice: Notice) -> Request<'_> {
    let operation = match &step.work {
        Work::Null => memferry_driver_ioat::Operation::Null,
        Work::Copy { source, destination, bytes } => memferry_driver_ioat::Operation::Copy {
            source: *source,
            destination: *destination,
            bytes: *bytes,
        },
        Work::Fill { pattern, destination, bytes } => memferry_driver_ioat::Operation::Fill {
            pattern: *pattern,
            destination: *destination,
            bytes: *bytes,
        },
        Work::Xor { sources, destination, bytes } => {
            memferry_driver_ioat::Operation::Xor { sources, destination: *destination, bytes: *bytes }
        }
    };
    Request { operation, notice, fence: step.fence }
}

impl<D: Device + NarrowIo, M: DmaMemory, B: DeviceMemory> Engine for IoatEngine<D, M, B> {
    type Memory = B;

    fn capabilities(&self) -> EngineCapabilities {
        let limits = self.driver.limits();
        let mut operations = Operations::NOP | Operations::COPY | Operations::SCATTER_GATHER;
        operations.set(Operations::FILL, limits.fills);
        operations.set(Operations::XOR, limits.xor);
        EngineCapabilities {
            kind: B::KIND,
            channels: self.slots.len() as u32,
            longest_bytes: B::LONGEST_BYTES,
            preemption_bytes: Some(self.options.chunk_bytes.max(8)),
            overlapping_copy: true,
            aligned_pixels: false,
            operations,
            immediate_bytes: 0,
        }
    }

    fn post(&mut self, descriptor: Descriptor<B>) -> Result<Ticket, Refused<Descriptor<B>>> {
        let number = descriptor.channel();
        let limit = self.options.chunk_bytes.clamp(1, self.driver.limits().longest);
        let plan = Plan::of(descriptor.operation(), limit);
        let announced = self.capabilities();
        let slot = self.slots.get_mut(number as usize);
        match admit(&descriptor, &announced, slot, |slot| slot.job.is_some(), plan) {
            Ok((slot, plan)) => {
                slot.serial = slot.serial.wrapping_add(1);
                slot.errors = Chanerr::new();
                slot.job = Some(Job::new(plan));
                Ok(Ticket { channel: number, serial: slot.serial })
            }
            Err(reason) => Err(Refused { descriptor, reason }),
        }
    }

    fn ring_doorbell(&mut self) {
        for job in self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()) {
            self.changed |= !job.started;
            job.started = true;
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.device.with(|device| device.advance(now));
        if !self.is_due(self.now()) {
            return false;
        }
        (self.changed, self.next_poll) = (false, None);
        completions.append(&mut self.finished);
        loop {
            self.handle_interrupts();
            // First: once a channel is found done it is not overdue any more, and its lost interrupt would leave it disarmed.
            let mut any = self.handle_overdue(completions);
            for index in 0..self.slots.len() {
                any |= self.advance(index, completions);
            }
            if !any {
                break;
            }
        }
        if let Completion::Poll(period) = self.options.completion {
            let busy = self.slots.iter().any(Slot::is_at_work);
            self.next_poll = busy.then(|| self.now().after(period));
        }
        false
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        let slot = self.slots.get(ticket.channel as usize).filter(|slot| slot.serial == ticket.serial);
        slot.and_then(|slot| slot.job.as_ref()).map_or(0, |job| job.done)
    }

    /// A suspended channel stops at the end of the current descriptor; its submitted descriptors are kept.
    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(slot) = self.slots.get_mut(channel as usize) {
            let held = turns == 0;
            self.changed |= slot.held != held;
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
            self.changed = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.changed {
            return Some(self.now());
        }
        let asked = self.slots.iter().any(|slot| matches!(slot.phase, Phase::Suspending { .. }));
        let interrupts = self.options.completion == Completion::Interrupt;
        let watched = asked || (interrupts && self.slots.iter().any(Slot::is_at_work));
        let device = watched.then(|| self.device.with(|device| device.next_wake())).flatten();
        let deadlines = self.slots.iter().filter_map(Slot::deadline);
        deadlines.chain(device).chain(self.next_poll).min()
    }
}
