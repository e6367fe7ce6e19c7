//! The buffers of another process: named, not owned, and all back when the process is gone.
//!
//! ```text
//! the peer asks ─► take ─► Place {segment, index} and once the segment's memfd ─► the peer maps it
//! the peer says ─► give_back(Place)            the peer closes or dies ─► its Holder is dropped ─► all its buffers
//! ```
//!
//! Buffers are zeros when they are handed over, so that nobody reads what another process left: cleared then, or zeroed since
//! they were given back. What a process that kept its mapping writes to them after that, or a transfer of a process that died
//! and was not waited for, its next holder finds there. Who a peer is
//! and when it is dead is its session's to know. A peer that keeps a mapping can read a segment after it gave its buffer
//! back: processes that share a pool trust each other with its bytes, not with its book-keeping, which lies outside.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use thiserror::Error;

use super::{Buffer, Pool, PoolError};

/// Where a buffer is, as another process names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub segment: u32,
    /// The buffer's place in it.
    pub index: u32,
}

/// A place that its holder does not hold; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("buffer {} of segment {} is not this holder's; was it given back twice?", .0.index, .0.segment)]
pub struct NotHeld(pub Place);

/// What one process holds of a pool; dropping it gives all of it back.
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

    /// Takes a buffer back.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn give_back(&mut self, place: Place) -> Result<(), NotHeld> {
        self.held.remove(&place).map(drop).ok_or(NotHeld(place))
    }

    /// A buffer it holds.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn buffer(&mut self, place: Place) -> Result<&mut Buffer, NotHeld> {
        self.held.get_mut(&place).ok_or(NotHeld(place))
    }

    /// The memfd of a held buffer's segment, and where in it the buffer begins, in bytes.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn descriptor(&self, place: Place) -> Result<(BorrowedFd<'_>, usize), NotHeld> {
        let buffer = self.held.get(&place).ok_or(NotHeld(place))?;
        Ok((buffer.segment().descriptor(), buffer.segment().offset_of(buffer.index())))
    }

    /// How many it holds.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}
