//! Frames: what a client allocates, and what the broker checks and seals before it will move bytes there.
//!
//! ```text
//! client   memfd_create ─ ftruncate ─ mmap (─ mbind) ─ fallocate ─ send descriptor
//! broker   is it a memfd of that user? ─ mmap ─ add seals ─ size? allocated? ─ Mapping
//! ```
//!
//! The seals come before the checks, so what was checked stays true: nobody can shrink it, punch holes in it, map it
//! writable anew or write(2) to it; mappings made before go on. An open descriptor is not a right; rights live in the
//! broker's table, which this module knows nothing of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, FileType, MemfdFlags, SealFlags, SeekFrom, Stat};
use rustix::io::Errno;
use thiserror::Error;

use crate::mapping::{Access, Mapping};
use crate::placement::{self, BindError, Placement};

/// `f_type` of the file system behind `memfd_create` (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `f_type` of the file system behind `memfd_create` with `MFD_HUGETLB` (statfs(2)).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// The large page of shared memory on the machines this runs on.
const LARGE_PAGE: u64 = 2 << 20;

/// Seals a frame must carry.
const REQUIRED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);
/// Seals a frame of huge pages must carry at least.
const REQUIRED_HUGE: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

/// The pages a frame is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// The machine's ordinary pages.
    #[default]
    Ordinary,
    /// Huge pages of the machine's default huge size, from its pool.
    Huge,
}

/// Why memory cannot be allocated for a frame.
#[derive(Debug, Error)]
pub enum AllocateError {
    #[error("a frame has at least one byte")]
    Empty,
    /// Its pages cannot be bound to the node asked for.
    #[error(transparent)]
    Node(#[from] BindError),
    /// The system would not give it.
    #[error("cannot allocate a frame of {length} bytes ({step}): {source}")]
    System {
        length: u64,
        /// The call that failed.
        step: &'static str,
        source: io::Error,
    },
}

/// Allocates memory a broker will accept: a memfd of at least `length` bytes, every page allocated, and its mapping.
///
/// The length is rounded up to whole pages; the mapping has the rounded length.
///
/// # Errors
/// [`AllocateError`].
pub fn allocate(length: u64, pages: Pages) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_placed(length, pages.into())
}

/// Allocates like [`allocate`], all pages on the node that `placement` names.
///
/// # Errors
/// [`AllocateError`]; [`AllocateError::Node`] when the machine has no such node.
pub fn allocate_placed(length: u64, placement: Placement) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_named("memferry-frame", length, placement)
}

/// As [`allocate`], under a name of its own in `/proc/PID/maps`.
fn allocate_named(
    name: &str,
    length: u64,
    placement: Placement,
) -> Result<(OwnedFd, Mapping), AllocateError> {
    let failed =
        |step| move |source: rustix::io::Errno| AllocateError::System { length, step, source: source.into() };
    if length == 0 {
        return Err(AllocateError::Empty);
    }
    let huge = if placement.pages == Pages::Huge { MemfdFlags::HUGETLB } else { MemfdFlags::empty() };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let descriptor = rustix::fs::memfd_create(name, flags).map_err(failed("memfd_create"))?;
    let page = page_bytes(descriptor.as_fd()).map_err(failed("fstatfs"))?;
    let rounded = length
        .checked_next_multiple_of(page as u64)
        .filter(|rounded| i64::try_from(*rounded).is_ok())
        .ok_or_else(|| failed("rounding to pages")(rustix::io::Errno::NOMEM))?;
    rustix::fs::ftruncate(&descriptor, rounded).map_err(failed("ftruncate"))?;
    let mapping = Mapping::shared(descriptor.as_fd(), rounded as usize, Access::ReadWrite, page)
        .map_err(|source| AllocateError::System { length, step: "mmap", source })?;
    // Before there are pages: the policy says where new ones come from and moves none.
    placement.node.map_or(Ok(()), |node| placement::bind(&mapping, node))?;
    rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, rounded).map_err(failed("fallocate"))?;
    Ok((descriptor, mapping))
}

/// Why a broker will not take a descriptor as a frame.
#[derive(Debug, Error)]
pub enum FrameRefused {
    /// A frame of no bytes.
    #[error("a frame has at least one byte")]
    Empty,
    /// Not memory from `memfd_create`.
    #[error("the descriptor is no memfd; allocate frames with memfd_create(MFD_ALLOW_SEALING)")]
    NotMemfd,
    #[error(
        "the memfd belongs to user {owner}, not to the client's user {client}; ask its owner for a grant"
    )]
    Foreign { owner: u32, client: u32 },
    /// The seals cannot be added: sealing is off, was closed before, or the descriptor is read-only.
    #[error(
        "the memfd lacks seals {missing:#x} and they cannot be added; open it read-write with MFD_ALLOW_SEALING"
    )]
    Unsealable { missing: u32 },
    /// Its size is not what was announced.
    #[error("the memfd has {size} bytes, not the announced {announced}")]
    SizeDiffers {
        /// What the client said.
        announced: u64,
        size: u64,
    },
    #[error("only {allocated} of {length} bytes are allocated; call fallocate before registering")]
    Sparse {
        /// Bytes of allocated pages.
        allocated: u64,
        /// Bytes there should be.
        length: u64,
    },
    /// Pages lie where no frame can be.
    #[error("{allocated} bytes are allocated for a memfd of {length}; allocate nothing beyond its end")]
    BeyondEnd {
        /// Bytes of allocated pages.
        allocated: u64,
        /// Bytes there should be.
        length: u64,
    },
    /// A system call failed.
    #[error("cannot take the memfd ({step}): {source}")]
    System { step: &'static str, source: io::Error },
}

/// Checks, maps and seals `descriptor` as a frame of `announced` bytes sent by user `client`.
///
/// A frame that is sealed against writing, or opened read-only, becomes a read-only mapping.
///
/// # Errors
/// [`FrameRefused`]; the seals may have been added by then.
pub fn admit(descriptor: BorrowedFd<'_>, announced: u64, client: u32) -> Result<Mapping, FrameRefused> {
    let failed = |step| move |source: rustix::io::Errno| FrameRefused::System { step, source: source.into() };
    let length = usize::try_from(announced).map_err(|_| FrameRefused::SizeDiffers { announced, size: 0 })?;
    if length == 0 {
        return Err(FrameRefused::Empty);
    }
    // First of all, because it never waits: only memory file systems answer, and what else a client sends may be served
    // by the client itself, for as long as it likes.
    rustix::fs::fcntl_get_seals(descriptor).map_err(|_| FrameRefused::NotMemfd)?;
    let before = rustix::fs::fstat(descriptor).map_err(failed("fstat"))?;
    let huge = memfd_kind(descriptor, &before)?;
    if before.st_uid != client {
        return Err(FrameRefused::Foreign { owner: before.st_uid, client });
    }
    if before.st_size as u64 != announced {
        return Err(FrameRefused::SizeDiffers { announced, size: before.st_size as u64 });
    }
    let page = page_bytes(descriptor).map_err(failed("fstatfs"))?;
    let mapping = Mapping::shared(descriptor, length, Access::ReadWrite, page)
        .or_else(|_| Mapping::shared(descriptor, length, Access::ReadOnly, page))
        .map_err(|source| FrameRefused::System { step: "mmap", source })?;
    seal(descriptor, if huge { REQUIRED_HUGE } else { REQUIRED })?;
    let after = rustix::fs::fstat(descriptor).map_err(failed("fstat"))?;
    check_allocated(descriptor, &after, announced, page)?;
    Ok(mapping)
}

/// Whether a memfd is made of huge pages; refuses what is no memfd.
fn memfd_kind(descriptor: BorrowedFd<'_>, stat: &Stat) -> Result<bool, FrameRefused> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(FrameRefused::NotMemfd);
    }
    let file_system = rustix::fs::fstatfs(descriptor)
        .map_err(|source| FrameRefused::System { step: "fstatfs", source: source.into() })?;
    // A link count of zero tells memfds from other files of a sealing file system.
    let unlinked = stat.st_nlink == 0;
    match file_system.f_type as u64 {
        TMPFS_MAGIC if unlinked => Ok(false),
        HUGETLBFS_MAGIC if unlinked => Ok(true),
        _ => Err(FrameRefused::NotMemfd),
    }
}

fn seal(descriptor: BorrowedFd<'_>, required: SealFlags) -> Result<(), FrameRefused> {
    let present = || {
        rustix::fs::fcntl_get_seals(descriptor)
            .map_err(|source| FrameRefused::System { step: "fcntl(F_GET_SEALS)", source: source.into() })
    };
    // A write-sealed frame is stricter than a future-write-sealed one.
    let satisfied = |seals: SealFlags| {
        let implied =
            if seals.contains(SealFlags::WRITE) { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
        required.difference(seals | implied)
    };
    let missing = satisfied(present()?);
    if missing.is_empty() {
        return Ok(());
    }
    // All seals are wanted on huge pages too; where FUTURE_WRITE is not to be had there, the required ones are.
    let _ = rustix::fs::fcntl_add_seals(descriptor, REQUIRED)
        .or_else(|_| rustix::fs::fcntl_add_seals(descriptor, missing));
    let missing = satisfied(present()?);
    if missing.is_empty() { Ok(()) } else { Err(FrameRefused::Unsealable { missing: missing.bits() }) }
}

/// Sees to it that every page is there, and none beyond the end.
fn check_allocated(
    descriptor: BorrowedFd<'_>,
    stat: &Stat,
    announced: u64,
    page: usize,
) -> Result<(), FrameRefused> {
    let failed = |step| move |source: rustix::io::Errno| FrameRefused::System { step, source: source.into() };
    let size = stat.st_size as u64;
    if size != announced {
        return Err(FrameRefused::SizeDiffers { announced, size });
    }
    let length = announced.next_multiple_of(page as u64);
    let mut allocated = stat.st_blocks as u64 * 512;
    if allocated > length.saturating_add(LARGE_PAGE) {
        return Err(FrameRefused::BeyondEnd { allocated, length });
    }
    if allocated >= length {
        // Pages beyond the end may stand for others that are missing before it.
        match rustix::fs::ftruncate(descriptor, announced) {
            Ok(()) => {
                allocated = rustix::fs::fstat(descriptor).map_err(failed("fstat"))?.st_blocks as u64 * 512;
            }
            // One for reading cuts nothing off. Pages that were never written count as missing then.
            Err(Errno::INVAL | Errno::BADF) => {
                let filled = rustix::fs::seek(descriptor, SeekFrom::Hole(0)).map_err(failed("lseek"))?;
                let sparse = FrameRefused::Sparse { allocated: filled, length };
                return if filled >= announced { Ok(()) } else { Err(sparse) };
            }
            Err(error) => return Err(failed("ftruncate")(error)),
        }
    }
    if allocated < length {
        return Err(FrameRefused::Sparse { allocated, length });
    }
    if allocated > length {
        // The end lies in a large page, which hides as many missing ones as lie beyond it: less than one's worth.
        rustix::fs::fallocate(descriptor, FallocateFlags::empty(), 0, announced)
            .map_err(failed("fallocate"))?;
    }
    Ok(())
}

fn page_bytes(descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let block = rustix::fs::fstatfs(descriptor)?.f_bsize as usize;
    Ok(block.max(rustix::param::page_size()))
}

/// A memfd of the broker's own for `length` bytes, mapped writable here.
///
/// # Errors
/// [`AllocateError`].
pub fn allocate_sealed(length: u64, peer_writes: bool) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_sealed_named("memferry-ring", length, peer_writes)
}

/// As [`allocate_sealed`], under a name of its own.
pub fn allocate_sealed_named(
    name: &str,
    length: u64,
    peer_writes: bool,
) -> Result<(OwnedFd, Mapping), AllocateError> {
    let (descriptor, mapping) = allocate_named(name, length, Placement::default())?;
    let future_write = if peer_writes { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | future_write;
    rustix::fs::fcntl_add_seals(&descriptor, seals).map_err(|source| AllocateError::System {
        length,
        step: "fcntl(F_ADD_SEALS)",
        source: source.into(),
    })?;
    Ok((descriptor, mapping))
}

#[cfg(all(test, not(miri)))]
mod tests;
