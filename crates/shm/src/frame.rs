//! Frames: the client allocates them; the service checks and seals them before it transfers bytes there.
//!
//! ```text
//! client    memfd_create ─ ftruncate ─ mmap (─ mbind) ─ fallocate ─ send descriptor
//! service   is it a memfd of that user? ─ mmap ─ add seals ─ size? allocated? ─ Mapping
//! either    memory of the other side: is it sealed? ─ size? ─ mmap, which then cannot fail under this process
//! ```
//!
//! The service adds the seals before it checks size and allocation, so the result stays true: no process can then shrink
//! the memfd, punch holes in it, make a new writable mapping of it or write(2) to it. Earlier mappings stay usable.
//! An open descriptor gives no right to a transfer; rights are in the service's own table.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, FileType, MemfdFlags, SealFlags, SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr};
use thiserror::Error;

use crate::mapping::{Access, Mapping};
pub use crate::placement::Pages;
use crate::placement::{self, BindError, Placement};

/// `f_type` of the file system behind `memfd_create` (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `f_type` of the file system behind `memfd_create` with `MFD_HUGETLB` (statfs(2)).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Size of a large page of tmpfs on the supported machines.
const LARGE_PAGE: u64 = 2 << 20;

/// Bytes that one call allocates: about a millisecond's worth.
const PIECE_BYTES: u64 = 2 * LARGE_PAGE;

/// Seals a frame must carry.
const REQUIRED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);
/// Minimum seals of a frame of huge pages, which may lack the others.
const REQUIRED_HUGE: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

/// Why a frame could not be allocated.
///
/// ```
/// use memferry_shm::frame::{AllocateError, allocate};
/// use memferry_shm::placement::Pages;
///
/// assert!(matches!(allocate(0, Pages::Ordinary), Err(AllocateError::Empty)));
/// ```
#[derive(Debug, Error)]
pub enum AllocateError {
    #[error("cannot allocate a frame of 0 bytes; request at least one byte")]
    Empty,
    #[error(transparent)]
    Node(#[from] BindError),
    #[error("cannot allocate a frame of {length} bytes ({step}): {source}")]
    System {
        length: u64,
        /// The call that failed.
        step: &'static str,
        source: io::Error,
    },
}

/// Allocates memory that the service accepts: a memfd of at least `length` bytes with every page allocated, and its
/// mapping.
///
/// The length is rounded up to whole pages; the mapping has the rounded length.
///
/// # Errors
/// [`AllocateError`].
pub fn allocate(length: u64, pages: Pages) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_placed(length, pages.into())
}

/// As [`allocate`], with all pages on the node that `placement` names.
///
/// # Errors
/// [`AllocateError`]; [`AllocateError::Node`] when the machine has no such node.
pub fn allocate_placed(length: u64, placement: Placement) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_named("memferry-frame", length, placement)
}

/// Makes the memfd of a client's half of a queue pair, and its mapping. Its size is sealed, so that the service cannot end this
/// process by truncating it; the service adds the other seals.
///
/// # Errors
/// [`AllocateError`].
pub fn allocate_half(length: u64) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_with("memferry-ring", length, SealFlags::SHRINK | SealFlags::GROW)
}

/// As [`allocate_placed`], with a name to show in `/proc/PID/maps`.
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
    // The policy applies to new pages only, so it is set before fallocate.
    placement.node.map_or(Ok(()), |node| placement::bind(&mapping, node))?;
    allocate_pages(descriptor.as_fd(), rounded).map_err(failed("fallocate"))?;
    Ok((descriptor, mapping))
}

/// Allocates all pages of a memfd. A signal ends `fallocate`, which frees again what it had before on tmpfs of older kernels, so it is
/// called for a few pages at a time: a program with a timer, as a profiler has it, would else never get a long frame.
fn allocate_pages(descriptor: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
    for at in (0..length).step_by(PIECE_BYTES as usize) {
        let piece = PIECE_BYTES.min(length - at);
        retry_on_intr(|| rustix::fs::fallocate(descriptor, FallocateFlags::empty(), at, piece))?;
    }
    Ok(())
}

/// Why the service refuses a descriptor as a frame.
#[derive(Debug, Error)]
pub enum FrameRefused {
    #[error("cannot register a frame of 0 bytes; announce at least one byte")]
    Empty,
    #[error("the descriptor is not a memfd; allocate frames with memfd_create(MFD_ALLOW_SEALING)")]
    NotMemfd,
    #[error(
        "the memfd belongs to user {owner}, not to the client's user {client}; ask its owner for a grant"
    )]
    Foreign { owner: u32, client: u32 },
    /// The memfd was made without `MFD_ALLOW_SEALING`, carries `F_SEAL_SEAL`, or is open read-only.
    #[error(
        "the memfd lacks seals {missing:#x} and they cannot be added; open it read-write with MFD_ALLOW_SEALING"
    )]
    Unsealable { missing: u32 },
    #[error("the memfd has {size} bytes, not the announced {announced}")]
    SizeDiffers { announced: u64, size: u64 },
    #[error("only {allocated} of {length} bytes are allocated; call fallocate before registering")]
    Sparse { allocated: u64, length: u64 },
    /// The client allocated pages beyond the end of the memfd.
    #[error("{allocated} bytes are allocated for a memfd of {length}; allocate nothing beyond its end")]
    BeyondEnd { allocated: u64, length: u64 },
    #[error("cannot take the memfd ({step}): {source}")]
    System { step: &'static str, source: io::Error },
}

/// Checks, maps and seals `descriptor` as a frame of `announced` bytes sent by user `client`.
///
/// A memfd that is sealed against writing, or opened read-only, becomes a read-only mapping. It may [block](Candidate::seal)
/// as long as the client likes.
///
/// # Errors
/// [`FrameRefused`]. The seals may already have been added to a refused memfd.
pub fn admit(descriptor: BorrowedFd<'_>, announced: u64, client: u32) -> Result<Mapping, FrameRefused> {
    let candidate = Candidate::examine(descriptor, announced, client)?;
    let mapping = candidate.map(descriptor, Access::ReadWrite)?;
    candidate.seal(descriptor)?;
    Ok(mapping)
}

/// A memfd on its way to become a frame. The steps are apart because only the last one may block: [`admit`] takes all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    announced: u64,
    length: usize,
    page: usize,
    huge: bool,
}

impl Candidate {
    /// The first step: whether `descriptor` is a memfd of user `client` with `announced` bytes. Never blocks.
    ///
    /// # Errors
    /// [`FrameRefused`].
    pub fn examine(descriptor: BorrowedFd<'_>, announced: u64, client: u32) -> Result<Self, FrameRefused> {
        let failed =
            |step| move |source: rustix::io::Errno| FrameRefused::System { step, source: source.into() };
        let length =
            usize::try_from(announced).map_err(|_| FrameRefused::SizeDiffers { announced, size: 0 })?;
        if length == 0 {
            return Err(FrameRefused::Empty);
        }
        // This check is first because it never blocks: only memory file systems implement it. Any other call may go to a file
        // system that the client itself serves (FUSE) and can stall without limit.
        let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(|_| FrameRefused::NotMemfd)?;
        let before = rustix::fs::fstat(descriptor).map_err(failed("fstat"))?;
        let huge = memfd_kind(descriptor, &before)?;
        if before.st_uid != client {
            return Err(FrameRefused::Foreign { owner: before.st_uid, client });
        }
        if before.st_size as u64 != announced {
            return Err(FrameRefused::SizeDiffers { announced, size: before.st_size as u64 });
        }
        // Before it is mapped: until memory is sealed, its owner can make every mapping of this process wait.
        let missing = missing_from(required(huge), seals);
        if seals.contains(SealFlags::SEAL) && !missing.is_empty() {
            return Err(FrameRefused::Unsealable { missing: missing.bits() });
        }
        let page = page_bytes(descriptor).map_err(failed("fstatfs"))?;
        Ok(Self { announced, length, page, huge })
    }

    /// The second step: maps the memfd, for writing if `access` asks for it and the memfd allows it. Never waits for the client.
    /// Nothing may touch the mapping before the memfd is [sealed](Self::seal), because it can still be truncated.
    ///
    /// # Errors
    /// [`FrameRefused::System`].
    pub fn map(&self, descriptor: BorrowedFd<'_>, access: Access) -> Result<Mapping, FrameRefused> {
        Mapping::shared(descriptor, self.length, access, self.page)
            .or_else(|_| Mapping::shared(descriptor, self.length, Access::ReadOnly, self.page))
            .map_err(|source| FrameRefused::System { step: "mmap", source })
    }

    /// The last step, after the memfd was mapped: adds the seals, then checks size and allocation. Each of these calls takes the
    /// lock of the memfd's inode. The client can hold that for any time, for instance by a write(2) from memory that it
    /// serves itself.
    ///
    /// # Errors
    /// [`FrameRefused`]. The seals may already have been added.
    pub fn seal(&self, descriptor: BorrowedFd<'_>) -> Result<(), FrameRefused> {
        seal(descriptor, required(self.huge))?;
        let after = rustix::fs::fstat(descriptor)
            .map_err(|source| FrameRefused::System { step: "fstat", source: source.into() })?;
        check_allocated(descriptor, &after, self.announced, self.page)
    }
}

/// Whether the descriptor is a memfd of huge pages. Refuses a descriptor that is not a memfd.
fn memfd_kind(descriptor: BorrowedFd<'_>, stat: &Stat) -> Result<bool, FrameRefused> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(FrameRefused::NotMemfd);
    }
    let file_system = rustix::fs::fstatfs(descriptor)
        .map_err(|source| FrameRefused::System { step: "fstatfs", source: source.into() })?;
    // A memfd has link count zero; other files of these file systems have a name.
    let unlinked = stat.st_nlink == 0;
    match file_system.f_type as u64 {
        TMPFS_MAGIC if unlinked => Ok(false),
        HUGETLBFS_MAGIC if unlinked => Ok(true),
        _ => Err(FrameRefused::NotMemfd),
    }
}

fn required(huge: bool) -> SealFlags {
    if huge { REQUIRED_HUGE } else { REQUIRED }
}

/// A memfd sealed by F_SEAL_WRITE satisfies F_SEAL_FUTURE_WRITE too.
fn missing_from(required: SealFlags, seals: SealFlags) -> SealFlags {
    let implied = if seals.contains(SealFlags::WRITE) { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
    required.difference(seals | implied)
}

fn seal(descriptor: BorrowedFd<'_>, required: SealFlags) -> Result<(), FrameRefused> {
    let present = || {
        rustix::fs::fcntl_get_seals(descriptor)
            .map_err(|source| FrameRefused::System { step: "fcntl(F_GET_SEALS)", source: source.into() })
    };
    let missing = missing_from(required, present()?);
    if missing.is_empty() {
        return Ok(());
    }
    // All seals are wanted on huge pages too. Where Linux refuses them there, the required ones suffice.
    let _ = rustix::fs::fcntl_add_seals(descriptor, REQUIRED)
        .or_else(|_| rustix::fs::fcntl_add_seals(descriptor, missing));
    let missing = missing_from(required, present()?);
    if missing.is_empty() { Ok(()) } else { Err(FrameRefused::Unsealable { missing: missing.bits() }) }
}

/// Checks that every page is allocated. Frees pages beyond the end where they could hide a missing one.
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
        // st_blocks counts pages beyond the end too, so they could hide missing ones. Truncation to the same size
        // frees them.
        match rustix::fs::ftruncate(descriptor, announced) {
            Ok(()) => {
                allocated = rustix::fs::fstat(descriptor).map_err(failed("fstat"))?.st_blocks as u64 * 512;
            }
            // A read-only descriptor cannot truncate. A search for the first hole then also counts allocated pages that
            // were never written as missing.
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
        // The end lies inside a large page, so up to a large page's worth of ordinary pages may still be missing before
        // it; fallocate adds them.
        allocate_pages(descriptor, announced).map_err(failed("fallocate"))?;
    }
    Ok(())
}

/// Why a process does not map memory that its peer sent, or does not use memory that its peer should have sealed.
///
/// ```
/// use std::fs::File;
/// use std::os::fd::AsFd;
///
/// use memferry_shm::frame::{UnsafeMemory, check_sealed};
///
/// let file = File::open("/proc/self/exe")?;
/// assert!(matches!(check_sealed(file.as_fd(), 1), Err(UnsafeMemory::NotMemfd)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum UnsafeMemory {
    #[error("it is not a memfd of ordinary pages")]
    NotMemfd,
    /// Without these seals its owner can shorten it, which ends a process that reads it.
    #[error("it lacks seals {missing:#x}")]
    Unsealed { missing: u32 },
    #[error("it has {size} bytes instead of at least {needed}")]
    TooSmall { needed: u64, size: u64 },
    #[error("its size cannot be read: {0}")]
    System(io::Error),
}

/// Seals of memory that a peer may not resize any more.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Checks memory of a peer that is not trusted, before it is mapped: a memfd of ordinary pages, sealed against any change
/// of its size, with at least `at_least` bytes. Returns its size, which is then final. An access to a mapping of that
/// size cannot raise SIGBUS because the peer truncated the memory.
///
/// # Errors
/// [`UnsafeMemory`].
pub fn check_sealed(descriptor: BorrowedFd<'_>, at_least: usize) -> Result<usize, UnsafeMemory> {
    check_seals(descriptor, FIXED_SIZE)?;
    let stat = fixed_stat(descriptor, at_least as u64)?;
    // Pages of the huge page pool may be missing when they are touched, which no seal prevents.
    match memfd_kind(descriptor, &stat) {
        Ok(false) => {}
        _ => return Err(UnsafeMemory::NotMemfd),
    }
    let size = stat.st_size as u64;
    usize::try_from(size).map_err(|_| UnsafeMemory::TooSmall { needed: at_least as u64, size: 0 })
}

/// Checks that the service sealed a frame of this process, so that no holder of its descriptor can shorten it.
///
/// # Errors
/// [`UnsafeMemory`].
pub fn check_admitted(descriptor: BorrowedFd<'_>, length: u64) -> Result<(), UnsafeMemory> {
    check_seals(descriptor, SealFlags::SHRINK)?;
    fixed_stat(descriptor, length).map(drop)
}

fn check_seals(descriptor: BorrowedFd<'_>, required: SealFlags) -> Result<(), UnsafeMemory> {
    // Only memory file systems have seals, and only a memfd can have these.
    let present = rustix::fs::fcntl_get_seals(descriptor).map_err(|_| UnsafeMemory::NotMemfd)?;
    let missing = required.difference(present);
    if missing.is_empty() { Ok(()) } else { Err(UnsafeMemory::Unsealed { missing: missing.bits() }) }
}

/// The state of sealed memory, read after its seals, so that its size cannot shrink any more.
fn fixed_stat(descriptor: BorrowedFd<'_>, needed: u64) -> Result<Stat, UnsafeMemory> {
    let stat = rustix::fs::fstat(descriptor).map_err(|error| UnsafeMemory::System(error.into()))?;
    let size = stat.st_size as u64;
    if size < needed { Err(UnsafeMemory::TooSmall { needed, size }) } else { Ok(stat) }
}

/// Bytes of a page of this memory: huge ones are mapped and unmapped whole.
///
/// # Errors
/// Those of fstatfs(2).
pub fn page_bytes(descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let block = rustix::fs::fstatfs(descriptor)?.f_bsize as usize;
    Ok(block.max(rustix::param::page_size()))
}

/// Makes the service's own memfd of at least `length` bytes, mapped writable here. Its seals let a peer write it only if
/// `peer_writes`.
///
/// # Errors
/// [`AllocateError`].
pub fn allocate_sealed(length: u64, peer_writes: bool) -> Result<(OwnedFd, Mapping), AllocateError> {
    allocate_sealed_named("memferry-ring", length, peer_writes)
}

/// As [`allocate_sealed`], with a name to show in `/proc/PID/maps`.
pub fn allocate_sealed_named(
    name: &str,
    length: u64,
    peer_writes: bool,
) -> Result<(OwnedFd, Mapping), AllocateError> {
    let future_write = if peer_writes { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | future_write;
    allocate_with(name, length, seals)
}

/// Allocates ordinary memory and adds `seals` to it.
fn allocate_with(name: &str, length: u64, seals: SealFlags) -> Result<(OwnedFd, Mapping), AllocateError> {
    let (descriptor, mapping) = allocate_named(name, length, Placement::default())?;
    rustix::fs::fcntl_add_seals(&descriptor, seals).map_err(|source| AllocateError::System {
        length,
        step: "fcntl(F_ADD_SEALS)",
        source: source.into(),
    })?;
    Ok((descriptor, mapping))
}

#[cfg(all(test, not(miri)))]
mod tests;
