//! A device beside a worker's CPU: which transfers it gets, and what becomes of those that it fails.
//!
//! ```text
//! post ─ suits, memory registered? ─► device ─► completion ─┬─ final ────────────► the worker's ticket
//!                                                           └─ failed ─► CPU ────► the same ticket
//! ```
//!
//! What needs memory that only the device reaches is bound to it: it is never repeated, so its failure is final. A channel
//! of the worker has at most one job, at one device.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;

use memferry_clock::Instant;
use memferry_cpu::CpuEngine;
use memferry_kmod::engine::touch;
use memferry_shm::mapping::Mapping;
use memferry_transfer::operation::Reach;
use memferry_transfer::{
    Descriptor, Engine, EngineCompletion, Failure, Operation, Operations, Region, Side, Ticket, Watermark,
};

/// Set in the serials of devices' transfers, so that the tickets of a channel are unique.
const DEVICE_SERIAL: u32 = 1 << 31;

/// Operations whose bytes come into place one after the other. Clients are shown the progress of no others.
const IN_ORDER: Operations = Operations::COPY
    .union(Operations::FILL)
    .union(Operations::XOR)
    .union(Operations::COPY_CRC)
    .union(Operations::DUAL_COPY);

/// Statistics of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounts {
    pub transfers: u64,
    /// Destination bytes of these transfers.
    pub bytes: u64,
    /// Failed transfers, which the CPU repeated.
    pub redone: u64,
}

impl DeviceCounts {
    /// What was counted after `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            transfers: self.transfers.wrapping_sub(before.transfers),
            bytes: self.bytes.wrapping_sub(before.bytes),
            redone: self.redone.wrapping_sub(before.redone),
        }
    }
}

/// A device of a worker.
pub(super) struct AttachedDevice<E: Engine> {
    pub(super) engine: E,
    /// Minimum length of the device's transfers; below it the CPU is faster.
    pub(super) shortest_bytes: u64,
    operations: Operations,
    /// By channel: the transfer that was posted to the device.
    jobs: Vec<Option<Job>>,
    /// By the key of the mapping.
    pub(super) requested: BTreeMap<usize, Requested<E::Memory>>,
    /// Memory to be registered. `None` for a device whose memory is registered without being asked for.
    pub(super) wanted: Option<Vec<Mapping>>,
    completions: Vec<EngineCompletion>,
    pub(super) counts: DeviceCounts,
}

/// Memory whose registration was requested.
pub(super) struct Requested<M> {
    /// Keeps the key from being reused.
    pub(super) _mapping: Mapping,
    /// `None` until it is registered, which may fail.
    pub(super) registered: Option<M>,
}

#[derive(Debug)]
struct Job {
    /// The ticket that the caller has.
    ticket: Ticket,
    engine: JobEngine,
    /// For the CPU if the device fails.
    descriptor: Descriptor<Mapping>,
    cancelled: bool,
    /// No other engine reaches its memory.
    is_bound: bool,
}

/// The engine that runs a job, and its ticket there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobEngine {
    Device(Ticket),
    Cpu(Ticket),
}

/// What a worker's engine asks of each of its devices.
pub(super) trait Attached {
    /// Posts the descriptor, if it suits the device and all its memory is registered.
    fn post(&mut self, descriptor: &Descriptor<Mapping>) -> Option<Ticket>;
    fn ring_doorbell(&mut self);
    /// Polls the device, after the CPU has added its completions from `first` on.
    fn poll(
        &mut self,
        now: Instant,
        first: usize,
        cpu: &mut CpuEngine,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool;
    /// Whether a channel has a job of this device.
    fn holds(&self, channel: u32) -> bool;
    /// Whether the ticket is one of this device's jobs, and if so, the CPU's ticket if the CPU runs it.
    fn cpu_ticket(&self, ticket: Ticket) -> Option<Option<Ticket>>;
    /// What is in place of a job that only the device can run.
    fn watermark(&self, ticket: Ticket) -> Option<Watermark>;
    /// Bytes that the device has done of a job that it runs.
    fn bytes_done(&self, ticket: Ticket) -> u64;
    /// Cancels a job; returns false if it is not this device's.
    fn cancel(&mut self, ticket: Ticket, cpu: &mut CpuEngine) -> bool;
    fn set_turns(&mut self, channel: u32, turns: u32);
    fn is_at_rest(&self, channel: u32) -> bool;
    fn works_alone(&self) -> bool;
}

impl<E: Engine> Attached for AttachedDevice<E> {
    fn post(&mut self, descriptor: &Descriptor<Mapping>) -> Option<Ticket> {
        let operation = descriptor.operation();
        let is_bound = needs_device(operation);
        let suits = self.operations.contains(operation.kind())
            && (is_bound
                || operation.total_bytes() >= self.shortest_bytes.max(1) && is_repeatable(operation));
        if !suits || !self.is_registered(operation) {
            return None;
        }
        // Segments of a list are often in the same memory.
        let mut last = None;
        let named = operation.try_map(|_, region, reach| {
            let key = region.memory().key();
            let memory = match &last {
                Some((known, memory)) if *known == key => memory,
                _ => {
                    let registered = self.requested.get(&key).and_then(|entry| entry.registered.clone());
                    &last.insert((key, registered.ok_or(())?)).1
                }
            };
            let named = Region::new(memory.clone(), region.offset(), region.length());
            let start = match reach {
                Reach::Walk(plane, _) => plane.start,
                Reach::Bytes(_) => 0,
            };
            named.map(|region| (region, start)).ok_or(())
        });
        let own = Descriptor::new(descriptor.channel(), named.ok()?).ok()?;
        let device_ticket = self.engine.post(own.with_hint(descriptor.hint())).ok()?;
        let ticket = Ticket { serial: device_ticket.serial ^ DEVICE_SERIAL, ..device_ticket };
        let engine = JobEngine::Device(device_ticket);
        let descriptor = descriptor.clone();
        let cancelled = false;
        let job = Job { ticket, engine, descriptor, cancelled, is_bound };
        *self.jobs.get_mut(ticket.channel as usize)? = Some(job);
        Some(ticket)
    }

    fn ring_doorbell(&mut self) {
        self.engine.ring_doorbell();
    }

    fn poll(
        &mut self,
        now: Instant,
        first: usize,
        cpu: &mut CpuEngine,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        self.rename(&mut completions[first..]);
        let more = self.engine.poll(now, &mut self.completions);
        self.take_completions(cpu, completions) | more
    }

    fn holds(&self, channel: u32) -> bool {
        matches!(self.jobs.get(channel as usize), Some(Some(_)))
    }

    fn cpu_ticket(&self, ticket: Ticket) -> Option<Option<Ticket>> {
        self.job(ticket).map(|job| match job.engine {
            JobEngine::Cpu(own) => Some(own),
            JobEngine::Device(_) => None,
        })
    }

    fn watermark(&self, ticket: Ticket) -> Option<Watermark> {
        match self.job(ticket)? {
            Job { engine: JobEngine::Device(own), is_bound: true, descriptor, .. }
                if IN_ORDER.contains(descriptor.operation().kind()) =>
            {
                self.engine.watermark(*own)
            }
            _ => None,
        }
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        match self.job(ticket).map(|job| job.engine) {
            Some(JobEngine::Device(own)) => self.engine.bytes_done(own),
            Some(JobEngine::Cpu(_)) | None => 0,
        }
    }

    fn cancel(&mut self, ticket: Ticket, cpu: &mut CpuEngine) -> bool {
        let slot = self.jobs.get_mut(ticket.channel as usize).and_then(Option::as_mut);
        let Some(job) = slot.filter(|job| job.ticket == ticket) else { return false };
        job.cancelled = true;
        match job.engine {
            JobEngine::Device(own) => self.engine.cancel(own),
            JobEngine::Cpu(own) => cpu.cancel(own),
        }
        true
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        self.engine.set_turns(channel, turns);
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        self.engine.is_at_rest(channel)
    }

    fn works_alone(&self) -> bool {
        self.engine.works_alone()
    }
}

impl<E: Engine> AttachedDevice<E> {
    /// A device for transfers of at least `shortest_bytes`, beside a CPU engine of so many channels. If `asks`, it asks for memory to be
    /// registered when a transfer first uses it.
    pub(super) fn new(engine: E, channels: u32, shortest_bytes: u64, asks: bool) -> Self {
        let operations = engine.capabilities().operations;
        Self {
            engine,
            shortest_bytes,
            operations,
            jobs: (0..channels).map(|_| None).collect(),
            requested: BTreeMap::new(),
            wanted: asks.then(Vec::new),
            completions: Vec::new(),
            counts: DeviceCounts::default(),
        }
    }

    /// Whether the device, or the CPU for it, has no job.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }

    fn job(&self, ticket: Ticket) -> Option<&Job> {
        self.jobs.get(ticket.channel as usize)?.as_ref().filter(|job| job.ticket == ticket)
    }

    /// Whether it has all memory of an operation that needs a device.
    pub(super) fn binds(&mut self, operation: &Operation<Region<Mapping>>) -> bool {
        self.operations.contains(operation.kind()) && self.is_registered(operation)
    }

    /// Whether all memory of the operation is registered. Requests the registration of new memory, if the device asks for it.
    fn is_registered(&mut self, operation: &Operation<Region<Mapping>>) -> bool {
        let mut all = true;
        let mut last = None;
        let _ = operation.visit::<Infallible>(|_, region, _| {
            let key = region.memory().key();
            if last.replace(key) == Some(key) {
                return Ok(());
            }
            match (self.requested.entry(key), &mut self.wanted) {
                (Entry::Occupied(entry), _) => all &= entry.get().registered.is_some(),
                (Entry::Vacant(place), Some(wanted)) => {
                    let mapping = region.memory().clone();
                    wanted.push(mapping.clone());
                    place.insert(Requested { _mapping: mapping, registered: None });
                    all = false;
                }
                (Entry::Vacant(_), None) => all = false,
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
            // A device that ends a transfer as cancelled although nobody asked has failed it.
            let is_final = match outcome.result {
                Ok(()) | Err(Failure::ChannelFaulted) => true,
                Err(_) => job.cancelled || job.is_bound,
            };
            if !is_final && let Some(own) = cpu.start(job.descriptor.clone()) {
                job.engine = JobEngine::Cpu(own);
                self.counts.redone += 1;
                repeats = true;
                continue;
            }
            let mut outcome = outcome;
            outcome.result = outcome.result.map_err(|failure| match failure {
                Failure::ChannelFaulted => failure,
                // Only the cancel kept the CPU from repeating it, so that is why it failed.
                _ if job.cancelled => Failure::Cancelled,
                Failure::Cancelled => Failure::EngineReset,
                other => other,
            });
            self.counts.transfers += 1;
            self.counts.bytes += outcome.bytes_done;
            completions.push(EngineCompletion { ticket: job.ticket, outcome });
            *slot = None;
        }
        repeats
    }
}

/// Whether an operand lies in memory that the CPU does not reach.
pub(super) fn needs_device(operation: &Operation<Region<Mapping>>) -> bool {
    operation.has_operand(|region| region.memory().is_elsewhere())
}

/// Whether the operation provably writes nothing that it reads.
fn is_repeatable(operation: &Operation<Region<Mapping>>) -> bool {
    if let Operation::ScatterGather { lists } = operation {
        return !touch(lists, Mapping::key);
    }
    let mut read = Vec::new();
    let mut written = Vec::new();
    let ranges = operation.visit(|side, region, reach| {
        let (first, length) = match reach {
            Reach::Bytes(length) => (0, length),
            Reach::Walk(plane, count) => match plane.extent(&count) {
                Ok(Some(extent)) => (extent.first, extent.length),
                Ok(None) => (0, 0),
                Err(_) => return Err(()),
            },
        };
        let begin = region.offset() + first;
        let ranges = if side == Side::Source { &mut read } else { &mut written };
        ranges.push((region.memory().key(), begin, begin + length));
        Ok(())
    });
    let is_apart = |(memory, begin, end): &(usize, u64, u64)| {
        written.iter().all(|(other, first, last)| memory != other || end <= first || last <= begin)
    };
    ranges.is_ok() && read.iter().all(is_apart)
}
