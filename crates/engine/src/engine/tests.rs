//! Requests are located in frames, or not carried out.

use memferry_service::protocol::FrameEvent;
use memferry_transfer::{Copy2d, Count2d, PixelSize, Plane};
use rustix::fs::MemfdFlags;

use super::*;

const WRITABLE: Handle = Handle::new(1, 1);
const READ_ONLY: Handle = Handle::new(2, 4);
const PAGE: u64 = 4096;

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
