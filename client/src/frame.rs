//! Frames as a client holds them: a capability, and the mapping when the memory is its own.
//!
//! Bytes go in and out by copy. Others may write the same memory at any time, so what is read may be torn; a transfer's
//! destination is whole once its completion came. A frame is given back when its last clone is dropped; transfers in
//! flight hold one.

use std::sync::Arc;

use memferry_broker::protocol::Command;
use memferry_memory::mapping::{AccessError, Mapping};
use memferry_transfer::{Handle, Rights, Span};

use crate::client::Session;

/// Memory the service may move bytes in, as far as its rights go.
#[derive(Clone)]
pub struct Frame(Arc<Inner>);

struct Inner {
    session: Arc<Session>,
    handle: Handle,
    length: u64,
    rights: Rights,
    mapping: Option<Mapping>,
}

impl Frame {
    pub(crate) fn new(
        session: Arc<Session>,
        handle: Handle,
        length: u64,
        rights: Rights,
        mapping: Option<Mapping>,
    ) -> Self {
        Self(Arc::new(Inner { session, handle, length, rights, mapping }))
    }

    /// The capability's name in this session.
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
    /// [`AccessError`]; a frame that was granted to this client is not mapped here and has no bytes to read.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.mapped(offset, bytes.len())?.read(offset, bytes)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`], as [`read`](Self::read).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.mapped(offset, bytes.len())?.write(offset, bytes)
    }

    fn mapped(&self, offset: u64, length: usize) -> Result<&Mapping, AccessError> {
        self.0.mapping.as_ref().ok_or(AccessError::OutOfRange { offset, length: length as u64, available: 0 })
    }

    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.0.session, session)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A lost service forgot it already, and in a forked child it is the parent's.
        let _ = self.session.call(Command::Revoke { handle: self.handle }, Vec::new());
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

    pub(crate) fn span(&self) -> Span {
        Span::new(self.frame.handle(), self.offset)
    }
}
