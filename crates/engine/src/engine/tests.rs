//! Requests are located in frames, or not carried out.

use memferry_external::{ExternalEngine, ExternalFrame};
use memferry_service::protocol::FrameEvent;
use memferry_transfer::engine::Engine as _;
use memferry_transfer::{Copy2d, Count2d, PixelSize, Plane, Region, Ticket};
use rustix::fs::MemfdFlags;

use super::*;
use crate::frames::Frame;
use crate::pair::pair;

const WRITABLE: Handle = Handle::new(1, 1);
const READ_ONLY: Handle = Handle::new(2, 4);
const PAGE: u64 = 4096;
const OWN: Handle = Handle::new(3, 1);
const LATE: Handle = Handle::new(4, 1);

fn frames() -> Frames {
    let frames = Frames::default();
    for frame in [WRITABLE, READ_ONLY] {
        let descriptor =
            rustix::fs::memfd_create("frame", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&descriptor, PAGE).unwrap();
        if frame == READ_ONLY {
            rustix::fs::fcntl_add_seals(&descriptor, rustix::fs::SealFlags::FUTURE_WRITE).unwrap();
        }
        let event = FrameEvent::Map { frame, length: PAGE, user: 7 };
        let answered = |_, _: &[std::os::fd::BorrowedFd<'_>]| Ok(());
        events::process(event, vec![descriptor], &frames, &Watcher::default(), answered).unwrap();
    }
    frames
}

fn copy(source: (Handle, u64), destination: (Handle, u64), length: u64) -> Operation<Span> {
    let span = |(handle, offset)| Span::new(handle, offset);
    Operation::Copy { source: span(source), destination: span(destination), length }
}

#[test]
fn only_bytes_of_known_frames_are_located() {
    let frames = frames();
    let is_located = |operation: Operation<Span>| locate(&operation, &frames).is_some();
    assert!(is_located(Operation::Nop));
    assert!(is_located(copy((READ_ONLY, 0), (WRITABLE, 0), PAGE)));
    assert!(is_located(copy((WRITABLE, PAGE), (WRITABLE, PAGE), 0)));
    for operation in [
        copy((WRITABLE, 1), (WRITABLE, 0), PAGE),
        copy((WRITABLE, 0), (WRITABLE, 1), PAGE),
        copy((WRITABLE, u64::MAX), (WRITABLE, 0), 2),
        copy((WRITABLE, 0), (WRITABLE, 0), u64::MAX),
        copy((WRITABLE, 0), (READ_ONLY, 0), 1),
        copy((Handle::new(1, 2), 0), (WRITABLE, 0), 1),
        copy((Handle::new(9, 1), 0), (WRITABLE, 0), 1),
    ] {
        assert!(!is_located(operation.clone()), "{operation:?}");
    }
}

#[test]
fn walks_keep_their_pixels() {
    let frames = frames();
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 16, y_count: 1 };
    let walk = |start| {
        let backwards = Plane { start, x_step: -1, y_step: 0 };
        let destination = Plane::contiguous(0, count.pixel);
        let shape = Copy2d { count, source: backwards, destination, transparent: None };
        let operation = Operation::Copy2d {
            source: Span::new(WRITABLE, 100),
            destination: Span::new(WRITABLE, 0),
            shape,
        };
        locate(&operation, &frames)
    };
    let located = walk(20).unwrap();
    let Operation::Copy2d { source, shape, .. } = located.operation() else { panic!("{located:?}") };
    assert_eq!((source.offset(), source.length(), shape.source.start), (105, 16, 15));
    assert!(walk(14).is_none(), "a pixel lies before the operand");
    assert!(walk(PAGE - 100).is_none(), "a pixel lies behind the frame");
}

/// The engine and a worker of it, which has sent a copy from the engine's own memory to a frame that is not here yet.
fn waiting(stall: Duration) -> (Engine, ExternalEngine, Ticket) {
    let (mut worker, end) = pair(8, stall);
    let part = |handle, is_own| {
        let frame = ExternalFrame { handle, length: PAGE, is_writable: true, is_own };
        Region::new(frame, 0, PAGE).unwrap()
    };
    let copy = Operation::Copy { source: part(OWN, true), destination: part(LATE, false), length: PAGE };
    let ticket = worker.post(Descriptor::new(0, copy).unwrap()).unwrap();
    worker.ring_doorbell();
    let frames = Frames::default();
    frames.insert(OWN, Frame { mapping: Mapping::elsewhere(4096, 4096).unwrap(), user: 0 });
    (Engine::new(end, (frames, Watcher::default()), stall, None), worker, ticket)
}

#[test]
fn a_request_that_waits_for_its_frame_is_prepared_until_it_is_a_job() {
    let (mut engine, worker, ticket) = waiting(Duration::from_secs(60));
    assert_eq!(worker.watermark(ticket), None);
    assert!(engine.next(Duration::ZERO).is_none());
    assert_eq!(worker.watermark(ticket).map(|watermark| watermark.bytes), Some(0));
    let mapping = frame::allocate_half(PAGE).unwrap().1;
    engine.frames.insert(LATE, Frame { mapping, user: 7 });
    let job = engine.next(Duration::ZERO).unwrap();
    assert_eq!(worker.watermark(ticket), None, "from now on it can stall");
    engine.complete(job.id(), job.succeeded());
}

#[test]
fn a_request_does_not_wait_for_ever() {
    let (mut engine, mut worker, _) = waiting(Duration::ZERO);
    assert!(engine.next(Duration::ZERO).is_none());
    let mut completions = Vec::new();
    worker.poll(memferry_clock::Instant::ORIGIN, &mut completions);
    assert_eq!(completions[0].outcome.result, Err(Failure::Unsupported));
}
