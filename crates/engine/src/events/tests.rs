//! Events about frames, without a service.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use memferry_service::protocol::ExportKind;
use memferry_shm::frame;
use rustix::fs::{MemfdFlags, SealFlags};

use super::*;
use crate::watcher::FrameWatcher;

const FRAME: Handle = Handle::new(5, 2);
const USER: u32 = 7;

fn memfd(length: u64) -> OwnedFd {
    let descriptor =
        rustix::fs::memfd_create("frame", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&descriptor, length).unwrap();
    descriptor
}

/// The answer to an event.
fn answer(
    event: FrameEvent,
    descriptor: Option<OwnedFd>,
    frames: &Frames,
    watcher: &Watcher,
) -> Option<FrameResult> {
    let mut answer = None;
    let processed = process(event, descriptor.into_iter().collect(), frames, watcher, |done, _| {
        answer = Some(done.result);
        Ok(())
    });
    assert_eq!(processed.is_ok(), answer.is_some());
    answer
}

#[test]
fn a_frame_is_mapped_until_it_is_released() {
    let frames = Frames::default();
    let watcher = Watcher::default();
    let map = FrameEvent::Map { frame: FRAME, length: 8192, user: USER };
    let result = answer(map, Some(memfd(8192)), &frames, &watcher);
    assert_eq!(result, Some(FrameResult::Mapped { is_writable: true }));
    assert_eq!(frames.get(FRAME).unwrap().length_bytes(), 8192);
    for other in [Handle::new(5, 1), Handle::new(5, 3), Handle::new(4, 2)] {
        assert!(frames.get(other).is_none(), "{other}");
    }
    let held = frames.get(FRAME).unwrap();
    for _ in 0..2 {
        let result = answer(FrameEvent::Unmap { frame: FRAME }, None, &frames, &watcher);
        assert_eq!(result, Some(FrameResult::Unmapped));
        assert!(frames.get(FRAME).is_none());
    }
    // A job that has it can still finish.
    held.write(0, &[1]).unwrap();
}

#[test]
fn a_sealed_frame_becomes_readable_only() {
    let frames = Frames::default();
    let descriptor = memfd(4096);
    rustix::fs::fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE).unwrap();
    let map = FrameEvent::Map { frame: FRAME, length: 4096, user: USER };
    let result = answer(map, Some(descriptor), &frames, &Watcher::default());
    assert_eq!(result, Some(FrameResult::Mapped { is_writable: false }));
    assert_eq!(frames.get(FRAME).unwrap().access(), Access::ReadOnly);
}

#[test]
fn what_cannot_be_mapped_is_reported() {
    let frames = Frames::default();
    let watcher = Watcher::default();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    for (descriptor, length) in [(memfd(4096), 0), (memfd(4096), u64::MAX), (pipe, 4096)] {
        let map = FrameEvent::Map { frame: FRAME, length, user: USER };
        assert_eq!(answer(map, Some(descriptor), &frames, &watcher), Some(FrameResult::Failed));
        assert!(frames.get(FRAME).is_none());
    }
}

#[test]
fn wrong_events_end_the_connection() {
    let frames = Frames::default();
    let watcher = Watcher::default();
    let map = FrameEvent::Map { frame: FRAME, length: 4096, user: USER };
    assert_eq!(answer(map, None, &frames, &watcher), None);
    assert_eq!(answer(FrameEvent::Unmap { frame: FRAME }, Some(memfd(1)), &frames, &watcher), None);
    assert_eq!(answer(FrameEvent::Restart, None, &frames, &watcher), None);
}

struct Log(mpsc::Sender<(bool, Handle, usize)>);

impl FrameWatcher for Log {
    fn mapped(&self, frame: Handle, memory: &Mapping) {
        self.0.send((true, frame, memory.length_bytes())).unwrap();
    }

    fn unmapping(&self, frame: Handle, memory: &Mapping) {
        self.0.send((false, frame, memory.length_bytes())).unwrap();
    }
}

#[test]
fn a_watcher_learns_of_every_frame_once() {
    let frames = Frames::default();
    let watcher = Watcher::default();
    let early = Handle::new(1, 1);
    let (descriptor, _) = frame::allocate(4096, Default::default()).unwrap();
    let map = |frame, length| FrameEvent::Map { frame, length, user: USER };
    answer(map(early, 4096), Some(descriptor), &frames, &watcher);
    let (sender, events) = mpsc::channel();
    watcher.set(&frames, Box::new(Log(sender)));
    answer(map(FRAME, 8192), Some(memfd(8192)), &frames, &watcher);
    answer(FrameEvent::Unmap { frame: early }, None, &frames, &watcher);
    answer(FrameEvent::Unmap { frame: early }, None, &frames, &watcher);
    let seen: Vec<_> = events.try_iter().collect();
    assert_eq!(seen, [(true, early, 4096), (true, FRAME, 8192), (false, early, 4096)]);
}

/// Notes whether the engine's table had the frame when its watcher saw it.
struct Look(Frames, mpsc::Sender<bool>);

impl FrameWatcher for Look {
    fn mapped(&self, frame: Handle, _: &Mapping) {
        self.1.send(self.0.get(frame).is_some()).unwrap();
    }

    fn unmapping(&self, _: Handle, _: &Mapping) {}
}

#[test]
fn a_watcher_sees_a_frame_before_requests() {
    let frames = Frames::default();
    let watcher = Watcher::default();
    let (sender, had) = mpsc::channel();
    watcher.set(&frames, Box::new(Look(frames.clone(), sender)));
    let map = FrameEvent::Map { frame: FRAME, length: 4096, user: USER };
    answer(map, Some(memfd(4096)), &frames, &watcher);
    assert_eq!(had.try_recv(), Ok(false));
    assert!(frames.get(FRAME).is_some());
}

/// Says which frame it is shown, has to let go or gives memory for, and pins one for as long as the test wants.
struct Slow(mpsc::Sender<Handle>, Mutex<mpsc::Receiver<()>>);

impl FrameWatcher for Slow {
    fn mapped(&self, frame: Handle, _: &Mapping) {
        self.0.send(frame).unwrap();
        // The test goes on, or has failed.
        let _ = self.1.lock().unwrap().recv();
    }

    fn pins(&self, _: &Mapping) -> bool {
        true
    }

    fn unmapping(&self, frame: Handle, _: &Mapping) {
        self.0.send(frame).unwrap();
    }

    fn allocate(&self, frame: Handle, _: u64) -> Option<usize> {
        self.0.send(frame).unwrap();
        Some(0x1000)
    }
}

/// Frames, and a watcher that pins them.
struct Stage {
    frames: Frames,
    watcher: Watcher,
    seen: mpsc::Receiver<Handle>,
    go: Option<mpsc::Sender<()>>,
}

impl Stage {
    fn new() -> Self {
        let (sender, seen) = mpsc::channel();
        let (go, orders) = mpsc::channel();
        let stage = Self { frames: Frames::default(), watcher: Watcher::default(), seen, go: Some(go) };
        stage.watcher.set(&stage.frames, Box::new(Slow(sender, Mutex::new(orders))));
        stage
    }

    fn answer(&self, event: FrameEvent) -> Option<FrameResult> {
        let descriptor = matches!(event, FrameEvent::Map { .. }).then(|| memfd(4096));
        answer(event, descriptor, &self.frames, &self.watcher)
    }

    fn map(&self, frame: Handle, user: u32) {
        let result = self.answer(FrameEvent::Map { frame, length: 4096, user });
        assert_eq!(result, Some(FrameResult::Mapped { is_writable: true }));
    }

    fn next_seen(&self) -> Handle {
        self.seen.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

#[test]
fn events_of_other_frames_do_not_wait_for_one_that_is_shown() {
    let mut stage = Stage::new();
    let [first, second, own] = [1, 2, 3].map(|index| Handle::new(index, 1));
    let go = stage.go.take().unwrap();
    std::thread::scope(|scope| {
        // If an assertion fails, the thread goes on, and ends with the second frame.
        let go = go;
        let watcher = &stage.watcher;
        let frames = &stage.frames;
        scope.spawn(|| (0..2).for_each(|_| watcher.show_next(frames)));
        stage.map(first, USER);
        stage.map(second, USER);
        assert_eq!(stage.next_seen(), first);
        let mapped = Some(FrameResult::Mapped { is_writable: true });
        assert_eq!(stage.answer(FrameEvent::Allocate { frame: own, length: 4096 }), mapped);
        assert_eq!(stage.answer(FrameEvent::Unmap { frame: own }), Some(FrameResult::Unmapped));
        assert_eq!([stage.next_seen(), stage.next_seen()], [own, own]);
        assert!(stage.frames.get(first).is_none(), "no request has it before");
        go.send(()).unwrap();
        assert_eq!(stage.next_seen(), second);
        assert!(stage.frames.get(first).is_some() && stage.frames.get(second).is_none());
        go.send(()).unwrap();
        // It is waited for.
        assert_eq!(stage.answer(FrameEvent::Unmap { frame: second }), Some(FrameResult::Unmapped));
        assert_eq!(stage.next_seen(), second);
    });
    assert!(stage.frames.get(second).is_none());
}

#[test]
fn frames_that_were_there_before_are_shown_by_the_thread() {
    let mut stage = Stage::new();
    stage.go = None;
    stage.watcher.clear();
    stage.map(FRAME, USER);
    assert!(stage.frames.get(FRAME).is_some(), "nobody watches");
    let (sender, seen) = mpsc::channel();
    stage.watcher.set(&stage.frames, Box::new(Slow(sender, Mutex::new(mpsc::channel().1))));
    assert!(stage.frames.get(FRAME).is_none() && seen.try_recv().is_err());
    stage.watcher.show_next(&stage.frames);
    assert_eq!(seen.try_recv(), Ok(FRAME));
    assert!(stage.frames.get(FRAME).is_some());
}

#[test]
fn a_frame_released_before_it_was_shown_is_not_shown() {
    let mut stage = Stage::new();
    let other = Handle::new(1, 1);
    stage.map(FRAME, USER);
    stage.map(other, USER);
    assert_eq!(stage.answer(FrameEvent::Unmap { frame: FRAME }), Some(FrameResult::Unmapped));
    stage.go = None;
    stage.watcher.show_next(&stage.frames);
    assert_eq!(stage.seen.try_iter().collect::<Vec<_>>(), [other]);
    assert!(stage.frames.get(FRAME).is_none() && stage.frames.get(other).is_some());
}

#[test]
fn users_are_shown_frames_in_turn() {
    let mut stage = Stage::new();
    stage.go = None;
    let frames: Vec<Handle> = (0..5).map(|index| Handle::new(index, 1)).collect();
    for (frame, user) in frames.iter().zip([1, 1, 1, 2, 2]) {
        stage.map(*frame, user);
    }
    for _ in &frames {
        stage.watcher.show_next(&stage.frames);
    }
    let seen: Vec<u32> = stage.seen.try_iter().map(|frame| frame.index()).collect();
    assert_eq!(seen, [0, 3, 1, 4, 2]);
}

#[test]
fn a_watcher_is_dropped_when_cleared() {
    let frames = Frames::default();
    let watcher = Watcher::default();
    let (sender, events) = mpsc::channel();
    watcher.set(&frames, Box::new(Log(sender)));
    watcher.clear();
    let map = FrameEvent::Map { frame: FRAME, length: 4096, user: USER };
    answer(map, Some(memfd(4096)), &frames, &watcher);
    assert_eq!(events.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

/// Gives memory at one address.
struct Gives;

impl FrameWatcher for Gives {
    fn mapped(&self, _: Handle, _: &Mapping) {}

    fn unmapping(&self, _: Handle, _: &Mapping) {}

    fn allocate(&self, _: Handle, _: u64) -> Option<usize> {
        Some(0x1000)
    }
}

#[test]
fn memory_waits_for_the_watcher() {
    let event = FrameEvent::Allocate { frame: FRAME, length: 4096 };
    let frames = Frames::default();
    assert_eq!(answer(event, None, &frames, &Watcher::default()), Some(FrameResult::Failed));
    let watcher = Watcher::awaited(Duration::from_secs(60));
    let later = watcher.clone();
    let own = frames.clone();
    let setting = std::thread::spawn(move || later.set(&own, Box::new(Gives)));
    assert_eq!(answer(event, None, &frames, &watcher), Some(FrameResult::Mapped { is_writable: true }));
    setting.join().unwrap();
    assert!(frames.get(FRAME).unwrap().is_elsewhere());
    let unmap = FrameEvent::Unmap { frame: FRAME };
    assert_eq!(answer(unmap, None, &frames, &watcher), Some(FrameResult::Unmapped));
    assert!(frames.get(FRAME).is_none());
}

/// Gives memory at one address, and exports it.
struct Exports(Result<u64, NotExported>);

impl FrameWatcher for Exports {
    fn mapped(&self, _: Handle, _: &Mapping) {}

    fn unmapping(&self, _: Handle, _: &Mapping) {}

    fn allocate(&self, _: Handle, _: u64) -> Option<usize> {
        Some(0x1000)
    }

    fn export(&self, frame: Handle, memory: &Mapping) -> Result<Exported, NotExported> {
        assert!(frame == FRAME && memory.is_elsewhere());
        self.0.map(|length| Exported { descriptor: memfd(length), kind: ExportKind::Memory, length })
    }
}

#[test]
fn own_memory_is_exported_with_its_descriptor() {
    let export = FrameEvent::Export { frame: FRAME };
    let asked = |frames: &Frames, watcher: &Watcher| {
        let mut answer = None;
        process(export, Vec::new(), frames, watcher, |done, descriptors| {
            answer = Some((done.result, descriptors.len()));
            Ok(())
        })
        .unwrap();
        answer.unwrap()
    };
    let frames = Frames::default();
    assert_eq!(asked(&frames, &Watcher::default()), (FrameResult::NotExported, 0), "nobody watches");
    let exported = |length| FrameResult::Exported { kind: ExportKind::Memory, length };
    for (gives, expected) in [
        (Ok(4096), (exported(4096), 1)),
        (Ok(8192), (exported(8192), 1)),
        (Ok(4095), (FrameResult::Failed, 0)),
        (Err(NotExported::Failed), (FrameResult::Failed, 0)),
        (Err(NotExported::Unsupported), (FrameResult::NotExported, 0)),
    ] {
        let frames = Frames::default();
        let watcher = Watcher::default();
        watcher.set(&frames, Box::new(Exports(gives)));
        assert_eq!(asked(&frames, &watcher), (FrameResult::Failed, 0), "there is no such frame");
        let allocate = FrameEvent::Allocate { frame: FRAME, length: 4096 };
        answer(allocate, None, &frames, &watcher);
        assert_eq!(asked(&frames, &watcher), expected);
    }
    // Of a frame in memory of the host.
    let watcher = Watcher::default();
    watcher.set(&frames, Box::new(Exports(Ok(4096))));
    answer(FrameEvent::Map { frame: FRAME, length: 4096, user: USER }, Some(memfd(4096)), &frames, &watcher);
    assert_eq!(asked(&frames, &watcher), (FrameResult::Failed, 0));
    assert_eq!(answer(export, Some(memfd(1)), &frames, &watcher), None, "an event with a descriptor");
}
