//! Epochs: no reader uses what was taken away after the remover's wait. Each rule has a broken variant. The entry of the capability
//! table: what a reader gets belongs together.
//!
//! The memory is a cell: loom checks every access, as if it were memory behind a raw pointer that is then freed.

#![expect(unsafe_code, reason = "loom's cells stand for memory behind raw pointers")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use memferry_shm::capability_entry::{Entry, Fields};
use memferry_shm::epoch::{enter, leave, wait_for};

use crate::{FENCES, explore};

struct Shared {
    word: AtomicU64,
    entry: Entry,
    memory: UnsafeCell<u64>,
}

// SAFETY: loom checks every access to the cell.
unsafe impl Sync for Shared {}

/// The steps that the tests replace one at a time by a broken variant.
#[derive(Clone, Copy)]
struct Rules {
    enter: fn(&AtomicU64),
    leave: fn(&AtomicU64),
    wait: fn(&AtomicU64),
}

const SHIPPED: Rules = Rules {
    enter: |word| enter(word, FENCES),
    leave,
    wait: |word| wait_for([word].into_iter(), FENCES, thread::yield_now),
};

const FIELDS: Fields = Fields { session: 1, rights: 3, base: 8, length: 8, memory: 8 };

/// A reader copies in two epochs while the memory is revoked and freed.
fn revoked_under_load(rules: Rules) {
    revoked_from(0, rules);
}

/// The same after so many epochs that the reader's word is `count`.
fn revoked_from(count: u64, rules: Rules) {
    let word = AtomicU64::new(count);
    let shared = Arc::new(Shared { word, entry: Entry::default(), memory: UnsafeCell::new(0) });
    shared.entry.publish(1, &FIELDS);
    let reader = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            for _ in 0..2 {
                (rules.enter)(&shared.word);
                if shared.entry.read(1).is_some() {
                    // SAFETY: the memory was not freed; loom checks that.
                    shared.memory.with_mut(|memory| unsafe { *memory += 1 });
                }
                (rules.leave)(&shared.word);
            }
        })
    };
    assert_eq!(shared.entry.kill(), Some(8));
    (rules.wait)(&shared.word);
    // SAFETY: no epoch uses the memory any more; loom checks that. This stands for freeing it.
    shared.memory.with_mut(|memory| unsafe { *memory = 0 });
    reader.join().unwrap();
}

#[test]
fn nothing_is_used_after_the_wait() {
    explore(3, || revoked_under_load(SHIPPED));
}

/// Within the two epochs the count starts again from 0.
#[test]
fn nothing_is_used_after_the_wait_when_the_count_wraps() {
    explore(3, || revoked_from(u64::MAX - 1, SHIPPED));
}

#[test]
#[should_panic]
fn broken_wait_that_takes_the_count_for_over_when_it_wraps() {
    let wait = |word: &AtomicU64| {
        FENCES.heavy();
        let seen = word.load(Ordering::Acquire);
        while seen.wrapping_add(1) > seen && seen % 2 == 1 && word.load(Ordering::Acquire) == seen {
            thread::yield_now();
        }
    };
    explore(3, move || revoked_from(u64::MAX - 1, Rules { wait, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_revocation_that_does_not_wait() {
    explore(3, || revoked_under_load(Rules { wait: |_| FENCES.heavy(), ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_revocation_without_the_heavy_barrier() {
    let wait = |word: &AtomicU64| {
        let seen = word.load(Ordering::Acquire);
        while seen % 2 == 1 && word.load(Ordering::Acquire) == seen {
            thread::yield_now();
        }
    };
    explore(3, move || revoked_under_load(Rules { wait, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_epoch_without_the_light_barrier() {
    let enter = |word: &AtomicU64| word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
    explore(3, move || revoked_under_load(Rules { enter, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_epoch_that_begins_without_release() {
    let enter = |word: &AtomicU64| {
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        FENCES.light();
    };
    explore(3, move || revoked_under_load(Rules { enter, ..SHIPPED }));
}

#[test]
#[should_panic]
fn broken_epoch_that_ends_without_release() {
    let leave = |word: &AtomicU64| word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    explore(3, move || revoked_under_load(Rules { leave, ..SHIPPED }));
}

/// The fields of a generation, all different from those of others.
fn fields_of(generation: u64) -> Fields {
    let [session, base, length, memory] = [10, 20, 30, 40].map(|word| word + generation);
    Fields { session, rights: generation as u8, base, length, memory }
}

/// A reader looks for each of two generations while the entry is reused.
fn reused_entry(reuse: fn(&Entry)) {
    let entry = Arc::new(Entry::default());
    entry.publish(1, &fields_of(1));
    let reader = {
        let entry = Arc::clone(&entry);
        thread::spawn(move || {
            for generation in 1..=2 {
                if let Some(fields) = entry.read(generation) {
                    assert_eq!(fields, fields_of(u64::from(generation)));
                }
            }
        })
    };
    reuse(&entry);
    reader.join().unwrap();
}

#[test]
fn fields_of_a_reused_entry_belong_together() {
    explore(3, || {
        reused_entry(|entry| {
            entry.kill();
            entry.publish(2, &fields_of(2));
        });
    });
}

#[test]
#[should_panic]
fn broken_reuse_of_an_entry_that_is_alive() {
    explore(3, || reused_entry(|entry| entry.publish(2, &fields_of(2))));
}
