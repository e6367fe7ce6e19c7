//! Detects that this process is a forked child, which does not have its parent's rings.
//!
//! The rings are not mapped in a child (`MADV_DONTFORK`), so an access there would fault. Linux zeroes the guard's page in
//! the child (`MADV_WIPEONFORK`), so one load before an access detects the fork.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use thiserror::Error;

/// This process is a forked child of the one that opened the client.
///
/// ```
/// use memferry_shm::fork_guard::Forked;
///
/// assert!(Forked.to_string().contains("open a new client in the child"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("this process was forked after the client was opened; open a new client in the child")]
pub struct Forked;

/// One private page: its first word is 1 in the process that made it and 0 in forked children.
///
/// ```
/// use memferry_shm::fork_guard::ForkGuard;
///
/// let guard = ForkGuard::new()?;
/// assert!(guard.check().is_ok(), "a forked child would get `Forked`");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<AtomicU64>,
}

// SAFETY: the page is accessed as one atomic word only, and lives until drop.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// A guard for this process.
    ///
    /// # Errors
    /// Those of `mmap` and `madvise`.
    pub fn new() -> io::Result<Self> {
        let size = rustix::param::page_size();
        // SAFETY: a fresh private page at an address that Linux chooses; the advice changes nothing in this process.
        let page = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let page = rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE)?;
            rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork)?;
            page
        };
        let guard = Self { page: NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)? };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page lives as long as `self` and is aligned; an atomic is valid for every bit pattern.
        unsafe { self.page.as_ref() }
    }

    /// Checks that this is the process that made the guard.
    ///
    /// # Errors
    /// [`Forked`] in a child.
    #[inline]
    pub fn check(&self) -> Result<(), Forked> {
        if self.word().load(Ordering::Relaxed) == 1 { Ok(()) } else { Err(Forked) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page was mapped with this size in `new`, and `self` is its only holder.
        unsafe {
            let _ = rustix::mm::munmap(self.page.as_ptr().cast(), rustix::param::page_size());
        }
    }
}
