//! Reads and writes a file by `O_DIRECT` where alignment allows it: the paper's three interfaces (section 3).
//!
//! ```text
//! zero-knowledge      any memory, any offset ───── aligned? ─ yes ─► O_DIRECT         no ─► page cache, copied
//! complete-knowledge  the caller's memory ──────── aligned? ─ yes ─► O_DIRECT         no ─► an error with the reason
//! compatible pool     a Buffer, always aligned ─ offset too? ─ yes ─► O_DIRECT        no ─► page cache, copied
//! ```
//!
//! Memory address, file offset and length must be multiples of the file system's alignments (statx, `STATX_DIOALIGN`), or of
//! a page where the file system reports none. Calls block; `uring` has asynchronous ones. This module opens no path.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use thiserror::Error;

use super::Buffer;
use memferry_shm::mapping::AccessError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Between the device and the caller's memory.
    Direct,
    /// Through the page cache.
    Copied(WhyCopied),
}

/// Why `O_DIRECT` was not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WhyCopied {
    #[error("the file system does not support O_DIRECT")]
    NotOffered,
    #[error("memory at {address:#x} is not aligned to {align} bytes")]
    Address { address: usize, align: usize },
    #[error("offset {offset} in the file and length {length} must both be multiples of {align} bytes")]
    Place { offset: u64, length: usize, align: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Number of bytes moved; fewer than requested at the end of the file.
    pub bytes: usize,
    pub way: Way,
}

#[derive(Debug, Error)]
pub enum DirectError {
    /// A complete-knowledge call with memory or an offset that `O_DIRECT` does not allow.
    #[error("{0}; use memory of a pool, or the interface that copies")]
    Unsuitable(WhyCopied),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("cannot read or write {length} bytes at offset {offset} of the file: {source}")]
    System { offset: u64, length: usize, source: io::Error },
}

/// What a device requires of a transfer to or from memory, in bytes. A file system reports it for `O_DIRECT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignments {
    /// Memory addresses are multiples of this.
    pub memory: usize,
    /// Offsets in the file and lengths are multiples of this.
    pub offset: usize,
}

impl Alignments {
    /// Checks a transfer of `length` bytes at an address and an offset in the file.
    ///
    /// # Errors
    /// The first requirement that it does not meet: [`WhyCopied::Address`] or [`WhyCopied::Place`].
    pub fn check(&self, address: usize, length: usize, offset: u64) -> Result<(), WhyCopied> {
        let Self { memory, offset: place } = *self;
        if !address.is_multiple_of(memory) {
            return Err(WhyCopied::Address { address, align: memory });
        }
        if !offset.is_multiple_of(place as u64) || !length.is_multiple_of(place) {
            return Err(WhyCopied::Place { offset, length, align: place });
        }
        Ok(())
    }
}

/// An open file, with a second file description for `O_DIRECT` if the file system supports it.
pub struct Direct {
    cached: File,
    direct: Option<OwnedFd>,
    required: Alignments,
}

impl Direct {
    /// Takes an open file, and opens the second file description through `/proc/self/fd` with the same access.
    pub fn new(file: File) -> Self {
        let (memory, offset) = direct_alignments(file.as_fd());
        let direct = reopen_direct(file.as_fd()).ok();
        Self { cached: file, direct, required: Alignments { memory, offset } }
    }

    /// Required alignments of memory and of offsets, in bytes; `None` if the file system does not support `O_DIRECT`.
    pub fn alignments(&self) -> Option<(usize, usize)> {
        self.direct.as_ref().map(|_| (self.required.memory, self.required.offset))
    }

    fn qualify(&self, address: usize, length: usize, offset: u64) -> Result<BorrowedFd<'_>, WhyCopied> {
        let direct = self.direct.as_ref().ok_or(WhyCopied::NotOffered)?;
        self.required.check(address, length, offset)?;
        Ok(direct.as_fd())
    }

    /// Zero-knowledge: reads into any memory, by `O_DIRECT` if memory, offset and length are aligned.
    ///
    /// # Errors
    /// [`DirectError::System`].
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<Moved, DirectError> {
        let failed = failure(offset, bytes.len());
        match self.qualify(bytes.as_ptr().addr(), bytes.len(), offset) {
            Ok(direct) => {
                let moved = rustix::io::pread(direct, bytes, offset).map_err(|error| failed(error.into()))?;
                Ok(Moved { bytes: moved, way: Way::Direct })
            }
            Err(why) => {
                let moved = self.cached.read_at(bytes, offset).map_err(failed)?;
                Ok(Moved { bytes: moved, way: Way::Copied(why) })
            }
        }
    }

    /// Zero-knowledge: writes from any memory, by `O_DIRECT` if memory, offset and length are aligned.
    ///
    /// # Errors
    /// [`DirectError::System`].
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<Moved, DirectError> {
        let failed = failure(offset, bytes.len());
        match self.qualify(bytes.as_ptr().addr(), bytes.len(), offset) {
            Ok(direct) => {
                let moved =
                    rustix::io::pwrite(direct, bytes, offset).map_err(|error| failed(error.into()))?;
                Ok(Moved { bytes: moved, way: Way::Direct })
            }
            Err(why) => {
                let moved = self.cached.write_at(bytes, offset).map_err(failed)?;
                Ok(Moved { bytes: moved, way: Way::Copied(why) })
            }
        }
    }

    /// Complete-knowledge: reads by `O_DIRECT` into memory that the caller aligned.
    ///
    /// # Errors
    /// [`DirectError::Unsuitable`] when it is not aligned; [`DirectError::System`].
    pub fn read_aligned(&self, bytes: &mut [u8], offset: u64) -> Result<Moved, DirectError> {
        self.qualify(bytes.as_ptr().addr(), bytes.len(), offset).map_err(DirectError::Unsuitable)?;
        self.read(bytes, offset)
    }

    /// Complete-knowledge: writes by `O_DIRECT` from memory that the caller aligned.
    ///
    /// # Errors
    /// [`DirectError::Unsuitable`] when it is not aligned; [`DirectError::System`].
    pub fn write_aligned(&self, bytes: &[u8], offset: u64) -> Result<Moved, DirectError> {
        self.qualify(bytes.as_ptr().addr(), bytes.len(), offset).map_err(DirectError::Unsuitable)?;
        self.write(bytes, offset)
    }

    /// Compatible pool: reads `length` bytes into a buffer at `at`.
    ///
    /// # Errors
    /// [`DirectError::Access`] outside the buffer; [`DirectError::System`].
    pub fn read_buffer(
        &self,
        buffer: &mut Buffer,
        at: usize,
        length: usize,
        offset: u64,
    ) -> Result<Moved, DirectError> {
        buffer.check(at, length)?;
        let to = buffer.pointer().wrapping_add(at);
        let (file, way) = self.choose(to.addr(), length, offset);
        // SAFETY: P: the bytes lie in the buffer, which this call borrows alone; Linux writes at most `length` of them.
        let moved = unsafe { libc::pread(file.as_raw_fd(), to.cast(), length, offset.cast_signed()) };
        let moved =
            usize::try_from(moved).map_err(|_| failure(offset, length)(io::Error::last_os_error()))?;
        Ok(Moved { bytes: moved, way })
    }

    /// Compatible pool: writes `length` bytes at `at` of a buffer.
    ///
    /// # Errors
    /// [`DirectError::Access`] outside the buffer; [`DirectError::System`].
    pub fn write_buffer(
        &self,
        buffer: &Buffer,
        at: usize,
        length: usize,
        offset: u64,
    ) -> Result<Moved, DirectError> {
        buffer.check(at, length)?;
        let from = buffer.pointer().wrapping_add(at);
        let (file, way) = self.choose(from.addr(), length, offset);
        // SAFETY: P: the bytes lie in the buffer, and Linux only reads them.
        let moved = unsafe { libc::pwrite(file.as_raw_fd(), from.cast(), length, offset.cast_signed()) };
        let moved =
            usize::try_from(moved).map_err(|_| failure(offset, length)(io::Error::last_os_error()))?;
        Ok(Moved { bytes: moved, way })
    }

    fn choose(&self, address: usize, length: usize, offset: u64) -> (BorrowedFd<'_>, Way) {
        match self.qualify(address, length, offset) {
            Ok(direct) => (direct, Way::Direct),
            Err(why) => (self.cached.as_fd(), Way::Copied(why)),
        }
    }
}

fn failure(offset: u64, length: usize) -> impl Fn(io::Error) -> DirectError {
    move |source| DirectError::System { offset, length, source }
}

/// Alignments of memory and of offsets that the file system requires for `O_DIRECT`, in bytes; a page each if it reports none.
pub fn direct_alignments(file: BorrowedFd<'_>) -> (usize, usize) {
    let page = rustix::param::page_size();
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(DIO_ALIGN));
    let reported = stat.ok().filter(|stat| stat.stx_mask & DIO_ALIGN != 0 && stat.stx_dio_offset_align != 0);
    reported.map_or((page, page), |stat| {
        ((stat.stx_dio_mem_align as usize).max(1), (stat.stx_dio_offset_align as usize).max(1))
    })
}

/// `STATX_DIOALIGN` (linux/stat.h, since 6.1).
const DIO_ALIGN: u32 = 0x2000;

/// Opens a second file description of an open file: with `O_DIRECT`, the same access and the same `O_SYNC` and `O_DSYNC`.
///
/// # Errors
/// Those of `open`: `EINVAL` if the file system does not support `O_DIRECT`.
pub fn reopen_direct(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let kept = OFlags::RWMODE | OFlags::SYNC | OFlags::DSYNC;
    let access = rustix::fs::fcntl_getfl(file)? & kept;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// Number of the system call cachestat(2) on every architecture (Linux 6.5).
const CACHESTAT: libc::c_long = 451;

/// Number of pages of a file's range that are in the page cache. Unlike a non-blocking read, this call starts no readahead.
///
/// # Errors
/// Those of `cachestat`: `Unsupported` before Linux 6.5, `PermissionDenied` for files that are neither the caller's nor
/// writable for it.
pub fn cached_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let range = [offset, length];
    // Numbers of pages: cached, dirty, in writeback, evicted, recently evicted (struct cachestat).
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads the two words of `range` and writes the five of `counts`.
    let failed =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0_u32) }
            != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(counts[0]) }
}
