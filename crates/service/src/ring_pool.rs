//! Pool of queue-pair memory, which the service allocates and therefore limits per user.
//!
//! ```text
//! OpenQueue ─ take ─► a wiped ring that the user had before, or a new one ─ lend ─► worker and client
//! the client closes the queue, disconnects, or exits ─► it writes no more ───┐
//! the worker releases the ring ─ give_back ──────────────────────────────────────┴─► free for the same user
//! ```
//!
//! A client can keep the descriptors, so memory that was handed out is never freed. It is reused only for the same user, and
//! only after its client closed the queue, disconnected or exited: a client whose session the service ended may not know yet
//! and still write. A process of that user that keeps the old mapping can write into the new ring; that is allowed, because
//! the user id is the protection boundary. There are two sizes, and the user's queue quota applies to each.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use memferry_shm::frame::{self, AllocateError};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::queue_pair::{Layout, MAXIMUM_CAPACITY};
use memferry_transfer::SessionId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FallocateFlags;

/// Queues of at most this capacity use the smaller size.
const SMALL_CAPACITY: u32 = 256;

/// The two shared memories of a queue pair.
#[derive(Debug)]
pub(crate) struct Ring {
    user: u32,
    large: bool,
    /// Written by the client, mapped read-only here.
    pub(crate) client: (OwnedFd, Mapping),
    /// Written by the service. Sealed, so that the client cannot map it writable.
    pub(crate) service: (OwnedFd, Mapping),
}

/// Reason for which there is no memory for a queue pair.
#[derive(Debug)]
pub(crate) enum TakeError {
    /// The user has reached its limit of this size and no ring is free.
    Quota,
    /// A system call failed.
    System(std::io::Error),
}

impl From<AllocateError> for TakeError {
    fn from(error: AllocateError) -> Self {
        Self::System(std::io::Error::other(error))
    }
}

impl Ring {
    fn allocate(user: u32, large: bool) -> Result<Self, TakeError> {
        let capacity = if large { MAXIMUM_CAPACITY } else { SMALL_CAPACITY };
        let layout =
            Layout::new(capacity).map_err(|error| TakeError::System(std::io::Error::other(error)))?;
        let (client, writable) = frame::allocate_sealed(layout.client_words() as u64 * 8, true)?;
        let service = frame::allocate_sealed(layout.service_words() as u64 * 8, false)?;
        let length = writable.length_bytes();
        let page = writable.page_bytes();
        let read_only =
            Mapping::shared(client.as_fd(), length, Access::ReadOnly, page).map_err(TakeError::System)?;
        Ok(Self { user, large, client: (client, read_only), service })
    }

    /// Fills both memories with zeros.
    fn wipe(&self) -> Result<(), TakeError> {
        let failed = |error: rustix::io::Errno| TakeError::System(error.into());
        let length = self.client.1.length_bytes() as u64;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.client.0, punch, 0, length).map_err(failed)?;
        rustix::fs::fallocate(&self.client.0, FallocateFlags::empty(), 0, length).map_err(failed)?;
        let zeros = vec![0; self.service.1.length_bytes()];
        self.service.1.write(0, &zeros).map_err(|error| TakeError::System(std::io::Error::other(error)))
    }
}

/// Identifies a queue for the lifetime of the service.
pub(crate) type QueueId = (SessionId, u32);

/// Who may still write into a ring.
#[derive(Clone)]
pub(crate) enum Writer {
    /// A process that did not close the queue.
    Process(Arc<OwnedFd>),
    /// A client in the service's own process.
    Embedded,
    /// The client closed the queue, disconnected or exited.
    None,
}

struct LentRing {
    ring: Ring,
    writer: Writer,
    /// The worker has released it.
    is_returned: bool,
}

impl LentRing {
    /// Whether no client writes into it. Checks also whether the client's process has exited.
    fn is_unused(&mut self) -> bool {
        if let Writer::Process(process) = &self.writer {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            if rustix::event::poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
                self.writer = Writer::None;
            }
        }
        matches!(self.writer, Writer::None)
    }
}

#[derive(Default)]
pub(crate) struct RingPool {
    lent: BTreeMap<QueueId, LentRing>,
    /// Number of rings allocated, by user and whether large.
    allocated: BTreeMap<(u32, bool), u32>,
}

impl RingPool {
    /// Returns zeroed memory for a queue pair of `capacity`. A user may have `limit` rings of each size.
    pub(crate) fn take(&mut self, user: u32, capacity: u32, limit: u32) -> Result<Ring, TakeError> {
        let large = capacity > SMALL_CAPACITY;
        let kept = self.lent.iter_mut().find_map(|(id, lent)| {
            let fits = lent.is_returned && (lent.ring.user, lent.ring.large) == (user, large);
            (fits && lent.is_unused()).then_some(*id)
        });
        if let Some(id) = kept
            && let Some(lent) = self.lent.remove(&id)
        {
            if let Err(error) = lent.ring.wipe() {
                self.lent.insert(id, lent);
                return Err(error);
            }
            return Ok(lent.ring);
        }
        let allocated = self.allocated.entry((user, large)).or_default();
        if *allocated >= limit {
            return Err(TakeError::Quota);
        }
        let ring = Ring::allocate(user, large)?;
        *allocated += 1;
        Ok(ring)
    }

    /// Records that the ring is used by a worker and the client of queue `id`.
    pub(crate) fn lend(&mut self, id: QueueId, ring: Ring, writer: Writer) {
        self.lent.insert(id, LentRing { ring, writer, is_returned: false });
    }

    /// The client of a session disconnected and writes no more.
    pub(crate) fn client_left(&mut self, session: SessionId) {
        for (_, lent) in self.lent.range_mut((session, 0)..=(session, u32::MAX)) {
            lent.writer = Writer::None;
        }
    }

    /// The client closed a queue and writes no more.
    pub(crate) fn queue_closed(&mut self, id: QueueId) {
        if let Some(lent) = self.lent.get_mut(&id) {
            lent.writer = Writer::None;
        }
    }

    /// The worker of a queue has released its ring.
    pub(crate) fn give_back(&mut self, id: QueueId) {
        if let Some(lent) = self.lent.get_mut(&id) {
            lent.is_returned = true;
            let _ = lent.is_unused();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: QueueId = (SessionId(1), 1);
    const SECOND: QueueId = (SessionId(2), 1);

    fn inode(ring: &Ring) -> u64 {
        rustix::fs::fstat(&ring.client.0).unwrap().st_ino
    }

    #[test]
    fn reused_memory_is_zeroed_and_the_same_users() {
        let mut pool = RingPool::default();
        let ring = pool.take(7, 64, 1).unwrap();
        assert!(matches!(pool.take(7, 2, 1), Err(TakeError::Quota)));
        let other = pool.take(8, 64, 1).unwrap();
        let large = pool.take(7, 4096, 1).unwrap();
        ring.service.1.write(64, &[9; 8]).unwrap();
        rustix::io::pwrite(&ring.client.0, &[9; 8], 64).unwrap();
        let before = inode(&ring);
        pool.lend(FIRST, ring, Writer::None);
        assert!(matches!(pool.take(7, 256, 1), Err(TakeError::Quota)), "the worker uses it");
        pool.give_back(FIRST);
        assert!(matches!(pool.take(7, 4096, 1), Err(TakeError::Quota)), "another size");
        let again = pool.take(7, 256, 1).unwrap();
        assert_eq!(inode(&again), before);
        for mapping in [&again.service.1, &again.client.1] {
            let mut bytes = [1; 8];
            mapping.read(64, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 8]);
        }
        drop((other, large));
    }

    #[test]
    fn a_ring_is_kept_while_its_client_may_write() {
        let alone = crate::FORKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        drop(alone);
        let number = rustix::process::Pid::from_child(&child);
        let process = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).unwrap();
        let mut pool = RingPool::default();
        let ring = pool.take(7, 64, 2).unwrap();
        let embedded = pool.take(7, 64, 2).unwrap();
        let inodes = [&ring, &embedded].map(inode);
        pool.lend(FIRST, ring, Writer::Process(Arc::new(process)));
        pool.lend(SECOND, embedded, Writer::Embedded);
        pool.give_back(FIRST);
        pool.give_back(SECOND);
        assert!(matches!(pool.take(7, 64, 2), Err(TakeError::Quota)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(inode(&pool.take(7, 64, 2).unwrap()), inodes[0], "its process has exited");
        pool.client_left(FIRST.0);
        assert!(matches!(pool.take(7, 64, 2), Err(TakeError::Quota)));
        pool.queue_closed(SECOND);
        let ring = pool.take(7, 64, 2).unwrap();
        assert_eq!(inode(&ring), inodes[1], "its client closed it");
        pool.lend(SECOND, ring, Writer::Embedded);
        pool.client_left(SECOND.0);
        pool.give_back(SECOND);
        assert_eq!(inode(&pool.take(7, 64, 2).unwrap()), inodes[1], "its client disconnected");
    }
}
