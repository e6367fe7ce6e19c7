//! Pool of the service's halves of queue pairs, which the service allocates and therefore limits per user.
//!
//! ```text
//! OpenQueue ─ take ─► a wiped half that the user had before, or a new one ─ lend ─► worker writes, client reads
//! the client closes the queue, disconnects, or exits ─► it reads no more ────┐
//! the worker releases the queue ─ give_back ─────────────────────────────────────┴─► free for the same user
//! ```
//!
//! A client can keep the descriptor, so memory that was handed out is never freed. It is reused only for the same user, and
//! only after its client closed the queue, disconnected or exited: a client whose session the service ended may not know yet,
//! and would take the completions of another queue for its own. No client can write to this memory or punch holes into it, so
//! wiping it waits for nobody. There are two sizes, and the user's queue quota applies to each.
//!
//! The client allocates the other half, and the service admits it like a frame.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use memferry_shm::frame::{self, AllocateError};
use memferry_shm::mapping::Mapping;
use memferry_shm::queue_pair::{Layout, MAXIMUM_CAPACITY};
use memferry_transfer::SessionId;

/// Queues of at most this capacity use the smaller size.
const SMALL_CAPACITY: u32 = 256;

/// The service's half of a queue pair, sealed so that the client can only read it.
#[derive(Debug)]
pub(crate) struct Half {
    user: u32,
    large: bool,
    pub(crate) descriptor: OwnedFd,
    pub(crate) mapping: Mapping,
}

/// Reason for which there is no memory for a queue pair.
#[derive(Debug)]
pub(crate) enum TakeError {
    /// The user has reached its limit of this size and no half is free.
    Quota,
    /// A system call failed.
    System(std::io::Error),
}

impl From<AllocateError> for TakeError {
    fn from(error: AllocateError) -> Self {
        Self::System(std::io::Error::other(error))
    }
}

impl Half {
    fn allocate(user: u32, large: bool) -> Result<Self, TakeError> {
        let capacity = if large { MAXIMUM_CAPACITY } else { SMALL_CAPACITY };
        let layout =
            Layout::new(capacity).map_err(|error| TakeError::System(std::io::Error::other(error)))?;
        let (descriptor, mapping) = frame::allocate_sealed(layout.service_words() as u64 * 8, false)?;
        Ok(Self { user, large, descriptor, mapping })
    }

    /// Fills it with zeros.
    fn wipe(&self) -> Result<(), TakeError> {
        let zeros = vec![0; self.mapping.length_bytes()];
        self.mapping.write(0, &zeros).map_err(|error| TakeError::System(std::io::Error::other(error)))
    }
}

/// Identifies a queue for the lifetime of the service.
pub(crate) type QueueId = (SessionId, u32);

struct LentHalf {
    half: Half,
    /// A client may still read it: it did not close the queue, disconnect or exit.
    is_read: bool,
    /// The worker has released it.
    is_returned: bool,
}

#[derive(Default)]
pub(crate) struct RingPool {
    lent: BTreeMap<QueueId, LentHalf>,
    /// Number of halves allocated, by user and whether large.
    allocated: BTreeMap<(u32, bool), u32>,
    /// The lent halves that neither a client nor a worker uses any more, by user and whether large.
    free: BTreeMap<(u32, bool), BTreeSet<QueueId>>,
}

impl RingPool {
    /// Returns zeroed memory for a queue pair of `capacity`. A user may have `limit` halves of each size.
    pub(crate) fn take(&mut self, user: u32, capacity: u32, limit: u32) -> Result<Half, TakeError> {
        let large = capacity > SMALL_CAPACITY;
        if let Some(id) = self.take_free((user, large))
            && let Some(lent) = self.lent.remove(&id)
        {
            if let Err(error) = lent.half.wipe() {
                self.lent.insert(id, lent);
                self.note_free(id);
                return Err(error);
            }
            return Ok(lent.half);
        }
        let allocated = self.allocated.entry((user, large)).or_default();
        if *allocated >= limit {
            return Err(TakeError::Quota);
        }
        let half = Half::allocate(user, large)?;
        *allocated += 1;
        Ok(half)
    }

    /// Records that a worker and the client of queue `id` use the half.
    pub(crate) fn lend(&mut self, id: QueueId, half: Half) {
        self.lent.insert(id, LentHalf { half, is_read: true, is_returned: false });
    }

    /// Takes the id of a half that is free out of the list of these.
    fn take_free(&mut self, of: (u32, bool)) -> Option<QueueId> {
        let free = self.free.get_mut(&of)?;
        let id = free.pop_first();
        if free.is_empty() {
            self.free.remove(&of);
        }
        id
    }

    /// Adds a half to the free ones if it is free.
    fn note_free(&mut self, id: QueueId) {
        if let Some(LentHalf { half, is_read: false, is_returned: true }) = self.lent.get(&id) {
            self.free.entry((half.user, half.large)).or_default().insert(id);
        }
    }

    /// The client of a session disconnected or exited, so it reads no more.
    pub(crate) fn client_left(&mut self, session: SessionId) {
        let queues = self.lent.range((session, 0)..=(session, u32::MAX)).map(|(id, _)| *id);
        for id in Vec::from_iter(queues) {
            self.queue_closed(id);
        }
    }

    /// Whether halves of a session are lent to its client.
    pub(crate) fn is_read(&self, session: SessionId) -> bool {
        self.lent.range((session, 0)..=(session, u32::MAX)).any(|(_, lent)| lent.is_read)
    }

    /// The client closed a queue and reads no more.
    pub(crate) fn queue_closed(&mut self, id: QueueId) {
        if let Some(lent) = self.lent.get_mut(&id) {
            lent.is_read = false;
            self.note_free(id);
        }
    }

    /// The worker of a queue has released it.
    pub(crate) fn give_back(&mut self, id: QueueId) {
        if let Some(lent) = self.lent.get_mut(&id) {
            lent.is_returned = true;
            self.note_free(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: QueueId = (SessionId(1), 1);
    const SECOND: QueueId = (SessionId(2), 1);

    fn inode(half: &Half) -> u64 {
        rustix::fs::fstat(&half.descriptor).unwrap().st_ino
    }

    #[test]
    fn reused_memory_is_zeroed_and_the_same_users() {
        let mut pool = RingPool::default();
        let half = pool.take(7, 64, 1).unwrap();
        assert!(matches!(pool.take(7, 2, 1), Err(TakeError::Quota)));
        let other = pool.take(8, 64, 1).unwrap();
        let large = pool.take(7, 4096, 1).unwrap();
        half.mapping.write(64, &[9; 8]).unwrap();
        let before = inode(&half);
        pool.lend(FIRST, half);
        pool.client_left(FIRST.0);
        assert!(matches!(pool.take(7, 256, 1), Err(TakeError::Quota)), "the worker uses it");
        pool.give_back(FIRST);
        assert!(matches!(pool.take(7, 4096, 1), Err(TakeError::Quota)), "another size");
        let again = pool.take(7, 256, 1).unwrap();
        assert_eq!(inode(&again), before);
        let mut bytes = [1; 8];
        again.mapping.read(64, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
        drop((other, large));
    }

    #[test]
    fn a_half_is_kept_while_its_client_may_read() {
        let mut pool = RingPool::default();
        let halves = [FIRST, SECOND].map(|id| (id, pool.take(7, 64, 2).unwrap()));
        let inodes = [&halves[0].1, &halves[1].1].map(inode);
        for (id, half) in halves {
            pool.lend(id, half);
            pool.give_back(id);
        }
        assert!(pool.is_read(FIRST.0));
        assert!(matches!(pool.take(7, 64, 2), Err(TakeError::Quota)));
        pool.client_left(FIRST.0);
        assert!(!pool.is_read(FIRST.0));
        assert_eq!(inode(&pool.take(7, 64, 2).unwrap()), inodes[0], "its client left");
        assert!(matches!(pool.take(7, 64, 2), Err(TakeError::Quota)));
        pool.queue_closed(SECOND);
        assert_eq!(inode(&pool.take(7, 64, 2).unwrap()), inodes[1], "its client closed it");
    }

    #[test]
    fn a_free_half_is_found_among_used_ones() {
        let mut pool = RingPool::default();
        for number in 0..4 {
            let half = pool.take(7, 64, 4).unwrap();
            pool.lend((FIRST.0, number), half);
        }
        for number in [3, 1] {
            pool.give_back((FIRST.0, number));
            pool.queue_closed((FIRST.0, number));
            pool.queue_closed((FIRST.0, number));
        }
        assert_eq!(pool.free.get(&(7, false)).map(BTreeSet::len), Some(2), "nothing else is looked at");
        assert!(matches!(pool.take(8, 64, 0), Err(TakeError::Quota)), "another user");
        for _ in 0..2 {
            pool.take(7, 64, 4).unwrap();
        }
        assert!(matches!(pool.take(7, 64, 4), Err(TakeError::Quota)));
        assert!(pool.free.is_empty());
    }

    #[test]
    fn a_client_cannot_write_or_punch_its_half() {
        let mut pool = RingPool::default();
        let half = pool.take(7, 64, 1).unwrap();
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&half.descriptor, punch, 0, 4096).is_err());
        assert!(rustix::io::pwrite(&half.descriptor, &[1], 0).is_err());
        assert!(rustix::fs::ftruncate(&half.descriptor, 0).is_err());
    }
}
