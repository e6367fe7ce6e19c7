//! The memory of queue pairs, which the service allocates and so has to bound.
//!
//! ```text
//! OpenQueue ─ take ─► of the user's kept ones, wiped, or a new one ─ lend ─► worker and client
//! the client closes the queue, leaves, or ends ─► nobody writes into it ─────┐
//! worker is done with it ─ give_back ─► kept for the user ───────────────────────┴─► to be taken again
//! ```
//!
//! A client can hold the descriptors for as long as it likes, so memory that was handed out once is never counted as free:
//! it is used again, for the same user only, once its client said that it is done with it or is gone; one whose session the
//! service ended may not know yet. Whoever of that user has the old rings mapped all the same can write into the new ones,
//! which the user id as the protection boundary allows. There are two sizes, each with the user's queue quota.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use memferry_shm::frame::{self, AllocateError};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::queue_pair::{Layout, MAXIMUM_CAPACITY};
use memferry_transfer::SessionId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FallocateFlags;

/// Capacity up to which the smaller memory does.
const SMALL_CAPACITY: u32 = 256;

/// The two memories of a queue pair.
#[derive(Debug)]
pub(crate) struct Ring {
    user: u32,
    large: bool,
    /// Written by the client, mapped read-only here.
    pub(crate) client: (OwnedFd, Mapping),
    /// Written by the service; sealed, so that it cannot be mapped writable anew.
    pub(crate) service: (OwnedFd, Mapping),
}

/// Why there is no memory for a queue pair.
#[derive(Debug)]
pub(crate) enum NoRing {
    /// The user has had as many of this size as it may and none is back yet.
    Quota,
    /// The machine would not give it.
    System(std::io::Error),
}

impl From<AllocateError> for NoRing {
    fn from(error: AllocateError) -> Self {
        Self::System(std::io::Error::other(error))
    }
}

impl Ring {
    fn allocate(user: u32, large: bool) -> Result<Self, NoRing> {
        let capacity = if large { MAXIMUM_CAPACITY } else { SMALL_CAPACITY };
        let layout = Layout::new(capacity).map_err(|error| NoRing::System(std::io::Error::other(error)))?;
        let (client, writable) = frame::allocate_sealed(layout.client_words() as u64 * 8, true)?;
        let service = frame::allocate_sealed(layout.service_words() as u64 * 8, false)?;
        let length = writable.length_bytes();
        let page = writable.page_bytes();
        let read_only =
            Mapping::shared(client.as_fd(), length, Access::ReadOnly, page).map_err(NoRing::System)?;
        Ok(Self { user, large, client: (client, read_only), service })
    }

    /// Makes both memories zero again.
    fn wipe(&self) -> Result<(), NoRing> {
        let failed = |error: rustix::io::Errno| NoRing::System(error.into());
        let length = self.client.1.length_bytes() as u64;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.client.0, punch, 0, length).map_err(failed)?;
        rustix::fs::fallocate(&self.client.0, FallocateFlags::empty(), 0, length).map_err(failed)?;
        let zeros = vec![0; self.service.1.length_bytes()];
        self.service.1.write(0, &zeros).map_err(|error| NoRing::System(std::io::Error::other(error)))
    }
}

/// A queue, for as long as the service runs.
pub(crate) type QueueId = (SessionId, u32);

/// Who may write into a ring yet.
#[derive(Clone)]
pub(crate) enum Writer {
    /// This process, as it does not know that it should not.
    Process(Arc<OwnedFd>),
    /// A client in the service's own process.
    Embedded,
    /// Its client is done with it, or gone.
    Nobody,
}

struct Lent {
    ring: Ring,
    writer: Writer,
    /// No worker uses it any more.
    is_back: bool,
}

impl Lent {
    /// Whether nobody writes into it any more; a process that has ended is let go of.
    fn is_unused(&mut self) -> bool {
        if let Writer::Process(process) = &self.writer {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            if rustix::event::poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
                self.writer = Writer::Nobody;
            }
        }
        matches!(self.writer, Writer::Nobody)
    }
}

#[derive(Default)]
pub(crate) struct RingPool {
    lent: BTreeMap<QueueId, Lent>,
    /// Rings that exist for a user, by size.
    made: BTreeMap<(u32, bool), u32>,
}

impl RingPool {
    /// Wiped memory for a queue pair of `capacity`; a user may have `limit` of each size.
    pub(crate) fn take(&mut self, user: u32, capacity: u32, limit: u32) -> Result<Ring, NoRing> {
        let large = capacity > SMALL_CAPACITY;
        let kept = self.lent.iter_mut().find_map(|(id, lent)| {
            let fits = lent.is_back && (lent.ring.user, lent.ring.large) == (user, large);
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
        let made = self.made.entry((user, large)).or_default();
        if *made >= limit {
            return Err(NoRing::Quota);
        }
        let ring = Ring::allocate(user, large)?;
        *made += 1;
        Ok(ring)
    }

    /// A ring goes to a worker, and to the client of this queue.
    pub(crate) fn lend(&mut self, id: QueueId, ring: Ring, writer: Writer) {
        self.lent.insert(id, Lent { ring, writer, is_back: false });
    }

    /// The client of a session left: it writes no more.
    pub(crate) fn left(&mut self, session: SessionId) {
        for (_, lent) in self.lent.range_mut((session, 0)..=(session, u32::MAX)) {
            lent.writer = Writer::Nobody;
        }
    }

    /// The client of a queue writes no more.
    pub(crate) fn closed(&mut self, id: QueueId) {
        if let Some(lent) = self.lent.get_mut(&id) {
            lent.writer = Writer::Nobody;
        }
    }

    /// The worker of a queue is done with its ring.
    pub(crate) fn give_back(&mut self, id: QueueId) {
        if let Some(lent) = self.lent.get_mut(&id) {
            lent.is_back = true;
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
    fn memory_handed_out_is_used_again_for_its_user_only_and_comes_back_wiped() {
        let mut pool = RingPool::default();
        let ring = pool.take(7, 64, 1).unwrap();
        assert!(matches!(pool.take(7, 2, 1), Err(NoRing::Quota)));
        let other = pool.take(8, 64, 1).unwrap();
        let large = pool.take(7, 4096, 1).unwrap();
        ring.service.1.write(64, &[9; 8]).unwrap();
        rustix::io::pwrite(&ring.client.0, &[9; 8], 64).unwrap();
        let before = inode(&ring);
        pool.lend(FIRST, ring, Writer::Nobody);
        assert!(matches!(pool.take(7, 256, 1), Err(NoRing::Quota)), "the worker has it");
        pool.give_back(FIRST);
        assert!(matches!(pool.take(7, 4096, 1), Err(NoRing::Quota)), "another size");
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
    fn a_ring_whose_client_lives_and_did_not_close_it_is_nobody_elses() {
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
        assert!(matches!(pool.take(7, 64, 2), Err(NoRing::Quota)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(inode(&pool.take(7, 64, 2).unwrap()), inodes[0], "its process has ended");
        pool.left(FIRST.0);
        assert!(matches!(pool.take(7, 64, 2), Err(NoRing::Quota)));
        pool.closed(SECOND);
        let ring = pool.take(7, 64, 2).unwrap();
        assert_eq!(inode(&ring), inodes[1], "its client closed it");
        pool.lend(SECOND, ring, Writer::Embedded);
        pool.left(SECOND.0);
        pool.give_back(SECOND);
        assert_eq!(inode(&pool.take(7, 64, 2).unwrap()), inodes[1], "its client left");
    }
}
