//! The worker's end of an engine process: an engine whose requests somebody else carries out.
//!
//! ```text
//! post ─► channel: Job ─ ring_doorbell ─► slot, wake word ─► engine process
//! poll ◄─ checked ◄─ completion slot ◄──────────────────────┘
//! fault()                a rule was broken: the caller ends the connection
//! end(Lost::Cut)         its connection has ended: no more work for it
//! end(Lost::Gone)        the process has exited, so its jobs can be done again
//! end(Lost::Lingering)   it may still touch the memory: its channels fault
//! ```
//!
//! Nothing that the engine writes is believed beyond what one of its jobs may do: a completion names a submitted job, does not exceed
//! its bytes, and fails in a way that an engine can. An engine that makes no progress within a time limit, or keeps a job for far too long, is
//! faulty too.

use std::sync::atomic::Ordering;
use std::time::Duration;

use memferry_clock::Instant;
use memferry_shm::queue_pair::{ClientEnd, futex};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::operation::Reach;
use memferry_transfer::wire::SlotError;
use memferry_transfer::{
    Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Handle, Memory, Operation,
    Outcome, Refused, Region, Request, Side, Span, Task, Terms, Ticket, Watermark, wire,
};
use thiserror::Error;

use crate::description::EngineDescription;

/// A request takes no longer than at this rate, and so many times the stall time more: nobody would use an engine that is as slow.
const SLOWEST_BYTES_PER_SECOND: u64 = 32 << 20;
const STALLS: u32 = 4;

/// A frame as the engine process names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExternalFrame {
    /// Its handle at this engine.
    pub handle: Handle,
    /// Its length in bytes.
    pub length: u64,
    /// Whether the engine has mapped it for writing.
    pub is_writable: bool,
    /// Whether it lies in memory that only this engine reaches.
    pub is_own: bool,
}

impl Memory for ExternalFrame {
    fn length(&self) -> u64 {
        self.length
    }
}

/// How an engine process broke a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// No job has the tag.
    #[error("it completed a request {0:#x} that it does not have")]
    UnknownTag(u32),
    /// The completion cannot be decoded.
    #[error("its completion is malformed: {0}")]
    Malformed(SlotError),
    /// Too many bytes, or too few for a success.
    #[error("it claims {done} bytes of a request of {total}")]
    Bytes {
        /// The number in the completion.
        done: u64,
        /// Bytes of the request.
        total: u64,
    },
    /// A value that the operation cannot have.
    #[error("it claims the impossible result {0:#x}")]
    Value(u64),
    /// A failure that no engine can have.
    #[error("it claims a failure that it cannot have: {0}")]
    Failure(Failure),
    /// No progress for too long.
    #[error("it made no progress with a request for {} ms", .0.as_millis())]
    Stalled(Duration),
}

/// How the service lost an engine process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Its connection has ended. It gets no more work, and its jobs wait for its end.
    Cut,
    /// It has exited, and touches no memory any more.
    Gone,
    /// Its connection ended long ago, but it still exists and may touch memory.
    Lingering,
}

/// One worker's end of an engine process.
#[derive(Debug)]
pub struct ExternalEngine {
    description: EngineDescription,
    end: ClientEnd<MappedWords>,
    wake: MappedWords,
    channels: Vec<Channel>,
    /// Jobs that may be submitted at a time.
    limit: u32,
    submitted: u32,
    /// The channel whose job is submitted next, if there is more than one.
    next: usize,
    lap: u32,
    stall: Duration,
    /// When the jobs were last looked at for progress.
    checked: Option<Instant>,
    /// When the engine last completed a job or reported progress, as far as a look has shown. `None` after a completion and before the
    /// first look.
    moved: Option<Instant>,
    fault: Option<Fault>,
    /// A list could not be submitted for want of room.
    waits_for_room: bool,
    is_lost: bool,
    /// Channels that may still touch memory.
    faulted: Vec<u32>,
    list: Vec<u64>,
}

#[derive(Debug, Default)]
struct Channel {
    serial: u32,
    job: Option<Job>,
    is_suspended: bool,
}

#[derive(Debug)]
struct Job {
    descriptor: Descriptor<ExternalFrame>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Posted,
    /// The doorbell was rung, but the engine does not have it yet.
    Ready,
    Submitted {
        tag: u32,
        /// How long it may take in all.
        time: Duration,
        /// When that is over, once the time of a poll is known.
        due: Option<Instant>,
        /// The most bytes that the engine has reported.
        seen: u64,
        /// Until when a report of 0 bytes counts, after the first report.
        prepared_until: Option<Instant>,
    },
    /// It ended without a completion of the engine.
    Ended(Failure),
}

impl ExternalEngine {
    /// An engine with `channels` channels, of which at most `limit` have the engine process busy at a time. A job without progress for
    /// `stall` is a fault. `wake` is the word on which the engine process sleeps. The queue pair's capacity must be at least `channels`.
    pub fn new(
        description: EngineDescription,
        (end, wake): (ClientEnd<MappedWords>, MappedWords),
        (channels, limit): (u32, u32),
        stall: Duration,
    ) -> Self {
        let channels = channels.min(end.capacity());
        Self {
            description,
            end,
            wake,
            channels: (0..channels).map(|_| Channel::default()).collect(),
            limit: limit.max(1),
            submitted: 0,
            next: 0,
            lap: 0,
            stall,
            checked: None,
            moved: None,
            fault: None,
            waits_for_room: false,
            is_lost: false,
            faulted: Vec::new(),
            list: Vec::new(),
        }
    }

    /// The rule that the engine process broke, if any. It gets no more work then.
    pub const fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// How many jobs the engine process has at most. `None` if it gets no more work: then no job has to wait for it.
    pub fn limit(&self) -> Option<u32> {
        (!self.is_over()).then_some(self.limit)
    }

    /// What the engine announced.
    pub const fn description(&self) -> &EngineDescription {
        &self.description
    }

    /// Whether a completion waits, or there may be room for a job that waits.
    #[inline]
    pub fn has_news(&self) -> bool {
        let has_room = || self.waits_for_room && !self.is_lost && self.end.has_taken_more();
        self.submitted > 0 && self.fault.is_none() && (self.end.ready() || has_room())
    }

    /// Whether the engine process has a job that it has not completed.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.submitted > 0 && self.fault.is_none()
    }

    /// Asks the engine process for a doorbell with its next completion (1), or no longer (0): the worker sleeps.
    pub fn set_parked(&self, value: u64) {
        self.end.parked().store(value, Ordering::Relaxed);
    }

    /// Ends all jobs of a lost engine process, unless it was only cut off.
    pub fn end(&mut self, how: Lost) {
        self.is_lost = true;
        if how == Lost::Cut {
            return;
        }
        for (number, channel) in (0..).zip(&mut self.channels) {
            let Some(job) = &mut channel.job else { continue };
            let is_submitted = matches!(job.state, State::Submitted { .. });
            let failure = match how {
                Lost::Lingering if is_submitted => {
                    self.faulted.push(number);
                    Failure::ChannelFaulted
                }
                _ => Failure::EngineReset,
            };
            if !matches!(job.state, State::Ended(_)) {
                job.state = State::Ended(failure);
            }
        }
        self.submitted = 0;
    }

    /// Channels with jobs that ended as [`Failure::ChannelFaulted`]. They are usable again when the process has exited.
    pub fn faulted(&self) -> &[u32] {
        &self.faulted
    }

    fn refusal(&self, descriptor: &Descriptor<ExternalFrame>) -> Option<RefusalReason> {
        let channel = descriptor.channel();
        match self.channels.get(channel as usize) {
            None => Some(RefusalReason::NoSuchChannel(channel)),
            Some(Channel { job: Some(_), .. }) => Some(RefusalReason::Busy(channel)),
            Some(_) if self.is_over() => Some(RefusalReason::Unsupported),
            Some(_) if !self.performs(descriptor.operation()) => Some(RefusalReason::Unsupported),
            // Nobody else can do what needs its own memory: that waits.
            Some(_) if self.jobs() >= self.limit && !needs_own_memory(descriptor.operation()) => {
                Some(RefusalReason::Busy(channel))
            }
            Some(_) => None,
        }
    }

    /// Whether the engine process gets no more work.
    const fn is_over(&self) -> bool {
        self.is_lost || self.fault.is_some()
    }

    fn jobs(&self) -> u32 {
        self.channels.iter().filter(|channel| channel.job.is_some()).count() as u32
    }

    /// Whether the engine performs the operation on memory that it has, with this alignment.
    fn performs(&self, operation: &Operation<Region<ExternalFrame>>) -> bool {
        let mask = u64::from(self.description.alignment_bytes) - 1;
        let usable = operation.visit(|side, region, reach| {
            let is_aligned = match reach {
                Reach::Bytes(length) => (region.offset() | length) & mask == 0,
                Reach::Walk(..) => mask == 0,
            };
            let may = side == Side::Source || region.memory().is_writable;
            if is_aligned && may { Ok(()) } else { Err(()) }
        });
        usable.is_ok()
            && self.description.operations.contains(operation.kind())
            && operation.total_bytes() <= self.description.longest_bytes
    }

    /// Submits ready jobs of channels that are not suspended.
    fn submit_ready(&mut self) {
        // Without news a long list is not encoded again and again.
        let mut no_room = std::mem::take(&mut self.waits_for_room) && !self.end.has_taken_more();
        if self.is_over() {
            return self.end_ready();
        }
        let mut any = false;
        // From the channel after the last one that was served: a channel may have a new job whenever its last one has ended.
        let first = self.next;
        for step in 0..self.channels.len() {
            let number = (first + step) % self.channels.len();
            let channel = &self.channels[number];
            let Some(job) = &channel.job else { continue };
            if job.state != State::Ready || channel.is_suspended || self.submitted >= self.limit {
                continue;
            }
            if no_room && job.descriptor.operation().segments() > 0 {
                self.waits_for_room = true;
                continue;
            }
            let tag = self.lap.wrapping_mul(self.end.capacity()) | number as u32;
            let time = self.time_for(job.descriptor.operation().total_bytes());
            let request = request(&job.descriptor);
            let state = match self.stage(tag, &request) {
                Staged::Done => {
                    any = true;
                    self.next = number + 1;
                    self.lap = self.lap.wrapping_add(1);
                    self.submitted += 1;
                    if self.submitted == 1 {
                        self.moved = None;
                    }
                    State::Submitted { tag, time, due: None, seen: 0, prepared_until: None }
                }
                Staged::Later => {
                    self.waits_for_room = true;
                    no_room = true;
                    continue;
                }
                Staged::Never => State::Ended(Failure::Unsupported),
            };
            if let Some(job) = &mut self.channels[number].job {
                job.state = state;
            }
        }
        if any && self.end.publish() {
            self.wake_engine();
        }
    }

    /// Ends the jobs that the engine does not have yet, because it gets no more.
    fn end_ready(&mut self) {
        for job in self.channels.iter_mut().filter_map(|channel| channel.job.as_mut()) {
            if job.state == State::Ready {
                job.state = State::Ended(Failure::EngineReset);
            }
        }
    }

    fn stage(&mut self, tag: u32, request: &Request) -> Staged {
        // Every job that ended was taken from the ring before, whatever the engine says.
        self.end.presume_consumed(self.submitted);
        self.list.clear();
        let Ok(mut slot) = wire::encode_request(tag, request, &mut self.list) else { return Staged::Never };
        if !self.list.is_empty() {
            let Ok(first) = self.end.stage_list(&self.list) else { return Staged::Later };
            wire::place_list(&mut slot, first);
        }
        if self.end.stage(&slot).is_ok() { Staged::Done } else { Staged::Later }
    }

    fn wake_engine(&self) {
        let word = self.wake.word(0);
        word.fetch_add(1, Ordering::Release);
        futex::wake(word);
    }

    /// Completes jobs that ended without a completion of the engine.
    fn take_ended(&mut self, completions: &mut Vec<EngineCompletion>) {
        for (number, channel) in (0..).zip(&mut self.channels) {
            let Some(Job { state: State::Ended(failure), .. }) = channel.job else { continue };
            channel.job = None;
            let ticket = Ticket { channel: number, serial: channel.serial };
            let outcome = Outcome { engine: EngineKind::External, ..Outcome::refused(failure) };
            completions.push(EngineCompletion { ticket, outcome });
        }
    }

    /// Takes the engine's completions until one breaks a rule.
    fn take_completions(&mut self, completions: &mut Vec<EngineCompletion>) {
        while self.fault.is_none()
            && self.submitted > 0
            && let Some(header) = self.end.peek_header()
        {
            self.end.take_peeked();
            match self.completion(header) {
                Ok(completion) => completions.push(completion),
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    /// Checks a completion and ends its job.
    fn completion(&mut self, header: u64) -> Result<EngineCompletion, Fault> {
        let tag = wire::tag_of_completion(header);
        let number = tag & (self.end.capacity() - 1);
        let channel = self.channels.get_mut(number as usize).ok_or(Fault::UnknownTag(tag))?;
        let has_tag = |job: &Job| matches!(job.state, State::Submitted { tag: own, .. } if own == tag);
        let job = channel.job.as_ref().filter(|job| has_tag(job)).ok_or(Fault::UnknownTag(tag))?;
        let operation = job.descriptor.operation();
        let total = operation.total_bytes();
        let decoded = wire::decode_completion(&self.end.whole(header), total).map_err(Fault::Malformed)?;
        let mut outcome = Outcome { engine: EngineKind::External, ..decoded.outcome };
        check(&outcome, operation, total)?;
        if let (Ok(()), Operation::Compare { .. }) = (outcome.result, operation) {
            // As every engine counts it: the equal bytes.
            outcome.bytes_done = outcome.value;
        }
        channel.job = None;
        self.submitted -= 1;
        // Its list is free again, also if the engine's count lags.
        self.waits_for_room = false;
        self.moved = None;
        Ok(EngineCompletion { ticket: Ticket { channel: number, serial: channel.serial }, outcome })
    }

    /// Looks, a few times within the limit, whether the engine as a whole has made no progress, or a job takes far too long.
    ///
    /// A job may wait behind others, so progress of any of them counts. So does one whose memory is being prepared. But each has to end,
    /// also if the engine reports progress for ever.
    fn check_progress(&mut self, now: Instant) {
        // A worker without deadlines does not read the clock for each poll, and says that it is the origin.
        let is_known = now > Instant::ORIGIN;
        let is_early = self.checked.is_some_and(|checked| now < checked.after(self.stall / 4));
        if self.submitted == 0 || !is_known || is_early {
            return;
        }
        self.checked = Some(now);
        let mut is_overdue = false;
        for channel in &mut self.channels {
            let Some(Job { descriptor, state: State::Submitted { tag, time, seen, prepared_until, due } }) =
                &mut channel.job
            else {
                continue;
            };
            let total = descriptor.operation().total_bytes();
            if let Some((bytes, _)) = self.end.progress(*tag) {
                let bytes = bytes.min(total);
                let until =
                    *prepared_until.get_or_insert_with(|| now.after(self.stall.saturating_mul(STALLS)));
                // None of its bytes yet: the engine says that it prepares the memory.
                let is_prepared = bytes == 0 && *seen == 0 && now < until;
                if is_prepared {
                    // Its time begins after that: the engine may have taken later ones first.
                    *due = None;
                }
                if bytes > *seen || is_prepared {
                    *seen = bytes;
                    self.moved = Some(now);
                }
            }
            is_overdue |= *due.get_or_insert_with(|| now.after(*time)) <= now;
        }
        let moved = *self.moved.get_or_insert(now);
        if is_overdue || now >= moved.after(self.stall) {
            self.fault = Some(Fault::Stalled(self.stall));
        }
    }

    /// How long a job may take that is submitted now: the jobs before it come first.
    fn time_for(&self, bytes: u64) -> Duration {
        let before = self.channels.iter().filter_map(|channel| channel.job.as_ref());
        let submitted = before.filter(|job| matches!(job.state, State::Submitted { .. }));
        let all =
            submitted.fold(bytes, |sum, job| sum.saturating_add(job.descriptor.operation().total_bytes()));
        self.stall.saturating_mul(STALLS).saturating_add(Duration::from_secs(all / SLOWEST_BYTES_PER_SECOND))
    }

    fn submitted_tag(&self, ticket: Ticket) -> Option<(u32, u64)> {
        let channel = self.channels.get(ticket.channel as usize)?;
        let job = channel.job.as_ref().filter(|_| channel.serial == ticket.serial)?;
        let State::Submitted { tag, .. } = job.state else { return None };
        Some((tag, job.descriptor.operation().total_bytes()))
    }
}

/// Whether an operand lies in memory that only the engine reaches.
fn needs_own_memory(operation: &Operation<Region<ExternalFrame>>) -> bool {
    operation.has_operand(|region| region.memory().is_own)
}

enum Staged {
    Done,
    /// The ring or its list area is full until the engine takes requests.
    Later,
    /// The operation has no encoding.
    Never,
}

/// The request that a descriptor becomes. Its policy, deadline and order are the service's business.
fn request(descriptor: &Descriptor<ExternalFrame>) -> Request {
    let named = descriptor.operation().try_map(|_, region, reach| {
        let start = match reach {
            Reach::Walk(plane, _) => plane.start,
            Reach::Bytes(_) => 0,
        };
        Ok::<_, std::convert::Infallible>((Span::new(region.memory().handle, region.offset()), start))
    });
    let Ok(operation) = named;
    Request { task: Task::Transfer(operation), terms: Terms { hint: descriptor.hint(), ..Terms::PLAIN } }
}

/// Whether an engine may end the operation so.
fn check(outcome: &Outcome, operation: &Operation<Region<ExternalFrame>>, total: u64) -> Result<(), Fault> {
    let done = outcome.bytes_done;
    match outcome.result {
        Ok(()) => {
            let most = match operation {
                Operation::Compare { length, .. } => *length,
                Operation::Crc { .. } | Operation::CopyCrc { .. } => u64::from(u32::MAX),
                _ => 0,
            };
            // A comparison may end at the first difference.
            let is_whole = matches!(operation, Operation::Compare { .. }) || done == total;
            if done > total || !is_whole {
                return Err(Fault::Bytes { done, total });
            }
            if outcome.value > most { Err(Fault::Value(outcome.value)) } else { Ok(()) }
        }
        Err(
            Failure::Cancelled
            | Failure::MemoryFault
            | Failure::Unsupported
            | Failure::EngineTimedOut
            | Failure::RequestDropped
            | Failure::EngineReset
            | Failure::PeerLost
            | Failure::PeerRefused { .. },
        ) => {
            if done > total {
                return Err(Fault::Bytes { done, total });
            }
            Ok(())
        }
        Err(failure) => Err(Fault::Failure(failure)),
    }
}

impl Engine for ExternalEngine {
    type Memory = ExternalFrame;

    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            kind: EngineKind::External,
            channels: self.channels.len() as u32,
            longest_bytes: self.description.longest_bytes,
            preemption_bytes: None,
            overlapping_copy: true,
            aligned_pixels: false,
            operations: self.description.operations,
            immediate_bytes: 0,
        }
    }

    fn post(
        &mut self,
        descriptor: Descriptor<ExternalFrame>,
    ) -> Result<Ticket, Refused<Descriptor<ExternalFrame>>> {
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
        let mut any = false;
        for job in self.channels.iter_mut().filter_map(|channel| channel.job.as_mut()) {
            if job.state == State::Posted {
                job.state = State::Ready;
                any = true;
            }
        }
        if any {
            self.submit_ready();
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        if self.submitted > 0 {
            self.take_completions(completions);
            self.check_progress(now);
        }
        if !self.works_alone() {
            self.submit_ready();
            self.take_ended(completions);
        }
        false
    }

    fn watermark(&self, ticket: Ticket) -> Option<Watermark> {
        let (tag, total) = self.submitted_tag(ticket)?;
        let (bytes, downward) = self.end.progress(tag)?;
        Some(Watermark { bytes: bytes.min(total), downward })
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        self.watermark(ticket).map_or(0, |watermark| watermark.bytes)
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(channel) = self.channels.get_mut(channel as usize) {
            channel.is_suspended = turns == 0;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        let job = self.channels.get(channel as usize).and_then(|channel| channel.job.as_ref());
        !job.is_some_and(|job| matches!(job.state, State::Submitted { .. }))
    }

    fn works_alone(&self) -> bool {
        self.channels.iter().all(|channel| match channel.job.as_ref().map(|job| job.state) {
            None | Some(State::Submitted { .. }) => true,
            // A lost engine gets no more work, so the next poll ends the job.
            Some(State::Ready) if self.is_over() => false,
            Some(State::Ready) => {
                let waits = self.waits_for_room && self.submitted > 0 && !self.end.has_taken_more();
                channel.is_suspended || self.submitted >= self.limit || waits
            }
            Some(State::Posted | State::Ended(_)) => false,
        })
    }

    fn cancel(&mut self, ticket: Ticket) {
        let Some(channel) = self.channels.get_mut(ticket.channel as usize) else { return };
        let Some(job) = channel.job.as_mut().filter(|_| channel.serial == ticket.serial) else { return };
        match job.state {
            State::Posted | State::Ready => job.state = State::Ended(Failure::Cancelled),
            State::Submitted { tag, .. } => {
                if self.end.cancel(tag) {
                    self.wake_engine();
                }
            }
            State::Ended(_) => {}
        }
    }

    /// When the jobs are next looked at for progress.
    fn next_wake(&self) -> Option<Instant> {
        let checked = self.checked.unwrap_or(Instant::ORIGIN);
        (self.submitted > 0 && self.fault.is_none()).then(|| checked.after(self.stall / 4))
    }
}
