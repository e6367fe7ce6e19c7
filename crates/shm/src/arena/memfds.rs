//! Segments made of memfds that are registered with the service.
//!
//! ```text
//! segment ─ memfd, mapped, kept out of forked children ─ Registrar::register(descriptor) ─► the service's id for it
//! retire  ─ Registrar::retire(id) ─ unmapped
//! ```
//!
//! [`Registrar`] is a safe trait because a descriptor gives no reference to memory. A registrar must still pass the
//! descriptor only to a service that writes exactly where the client's transfers say.

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error as ThisError;

use super::SegmentSource;
use crate::fork_guard::{ForkGuard, Forked};
use crate::frame::{AllocateError, allocate_placed};
use crate::mapping::Mapping;
use crate::placement::Placement;

/// Registers memfds with a service and withdraws them.
pub trait Registrar {
    /// The service's id for a registered memfd.
    type Id: Clone;
    type Error: Error + 'static;

    /// Registers a memfd of `length` bytes, all allocated. Passes the descriptor to the service alone.
    ///
    /// # Errors
    /// When the service refuses it.
    fn register(&self, descriptor: OwnedFd, length: u64) -> Result<Self::Id, Self::Error>;

    /// Withdraws a memfd. Returns when the service no longer accesses it.
    fn retire(&self, id: Self::Id);
}

/// Why a segment could not be made; `E` is the error of its registrar.
///
/// ```
/// use std::io;
///
/// use memferry_shm::arena::SegmentError;
///
/// let error = SegmentError::Register(io::Error::other("the quota is used up"));
/// assert_eq!(error.to_string(), "the service refused a segment: the quota is used up");
/// ```
#[derive(Debug, ThisError)]
pub enum SegmentError<E: Error + 'static> {
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// `madvise(MADV_DONTFORK)` or the fork guard failed.
    #[error("cannot keep a segment out of forked children: {0}")]
    Fork(io::Error),
    #[error("the service refused a segment: {0}")]
    Register(E),
}

/// A source of segments: memfds of one placement, each registered with the service.
pub struct Memfds<R> {
    registrar: R,
    placement: Placement,
    guard: ForkGuard,
}

impl<R: Registrar> Memfds<R> {
    /// Makes a source whose memfds all have `placement`.
    ///
    /// # Errors
    /// Those of [`ForkGuard::new`].
    pub fn new(registrar: R, placement: Placement) -> io::Result<Self> {
        Ok(Self { registrar, placement, guard: ForkGuard::new()? })
    }

    pub fn registrar(&self) -> &R {
        &self.registrar
    }
}

// SAFETY: A: only the service that `Registrar` names maps the fresh memfd too. Its pages are zero, its mapping begins at a
// page and is at least as long as requested, and the mapping stays until the arena drops it.
unsafe impl<R: Registrar> SegmentSource for Memfds<R> {
    type Id = R::Id;
    type Error = SegmentError<R::Error>;

    fn segment(&self, min_bytes: u64) -> Result<(Mapping, Self::Id), Self::Error> {
        let (descriptor, mapping) = allocate_placed(min_bytes, self.placement)?;
        mapping.do_not_fork().map_err(SegmentError::Fork)?;
        let length = mapping.length_bytes() as u64;
        let id = self.registrar.register(descriptor, length).map_err(SegmentError::Register)?;
        Ok((mapping, id))
    }

    fn retire(&self, id: Self::Id) {
        self.registrar.retire(id);
    }

    fn check_fork(&self) -> Result<(), Forked> {
        self.guard.check()
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
