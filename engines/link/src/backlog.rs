//! Bytes for one peer that were not sent yet: a peer that does not read must not take the memory of the link.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::message::{MAX_MESSAGE, WINDOW};

/// What may wait: the accesses of both sides, and room for what is short.
const MAX_BYTES: usize = 3 * WINDOW * MAX_MESSAGE;
/// What may wait before channels do: it delays what comes behind it.
const ROOM: usize = 1 << 20;
/// Counted for each message besides its bytes.
const EACH: usize = 256;

/// The bytes that wait for one peer.
#[derive(Clone)]
pub(crate) struct Backlog {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

impl Default for Backlog {
    /// For what is sent to a peer.
    fn default() -> Self {
        Self::of(MAX_BYTES)
    }
}

/// A message that counts until this is dropped.
pub(crate) struct Unsent {
    backlog: Arc<AtomicUsize>,
    bytes: usize,
}

impl Backlog {
    /// One of up to so many bytes.
    pub(crate) fn of(most: usize) -> Self {
        Self { bytes: Arc::default(), most }
    }

    /// Whether so little waits that what can wait elsewhere may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < ROOM
    }

    /// Counts a message; `None` if too many wait.
    pub(crate) fn add(&self, message: usize) -> Option<Unsent> {
        let bytes = message + EACH;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Dropped, it counts no more.
        let unsent = Unsent { backlog: Arc::clone(&self.bytes), bytes };
        (before + bytes <= self.most).then_some(unsent)
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.backlog.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_bounded_and_shrinks() {
        let backlog = Backlog::default();
        let mut unsent: Vec<_> = (0..).map_while(|_| backlog.add(MAX_MESSAGE)).collect();
        assert!(unsent.len() >= 2 * WINDOW && unsent.len() <= 3 * WINDOW);
        assert!(backlog.add(MAX_MESSAGE).is_none());
        unsent.pop();
        unsent.extend(backlog.add(MAX_MESSAGE));
        assert!(backlog.add(MAX_MESSAGE).is_none());
        drop(unsent);
        assert_eq!(backlog.bytes.load(Ordering::Relaxed), 0);
    }
}
