//! The CPU engine: copies, fills and checks memory on the thread that polls it.
//!
//! ```text
//! post ──► channel: Job { descriptor, done } ──ring_doorbell──► started
//! perform ──► a short operation, at once
//! poll ──► next started job: one chunk ──progress──► kernels, under bus_error::guarded
//!              all done ──► Ok        cancelled ──► Err(Cancelled), before the next chunk
//!              memory failed ──► Err(MemoryFault), with the bytes before that chunk
//! ```
//!
//! A channel holds one descriptor. A poll takes about as long as one chunk of a copy: it moves one chunk of a long job, or several short
//! jobs. Polls go round the jobs, so a long copy delays the others by one chunk a round, and a caller that looks for new requests
//! between polls finds them after one chunk, however many jobs there are. Operations with more operands than a copy get shorter
//! chunks. The engine starts no thread, does not sleep, and allocates nothing after [`CpuEngine::new`].

mod blocks;
mod choice;
mod grid;
mod history;
mod kernels;
mod kernels2d;
mod kernels_slices;
pub mod level;
mod manner;
pub mod measure;
mod plane;
mod progress;
mod state;
mod tiling;
pub mod tuning;

pub use kernels::team;

/// The kernels on private memory, for programs that want only the copies.
pub mod slices {
    pub use super::kernels_slices::{
        LengthsDiffer, copy, copy_past_caches, fill, is_far, untouched_ticks, zero_past_caches,
    };
}

use std::borrow::Borrow;
use std::sync::Arc;

use kernels::team::CopyTeam;
use manner::{Manner, Work};
use memferry_clock::Instant;
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    CacheHint, Confined, Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure,
    IMMEDIATE_OPERANDS, Operation, Operations, Outcome, Pattern, Refused, Region, Side, Ticket, Watermark,
};
use progress::Settings;
use state::{State, step};

/// Bytes a copy moves per poll by default. Operations with more operands visit fewer, so that they touch no more.
///
/// Measured with glibc's `memmove`: chunks of 64 to 512 KiB lose nothing against one long copy of 1 MiB or 64 MiB.
pub const DEFAULT_CHUNK_BYTES: u64 = 256 << 10;

/// Operations of up to this many bytes are performed at once, on the thread that submits them to the path.
///
/// Revocations wait meanwhile, and for other operations than plain copies the capability table is locked. A copy of this size takes
/// 0.3 µs, and 2 µs from cold memory, where an engine channel and its completion cost 0.3 µs.
pub const IMMEDIATE_BYTES: u64 = 16 << 10;
/// Immediate operations are one chunk whatever their operands: a second attempt would start over.
const IMMEDIATE: Settings<'static> = Settings { chunk_bytes: u64::MAX, team: None, read_elsewhere: false };
/// Bytes of the largest transposition tile. A chunk holds at least one.
const TILE_BYTES: u64 = (kernels2d::WIDTH_BYTES * kernels2d::DEPTH_BYTES) as u64;

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
    /// Channels that hold a job, oldest post first, so that idle channels cost a poll nothing.
    busy: Vec<u32>,
    /// Entries at the end of `busy` posted since the last doorbell.
    posted: usize,
    /// Index in `busy` of the job that moves next. Those before it have moved their chunks of this round.
    next: usize,
    /// Cancelled jobs that have not ended.
    cancelled: usize,
    chunk_bytes: u64,
    team: Option<Arc<CopyTeam>>,
    read_elsewhere: bool,
}

#[derive(Debug)]
struct Channel {
    /// Serial number of the newest post.
    serial: u32,
    job: Option<Job>,
    /// Chunks that one round moves.
    turns: u32,
    /// Those of them that the present round has not moved yet.
    left: u32,
}

#[derive(Debug)]
struct Job {
    descriptor: Descriptor<Mapping>,
    state: State,
    /// Set when the doorbell rings.
    started: bool,
    cancelled: bool,
}

impl CpuEngine {
    /// An engine of `channels` channels. One poll moves at most `chunk_bytes` (at least 1), fewer for operations that touch more
    /// than two bytes per byte visited.
    ///
    /// It survives failing memory only in a process that called [`memferry_shm::bus_error::install`];
    /// this function installs no signal handler.
    pub fn new(channels: u32, chunk_bytes: u64) -> Self {
        let busy = Vec::with_capacity(channels as usize);
        let channels = (0..channels).map(|_| Channel { serial: 0, job: None, turns: 1, left: 0 }).collect();
        Self {
            channels,
            busy,
            posted: 0,
            next: 0,
            cancelled: 0,
            chunk_bytes: chunk_bytes.max(1),
            team: None,
            read_elsewhere: false,
        }
    }

    /// Shares long copies with idle members of `team`. A poll then moves `chunk_bytes` for each thread that
    /// shares.
    pub fn with_team(mut self, team: Arc<CopyTeam>) -> Self {
        self.team = Some(team);
        self
    }

    /// For a thread whose copies are read on another core. From some size on, copies bypass the caches even if the
    /// destination is cached: a line modified in another core's cache takes longer to read than memory.
    pub fn for_other_cores(mut self) -> Self {
        self.read_elsewhere = true;
        self
    }

    /// Whether no channel holds a descriptor.
    pub fn is_idle(&self) -> bool {
        self.busy.is_empty()
    }

    /// Posts and starts one descriptor without ringing the doorbell for earlier posts; `None` if it is refused.
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

    /// Why the engine refuses the descriptor; `None` if it accepts it.
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

impl CpuEngine {
    /// The channels whose jobs have started.
    fn started(&self) -> &[u32] {
        &self.busy[..self.busy.len() - self.posted]
    }

    /// Whether a job has started and is not suspended.
    fn is_active(&self) -> bool {
        self.started().iter().any(|number| self.channels[*number as usize].turns > 0)
    }

    /// Moves one chunk of `chunk_bytes` of the job at `index` of the busy channels, and removes it if it has ended.
    #[inline]
    fn step(&mut self, index: usize, chunk_bytes: u64) -> Option<EngineCompletion> {
        let settings =
            Settings { chunk_bytes, team: self.team.as_deref(), read_elsewhere: self.read_elsewhere };
        let number = self.busy[index];
        let channel = &mut self.channels[number as usize];
        let serial = channel.serial;
        self.cancelled -= usize::from(channel.job.as_ref().is_some_and(|job| job.cancelled));
        let outcome = channel.step(settings)?;
        self.posted -= usize::from(index >= self.busy.len() - self.posted);
        self.busy.remove(index);
        self.next -= usize::from(index < self.next);
        Some(EngineCompletion { ticket: Ticket { channel: number, serial }, outcome })
    }

    /// Ends all cancelled jobs, also those that have not started.
    fn end_cancelled(&mut self, completions: &mut Vec<EngineCompletion>) {
        let mut index = 0;
        while self.cancelled > 0 && index < self.busy.len() {
            let job = self.channels[self.busy[index] as usize].job.as_ref();
            let ended = job.is_some_and(|job| job.cancelled).then(|| self.step(index, 1)).flatten();
            index += usize::from(ended.is_none());
            completions.extend(ended);
        }
    }

    /// The index of the job that moves next; `None` when this round has ended.
    fn next_in_round(&mut self) -> Option<usize> {
        while let Some(number) = self.started().get(self.next) {
            if self.channels[*number as usize].left > 0 {
                return Some(self.next);
            }
            self.next += 1;
        }
        None
    }

    fn begin_round(&mut self) {
        self.next = 0;
        for index in 0..self.started().len() {
            let channel = &mut self.channels[self.busy[index] as usize];
            channel.left = channel.turns;
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
        channel.left = 0;
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
        self.end_cancelled(completions);
        if self.round_is_over() {
            self.begin_round();
        }
        let mut budget = self.chunk_bytes;
        while budget > 0
            && let Some(index) = self.next_in_round()
        {
            let channel = &mut self.channels[self.busy[index] as usize];
            channel.left -= 1;
            let cost = channel.job.as_ref().map_or(0, |job| job.cost(self.chunk_bytes));
            budget = budget.saturating_sub(cost);
            completions.extend(self.step(index, self.chunk_bytes));
        }
        self.is_active()
    }

    fn advance(
        &mut self,
        _now: Instant,
        channel: Option<u32>,
        bytes: u64,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        let Some(index) = self.busy.iter().position(|busy| Some(*busy) == channel) else { return false };
        let suspended = self.channels[self.busy[index] as usize].turns == 0;
        let ended = self.step(index, bytes.clamp(1, self.chunk_bytes));
        let active = ended.is_none() && index < self.started().len() && !suspended;
        completions.extend(ended);
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

    fn round_is_over(&self) -> bool {
        let after = self.started().get(self.next..).unwrap_or_default();
        after.iter().all(|number| self.channels[*number as usize].left == 0)
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(channel) = self.channels.get_mut(channel as usize) {
            channel.turns = turns;
            channel.left = channel.left.min(turns);
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
            self.cancelled += usize::from(!job.cancelled);
            job.cancelled = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }
}

impl Channel {
    /// Moves one chunk of the job. Returns the outcome when the job ended. The job is dropped first, because its memory may be
    /// returned once the completion is seen.
    fn step(&mut self, settings: Settings<'_>) -> Option<Outcome> {
        let suspended = self.turns == 0;
        let job = self.job.as_mut()?;
        let result = job.advance(settings, suspended)?;
        let outcome = outcome(result, &job.state);
        self.job = None;
        Some(outcome)
    }
}

/// Maximum number of short jobs that one poll moves.
const MAX_JOBS_PER_POLL: u64 = 64;

impl Job {
    /// Moves one chunk, unless the job is `suspended`. Returns the result when the job has ended.
    fn advance(&mut self, settings: Settings<'_>, suspended: bool) -> Option<Result<(), Failure>> {
        if self.cancelled {
            return Some(Err(Failure::Cancelled));
        }
        if !self.started || suspended {
            return None;
        }
        match progress::advance(
            self.descriptor.operation(),
            self.descriptor.hint(),
            &mut self.state,
            settings,
        ) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(failure) => Some(Err(failure)),
        }
    }

    /// What the next chunk takes, as the bytes of a copy that takes as long.
    fn cost(&self, chunk_bytes: u64) -> u64 {
        let operation = self.descriptor.operation();
        let left = operation.total_bytes().saturating_sub(self.state.done);
        let cost = match operation {
            // Each pixel may lie in another page.
            Operation::Copy2d { .. } | Operation::Fill2d { .. } => chunk_bytes,
            _ => left.saturating_mul(chunk_bytes) / progress::visited_bytes(operation, chunk_bytes).max(1),
        };
        cost.clamp((chunk_bytes / MAX_JOBS_PER_POLL).max(1), chunk_bytes)
    }
}

/// Chunk of [`perform_whole`], where no other job waits. Sharing has a cost per chunk, so it is long.
const WHOLE_CHUNK_BYTES: u64 = 4 << 20;

/// Performs a whole operation on the calling thread and idle members of `team`; `None` if this engine does not
/// support the operation.
pub fn perform_whole<M: Borrow<Mapping>>(
    confined: &Confined<'_, M>,
    team: Option<&CopyTeam>,
) -> Option<Outcome> {
    let settings = Settings { chunk_bytes: WHOLE_CHUNK_BYTES, team, read_elsewhere: false };
    let operation = confined.operation();
    if !performs(operation) {
        return None;
    }
    let mut state = State::default();
    let result = loop {
        match progress::advance(operation, confined.hint(), &mut state, settings) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(failure) => break Err(failure),
        }
    };
    Some(outcome(result, &state))
}

/// Copies `length` bytes on the calling thread, as [`perform_whole`], if the length and hint alone say that they pass through the
/// caches. `None` if they do not, if the destination is not writable, or if memory fails: [`perform_whole`] says how it ends.
#[inline]
pub fn copy_cached(
    source: &Region<&Mapping>,
    destination: &Region<&Mapping>,
    length: u64,
    hint: CacheHint,
) -> Option<Outcome> {
    passes_caches(Work::Copy, hint, length)?;
    let copied = step([*source.memory(), *destination.memory()], || {
        kernels::copy(Manner::Cached, source, 0, destination, 0, length)
    });
    copied.ok().map(|()| Outcome { result: Ok(()), bytes_done: length, value: 0, engine: EngineKind::Cpu })
}

/// Fills `length` bytes on the calling thread, as [`copy_cached`] copies them. The length is a multiple of the pattern's.
#[inline]
pub fn fill_cached(
    destination: &Region<&Mapping>,
    length: u64,
    pattern: Pattern,
    hint: CacheHint,
) -> Option<Outcome> {
    let word = pattern.word_bytes();
    let work = if word == [0; 4] { Work::Zero } else { Work::Fill };
    passes_caches(work, hint, length)?;
    let filled =
        step([*destination.memory()], || kernels::fill(Manner::Cached, destination, 0, length, word));
    filled.ok().map(|()| Outcome { result: Ok(()), bytes_done: length, value: 0, engine: EngineKind::Cpu })
}

/// Whether such work passes through the caches by its hint and length, without a look at the memory.
#[inline]
fn passes_caches(work: Work, hint: CacheHint, length: u64) -> Option<()> {
    (choice::by_hint_and_size(work, hint, length, tuning::current()) == Some(Manner::Cached)).then_some(())
}

#[inline]
fn outcome(result: Result<(), Failure>, state: &State) -> Outcome {
    Outcome { result, bytes_done: state.done, value: state.value, engine: EngineKind::Cpu }
}

/// Whether the operation is supported, short enough, and its memory is here and writable where it writes.
#[inline]
fn performs<M: Borrow<Mapping>>(operation: &Operation<Region<M>>) -> bool {
    let usable = operation.visit(|side, region, _| match (side, region.memory().borrow().access()) {
        (_, Access::ReadWrite) | (Side::Source, Access::ReadOnly) => Ok(()),
        (Side::Destination, Access::ReadOnly) | (_, Access::Elsewhere) => Err(()),
    });
    let announced = Operations::OF_MEMORY.contains(operation.kind());
    usable.is_ok() && announced && operation.total_bytes() <= LONGEST_BYTES
}

/// Whether the operation is short enough to perform at once. 2-D never is: each pixel may lie in another page.
#[inline]
fn is_short<M>(operation: &Operation<Region<M>>) -> bool {
    let few_operands = match operation {
        Operation::Copy2d { .. } | Operation::Fill2d { .. } => false,
        Operation::ScatterGather { .. } => operation.segments() <= IMMEDIATE_OPERANDS,
        // No more bytes than a copy touches: a copy has two operands.
        Operation::Xor { sources, length, .. } => {
            let touched = length.saturating_mul(1 + sources.len() as u64);
            sources.len() <= IMMEDIATE_OPERANDS && touched <= 2 * IMMEDIATE_BYTES
        }
        _ => true,
    };
    few_operands && operation.total_bytes() <= IMMEDIATE_BYTES
}
