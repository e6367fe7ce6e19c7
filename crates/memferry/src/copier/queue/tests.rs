//! The queue over memory whose worker a test can block: which thread moves which bytes, and when.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use super::*;
use crate::frame::Frame;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 8 * MIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory with a gate that blocks the worker while it is closed.
struct GatedMemory {
    bytes: Vec<AtomicU8>,
    /// Finished copies: destination, source, length.
    made: Mutex<Vec<(u64, u64, u64)>>,
    open: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicBool,
    /// The frame passed to the engine for all bytes; one that it may not use.
    frame: Option<Frame>,
}

impl GatedMemory {
    fn queue(open: bool, frame: impl FnOnce(&Client) -> Option<Frame>) -> CopyQueue<Self> {
        let client = Client::embedded().unwrap();
        let frame = frame(&client);
        let space = Self {
            bytes: (0..BYTES).map(|byte| AtomicU8::new((byte % 251) as u8)).collect(),
            made: Mutex::default(),
            open: Mutex::new(open),
            changed: Condvar::new(),
            waiting: AtomicBool::new(false),
            frame,
        };
        CopyQueue::new(&client, space).unwrap()
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// Whether the bytes at `place` are those that were at `source` at first.
    fn is(&self, place: u64, source: u64, length: u64) -> bool {
        let byte = |at: u64| self.bytes[at as usize].load(Ordering::Relaxed);
        (0..length).all(|at| byte(place + at) == ((source + at) % 251) as u8)
    }

    fn made(&self) -> Vec<(u64, u64, u64)> {
        self.made.lock().unwrap().clone()
    }
}

impl AddressSpace for GatedMemory {
    fn region(&self, _: u64, length: u64) -> Option<Region> {
        Some(self.frame.as_ref()?.slice(..length))
    }

    fn copy(&self, to: u64, from: u64, length: u64) {
        if std::thread::current().name() == Some(THREAD) {
            let open = self.open.lock().unwrap();
            self.waiting.store(true, Ordering::Release);
            // With a timeout, so that a failing test ends.
            drop(self.changed.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap());
        }
        let source: Vec<u8> =
            (0..length).map(|at| self.bytes[(from + at) as usize].load(Ordering::Relaxed)).collect();
        for (at, byte) in source.into_iter().enumerate() {
            self.bytes[to as usize + at].store(byte, Ordering::Relaxed);
        }
        self.made.lock().unwrap().push((to, from, length));
    }
}

/// A queue whose worker is blocked in a copy of 16 KiB to the end of the memory.
fn blocked_queue() -> CopyQueue<GatedMemory> {
    let queue = GatedMemory::queue(false, |_| None);
    queue.amemcpy(BYTES - (16 << 10), 0, 16 << 10).unwrap();
    while !queue.space().waiting.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    queue
}

#[test]
fn csync_moves_only_the_requested_bytes() {
    let queue = blocked_queue();
    queue.amemcpy(4 * MIB, 7, MIB).unwrap();
    assert_eq!(queue.space().made(), []);
    queue.csync(4 * MIB + 100_000, 10).unwrap();
    let made = queue.space().made();
    assert!(made.iter().map(|(.., length)| length).sum::<u64>() <= 3 * 4096, "{made:?}");
    assert!(queue.space().is(4 * MIB + 100_000, 7 + 100_000, 10));
    queue.space().open();
    queue.csync_all().unwrap();
    assert!(queue.space().is(4 * MIB, 7, MIB));
}

#[test]
fn a_forgotten_intermediate_copy_never_moves() {
    let queue = blocked_queue();
    let a = 0;
    let b = 2 * MIB;
    let c = 4 * MIB;
    queue.amemcpy(b, a, MIB).unwrap();
    queue.amemcpy(c, b, MIB).unwrap();
    queue.forget(b, MIB).unwrap();
    queue.csync(c, MIB).unwrap();
    assert!(queue.space().is(c, a, MIB) && queue.space().is(b, b, MIB), "b was written");
    queue.space().open();
    queue.csync_all().unwrap();
    let statistics = queue.statistics().unwrap();
    let expected =
        CopierStatistics { asked: 2 * MIB + (16 << 10), moved: MIB + (16 << 10), by_engine: 0, dropped: MIB };
    assert_eq!(statistics, expected);
}

#[test]
fn csync_waits_for_another_threads_move() {
    let queue = blocked_queue();
    let place = BYTES - (16 << 10);
    let synced = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            queue.csync(place + 5, 1).unwrap();
            synced.store(true, Ordering::Release);
            queue.space().is(place, 0, 16 << 10)
        });
        while queue.shared.lock().sleepers == 0 {
            std::thread::yield_now();
        }
        assert!(!synced.load(Ordering::Acquire));
        queue.space().open();
        assert!(waits.join().unwrap(), "bytes were not in place");
    });
}

#[test]
fn the_cpu_copies_if_the_engine_refuses() {
    let queue = GatedMemory::queue(true, |client| {
        let frame = client.frame(4096).alloc().unwrap();
        frame.revoke().unwrap();
        Some(frame)
    });
    queue.amemcpy(4 * MIB, 7, 3 * MIB).unwrap();
    queue.csync(4 * MIB, 3 * MIB).unwrap();
    assert!(queue.space().is(4 * MIB, 7, 3 * MIB));
    assert_eq!(queue.statistics().unwrap().by_engine, 0);
}

#[test]
fn short_and_overlapping_copies_are_immediate() {
    let queue = blocked_queue();
    queue.amemcpy(4 * MIB, 7, SHORT_BYTES).unwrap();
    queue.amemcpy(5 * MIB + 1, 5 * MIB, MIB).unwrap();
    assert_eq!(queue.space().made(), [(4 * MIB, 7, SHORT_BYTES), (5 * MIB + 1, 5 * MIB, MIB)]);
    assert!(queue.space().is(5 * MIB + 1, 5 * MIB, MIB));
    // Not immediate if the source is a pending copy.
    queue.amemcpy(2 * MIB, 0, MIB).unwrap();
    queue.amemcpy(6 * MIB, 2 * MIB, 8).unwrap();
    assert_eq!(queue.space().made().len(), 2);
    queue.space().open();
    queue.csync(6 * MIB, 8).unwrap();
    assert!(queue.space().is(6 * MIB, 0, 8));
}

#[test]
fn a_full_queue_makes_callers_move_the_oldest() {
    let queue = blocked_queue();
    let bytes = SHORT_BYTES + 1;
    let place = |index: u64| 4 * MIB + index * 2 * bytes;
    let count = 2 * MAX_PIECES as u64;
    (0..count).for_each(|index| queue.amemcpy(place(index), 0, bytes).unwrap());
    assert!(queue.space().made().len() >= MAX_PIECES - 1);
    queue.space().open();
    queue.csync_all().unwrap();
    assert!((0..count).all(|index| queue.space().is(place(index), 0, bytes)));
}

#[test]
fn bad_addresses_fail_and_drop_completes() {
    let queue = blocked_queue();
    let beyond = |result: Result<(), AccessError>| matches!(result, Err(AccessError::OutOfRange { .. }));
    assert!(beyond(queue.amemcpy(u64::MAX, 0, 2)) && beyond(queue.amemcpy(0, ADDRESSES - 1, 2)));
    assert!(beyond(queue.csync(u64::MAX, 2)) && beyond(queue.forget(ADDRESSES, 1)));
    assert!(beyond(queue.csync_to_write(1, u64::MAX)));
    queue.amemcpy(4 * MIB, 7, MIB).unwrap();
    let shared = Arc::clone(&queue.shared);
    shared.space.open();
    drop(queue);
    assert!(shared.space.is(4 * MIB, 7, MIB) && shared.lock().pending.is_empty());
}
