//! Counts of this process that a forked child does not inherit.
//!
//! ```text
//! add ─ process id and count in one word ─ subtract        in a forked child: starts at zero
//! ```
//!
//! A child has none of its parent's threads, so what they would count down must not count there.

use std::sync::atomic::{AtomicU64, Ordering};

/// The count in the low half, the process in the high half.
pub(crate) struct Tally(AtomicU64);

impl Tally {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn get(&self) -> u32 {
        of_this_process(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn add(&self, more: u32) {
        self.change(|count| count.saturating_add(more));
    }

    pub(crate) fn subtract(&self, fewer: u32) {
        self.change(|count| count.saturating_sub(fewer));
    }

    fn change(&self, change: impl Fn(u32) -> u32) {
        let mut counted = self.0.load(Ordering::Relaxed);
        loop {
            let next = u64::from(std::process::id()) << 32 | u64::from(change(of_this_process(counted)));
            match self.0.compare_exchange_weak(counted, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => counted = now,
            }
        }
    }
}

fn of_this_process(counted: u64) -> u32 {
    if (counted >> 32) as u32 == std::process::id() { counted as u32 } else { 0 }
}
