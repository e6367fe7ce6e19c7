//! The engine of a worker: the CPU, and optionally a device for long transfers.
//!
//! ```text
//! post ─┬─ supported by the device, long, memory registered ─► device ─┬─► EngineCompletion
//!       └─ else ─► CPU ◄──── the device failed: repeat all of it ◄─────┘
//!           └─ unregistered memory ─► take_wanted ─► the owner registers it ─► registered
//! ```
//!
//! Device failures are retried on the CPU. Therefore the device gets only transfers that can be repeated: those that do not
//! write what they read. Memory is registered when a long transfer first uses it, and not on this thread, because pinning
//! takes as long as copying; until then the CPU moves the bytes. Without a device this is the CPU engine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;

use memferry_clock::Instant;
use memferry_shm::mapping::Mapping;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Confined, Descriptor, Engine, EngineCapabilities, EngineCompletion, Failure, Operation, Operations,
    Outcome, Refused, Region, Ticket, Watermark,
};

use memferry_cpu::CpuEngine;
use memferry_kmod::engine::touch;

/// Set in the serials of the device's transfers, so that the tickets of a channel are unique.
const DEVICE_SERIAL: u32 = 1 << 31;

/// Statistics of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounts {
    pub transfers: u64,
    /// Destination bytes of these transfers.
    pub bytes: u64,
    /// Failed transfers, which the CPU repeated.
    pub redone: u64,
}

/// A CPU engine, optionally with a device beside it.
pub struct WorkerEngine<E: Engine> {
    cpu: CpuEngine,
    device: Option<AttachedDevice<E>>,
}

struct AttachedDevice<E: Engine> {
    engine: E,
    /// Minimum length of the device's transfers; below it the CPU is faster.
    shortest_bytes: u64,
    operations: Operations,
    /// By channel: the transfer that was posted to the device.
    jobs: Vec<Option<Job>>,
    /// By the key of the mapping.
    requested: BTreeMap<usize, Requested<E::Memory>>,
    wanted: Vec<Mapping>,
    completions: Vec<EngineCompletion>,
    counts: DeviceCounts,
}

/// Memory whose registration was requested.
struct Requested<M> {
    /// Keeps the key from being reused.
    _mapping: Mapping,
    /// `None` until it is registered, which may fail.
    registered: Option<M>,
}

#[derive(Debug)]
struct Job {
    /// The ticket that the caller has.
    ticket: Ticket,
    engine: JobEngine,
    /// For the CPU if the device fails.
    descriptor: Descriptor<Mapping>,
    cancelled: bool,
}

/// The engine that runs a job, and its ticket there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobEngine {
    Device(Ticket),
    Cpu(Ticket),
}

impl<E: Engine> WorkerEngine<E> {
    /// An engine without a device.
    pub fn new(cpu: CpuEngine) -> Self {
        Self { cpu, device: None }
    }

    /// Adds a device for transfers of at least `shortest_bytes`. It must have at least as many channels as the CPU engine.
    pub fn with_device(mut self, engine: E, shortest_bytes: u64) -> Self {
        let jobs = (0..self.cpu.capabilities().channels).map(|_| None).collect();
        let operations = engine.capabilities().operations;
        let requested = Default::default();
        let wanted = Default::default();
        let completions = Default::default();
        let counts = Default::default();
        self.device = Some(AttachedDevice {
            engine,
            shortest_bytes,
            operations,
            jobs,
            requested,
            wanted,
            completions,
            counts,
        });
        self
    }

    pub fn device(&self) -> Option<&E> {
        self.device.as_ref().map(|device| &device.engine)
    }

    /// Statistics of the device; `None` without one.
    pub fn counts(&self) -> Option<DeviceCounts> {
        self.device.as_ref().map(|device| device.counts)
    }

    /// Takes the memory to be registered with the device. The owner reports each with [`registered`](Self::registered).
    pub fn take_wanted(&mut self) -> Vec<Mapping> {
        self.device.as_mut().map_or_else(Vec::new, |device| std::mem::take(&mut device.wanted))
    }

    /// Reports that requested memory is registered. Returns it if it was forgotten meanwhile, to be dropped by a thread that
    /// may block.
    pub fn registered(&mut self, mapping: &Mapping, memory: E::Memory) -> Option<E::Memory> {
        match self.device.as_mut().and_then(|device| device.requested.get_mut(&mapping.key())) {
            Some(entry) => entry.registered.replace(memory),
            None => Some(memory),
        }
    }

    /// Removes memory that no transfer will use any more. Returns its registration, to be dropped by a thread that may block.
    pub fn forget(&mut self, mapping: &Mapping) -> Option<E::Memory> {
        self.device.as_mut()?.requested.remove(&mapping.key())?.registered
    }

    /// Polls the device, if there is one, after the CPU has added its completions from `first` on.
    #[inline]
    fn poll_device(&mut self, now: Instant, first: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let Some(device) = &mut self.device else { return false };
        device.rename(&mut completions[first..]);
        let more = device.engine.poll(now, &mut device.completions);
        device.take_completions(&mut self.cpu, completions) | more
    }

    /// The CPU engine's ticket for a ticket of the caller, if the CPU runs the transfer.
    fn cpu_ticket(&self, ticket: Ticket) -> Option<Ticket> {
        match self.device.as_ref().and_then(|device| device.job(ticket)).map(|job| job.engine) {
            Some(JobEngine::Cpu(own)) => Some(own),
            Some(JobEngine::Device(_)) => None,
            None => Some(ticket),
        }
    }
}

impl<E: Engine> AttachedDevice<E> {
    fn job(&self, ticket: Ticket) -> Option<&Job> {
        self.jobs.get(ticket.channel as usize)?.as_ref().filter(|job| job.ticket == ticket)
    }

    /// Posts the descriptor to the device if it suits and all its memory is registered.
    fn post(&mut self, descriptor: &Descriptor<Mapping>) -> Option<Ticket> {
        let operation = descriptor.operation();
        let suits = self.operations.contains(operation.kind())
            && operation.total_bytes() >= self.shortest_bytes.max(1)
            && is_repeatable(operation);
        if !suits || !self.is_registered(operation) {
            return None;
        }
        let named = operation.try_map(|_, region, _| {
            let memory =
                self.requested.get(&region.memory().key()).and_then(|entry| entry.registered.clone());
            let named = memory.and_then(|memory| Region::new(memory, region.offset(), region.length()));
            named.map(|region| (region, 0)).ok_or(())
        });
        let own = Descriptor::new(descriptor.channel(), named.ok()?).ok()?;
        let device_ticket = self.engine.post(own.with_hint(descriptor.hint())).ok()?;
        let ticket = Ticket { serial: device_ticket.serial ^ DEVICE_SERIAL, ..device_ticket };
        let engine = JobEngine::Device(device_ticket);
        let descriptor = descriptor.clone();
        let cancelled = false;
        *self.jobs.get_mut(ticket.channel as usize)? = Some(Job { ticket, engine, descriptor, cancelled });
        Some(ticket)
    }

    /// Whether all memory of the operation is registered. Requests the registration of new memory.
    fn is_registered(&mut self, operation: &Operation<Region<Mapping>>) -> bool {
        let mut all = true;
        let _ = operation.visit::<Infallible>(|_, region, _| {
            match self.requested.entry(region.memory().key()) {
                Entry::Occupied(entry) => all &= entry.get().registered.is_some(),
                Entry::Vacant(place) => {
                    let mapping = region.memory().clone();
                    self.wanted.push(mapping.clone());
                    place.insert(Requested { _mapping: mapping, registered: None });
                    all = false;
                }
            }
            Ok(())
        });
        all
    }

    /// Replaces the CPU's tickets by the caller's in completions of repeated transfers.
    fn rename(&mut self, completions: &mut [EngineCompletion]) {
        for completion in completions {
            if let Some(slot) = self.jobs.get_mut(completion.ticket.channel as usize)
                && let Some(job) = slot.take_if(|job| job.engine == JobEngine::Cpu(completion.ticket))
            {
                completion.ticket = job.ticket;
            }
        }
    }

    /// Forwards the device's completions. Returns whether the CPU repeats a failed transfer.
    fn take_completions(&mut self, cpu: &mut CpuEngine, completions: &mut Vec<EngineCompletion>) -> bool {
        let mut repeats = false;
        for EngineCompletion { ticket, outcome } in self.completions.drain(..) {
            let Some(slot) = self.jobs.get_mut(ticket.channel as usize) else { continue };
            let Some(job) = slot.as_mut().filter(|job| job.engine == JobEngine::Device(ticket)) else {
                continue;
            };
            let is_final = match outcome.result {
                Ok(()) | Err(Failure::Cancelled | Failure::ChannelFaulted) => true,
                Err(_) => job.cancelled,
            };
            if !is_final && let Some(own) = cpu.start(job.descriptor.clone()) {
                job.engine = JobEngine::Cpu(own);
                self.counts.redone += 1;
                repeats = true;
                continue;
            }
            self.counts.transfers += 1;
            self.counts.bytes += outcome.bytes_done;
            completions.push(EngineCompletion { ticket: job.ticket, outcome });
            *slot = None;
        }
        repeats
    }
}

/// Whether the operation provably writes nothing that it reads.
fn is_repeatable(operation: &Operation<Region<Mapping>>) -> bool {
    match operation {
        Operation::Copy { source, destination, length } => {
            let from = source.offset();
            let to = destination.offset();
            let apart = from + length <= to || to + length <= from;
            apart || source.memory().key() != destination.memory().key()
        }
        Operation::Fill { .. } => true,
        Operation::ScatterGather { lists } => !touch(lists, Mapping::key),
        _ => false,
    }
}

impl<E: Engine> Engine for WorkerEngine<E> {
    type Memory = Mapping;

    fn capabilities(&self) -> EngineCapabilities {
        self.cpu.capabilities()
    }

    fn post(&mut self, descriptor: Descriptor<Mapping>) -> Result<Ticket, Refused<Descriptor<Mapping>>> {
        let Some(device) = &mut self.device else { return self.cpu.post(descriptor) };
        let channel = descriptor.channel();
        if let Some(Some(_)) = device.jobs.get(channel as usize) {
            return Err(Refused { descriptor, reason: RefusalReason::Busy(channel) });
        }
        if self.cpu.refusal(&descriptor).is_none()
            && let Some(ticket) = device.post(&descriptor)
        {
            return Ok(ticket);
        }
        self.cpu.post(descriptor)
    }

    fn ring_doorbell(&mut self) {
        self.cpu.ring_doorbell();
        if let Some(device) = &mut self.device {
            device.engine.ring_doorbell();
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        let first = completions.len();
        let more = self.cpu.poll(now, completions);
        self.poll_device(now, first, completions) | more
    }

    fn advance(
        &mut self,
        now: Instant,
        channel: Option<u32>,
        bytes: u64,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        let first = completions.len();
        let more = self.cpu.advance(now, channel, bytes, completions);
        self.poll_device(now, first, completions) | more
    }

    #[inline]
    fn perform(&mut self, operation: &Confined<'_, &Mapping>) -> Option<Outcome> {
        self.cpu.perform(operation)
    }

    fn watermark(&self, ticket: Ticket) -> Option<Watermark> {
        self.cpu.watermark(self.cpu_ticket(ticket)?)
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        self.cpu_ticket(ticket).map_or(0, |own| self.cpu.bytes_done(own))
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        self.cpu.set_turns(channel, turns);
        if let Some(device) = &mut self.device {
            device.engine.set_turns(channel, turns);
        }
    }

    fn round_is_over(&self) -> bool {
        self.cpu.round_is_over()
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        self.cpu.is_at_rest(channel)
            && self.device.as_ref().is_none_or(|device| device.engine.is_at_rest(channel))
    }

    fn works_alone(&self) -> bool {
        self.cpu.is_idle() && self.device.as_ref().is_some_and(|device| device.engine.works_alone())
    }

    fn cancel(&mut self, ticket: Ticket) {
        let job = self.device.as_mut().and_then(|device| {
            let job = device.jobs.get_mut(ticket.channel as usize)?.as_mut()?;
            (job.ticket == ticket).then_some((job, &mut device.engine))
        });
        let Some((job, engine)) = job else { return self.cpu.cancel(ticket) };
        job.cancelled = true;
        match job.engine {
            JobEngine::Device(own) => engine.cancel(own),
            JobEngine::Cpu(own) => self.cpu.cancel(own),
        }
    }

    /// The device needs no wake-up by time: its descriptor becomes readable.
    fn next_wake(&self) -> Option<Instant> {
        self.cpu.next_wake()
    }
}

#[cfg(test)]
mod tests;
