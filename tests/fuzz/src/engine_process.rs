//! An engine process that writes anything anywhere in its memory, against the worker's end.
//!
//! ```text
//! bytes ──► post, cancel, suspend, poll ──► ExternalEngine ──► completions: each job once, as it may end
//!       ──► complete, forge, scribble ──► engine's memory ─┘         and no submitted job before the engine has said so or is gone
//! ```
//!
//! Single-threaded: loom tests the races of rings. A witness reads what the worker submits; the engine cannot write there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memferry_clock::Instant;
use memferry_external::layout::EngineLayout;
use memferry_external::{EngineDescription, ExternalEngine, ExternalFrame, Lost};
use memferry_shm::frame::allocate_half;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, ServiceEnd};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::{
    Completion, Descriptor, Engine, EngineCompletion, EngineKind, Failure, Handle, Lists, Operation, Outcome,
    Pattern, Region, Segment, Ticket, wire,
};

use crate::input::Input;

const STALL: Duration = Duration::from_millis(1000);
const FRAME_BYTES: u64 = 4096;

/// Input: a byte for the capacity, one for the limit, then steps of one byte and its operands (see `step`).
pub fn engine_process(data: &[u8]) {
    let mut input = Input::new(data);
    let capacity = 2 << (input.u8() % 3);
    let mut rig = Rig::new(capacity, 1 + u32::from(input.u8()) % capacity);
    while !input.is_empty() {
        rig.step(&mut input);
        rig.check();
    }
    rig.end(Lost::Gone);
    rig.poll(0);
    assert!(rig.jobs.iter().all(Option::is_none), "a job is lost: {:?}", rig.jobs);
    rig.poll(0);
}

/// A job that has not ended.
#[derive(Clone, Copy, Debug)]
struct Posted {
    ticket: Ticket,
    total: u64,
    may_stop_early: bool,
    /// Its tag, once the engine could take it.
    tag: Option<u32>,
}

/// Both ends, and the oracle's state.
struct Rig {
    broker: ExternalEngine,
    /// The engine's end on its own memory, for completions that look right.
    engine: ServiceEnd<MappedWords>,
    /// Reads what the worker submits, with a memory of its own that nobody reads.
    witness: ServiceEnd<MappedWords>,
    memory: MappedWords,
    now: Instant,
    /// The job of each channel that has one.
    jobs: Vec<Option<Posted>>,
    /// The tags of all that was ever submitted.
    tags: Vec<u32>,
    is_lost: bool,
    /// How the jobs end that the engine has not completed.
    ended: Option<Lost>,
}

impl Rig {
    fn new(capacity: u32, limit: u32) -> Self {
        let layout = EngineLayout::new(1, capacity).expect("one worker, a power of two");
        let zeroed = |bytes| {
            let (_, mapping) = allocate_half(bytes).expect("memory");
            MappedWords::new(mapping).expect("aligned memory")
        };
        let service = zeroed(layout.service_bytes());
        let memory = zeroed(layout.engine_bytes());
        let private = zeroed(layout.engine_bytes());
        let halves = |own| layout.halves(&service, own, 0).expect("memories of the layout's size");
        let end_over = |own| {
            let (client, half) = halves(own);
            ServiceEnd::new(layout.pair(), client, half, Fences::Full).expect("a half of the layout's size")
        };
        let (client, half) = halves(&memory);
        let parked = layout.parked_words(&memory).expect("a parked word");
        let end = ClientEnd::new(layout.pair(), client, half, parked, Fences::Full).expect("halves");
        let wake = layout.wake_word(&service).expect("a wake word");
        let description = EngineDescription::default();
        Self {
            broker: ExternalEngine::new(description, (end, wake), (capacity, limit), STALL),
            engine: end_over(&memory),
            witness: end_over(&private),
            memory,
            now: Instant::ORIGIN,
            jobs: vec![None; capacity as usize],
            tags: Vec::new(),
            is_lost: false,
            ended: None,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0 => self.post(input.u8(), input.u8(), input.u8()),
            1 => {
                self.broker.ring_doorbell();
                self.witness_submissions();
            }
            2 => self.poll(u64::from(input.u8()) << 3),
            3 => self.cancel(input.u8()),
            4 => self.broker.set_turns(u32::from(input.u8()) % 8, u32::from(input.u8())),
            5 => self.scribble(usize::from(input.u8()) << 2 | usize::from(input.u8() % 4), input.u64()),
            6 => self.scribble(usize::from(input.u8()) << 2, u64::from(input.u8())),
            7 => self.complete(input.u8()),
            8 => self.forge(input.u8(), input.u32(), input.u8(), input.u64(), u64::from(input.u8())),
            9 => self.stage(&input.words()),
            10 => {
                let tag = self.tag(input.u8());
                let bytes = input.u64();
                let _ = self.engine.publish_progress(tag, bytes & !(1 << 63), bytes >> 63 == 1);
            }
            _ => self.end([Lost::Cut, Lost::Lingering, Lost::Gone][usize::from(input.u8() % 3)]),
        }
    }

    fn post(&mut self, channel: u8, kind: u8, length: u8) {
        let channel = u32::from(channel) % (self.jobs.len() as u32 + 1);
        let operation = operation(kind, 4 * u64::from(length));
        let total = operation.total_bytes();
        let may_stop_early = matches!(operation, Operation::Compare { .. });
        let posted = self.broker.post(Descriptor::new(channel, operation).expect("a good operation"));
        let Ok(ticket) = posted else { return };
        assert!(!self.is_lost && self.broker.fault().is_none(), "work for an engine that gets no more");
        let job = &mut self.jobs[channel as usize];
        assert!(job.is_none(), "two jobs on a channel");
        *job = Some(Posted { ticket, total, may_stop_early, tag: None });
    }

    /// Learns which jobs the engine can take now.
    fn witness_submissions(&mut self) {
        while let Some(slot) = self.witness.pop() {
            let tag = wire::tag_of(slot[0]);
            let channel = tag as usize & (self.jobs.len() - 1);
            let job = self.jobs[channel].as_mut().expect("only a job is submitted");
            assert!(job.tag.is_none(), "a job was submitted twice");
            assert!(!self.is_lost && self.broker.fault().is_none(), "work for an engine that gets no more");
            job.tag = Some(tag);
            self.tags.push(tag);
        }
    }

    fn poll(&mut self, milliseconds: u64) {
        self.now = self.now.after(Duration::from_millis(milliseconds));
        let was_faulty = self.broker.fault().is_some();
        let mut completions = Vec::new();
        self.broker.poll(self.now, &mut completions);
        for EngineCompletion { ticket, outcome } in completions {
            let job = self.jobs[ticket.channel as usize].take().expect("a job ended twice");
            assert_eq!(job.ticket, ticket);
            self.check_end(&job, &outcome, was_faulty);
        }
        self.witness_submissions();
    }

    /// Whether a job may end so.
    fn check_end(&self, job: &Posted, outcome: &Outcome, was_faulty: bool) {
        let Outcome { result, bytes_done, value, engine } = *outcome;
        assert_eq!(engine, EngineKind::External);
        assert!(bytes_done <= job.total);
        assert!(result.is_err() || bytes_done == job.total || job.may_stop_early && bytes_done == value);
        match (job.tag, self.ended) {
            (None, _) => assert!(
                matches!(result, Err(Failure::Cancelled | Failure::EngineReset)),
                "{result:?} of a job that the engine did not get"
            ),
            (Some(_), Some(Lost::Lingering)) => {
                assert_eq!(result, Err(Failure::ChannelFaulted));
                assert!(self.broker.faulted().contains(&job.ticket.channel), "its channel is used again");
            }
            (Some(_), Some(_)) => assert_eq!(result, Err(Failure::EngineReset)),
            (Some(tag), None) => {
                assert!(!was_faulty, "a faulty engine was believed");
                assert_ne!(result, Err(Failure::ChannelFaulted));
                let mut words = (0..self.memory.words()).map(|index| self.memory.word(index));
                let is_written =
                    words.any(|word| wire::tag_of_completion(word.load(Ordering::Relaxed)) == tag);
                assert!(is_written, "{result:?} of {tag:#x}, which the engine has not completed");
            }
        }
    }

    /// What must hold after each step.
    fn check(&self) {
        for (channel, job) in (0..).zip(&self.jobs) {
            let is_submitted = job.is_some_and(|job| job.tag.is_some()) && self.ended.is_none();
            assert_eq!(self.broker.is_at_rest(channel), !is_submitted, "channel {channel}: {job:?}");
            if let Some(job) = job {
                assert!(self.broker.bytes_done(job.ticket) <= job.total);
            }
        }
        let _ = (self.broker.next_wake(), self.broker.works_alone(), self.broker.has_news());
    }

    fn cancel(&mut self, channel: u8) {
        if let Some(job) = self.jobs[usize::from(channel) % self.jobs.len()] {
            self.broker.cancel(job.ticket);
        }
    }

    fn end(&mut self, how: Lost) {
        self.broker.end(how);
        self.is_lost = true;
        if how != Lost::Cut {
            self.ended.get_or_insert(how);
        }
    }

    fn scribble(&self, index: usize, value: u64) {
        self.memory.word(index % self.memory.words()).store(value, Ordering::Relaxed);
    }

    /// A tag that was submitted, the latest first; 0 if none was.
    fn tag(&self, back: u8) -> u32 {
        let index = (self.tags.len().saturating_sub(1)).checked_sub(usize::from(back));
        index.and_then(|index| self.tags.get(index)).copied().unwrap_or(0)
    }

    /// Completes a job as an honest engine does.
    fn complete(&mut self, back: u8) {
        let tag = self.tag(back);
        let job = self.jobs.iter().flatten().find(|job| job.tag == Some(tag));
        let Some(bytes_done) = job.map(|job| job.total) else { return };
        self.write_completion(
            tag,
            Outcome { result: Ok(()), bytes_done, value: 0, engine: EngineKind::External },
        );
    }

    /// Completes what may not exist, with what may not be.
    fn forge(&mut self, back: u8, change: u32, result: u8, bytes_done: u64, value: u64) {
        let result = match result % 12 {
            0 | 1 => Ok(()),
            2 => Err(Failure::Cancelled),
            3 => Err(Failure::MemoryFault),
            4 => Err(Failure::Unsupported),
            5 => Err(Failure::EngineTimedOut),
            6 => Err(Failure::RequestDropped),
            7 => Err(Failure::EngineReset),
            8 => Err(Failure::ChannelFaulted),
            9 => Err(Failure::ServiceStopping),
            10 => Err(Failure::TooLong { limit: bytes_done }),
            _ => Err(Failure::DeadlineExceeded),
        };
        let tag = self.tag(back) ^ change;
        self.write_completion(tag, Outcome { result, bytes_done, value, engine: EngineKind::External });
    }

    fn write_completion(&mut self, tag: u32, outcome: Outcome) {
        let completion = Completion { tag: u64::from(tag), inherited: false, outcome };
        self.stage(&wire::encode_completion(&completion));
    }

    fn stage(&mut self, slot: &wire::CompletionSlot) {
        let _ = self.engine.completion_room();
        let _ = self.engine.stage(slot);
        let _ = self.engine.publish();
    }
}

/// An operation over two frames of the engine.
fn operation(kind: u8, length: u64) -> Operation<Region<ExternalFrame>> {
    let part = |frame, offset| {
        let frame = ExternalFrame {
            handle: Handle::new(frame, 1),
            length: FRAME_BYTES,
            is_writable: true,
            is_own: false,
        };
        Region::new(frame, offset, length).expect("inside the frame")
    };
    let source = part(1, 0);
    let destination = part(2, 64);
    match kind % 6 {
        0 => Operation::Copy { source, destination, length },
        1 => Operation::Fill { destination, length, pattern: Pattern::Word(7) },
        2 => Operation::Compare { first: source, second: destination, length },
        3 => Operation::Crc { source, length, seed: 1 },
        4 => {
            let segment = |place| Box::new([Segment { place, length }]) as Box<[_]>;
            let lists = Lists { source: segment(source), destination: segment(destination) };
            Operation::ScatterGather { lists: Arc::new(lists) }
        }
        _ => Operation::Nop,
    }
}
