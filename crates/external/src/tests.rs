//! Both ends in one process, over memory of this process: requests arrive as they were posted, and lies are faults.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memferry_clock::Instant;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, ParkedWord, ServiceEnd};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::{
    CacheHint, Completion, Copy2d, Count2d, Descriptor, Engine, EngineCompletion, EngineKind, Failure,
    Handle, Lists, Memory, Operation, Operations, Outcome, PixelSize, Plane, Region, Segment, Span, wire,
};
use rustix::event::EventfdFlags;

use crate::layout::EngineLayout;
use crate::{
    DescriptionError, EngineDescription, EngineEnd, ExternalEngine, ExternalFrame, Fault, Lost, Work, WorkId,
};

const STALL: Duration = Duration::from_millis(40);
const CAPACITY: u32 = 8;
const CHANNELS: u32 = 6;
const PAGE: usize = 4096;

const SOURCE: Handle = Handle::new(3, 1);
const DESTINATION: Handle = Handle::new(4, 7);

/// The memories of a queue pair, and the ends over them.
struct Pair {
    worker_end: ExternalEngine,
    service: Mapping,
    own: Mapping,
    layout: EngineLayout,
    doorbell: OwnedFd,
}

fn zeroed(bytes: u64) -> Mapping {
    // Words of a queue pair have to be aligned, and a vector of bytes is only by luck.
    let (_, mapping) = memferry_shm::frame::allocate_half(bytes).unwrap();
    mapping
}

impl Pair {
    fn of(description: EngineDescription) -> Self {
        Self::limited(description, 4)
    }

    /// A pair whose engine has so many jobs at a time.
    fn limited(description: EngineDescription, limit: u32) -> Self {
        let layout = EngineLayout::new(2, CAPACITY).unwrap();
        let service = zeroed(layout.service_bytes());
        let own = zeroed(layout.engine_bytes());
        let words = |mapping: &Mapping| MappedWords::new(mapping.clone()).unwrap();
        // Worker 1 of two.
        let (client, half) = layout.halves(&words(&service), &words(&own), 1).unwrap();
        let parked = layout.parked_words(&words(&own)).unwrap();
        let end = ClientEnd::new(layout.pair(), client, half, parked, Fences::Full).unwrap();
        let wake = layout.wake_word(&words(&service)).unwrap();
        let worker_end = ExternalEngine::new(description, (end, wake), (CHANNELS, limit), STALL);
        let doorbell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Self { worker_end, service, own, layout, doorbell }
    }

    fn new() -> Self {
        Self::of(EngineDescription::default())
    }

    fn engine(&self) -> EngineEnd {
        let doorbell = self.doorbell.try_clone().unwrap();
        EngineEnd::new(self.layout, (self.service.clone(), self.own.clone()), doorbell, Fences::Full).unwrap()
    }

    /// The engine's half of worker 1's queue pair without [`EngineEnd`]'s manners.
    fn liar(&self) -> ServiceEnd<MappedWords> {
        let words = |mapping: &Mapping| MappedWords::new(mapping.clone()).unwrap();
        let (client, half) = self.layout.halves(&words(&self.service), &words(&self.own), 1).unwrap();
        ServiceEnd::new(self.layout.pair(), client, half, Fences::Full).unwrap()
    }

    fn post(&mut self, channel: u32, operation: Operation<Region<ExternalFrame>>) {
        let descriptor = Descriptor::new(channel, operation).unwrap().with_hint(CacheHint::Stream);
        self.worker_end.post(descriptor).unwrap();
        self.worker_end.ring_doorbell();
    }

    fn poll(&mut self) -> Vec<EngineCompletion> {
        self.poll_at(0)
    }

    fn poll_at(&mut self, milliseconds: u64) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        self.worker_end.poll(Instant::ORIGIN.after(Duration::from_millis(milliseconds)), &mut completions);
        completions
    }
}

fn frame(handle: Handle, length: u64) -> ExternalFrame {
    ExternalFrame { handle, length, is_writable: true, is_own: false }
}

fn part(handle: Handle, offset: u64, length: u64) -> Region<ExternalFrame> {
    Region::new(frame(handle, PAGE as u64), offset, length).unwrap()
}

fn copy(length: u64) -> Operation<Region<ExternalFrame>> {
    let source = part(SOURCE, 64, length);
    Operation::Copy { source, destination: part(DESTINATION, 128, length), length }
}

fn done(bytes_done: u64) -> Outcome {
    Outcome { result: Ok(()), bytes_done, value: 0, engine: EngineKind::External }
}

/// A copy that the engine has taken.
fn begun() -> (Pair, EngineEnd, WorkId) {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(0, copy(100));
    let id = engine.next_work().unwrap().id;
    (pair, engine, id)
}

/// What the engine gets for one posted operation.
fn sent(operation: Operation<Region<ExternalFrame>>) -> Work {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(0, operation);
    let work = engine.next_work().unwrap();
    assert!(engine.next_work().is_none());
    work
}

#[test]
fn a_copy_arrives_and_its_completion_returns() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(2, copy(100));
    let work = engine.next_work().unwrap();
    assert_eq!((work.id.worker, work.hint), (1, CacheHint::Stream));
    let expected = Operation::Copy {
        source: Span::new(SOURCE, 64),
        destination: Span::new(DESTINATION, 128),
        length: 100,
    };
    assert_eq!(work.operation, expected);
    assert!(!pair.worker_end.has_news() && pair.poll().is_empty());
    engine.progress(work.id, 60, false);
    engine.complete(work.id, done(100));
    assert!(pair.worker_end.has_news());
    let completions = pair.poll();
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].ticket.channel, completions[0].outcome), (2, done(100)));
    assert_eq!(pair.worker_end.fault(), None);
    assert!(pair.poll().is_empty(), "the completion came twice");
}

#[test]
fn lists_and_walks_arrive_whole() {
    let segments = |handle, offsets: [u64; 2]| {
        let segment = |offset| Segment { place: part(handle, offset, 32), length: 32 };
        Box::new(offsets.map(segment)) as Box<[_]>
    };
    let lists = Lists { source: segments(SOURCE, [0, 512]), destination: segments(DESTINATION, [64, 0]) };
    let work = sent(Operation::ScatterGather { lists: Arc::new(lists) });
    let Operation::ScatterGather { lists } = work.operation else { panic!("{work:?}") };
    assert_eq!(lists.source[1].place, Span::new(SOURCE, 512));
    assert_eq!(lists.destination[0].place, Span::new(DESTINATION, 64));

    // A row from right to left begins at its last pixel.
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 10, y_count: 1 };
    let backwards = Plane { start: 9, x_step: -1, y_step: 0 };
    let shape = Copy2d {
        count,
        source: backwards,
        destination: Plane::contiguous(0, count.pixel),
        transparent: None,
    };
    let work = sent(Operation::Copy2d {
        source: part(SOURCE, 100, 10),
        destination: part(DESTINATION, 200, 10),
        shape,
    });
    let Operation::Copy2d { source, destination, shape } = work.operation else { panic!("{work:?}") };
    assert_eq!((source.handle, source.offset + shape.source.start), (SOURCE, 109));
    assert_eq!((destination.handle, destination.offset + shape.destination.start), (DESTINATION, 200));
    assert_eq!(shape.source.x_step, -1);
}

/// A list with as many segments as there can be, of a byte each.
fn longest_list() -> Operation<Region<ExternalFrame>> {
    let segments = |handle| (0..1024).map(|at| Segment { place: part(handle, at, 1), length: 1 }).collect();
    Operation::ScatterGather {
        lists: Arc::new(Lists { source: segments(SOURCE), destination: segments(DESTINATION) }),
    }
}

#[test]
fn a_list_without_room_waits_and_holds_up_no_copy() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(0, longest_list());
    pair.post(1, longest_list());
    pair.post(2, copy(100));
    let list = engine.next_work().unwrap();
    assert_eq!(list.operation.total_bytes(), 1024);
    let copy = engine.next_work().unwrap();
    assert_eq!(copy.operation.total_bytes(), 100);
    assert!(
        !pair.worker_end.has_news() && pair.worker_end.works_alone(),
        "there is nothing to do until the engine says more"
    );
    // An engine that finds nothing says how much it has taken.
    assert!(engine.next_work().is_none());
    assert!(pair.worker_end.has_news() && !pair.worker_end.works_alone());
    pair.poll();
    assert!(!pair.worker_end.has_news());
    let second = engine.next_work().unwrap();
    assert_eq!(second.operation.total_bytes(), 1024);
    for (work, bytes) in [(second, 1024), (copy, 100), (list, 1024)] {
        engine.complete(work.id, done(bytes));
    }
    assert_eq!(pair.poll().len(), 3);
    assert_eq!(pair.worker_end.fault(), None);
}

#[test]
fn a_list_without_room_follows_a_completion_of_an_engine_that_does_not_count() {
    let mut pair = Pair::new();
    let mut liar = pair.liar();
    pair.post(0, longest_list());
    pair.post(1, longest_list());
    let slot = liar.pop().unwrap();
    assert!(!pair.worker_end.has_news() && pair.worker_end.works_alone());
    let tag = u64::from(wire::tag_of(slot[0]));
    let completion = Completion { tag, inherited: false, outcome: done(1024) };
    liar.stage(&wire::encode_completion(&completion)).unwrap();
    liar.publish();
    assert_eq!(pair.poll().len(), 1);
    assert!(liar.pop().is_some());
}

#[test]
fn cancels_reach_the_engine() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    let descriptor = Descriptor::new(1, copy(100)).unwrap();
    let ticket = pair.worker_end.post(descriptor).unwrap();
    pair.worker_end.ring_doorbell();
    let work = engine.next_work().unwrap();
    assert!(!engine.take_cancels() && !engine.is_cancelled(work.id));
    pair.worker_end.cancel(ticket);
    // It does not sleep while a cancel waits.
    engine.sleep(Duration::from_secs(60));
    assert!(engine.take_cancels() && engine.is_cancelled(work.id));
    engine.complete(work.id, Outcome { bytes_done: 7, ..Outcome::refused(Failure::Cancelled) });
    let completions = pair.poll();
    assert_eq!(completions[0].outcome.result, Err(Failure::Cancelled));
    assert_eq!(completions[0].outcome.bytes_done, 7);
}

#[test]
fn a_cancel_wakes_only_an_engine_that_sleeps() {
    let words = |mapping: &Mapping| MappedWords::new(mapping.clone()).unwrap();
    for parked in [0, 1] {
        let mut pair = Pair::new();
        let mut engine = pair.engine();
        let ticket = pair.worker_end.post(Descriptor::new(1, copy(100)).unwrap()).unwrap();
        pair.worker_end.ring_doorbell();
        assert!(engine.next_work().is_some());
        let flag = pair.layout.parked_words(&words(&pair.own)).unwrap();
        ParkedWord::new(flag, 0).unwrap().set(parked);
        let wake = pair.layout.wake_word(&words(&pair.service)).unwrap();
        let before = wake.word(0).load(Ordering::Relaxed);
        pair.worker_end.cancel(ticket);
        assert_eq!(wake.word(0).load(Ordering::Relaxed) - before, parked);
    }
}

#[test]
fn a_sleeping_engine_is_woken() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            loop {
                if let Some(work) = engine.next_work() {
                    engine.complete(work.id, done(100));
                    return;
                }
                engine.sleep(Duration::from_secs(60));
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        pair.post(0, copy(100));
        thread.join().unwrap();
    });
    assert_eq!(pair.poll().len(), 1);
}

#[test]
fn a_parked_worker_gets_the_doorbell() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    let rings = |pair: &Pair| {
        let mut count = [0; 8];
        rustix::io::read(&pair.doorbell, &mut count).is_ok()
    };
    for parked in [0, 1] {
        pair.worker_end.set_parked(parked);
        pair.post(0, copy(100));
        let work = engine.next_work().unwrap();
        engine.complete(work.id, done(100));
        assert_eq!(rings(&pair), parked == 1);
        assert_eq!(pair.poll().len(), 1);
    }
}

#[test]
fn an_engine_gets_only_what_it_announced() {
    let description = EngineDescription {
        operations: Operations::COPY | Operations::NOP,
        longest_bytes: 256,
        alignment_bytes: 64,
        ..EngineDescription::default()
    };
    let mut pair = Pair::of(description);
    let mut refused = |operation: Operation<Region<ExternalFrame>>| {
        pair.worker_end.post(Descriptor::new(0, operation).unwrap()).is_err()
    };
    let read_only = ExternalFrame { is_writable: false, ..frame(DESTINATION, PAGE as u64) };
    let destination = Region::new(read_only, 0, 64).unwrap();
    assert!(refused(Operation::Copy { source: part(SOURCE, 0, 64), destination, length: 64 }));
    assert!(refused(Operation::Crc { source: part(SOURCE, 0, 64), length: 64, seed: 0 }), "not announced");
    assert!(refused(copy(320)), "too long");
    assert!(refused(copy(65)), "not aligned");
    assert!(!refused(copy(64)));
}

#[test]
fn malformed_requests_are_unsupported() {
    // The worker's half, written by hand.
    let pair = Pair::new();
    let words = |mapping: &Mapping| MappedWords::new(mapping.clone()).unwrap();
    let (client, half) = pair.layout.halves(&words(&pair.service), &words(&pair.own), 0).unwrap();
    let parked = pair.layout.parked_words(&words(&pair.own)).unwrap();
    let mut worker = ClientEnd::new(pair.layout.pair(), client, half, parked, Fences::Full).unwrap();
    let mut engine = pair.engine();
    let mut slot = [u64::MAX; 16];
    slot[0] = 0xff << 16 | 5 << 32;
    worker.stage(&slot).unwrap();
    worker.publish();
    assert!(engine.next_work().is_none());
    let completion = worker.pop().unwrap();
    assert_eq!(wire::tag_of_completion(completion[0]), 5);
    let decoded = wire::decode_completion(&completion, 0).unwrap();
    assert_eq!(decoded.outcome.result, Err(Failure::Unsupported));
}

/// Posts a copy of 100 bytes, lets `lie` complete it, and returns the fault.
fn fault_of(lie: impl FnOnce(u32, &mut ServiceEnd<MappedWords>)) -> Option<Fault> {
    let mut pair = Pair::new();
    let mut liar = pair.liar();
    liar.set_worker(0);
    pair.post(0, copy(100));
    let tag = wire::tag_of(liar.pop().unwrap()[0]);
    lie(tag, &mut liar);
    liar.publish();
    assert_eq!(pair.poll(), [], "a lie became a completion");
    let fault = pair.worker_end.fault();
    // No more work for it, and the job ends when the process has.
    assert!(pair.worker_end.post(Descriptor::new(1, copy(1)).unwrap()).is_err());
    pair.worker_end.end(Lost::Gone);
    let ended = pair.poll();
    assert_eq!(ended.len(), 1, "the job is lost");
    assert_eq!(ended[0].outcome.result, Err(Failure::EngineReset));
    fault
}

fn completion(tag: u32, outcome: Outcome) -> [u64; 3] {
    wire::encode_completion(&Completion { tag: u64::from(tag), inherited: false, outcome })
}

#[test]
fn an_unknown_tag_is_a_fault() {
    for change in [1, CAPACITY, u32::MAX - 7] {
        let fault = fault_of(|tag, liar| {
            liar.stage(&completion(tag.wrapping_add(change), done(100))).unwrap();
        });
        assert!(matches!(fault, Some(Fault::UnknownTag(_))), "{fault:?}");
    }
}

#[test]
fn a_second_completion_is_a_fault() {
    let mut pair = Pair::new();
    let mut liar = pair.liar();
    pair.post(0, copy(100));
    pair.post(1, copy(100));
    let tag = wire::tag_of(liar.pop().unwrap()[0]);
    for _ in 0..2 {
        liar.stage(&completion(tag, done(100))).unwrap();
    }
    liar.publish();
    assert_eq!(pair.poll().len(), 1);
    assert_eq!(pair.worker_end.fault(), Some(Fault::UnknownTag(tag)));
}

#[test]
fn impossible_byte_counts_are_faults() {
    for outcome in [
        done(101),
        done(99),
        done(u64::MAX),
        Outcome { bytes_done: 101, ..Outcome::refused(Failure::Cancelled) },
    ] {
        let fault = fault_of(|tag, liar| liar.stage(&completion(tag, outcome)).unwrap());
        assert_eq!(fault, Some(Fault::Bytes { done: outcome.bytes_done, total: 100 }));
    }
}

#[test]
fn impossible_results_are_faults() {
    let fault = fault_of(|tag, liar| {
        liar.stage(&completion(tag, Outcome { value: 9, ..done(100) })).unwrap();
    });
    assert_eq!(fault, Some(Fault::Value(9)));
    for failure in
        [Failure::ServiceStopping, Failure::DeadlineExceeded, Failure::BadLoop, Failure::TooLong { limit: 1 }]
    {
        let fault = fault_of(|tag, liar| liar.stage(&completion(tag, Outcome::refused(failure))).unwrap());
        assert_eq!(fault, Some(Fault::Failure(failure)));
    }
}

#[test]
fn malformed_completions_are_faults() {
    let fault = fault_of(|tag, liar| {
        let [header, ..] = completion(tag, done(100));
        // A status that does not exist.
        liar.stage(&[header | 0xff << 17, u64::MAX, u64::MAX]).unwrap();
    });
    assert!(matches!(fault, Some(Fault::Malformed(_) | Fault::Bytes { .. })), "{fault:?}");
}

#[test]
fn random_words_never_panic_the_worker() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2000 {
        let mut pair = Pair::new();
        let mut engine = pair.engine();
        pair.post(0, copy(100));
        pair.post(1, copy(1));
        let id = engine.next_work().unwrap().id;
        // Anything in the engine's memory, but most of all in its completions.
        let words = pair.own.length_bytes() / 8;
        for _ in 0..random.usize(1..20) {
            let word = random.usize(..words) as u64;
            let value = if random.bool() { random.u64(..) } else { random.u64(..8) };
            pair.own.write(8 * word, &value.to_ne_bytes()).unwrap();
        }
        if random.bool() {
            engine.complete(id, done(100));
        }
        let completions = pair.poll();
        assert!(completions.len() <= 2, "{completions:?}");
        pair.worker_end.end(Lost::Gone);
        assert_eq!(completions.len() + pair.poll().len(), 2);
    }
}

#[test]
fn a_job_without_progress_is_a_fault() {
    let (mut pair, engine, id) = begun();
    let stall = STALL.as_millis() as u64;
    pair.poll_at(1);
    assert!(pair.worker_end.next_wake().is_some());
    engine.progress(id, 50, false);
    pair.poll_at(stall / 2);
    pair.poll_at(stall + 10);
    assert_eq!(pair.worker_end.fault(), None, "it made progress");
    pair.poll_at(3 * stall);
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn progress_that_never_ends_is_a_fault() {
    let (mut pair, engine, id) = begun();
    let stall = STALL.as_millis() as u64;
    for round in 1..=4 {
        engine.progress(id, round, false);
        pair.poll_at(round * stall);
        assert_eq!(pair.worker_end.fault(), None, "round {round}");
    }
    engine.progress(id, 5, false);
    pair.poll_at(5 * stall);
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn a_job_that_is_prepared_does_not_stall_but_has_to_end() {
    let (mut pair, engine, id) = begun();
    let stall = STALL.as_millis() as u64;
    engine.progress(id, 0, false);
    for round in 1..4 {
        pair.poll_at(round * stall);
        assert_eq!(pair.worker_end.fault(), None, "round {round}");
    }
    pair.poll_at(5 * stall);
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn a_long_job_is_not_prepared_for_ever() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    // Its bytes give it much longer.
    let length = 1 << 40;
    let [source, destination] =
        [SOURCE, DESTINATION].map(|handle| Region::new(frame(handle, length), 0, length).unwrap());
    pair.post(0, Operation::Copy { source, destination, length });
    let id = engine.next_work().unwrap().id;
    let stall = STALL.as_millis() as u64;
    engine.progress(id, 0, false);
    for round in 1..=4 {
        pair.poll_at(round * stall);
    }
    assert_eq!(pair.worker_end.fault(), None);
    pair.poll_at(6 * stall);
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn the_time_of_a_job_begins_when_it_was_prepared() {
    let (mut pair, engine, id) = begun();
    let stall = STALL.as_millis() as u64;
    engine.progress(id, 0, false);
    for round in 1..4 {
        pair.poll_at(round * stall);
    }
    // It waits behind others that were taken meanwhile, and goes on.
    for round in 4..=7 {
        engine.progress(id, round, false);
        pair.poll_at(round * stall - 1);
        assert_eq!(pair.worker_end.fault(), None, "round {round}");
    }
    engine.progress(id, 8, false);
    pair.poll_at(8 * stall);
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn a_job_that_was_prepared_stalls_as_others() {
    for moves in [true, false] {
        let (mut pair, engine, id) = begun();
        let stall = STALL.as_millis() as u64;
        engine.progress(id, 0, false);
        pair.poll_at(1);
        if moves {
            engine.progress(id, 1, false);
        } else {
            engine.clear_progress(id);
        }
        pair.poll_at(1 + stall / 2);
        assert_eq!(pair.worker_end.fault(), None);
        pair.poll_at(2 + 2 * stall);
        assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)), "moves: {moves}");
    }
}

#[test]
fn progress_back_and_forth_is_none() {
    let (mut pair, engine, id) = begun();
    let stall = STALL.as_millis() as u64;
    for round in 0..8 {
        engine.progress(id, round % 2, false);
        pair.poll_at(1 + round * stall / 2);
    }
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn progress_of_one_job_counts_for_others() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(0, copy(100));
    pair.post(1, copy(100));
    let first = engine.next_work().unwrap().id;
    let second = engine.next_work().unwrap().id;
    let stall = STALL.as_millis() as u64;
    pair.poll_at(1);
    engine.progress(first, 50, false);
    pair.poll_at(stall);
    engine.complete(first, done(100));
    assert_eq!(pair.poll_at(2 * stall - 1).len(), 1);
    pair.poll_at(2 * stall + stall / 2);
    assert_eq!(pair.worker_end.fault(), None, "the second one had to wait");
    engine.complete(second, done(100));
    assert_eq!(pair.poll_at(2 * stall + stall / 2 + 1).len(), 1);
}

#[test]
fn a_claimed_channel_fault_is_a_fault() {
    let (mut pair, mut engine, id) = begun();
    engine.complete(id, Outcome::refused(Failure::ChannelFaulted));
    assert!(pair.poll().is_empty());
    assert_eq!(pair.worker_end.fault(), Some(Fault::Failure(Failure::ChannelFaulted)));
}

#[test]
fn polls_without_a_time_are_no_stall() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(0, copy(100));
    engine.next_work().unwrap();
    let stall = STALL.as_millis() as u64;
    for milliseconds in [0, 1000 * stall, 0, 1000 * stall + 1] {
        pair.poll_at(milliseconds);
        assert_eq!(pair.worker_end.fault(), None);
    }
    pair.poll_at(1002 * stall);
    assert_eq!(pair.worker_end.fault(), Some(Fault::Stalled(STALL)));
}

#[test]
fn jobs_of_a_lingering_engine_fault_their_channels() {
    let mut pair = Pair::new();
    let mut engine = pair.engine();
    pair.post(3, copy(100));
    engine.next_work().unwrap();
    pair.worker_end.end(Lost::Cut);
    assert_eq!(pair.poll(), [], "its process still runs");
    pair.worker_end.end(Lost::Lingering);
    let completions = pair.poll();
    assert_eq!(completions[0].outcome.result, Err(Failure::ChannelFaulted));
    assert_eq!(pair.worker_end.faulted(), [3]);
}

#[test]
fn memory_smaller_than_its_layout_is_refused() {
    let pair = Pair::new();
    let other = EngineLayout::new(3, CAPACITY).unwrap();
    let doorbell = pair.doorbell.try_clone().unwrap();
    let end = EngineEnd::new(other, (pair.service.clone(), pair.own.clone()), doorbell, Fences::Full);
    assert!(end.is_err());
    assert_eq!(frame(SOURCE, 9).length(), 9);
}

/// A fill of memory that only the engine reaches.
fn own_fill() -> Operation<Region<ExternalFrame>> {
    let memory = ExternalFrame { is_own: true, ..frame(DESTINATION, PAGE as u64) };
    let destination = Region::new(memory, 0, 64).unwrap();
    Operation::Fill { destination, length: 64, pattern: memferry_transfer::Pattern::Byte(1) }
}

#[test]
fn jobs_that_wait_for_the_engine_come_in_turn() {
    let mut pair = Pair::limited(EngineDescription::default(), 1);
    let mut engine = pair.engine();
    for channel in [0, 1, 3] {
        pair.post(channel, own_fill());
    }
    let refused = Descriptor::new(2, copy(8)).unwrap();
    assert!(pair.worker_end.post(refused).is_err(), "a CPU can do it");
    let mut served = Vec::new();
    for _ in 0..6 {
        let work = engine.next_work().unwrap();
        assert!(engine.next_work().is_none() && pair.worker_end.works_alone(), "one at a time");
        engine.complete(work.id, done(64));
        let channel = pair.poll()[0].ticket.channel;
        served.push(channel);
        // As fast as a greedy client could.
        pair.post(channel, own_fill());
    }
    assert_eq!(served, [0, 1, 3, 0, 1, 3]);
}

#[test]
fn jobs_that_wait_end_when_the_engine_is_lost() {
    let mut pair = Pair::limited(EngineDescription::default(), 1);
    pair.post(0, own_fill());
    pair.post(1, own_fill());
    assert!(pair.poll().is_empty());
    pair.worker_end.end(Lost::Cut);
    assert!(!pair.worker_end.works_alone());
    let ended: Vec<_> =
        pair.poll().iter().map(|ended| (ended.ticket.channel, ended.outcome.result)).collect();
    assert_eq!(ended, [(1, Err(Failure::EngineReset))], "the other one may touch memory");
    assert_eq!(pair.worker_end.limit(), None, "nobody waits for it");
}

#[test]
fn each_number_of_a_description_is_checked() {
    let good = EngineDescription::default();
    let longest = good.longest_bytes;
    assert_eq!(EngineDescription { shortest_bytes: longest, ..good }.check(), Ok(()));
    assert_eq!(EngineDescription { alignment_bytes: 2 << 20, channels: 1 << 12, ..good }.check(), Ok(()));
    for (longest, shortest) in [(0, 0), (longest + 1, 0), (longest, longest + 1), (100, 101)] {
        let bad = EngineDescription { longest_bytes: longest, shortest_bytes: shortest, ..good };
        assert_eq!(bad.check(), Err(DescriptionError::Lengths { shortest, longest }));
    }
    for bytes in [0, 3, 4 << 20] {
        let bad = EngineDescription { alignment_bytes: bytes, ..good };
        assert_eq!(bad.check(), Err(DescriptionError::Alignment(bytes)));
    }
    for channels in [0, (1 << 12) + 1] {
        assert_eq!(EngineDescription { channels, ..good }.check(), Err(DescriptionError::Channels(channels)));
    }
    let none = EngineDescription { operations: Operations::empty(), ..good };
    assert_eq!(none.check(), Err(DescriptionError::Operations(0)));
}
