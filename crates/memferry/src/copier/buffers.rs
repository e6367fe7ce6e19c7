//! Owned memory for asynchronous copies, which cannot be read or freed too early.
//!
//! ```text
//! Vec ─ Copier::adopt ─► CopyBuffer ─ range ─► Copier::amemcpy(to, from)
//!                            ├─ read, write ─ csync of these bytes first
//!                            ├─ into_vec ─ csync of all bytes, then returns the Vec
//!                            └─ drop: moves what was copied from it first, and cancels copies into it
//! ```
//!
//! Bytes go in and out by copy, or with the whole vector. Each buffer has its own address in the queue, which is never reused, so
//! a copy of one buffer cannot affect a later buffer.

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

/// Unused addresses between two buffers.
const GAP: u64 = 4096;

/// Why [`Copier::amemcpy`] refused a copy.
///
/// ```
/// use memferry::{AmemcpyError, Client, Copier};
///
/// let copier = Copier::new(&Client::embedded()?)?;
/// let buffer = copier.adopt(vec![0; 4096])?;
/// let refused = copier.amemcpy(&buffer.range(0, 100), &buffer.range(100, 200));
/// assert_eq!(refused, Err(AmemcpyError::Lengths { from: 200, to: 100 }));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AmemcpyError {
    /// The ranges differ in length.
    #[error("cannot copy {from} bytes to {to} bytes; both ranges must have the same length")]
    Lengths {
        /// Length of the source in bytes.
        from: u64,
        /// Length of the destination in bytes.
        to: u64,
    },
    /// A buffer belongs to another copier.
    #[error("a buffer of this copy belongs to another copier; adopt it with this one")]
    ForeignBuffer,
    /// A range leaves its buffer, or this process is a forked child.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// The frames of all buffers by address.
#[derive(Default)]
struct Buffers {
    frames: Mutex<BTreeMap<u64, Frame>>,
    next: AtomicU64,
}

impl Buffers {
    fn frames(&self) -> MutexGuard<'_, BTreeMap<u64, Frame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frame that contains an address, and the offset of the address in it.
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
            // `amemcpy` checked the ranges, and a buffer outlives its copies.
            let copied = to.write_from(offset, source, from_offset, length as usize);
            debug_assert_eq!(copied, Ok(()));
        }
    }
}

/// Copies buffers asynchronously, in the order of the calls. Clones share it; it ends when the last clone and buffer is dropped.
///
/// ```
/// use memferry::{Client, Copier};
///
/// let copier = Copier::new(&Client::embedded()?)?;
/// let received = copier.adopt(vec![7; 1 << 20])?;
/// let (between, kept) = (copier.adopt(vec![0; 1 << 20])?, copier.adopt(vec![0; 1 << 20])?);
/// copier.amemcpy(&between.all(), &received.all())?; // returns at once
/// copier.amemcpy(&kept.all(), &between.all())?; //     may read from `received` instead
/// drop(between); //                                    so these bytes may never be moved
/// let sum: u64 = (0..1000).sum(); //                   computes while the bytes move
/// let mut header = [0; 16];
/// kept.read(4096, &mut header)?; //                    waits for these bytes
/// assert_eq!((header, sum), ([7; 16], 499_500));
/// assert_eq!(kept.into_vec()?, vec![7; 1 << 20]); //   waits for all bytes
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct Copier {
    client: Client,
    queue: Arc<CopyQueue<Buffers>>,
}

impl Copier {
    /// Creates a copier that uses the service of an embedded client.
    ///
    /// # Errors
    /// [`CopierError`]: the client is not embedded, or the fork guard or the thread cannot be created.
    pub fn new(client: &Client) -> Result<Self, CopierError> {
        let queue = Arc::new(CopyQueue::new(client, Buffers::default())?);
        Ok(Self { client: client.clone(), queue })
    }

    /// Turns a vector into a buffer of the same length without copying it.
    ///
    /// # Errors
    /// [`FrameError::Call`], for example when a quota is used up.
    pub fn adopt(&self, memory: Vec<u8>) -> Result<CopyBuffer, FrameError> {
        let length = memory.len() as u64;
        let frame = self.client.register_owned(memory)?;
        let space = self.queue.space();
        // The 2^63 addresses do not run out: no machine allocates that much.
        let base = space.next.fetch_add(length.next_multiple_of(GAP) + GAP, Ordering::Relaxed);
        space.frames().insert(base, frame.clone());
        Ok(CopyBuffer { claim: Claim { queue: Arc::clone(&self.queue), base, length }, frame })
    }

    /// Copies the source to the destination asynchronously and returns at once. Later reads of the destination wait for the
    /// bytes that they read, writes to the source wait for copies from these bytes, and writes to the destination wait for
    /// both. The ranges have the same length and may overlap, as with `memmove`.
    ///
    /// # Errors
    /// [`AmemcpyError`]; then nothing is copied.
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

    /// Returns when all copies are done, including those that other threads request during the wait.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn csync_all(&self) -> Result<(), AccessError> {
        self.queue.csync_all()
    }

    /// Byte counts since the copier was created.
    ///
    /// # Errors
    /// [`Forked`] in a forked child.
    pub fn statistics(&self) -> Result<CopierStatistics, Forked> {
        self.queue.statistics()
    }
}

/// The addresses of a buffer in the queue, released on drop.
struct Claim {
    queue: Arc<CopyQueue<Buffers>>,
    base: u64,
    length: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Fails in a forked child, which has no copier.
        if self.queue.forget(self.base, self.length).is_ok() {
            let known = self.queue.space().frames().remove(&self.base);
            drop(known);
        }
    }
}

/// A fixed number of bytes that a copier copies from and to; made by [`Copier::adopt`].
///
/// ```
/// use memferry::{Client, Copier};
///
/// let copier = Copier::new(&Client::embedded()?)?;
/// let from = copier.adopt(vec![7; 1 << 20])?; // takes the vector over, without a copy
/// let to = copier.adopt(vec![0; 1 << 20])?;
/// copier.amemcpy(&to.all(), &from.all())?; // returns at once
/// to.csync(0, 4096)?; // waits for the first page only
/// assert_eq!(to.into_vec()?, vec![7; 1 << 20]);
/// # Ok::<(), memferry::Error>(())
/// ```
pub struct CopyBuffer {
    /// Dropped before the frame, so that no copy touches the memory when the frame is dropped.
    claim: Claim,
    frame: Frame,
}

/// A range of bytes in a [`CopyBuffer`].
///
/// ```
/// use memferry::{Client, Copier};
///
/// let copier = Copier::new(&Client::embedded()?)?;
/// let text = copier.adopt(b"one, two".to_vec())?;
/// copier.amemcpy(&text.range(0, 3), &text.range(5, 3))?;
/// assert_eq!(text.into_vec()?, b"two, two");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct CopyRange<'a> {
    buffer: &'a CopyBuffer,
    offset: u64,
    length: u64,
}

impl CopyBuffer {
    /// The length in bytes.
    pub fn length(&self) -> u64 {
        self.claim.length
    }

    /// The range of the whole buffer.
    pub fn all(&self) -> CopyRange<'_> {
        self.range(0, self.length())
    }

    /// The range of `length` bytes at `offset`. The bounds are checked on use.
    pub fn range(&self, offset: u64, length: u64) -> CopyRange<'_> {
        CopyRange { buffer: self, offset, length }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length() => Ok(()),
            _ => Err(AccessError::OutOfRange { offset, length, available: self.length() }),
        }
    }

    /// Returns when all copies into these bytes are done.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Forked`].
    pub fn csync(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        self.check(offset, length)?;
        self.claim.queue.csync(self.claim.base + offset, length)
    }

    /// Copies bytes at `offset` to `bytes` as soon as the copies into them are done.
    ///
    /// # Errors
    /// As [`csync`](Self::csync).
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.csync(offset, bytes.len() as u64)?;
        self.frame.read(offset, bytes)
    }

    /// Copies `bytes` to `offset` as soon as no pending copy reads or writes these bytes.
    ///
    /// # Errors
    /// As [`csync`](Self::csync).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.check(offset, bytes.len() as u64)?;
        self.claim.queue.csync_to_write(self.claim.base + offset, bytes.len() as u64)?;
        self.frame.write(offset, bytes)
    }

    /// Discards the contents of these bytes, which are unspecified afterwards: cancels pending copies into them, and completes
    /// pending copies from them first.
    ///
    /// # Errors
    /// As [`csync`](Self::csync).
    pub fn forget(&self, offset: u64, length: u64) -> Result<(), AccessError> {
        self.check(offset, length)?;
        self.claim.queue.forget(self.claim.base + offset, length)
    }

    /// Returns the vector when all copies into it and from it are done.
    ///
    /// # Errors
    /// [`TakeBackError::Call`] in a forked child or if the service does not revoke the memory.
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
