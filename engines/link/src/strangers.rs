//! Strangers that are being received, counted by where they come from, so that no place takes all the room.
//!
//! A stranger counts until its value is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The strangers of one kind: by address, or by user. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Strangers<K> {
    counts: Arc<Mutex<BTreeMap<K, usize>>>,
    /// Of all places, and of one.
    most: (usize, usize),
}

/// Its end makes room for another.
pub(crate) struct Stranger<K: Ord> {
    all: Arc<Mutex<BTreeMap<K, usize>>>,
    from: K,
}

fn locked<K>(counts: &Mutex<BTreeMap<K, usize>>) -> MutexGuard<'_, BTreeMap<K, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Ord + Copy> Strangers<K> {
    /// At most so many at a time, and so many from one place.
    pub(crate) fn new(most: (usize, usize)) -> Self {
        Self { counts: Arc::default(), most }
    }

    /// Counts one; `None` if there are too many.
    pub(crate) fn admit(&self, from: K) -> Option<Stranger<K>> {
        let mut counts = locked(&self.counts);
        let of_one = counts.get(&from).copied().unwrap_or(0);
        if counts.values().sum::<usize>() >= self.most.0 || of_one >= self.most.1 {
            return None;
        }
        counts.insert(from, of_one + 1);
        Some(Stranger { all: Arc::clone(&self.counts), from })
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.counts).is_empty()
    }
}

impl<K: Ord + Copy> Stranger<K> {
    pub(crate) fn from(&self) -> K {
        self.from
    }
}

impl<K: Ord> Drop for Stranger<K> {
    fn drop(&mut self) {
        let mut counts = locked(&self.all);
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}
