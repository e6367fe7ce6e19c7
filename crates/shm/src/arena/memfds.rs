//! Segments made of memfds that somebody registers with a service.
//!
//! ```text
//! segment ─ memfd, mapped, kept out of forked children ─ Registrar::register(descriptor) ─► the service's name for it
//! retire  ─ Registrar::retire(name) ─ unmapped
//! ```
//!
//! A registrar is safe to write because a descriptor, like any file's, gives no reference to memory. What it must do all
//! the same is give the descriptor to nobody but a service that writes only where the client's transfers say.

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error as ThisError;

use super::SegmentSource;
use crate::fork_guard::{ForkGuard, Forked};
use crate::frame::{AllocateError, allocate_placed};
use crate::mapping::Mapping;
use crate::placement::Placement;

/// Makes memory known to a service, and unknown again.
pub trait Registrar {
    /// The service's name for it.
    type Id: Clone;
    /// Why the service would not take it.
    type Error: Error + 'static;

    /// Gives the service a memfd of `length` bytes, all allocated. The descriptor may go nowhere else.
    ///
    /// # Errors
    /// When it will not take it.
    fn register(&self, descriptor: OwnedFd, length: u64) -> Result<Self::Id, Self::Error>;

    /// Takes it away from the service; returns when the service touches it no more.
    fn retire(&self, id: Self::Id);
}

/// Why there is no segment.
#[derive(Debug, ThisError)]
pub enum SegmentError<E: Error + 'static> {
    /// Memory could not be had.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// It could not be kept out of forked children.
    #[error("cannot keep a segment out of forked children: {0}")]
    Fork(io::Error),
    /// The service would not take it.
    #[error("the service did not take a segment: {0}")]
    Register(E),
}

/// Memfds, of the pages and on the node of a placement, known to a service.
pub struct Memfds<R> {
    registrar: R,
    placement: Placement,
    guard: ForkGuard,
}

impl<R: Registrar> Memfds<R> {
    /// A source of them.
    ///
    /// # Errors
    /// Those of [`ForkGuard::new`].
    pub fn new(registrar: R, placement: Placement) -> io::Result<Self> {
        Ok(Self { registrar, placement, guard: ForkGuard::new()? })
    }

    /// What makes them known.
    pub fn registrar(&self) -> &R {
        &self.registrar
    }
}

// SAFETY: A: a fresh memfd is mapped by nobody else but the service it is given to (see `Registrar`), its pages are zero,
// its mapping begins at a page and is at least as long as asked for, and the mapping stays until the arena drops it.
unsafe impl<R: Registrar> SegmentSource for Memfds<R> {
    type Id = R::Id;
    type Error = SegmentError<R::Error>;

    fn segment(&self, least_bytes: u64) -> Result<(Mapping, Self::Id), Self::Error> {
        let (descriptor, mapping) = allocate_placed(least_bytes, self.placement)?;
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
