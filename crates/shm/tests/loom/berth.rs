//! Work shared by an owner and helpers: every piece is done once, and nobody reads a description that changes. Each rule is
//! broken once.
//!
//! Descriptions and pieces are cells whose every access loom checks, as if they were memory behind raw pointers.

#![expect(unsafe_code, reason = "loom's cells stand for memory behind raw pointers")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use memferry_shm::berth::{claim, close, free, join, leave, open, take_back, take_front};

use crate::explore;

const PIECES: usize = 2;

struct Shared {
    word: AtomicU64,
    /// What the work is: changed by each owner.
    description: UnsafeCell<u64>,
    /// How often each piece was done.
    pieces: [UnsafeCell<u64>; PIECES],
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        let pieces = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { word: AtomicU64::new(0), description: UnsafeCell::new(0), pieces })
    }

    fn describe(&self, work: u64) {
        // SAFETY: the owner alone, nobody being counted; loom checks that.
        self.description.with_mut(|description| unsafe { *description = work });
    }

    fn described(&self) -> u64 {
        // SAFETY: of a counted helper, or the owner; loom checks that nobody writes meanwhile.
        self.description.with(|description| unsafe { *description })
    }

    fn work(&self, piece: u64) {
        assert!(self.described() > 0);
        // SAFETY: of who took the piece; loom checks that nobody else has it.
        self.pieces[piece as usize].with_mut(|done| unsafe { *done += 1 });
    }

    fn done(&self) -> [u64; PIECES] {
        // SAFETY: of the owner after everybody left; loom checks that.
        [0, 1].map(|piece: usize| self.pieces[piece].with(|done| unsafe { *done }))
    }
}

/// How a helper comes in, how it goes, and how the owner ends; each may be a broken one.
#[derive(Clone, Copy)]
struct Rules {
    join: fn(&Shared) -> Option<u64>,
    leave: fn(&AtomicU64),
    close: fn(&AtomicU64),
}

const SHIPPED: Rules =
    Rules { join: |shared| join(&shared.word), leave, close: |word| close(word, thread::yield_now) };

/// Two works, one after the other, with a helper that looks in twice.
fn two_works(rules: Rules) {
    let shared = Shared::new();
    let helping = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            for _ in 0..2 {
                let Some(mut piece) = (rules.join)(&shared) else { continue };
                loop {
                    shared.work(piece);
                    match take_back(&shared.word) {
                        Some(next) => piece = next,
                        None => break,
                    }
                }
                (rules.leave)(&shared.word);
            }
        })
    };
    for work in 1..=2 {
        assert!(claim(&shared.word));
        shared.describe(work);
        open(&shared.word, PIECES as u64);
        while let Some(piece) = take_front(&shared.word) {
            shared.work(piece);
        }
        (rules.close)(&shared.word);
        assert_eq!(shared.done(), [work; PIECES]);
        free(&shared.word);
    }
    helping.join().unwrap();
}

#[test]
fn every_piece_is_done_once_and_nobody_is_within_when_the_owner_goes_on() {
    explore(3, || two_works(SHIPPED));
}

#[test]
#[should_panic]
fn broken_owners_that_do_not_wait_change_what_is_read() {
    let close = |word: &AtomicU64| {
        word.fetch_and(!(1 << 63), Ordering::AcqRel);
    };
    explore(3, move || two_works(Rules { close, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_helpers_that_read_before_they_are_counted_read_what_changes() {
    let join = |shared: &Shared| {
        let open = shared.word.load(Ordering::Acquire) >> 63 == 1;
        (open && shared.described() > 0).then(|| join(&shared.word)).flatten()
    };
    explore(3, move || two_works(Rules { join, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_leaving_that_releases_nothing_hides_what_was_done() {
    let leave = |word: &AtomicU64| {
        word.fetch_sub(1 << 48, Ordering::Relaxed);
    };
    explore(3, move || two_works(Rules { leave, ..SHIPPED }));
}
