//! An arena of memory that the service may move bytes in from the moment it is allocated.
//!
//! ```text
//! Client::arena ─► FrameArena ─┬─ buffer(length) ─► Buffer ─ slice ─► Transfer        no message to the service
//!                              ├─ allocator() ─► collections ─ copy(queue, &from, &mut to)   waits
//!                              └─ region_of(promised) ─► Transfer                     unsafe to promise
//! segments: frames of 4 MiB or what one block needs, registered when they come, revoked when they go
//! ```
//!
//! # Why safe code cannot make an engine write where it should not
//!
//! A destination that an engine may still write to must not be given to anybody else, and must not be referred to.
//!
//! * **A [`Buffer`]** has no references to its bytes: it is read and written by copy. Its block is owned by a window frame
//!   that its regions, the transfers made of them and the queue's slots hold; a slot lets go when its completion was
//!   taken, and a completion comes when the engine can no longer touch the memory, or says that it may
//!   ([`TransferError::is_settled`](crate::TransferError::is_settled): its queue failed and could not be stopped). There, and where
//!   a completion never comes (the service was lost, the queue was dropped with requests outstanding), the slot marks the block as
//!   abandoned: its bytes are nobody's until the whole segment goes, and the pages of that stay pinned for as long as the engine
//!   has them. Windows are bounded: a region or a 2-D walk that leaves the block is turned into
//!   one that the service refuses. Peers get a window's memory only by a frame derived from it, which keeps the block
//!   until its revocation is over.
//! * **A collection** refers to its bytes, so no range of it is given to safe code. [`FrameArena::copy`] borrows both slices
//!   until the completion is there. It hands only whole pages of the destination to the engine; if the completion's truth is
//!   not known, these pages are replaced in place by fresh ones, and what is still written goes to memory that nobody
//!   refers to.
//! * **The segment's own frame** is never given out: [`FrameAllocator::locate`](memferry_shm::arena::Arena::locate)
//!   names it by an opaque [`SegmentFrame`].
//! * **A forked child** has none of the memory: every call there fails, and dropping does nothing.
//!
//! All this trusts the service to write only what was asked for, as every frame does. It does not choose buffers for
//! anybody, and does not share them between processes.

use std::ops::RangeBounds;
use std::sync::Arc;

use memferry_shm::arena::{Arena, ArenaError, Memfds, Options, Promised, SegmentError, Statistics};
use memferry_shm::mapping::AccessError;
use memferry_shm::placement::Placement;
use memferry_transfer::{Failure, Side};
use thiserror::Error;

use crate::error::FrameError;
use crate::frame::{Frame, Region, Segments};
use crate::queue::{Queue, SubmitReason};
use crate::session::Session;
use crate::transfer::copy;

/// How an arena works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaOptions {
    /// The pages of its segments, and their NUMA node.
    pub placement: Placement,
    /// Bytes of a segment, unless one block needs more.
    pub segment_bytes: u64,
    /// Whether blocks are filled with zeros when they are given back, so that no block ever holds another's old bytes.
    pub zero_on_free: bool,
    /// Bytes of all its segments together.
    pub limit_bytes: u64,
}

impl Default for ArenaOptions {
    /// Ordinary pages anywhere, segments of 4 MiB, zeroed blocks, at most half of the machine's memory.
    fn default() -> Self {
        let Options { segment_bytes, zero_on_free, limit_bytes } = Options::default();
        Self { placement: Placement::default(), segment_bytes, zero_on_free, limit_bytes }
    }
}

/// Why there is no buffer.
pub type BufferError = ArenaError<SegmentError<FrameError>>;

/// Allocates for collections in an arena's memory: `allocator_api2::vec::Vec<u8, FrameAllocator>`.
pub type FrameAllocator = Arena<Memfds<Segments>>;

/// Bytes that a copy between slices moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// By the service's engine.
    pub by_engine: u64,
    /// By the calling thread: what lies on pages that the destination shares with others.
    pub by_caller: u64,
}

/// Why slices were not copied. The destination's bytes are then any of the old ones, the new ones and zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CopyError {
    /// They have not the same length.
    #[error("{from} bytes cannot be copied to {to}; the slices must have one length")]
    Lengths {
        /// Bytes of the source.
        from: usize,
        /// Bytes of the destination.
        to: usize,
    },
    /// A slice is not in the arena, or the arena's memory there was taken out of use when a service was lost or an engine channel
    /// failed.
    #[error("the {0} does not lie in this arena; allocate it there")]
    NotInArena(Side),
    /// The queue would not take it.
    #[error(transparent)]
    Submit(SubmitReason),
    /// The transfer failed.
    #[error("the copy failed: {0}")]
    Failed(Failure),
}

/// Memory for buffers and collections. Clones share it.
///
/// ```
/// # #![deny(unused_must_use)]
/// use allocator_api2::vec::Vec;
/// use memferry::{ArenaOptions, Client, copy};
///
/// let client = Client::embedded()?;
/// let arena = client.arena(ArenaOptions::default())?;
/// let mut queue = client.queue(64)?;
/// // A buffer is owned, so a transfer may run while this thread does something else.
/// let (from, to) = (arena.buffer(1 << 20)?, arena.buffer(1 << 20)?);
/// from.write(0, b"moved")?;
/// let ticket = queue.submit(copy(&from, &to))?;
/// queue.wait(ticket)?;
/// // A collection is borrowed, so the call waits.
/// let mut list = Vec::new_in(arena.allocator());
/// list.resize(100_000, 7u8);
/// let mut copy = Vec::new_in(arena.allocator());
/// copy.resize(100_000, 0u8);
/// arena.copy(&mut queue, &list, &mut copy)?;
/// assert_eq!(list, copy);
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct FrameArena {
    arena: FrameAllocator,
}

impl FrameArena {
    pub(crate) fn new(session: Arc<Session>, options: ArenaOptions) -> Result<Self, FrameError> {
        let ArenaOptions { placement, segment_bytes, zero_on_free, limit_bytes } = options;
        let source = Memfds::new(Segments::new(session), placement).map_err(FrameError::Guard)?;
        Ok(Self { arena: Arena::new(source, Options { segment_bytes, zero_on_free, limit_bytes }) })
    }

    /// An allocator for collections.
    pub fn allocator(&self) -> FrameAllocator {
        self.arena.clone()
    }

    /// A buffer of `length` bytes, zero unless the arena does not zero.
    ///
    /// # Errors
    /// [`BufferError`]: no bytes, the limit, or no segment because memory, quota or the service is gone.
    pub fn buffer(&self, length: usize) -> Result<Buffer, BufferError> {
        self.buffer_aligned(length, 1)
    }

    /// A buffer of `length` bytes whose first lies at a multiple of `align`, a power of two up to 2 MiB.
    ///
    /// # Errors
    /// [`BufferError`], as [`buffer`](Self::buffer).
    pub fn buffer_aligned(&self, length: usize, align: usize) -> Result<Buffer, BufferError> {
        Ok(Buffer { frame: Frame::of_block(self.arena.block(length, align)?) })
    }

    /// The region that memory of this arena is, so that transfers can name it; `None` unless all of it lies in one of the
    /// arena's segments. What has to be promised, [`Promised::new`] says.
    pub fn region_of(&self, promised: Promised) -> Option<Region> {
        let (segment, offset) = self.arena.locate_promised(promised)?;
        Some(Frame::of_promise(segment.0, offset, promised.length_bytes()).into())
    }

    /// Copies one slice of this arena to another of the same length, and waits until that is done. Other completions of the
    /// queue stay for [`Queue::poll`].
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy(&self, queue: &mut Queue, from: &[u8], to: &mut [u8]) -> Result<Copied, CopyError> {
        if from.len() != to.len() {
            return Err(CopyError::Lengths { from: from.len(), to: to.len() });
        }
        if from.is_empty() {
            return Ok(Copied { by_engine: 0, by_caller: 0 });
        }
        let missing = CopyError::NotInArena;
        let whole = self.arena.whole_pages(to).ok_or(missing(Side::Destination))?;
        let (segment, offset) = self.arena.locate_slice(from).ok_or(missing(Side::Source))?;
        let source = segment.0.slice(offset + whole.start as u64..offset + whole.end as u64);
        let (head, rest) = to.split_at_mut(whole.start);
        let (pages, tail) = rest.split_at_mut(whole.len());
        head.copy_from_slice(&from[..whole.start]);
        tail.copy_from_slice(&from[whole.end..]);
        let by_engine = pages.len() as u64;
        let by_caller = (head.len() + tail.len()) as u64;
        if !pages.is_empty() {
            self.fill_pages(queue, &source, pages)?;
        }
        Ok(Copied { by_engine, by_caller })
    }

    fn fill_pages(&self, queue: &mut Queue, source: &Region, to: &mut [u8]) -> Result<(), CopyError> {
        let length = to.len() as u64;
        let landing = self.arena.landing(to).ok_or(CopyError::NotInArena(Side::Destination))?;
        let destination = landing.segment().0.slice(landing.offset()..landing.offset() + length);
        let ticket = match queue.submit(copy(source, destination)) {
            Ok(ticket) => ticket,
            Err(refused) => {
                landing.settled();
                return Err(CopyError::Submit(refused.reason));
            }
        };
        // From here on the landing is given up by being dropped, should the wait end by a panic. So it is when the answer does
        // not say that nobody writes there any more.
        let ended = queue.wait(ticket);
        if ended.is_ok() || ended.is_err_and(|error| error.is_settled()) {
            landing.settled();
        }
        ended.map(drop).map_err(|error| CopyError::Failed(error.failure))
    }

    /// Gives back the segment that is kept for the next allocation, if there is one.
    pub fn trim(&self) {
        self.arena.trim();
    }

    /// What the arena holds now.
    pub fn statistics(&self) -> Statistics {
        self.arena.statistics()
    }
}

impl std::fmt::Debug for FrameArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameArena({:?})", self.statistics())
    }
}

/// Bytes of an arena that are owned, and go in and out by copy. They are given back when the last clone, region and
/// unfinished transfer of them is gone.
#[derive(Clone, Debug)]
pub struct Buffer {
    frame: Frame,
}

impl Buffer {
    /// Its bytes: as many as were asked for.
    pub fn length(&self) -> u64 {
        self.frame.length()
    }

    /// Part of it. Whether it lies inside is checked where it is used, as with [`Frame::slice`].
    pub fn slice(&self, bounds: impl RangeBounds<u64>) -> Region {
        self.frame.slice(bounds)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.frame.read(offset, bytes)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.frame.write(offset, bytes)
    }
}

impl From<&Buffer> for Region {
    fn from(buffer: &Buffer) -> Self {
        Self::from(&buffer.frame)
    }
}

impl From<Buffer> for Region {
    fn from(buffer: Buffer) -> Self {
        Self::from(buffer.frame)
    }
}

#[cfg(test)]
mod tests;
