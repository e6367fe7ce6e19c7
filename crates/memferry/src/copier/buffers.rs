//! Memory that is copied asynchronously and can be neither read too early nor freed too early.
//!
//! ```text
//! Vec ─ Copier::adopt ─► CopyBuffer ─ range ─► Copier::amemcpy(to, from)
//!                            ├─ read, write ─ csync of these bytes first
//!                            ├─ into_vec ─ csync of all, then the Vec again
//!                            └─ dropped: given up; what was copied from it is moved first
//! ```
//!
//! A buffer's bytes go in and out by copy, or with the whole vector. Its address in the queue is a number of its own that no other
//! buffer ever gets, so nothing that was asked of a buffer can reach the next one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_shm::fork_guard::Forked;
use memferry_shm::mapping::AccessError;
use thiserror::Error;

use super::queue::{AddressSpace, CopierError, CopierStatistics, CopyQueue};
use crate::client::Client;
use crate::error::FrameError;
use crate::frame::{Frame, Region, TakeBackError};

/// Addresses between two buffers.
const GAP: u64 = 4096;

/// A copy was not taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AmemcpyError {
    /// The ranges have not the same length.
    #[error("{from} bytes cannot be copied to {to}; the ranges must have one length")]
    Lengths {
        /// Bytes of the source.
        from: u64,
        /// Bytes of the destination.
        to: u64,
    },
    /// A buffer belongs to another copier.
    #[error("a buffer of this copy belongs to another copier")]
    ForeignBuffer,
    /// A range leaves its buffer, or this is a forked child.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Buffers by their addresses.
#[derive(Default)]
struct Buffers {
    frames: Mutex<BTreeMap<u64, Frame>>,
    next: AtomicU64,
}

impl Buffers {
    fn frames(&self) -> MutexGuard<'_, BTreeMap<u64, Frame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frame that has an address, and the address's offset there.
    fn find(&self, address: u64) -> Option<(Frame, u64)> {
        let frames = self.frames();
        let (base, frame) = frames.range(..=address).next_back()?;
        Some((frame.clone(), address - base))
    }
}

impl AddressSpace for Buffers {
    fn region(&self, address: u64, length: u64) -> Option<Region> {
        let (frame, offset) = self.find(address)?;
        let length = length.min(frame.length().checked_sub(offset)?);
        Some(frame.slice(offset..offset + length))
    }

    fn copy(&self, to: u64, from: u64, length: u64) {
        let (Some((to, offset)), Some((from, from_offset))) = (self.find(to), self.find(from)) else {
            return;
        };
        if let Some(source) = from.mapping() {
            // Every range was checked when the copy was asked for, and a buffer outlives what it is asked for.
            let copied = to.write_from(offset, source, from_offset, length as usize);
            debug_assert_eq!(copied, Ok(()));
        }
    }
}

/// Copies buffers asynchronously, in the order of the calls. Clones share it; it ends with the last of them and its buffers.
///
/// ```
/// use memferry::{Client, Copier};
///
/// let copier = Copier::new(&Client::embedded()?)?;
/// let received = copier.adopt(vec![7; 1 << 20])?;
/// let (between, kept) = (copier.adopt(vec![0; 1 << 20])?, copier.adopt(vec![0; 1 << 20])?);
/// copier.amemcpy(&between.all(), &received.all())?; // returns at once
/// copier.amemcpy(&kept.all(), &between.all())?; //     what is still to come is copied from where it is
/// drop(between); //                                    and then need not be moved at all
/// let sum: u64 = (0..1000).sum(); //                   computing meanwhile
/// let mut header = [0; 16];
/// kept.read(4096, &mut header)?; //                    waits for these bytes
/// assert_eq!((header, sum), ([7; 16], 499_500));
/// assert_eq!(kept.into_vec()?, vec![7; 1 << 20]); //   waits for all
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct Copier {
    client: Client,
    queue: Arc<CopyQueue<Buffers>>,
}

impl Copier {
    /// A copier that the service of an embedded client moves bytes for.
    ///
    /// # Errors
    /// [`CopierError`].
    pub fn new(client: &Client) -> Result<Self, CopierError> {
        let queue = Arc::new(CopyQueue::new(client, Buffers::default())?);
        Ok(Self { client: client.clone(), queue })
    }

    /// Takes memory over, without copying it.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn adopt(&self, memory: Vec<u8>) -> Result<CopyBuffer, FrameError> {
        let length = memory.len() as u64;
        let frame = self.client.register_owned(memory)?;
        let space = self.queue.space();
        // 2^63 addresses last for ever: no machine allocates so much.
        let base = space.next.fetch_add(length.next_multiple_of(GAP) + GAP, Ordering::Relaxed);
        space.frames().insert(base, frame.clone());
        Ok(CopyBuffer { claim: Claim { queue: Arc::clone(&self.queue), base, length }, frame })
    }

    /// Has the source's bytes copied to the destination and returns at once. Reads of the destination wait for what they
    /// read; writes to the source for what was copied from it; writes to the destination for both. The ranges may overlap,
    /// as with `memmove`.
    ///
    /// # Errors
    /// [`AmemcpyError`]; nothing is copied.
    pub fn amemcpy(&self, to: &CopyRange<'_>, from: &CopyRange<'_>) -> Result<(), AmemcpyError> {
        if to.length != from.length {
            return Err(AmemcpyError::Lengths { from: from.length, to: to.length });
        }
        for range in [to, from] {
            if !Arc::ptr_eq(&range.buffer.claim.queue, &self.queue) {
                return Err(AmemcpyError::ForeignBuffer);
            }
            range.buffer.check(range.offset, range.length)?;
        }
        let address = |range: &CopyRange<'_>| range.buffer.claim.base + range.offset;
        Ok(self.queue.amemcpy(address(to), address(from), to.length)?)
    }

    /// Returns when everything is in place, also what other threads ask for meanwhile.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn csync_all(&self) -> Result<(), AccessError> {
        self.queue.csync_all()
    }

    /// What it did.
    ///
    /// # Errors
    /// [`Forked`].
    pub fn statistics(&self) -> Result<CopierStatistics, Forked> {
        self.queue.statistics()
    }
}

/// What a buffer has in the queue: given up when it is dropped.
struct Claim {
    queue: Arc<CopyQueue<Buffers>>,
    base: u64,
    length: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // In a forked child nothing is done, and nothing can be.
        if self.queue.forget(self.base, self.length).is_ok() {
            let known = self.queue.space().frames().remove(&self.base);
            drop(known);
        }
    }
}

/// Memory that a copier copies from and to.
pub struct CopyBuffer {
    /// Before the frame, for nobody may touch the memory when that goes.
    claim: Claim,
    frame: Frame,
}

/// A range of a buffer.
#[derive(Clone, Copy)]
pub struct CopyRange<'a> {
    buffer: &'a CopyBuffer,
    offset: u64,
    length: u64,
}

impl CopyBuffer {
    /// Its bytes.
    pub fn length(&self) -> u64 {
        self.claim.length
    }

    /// All of it.
    pub fn all(&self) -> CopyRange<'_> {
        self.range(0, self.length())
    }

    /// `length` bytes at `offset`. Whether they are inside is checked when they are used.
    pub fn range(&self, offset: u64, length: u64) -> CopyRange<'_> {
        CopyRange { buffer: self, offset, length }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length() => Ok(()),
            _ => Err(AccessError::OutOfRange { offset, length, available: self.length() }),
        }
    }

    /// Returns when these bytes are in place.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn csync(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        self.check(offset, length)?;
        self.claim.queue.csync(self.claim.base + offset, length)
    }

    /// Copies bytes out when they are in place.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.csync(offset, bytes.len() as u64)?;
        self.frame.read(offset, bytes)
    }

    /// Copies bytes in when no copy reads or writes the old ones any more.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.check(offset, bytes.len() as u64)?;
        self.claim.queue.csync_to_write(self.claim.base + offset, bytes.len() as u64)?;
        self.frame.write(offset, bytes)
    }

    /// Gives bytes up, which hold nothing certain then: what was to be copied there is not, and what is to be copied from
    /// there is copied first.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn forget(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        self.check(offset, length)?;
        self.claim.queue.forget(self.claim.base + offset, length)
    }

    /// The memory again, when all its bytes are in place and no copy reads them any more.
    ///
    /// # Errors
    /// [`TakeBackError`].
    pub fn into_vec(self) -> Result<Vec<u8>, TakeBackError> {
        let Self { claim, frame } = self;
        if let Err(AccessError::Forked(forked)) = claim.queue.csync_to_write(claim.base, claim.length) {
            return Err(TakeBackError::Call(forked.into(), frame));
        }
        drop(claim);
        frame.into_owned()
    }
}

impl fmt::Debug for CopyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyBuffer({} bytes)", self.length())
    }
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copier({:?})", self.statistics())
    }
}
