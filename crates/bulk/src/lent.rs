//! Ranges of the other end's memory that a message lends.
//!
//! ```text
//! LentFrame ─┬─ Granted: the engine reads it, through Receiver::pull
//!            ├─ Mapped: this process's CPU reads it (read, copy_to)
//!            └─ dropped, on any thread ─► the slot is retired, the memory is the other end's again
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memferry::{AccessError, Frame, GrantToken, RefusalKind, RemoteToken};
use memferry_shm::bus_error::guarded;
use memferry_shm::mapping::Mapping;
use thiserror::Error;

use crate::error::{PullReason, ReadError};
use crate::retirement::Unretired;

/// An export of the other end, as this end has it.
#[derive(Debug)]
pub(crate) enum Import {
    Granted(Frame),
    /// A grant that could not be accepted yet.
    Pending(Pledge),
    /// A grant that the link of the other node could not check.
    Withheld(RefusalKind),
    Mapped(Mapping),
    /// Memory of this length that could not be mapped. The descriptor is missing if this process could not receive it.
    Unmapped(Option<OwnedFd>, u64),
}

/// A grant that the other end announced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pledge {
    Here(GrantToken),
    There(RemoteToken),
}

/// A range that the other end lends. Dropping it, on any thread, returns it to the other end.
#[derive(Debug)]
pub struct LentFrame {
    pub(crate) kind: u32,
    pub(crate) import: Arc<Import>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) _unretired: Unretired,
}

/// A range was not pulled; the lent frame is returned.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct PullError {
    pub reason: PullReason,
    pub lent: LentFrame,
}
impl LentFrame {
    pub fn kind(&self) -> u32 {
        self.kind
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether the range is mapped into this process. Otherwise it is granted, for the engine.
    pub fn is_mapped(&self) -> bool {
        matches!(*self.import, Import::Mapped(_))
    }

    fn mapping(&self, offset: u64, length: u64) -> Result<&Mapping, AccessError> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        match &*self.import {
            Import::Mapped(mapping) if inside => Ok(mapping),
            Import::Mapped(_) => Err(AccessError::OutOfRange { offset, length, available: self.length }),
            Import::Granted(_) | Import::Pending(_) | Import::Withheld(_) | Import::Unmapped(..) => {
                Err(AccessError::NotMapped)
            }
        }
    }

    /// Copies bytes out of a mapped range. The other process can change them during the copy.
    ///
    /// # Errors
    /// [`ReadError`]; a granted range is not mapped and cannot be read.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        let mapping = self.mapping(offset, bytes.len() as u64)?;
        let at = self.offset.saturating_add(offset);
        let read = guarded([mapping], || mapping.read(at, bytes)).map_err(|_| ReadError::MemoryFault)?;
        Ok(read?)
    }

    /// Copies all of a mapped range to a frame, starting at byte `at`, with the calling CPU.
    ///
    /// # Errors
    /// [`ReadError`], as [`read`](Self::read).
    pub fn copy_to(&self, frame: &Frame, at: u64) -> Result<(), ReadError> {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        let mapping = self.mapping(0, self.length)?;
        let copied = guarded([mapping], || frame.write_from(at, mapping, self.offset, length));
        Ok(copied.map_err(|_| ReadError::MemoryFault)??)
    }
}
