//! A fake engine in virtual time over heap memory, for deterministic tests of the layers above engines.
//!
//! ```text
//! post ─► doorbell ─► first poll(now) ─► runs until now + latency + bytes * rate ─► poll: oracle moves bytes, completion
//!                                             └─ reported by next_wake         Fault: fails, or hangs until reset
//! ```
//!
//! Channels run in parallel without slowing each other. Bytes move all at once in the poll that reports the end, by the
//! [`oracle`]; the same calls give the same completions. It models no particular device; its timing has no meaning.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_clock::Instant;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Memory, Operation,
    Operations, Outcome, Places, Refused, Region, Ticket,
};

use crate::oracle::{self, Place};

/// Heap memory. Clones share the content; only clones compare equal.
#[derive(Clone)]
pub struct SimMemory(Arc<Mutex<Vec<u8>>>);

impl SimMemory {
    /// Memory with the content `bytes`; its length is fixed.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(bytes)))
    }

    /// A copy of the content.
    pub fn contents(&self) -> Vec<u8> {
        self.lock().clone()
    }

    /// Overwrites the bytes starting at `offset`.
    ///
    /// # Panics
    /// If they exceed the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.lock()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Ignores poisoning: bytes stay valid if a thread panics while holding the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for SimMemory {
    fn length(&self) -> u64 {
        self.lock().len() as u64
    }
}

impl PartialEq for SimMemory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SimMemory {}

impl fmt::Debug for SimMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimMemory({} bytes)", self.length())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Picoseconds from the start to the first byte.
    pub latency_ps: u64,
    pub ps_per_byte: u64,
    /// Granularity of cancels in bytes; `None` if a started transfer cannot be cancelled.
    pub preemption_bytes: Option<u64>,
}

/// A channel's fault; it affects all transfers until [`FakeEngine::reset`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Transfers take their normal time, move some bytes, then fail.
    Fails {
        failure: Failure,
        /// Bytes moved before the failure (rounded to whole pixels, at most the transfer's length).
        after_bytes: u64,
    },
    /// Transfers never end, even if cancelled.
    Hangs,
}

/// An engine in virtual time.
///
/// ```
/// use memferry_clock::Instant;
/// use memferry_conformance::{FakeEngine, SimMemory, Timing};
/// use memferry_transfer::{Descriptor, Engine, Operation, Pattern, Region};
///
/// let timing = Timing { latency_ps: 500, ps_per_byte: 10, preemption_bytes: None };
/// let mut engine = FakeEngine::new(1, timing);
/// let memory = SimMemory::new(vec![0; 4]);
/// let destination = Region::new(memory.clone(), 0, 4).unwrap();
/// let fill = Operation::Fill { destination, length: 4, pattern: Pattern::Byte(7) };
/// engine.post(Descriptor::new(0, fill)?).unwrap();
/// engine.ring_doorbell();
///
/// let mut completions = Vec::new();
/// engine.poll(Instant::ORIGIN, &mut completions);
/// assert!(completions.is_empty());
/// let end = engine.next_wake().unwrap();
/// assert_eq!(end, Instant::from_picoseconds(540));
/// engine.poll(end, &mut completions);
/// assert_eq!((completions[0].outcome.bytes_done, memory.contents()), (4, vec![7; 4]));
/// # Ok::<(), memferry_transfer::engine::LeavesRegion>(())
/// ```
#[derive(Debug)]
pub struct FakeEngine {
    channels: Vec<Channel>,
    timing: Timing,
    now: Instant,
    /// Operations of at least so many bytes need one of these places.
    places: Option<(u64, Places)>,
}

#[derive(Debug, Default)]
struct Channel {
    serial: u32,
    job: Option<Job>,
    fault: Option<Fault>,
    /// Whether transfers that are not running may not start.
    suspended: bool,
}

#[derive(Debug)]
struct Job {
    descriptor: Descriptor<SimMemory>,
    phase: Phase,
    /// Bytes after which a cancelled transfer stops.
    cut: Option<u64>,
    reset: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Posted,
    Rung,
    Running { since: Instant },
}

/// How and when a job ends.
struct End {
    at: Instant,
    result: Result<(), Failure>,
    bytes: u64,
}

impl FakeEngine {
    /// Maximum transfer in bytes; bounded because the oracle visits each pixel.
    pub const LONGEST_BYTES: u64 = 1 << 32;

    /// An engine with `channels` channels and no faults.
    pub fn new(channels: u32, timing: Timing) -> Self {
        let channels = (0..channels).map(|_| Channel::default()).collect();
        Self { channels, timing, now: Instant::ORIGIN, places: None }
    }

    /// The same engine with few places for operations of at least `bytes`.
    pub fn with_places(self, bytes: u64, places: Places) -> Self {
        Self { places: Some((bytes, places)), ..self }
    }

    /// Injects a fault into `channel`; it also affects a running transfer.
    ///
    /// # Panics
    /// If the channel does not exist.
    pub fn inject(&mut self, channel: u32, fault: Fault) {
        self.channels[channel as usize].fault = Some(fault);
    }

    /// Removes the fault of `channel` and ends its transfer: the next poll reports `ChannelFaulted` with no bytes done.
    ///
    /// # Panics
    /// If the channel does not exist.
    pub fn reset(&mut self, channel: u32) {
        let channel = &mut self.channels[channel as usize];
        channel.fault = None;
        if let Some(job) = &mut channel.job {
            job.reset = true;
        }
    }

    fn refusal(&self, descriptor: &Descriptor<SimMemory>) -> Option<RefusalReason> {
        let channel = descriptor.channel();
        match self.channels.get(channel as usize) {
            None => Some(RefusalReason::NoSuchChannel(channel)),
            Some(Channel { job: Some(_), .. }) => Some(RefusalReason::Busy(channel)),
            Some(_)
                if descriptor.operation().total_bytes() > Self::LONGEST_BYTES
                    || !Operations::OF_MEMORY.contains(descriptor.operation().kind()) =>
            {
                Some(RefusalReason::Unsupported)
            }
            Some(_) => None,
        }
    }
}

impl Engine for FakeEngine {
    type Memory = SimMemory;

    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            kind: EngineKind::Simulated,
            channels: self.channels.len() as u32,
            longest_bytes: Self::LONGEST_BYTES,
            preemption_bytes: self.timing.preemption_bytes,
            overlapping_copy: true,
            aligned_pixels: false,
            operations: Operations::OF_MEMORY,
            immediate_bytes: 0,
        }
    }

    fn post(&mut self, descriptor: Descriptor<SimMemory>) -> Result<Ticket, Refused<Descriptor<SimMemory>>> {
        if let Some(reason) = self.refusal(&descriptor) {
            return Err(Refused { descriptor, reason });
        }
        let number = descriptor.channel();
        let channel = &mut self.channels[number as usize];
        channel.serial = channel.serial.wrapping_add(1);
        channel.job = Some(Job { descriptor, phase: Phase::Posted, cut: None, reset: false });
        Ok(Ticket { channel: number, serial: channel.serial })
    }

    fn places(&mut self, operation: &Operation<Region<SimMemory>>) -> Option<Places> {
        let (bytes, places) = self.places?;
        (operation.total_bytes() >= bytes).then_some(places)
    }

    fn ring_doorbell(&mut self) {
        for job in self.channels.iter_mut().filter_map(|channel| channel.job.as_mut()) {
            if job.phase == Phase::Posted {
                job.phase = Phase::Rung;
            }
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.now = self.now.max(now);
        let timing = self.timing;
        for (number, channel) in (0..).zip(&mut self.channels) {
            let Some(job) = &mut channel.job else { continue };
            if job.phase == Phase::Rung && job.cut.is_none() && !channel.suspended {
                job.phase = Phase::Running { since: self.now };
            }
            let Some(end) = job.end(self.now, &timing, channel.fault) else { continue };
            if end.at <= self.now {
                let (bytes_done, value) = move_bytes(job.descriptor.operation(), end.bytes);
                channel.job = None;
                let ticket = Ticket { channel: number, serial: channel.serial };
                completions.push(EngineCompletion {
                    ticket,
                    outcome: Outcome { result: end.result, bytes_done, value, engine: EngineKind::Simulated },
                });
            }
        }
        false
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(channel) = self.channels.get_mut(channel as usize) {
            channel.suspended = turns == 0;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        let job = self.channels.get(channel as usize).and_then(|channel| channel.job.as_ref());
        job.is_none_or(|job| !matches!(job.phase, Phase::Running { .. }))
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(channel) = self.channels.get_mut(ticket.channel as usize)
            && channel.serial == ticket.serial
            && let Some(job) = &mut channel.job
        {
            job.cancel(self.now, &self.timing);
        }
    }

    /// The earliest end of a transfer; the time of the last poll if something is ready to start.
    fn next_wake(&self) -> Option<Instant> {
        let ends = self.channels.iter().filter_map(|channel| {
            let job = channel.job.as_ref()?;
            let end = job.end(self.now, &self.timing, channel.fault).map(|end| end.at);
            if job.phase == Phase::Rung && !channel.suspended { Some(self.now) } else { end }
        });
        ends.min()
    }
}

impl Job {
    fn cancel(&mut self, now: Instant, timing: &Timing) {
        let done = match self.phase {
            Phase::Posted | Phase::Rung => Some(0),
            Phase::Running { since } => {
                timing.preemption_bytes.map(|chunk| timing.moved(since, now).next_multiple_of(chunk.max(1)))
            }
        };
        self.cut = self.cut.or(done);
    }

    /// How the job will end, as known at `now`; `None` if it will not.
    fn end(&self, now: Instant, timing: &Timing, fault: Option<Fault>) -> Option<End> {
        if self.reset {
            return Some(End { at: now, result: Err(Failure::ChannelFaulted), bytes: 0 });
        }
        let Phase::Running { since } = self.phase else {
            return self.cut.map(|_| End { at: now, result: Err(Failure::Cancelled), bytes: 0 });
        };
        let total = self.descriptor.operation().total_bytes();
        match (fault, self.cut) {
            (Some(Fault::Hangs), _) => None,
            (_, Some(0)) if total > 0 => Some(End { at: now, result: Err(Failure::Cancelled), bytes: 0 }),
            (_, Some(cut)) if cut < total => {
                let at = timing.end_of(since, cut);
                Some(End { at, result: Err(Failure::Cancelled), bytes: cut })
            }
            (Some(Fault::Fails { failure, after_bytes }), _) => {
                let bytes = after_bytes.min(total);
                Some(End { at: timing.end_of(since, total), result: Err(failure), bytes })
            }
            (None, _) => Some(End { at: timing.end_of(since, total), result: Ok(()), bytes: total }),
        }
    }
}

impl Timing {
    /// Time at which a transfer started at `since` has moved `bytes`.
    fn end_of(&self, since: Instant, bytes: u64) -> Instant {
        let moving = u128::from(bytes) * u128::from(self.ps_per_byte);
        since.after_picoseconds(u128::from(self.latency_ps) + moving)
    }

    /// Bytes that a transfer started at `since` has started to move by `now`, ignoring its length.
    fn moved(&self, since: Instant, now: Instant) -> u64 {
        let first = self.end_of(since, 0);
        let moving = now.picoseconds().saturating_sub(first.picoseconds());
        if moving == 0 {
            return 0;
        }
        // The bound prevents overflow when rounding up to a chunk.
        let bytes = moving.div_ceil(u128::from(self.ps_per_byte.max(1)));
        bytes.min(u128::from(FakeEngine::LONGEST_BYTES)) as u64
    }
}

/// Moves the operation's first `bytes` bytes; returns the bytes visited, and the value of the whole operation.
fn move_bytes(operation: &Operation<Region<SimMemory>>, bytes: u64) -> (u64, u64) {
    let mut memories: Vec<SimMemory> = Vec::new();
    let named = oracle::renamed(operation, |region| {
        let memory = memories.iter().position(|memory| memory == region.memory()).unwrap_or_else(|| {
            memories.push(region.memory().clone());
            memories.len() - 1
        });
        Place { memory, offset: region.offset(), length: region.length() }
    });
    // The oracle works on plain vectors, so the bytes are taken out meanwhile. This is invisible as long as no other
    // thread accesses the memory while its engine is polled.
    let mut bytes_of: Vec<_> = memories.iter().map(|memory| std::mem::take(&mut *memory.lock())).collect();
    let value = oracle::value(&named, &bytes_of);
    let visited = oracle::apply_part(&named, &mut bytes_of, bytes);
    for (memory, bytes) in memories.iter().zip(bytes_of) {
        *memory.lock() = bytes;
    }
    let visited = visited.unwrap_or_else(|error| unreachable!("Descriptor::new let through: {error}"));
    (visited, value)
}
