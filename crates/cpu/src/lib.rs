//! The CPU engine: a worker moves the bytes itself, on the thread that polls it.
//!
//! ```text
//! post ──► channel: Job { descriptor, done } ──ring_doorbell──► started
//! perform ──► a short one, at once
//! poll ──► each started job, in turn: one chunk ──progress──► kernels, under bus_error::guarded
//!              all done ──► Ok        cancelled ──► Err(Cancelled), before the next chunk
//!              memory failed ──► Err(MemoryFault), with the bytes before that chunk
//! ```
//!
//! A channel holds one descriptor. Every poll gives each started job at most one chunk, so that a long copy delays
//! the others by one chunk each round, and so does what touches more than a copy: its chunk is shorter. The engine starts no thread, allocates nothing after [`CpuEngine::new`] and
//! does not sleep.

mod blocks;
mod choice;
mod kernels;
mod kernels2d;
pub mod level;
pub mod measure;
mod plane;
mod progress;
mod tiling;
pub mod tuning;

pub use kernels::{slices, team};

use std::borrow::Borrow;
use std::sync::Arc;

use kernels::team::CopyTeam;
use memferry_clock::Instant;
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Confined, Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Operation,
    Operations, Outcome, Refused, Region, Side, Ticket, Watermark,
};
use progress::{Means, State};

/// Bytes a copy moves per poll unless the service chooses otherwise; what has more operands visits fewer, so that it touches no more.
///
/// Measured with glibc's `memmove`: chunks of 64 to 512 KiB lose nothing against one long copy of 1 MiB or 64 MiB.
pub const DEFAULT_CHUNK_BYTES: u64 = 256 << 10;

/// Bytes up to which a transfer is done at once, on the thread that submits it to the path.
///
/// The worker holds the capability table meanwhile: a copy of this much takes less than a microsecond even from cold memory, and what
/// has [`IMMEDIATE_OPERANDS`] sources a few.
const IMMEDIATE_BYTES: u64 = 1024;
/// What is short is done whole, however many operands it has: a part of it would have to be begun again.
const IMMEDIATE: Means<'static> = Means { chunk_bytes: u64::MAX, team: None, for_others: false };
/// Bytes of the largest tile of a picture that is turned by a quarter: at least one is moved at a time.
const TILE_BYTES: u64 = (kernels2d::WIDTH_BYTES * kernels2d::DEPTH_BYTES) as u64;
/// Segments and sources up to which one is.
const IMMEDIATE_OPERANDS: usize = 8;

pub const LONGEST_BYTES: u64 = 1 << 40;

/// Copy workers on the calling thread.
///
/// ```
/// use memferry_clock::Instant;
/// use memferry_cpu::{CpuEngine, DEFAULT_CHUNK_BYTES};
/// use memferry_shm::mapping::Mapping;
/// use memferry_transfer::{Descriptor, Engine, Operation, Region};
///
/// let mut engine = CpuEngine::new(1, DEFAULT_CHUNK_BYTES);
/// let (source, destination) = (Mapping::owned(vec![7; 64]), Mapping::owned(vec![0; 64]));
/// let operation = Operation::Copy {
///     source: Region::new(source, 0, 64).unwrap(),
///     destination: Region::new(destination.clone(), 0, 64).unwrap(),
///     length: 64,
/// };
/// let ticket = engine.post(Descriptor::new(0, operation.clone())?).unwrap();
/// let refused = engine.post(Descriptor::new(0, operation)?).unwrap_err();
/// assert_eq!(refused.reason.to_string(), "engine channel 0 is busy");
///
/// engine.ring_doorbell();
/// let mut completions = Vec::new();
/// engine.poll(Instant::ORIGIN, &mut completions);
/// assert_eq!((completions[0].ticket, completions[0].outcome.bytes_done), (ticket, 64));
/// # Ok::<(), memferry_transfer::engine::LeavesRegion>(())
/// ```
#[derive(Debug)]
pub struct CpuEngine {
    channels: Vec<Channel>,
    /// Channels that hold a job, oldest post first: idle ones cost a poll nothing.
    busy: Vec<u32>,
    /// How many of them, from the end, were posted since the doorbell.
    posted: usize,
    chunk_bytes: u64,
    team: Option<Arc<CopyTeam>>,
    for_others: bool,
}

#[derive(Debug)]
struct Channel {
    /// Of the newest post.
    serial: u32,
    job: Option<Job>,
    /// Chunks of it that a poll moves.
    turns: u32,
}

#[derive(Debug)]
struct Job {
    descriptor: Descriptor<Mapping>,
    state: State,
    /// The doorbell was rung.
    started: bool,
    cancelled: bool,
}

impl CpuEngine {
    /// An engine of `channels` channels that moves at most `chunk_bytes` (at least 1) for a job in one poll; as much as that of an
    /// operation that touches more than two bytes for each it visits.
    ///
    /// It survives memory that fails under it only in a process that called [`memferry_shm::bus_error::install`];
    /// this function leaves signal handlers alone.
    pub fn new(channels: u32, chunk_bytes: u64) -> Self {
        let busy = Vec::with_capacity(channels as usize);
        let channels = (0..channels).map(|_| Channel { serial: 0, job: None, turns: 1 }).collect();
        Self { channels, busy, posted: 0, chunk_bytes: chunk_bytes.max(1), team: None, for_others: false }
    }

    /// The same engine, whose long copies are shared with whoever of `team` has nothing to do: then a poll moves
    /// `chunk_bytes` for each that shares.
    pub fn with_team(mut self, team: Arc<CopyTeam>) -> Self {
        self.team = Some(team);
        self
    }

    /// The same engine, for a thread whose core is not that of who reads the copies: from some size on they go past its caches
    /// even where the destination is near. A line that was modified in another core's cache takes longer to read than memory.
    pub fn for_other_cores(mut self) -> Self {
        self.for_others = true;
        self
    }

    /// Whether no channel holds a descriptor.
    pub fn is_idle(&self) -> bool {
        self.busy.is_empty()
    }

    /// Posts and starts one descriptor at once, whatever else was posted and waits for its doorbell; `None` when it is refused.
    pub fn start(&mut self, descriptor: Descriptor<Mapping>) -> Option<Ticket> {
        let ticket = self.post(descriptor).ok()?;
        self.busy.pop();
        self.posted -= 1;
        self.busy.insert(self.busy.len() - self.posted, ticket.channel);
        if let Some(job) = &mut self.channels[ticket.channel as usize].job {
            job.started = true;
        }
        Some(ticket)
    }

    /// Why this engine will not take the descriptor.
    pub fn refusal(&self, descriptor: &Descriptor<Mapping>) -> Option<RefusalReason> {
        let channel = descriptor.channel();
        match self.channels.get(channel as usize) {
            None => Some(RefusalReason::NoSuchChannel(channel)),
            Some(Channel { job: Some(_), .. }) => Some(RefusalReason::Busy(channel)),
            Some(_) if !performs(descriptor.operation()) => Some(RefusalReason::Unsupported),
            Some(_) => None,
        }
    }
}

impl Engine for CpuEngine {
    type Memory = Mapping;

    fn capabilities(&self) -> EngineCapabilities {
        let sharing = self.team.as_ref().map_or(0, |team| team.members());
        EngineCapabilities {
            kind: EngineKind::Cpu,
            channels: self.channels.len() as u32,
            longest_bytes: LONGEST_BYTES,
            preemption_bytes: Some(self.chunk_bytes.saturating_mul(1 + sharing as u64).max(TILE_BYTES)),
            overlapping_copy: true,
            aligned_pixels: false,
            operations: Operations::OF_MEMORY,
            immediate_bytes: IMMEDIATE_BYTES,
        }
    }

    fn post(&mut self, descriptor: Descriptor<Mapping>) -> Result<Ticket, Refused<Descriptor<Mapping>>> {
        if let Some(reason) = self.refusal(&descriptor) {
            return Err(Refused { descriptor, reason });
        }
        let number = descriptor.channel();
        let channel = &mut self.channels[number as usize];
        channel.serial = channel.serial.wrapping_add(1);
        channel.job = Some(Job { descriptor, state: State::default(), started: false, cancelled: false });
        self.busy.push(number);
        self.posted += 1;
        Ok(Ticket { channel: number, serial: channel.serial })
    }

    fn ring_doorbell(&mut self) {
        let posted = self.busy.len() - std::mem::take(&mut self.posted);
        for number in &self.busy[posted..] {
            if let Some(job) = &mut self.channels[*number as usize].job {
                job.started = true;
            }
        }
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        let mut active = false;
        let mut index = 0;
        let team = self.team.as_deref();
        let for_others = self.for_others;
        let means = Means { chunk_bytes: self.chunk_bytes, team, for_others };
        let mut first_unstarted = self.busy.len() - self.posted;
        while let Some(number) = self.busy.get(index).copied() {
            let channel = &mut self.channels[number as usize];
            let serial = channel.serial;
            let Some(outcome) = channel.step(means) else {
                active |= index < first_unstarted && channel.turns > 0;
                index += 1;
                continue;
            };
            self.busy.remove(index);
            if index < first_unstarted {
                first_unstarted -= 1;
            } else {
                self.posted -= 1;
            }
            let ticket = Ticket { channel: number, serial };
            completions.push(EngineCompletion { ticket, outcome });
        }
        active
    }

    #[inline]
    fn perform(&mut self, confined: &Confined<'_, &Mapping>) -> Option<Outcome> {
        let operation = confined.operation();
        if let Operation::Nop = operation {
            return Some(Outcome { result: Ok(()), bytes_done: 0, value: 0, engine: EngineKind::Cpu });
        }
        if !is_short(operation) || !performs(operation) {
            return None;
        }
        let mut state = State::default();
        let result = match progress::advance(operation, confined.hint(), &mut state, IMMEDIATE) {
            Ok(true) => Ok(()),
            Ok(false) => return None,
            Err(failure) => Err(failure),
        };
        Some(outcome(result, &state))
    }

    fn watermark(&self, ticket: Ticket) -> Option<Watermark> {
        let channel = self.channels.get(ticket.channel as usize)?;
        let job = channel.job.as_ref().filter(|_| channel.serial == ticket.serial)?;
        progress::watermark(job.descriptor.operation(), job.state.done)
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        let channel =
            self.channels.get(ticket.channel as usize).filter(|channel| channel.serial == ticket.serial);
        channel.and_then(|channel| channel.job.as_ref()).map_or(0, |job| job.state.done)
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(channel) = self.channels.get_mut(channel as usize) {
            channel.turns = turns;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        // Bytes move only within a poll.
        self.channels.get(channel as usize).is_none_or(|channel| channel.job.is_none() || channel.turns == 0)
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(channel) = self.channels.get_mut(ticket.channel as usize)
            && channel.serial == ticket.serial
            && let Some(job) = &mut channel.job
        {
            job.cancelled = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }
}

impl Channel {
    /// Moves the chunks of the job whose turn it is. Returns the outcome when the job ended; the job is dropped before that, because
    /// its memory may be given back once the completion is seen.
    fn step(&mut self, means: Means<'_>) -> Option<Outcome> {
        let job = self.job.as_mut()?;
        let result = job.advance(means, self.turns)?;
        let outcome = outcome(result, &job.state);
        self.job = None;
        Some(outcome)
    }
}

impl Job {
    /// Moves up to `turns` chunks. Returns the result when the job is over.
    fn advance(&mut self, means: Means<'_>, turns: u32) -> Option<Result<(), Failure>> {
        if self.cancelled {
            return Some(Err(Failure::Cancelled));
        }
        if !self.started {
            return None;
        }
        let operation = self.descriptor.operation();
        let hint = self.descriptor.hint();
        for _ in 0..turns {
            match progress::advance(operation, hint, &mut self.state, means) {
                Ok(false) => {}
                Ok(true) => return Some(Ok(())),
                Err(failure) => return Some(Err(failure)),
            }
        }
        None
    }
}

/// Bytes done at a time where nobody waits for a turn: each time, who shares has to be told.
const WHOLE_CHUNK_BYTES: u64 = 4 << 20;

/// Does the whole of an operation on the calling thread, together with whoever of `team` has nothing to do; `None` when this
/// engine does not perform it.
pub fn perform_whole<M: Borrow<Mapping>>(
    confined: &Confined<'_, M>,
    team: Option<&CopyTeam>,
) -> Option<Outcome> {
    let means = Means { chunk_bytes: WHOLE_CHUNK_BYTES, team, for_others: false };
    let operation = confined.operation();
    if !performs(operation) {
        return None;
    }
    let mut state = State::default();
    let result = loop {
        match progress::advance(operation, confined.hint(), &mut state, means) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(failure) => break Err(failure),
        }
    };
    Some(outcome(result, &state))
}

#[inline]
fn outcome(result: Result<(), Failure>, state: &State) -> Outcome {
    Outcome { result, bytes_done: state.done, value: state.value, engine: EngineKind::Cpu }
}

/// Whether the operation is announced and short enough, and its destinations may be written.
#[inline]
fn performs<M: Borrow<Mapping>>(operation: &Operation<Region<M>>) -> bool {
    let writable = operation.visit(|side, region, _| {
        let writable = side == Side::Source || region.memory().borrow().access() == Access::ReadWrite;
        if writable { Ok(()) } else { Err(()) }
    });
    let announced = Operations::OF_MEMORY.contains(operation.kind());
    writable.is_ok() && announced && operation.total_bytes() <= LONGEST_BYTES
}

/// Whether the operation takes no time worth speaking of. Pixels may lie in pages of their own, so 2-D never does.
#[inline]
fn is_short<M>(operation: &Operation<Region<M>>) -> bool {
    let few = match operation {
        Operation::Copy2d { .. } | Operation::Fill2d { .. } => false,
        Operation::ScatterGather { lists } => {
            lists.source.len() + lists.destination.len() <= IMMEDIATE_OPERANDS
        }
        Operation::Xor { sources, .. } => sources.len() <= IMMEDIATE_OPERANDS,
        _ => true,
    };
    few && operation.total_bytes() <= IMMEDIATE_BYTES
}
