//! The OMAP4 SDMA as an engine: its driver in front of the device, or of a model of it (Wicki 2014, 3.4).
//!
//! ```text
//! post ─► job: plan of hardware transfers ─ doorbell ─► configure, enable ─► the device works by itself
//! poll(now) ─► device.advance ─ line high? ─► driver: status of each channel ─► next transfer of the job, or Finished
//!           ├► asked to end early ─► before the next transfer
//!           └► no interrupt in time ─► stopped: EngineTimedOut, or ChannelFaulted when it goes on all the same
//! ```
//!
//! Single-threaded, as the thesis's driver: interrupts and posts come by turns. Nothing is counted as done before the device
//! reported it. The engine copies, fills, walks and follows lists; it does not look at bytes. Lists are moved piece by piece,
//! for the descriptors of linked lists would have to lie in memory that it owns.

mod device;
mod memory;
mod plan;

use core::time::Duration;

use memferry_clock::Instant;
use memferry_drivers::sdma::{Cause, Channel, ChannelConfig, Event, InitError, Line, Sdma, Settings};
use memferry_registers::Device;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineKind, Failure, Finished, Operations, Refused, Ticket,
};

pub use device::Shared;
pub use memory::BusMemory;
use plan::{Plan, Step};

/// What a service chooses for the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SdmaOptions {
    /// Bytes of a hardware transfer at most (a pixel at least): an end that is asked for is honoured so often.
    pub chunk_bytes: u64,
    /// How long a hardware transfer may take without a word.
    pub patience: Duration,
    /// How long a stopped channel may go on.
    pub drain: Duration,
    /// What the device is set up with.
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

/// Longest transfer, bytes: what the device can address.
const LONGEST_BYTES: u64 = 1 << 32;
/// The line the engine listens to.
const LINE: Line = Line::L0;

/// The engine.
#[derive(Debug)]
pub struct SdmaEngine<D: Device> {
    device: Shared<D>,
    driver: Sdma<Shared<D>, Shared<D>>,
    slots: Vec<Slot>,
    options: SdmaOptions,
}

/// A channel of the engine: one of the device's.
#[derive(Debug)]
struct Slot {
    channel: Channel,
    serial: u32,
    job: Option<Job>,
}

#[derive(Debug)]
struct Job {
    plan: Plan,
    /// What the device is doing for it, and when that is overdue.
    running: Option<(Step, Instant)>,
    done: u64,
    /// Steps before are whole.
    whole: bool,
    started: bool,
    cancelled: bool,
}

/// How a job ended.
type Outcome = Result<(), Failure>;

impl<D: Device> SdmaEngine<D> {
    /// Resets the device and takes so many of its 32 channels.
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
            slots.push(Slot { channel, serial: 0, job: None });
        }
        Ok(Self { device, driver, slots, options })
    }

    /// Gives every running step of a job that may go on to the device; whether anything was started or ended.
    fn start_all(&mut self, finished: &mut Vec<Finished>) -> bool {
        let mut any = false;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let Some(job) = slot.job.as_mut().filter(|job| job.running.is_none()) else { continue };
            if job.cancelled && job.whole {
                self.finish(index, Err(Failure::Cancelled), finished);
                any = true;
            } else if job.started {
                match job.plan.next() {
                    None => self.finish(index, Ok(()), finished),
                    Some(step) => self.start(index, step, finished),
                }
                any = true;
            }
        }
        any
    }

    fn start(&mut self, index: usize, step: Step, finished: &mut Vec<Finished>) {
        let Self { driver, slots, device, options } = self;
        let slot = &mut slots[index];
        let config = ChannelConfig::new(step.operation, step.piece);
        let started =
            driver.configure(&slot.channel, &config, None).is_ok() && driver.enable(&slot.channel).is_ok();
        if !started {
            // The plan was made within the driver's rules, so this is an error of this module, or a quarantined channel.
            return self.finish(index, Err(Failure::ChannelFaulted), finished);
        }
        let now = device.with(|device| device.now());
        if let Some(job) = slot.job.as_mut() {
            job.running = Some((step, now.after(options.patience)));
        }
    }

    fn finish(&mut self, index: usize, outcome: Outcome, finished: &mut Vec<Finished>) {
        let slot = &mut self.slots[index];
        if let Some(job) = slot.job.take() {
            let ticket = Ticket { channel: index as u32, serial: slot.serial };
            finished.push(Finished { ticket, outcome, bytes_done: job.done, value: 0 });
        }
    }

    /// Handles what the device reported.
    fn hear(&mut self, finished: &mut Vec<Finished>) -> bool {
        let mut events: Vec<Event> = Vec::new();
        while self.device.with(|device| device.is_high(LINE.index())) {
            if self.driver.handle_interrupt(LINE, |event| events.push(event)).events == 0 {
                break;
            }
        }
        let any = !events.is_empty();
        for event in events {
            let heard = |slot: &Slot| slot.channel.index() == event.channel;
            if let Some(index) = self.slots.iter().position(heard) {
                self.heard(index, &event, finished);
            }
        }
        any
    }

    fn heard(&mut self, index: usize, event: &Event, finished: &mut Vec<Finished>) {
        let Some(job) = self.slots[index].job.as_mut() else { return };
        if let Some(cause) = event.error() {
            let failure = match cause {
                Cause::TransactionError => Failure::MemoryFault,
                _ => Failure::ChannelFaulted,
            };
            self.stop(index, failure, finished);
        } else if event.is_end()
            && let Some((step, _)) = job.running.take()
        {
            job.done += step.bytes;
            job.whole = step.whole;
        }
    }

    /// Ends a job whose channel may still be at work.
    fn stop(&mut self, index: usize, failure: Failure, finished: &mut Vec<Finished>) {
        let channel = &self.slots[index].channel;
        let drained = self.driver.stop(channel, self.options.drain).is_ok();
        // An interrupt that was lost on its way still stands in the line's status, and would hide the next one.
        self.driver.set_line(channel, LINE, false);
        self.driver.set_line(channel, LINE, true);
        let failure = if drained { failure } else { Failure::ChannelFaulted };
        self.finish(index, Err(failure), finished);
    }

    /// Stops what is overdue.
    fn give_up(&mut self, now: Instant, finished: &mut Vec<Finished>) {
        for index in 0..self.slots.len() {
            let overdue = |job: &Job| job.running.is_some_and(|(_, until)| until <= now);
            if self.slots[index].job.as_ref().is_some_and(overdue) {
                self.stop(index, Failure::EngineTimedOut, finished);
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
            | Operations::SCATTER_GATHER;
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
        let announced = self.capabilities();
        let operation = descriptor.operation();
        let performs =
            announced.operations.contains(operation.kind()) && operation.total_bytes() <= LONGEST_BYTES;
        let plan = Plan::of(operation, self.options.chunk_bytes.max(1));
        let reason = match (self.slots.get_mut(number as usize), plan) {
            (None, _) => RefusalReason::NoSuchChannel(number),
            (Some(Slot { job: Some(_), .. }), _) => RefusalReason::Busy(number),
            (Some(slot), Ok(plan)) if performs => {
                slot.serial = slot.serial.wrapping_add(1);
                let (started, cancelled) = (false, false);
                slot.job = Some(Job { plan, running: None, done: 0, whole: true, started, cancelled });
                return Ok(Ticket { channel: number, serial: slot.serial });
            }
            (Some(_), _) => RefusalReason::Unsupported,
        };
        Err(Refused { descriptor, reason })
    }

    fn ring_doorbell(&mut self) {
        self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()).for_each(|job| job.started = true);
    }

    fn poll(&mut self, now: Instant, finished: &mut Vec<Finished>) -> bool {
        self.device.with(|device| device.advance(now));
        loop {
            let heard = self.hear(finished);
            let started = self.start_all(finished);
            if !heard && !started {
                break;
            }
        }
        self.give_up(now, finished);
        false
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
        let overdue = jobs().filter_map(|job| job.running.map(|(_, until)| until)).min();
        let ready = |job: &Job| job.running.is_none() && (job.started || job.cancelled);
        if jobs().any(ready) {
            return Some(self.device.with(|device| device.now()));
        }
        let device =
            jobs().any(|job| job.running.is_some()).then(|| self.device.with(|device| device.next_wake()));
        device.flatten().into_iter().chain(overdue).min()
    }
}
