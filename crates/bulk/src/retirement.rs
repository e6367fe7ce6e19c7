//! Reports to the other end which of its slots this end has finished with.
//!
//! ```text
//! slot taken ─► Unretired ─ dropped, in any order, on any thread ─► a bit ─ all before it too? ─► count for the other end, wake
//! ```
//!
//! The count grows in slot order, so a slot that is held delays those behind it. The receiver takes the slots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memferry_shm::storage::RingStorage;

use crate::peer::{Peer, Wake};
use crate::wire::{RETIRED, ROOM_NEWS, ROOM_WAKE, SENDER_PARKED, SLOTS};

/// Wakes the other end's sender.
pub(crate) const FOR_ROOM: Wake = Wake { parked: SENDER_PARKED, wake: ROOM_WAKE, news: ROOM_NEWS };

/// The slots that this end has finished with.
pub(crate) struct Retirement {
    peer: Arc<Peer>,
    /// A bit for each finished slot that follows an unfinished one.
    done: Mutex<u64>,
    retired: AtomicU64,
}

impl Retirement {
    pub(crate) fn new(peer: Arc<Peer>) -> Self {
        Self { peer, done: Mutex::default(), retired: AtomicU64::new(0) }
    }

    /// Slots retired since the beginning.
    pub(crate) fn count(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    fn finish(&self, bit: u64) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done |= bit;
        let before = self.count();
        let mut retired = before;
        loop {
            let next = 1 << (retired % u64::from(SLOTS));
            if *done & next == 0 {
                break;
            }
            *done &= !next;
            retired += 1;
        }
        if retired != before {
            self.retired.store(retired, Ordering::Release);
            self.peer.own.word(RETIRED).store(retired & u64::from(u32::MAX), Ordering::Release);
            drop(done);
            self.peer.wake(FOR_ROOM);
        }
    }
}

/// A slot that was taken. Dropping it finishes the slot.
pub(crate) struct Unretired {
    of: Arc<Retirement>,
    bit: u64,
}

impl Unretired {
    /// The slot of this number, counted from the start of the connection.
    pub(crate) fn new(of: &Arc<Retirement>, slot: u64) -> Self {
        Self { of: Arc::clone(of), bit: 1 << (slot % u64::from(SLOTS)) }
    }
}

impl Drop for Unretired {
    fn drop(&mut self) {
        // A forked child has no mapping of the memory, and a thread of the parent may have held the lock.
        if self.of.peer.check_fork().is_ok() {
            self.of.finish(self.bit);
        }
    }
}

impl std::fmt::Debug for Unretired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unretired")
    }
}
