//! The memory of queue pairs, which the service allocates and so has to bound.
//!
//! ```text
//! OpenChannel ─ take ─► of the user's kept ones, wiped, or a new one ─► lane and client
//! lane is done with it ─ give_back ─► kept for the user
//! ```
//!
//! A client can hold the descriptors for as long as it likes, so memory that was handed out once is never counted as free:
//! it is used again, for the same user only. Whoever of that user still has the old rings mapped can write into the new
//! ones, which the user id as the protection boundary allows. There are two sizes, each with the user's channel quota.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use memferry_memory::frame::{self, AllocateError};
use memferry_memory::mapping::{Access, Mapping};
use memferry_memory::queue_pair::{Layout, MAXIMUM_CAPACITY};
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
        let (length, page) = (writable.length_bytes(), writable.page_bytes());
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

/// Rings kept for their users.
#[derive(Default)]
pub(crate) struct RingPool {
    kept: Vec<Ring>,
    /// Rings that exist for a user, by size.
    made: BTreeMap<(u32, bool), u32>,
}

impl RingPool {
    /// Wiped memory for a queue pair of `capacity`; a user may have `limit` of each size.
    pub(crate) fn take(&mut self, user: u32, capacity: u32, limit: u32) -> Result<Ring, NoRing> {
        let large = capacity > SMALL_CAPACITY;
        if let Some(index) = self.kept.iter().position(|ring| ring.user == user && ring.large == large) {
            let ring = self.kept.swap_remove(index);
            if let Err(error) = ring.wipe() {
                self.kept.push(ring);
                return Err(error);
            }
            return Ok(ring);
        }
        let made = self.made.entry((user, large)).or_default();
        if *made >= limit {
            return Err(NoRing::Quota);
        }
        let ring = Ring::allocate(user, large)?;
        *made += 1;
        Ok(ring)
    }

    /// Keeps a ring that no lane uses any more.
    pub(crate) fn give_back(&mut self, ring: Ring) {
        self.kept.push(ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_handed_out_is_used_again_for_its_user_only_and_comes_back_wiped() {
        let mut pool = RingPool::default();
        let ring = pool.take(7, 64, 1).unwrap();
        assert!(matches!(pool.take(7, 2, 1), Err(NoRing::Quota)));
        let other = pool.take(8, 64, 1).unwrap();
        let large = pool.take(7, 4096, 1).unwrap();
        ring.service.1.write(64, &[9; 8]).unwrap();
        rustix::io::pwrite(&ring.client.0, &[9; 8], 64).unwrap();
        let inode = |ring: &Ring| rustix::fs::fstat(&ring.client.0).unwrap().st_ino;
        let before = inode(&ring);
        pool.give_back(ring);
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
}
