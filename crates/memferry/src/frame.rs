//! Frames as a client holds them: a capability, and the mapping when the memory is its own.
//!
//! Bytes go in and out by copy. Others may write the same memory at any time, so what is read may be torn; a transfer's
//! destination is whole once its completion came. A frame is given back when its last clone is dropped; transfers in
//! flight hold one.
//!
//! ```text
//! whole frame   a capability of its own ─────────────── dropped: revoked, which waits until nothing moves there
//! window        a block of an arena's segment ───────── dropped: the block is given back, or abandoned when an engine
//!                 named by the segment's capability       may still be writing there
//! derived       a capability narrowed from either ───── dropped: revoked, then what it was derived from is let go
//! ```
//!
//! The service checks a window's requests against its whole segment, so this module checks them against the window, in the
//! one place where a region becomes a name in a request ([`Region`]).

mod builder;
mod region;
mod segment;

pub use builder::FrameBuilder;
pub use region::Region;
pub use segment::{SegmentFrame, Segments};

use std::ops::{Bound, RangeBounds};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_service::protocol::Command;
use memferry_shm::mapping::{Access, AccessError, Mapping};
use memferry_transfer::{Handle, Rights, SessionId};
use thiserror::Error;

use crate::error::{CallError, FrameError};
use crate::session::{Session, expect_handle};
use segment::SegmentBlock;

/// How long the service may take to let go of memory after it was revoked.
const LETTING_GO: Duration = Duration::from_secs(1);

/// Memory was not given back; the frame is.
#[derive(Debug, Error)]
pub enum TakeBackError {
    /// Somebody else holds it too.
    #[error("{0:?} is held by a clone, a region or an unfinished transfer too; drop these first")]
    Shared(Frame),
    /// It was not made of memory of this process.
    #[error("{0:?} was not made of memory of this process")]
    NotOwned(Frame),
    /// The service did not let go of it.
    #[error("the service did not let go of {1:?}: {0}")]
    Call(CallError, Frame),
}

/// Memory the service may move bytes in, as far as its rights go.
///
/// ```
/// # #![deny(unused_must_use)]
/// use memferry::{Client, copy};
///
/// let client = Client::embedded()?;
/// let source = client.frame(8192).alloc()?;
/// let destination = client.frame(4096).alloc()?;
/// source.write(4096, b"the second page")?;
/// // A transfer names a whole frame, or a slice of one.
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
}

/// What a frame's bytes are to this process.
enum Backing {
    Mapped(Mapping),
    Unmapped,
    /// Taken up from this session.
    Granted(SessionId),
    /// Narrowed from memory that has to be kept as long.
    Derived(Frame),
    /// Part of a segment, owned.
    Block(SegmentBlock),
    /// Part of a segment, which its holder promised to keep: its first byte there, and what keeps the segment.
    Promised(u64, #[expect(dead_code, reason = "keeps the segment known to the service")] Frame),
    /// Its capability has ended.
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
        Self(Arc::new(Inner { session, handle, length, rights, backing }))
    }

    /// Makes a memfd a frame of the session.
    pub(crate) fn register(
        session: &Arc<Session>,
        descriptor: OwnedFd,
        length: u64,
        rights: Rights,
        mapping: Option<Mapping>,
    ) -> Result<Self, FrameError> {
        let (answer, _) = session.call(Command::Register { length, rights }, vec![descriptor])?;
        Ok(Self::new(Arc::clone(session), expect_handle(answer)?, length, rights, mapping))
    }

    /// A capability for memory of that length with those rights, taken up from `grantor`.
    pub(crate) fn granted(
        session: Arc<Session>,
        handle: Handle,
        (length, rights): (u64, Rights),
        grantor: SessionId,
    ) -> Self {
        Self(Arc::new(Inner { session, handle, length, rights, backing: Backing::Granted(grantor) }))
    }

    /// A capability narrowed from `of`, which it keeps: with that it would end.
    pub(crate) fn derived(of: &Self, handle: Handle, length: u64, rights: Rights) -> Self {
        let session = Arc::clone(&of.0.session);
        let backing = Backing::Derived(of.clone());
        Self(Arc::new(Inner { session, handle, length, rights, backing }))
    }

    /// The window that a block is, under its segment's capability.
    pub(crate) fn of_block(block: SegmentBlock) -> Self {
        let segment = &block.segment().0.0;
        let session = Arc::clone(&segment.session);
        let handle = segment.handle;
        let rights = segment.rights;
        let length = block.length_bytes();
        Self(Arc::new(Inner { session, handle, length, rights, backing: Backing::Block(block) }))
    }

    /// The window of `length` bytes at `offset` of a segment, whose holder promised to keep it.
    pub(crate) fn of_promise(segment: Self, offset: u64, length: u64) -> Self {
        let session = Arc::clone(&segment.0.session);
        let handle = segment.0.handle;
        let rights = segment.0.rights;
        let backing = Backing::Promised(offset, segment);
        Self(Arc::new(Inner { session, handle, length, rights, backing }))
    }

    /// Where it begins in its segment, when it is part of one.
    fn window(&self) -> Option<u64> {
        match &self.0.backing {
            Backing::Block(block) => Some(block.offset()),
            Backing::Promised(offset, _) => Some(*offset),
            Backing::Mapped(_) | Backing::Unmapped | Backing::Granted(_) => None,
            Backing::Derived(_) | Backing::Ended => None,
        }
    }

    /// Whether its capability stands for more than this frame.
    pub(crate) fn is_window(&self) -> bool {
        self.window().is_some()
    }

    /// Says that a transfer of it may still be running when its last clone is dropped, though nobody waits for it any more.
    pub(crate) fn abandon(&self) {
        // All others are revoked when they are dropped, which waits.
        if let Backing::Block(block) = &self.0.backing {
            block.abandon();
        }
    }

    /// The capability's name in this session. For memory of an arena it is that of the whole segment.
    pub fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Bytes it covers.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// What may be done with it.
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// The session that granted it, of the memory that was taken up from another client; `None` for any other.
    pub fn grantor(&self) -> Option<SessionId> {
        match self.0.backing {
            Backing::Granted(grantor) => Some(grantor),
            _ => None,
        }
    }

    /// Part of it, as transfers and grants name it. Whether the part lies inside is checked where it is used: a transfer that
    /// leaves the frame fails with [`Failure::OutOfBounds`](crate::Failure::OutOfBounds), and one of a slice that ends before
    /// it begins is not submitted.
    pub fn slice(&self, bounds: impl RangeBounds<u64>) -> Region {
        // No frame reaches to the end of the numbers, so a bound that is cut off there is still out of bounds.
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
        Region::new(self.clone(), start, end)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`]; [`AccessError::NotMapped`] of a frame that was granted to this client or derived from another one.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        match &self.0.backing {
            Backing::Mapped(mapping) => mapping.read(offset, bytes),
            Backing::Block(block) => block.read(offset, bytes),
            _ => Err(AccessError::NotMapped),
        }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`], as [`read`](Self::read).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        match &self.0.backing {
            Backing::Mapped(mapping) => mapping.write(offset, bytes),
            Backing::Block(block) => block.write(offset, bytes),
            _ => Err(AccessError::NotMapped),
        }
    }

    /// Copies bytes in from a mapping, with the calling CPU and no buffer between.
    ///
    /// # Errors
    /// [`AccessError`], as [`read`](Self::read); [`AccessError::NotMapped`] of memory of an arena too.
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

    /// Its first byte and how many follow in this process, for programs in other languages: `None` for a frame that is not
    /// mapped here or is part of an arena. Good until the last clone is dropped; others may write there at any time, so Rust
    /// code takes [`read`](Self::read) and [`write`](Self::write).
    pub fn pointer(&self) -> Option<(*mut u8, usize, Access)> {
        match &self.0.backing {
            Backing::Mapped(mapping) => Some((mapping.pointer(), mapping.length_bytes(), mapping.access())),
            _ => None,
        }
    }

    /// The memory behind it, when it is mapped here and all its own.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        match &self.0.backing {
            Backing::Mapped(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// The memory that [`Client::register_owned`](crate::Client::register_owned) took, without copying it. The service lets
    /// go of it first; what was granted of it ends.
    ///
    /// # Errors
    /// [`TakeBackError`] with the frame: while a clone, a region, a frame derived from it or an unfinished transfer holds it too
    /// it stays what it was; so does a frame that was made otherwise.
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
        // A worker that settled the last transfer may be about to drop its part of the descriptor.
        let until = Instant::now() + LETTING_GO;
        loop {
            mapping = match mapping.into_owned() {
                Ok(memory) => return Ok(memory),
                Err(mapping) => mapping,
            };
            if Instant::now() >= until {
                inner.backing = Backing::Mapped(mapping);
                return Err(TakeBackError::Shared(Self(Arc::new(inner))));
            }
            std::thread::yield_now();
        }
    }

    /// Takes its capability away, from this client and from everybody it was granted to. Returns when no transfer uses the memory
    /// any more: those that run are cancelled. This frame and its clones are of no use then.
    ///
    /// # Errors
    /// [`CallError::PartOfArena`]; [`CallError::Refused`] also when a transfer on it ended with
    /// [`Failure::ChannelFaulted`](crate::Failure::ChannelFaulted): the capability is taken away, but the failed channel may
    /// still write there.
    pub fn revoke(&self) -> Result<(), CallError> {
        // Its capability is that of everybody's memory there.
        if self.is_window() {
            return Err(CallError::PartOfArena);
        }
        self.0.session.revoke(self.0.handle)
    }

    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.0.session, session)
    }
}

impl Inner {
    /// Ends its capability, where it has one of its own, and gives what is to be let go of next.
    fn end(&mut self) -> Option<Backing> {
        if matches!(self.backing, Backing::Block(_) | Backing::Promised(..) | Backing::Ended) {
            return None;
        }
        // A lost service forgot it already, and in a forked child it is the parent's.
        let revoked = self.session.revoke(self.handle);
        if let (Err(_), Backing::Derived(of)) = (revoked, &self.backing) {
            of.abandon();
        }
        Some(std::mem::replace(&mut self.backing, Backing::Ended))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut next = self.end();
        // One after the other: a long row of frames, each derived from the one before, would use up the stack if each dropped
        // the next within its own drop.
        while let Some(Backing::Derived(of)) = next {
            next = Arc::into_inner(of.0).and_then(|mut inner| inner.end());
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
