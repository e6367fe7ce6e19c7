//! Frames on the client's side: a capability, and a mapping if this process owns the memory.
//!
//! Bytes go in and out by copy. Others may write the same memory at any time, so a read may be torn; a transfer's destination
//! is complete when its completion arrives. A frame is released when its last clone is dropped. Transfers in flight hold a
//! clone.
//!
//! ```text
//! whole frame   has its own capability ─────────────── on drop: revokes it, which waits until no transfer uses the memory
//! window        a block of an arena's segment, under ── on drop: returns the block to the arena, or abandons it if an
//!                 the capability of the segment           engine may still write there
//! derived       has a capability narrowed from one ──── on drop: revokes it, then releases the original frame
//!                 of these
//! ```
//!
//! The service checks the requests of a window against the whole segment. This module checks them against the window, in
//! [`Region`], the only place where regions are turned into operands of requests.

mod builder;
mod export;
mod region;
mod segment;

pub use builder::FrameBuilder;
pub use export::{ExportError, Exported};
pub use region::{ListItem, Piece, Region};
pub use segment::{SegmentFrame, Segments};

use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memferry_service::protocol::Command;
use memferry_shm::line::Line;
use memferry_shm::mapping::{Access, AccessError, Mapping};
use memferry_transfer::{Handle, Rights, SessionId};
use thiserror::Error;

use crate::error::{CallError, FrameError};
use crate::link::Link;
use crate::session::{Session, expect_handle};
use segment::SegmentBlock;

/// Maximum time in which the service releases its mapping after a revocation.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Taking memory back failed. Contains the frame.
///
/// ```
/// use memferry::{Client, TakeBackError};
///
/// let client = Client::embedded()?;
/// let frame = client.register_owned(vec![1, 2, 3])?;
/// let clone = frame.clone();
/// let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("the clone holds it") };
/// drop(clone);
/// assert_eq!(frame.into_owned()?, [1, 2, 3]);
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum TakeBackError {
    /// A clone, region, derived frame or unfinished transfer still holds the frame.
    #[error("a clone, a region or an unfinished transfer still holds {0:?}; drop it first")]
    Shared(Frame),
    /// The frame was not created by [`Client::register_owned`](crate::Client::register_owned).
    #[error("{0:?} does not hold a vector; only frames of `register_owned` do")]
    NotOwned(Frame),
    /// The service did not revoke the frame.
    #[error("the service did not release {1:?}: {0}")]
    Call(CallError, Frame),
}

/// Memory in which the service may move bytes, within the frame's rights. Clones share the memory.
///
/// ```
/// use memferry::{Client, copy};
///
/// let client = Client::embedded()?;
/// let source = client.frame(8192).alloc()?;
/// let destination = client.frame(4096).alloc()?;
/// source.write(4096, b"the second page")?;
/// // Operands of a transfer are whole frames or slices.
/// client.queue(4)?.run(copy(source.slice(4096..), &destination))?;
/// let mut text = [0; 15];
/// destination.read(0, &mut text)?;
/// assert_eq!(&text, b"the second page");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct Frame(Arc<Inner>);

struct Inner {
    session: Arc<Session>,
    handle: Handle,
    length: u64,
    rights: Rights,
    backing: Backing,
    /// The program has revoked it, and nothing touches its memory any more.
    revoked: AtomicBool,
    /// A transfer may still use it although nothing here holds it for that.
    abandoned: AtomicBool,
}

/// How this process reaches and keeps the bytes of a frame.
enum Backing {
    Mapped(Mapping),
    Unmapped,
    /// Accepted from a grant of this session.
    Granted(SessionId),
    /// Derived from this frame, which it keeps alive.
    Derived(Frame),
    /// A block that this frame owns in a segment.
    Block(SegmentBlock),
    /// Part of a segment that the caller promised to keep: its offset, and the segment's frame.
    Promised(u64, Frame),
    /// The capability was revoked.
    Ended,
}

impl Frame {
    pub(crate) fn new(
        session: Arc<Session>,
        handle: Handle,
        length: u64,
        rights: Rights,
        mapping: Option<Mapping>,
    ) -> Self {
        let backing = mapping.map_or(Backing::Unmapped, Backing::Mapped);
        Self(Arc::new(Inner::new(session, handle, length, rights, backing)))
    }

    /// Registers a memfd as a frame of the session.
    pub(crate) fn register(
        session: &Arc<Session>,
        descriptor: OwnedFd,
        length: u64,
        rights: Rights,
        mapping: Option<Mapping>,
    ) -> Result<Self, FrameError> {
        let checked = matches!(session.link, Link::Socket { .. });
        let kept = checked.then(|| descriptor.try_clone()).transpose().map_err(CallError::Send)?;
        let (answer, _) = session.call(Command::Register { length, rights }, vec![descriptor])?;
        let frame = Self::new(Arc::clone(session), expect_handle(answer)?, length, rights, mapping);
        // A service that did not seal the memory could truncate it, and the next access would end this process.
        if let Some(kept) = kept
            && let Err(unsafe_memory) = memferry_shm::frame::check_admitted(kept.as_fd(), length)
        {
            session.link.give_up();
            return Err(FrameError::Memory(unsafe_memory));
        }
        Ok(frame)
    }

    /// The frame of an accepted grant: its length and rights, and the session that granted it.
    pub(crate) fn granted(
        session: Arc<Session>,
        handle: Handle,
        (length, rights): (u64, Rights),
        grantor: SessionId,
    ) -> Self {
        Self(Arc::new(Inner::new(session, handle, length, rights, Backing::Granted(grantor))))
    }

    /// A frame derived from `of`. It keeps `of`, because revoking that would end the derived capability.
    pub(crate) fn derived(of: &Self, handle: Handle, length: u64, rights: Rights) -> Self {
        let session = Arc::clone(&of.0.session);
        let backing = Backing::Derived(of.clone());
        Self(Arc::new(Inner::new(session, handle, length, rights, backing)))
    }

    /// The window of a block, under the capability of its segment.
    pub(crate) fn of_block(block: SegmentBlock) -> Self {
        let segment = &block.segment().0.0;
        let session = Arc::clone(&segment.session);
        let handle = segment.handle;
        let rights = segment.rights;
        let length = block.length_bytes();
        Self(Arc::new(Inner::new(session, handle, length, rights, Backing::Block(block))))
    }

    /// The window of `length` bytes at `offset` of a segment, which the caller promised to keep.
    pub(crate) fn of_promise(segment: Self, offset: u64, length: u64) -> Self {
        let session = Arc::clone(&segment.0.session);
        let handle = segment.0.handle;
        let rights = segment.0.rights;
        let backing = Backing::Promised(offset, segment);
        Self(Arc::new(Inner::new(session, handle, length, rights, backing)))
    }

    /// The offset in its segment, if the frame is a window.
    #[inline]
    fn window(&self) -> Option<u64> {
        match &self.0.backing {
            Backing::Block(block) => Some(block.offset()),
            Backing::Promised(offset, _) => Some(*offset),
            Backing::Mapped(_) | Backing::Unmapped | Backing::Granted(_) => None,
            Backing::Derived(_) | Backing::Ended => None,
        }
    }

    /// Whether the frame is a window: its capability covers the whole segment.
    pub(crate) fn is_window(&self) -> bool {
        self.window().is_some()
    }

    /// Records that a transfer may still use the memory after the last clone is dropped, so that its block is not reused.
    pub(crate) fn abandon(&self) {
        // The frame that has the capability is revoked on drop, which then waits for transfers.
        let capability = match &self.0.backing {
            Backing::Block(block) => {
                block.abandon();
                &block.segment().0
            }
            Backing::Promised(_, segment) => segment,
            _ => self,
        };
        capability.0.abandoned.store(true, Ordering::Relaxed);
    }

    /// The handle of the frame's capability in this session. For memory of an arena, the handle of the whole segment.
    #[inline]
    pub fn handle(&self) -> Handle {
        self.0.handle
    }

    /// The length in bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// The operations that the service allows on the frame.
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// The session that granted this frame; `None` if the frame was not [accepted](crate::Client::accept).
    pub fn grantor(&self) -> Option<SessionId> {
        match self.0.backing {
            Backing::Granted(grantor) => Some(grantor),
            _ => None,
        }
    }

    /// The bytes of the frame in `bounds`, as an operand of transfers and grants. The bounds are checked on use: a transfer that
    /// leaves the frame fails with [`Failure::OutOfBounds`](crate::Failure::OutOfBounds), and a slice that ends before it
    /// begins is refused on submission.
    pub fn slice(&self, bounds: impl RangeBounds<u64>) -> Region {
        let bounds = self.range(&bounds);
        Region::new(self.clone(), bounds.start, bounds.end)
    }

    /// As [`slice`](Self::slice), for lists of many pieces: it borrows the frame.
    ///
    /// ```
    /// use memferry::{Client, scatter_gather};
    ///
    /// let client = Client::embedded()?;
    /// let (blocks, whole) = (client.frame(1 << 20).alloc()?, client.frame(1 << 20).alloc()?);
    /// let wanted = [7_u64, 3, 99];
    /// let pieces = wanted.map(|number| blocks.piece(number << 13..(number + 1) << 13));
    /// client.queue(4)?.run(scatter_gather(pieces, [whole.piece(..3 << 13)]))?;
    /// # Ok::<(), memferry::Error>(())
    /// ```
    #[inline]
    pub fn piece(&self, bounds: impl RangeBounds<u64>) -> Piece<'_> {
        Piece::new(self, self.range(&bounds))
    }

    #[inline]
    fn range(&self, bounds: &impl RangeBounds<u64>) -> Range<u64> {
        // No frame is 2^64 bytes long, so a saturated bound is still out of bounds.
        let start = match bounds.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match bounds.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.length(),
        };
        start..end
    }

    /// Copies bytes at `offset` of the frame to `bytes`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; [`AccessError::NotMapped`] for frames that were accepted or derived; [`AccessError::Forked`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        match &self.0.backing {
            Backing::Mapped(mapping) => mapping.read(offset, bytes),
            Backing::Block(block) => block.read(offset, bytes),
            _ => Err(AccessError::NotMapped),
        }
    }

    /// Copies `bytes` to `offset` of the frame.
    ///
    /// # Errors
    /// As [`read`](Self::read); also [`AccessError::ReadOnly`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        match &self.0.backing {
            Backing::Mapped(mapping) => mapping.write(offset, bytes),
            Backing::Block(block) => block.write(offset, bytes),
            _ => Err(AccessError::NotMapped),
        }
    }

    /// Copies `length` bytes at `source_offset` of a mapping to `offset` of the frame. The calling thread moves them, without
    /// an intermediate buffer.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`AccessError::NotMapped`] also for memory of an arena.
    pub fn write_from(
        &self,
        offset: u64,
        source: &Mapping,
        source_offset: u64,
        length: usize,
    ) -> Result<(), AccessError> {
        match &self.0.backing {
            Backing::Mapped(mapping) => source.copy_to(source_offset, length, mapping, offset),
            _ => Err(AccessError::NotMapped),
        }
    }

    /// The address, length in bytes and access of the frame's mapping, for bindings to other languages. `None` if the frame is
    /// not mapped here or is part of an arena. Valid until the last clone is dropped. Others may write the memory at any time,
    /// so Rust code uses [`read`](Self::read) and [`write`](Self::write).
    pub fn pointer(&self) -> Option<(*mut u8, usize, Access)> {
        match &self.0.backing {
            Backing::Mapped(mapping) => Some((mapping.pointer(), mapping.length_bytes(), mapping.access())),
            _ => None,
        }
    }

    /// The mapping of the frame; `None` if it is not mapped here or is part of an arena.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        match &self.0.backing {
            Backing::Mapped(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// Takes back the vector of [`Client::register_owned`](crate::Client::register_owned) without copying it. This revokes the
    /// frame, so grants on it end.
    ///
    /// # Errors
    /// [`TakeBackError`], which contains the frame: [`Shared`](TakeBackError::Shared) while a clone, region, derived frame or
    /// unfinished transfer holds it (the frame stays valid), [`NotOwned`](TakeBackError::NotOwned) for other frames,
    /// [`Call`](TakeBackError::Call) if the service does not revoke it.
    pub fn into_owned(self) -> Result<Vec<u8>, TakeBackError> {
        if !matches!(&self.0.backing, Backing::Mapped(mapping) if mapping.is_owned()) {
            return Err(TakeBackError::NotOwned(self));
        }
        let mut inner = Arc::try_unwrap(self.0).map_err(|shared| TakeBackError::Shared(Self(shared)))?;
        match inner.session.revoke(inner.handle) {
            Err(error) if !error.is_revoked_before() => {
                return Err(TakeBackError::Call(error, Self(Arc::new(inner))));
            }
            _ => {}
        }
        let Backing::Mapped(mut mapping) = std::mem::replace(&mut inner.backing, Backing::Ended) else {
            return Err(TakeBackError::NotOwned(Self(Arc::new(inner))));
        };
        // The worker that completed the last transfer may not have dropped its descriptor yet.
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            mapping = match mapping.into_owned() {
                Ok(memory) => return Ok(memory),
                Err(mapping) => mapping,
            };
            if Instant::now() >= deadline {
                inner.backing = Backing::Mapped(mapping);
                return Err(TakeBackError::Shared(Self(Arc::new(inner))));
            }
            std::thread::yield_now();
        }
    }

    /// Revokes the frame's capability, and all grants and derived frames below it. Cancels running transfers that use them, and
    /// returns when none touches the memory any more. Transfers on this frame and its clones fail afterwards.
    ///
    /// # Errors
    /// [`CallError::PartOfArena`]; [`CallError::RevocationPending`] if that takes longer than the client's time limit: call this
    /// again to wait longer. [`CallError::Refused`] if the frame was revoked before, or if a transfer on it ended with
    /// [`Failure::ChannelFaulted`](crate::Failure::ChannelFaulted): then the capability is revoked, but the failed channel may
    /// still write there.
    pub fn revoke(&self) -> Result<(), CallError> {
        // The capability of a window covers the memory of all blocks in its segment.
        if self.is_window() {
            return Err(CallError::PartOfArena);
        }
        self.0.session.revoke(self.0.handle)?;
        self.0.revoked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether both are clones of one frame.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The cache line of a byte, if the frame is mapped here.
    #[inline]
    pub(crate) fn line(&self, offset: u64) -> Option<Line> {
        match &self.0.backing {
            Backing::Mapped(mapping) => Some(mapping.line(offset)),
            Backing::Block(block) => Some(block.line(offset)),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.0.session, session)
    }
}

impl Inner {
    fn new(session: Arc<Session>, handle: Handle, length: u64, rights: Rights, backing: Backing) -> Self {
        let revoked = AtomicBool::new(false);
        let abandoned = AtomicBool::new(false);
        Self { session, handle, length, rights, backing, revoked, abandoned }
    }

    /// Revokes the capability if the frame has its own. Returns the backing, which the caller releases.
    fn revoke_own(&mut self) -> Option<Backing> {
        if matches!(self.backing, Backing::Block(_) | Backing::Promised(..) | Backing::Ended) {
            return None;
        }
        // Errors are expected: a lost service has no capability left, and in a forked child it belongs to the parent.
        let is_revoked = *self.revoked.get_mut();
        let revoked = if is_revoked {
            Ok(())
        } else if !*self.abandoned.get_mut() {
            self.session.give_back(self.handle)
        } else {
            self.session.release(Command::Revoke { handle: self.handle }).map(drop)
        };
        if let (Err(_), Backing::Derived(of)) = (revoked, &self.backing) {
            of.abandon();
        }
        Some(std::mem::replace(&mut self.backing, Backing::Ended))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut next = self.revoke_own();
        // A loop instead of nested drops: a long chain of derived frames would overflow the stack.
        while let Some(Backing::Derived(of)) = next {
            next = Arc::into_inner(of.0).and_then(|mut inner| inner.revoke_own());
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({}, {} bytes, {:?})", self.0.handle, self.0.length, self.0.rights)
    }
}

#[cfg(test)]
mod tests;
