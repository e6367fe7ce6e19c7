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
//! one place where a range becomes a name in a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_service::protocol::Command;
use memferry_shm::mapping::{Access, AccessError, Mapping};
use memferry_transfer::{Count2d, Handle, Plane, Rights, SessionId, Span};

use crate::arena::SegmentBlock;
use crate::client::Session;
use crate::error::TakeBackError;

/// How long the service may take to let go of memory after it was revoked.
const LETTING_GO: Duration = Duration::from_secs(1);

/// Memory the service may move bytes in, as far as its rights go.
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

    /// All of it.
    pub fn all(&self) -> FrameRange {
        self.range(0, self.0.length)
    }

    /// `length` bytes at `offset`. Whether they are inside is checked when they are used.
    pub fn range(&self, offset: u64, length: u64) -> FrameRange {
        FrameRange { frame: self.clone(), offset, length }
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
    /// [`TakeBackError`] with the frame: while a clone, a range, a frame derived from it or an unfinished transfer holds it too
    /// it stays what it was; so does a frame that was made otherwise.
    pub fn into_owned(self) -> Result<Vec<u8>, TakeBackError> {
        if !matches!(&self.0.backing, Backing::Mapped(mapping) if mapping.is_owned()) {
            return Err(TakeBackError::NotOwned(self));
        }
        let mut inner = Arc::try_unwrap(self.0).map_err(|shared| TakeBackError::Shared(Self(shared)))?;
        match inner.session.call(Command::Revoke { handle: inner.handle }, Vec::new()) {
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
        let revoked = self.session.call(Command::Revoke { handle: self.handle }, Vec::new());
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

/// A range of a frame.
#[derive(Clone, Debug)]
pub struct FrameRange {
    frame: Frame,
    offset: u64,
    length: u64,
}

impl FrameRange {
    /// The frame.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Bytes from the frame's start.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The place of its first `length` bytes as requests say it. What leaves a window becomes a place that no frame has, so
    /// that the service refuses it as out of bounds.
    pub(crate) fn span_for(&self, length: u64) -> Span {
        let end = self.offset.checked_add(length);
        self.span_if(end.is_some_and(|end| end <= self.frame.length()))
    }

    /// The place that a 2-D walk counts from; as [`span_for`](Self::span_for).
    pub(crate) fn span_for_walk(&self, count: &Count2d, plane: &Plane) -> Span {
        let start = self.offset.checked_add(plane.start);
        let extent = start.map(|start| Plane { start, ..*plane }.extent(count));
        self.span_if(match extent {
            Some(Ok(Some(extent))) => extent.first + extent.length <= self.frame.length(),
            Some(Ok(None)) => true,
            Some(Err(_)) | None => false,
        })
    }

    fn span_if(&self, inside: bool) -> Span {
        let offset = match self.frame.window() {
            None => self.offset,
            Some(base) if inside => base.saturating_add(self.offset),
            Some(_) => u64::MAX,
        };
        Span::new(self.frame.handle(), offset)
    }
}

#[cfg(test)]
mod tests {
    use memferry_service::{Quotas, ServiceConfig};

    use crate::{Client, Pattern, Rights, TakeBackError, Transfer};

    #[test]
    fn a_derived_frame_keeps_what_it_was_derived_from() {
        let client = Client::embedded().unwrap();
        let mut queue = client.queue(4).unwrap();
        let from = client.allocate(4096).unwrap();
        let to = client.allocate(4096).unwrap();
        from.write(100, &[7; 50]).unwrap();
        let view = client.derive(&from.range(100, 50), Rights::READ).unwrap();
        drop(from);
        // On a worker and on this thread.
        let copy = || Transfer::copy(&view.all(), &to.all()).unwrap();
        let ticket = queue.stage(copy()).unwrap();
        assert_eq!(queue.wait(ticket, None).unwrap().outcome, Ok(()));
        assert_eq!(queue.perform(copy()).unwrap().outcome, Ok(()));
        let mut moved = [0; 50];
        to.read(0, &mut moved).unwrap();
        assert_eq!(moved, [7; 50]);
    }

    #[test]
    fn the_memory_of_a_frame_is_not_taken_back_while_a_derived_one_has_it() {
        let client = Client::embedded().unwrap();
        let frame = client.register_owned(vec![3; 10]).unwrap();
        let view = client.derive(&frame.all(), Rights::WRITE).unwrap();
        let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("it is in use") };
        let filled = client.queue(2).unwrap().perform(Transfer::fill(&view.all(), Pattern::Byte(4)));
        assert_eq!(filled.unwrap().outcome, Ok(()));
        drop(view);
        assert_eq!(frame.into_owned().unwrap(), [4; 10]);
    }

    #[test]
    fn a_long_row_of_derived_frames_is_let_go_of_on_a_short_stack() {
        let quotas = Quotas { capabilities: 20_000, ..Quotas::default() };
        let client =
            Client::embedded_with(ServiceConfig { quotas, workers: 1, ..ServiceConfig::default() }).unwrap();
        let mut last = client.allocate(4096).unwrap();
        for _ in 0..10_000 {
            last = client.derive(&last.all(), Rights::READ).unwrap();
        }
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        thread.spawn(move || drop(last)).unwrap().join().unwrap();
    }
}
