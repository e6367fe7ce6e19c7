//! The buffers of a peer process. The peer names them by place; all return to the pool when the peer closes or dies.
//!
//! ```text
//! the peer requests a buffer ─► take ─► Place {segment, index}, and once the segment's memfd ─► the peer maps it
//! the peer returns a buffer ──► give_back(Place)
//! the peer closes or dies ────► its Holder is dropped ─► all its buffers are free
//! ```
//!
//! A buffer is zero when it is handed over, so its holder does not read bytes of an earlier one: it was zeroed while it was
//! free, or `take` clears it. But an earlier holder that kept its mapping can still read and write the segment, and so can a
//! transfer of a process that died before the transfer ended. Processes that share a pool therefore trust each other with
//! its bytes. They need no trust for its tables, which lie outside the segments.
//!
//! The peer's session identifies the peer and detects its death.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use thiserror::Error;

use super::{Buffer, Pool, PoolError};

/// Names a buffer to another process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub segment: u32,
    /// The buffer's index in the segment.
    pub index: u32,
}

/// The holder does not hold the buffer at this place. The call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("this holder does not hold buffer {} of segment {}; was it returned twice?", .0.index, .0.segment)]
pub struct NotHeld(pub Place);

/// The buffers of one process. Dropping it returns all of them.
pub struct Holder {
    pool: Pool,
    held: BTreeMap<Place, Buffer>,
}

impl Holder {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, held: BTreeMap::new() }
    }

    /// Takes a buffer of zeros for the process.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn take(&mut self) -> Result<Place, PoolError> {
        let buffer = self.pool.take_zero()?;
        let place = Place { segment: buffer.segment().id(), index: buffer.index() };
        self.held.insert(place, buffer);
        Ok(place)
    }

    /// Returns a buffer to the pool.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn give_back(&mut self, place: Place) -> Result<(), NotHeld> {
        self.held.remove(&place).map(drop).ok_or(NotHeld(place))
    }

    /// The held buffer at `place`.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn buffer(&mut self, place: Place) -> Result<&mut Buffer, NotHeld> {
        self.held.get_mut(&place).ok_or(NotHeld(place))
    }

    /// The memfd of a held buffer's segment, and the buffer's offset in it, in bytes.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn descriptor(&self, place: Place) -> Result<(BorrowedFd<'_>, usize), NotHeld> {
        let buffer = self.held.get(&place).ok_or(NotHeld(place))?;
        Ok((buffer.segment().descriptor(), buffer.segment().offset_of(buffer.index())))
    }

    /// The number of buffers held.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}
