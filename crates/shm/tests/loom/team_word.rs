//! One job shared by an owner and a member: each piece is done once, and no thread reads a description that changes. Each
//! rule has a broken variant.
//!
//! Description and pieces are cells: loom checks every access, as if they were memory behind raw pointers.

#![expect(unsafe_code, reason = "loom's cells stand for memory behind raw pointers")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use memferry_shm::team_word::{claim, close, free, join, leave, open, take_back, take_front};

use crate::explore;

const PIECES: usize = 2;

struct Shared {
    word: AtomicU64,
    /// The number of the job, written by each owner.
    description: UnsafeCell<u64>,
    /// For each piece, the number of times it was done.
    pieces: [UnsafeCell<u64>; PIECES],
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        let pieces = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { word: AtomicU64::new(0), description: UnsafeCell::new(0), pieces })
    }

    fn set_description(&self, job: u64) {
        // SAFETY: only the owner calls this, while no member is counted; loom checks that.
        self.description.with_mut(|description| unsafe { *description = job });
    }

    fn description(&self) -> u64 {
        // SAFETY: the owner or a counted member calls this; loom checks that no thread writes at the same time.
        self.description.with(|description| unsafe { *description })
    }

    fn do_piece(&self, piece: u64) {
        assert!(self.description() > 0);
        // SAFETY: the thread that took the piece calls this; loom checks that no other thread accesses the piece.
        self.pieces[piece as usize].with_mut(|done| unsafe { *done += 1 });
    }

    fn done(&self) -> [u64; PIECES] {
        // SAFETY: the owner calls this after all members left; loom checks that.
        [0, 1].map(|piece: usize| self.pieces[piece].with(|done| unsafe { *done }))
    }
}

/// The steps that the tests replace one at a time by a broken variant.
#[derive(Clone, Copy)]
struct Rules {
    join: fn(&Shared) -> Option<u64>,
    leave: fn(&AtomicU64),
    close: fn(&AtomicU64),
}

const SHIPPED: Rules =
    Rules { join: |shared| join(&shared.word), leave, close: |word| close(word, thread::yield_now) };

/// Runs two jobs one after the other, with one member that tries to join twice.
fn two_jobs(rules: Rules) {
    let shared = Shared::new();
    let member = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            for _ in 0..2 {
                let Some(mut piece) = (rules.join)(&shared) else { continue };
                loop {
                    shared.do_piece(piece);
                    match take_back(&shared.word) {
                        Some(next) => piece = next,
                        None => break,
                    }
                }
                (rules.leave)(&shared.word);
            }
        })
    };
    for job in 1..=2 {
        assert!(claim(&shared.word));
        shared.set_description(job);
        open(&shared.word, PIECES as u64);
        while let Some(piece) = take_front(&shared.word) {
            shared.do_piece(piece);
        }
        (rules.close)(&shared.word);
        assert_eq!(shared.done(), [job; PIECES]);
        free(&shared.word);
    }
    member.join().unwrap();
}

#[test]
fn each_piece_is_done_once_before_close_returns() {
    explore(3, || two_jobs(SHIPPED));
}

#[test]
#[should_panic]
fn broken_close_that_does_not_wait() {
    let close = |word: &AtomicU64| {
        word.fetch_and(!(1 << 63), Ordering::AcqRel);
    };
    explore(3, move || two_jobs(Rules { close, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_join_that_reads_before_it_counts() {
    let join = |shared: &Shared| {
        let open = shared.word.load(Ordering::Acquire) >> 63 == 1;
        (open && shared.description() > 0).then(|| join(&shared.word)).flatten()
    };
    explore(3, move || two_jobs(Rules { join, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_leave_without_release() {
    let leave = |word: &AtomicU64| {
        word.fetch_sub(1 << 48, Ordering::Relaxed);
    };
    explore(3, move || two_jobs(Rules { leave, ..SHIPPED }));
}
