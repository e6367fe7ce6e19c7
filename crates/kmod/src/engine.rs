//! The Linux module as an engine: an unprivileged process uses the machine's DMA engines through Linux's drivers.
//!
//! ```text
//! post ──► channel: Job ──ring_doorbell──► Order ─► /dev/memferry ─► the module's policy ─► DMA engine, or a CPU
//! poll ──► records ─► completion            a job of a suspended channel is not submitted
//! ```
//!
//! The engine performs [`ModuleEngine::OPERATIONS`]. A CPU moves lists whose pieces touch each other, in order. A submitted
//! job runs without further calls; only a cancel ends it early. A channel here is a slot for one descriptor: the module
//! chooses the hardware channel (`kernel/policy.c`). Register each memory once, because the module does not detect that two
//! registrations overlap.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::device::{At, MAX_SEGMENTS, ModuleDevice, ModuleMemory, Order, Piece, Record};
use memferry_clock::Instant;
use memferry_shm::mapping::Access;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Lists, Operation,
    Operations, Outcome, Refused, Region, Segment, Side, Ticket,
};

const LONGEST_BYTES: u64 = 1 << 40;

/// Interval between polls of a caller that cannot wait for [`ModuleEngine::as_fd`].
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Error numbers of records (asm-generic/errno.h).
const ETIMEDOUT: i32 = -110;
const ECANCELED: i32 = -125;
const ENOTRECOVERABLE: i32 = -131;

#[derive(Debug)]
pub struct ModuleEngine {
    device: Arc<ModuleDevice>,
    channels: Vec<Channel>,
    /// Channel of each submitted job, keyed by tag.
    running: BTreeMap<u64, u32>,
    records: Vec<Record>,
    polled: Instant,
    bytes_by_dma: u64,
}

#[derive(Debug)]
struct Channel {
    serial: u32,
    job: Option<Job>,
    suspended: bool,
}

#[derive(Debug)]
struct Job {
    descriptor: Descriptor<ModuleMemory>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Posted,
    /// The doorbell was rung, but the job was not submitted to the module.
    Ready,
    /// Submitted to the module with this tag.
    Running(u64),
    /// Ended without a submission: there was nothing to do, it was cancelled, or the module refused it.
    Ended(Result<(), Failure>),
}

impl ModuleEngine {
    pub const OPERATIONS: Operations =
        Operations::NOP.union(Operations::COPY).union(Operations::FILL).union(Operations::SCATTER_GATHER);

    /// Makes an engine with `channels` channels for memory that was registered through `device`. While it lives, no other
    /// engine may use `device`.
    pub fn new(device: Arc<ModuleDevice>, channels: u32) -> Self {
        Self {
            device,
            channels: (0..channels).map(|_| Channel { serial: 0, job: None, suspended: false }).collect(),
            running: BTreeMap::new(),
            records: Vec::new(),
            polled: Instant::ORIGIN,
            bytes_by_dma: 0,
        }
    }

    pub fn device(&self) -> &Arc<ModuleDevice> {
        &self.device
    }

    /// Bytes that DMA engines moved so far; a CPU moved the others.
    pub fn bytes_by_dma(&self) -> u64 {
        self.bytes_by_dma
    }

    fn refusal(&self, descriptor: &Descriptor<ModuleMemory>) -> Option<RefusalReason> {
        let channel = descriptor.channel();
        match self.channels.get(channel as usize) {
            None => Some(RefusalReason::NoSuchChannel(channel)),
            Some(Channel { job: Some(_), .. }) => Some(RefusalReason::Busy(channel)),
            Some(_) if !self.performs(descriptor.operation()) => Some(RefusalReason::Unsupported),
            Some(_) => None,
        }
    }

    /// Whether the operation is supported, its memory is registered with this device, and its destinations are writable.
    fn performs(&self, operation: &Operation<Region<ModuleMemory>>) -> bool {
        let usable = operation.visit(|side, region, _| {
            let memory = region.memory();
            let writable = side == Side::Source || memory.mapping().access() == Access::ReadWrite;
            if writable && memory.is_of(&self.device) { Ok(()) } else { Err(()) }
        });
        usable.is_ok()
            && Self::OPERATIONS.contains(operation.kind())
            && operation.total_bytes() <= LONGEST_BYTES
    }

    /// Submits ready jobs of channels that are not suspended.
    fn submit_ready(&mut self) {
        for (number, channel) in (0..).zip(&mut self.channels) {
            let Some(job) =
                channel.job.as_mut().filter(|job| job.state == State::Ready && !channel.suspended)
            else {
                continue;
            };
            let Some(order) = order(job.descriptor.operation()) else {
                job.state = State::Ended(Ok(()));
                continue;
            };
            match self.device.submit(&order) {
                Ok(tag) => {
                    job.state = State::Running(tag);
                    self.running.insert(tag, number);
                }
                // `poll` tries again after it took records.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => job.state = State::Ended(Err(Failure::MemoryFault)),
            }
        }
    }

    /// Completes jobs that ended without a submission.
    fn take_ended(&mut self, completions: &mut Vec<EngineCompletion>) {
        for (number, channel) in (0..).zip(&mut self.channels) {
            let Some(Job { state: State::Ended(result), .. }) = channel.job else { continue };
            channel.job = None;
            let ticket = Ticket { channel: number, serial: channel.serial };
            let outcome = Outcome { result, bytes_done: 0, value: 0, engine: EngineKind::Module };
            completions.push(EngineCompletion { ticket, outcome });
        }
    }

    fn take_records(&mut self, completions: &mut Vec<EngineCompletion>) {
        // Fails only in a forked child, whose parent owns the jobs.
        let _ = self.device.take_records(&mut self.records);
        for record in self.records.drain(..) {
            let Some(number) = self.running.remove(&record.tag) else { continue };
            let channel = &mut self.channels[number as usize];
            channel.job = None;
            let ticket = Ticket { channel: number, serial: channel.serial };
            let result = match record.status {
                0 => Ok(()),
                ECANCELED => Err(Failure::Cancelled),
                ETIMEDOUT => Err(Failure::EngineTimedOut),
                ENOTRECOVERABLE => Err(Failure::ChannelFaulted),
                _ => Err(Failure::MemoryFault),
            };
            self.bytes_by_dma += record.bytes_by_dma;
            let bytes_done = record.bytes_done;
            let outcome = Outcome { result, bytes_done, value: 0, engine: EngineKind::Module };
            completions.push(EngineCompletion { ticket, outcome });
        }
    }

    fn job(&mut self, ticket: Ticket) -> Option<&mut Job> {
        let channel = self.channels.get_mut(ticket.channel as usize)?;
        channel.job.as_mut().filter(|_| channel.serial == ticket.serial)
    }
}

impl Drop for ModuleEngine {
    /// Cancels running jobs and waits for their ends, so that no transfer runs afterwards.
    fn drop(&mut self) {
        // The module refuses a forked child, whose parent owns the jobs.
        let cancelled = self.running.keys().all(|tag| self.device.cancel(*tag).is_ok());
        while cancelled && !self.running.is_empty() {
            self.take_records(&mut Vec::new());
            if !self.running.is_empty()
                && self.device.wait().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted)
            {
                break;
            }
        }
    }
}

impl AsFd for ModuleEngine {
    /// The descriptor is readable while [`poll`](Engine::poll) would complete a job.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Engine for ModuleEngine {
    type Memory = ModuleMemory;

    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            kind: EngineKind::Module,
            channels: self.channels.len() as u32,
            longest_bytes: LONGEST_BYTES,
            preemption_bytes: None,
            overlapping_copy: true,
            aligned_pixels: false,
            operations: Self::OPERATIONS,
            immediate_bytes: 0,
        }
    }

    fn post(
        &mut self,
        descriptor: Descriptor<ModuleMemory>,
    ) -> Result<Ticket, Refused<Descriptor<ModuleMemory>>> {
        if let Some(reason) = self.refusal(&descriptor) {
            return Err(Refused { descriptor, reason });
        }
        let number = descriptor.channel();
        let channel = &mut self.channels[number as usize];
        channel.serial = channel.serial.wrapping_add(1);
        channel.job = Some(Job { descriptor, state: State::Posted });
        Ok(Ticket { channel: number, serial: channel.serial })
    }

    fn ring_doorbell(&mut self) {
        for job in self.channels.iter_mut().filter_map(|channel| channel.job.as_mut()) {
            if job.state == State::Posted {
                job.state = State::Ready;
            }
        }
        self.submit_ready();
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.polled = now;
        self.take_records(completions);
        self.submit_ready();
        self.take_ended(completions);
        false
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(channel) = self.channels.get_mut(channel as usize) {
            channel.suspended = turns == 0;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        let job = self.channels.get(channel as usize).and_then(|channel| channel.job.as_ref());
        !job.is_some_and(|job| matches!(job.state, State::Running(_)))
    }

    fn cancel(&mut self, ticket: Ticket) {
        let Some(job) = self.job(ticket) else { return };
        match job.state {
            State::Posted | State::Ready => job.state = State::Ended(Err(Failure::Cancelled)),
            State::Running(tag) => {
                // The module refuses only a forked child, whose parent owns the job.
                let _ = self.device.cancel(tag);
            }
            State::Ended(_) => {}
        }
    }

    fn works_alone(&self) -> bool {
        let needs_no_call = |channel: &Channel| match channel.job.as_ref().map(|job| job.state) {
            None | Some(State::Running(_)) => true,
            Some(State::Ready) => channel.suspended,
            Some(State::Posted | State::Ended(_)) => false,
        };
        self.channels.iter().all(needs_no_call)
    }

    fn next_wake(&self) -> Option<Instant> {
        let busy = |channel: &Channel| {
            let state = channel.job.as_ref().map(|job| job.state);
            match state {
                Some(State::Running(_) | State::Ended(_)) => true,
                Some(State::Ready) => !channel.suspended,
                Some(State::Posted) | None => false,
            }
        };
        self.channels.iter().any(busy).then(|| self.polled.after(POLL_INTERVAL))
    }
}

fn at(region: &Region<ModuleMemory>, offset: u64) -> At<'_> {
    At { memory: region.memory(), offset: region.offset() + offset }
}

/// Translates an operation for the module; `None` when there is nothing to do.
fn order(operation: &Operation<Region<ModuleMemory>>) -> Option<Order<'_>> {
    match operation {
        Operation::Copy { source, destination, length } => Some(Order::Copy(Piece {
            source: at(source, 0),
            destination: at(destination, 0),
            length: *length,
        })),
        Operation::Fill { destination, length, pattern } => {
            let pattern_bytes = pattern.length_bytes() as u32;
            let pattern = u32::from_le_bytes(pattern.word_bytes());
            Some(Order::Fill { destination: at(destination, 0), length: *length, pattern, pattern_bytes })
        }
        Operation::ScatterGather { lists } => {
            Some(Order::List { pieces: pieces(lists), in_order: touch(lists, ModuleMemory::key) })
        }
        _ => None,
    }
}

/// Cuts both lists wherever a segment of either ends. The number of pieces is at most that of all segments.
fn pieces(lists: &Lists<Region<ModuleMemory>>) -> Vec<Piece<'_>> {
    let mut pieces = Vec::with_capacity((lists.source.len() + lists.destination.len()).min(MAX_SEGMENTS));
    let mut destinations = lists.destination.iter();
    let mut destination = destinations.next();
    let mut filled = 0;
    for source in &lists.source {
        let mut taken = 0;
        while taken < source.length {
            let Some(to) = destination else { return pieces };
            let length = (source.length - taken).min(to.length - filled);
            if length > 0 {
                let source = at(&source.place, taken);
                let destination = at(&to.place, filled);
                pieces.push(Piece { source, destination, length });
            }
            taken += length;
            filled += length;
            if filled == to.length {
                destination = destinations.next();
                filled = 0;
            }
        }
    }
    pieces
}

/// Whether the result depends on the order of the pieces: bytes are written twice, or both read and written. `key` identifies
/// a memory.
pub fn touch<M>(lists: &Lists<Region<M>>, key: impl Fn(&M) -> usize) -> bool {
    let range = |segment: &Segment<Region<M>>| {
        let place = &segment.place;
        let length = segment.length;
        (length > 0).then(|| (key(place.memory()), place.offset(), place.offset() + length))
    };
    let mut written: Vec<_> = lists.destination.iter().filter_map(range).collect();
    written.sort_unstable();
    let twice = written.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2);
    twice
        || lists.source.iter().filter_map(range).any(|(memory, first, end)| {
            // Written ranges are disjoint here, so the last one that begins before `end` also ends last.
            let after = written.partition_point(|(of, begin, _)| (*of, *begin) < (memory, end));
            written[..after].last().is_some_and(|(of, _, last)| *of == memory && *last > first)
        })
}

#[cfg(test)]
mod tests {
    use memferry_shm::mapping::Mapping;

    use super::*;

    #[test]
    fn touch_finds_bytes_read_or_written_twice() {
        let memory = [Mapping::owned(vec![0; 64]), Mapping::owned(vec![0; 64])];
        let list = |places: &[(usize, u64, u64)]| {
            let segment = |&(of, offset, length): &(usize, u64, u64)| {
                let place = Region::new(memory[of].clone(), offset, length).unwrap();
                Segment { place, length }
            };
            places.iter().map(segment).collect::<Box<[_]>>()
        };
        for (source, destination, expected) in [
            (&[(0, 0, 16)][..], &[(1, 0, 8), (1, 8, 8)][..], false),
            (&[(0, 0, 16)], &[(1, 8, 8), (1, 0, 9)], true),
            (&[(0, 0, 16)], &[(0, 16, 16)], false),
            (&[(0, 1, 16)], &[(0, 16, 16)], true),
            (&[(0, 40, 8), (0, 8, 8)], &[(0, 0, 8), (0, 16, 8), (1, 8, 8)], false),
            (&[(0, 20, 1), (1, 0, 7)], &[(0, 0, 8), (0, 16, 8)], true),
            (&[(0, 20, 0)], &[(0, 16, 0), (0, 16, 8), (0, 17, 0)], false),
            (&[], &[], false),
        ] {
            let lists = Lists { source: list(source), destination: list(destination) };
            assert_eq!(touch(&lists, Mapping::key), expected, "{source:?} {destination:?}");
        }
    }
}
