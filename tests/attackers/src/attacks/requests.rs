//! Attacks by requests in the rings.

use std::sync::Arc;

use memferry_shm::queue_pair::ClientEnd;
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::wire::{self, SubmissionSlot};
use memferry_transfer::{
    Color24, Copy2d, Count2d, Fill2d, Handle, Lists, Operation, Pattern, PixelSize, Plane, Request, Segment,
    Span,
};

use super::memory::random_frame;
use crate::raw_queue::{self, CANCEL_GENERATION, CANCEL_WORDS, RawQueue};
use crate::stage::{self, MOMENT, Stage, crowd};
use crate::{Failed, system};

const QUEUES: usize = 64;
const CAPACITY: u32 = 1024;

/// Keeps all queues full of the slots, in turn.
fn keep_full(stage: &Stage, queues: &mut [RawQueue], slots: &[SubmissionSlot]) -> Result<(), Failed> {
    stage.running();
    loop {
        let mut added = 0;
        for queue in &mut *queues {
            added += queue.refill(slots)?;
        }
        if added == 0 {
            std::thread::sleep(MOMENT);
        }
    }
}

fn encoded(requests: &[Request]) -> Result<Vec<SubmissionSlot>, Failed> {
    requests.iter().map(raw_queue::slot).collect()
}

pub(super) fn flood(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, 4096)?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, CAPACITY)?;
    let copy = Request::copy(Span::new(frame.handle, 0), Span::new(frame.handle, 2048), 64);
    keep_full(stage, &mut queues, &encoded(&[Request::new(Operation::Nop), copy])?)
}

pub(super) fn malformed(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, CAPACITY)?;
    let strange = Handle::new(4000, 77);
    let mut slots = encoded(&[Request::copy(Span::new(strange, 0), Span::new(strange, 0), 64)])?;
    // Unknown opcodes, an unknown hint, reserved bits, a wrong length, a wrong width, a list outside the area.
    for header in [0, 200 << 16, 1 << 16 | 3 << 27, wire::LONG | 1 << 16, 5 << 16, 3 << 16] {
        let mut slot = [u64::MAX; wire::SUBMISSION_WORDS];
        slot[0] = header;
        slots.push(slot);
    }
    let mut outside = [0; wire::SUBMISSION_WORDS];
    (outside[0], outside[3], outside[4]) = (wire::LONG | 6 << 16, u64::MAX, 1);
    slots.push(outside);
    keep_full(stage, &mut queues, &slots)
}

/// Long lists of short segments, all in one place of the list area.
pub(super) fn long_lists(stage: &Stage) -> Result<(), Failed> {
    const SEGMENTS: u64 = 1024;
    const LENGTH: u64 = 16;
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, 64 << 10)?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, CAPACITY)?;
    let side = |start: u64| -> Box<[Segment<Span>]> {
        (0..SEGMENTS)
            .map(|at| Segment { place: Span::new(frame.handle, start + at * LENGTH), length: LENGTH })
            .collect()
    };
    let lists = Arc::new(Lists { source: side(0), destination: side(32 << 10) });
    let (mut slot, list) = raw_queue::encoded(&Request::new(Operation::ScatterGather { lists }))?;
    for queue in &mut queues {
        let first = queue.write_list(&list)?;
        wire::place_list(&mut slot, first);
    }
    keep_full(stage, &mut queues, &[slot])
}

/// Walks over one pixel for minutes.
fn endless_walks(handle: Handle) -> Result<[Request; 2], Failed> {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let plane = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = Color24::new(7).ok_or("no colour")?;
    let copy = Copy2d { count, source: plane, destination: plane, transparent: None };
    let place = Span::new(handle, 0);
    Ok([
        Request::fill_2d(place, Fill2d { count, destination: plane, color }),
        Request::copy_2d(place, Span::new(handle, 2048), copy),
    ])
}

pub(super) fn endless(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, 4096)?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, 64)?;
    let [fill, copy] = endless_walks(frame.handle)?;
    let short = Request::copy(Span::new(frame.handle, 0), Span::new(frame.handle, 2048), 64);
    let body = [short.clone().linked(), short.clone().linked(), short];
    let mut requests = vec![fill, copy, Request::repeat(0)];
    requests.extend(body);
    keep_full(stage, &mut queues, &encoded(&requests)?)
}

pub(super) fn cancel_storm(stage: &Stage) -> Result<(), Failed> {
    const CAPACITY: u32 = 256;
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, 4096)?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, CAPACITY)?;
    let slots = encoded(&endless_walks(frame.handle)?)?;
    let mut generation = 0u64;
    stage.running();
    loop {
        for queue in &mut queues {
            queue.refill(&slots)?;
            for tag in queue.tags() {
                generation = generation.wrapping_add(1);
                queue.store(CANCEL_WORDS + (tag % CAPACITY) as usize, generation % 3 * (u64::from(tag) + 1));
                queue.store(CANCEL_GENERATION, generation);
            }
            queue.ring();
        }
    }
}

pub(super) fn progress_watchers(stage: &Stage) -> Result<(), Failed> {
    let half = stage.size(64 << 20, 4 << 20) as u64;
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, 2 * half)?;
    let mut queues = RawQueue::open_many(&mut connection, 8, 64)?;
    let copy = Request::copy(Span::new(frame.handle, 0), Span::new(frame.handle, half), half);
    let slots = encoded(&[copy])?;
    let sleepers: Vec<_> = queues.iter().map(|queue| queue.end.sleeper()).collect();
    stage.running();
    crowd(
        32,
        |index| system::sleep_on(sleepers[index % sleepers.len()].wake_word()),
        || {
            loop {
                for queue in &mut queues {
                    queue.refill(&slots)?;
                    queue.raise(ClientEnd::<MappedWords>::parked_for_progress());
                }
                std::thread::sleep(MOMENT);
            }
        },
    )
}

/// Asks for all the engine time there is, and breaks no rule.
pub(super) fn greed(stage: &Stage) -> Result<(), Failed> {
    let length = stage.size(1 << 30, 64 << 20) as u64;
    let part = length / 4;
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, length)?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, 64)?;
    let at = |offset| Span::new(frame.handle, offset);
    let fill = Request::fill(at(0), length, Pattern::Byte(9));
    let sources = [at(part), at(2 * part), at(3 * part)];
    let operation = Operation::Xor { sources: Box::new(sources), destination: at(0), length: part };
    let (mut xor, list) = raw_queue::encoded(&Request::new(operation))?;
    for queue in &mut queues {
        wire::place_list(&mut xor, queue.write_list(&list)?);
    }
    keep_full(stage, &mut queues, &[raw_queue::slot(&fill)?, xor])
}

pub(super) fn failing_chains(stage: &Stage) -> Result<(), Failed> {
    const LINKS: usize = 1000;
    let mut connection = stage.connect()?;
    let frame = random_frame(&mut connection, 4096)?;
    let mut queues = RawQueue::open_many(&mut connection, QUEUES, CAPACITY)?;
    let copy = |length| {
        let place = Span::new(frame.handle, 0);
        Request::copy(place, place, length)
    };
    let mut requests = vec![copy(1 << 40).linked()];
    requests.extend((2..LINKS).map(|_| copy(64).linked()));
    requests.push(copy(64));
    keep_full(stage, &mut queues, &encoded(&requests)?)
}

/// Ends its session sooner or later, and begins again.
pub(super) fn garbage(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let queues = RawQueue::open_many(&mut connection, 8, 64)?;
    let mut rng = stage::rng();
    stage.running();
    loop {
        for queue in &queues {
            for index in 0..queue.scribble.words() {
                let value = match rng.u64(..5) {
                    0 => rng.u64(..0x40),
                    1 => rng.u64(..) << 32 | rng.u64(..16) << 16 | rng.u64(..0x40),
                    2 => rng.u64(..8) << 32 | rng.u64(..0x40),
                    3 => 0,
                    _ => rng.u64(..),
                };
                queue.store(index, value);
            }
            queue.ring();
            if queue.end.closed() {
                return Err("the service ended the session".into());
            }
        }
    }
}
