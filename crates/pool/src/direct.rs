//! A file read and written with as few copies as the memory at hand allows: the paper's three interfaces (section 3).
//!
//! ```text
//! zero-knowledge      any memory, any offset ─ does it qualify? ─ yes ─► O_DIRECT         no ─► page cache, copied
//! complete-knowledge  the caller's memory ──── does it qualify? ─ yes ─► O_DIRECT         no ─► an error that says why
//! compatible pool     a Buffer, which does ─── does the offset? ─ yes ─► O_DIRECT         no ─► page cache, copied
//! ```
//!
//! To qualify, memory begins and ends where the file system's alignment allows (statx, `STATX_DIOALIGN`; a page where it does
//! not say), and so does the place in the file. Calls block; asynchronous ones are `uring`'s. It never opens a path.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use thiserror::Error;

use super::Buffer;
use memferry_shm::mapping::AccessError;

/// How bytes were moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Between the device and the caller's memory.
    Direct,
    /// Through the page cache.
    Copied(WhyCopied),
}

/// Why memory or a place in the file did not qualify.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WhyCopied {
    /// The file system takes no such input and output.
    #[error("the file system offers no O_DIRECT")]
    NotOffered,
    #[error("memory at {address:#x} is not aligned to {align} bytes")]
    Address {
        address: usize,
        /// What it must be a multiple of.
        align: usize,
    },
    /// The place in the file, or the length.
    #[error("{length} bytes at {offset} of the file are not aligned to {align} bytes")]
    Place {
        /// Where in the file.
        offset: u64,
        length: usize,
        /// What both must be multiples of.
        align: usize,
    },
}

/// Bytes moved, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// How many; fewer than asked for at the end of the file.
    pub bytes: usize,
    pub way: Way,
}

/// Why nothing was moved.
#[derive(Debug, Error)]
pub enum DirectError {
    /// The caller said its memory qualifies, and it does not.
    #[error("{0}; use memory of a pool, or the interface that copies")]
    Unsuitable(WhyCopied),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("cannot move {length} bytes at {offset} of the file: {source}")]
    System {
        /// Where in the file.
        offset: u64,
        length: usize,
        source: io::Error,
    },
}

/// An open file with a second description of it for `O_DIRECT`, where there is one.
pub struct Direct {
    cached: File,
    direct: Option<OwnedFd>,
    /// What memory must be aligned to, in bytes.
    memory_align: usize,
    /// What offsets and lengths must be aligned to, in bytes.
    offset_align: usize,
}

impl Direct {
    /// Takes an open file; opens its second description through `/proc/self/fd`, with the same access.
    pub fn new(file: File) -> Self {
        let (memory_align, offset_align) = direct_alignments(file.as_fd());
        let direct = reopen_direct(file.as_fd()).ok();
        Self { cached: file, direct, memory_align, offset_align }
    }

    /// What memory and offsets must be aligned to; `None` where the file system offers no direct way.
    pub fn alignments(&self) -> Option<(usize, usize)> {
        self.direct.as_ref().map(|_| (self.memory_align, self.offset_align))
    }

    fn qualify(&self, address: usize, length: usize, offset: u64) -> Result<BorrowedFd<'_>, WhyCopied> {
        let direct = self.direct.as_ref().ok_or(WhyCopied::NotOffered)?;
        let memory = self.memory_align;
        let place = self.offset_align;
        if !address.is_multiple_of(memory) {
            return Err(WhyCopied::Address { address, align: memory });
        }
        if !offset.is_multiple_of(place as u64) || !length.is_multiple_of(place) {
            return Err(WhyCopied::Place { offset, length, align: place });
        }
        Ok(direct.as_fd())
    }

    /// Zero-knowledge: reads into any memory; it goes directly when memory and place happen to qualify.
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

    /// Zero-knowledge: writes from any memory; it goes directly when memory and place happen to qualify.
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

    /// Complete-knowledge: the caller brings memory that qualifies.
    ///
    /// # Errors
    /// [`DirectError::Unsuitable`] when it does not; [`DirectError::System`].
    pub fn read_aligned(&self, bytes: &mut [u8], offset: u64) -> Result<Moved, DirectError> {
        self.qualify(bytes.as_ptr().addr(), bytes.len(), offset).map_err(DirectError::Unsuitable)?;
        self.read(bytes, offset)
    }

    /// Complete-knowledge: the caller brings memory that qualifies.
    ///
    /// # Errors
    /// [`DirectError::Unsuitable`] when it does not; [`DirectError::System`].
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
        // SAFETY: P: the bytes are in the buffer, which this call holds alone; the kernel writes at most `length` of them.
        let moved = unsafe { libc::pread(file.as_raw_fd(), to.cast(), length, offset.cast_signed()) };
        let moved =
            usize::try_from(moved).map_err(|_| failure(offset, length)(io::Error::last_os_error()))?;
        Ok(Moved { bytes: moved, way })
    }

    /// Compatible pool: writes `length` bytes of a buffer from `at` on.
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
        // SAFETY: P: the bytes are in the buffer; the kernel only reads them.
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

/// What the file system says memory and offsets must be aligned to for `O_DIRECT`, in bytes; pages where it does not say.
pub fn direct_alignments(file: BorrowedFd<'_>) -> (usize, usize) {
    let page = rustix::param::page_size();
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(DIO_ALIGN));
    let told = stat.ok().filter(|stat| stat.stx_mask & DIO_ALIGN != 0 && stat.stx_dio_offset_align != 0);
    told.map_or((page, page), |stat| {
        ((stat.stx_dio_mem_align as usize).max(1), (stat.stx_dio_offset_align as usize).max(1))
    })
}

/// `STATX_DIOALIGN` (linux/stat.h, since 6.1).
const DIO_ALIGN: u32 = 0x2000;

/// A second description of an open file, with `O_DIRECT`, the same access and the same promise of when writes are durable.
///
/// # Errors
/// Those of `open`: `EINVAL` where the file system offers none.
pub fn reopen_direct(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let kept = OFlags::RWMODE | OFlags::SYNC | OFlags::DSYNC;
    let access = rustix::fs::fcntl_getfl(file)? & kept;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// The system call's number, on every architecture (Linux 6.5).
const CACHESTAT: libc::c_long = 451;

/// The pages of a file's range that are in the page cache; unlike a read that would not wait, asking brings none there.
///
/// # Errors
/// Those of `cachestat`: `Unsupported` before Linux 6.5, `PermissionDenied` for files that are neither the caller's nor
/// writable for it.
pub fn cached_pages(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let range = [offset, length];
    // In pages: in the cache, dirty, being written back, taken from it, and taken from it lately.
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads two words and writes five, which are there.
    let failed =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0_u32) }
            != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(counts[0]) }
}
