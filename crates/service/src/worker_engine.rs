//! What a worker of the service moves bytes with: its CPU, and beside it a device for what is long.
//!
//! ```text
//! post ─┬─ the device does such, it is long, all its memory is registered ─► device ─┬─► EngineCompletion
//!       └─ else ─► CPU ◄──────────────── the device failed: all of it again ◄────────┘
//!           └─ memory that is not registered yet is wanted: who owns the worker has that done, and tells
//! ```
//!
//! A device takes only what may be done twice, so that no failure of its is a client's: nothing that is read is written. It
//! registers memory when that is first used in a long transfer, and not on this thread, for pinning takes as long as
//! copying; until then the CPU moves it. Without a device this is the CPU engine.

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

/// Set in the serials of what the device has, so that no ticket of a channel is given twice.
const OF_DEVICE: u32 = 1 << 31;

/// What the device has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounts {
    pub transfers: u64,
    /// Destination bytes of them.
    pub bytes: u64,
    /// Transfers it failed at, which the CPU did again.
    pub redone: u64,
}

/// A CPU engine with a device beside it, or without.
pub struct WorkerEngine<E: Engine> {
    cpu: CpuEngine,
    beside: Option<Beside<E>>,
}

struct Beside<E: Engine> {
    engine: E,
    /// Bytes below which the CPU is quicker.
    shortest_bytes: u64,
    operations: Operations,
    /// By channel, what the device has or had.
    jobs: Vec<Option<Job>>,
    /// By the key of the mapping.
    known: BTreeMap<usize, Known<E::Memory>>,
    wanted: Vec<Mapping>,
    completions: Vec<EngineCompletion>,
    counts: DeviceCounts,
}

/// Memory that was asked for.
struct Known<M> {
    /// Its key is nobody else's as long as this is here.
    _mapping: Mapping,
    /// `None` until it is registered, and when it cannot be.
    registered: Option<M>,
}

#[derive(Debug)]
struct Job {
    /// As the caller knows it.
    ticket: Ticket,
    at: At,
    /// For the CPU, should the device fail.
    descriptor: Descriptor<Mapping>,
    cancelled: bool,
}

/// Who has it, under which ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Device(Ticket),
    Cpu(Ticket),
}

impl<E: Engine> WorkerEngine<E> {
    /// Nothing but the CPU.
    pub fn new(cpu: CpuEngine) -> Self {
        Self { cpu, beside: None }
    }

    /// The same with `engine`, which has as many channels, for transfers of `shortest_bytes` and more.
    pub fn with_device(mut self, engine: E, shortest_bytes: u64) -> Self {
        let jobs = (0..self.cpu.capabilities().channels).map(|_| None).collect();
        let operations = engine.capabilities().operations;
        let known = Default::default();
        let wanted = Default::default();
        let completions = Default::default();
        let counts = Default::default();
        self.beside =
            Some(Beside { engine, shortest_bytes, operations, jobs, known, wanted, completions, counts });
        self
    }

    pub fn device(&self) -> Option<&E> {
        self.beside.as_ref().map(|beside| &beside.engine)
    }

    /// What it has done.
    pub fn counts(&self) -> Option<DeviceCounts> {
        self.beside.as_ref().map(|beside| beside.counts)
    }

    /// Memory that is to be registered with the device; the answer is [`registered`](Self::registered).
    pub fn take_wanted(&mut self) -> Vec<Mapping> {
        self.beside.as_mut().map_or_else(Vec::new, |beside| std::mem::take(&mut beside.wanted))
    }

    /// Memory that was wanted is registered. It is given back when it was forgotten meanwhile, to be dropped where that may
    /// take its time.
    pub fn registered(&mut self, mapping: &Mapping, memory: E::Memory) -> Option<E::Memory> {
        match self.beside.as_mut().and_then(|beside| beside.known.get_mut(&mapping.key())) {
            Some(known) => known.registered.replace(memory),
            None => Some(memory),
        }
    }

    /// No transfer will use the memory any more; what it was registered as, to be dropped where that may take its time.
    pub fn forget(&mut self, mapping: &Mapping) -> Option<E::Memory> {
        self.beside.as_mut()?.known.remove(&mapping.key())?.registered
    }

    /// A ticket of the caller as the CPU knows it, when the CPU has it.
    fn cpu_ticket(&self, ticket: Ticket) -> Option<Ticket> {
        match self.beside.as_ref().and_then(|beside| beside.job(ticket)).map(|job| job.at) {
            Some(At::Cpu(own)) => Some(own),
            Some(At::Device(_)) => None,
            None => Some(ticket),
        }
    }
}

impl<E: Engine> Beside<E> {
    fn job(&self, ticket: Ticket) -> Option<&Job> {
        self.jobs.get(ticket.channel as usize)?.as_ref().filter(|job| job.ticket == ticket)
    }

    /// Gives the descriptor to the device, when it is one for it.
    fn post(&mut self, descriptor: &Descriptor<Mapping>) -> Option<Ticket> {
        let operation = descriptor.operation();
        let suits = self.operations.contains(operation.kind())
            && operation.total_bytes() >= self.shortest_bytes.max(1)
            && may_be_done_twice(operation);
        if !suits || !self.knows(operation) {
            return None;
        }
        let named = operation.try_map(|_, region, _| {
            let memory = self.known.get(&region.memory().key()).and_then(|known| known.registered.clone());
            let named = memory.and_then(|memory| Region::new(memory, region.offset(), region.length()));
            named.map(|region| (region, 0)).ok_or(())
        });
        let own = Descriptor::new(descriptor.channel(), named.ok()?).ok()?;
        let at = self.engine.post(own.with_hint(descriptor.hint())).ok()?;
        let ticket = Ticket { serial: at.serial ^ OF_DEVICE, ..at };
        let at = At::Device(at);
        let descriptor = descriptor.clone();
        let cancelled = false;
        *self.jobs.get_mut(ticket.channel as usize)? = Some(Job { ticket, at, descriptor, cancelled });
        Some(ticket)
    }

    /// Whether all memory of the operation is registered; what was never asked for is wanted now.
    fn knows(&mut self, operation: &Operation<Region<Mapping>>) -> bool {
        let mut all = true;
        let _ = operation.visit::<Infallible>(|_, region, _| {
            match self.known.entry(region.memory().key()) {
                Entry::Occupied(known) => all &= known.get().registered.is_some(),
                Entry::Vacant(place) => {
                    let mapping = region.memory().clone();
                    self.wanted.push(mapping.clone());
                    place.insert(Known { _mapping: mapping, registered: None });
                    all = false;
                }
            }
            Ok(())
        });
        all
    }

    /// Gives completions of what the CPU did again the tickets that the caller knows.
    fn rename(&mut self, completions: &mut [EngineCompletion]) {
        for completion in completions {
            if let Some(slot) = self.jobs.get_mut(completion.ticket.channel as usize)
                && let Some(job) = slot.take_if(|job| job.at == At::Cpu(completion.ticket))
            {
                completion.ticket = job.ticket;
            }
        }
    }

    /// Passes on the device's completions. Returns whether the CPU was given something to do again.
    fn take_completions(&mut self, cpu: &mut CpuEngine, completions: &mut Vec<EngineCompletion>) -> bool {
        let mut again = false;
        for EngineCompletion { ticket, outcome } in self.completions.drain(..) {
            let Some(slot) = self.jobs.get_mut(ticket.channel as usize) else { continue };
            let Some(job) = slot.as_mut().filter(|job| job.at == At::Device(ticket)) else { continue };
            let is_over = match outcome.result {
                Ok(()) | Err(Failure::Cancelled | Failure::ChannelFaulted) => true,
                Err(_) => job.cancelled,
            };
            if !is_over && let Some(own) = cpu.start(job.descriptor.clone()) {
                job.at = At::Cpu(own);
                self.counts.redone += 1;
                again = true;
                continue;
            }
            self.counts.transfers += 1;
            self.counts.bytes += outcome.bytes_done;
            completions.push(EngineCompletion { ticket: job.ticket, outcome });
            *slot = None;
        }
        again
    }
}

/// Whether nothing that is read is written, as far as that can be seen.
fn may_be_done_twice(operation: &Operation<Region<Mapping>>) -> bool {
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
        let Some(beside) = &mut self.beside else { return self.cpu.post(descriptor) };
        let channel = descriptor.channel();
        if let Some(Some(_)) = beside.jobs.get(channel as usize) {
            return Err(Refused { descriptor, reason: RefusalReason::Busy(channel) });
        }
        if self.cpu.refusal(&descriptor).is_none()
            && let Some(ticket) = beside.post(&descriptor)
        {
            return Ok(ticket);
        }
        self.cpu.post(descriptor)
    }

    fn ring_doorbell(&mut self) {
        self.cpu.ring_doorbell();
        if let Some(beside) = &mut self.beside {
            beside.engine.ring_doorbell();
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        let first = completions.len();
        let more = self.cpu.poll(now, completions);
        let Some(beside) = &mut self.beside else { return more };
        beside.rename(&mut completions[first..]);
        let of_device = beside.engine.poll(now, &mut beside.completions);
        beside.take_completions(&mut self.cpu, completions) | more | of_device
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
        if let Some(beside) = &mut self.beside {
            beside.engine.set_turns(channel, turns);
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        self.cpu.is_at_rest(channel)
            && self.beside.as_ref().is_none_or(|beside| beside.engine.is_at_rest(channel))
    }

    fn works_alone(&self) -> bool {
        self.cpu.is_idle() && self.beside.as_ref().is_some_and(|beside| beside.engine.works_alone())
    }

    fn cancel(&mut self, ticket: Ticket) {
        let job = self.beside.as_mut().and_then(|beside| {
            let job = beside.jobs.get_mut(ticket.channel as usize)?.as_mut()?;
            (job.ticket == ticket).then_some((job, &mut beside.engine))
        });
        let Some((job, engine)) = job else { return self.cpu.cancel(ticket) };
        job.cancelled = true;
        match job.at {
            At::Device(own) => engine.cancel(own),
            At::Cpu(own) => self.cpu.cancel(own),
        }
    }

    /// Who owns the worker waits for the device's descriptor, not for the time.
    fn next_wake(&self) -> Option<Instant> {
        self.cpu.next_wake()
    }
}

#[cfg(test)]
mod tests;
