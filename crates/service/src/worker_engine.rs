//! The engine of a worker: the CPU, and optionally devices for long transfers: the Linux module, and engine processes.
//!
//! ```text
//! post ─┬─ memory of an engine process ─► that process, or no engine at all
//!       ├─ supported by a device, long, memory registered ─► device ─┬─► EngineCompletion
//!       └─ else ─► CPU ◄──── the device failed: repeat all of it ◄───┘
//!           └─ unregistered memory ─► take_wanted ─► the owner registers it ─► registered
//! ```
//!
//! Device failures are retried on the CPU. Therefore devices get only transfers that can be repeated: those that do not write what they
//! read. Memory is registered with the module when a long transfer first uses it, and not on this thread, because pinning takes as long
//! as copying; until then the CPU moves the bytes. Engine processes get their memory when it is registered with the service. Without
//! devices this is the CPU engine.

mod attached;

use std::sync::Arc;

use memferry_clock::Instant;
use memferry_cpu::CpuEngine;
use memferry_external::{ExternalEngine, ExternalFrame, Fault, Lost};
use memferry_shm::mapping::Mapping;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Confined, Descriptor, Engine, EngineCapabilities, EngineCompletion, Operation, Outcome, Places, Refused,
    Region, Ticket, Watermark,
};

use crate::bells::Bell;
use crate::engine_id::EngineId;
pub use attached::DeviceCounts;
use attached::{Attached, AttachedDevice, Requested, needs_device};

/// A CPU engine, optionally with devices beside it.
pub struct WorkerEngine<E: Engine> {
    cpu: CpuEngine,
    device: Option<AttachedDevice<E>>,
    externals: Vec<External>,
    new_frames: Option<Arc<dyn NewFrames>>,
}

/// Memory, and as which frame of its own an engine process has it.
pub(crate) type EngineFrames = Vec<(Mapping, ExternalFrame)>;

/// Where frames are that engine processes have mapped, and of which the worker does not know yet.
pub(crate) trait NewFrames: Send + Sync {
    /// Takes those of the engines that the worker knows.
    fn take_known(&self, knows: &dyn Fn(EngineId) -> bool) -> Vec<(EngineId, EngineFrames)>;
}

/// An engine process that a worker gives transfers to.
struct External {
    id: EngineId,
    device: AttachedDevice<ExternalEngine>,
    /// Rings with its completions while the worker sleeps.
    bell: Arc<Bell>,
    is_fault_reported: bool,
    /// What was counted up to the last call of [`WorkerEngine::take_external_counts`].
    taken: DeviceCounts,
    /// Its process has exited.
    is_gone: bool,
}

impl External {
    fn is_finished(&self) -> bool {
        self.is_gone && self.device.is_idle()
    }
}

/// What is left of an engine process, to be dropped by a thread that may block.
pub struct ExternalRemains {
    pub(crate) id: EngineId,
    /// What it did since the last call of [`WorkerEngine::take_external_counts`].
    pub(crate) counts: DeviceCounts,
    /// Path channels that failed with it and are usable again.
    pub(crate) faulted: Vec<u32>,
    _device: AttachedDevice<ExternalEngine>,
    _bell: Arc<Bell>,
}

impl<E: Engine> WorkerEngine<E> {
    /// An engine without devices.
    pub fn new(cpu: CpuEngine) -> Self {
        Self { cpu, device: None, externals: Vec::new(), new_frames: None }
    }

    /// Makes it look for new frames of engine processes before it refuses a request on memory that none seems to have.
    pub(crate) fn with_new_frames(mut self, new_frames: Arc<dyn NewFrames>) -> Self {
        self.new_frames = Some(new_frames);
        self
    }

    /// Adds a device for transfers of at least `shortest_bytes`. It must have at least as many channels as the CPU engine.
    pub fn with_device(mut self, engine: E, shortest_bytes: u64) -> Self {
        let channels = self.cpu.capabilities().channels;
        self.device = Some(AttachedDevice::new(engine, channels, shortest_bytes, true));
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
        let wanted = self.device.as_mut().and_then(|device| device.wanted.as_mut());
        wanted.map_or_else(Vec::new, std::mem::take)
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
        for external in &mut self.externals {
            external.device.requested.remove(&mapping.key());
        }
        self.device.as_mut()?.requested.remove(&mapping.key())?.registered
    }

    /// Adds an engine process for transfers of at least `shortest_bytes`.
    pub(crate) fn add_external(
        &mut self,
        id: EngineId,
        engine: ExternalEngine,
        shortest_bytes: u64,
        bell: Arc<Bell>,
    ) {
        let channels = self.cpu.capabilities().channels;
        let device = AttachedDevice::new(engine, channels, shortest_bytes, false);
        let external = External {
            id,
            device,
            bell,
            is_fault_reported: false,
            taken: DeviceCounts::default(),
            is_gone: false,
        };
        self.externals.push(external);
    }

    /// Reports that an engine process has mapped memory.
    pub(crate) fn external_mapped(&mut self, id: EngineId, mapping: &Mapping, frame: ExternalFrame) {
        if let Some(external) = self.externals.iter_mut().find(|external| external.id == id) {
            let entry = Requested { _mapping: mapping.clone(), registered: Some(frame) };
            external.device.requested.insert(mapping.key(), entry);
        }
    }

    /// Takes notice of frames that engine processes mapped since the worker's turn began; returns whether there are any. A client may use
    /// a frame as soon as the control side has answered it.
    fn take_new_frames(&mut self) -> bool {
        let Some(new_frames) = &self.new_frames else { return false };
        let externals = &self.externals;
        let new = new_frames.take_known(&|id| externals.iter().any(|external| external.id == id));
        for (id, frames) in &new {
            frames.iter().for_each(|(mapping, frame)| self.external_mapped(*id, mapping, *frame));
        }
        !new.is_empty()
    }

    /// The places of the engine process that alone can do the operation, if there is one.
    fn bound_places(&mut self, operation: &Operation<Region<Mapping>>) -> Option<Places> {
        loop {
            let places = self.externals.iter_mut().find_map(|External { id, device, .. }| {
                let most = device.engine.limit()?;
                device.binds(operation).then_some(Places { group: id.group(), most })
            });
            if places.is_some() || !self.take_new_frames() {
                return places;
            }
        }
    }

    /// Posts what only an engine process can do, if one has all its memory.
    fn post_bound(&mut self, descriptor: &Descriptor<Mapping>) -> Option<Ticket> {
        loop {
            let posted = self.externals.iter_mut().find_map(|external| external.device.post(descriptor));
            if posted.is_some() || !self.take_new_frames() {
                return posted;
            }
        }
    }

    /// Ends the jobs of a lost engine process; the next poll repeats them or reports their ends.
    pub(crate) fn external_lost(&mut self, id: EngineId, how: Lost) {
        if let Some(external) = self.externals.iter_mut().find(|external| external.id == id) {
            external.device.engine.end(how);
            external.is_gone |= how == Lost::Gone;
        }
    }

    /// Ends the jobs of all engine processes, because the worker ends. Their memory may still be touched.
    pub(crate) fn give_up_externals(&mut self) {
        for external in self.externals.iter_mut().filter(|external| !external.is_gone) {
            external.device.engine.end(Lost::Lingering);
        }
    }

    /// Takes engine processes that are gone and have no job any more.
    pub(crate) fn take_gone_externals(&mut self) -> Vec<ExternalRemains> {
        let gone = self.externals.extract_if(.., |external| external.is_finished());
        let remains = gone.map(|external| ExternalRemains {
            id: external.id,
            counts: external.device.counts.since(external.taken),
            faulted: external.device.engine.faulted().to_vec(),
            _device: external.device,
            _bell: external.bell,
        });
        remains.collect()
    }

    /// Faults of engine processes that were not reported before.
    pub(crate) fn take_faults(&mut self) -> Vec<(EngineId, Fault)> {
        let unreported = self.externals.iter_mut().filter(|external| !external.is_fault_reported);
        let faults = unreported.filter_map(|external| {
            let fault = external.device.engine.fault()?;
            external.is_fault_reported = true;
            Some((external.id, fault))
        });
        faults.collect()
    }

    /// Requests of at most so many bytes are done at once: those of the CPU that no engine process gets.
    pub(crate) fn immediate_bytes(&self) -> u64 {
        let shortest = self.externals.iter().map(|external| external.device.shortest_bytes);
        let cpu = self.cpu.capabilities().immediate_bytes;
        shortest.fold(cpu, |limit, shortest| limit.min(shortest.saturating_sub(1)))
    }

    /// Whether there are engine processes.
    #[inline]
    pub(crate) fn has_externals(&self) -> bool {
        !self.externals.is_empty()
    }

    /// Whether a completion of an engine process waits.
    #[inline]
    pub(crate) fn externals_have_news(&self) -> bool {
        self.externals.iter().any(|external| external.device.engine.has_news())
    }

    /// Whether an engine process has a job.
    pub(crate) fn externals_are_busy(&self) -> bool {
        self.externals.iter().any(|external| external.device.engine.is_busy())
    }

    /// Asks engine processes for a doorbell with their next completion (1), or no longer (0).
    pub(crate) fn set_externals_parked(&self, value: u64) {
        self.externals.iter().for_each(|external| external.device.engine.set_parked(value));
    }

    /// What rings when an engine process completes a request and the worker sleeps.
    pub(crate) fn external_bells(&self) -> impl Iterator<Item = &Bell> {
        self.externals.iter().map(|external| &*external.bell)
    }

    /// What each engine process has done since the last call.
    pub(crate) fn take_external_counts(&mut self) -> impl Iterator<Item = (EngineId, DeviceCounts)> {
        self.externals.iter_mut().map(|external| {
            let before = std::mem::replace(&mut external.taken, external.device.counts);
            (external.id, external.device.counts.since(before))
        })
    }

    /// All devices: the Linux module first.
    fn devices(&self) -> impl Iterator<Item = &dyn Attached> {
        let device = self.device.iter().map(|device| device as &dyn Attached);
        device.chain(self.externals.iter().map(|external| &external.device as &dyn Attached))
    }

    /// Polls the devices, after the CPU has added its completions from `first` on.
    #[inline]
    fn poll_devices(&mut self, now: Instant, first: usize, completions: &mut Vec<EngineCompletion>) -> bool {
        let Self { cpu, device, externals, .. } = self;
        let mut more = false;
        if let Some(device) = device {
            more |= device.poll(now, first, cpu, completions);
        }
        for external in externals {
            more |= external.device.poll(now, first, cpu, completions);
        }
        more
    }

    /// The CPU engine's ticket for a ticket of the caller, if the CPU runs the transfer.
    fn cpu_ticket(&self, ticket: Ticket) -> Option<Ticket> {
        self.devices().find_map(|device| device.cpu_ticket(ticket)).unwrap_or(Some(ticket))
    }
}

impl<E: Engine> Engine for WorkerEngine<E> {
    type Memory = Mapping;

    fn capabilities(&self) -> EngineCapabilities {
        self.cpu.capabilities()
    }

    fn post(&mut self, descriptor: Descriptor<Mapping>) -> Result<Ticket, Refused<Descriptor<Mapping>>> {
        let channel = descriptor.channel();
        if self.devices().any(|device| device.holds(channel)) {
            return Err(Refused { descriptor, reason: RefusalReason::Busy(channel) });
        }
        // Without engine processes such memory is left only until it is revoked, and the CPU refuses it.
        if self.has_externals() && needs_device(descriptor.operation()) {
            let posted = self.post_bound(&descriptor);
            return posted.ok_or(Refused { descriptor, reason: RefusalReason::Unsupported });
        }
        if self.cpu.refusal(&descriptor).is_none() {
            let device = self.device.as_mut().and_then(|device| device.post(&descriptor));
            let mut externals = self.externals.iter_mut();
            let posted = device.or_else(|| externals.find_map(|external| external.device.post(&descriptor)));
            if let Some(ticket) = posted {
                return Ok(ticket);
            }
        }
        self.cpu.post(descriptor)
    }

    /// Requests that wait for an engine process hold no more channels than it has places for: it may be slow for reasons of its own,
    /// and other requests need channels, too.
    fn places(&mut self, operation: &Operation<Region<Mapping>>) -> Option<Places> {
        if !self.has_externals() || !needs_device(operation) {
            return None;
        }
        self.bound_places(operation)
    }

    fn ring_doorbell(&mut self) {
        self.cpu.ring_doorbell();
        if let Some(device) = &mut self.device {
            device.ring_doorbell();
        }
        self.externals.iter_mut().for_each(|external| external.device.ring_doorbell());
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        let first = completions.len();
        let more = self.cpu.poll(now, completions);
        self.poll_devices(now, first, completions) | more
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
        self.poll_devices(now, first, completions) | more
    }

    #[inline]
    fn perform(&mut self, operation: &Confined<'_, &Mapping>) -> Option<Outcome> {
        self.cpu.perform(operation)
    }

    /// Not of a device's transfers that may be repeated from the start, after a client has used what was in place.
    fn watermark(&self, ticket: Ticket) -> Option<Watermark> {
        match self.cpu_ticket(ticket) {
            Some(own) => self.cpu.watermark(own),
            None => self.devices().find_map(|device| device.watermark(ticket)),
        }
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        match self.cpu_ticket(ticket) {
            Some(own) => self.cpu.bytes_done(own),
            None => self.devices().map(|device| device.bytes_done(ticket)).max().unwrap_or(0),
        }
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        self.cpu.set_turns(channel, turns);
        if let Some(device) = &mut self.device {
            device.set_turns(channel, turns);
        }
        self.externals.iter_mut().for_each(|external| external.device.set_turns(channel, turns));
    }

    fn round_is_over(&self) -> bool {
        self.cpu.round_is_over()
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        self.cpu.is_at_rest(channel) && self.devices().all(|device| device.is_at_rest(channel))
    }

    fn works_alone(&self) -> bool {
        let mut devices = self.devices().peekable();
        self.cpu.is_idle() && devices.peek().is_some() && devices.all(|device| device.works_alone())
    }

    fn cancel(&mut self, ticket: Ticket) {
        let Self { cpu, device, externals, .. } = self;
        let is_devices = device.as_mut().is_some_and(|device| device.cancel(ticket, cpu));
        if !is_devices && !externals.iter_mut().any(|external| external.device.cancel(ticket, cpu)) {
            cpu.cancel(ticket);
        }
    }

    /// The module needs no wake-up by time: its descriptor becomes readable. Engine processes are looked at for their progress.
    fn next_wake(&self) -> Option<Instant> {
        let externals = self.externals.iter().filter_map(|external| external.device.engine.next_wake());
        externals.chain(self.cpu.next_wake()).min()
    }
}

#[cfg(test)]
pub(crate) mod tests;
