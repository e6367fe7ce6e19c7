//! Counts of this process that a forked child does not inherit.
//!
//! ```text
//! add ─ process id and count in one word ─ subtract        in a forked child: starts at zero
//! ```
//!
//! A child has none of its parent's threads, so what they would count down must not count there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

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

/// Attempts to lock counts that another process may have left locked.
const ATTEMPTS: usize = 100;

/// A count of each user that has one: no user is counted with another.
pub(crate) struct ByUser {
    /// The process whose counts these are.
    process: AtomicU32,
    counts: Mutex<BTreeMap<u32, u32>>,
}

impl ByUser {
    pub(crate) const fn new() -> Self {
        Self { process: AtomicU32::new(0), counts: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn get(&self, user: u32) -> u32 {
        self.counts().and_then(|counts| counts.get(&user).copied()).unwrap_or(0)
    }

    pub(crate) fn add(&self, user: u32, more: u32) {
        if let Some(mut counts) = self.counts() {
            let count = counts.entry(user).or_default();
            *count = count.saturating_add(more);
        }
    }

    pub(crate) fn subtract(&self, user: u32, fewer: u32) {
        let Some(mut counts) = self.counts() else { return };
        if let Some(count) = counts.get_mut(&user) {
            *count = count.saturating_sub(fewer);
            if *count == 0 {
                counts.remove(&user);
            }
        }
    }

    /// The counts of this process. A forked child may have inherited the lock held; then it counts nothing.
    fn counts(&self) -> Option<MutexGuard<'_, BTreeMap<u32, u32>>> {
        let process = std::process::id();
        if self.process.load(Ordering::Acquire) == process {
            return Some(self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let mut counts = (0..ATTEMPTS).find_map(|_| match self.counts.try_lock() {
            Ok(counts) => Some(counts),
            Err(TryLockError::Poisoned(counts)) => Some(counts.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                None
            }
        })?;
        // Another thread may have been here first.
        if self.process.load(Ordering::Acquire) != process {
            counts.clear();
            self.process.store(process, Ordering::Release);
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_counted_each_by_itself() {
        let counts = ByUser::new();
        for user in 0..200 {
            counts.add(user, user + 1);
        }
        assert!((0..200).all(|user| counts.get(user) == user + 1));
        counts.subtract(7, 8);
        counts.subtract(71, 1);
        assert_eq!([7, 71, 135].map(|user| counts.get(user)), [0, 71, 136]);
        counts.subtract(1000, 1);
        assert_eq!(counts.counts().unwrap().len(), 199, "who has none takes no memory");
        // Those of another process do not count.
        counts.process.store(0, Ordering::Release);
        assert_eq!(counts.get(135), 0);
    }
}
