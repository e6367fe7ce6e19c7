//! Arenas: many buffers and collections in a few registered segments, so that allocating one takes no call to the service.
//!
//! ```text
//! Client::arena ─► FrameArena ─┬─ buffer(length) ─► Buffer ─ slice ─► Transfer
//!                              ├─ allocator() ─► collections ─ copy(queue, &from, &mut to)   waits
//!                              └─ region_of(promised) ─► Transfer                     the promise is unsafe
//! segments: frames of 4 MiB, or larger for one large block; registered when allocated, revoked when freed
//! ```
//!
//! # Why safe code cannot misdirect an engine
//!
//! While an engine may still write to a destination, no other code may own that memory or hold a reference to it.
//!
//! * **A [`Buffer`]** gives no references to its bytes: it is read and written by copy. A window frame owns its block. Regions,
//!   transfers and slots of a queue hold that frame. A slot releases it when its completion is taken, and the completion comes
//!   when the engine can no longer touch the memory, or says that the engine still may
//!   ([`TransferError::is_settled`](crate::TransferError::is_settled): the engine channel failed and could not be stopped). In
//!   that case, and if no completion comes (service lost, queue dropped with requests outstanding), the slot abandons the block:
//!   it is not reused before its segment is freed, and the engine's pin keeps the pages for as long as it uses them. Windows are
//!   bounded: a region or 2-D walk that leaves the block becomes one that the service refuses. Peers reach the memory through
//!   a derived frame only, which keeps the block until its revocation is complete.
//! * **A collection** holds references to its bytes, so safe code gets no region of it. [`FrameArena::copy`] borrows both
//!   slices until the completion arrives. It gives only whole pages of the destination to the engine. If it cannot tell whether
//!   the engine stopped, it replaces these pages in place by new ones, so that late writes go to memory without references.
//! * **The frame of a segment** stays private: [`FrameAllocator::locate`](memferry_shm::arena::Arena::locate) returns an
//!   opaque [`SegmentFrame`].
//! * **A forked child** does not have the memory: every call there fails, and drops do nothing.
//!
//! As with every frame, the service is trusted to write only what was requested. Arenas are not shared between processes.

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

/// Settings of an arena.
///
/// ```
/// use memferry::{ArenaOptions, Client};
///
/// let options = ArenaOptions { segment_bytes: 1 << 20, limit_bytes: 1 << 20, ..ArenaOptions::default() };
/// let arena = Client::embedded()?.arena(options)?;
/// let buffer = arena.buffer(1000)?;
/// assert!(arena.buffer(1 << 20).is_err(), "the limit is one segment");
/// # drop(buffer);
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaOptions {
    /// The page size and the NUMA node of the segments.
    pub placement: Placement,
    /// Bytes of a segment. A larger block gets a larger segment.
    pub segment_bytes: u64,
    /// Whether freed blocks are zeroed, so that a new block never holds bytes of an earlier one.
    pub zero_on_free: bool,
    /// Maximum of bytes in all segments together.
    pub limit_bytes: u64,
}

impl Default for ArenaOptions {
    /// Ordinary pages on any node, segments of 4 MiB, zeroed blocks, at most half of the machine's memory.
    fn default() -> Self {
        let Options { segment_bytes, zero_on_free, limit_bytes } = Options::default();
        Self { placement: Placement::default(), segment_bytes, zero_on_free, limit_bytes }
    }
}

/// Why an arena could not allocate a buffer.
///
/// ```
/// use memferry::{ArenaOptions, BufferError, Client};
///
/// let arena = Client::embedded()?.arena(ArenaOptions::default())?;
/// assert!(matches!(arena.buffer(0), Err(BufferError::Empty)));
/// # Ok::<(), memferry::Error>(())
/// ```
pub type BufferError = ArenaError<SegmentError<FrameError>>;

/// An allocator for collections in the memory of an arena: `allocator_api2::vec::Vec<u8, FrameAllocator>`.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use memferry::{ArenaOptions, Client, FrameAllocator};
///
/// let arena = Client::embedded()?.arena(ArenaOptions::default())?;
/// let mut list: Vec<u64, FrameAllocator> = Vec::new_in(arena.allocator());
/// list.extend(0..1000);
/// assert_eq!(list.iter().sum::<u64>(), 499_500);
/// # Ok::<(), memferry::Error>(())
/// ```
pub type FrameAllocator = Arena<Memfds<Segments>>;

/// The bytes that [`FrameArena::copy`] moved, by mover.
///
/// ```
/// use memferry::{ArenaOptions, Client, Copied};
///
/// let client = Client::embedded()?;
/// let arena = client.arena(ArenaOptions::default())?;
/// let mut from = allocator_api2::vec::Vec::new_in(arena.allocator());
/// from.resize(256, 7u8);
/// let mut to = from.clone();
/// // These bytes fill no page, so no engine may write them.
/// let copied = arena.copy(&mut client.queue(2)?, &from, &mut to)?;
/// assert_eq!(copied, Copied { by_engine: 0, by_caller: 256 });
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Bytes moved by an engine of the service.
    pub by_engine: u64,
    /// Bytes moved by the calling thread: those on pages that lie only partly in the destination.
    pub by_caller: u64,
}

/// Copying between slices failed. Each byte of the destination is then old, new or zero.
///
/// ```
/// use memferry::{ArenaOptions, Client, CopyError};
///
/// let client = Client::embedded()?;
/// let arena = client.arena(ArenaOptions::default())?;
/// let refused = arena.copy(&mut client.queue(2)?, &[1, 2, 3], &mut [0; 2]);
/// assert_eq!(refused, Err(CopyError::Lengths { from: 3, to: 2 }));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CopyError {
    /// The slices differ in length.
    #[error("cannot copy {from} bytes to {to} bytes; both slices must have the same length")]
    Lengths {
        /// Length of the source in bytes.
        from: usize,
        /// Length of the destination in bytes.
        to: usize,
    },
    /// A slice does not lie in the arena, or its memory was taken out of use when a service was lost or an engine channel failed.
    #[error("the {0} does not lie in this arena; allocate it there")]
    NotInArena(Side),
    /// The queue refused the transfer.
    #[error(transparent)]
    Submit(SubmitReason),
    /// The transfer was submitted and failed.
    #[error("the copy failed: {0}")]
    Failed(Failure),
}

/// Registered memory for buffers and collections. Clones share it.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use memferry::{ArenaOptions, Client, copy};
///
/// let client = Client::embedded()?;
/// let arena = client.arena(ArenaOptions::default())?;
/// let mut queue = client.queue(64)?;
/// // The transfer holds the buffers, so it may run while this thread does something else.
/// let (from, to) = (arena.buffer(1 << 20)?, arena.buffer(1 << 20)?);
/// from.write(0, b"moved")?;
/// let ticket = queue.submit(copy(&from, &to))?;
/// queue.wait(ticket)?;
/// // A collection is borrowed, so the call waits for the end of the copy.
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

    /// An allocator that places collections in this arena.
    pub fn allocator(&self) -> FrameAllocator {
        self.arena.clone()
    }

    /// Allocates a buffer of `length` bytes. It is zeroed unless [`ArenaOptions::zero_on_free`] is off.
    ///
    /// # Errors
    /// [`BufferError`]: the length is 0, the limit is reached, or no segment could be added (memory, quota, service lost).
    pub fn buffer(&self, length: usize) -> Result<Buffer, BufferError> {
        self.buffer_aligned(length, 1)
    }

    /// Allocates a buffer of `length` bytes whose address is a multiple of `align`, a power of two up to 2 MiB.
    ///
    /// # Errors
    /// [`BufferError`], as [`buffer`](Self::buffer).
    pub fn buffer_aligned(&self, length: usize, align: usize) -> Result<Buffer, BufferError> {
        Ok(Buffer { frame: Frame::of_block(self.arena.block(length, align)?) })
    }

    /// The region that names memory of this arena in transfers; `None` unless all of it lies in one segment of the arena.
    /// [`Promised::new`] states what the caller promises.
    pub fn region_of(&self, promised: Promised) -> Option<Region> {
        let (segment, offset) = self.arena.locate_promised(promised)?;
        Some(Frame::of_promise(segment.0, offset, promised.length_bytes()).into())
    }

    /// Copies one slice of this arena to another of the same length, and waits until the copy is done. Completions of other
    /// transfers stay in the queue.
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
        let whole = self.arena.whole_pages(to).ok_or(CopyError::NotInArena(Side::Destination))?;
        let (segment, offset) = self.arena.locate_slice(from).ok_or(CopyError::NotInArena(Side::Source))?;
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
        // An unsettled landing replaces its pages when it is dropped. That covers a panic during the wait, and an outcome after
        // which the engine may still write.
        let ended = queue.wait(ticket);
        if ended.is_ok() || ended.is_err_and(|error| error.is_settled()) {
            landing.settled();
        }
        ended.map(drop).map_err(|error| CopyError::Failed(error.failure))
    }

    /// Frees the empty segment that the arena keeps for the next allocation, if any.
    pub fn trim(&self) {
        self.arena.trim();
    }

    /// The current numbers of segments and bytes.
    pub fn statistics(&self) -> Statistics {
        self.arena.statistics()
    }
}

impl std::fmt::Debug for FrameArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameArena({:?})", self.statistics())
    }
}

/// An owned range of bytes in an arena. The arena takes it back when its last clone and region is dropped and its last
/// transfer has ended.
///
/// ```
/// use memferry::{ArenaOptions, Client, copy};
///
/// let client = Client::embedded()?;
/// let arena = client.arena(ArenaOptions::default())?;
/// let one = arena.buffer(100)?;
/// let other = arena.buffer(100)?;
/// one.write(0, b"one registration for all buffers")?;
/// client.queue(4)?.run(copy(&one, &other))?;
/// let mut text = [0; 3];
/// other.read(0, &mut text)?;
/// assert_eq!(&text, b"one");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffer {
    frame: Frame,
}

impl Buffer {
    /// The length in bytes, as requested.
    pub fn length(&self) -> u64 {
        self.frame.length()
    }

    /// Part of the buffer; `bounds` are bytes. The bounds are checked where the region is used, as with [`Frame::slice`].
    pub fn slice(&self, bounds: impl RangeBounds<u64>) -> Region {
        self.frame.slice(bounds)
    }

    /// Copies bytes at `offset` of the buffer to `bytes`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Forked`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.frame.read(offset, bytes)
    }

    /// Copies `bytes` to `offset` of the buffer.
    ///
    /// # Errors
    /// As [`read`](Self::read).
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
