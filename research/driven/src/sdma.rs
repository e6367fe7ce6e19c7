//! The OMAP4 SDMA engine: a driver in front of the device or its model (Wicki 2014, 3.4).
//!
//! ```text
//! post ─► job: plan of hardware transfers ─ doorbell ─► configure, enable ─► the device runs
//! poll(now) ─► device.advance ─ interrupt ─► driver: status of each channel ─► next transfer of the job, or a completion
//!           ├► cancelled ─► ends before the next transfer; a synchronized transfer is stopped at once
//!           └► no interrupt in time ─► stopped: EngineTimedOut, or ChannelFaulted if the channel cannot be stopped
//! reset ─► recovers all channels; running transfers end with EngineReset
//! ```
//!
//! Single-threaded, like the thesis's driver: interrupts are handled within `poll`. Bytes count as done only when the device
//! has reported them. The engine copies, fills, performs 2-D operations, follows lists and serves devices' request lines;
//! it has no operation that inspects data. Transfers of one request line run one at a time, in the order they were posted.

mod caches;
mod lists;
mod plan;
mod step;
mod synchronized;

use core::time::Duration;

use memferry_clock::Instant;
use memferry_drivers::sdma::{
    CacheMaintenance, Cause, Channel, Event, InitError, Line, Progress, Sdma, Settings, TransferSize,
};
use memferry_registers::Device;
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Operations, Refused,
    Ticket,
};

use memferry_driven_engines::{Shared, admit, completion};

use super::memory::{BusMemory, ListMemory};
use caches::{Caches, Configured};
use lists::Shares;
use plan::Plan;
use step::{Step, Work};

/// Options of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SdmaOptions {
    /// Maximum bytes of a hardware transfer (at least a pixel). A cancel takes effect between transfers.
    pub chunk_bytes: u64,
    /// Maximum time of a hardware transfer without an interrupt.
    pub patience: Duration,
    /// Maximum time that a stopped channel may take to drain.
    pub drain: Duration,
    /// Settings of the device.
    pub settings: Settings,
}

impl Default for SdmaOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: 4 << 20,
            patience: Duration::from_millis(100),
            drain: Duration::from_millis(1),
            settings: Settings::default(),
        }
    }
}

/// Longest transfer in bytes: the address range of the device.
const LONGEST_BYTES: u64 = 1 << 32;
/// The interrupt line that the engine uses.
const LINE: Line = Line::L0;

#[derive(Debug)]
pub struct SdmaEngine<D: Device> {
    device: Shared<D>,
    driver: Sdma<Shared<D>, Shared<D>>,
    slots: Vec<Slot>,
    options: SdmaOptions,
    lists: Option<Shares>,
    caches: Caches,
    posts: u64,
    /// Completions of a reset, reported by the next poll.
    finished: Vec<EngineCompletion>,
}

/// An engine channel; each is one of the device's.
#[derive(Debug)]
struct Slot {
    channel: Channel,
    serial: u32,
    job: Option<Job>,
    suspended: bool,
}

#[derive(Debug)]
struct Job {
    plan: Plan,
    /// The transfer in the device.
    running: Option<Running>,
    /// The request line that drives the job, and the number of the post.
    line: Option<u32>,
    posted: u64,
    /// Bytes of the operation, and the bytes done.
    bytes: u64,
    done: u64,
    /// Whether the operation may end after the last finished step.
    whole: bool,
    started: bool,
    cancelled: bool,
}

impl Job {
    fn new(plan: Plan, bytes: u64, posted: u64) -> Self {
        let started = false;
        let cancelled = false;
        let whole = true;
        let line = plan.line();
        Self { plan, running: None, line, posted, bytes, done: 0, whole, started, cancelled }
    }

    /// Time at which the running step is overdue.
    fn overdue(&self) -> Option<Instant> {
        self.running.as_ref()?.until
    }
}

/// A step in the device.
#[derive(Debug)]
struct Running {
    bytes: u64,
    whole: bool,
    /// Time at which it is overdue; `None` for synchronized transfers, which have no limit.
    until: Option<Instant>,
    /// Size of a synchronized transfer; its counters tell how far it came.
    size: Option<TransferSize>,
    configured: Configured,
}

impl Running {
    /// Bytes that a stopped synchronized transfer has moved.
    fn moved(&self, progress: &Progress) -> u64 {
        let size = self.size.filter(|_| !progress.ended);
        size.map_or(0, |size| {
            let frames = u64::from(progress.frames) * u64::from(size.elements);
            let elements = frames + u64::from(progress.elements);
            (elements * u64::from(size.element.bytes())).min(size.bytes())
        })
    }
}

impl<D: Device> SdmaEngine<D> {
    /// Resets the device and takes up to `channels` of its 32 channels.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn new(device: Shared<D>, channels: u32, options: SdmaOptions) -> Result<Self, InitError> {
        let (mut driver, _trusted) = Sdma::new(device.clone(), device.clone());
        driver.initialize(&options.settings)?;
        let mut slots = Vec::new();
        while slots.len() < channels as usize
            && let Ok(channel) = driver.allocate()
        {
            driver.set_line(&channel, LINE, true);
            slots.push(Slot { channel, serial: 0, job: None, suspended: false });
        }
        Ok(Self {
            device,
            driver,
            slots,
            options,
            lists: None,
            caches: Caches::default(),
            posts: 0,
            finished: Vec::new(),
        })
    }

    /// Adds memory for descriptors, divided among the channels, so that the device can follow scatter-gather lists.
    /// Without it, or if the device has no linked lists, each part is a transfer.
    pub fn with_lists(mut self, memory: Box<dyn ListMemory>) -> Self {
        self.lists = self.driver.has_linked_lists().then(|| Shares::new(memory, self.slots.len()));
        self
    }

    /// Adds cache maintenance. Without it, memory must be uncached or coherent.
    pub fn with_caches(mut self, maintenance: Box<dyn CacheMaintenance>) -> Self {
        self.caches = Caches::new(maintenance);
        self
    }

    /// Resets the device, which recovers failed channels. Running transfers end with [`Failure::EngineReset`], reported by
    /// the next poll; transfers posted but not started stay. From here on the device cannot access the memory of transfers
    /// that ended with [`Failure::ChannelFaulted`] (for the path: `channel_was_reset` of each).
    ///
    /// # Errors
    /// [`InitError`]; no channel is usable then until a reset succeeds.
    pub fn reset(&mut self) -> Result<(), InitError> {
        self.driver.initialize(&self.options.settings)?;
        let mut completions = std::mem::take(&mut self.finished);
        for index in 0..self.slots.len() {
            self.driver.set_line(&self.slots[index].channel, LINE, true);
            let running = self.slots[index].job.as_ref().and_then(|job| job.running.as_ref());
            if let Some(running) = running {
                running.configured.finish(&mut self.caches);
                self.finish(index, Err(Failure::EngineReset), &mut completions);
            }
        }
        self.finished = completions;
        Ok(())
    }

    /// Starts the next step of each job that may run; returns whether any was started or ended.
    fn start_all(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let mut any = false;
        for index in 0..self.slots.len() {
            let may_start = self.may_start(index);
            let Some(job) = self.slots[index].job.as_mut() else { continue };
            if job.cancelled && job.running.as_ref().is_some_and(|running| running.size.is_some()) {
                self.stop(index, Failure::Cancelled, completions);
            } else if job.running.is_some() {
                continue;
            } else if job.cancelled && job.whole {
                self.finish(index, Err(Failure::Cancelled), completions);
            } else if job.started && may_start {
                match job.plan.next() {
                    // A plan that ends early contains something that it cannot plan.
                    None => {
                        let result = if job.done == job.bytes { Ok(()) } else { Err(Failure::Unsupported) };
                        self.finish(index, result, completions);
                    }
                    Some(step) => self.start(index, step, completions),
                }
            } else {
                continue;
            }
            any = true;
        }
        any
    }

    /// Whether a job's next step may start. A suspended job runs only if cancelled, up to where it may end.
    fn may_start(&self, index: usize) -> bool {
        let Slot { suspended, job, .. } = &self.slots[index];
        let ends = job.as_ref().is_some_and(|job| job.cancelled && !job.whole);
        (!suspended || ends) && !self.line_is_taken(index)
    }

    /// Whether another job uses this job's request line or was posted for it earlier.
    fn line_is_taken(&self, index: usize) -> bool {
        let Some(job) = &self.slots[index].job else { return false };
        let jobs = self.slots.iter().filter_map(|slot| slot.job.as_ref());
        job.line.is_some()
            && jobs
                .filter(|other| other.line == job.line)
                .any(|other| other.running.is_some() || (other.started && other.posted < job.posted))
    }

    fn start(&mut self, index: usize, step: Step, completions: &mut Vec<EngineCompletion>) {
        let Self { driver, slots, device, options, lists, caches, .. } = self;
        let slot = &mut slots[index];
        let configured = match step.work {
            Work::Transfer(config) => {
                driver.configure(&slot.channel, &config, None).is_ok().then_some(Configured::Transfer(config))
            }
            Work::List(segments) => {
                let list = lists.as_mut().and_then(|lists| lists.write(index, &segments));
                list.filter(|list| driver.configure_list(&slot.channel, list, None).is_ok())
                    .map(|list| Configured::List(list, segments))
            }
        };
        let Some(configured) = configured.filter(|configured| {
            configured.prepare(caches);
            driver.enable(&slot.channel).is_ok()
        }) else {
            // The plan keeps the driver's rules: the channel is quarantined, or this module has a bug.
            return self.finish(index, Err(Failure::ChannelFaulted), completions);
        };
        let size = match &configured {
            Configured::Transfer(config) => config.synchronization.map(|_| config.size),
            Configured::List(..) => None,
        };
        let now = device.with(|device| device.now());
        let until = size.is_none().then(|| now.after(options.patience));
        if let Some(job) = slot.job.as_mut() {
            job.running = Some(Running { bytes: step.bytes, whole: step.whole, until, size, configured });
        }
    }

    fn finish(&mut self, index: usize, result: Result<(), Failure>, completions: &mut Vec<EngineCompletion>) {
        let slot = &mut self.slots[index];
        if let Some(job) = slot.job.take() {
            completions.push(completion(
                (index as u32, slot.serial),
                result,
                job.done,
                EngineKind::Simulated,
            ));
        }
    }

    /// Handles interrupts; returns whether there was an event.
    fn handle_interrupts(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let mut events: Vec<Event> = Vec::new();
        while self.device.with(|device| device.is_high(LINE.index())) {
            if self.driver.handle_interrupt(LINE, |event| events.push(event)).events == 0 {
                break;
            }
        }
        let any = !events.is_empty();
        for event in events {
            let reporting = |slot: &Slot| slot.channel.index() == event.channel;
            if let Some(index) = self.slots.iter().position(reporting) {
                self.process_event(index, &event, completions);
            }
        }
        any
    }

    fn process_event(&mut self, index: usize, event: &Event, completions: &mut Vec<EngineCompletion>) {
        let Some(job) = self.slots[index].job.as_mut() else { return };
        if let Some(cause) = event.error() {
            let failure = match cause {
                Cause::TransactionError => Failure::MemoryFault,
                Cause::Drop => Failure::RequestDropped,
                _ => Failure::ChannelFaulted,
            };
            self.stop(index, failure, completions);
        } else if event.is_end()
            && let Some(running) = job.running.take()
        {
            running.configured.finish(&mut self.caches);
            job.done += running.bytes;
            job.whole = running.whole;
        }
    }

    /// Stops a channel that may be running, and ends its job.
    fn stop(&mut self, index: usize, failure: Failure, completions: &mut Vec<EngineCompletion>) {
        let channel = &self.slots[index].channel;
        let stopped = self.driver.stop(channel, self.options.drain);
        // A lost interrupt is still set in the line's status and would hide the next one: clear it.
        self.driver.set_line(channel, LINE, false);
        self.driver.set_line(channel, LINE, true);
        if let (Some(job), Ok(progress)) = (&mut self.slots[index].job, &stopped)
            && let Some(running) = &job.running
        {
            running.configured.finish(&mut self.caches);
            job.done += running.moved(progress);
        }
        let failure = if stopped.is_ok() { failure } else { Failure::ChannelFaulted };
        self.finish(index, Err(failure), completions);
    }

    fn handle_overdue(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) {
        for index in 0..self.slots.len() {
            let overdue = |job: &Job| job.overdue().is_some_and(|until| until <= now);
            if self.slots[index].job.as_ref().is_some_and(overdue) {
                self.stop(index, Failure::EngineTimedOut, completions);
            }
        }
    }
}

impl<D: Device> Engine for SdmaEngine<D> {
    type Memory = BusMemory;

    fn capabilities(&self) -> EngineCapabilities {
        let operations = Operations::NOP
            | Operations::COPY
            | Operations::FILL
            | Operations::COPY_2D
            | Operations::FILL_2D
            | Operations::SCATTER_GATHER
            | Operations::SYNCHRONIZED;
        EngineCapabilities {
            kind: EngineKind::Simulated,
            channels: self.slots.len() as u32,
            longest_bytes: LONGEST_BYTES,
            preemption_bytes: Some(self.options.chunk_bytes.max(4)),
            overlapping_copy: true,
            aligned_pixels: true,
            operations,
            immediate_bytes: 0,
        }
    }

    fn post(&mut self, descriptor: Descriptor<BusMemory>) -> Result<Ticket, Refused<Descriptor<BusMemory>>> {
        let number = descriptor.channel();
        let segments = self.lists.as_ref().map_or(0, Shares::segments);
        let plan = Plan::of(descriptor.operation(), (self.options.chunk_bytes.max(1), segments));
        let announced = self.capabilities();
        let slot = self.slots.get_mut(number as usize);
        match admit(&descriptor, &announced, slot, |slot| slot.job.is_some(), plan) {
            Ok((slot, plan)) => {
                slot.serial = slot.serial.wrapping_add(1);
                self.posts += 1;
                slot.job = Some(Job::new(plan, descriptor.operation().total_bytes(), self.posts));
                Ok(Ticket { channel: number, serial: slot.serial })
            }
            Err(reason) => Err(Refused { descriptor, reason }),
        }
    }

    fn ring_doorbell(&mut self) {
        self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()).for_each(|job| job.started = true);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.device.with(|device| device.advance(now));
        completions.append(&mut self.finished);
        loop {
            let handled = self.handle_interrupts(completions);
            let started = self.start_all(completions);
            if !handled && !started {
                break;
            }
        }
        self.handle_overdue(now, completions);
        false
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        let slot = self.slots.get(ticket.channel as usize).filter(|slot| slot.serial == ticket.serial);
        slot.and_then(|slot| slot.job.as_ref()).map_or(0, |job| job.done)
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(slot) = self.slots.get_mut(channel as usize) {
            slot.suspended = turns == 0;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        let job = self.slots.get(channel as usize).and_then(|slot| slot.job.as_ref());
        job.is_none_or(|job| job.running.is_none())
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slots.get_mut(ticket.channel as usize)
            && slot.serial == ticket.serial
            && let Some(job) = &mut slot.job
        {
            job.cancelled = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let jobs = || self.slots.iter().filter_map(|slot| slot.job.as_ref());
        let overdue = jobs().filter_map(Job::overdue).min();
        let ready = |index: usize, job: &Job| match &job.running {
            Some(running) => job.cancelled && running.size.is_some(),
            None => (job.cancelled && job.whole) || (job.started && self.may_start(index)),
        };
        let mut slots = self.slots.iter().enumerate();
        let any_ready = slots.any(|(index, slot)| slot.job.as_ref().is_some_and(|job| ready(index, job)));
        if any_ready || !self.finished.is_empty() {
            return Some(self.device.with(|device| device.now()));
        }
        let device =
            jobs().any(|job| job.running.is_some()).then(|| self.device.with(|device| device.next_wake()));
        device.flatten().into_iter().chain(overdue).min()
    }
}
