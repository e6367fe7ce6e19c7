//! The CPU engine: a copy lane moves the bytes itself, on the thread that polls it.
//!
//! ```text
//! post ──► channel: Job { descriptor, done } ──ring_doorbell──► started
//! poll ──► each started job, in turn: one chunk ──progress──► kernels, under bus_error::guarded
//!              all done ──► Finished Ok            cancelled ──► Finished Cancelled, before the next chunk
//!              memory failed ──► Finished MemoryFault, bytes before that chunk
//! ```
//!
//! A channel holds one descriptor. Every poll gives each started job at most one chunk, so that a long copy delays
//! the others by one chunk each round. The engine starts no thread, allocates nothing after [`CpuEngine::new`] and
//! does not sleep.

mod kernels;
mod progress;

use memferry_clock::Instant;
use memferry_memory::bus_error::guarded;
use memferry_memory::mapping::{Access, Mapping};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineKind, Failure, Finished, Operation, Refused, Region, Ticket,
};

/// Bytes a job moves per poll unless the service chooses otherwise.
///
/// Measured with glibc's `memmove`: chunks of 64 to 512 KiB lose nothing against one long copy of 1 MiB or 64 MiB.
pub const DEFAULT_CHUNK_BYTES: u64 = 256 << 10;

/// Longest transfer, bytes.
const LONGEST_BYTES: u64 = 1 << 40;

/// Copy lanes on the calling thread.
///
/// ```
/// use memferry_clock::Instant;
/// use memferry_engines::{CpuEngine, DEFAULT_CHUNK_BYTES};
/// use memferry_memory::mapping::Mapping;
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
/// let mut finished = Vec::new();
/// engine.poll(Instant::ORIGIN, &mut finished);
/// assert_eq!((finished[0].ticket, finished[0].bytes_done), (ticket, 64));
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
}

#[derive(Debug, Default)]
struct Channel {
    /// Of the newest post.
    serial: u32,
    job: Option<Job>,
}

#[derive(Debug)]
struct Job {
    descriptor: Descriptor<Mapping>,
    /// Destination bytes visited.
    done: u64,
    /// The doorbell was rung.
    started: bool,
    cancelled: bool,
}

impl CpuEngine {
    /// An engine of `channels` channels that moves at most `chunk_bytes` (at least 1) for a job in one poll.
    ///
    /// It survives memory that fails under it only in a process that called [`memferry_memory::bus_error::install`];
    /// this function leaves signal handlers alone.
    pub fn new(channels: u32, chunk_bytes: u64) -> Self {
        let busy = Vec::with_capacity(channels as usize);
        let channels = (0..channels).map(|_| Channel::default()).collect();
        Self { channels, busy, posted: 0, chunk_bytes: chunk_bytes.max(1) }
    }

    /// Why this engine will not take the descriptor.
    fn refusal(&self, descriptor: &Descriptor<Mapping>) -> Option<RefusalReason> {
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
        EngineCapabilities {
            kind: EngineKind::CpuLane,
            channels: self.channels.len() as u32,
            longest_bytes: LONGEST_BYTES,
            preemption_bytes: Some(self.chunk_bytes),
            overlapping_copy: true,
            two_dimensional: true,
        }
    }

    fn post(&mut self, descriptor: Descriptor<Mapping>) -> Result<Ticket, Refused<Descriptor<Mapping>>> {
        if let Some(reason) = self.refusal(&descriptor) {
            return Err(Refused { descriptor, reason });
        }
        let number = descriptor.channel();
        let channel = &mut self.channels[number as usize];
        channel.serial = channel.serial.wrapping_add(1);
        channel.job = Some(Job { descriptor, done: 0, started: false, cancelled: false });
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

    fn poll(&mut self, _now: Instant, finished: &mut Vec<Finished>) -> bool {
        let (mut active, mut index) = (false, 0);
        let mut first_unstarted = self.busy.len() - self.posted;
        while let Some(number) = self.busy.get(index).copied() {
            let channel = &mut self.channels[number as usize];
            let serial = channel.serial;
            let Some((outcome, bytes_done)) = channel.step(self.chunk_bytes) else {
                active |= index < first_unstarted;
                index += 1;
                continue;
            };
            self.busy.remove(index);
            if index < first_unstarted {
                first_unstarted -= 1;
            } else {
                self.posted -= 1;
            }
            finished.push(Finished { ticket: Ticket { channel: number, serial }, outcome, bytes_done });
        }
        active
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
    /// Moves one chunk of the job; how it ended when it did, with the bytes done. The job is gone then: once the report is
    /// seen, its memory may be given back.
    fn step(&mut self, chunk_bytes: u64) -> Option<(Result<(), Failure>, u64)> {
        let job = self.job.as_mut()?;
        let outcome = job.advance(chunk_bytes)?;
        let bytes_done = job.done;
        self.job = None;
        Some((outcome, bytes_done))
    }
}

impl Job {
    /// Moves one chunk when there is one to move; the outcome when the job is over.
    fn advance(&mut self, chunk_bytes: u64) -> Option<Result<(), Failure>> {
        if self.cancelled {
            return Some(Err(Failure::Cancelled));
        }
        if !self.started {
            return None;
        }
        let operation = self.descriptor.operation();
        let Some((first, second)) = touched(operation) else { return Some(Ok(())) };
        match guarded(first, second, || progress::advance(operation, self.done, chunk_bytes)) {
            Ok(Ok(moved)) => {
                self.done += moved;
                (self.done >= operation.total_bytes()).then_some(Ok(()))
            }
            // The descriptor was checked, so this is an error of `progress`; nothing was touched.
            Ok(Err(kernels::OutsideRegion)) => Some(Err(Failure::ChannelFaulted)),
            Err(_) => Some(Err(Failure::MemoryFault)),
        }
    }
}

/// The mappings an operation reads and writes, one twice when there is no other.
fn touched(operation: &Operation<Region<Mapping>>) -> Option<(&Mapping, &Mapping)> {
    match operation {
        Operation::Nop => None,
        Operation::Copy { source, destination, .. } | Operation::Copy2d { source, destination, .. } => {
            Some((source.memory(), destination.memory()))
        }
        Operation::Fill { destination, .. } | Operation::Fill2d { destination, .. } => {
            Some((destination.memory(), destination.memory()))
        }
    }
}

/// Whether the operation is short enough and its destination may be written.
fn performs(operation: &Operation<Region<Mapping>>) -> bool {
    let writable = touched(operation).is_none_or(|(_, written)| written.access() == Access::ReadWrite);
    writable && operation.total_bytes() <= LONGEST_BYTES
}
