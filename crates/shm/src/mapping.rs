//! A range of memory that another process may write at any time: mapped from a descriptor, owned by this process, or lent to
//! it by a program that keeps the memory itself.
//!
//! Bytes go in and out by raw copies; no reference to them is ever formed (invariant M2), so a racing peer can give torn
//! values and nothing worse. Mapping does not judge the descriptor: that is `frame`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use memferry_transfer::Memory;
use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;

use crate::fork_guard::{ForkGuard, Forked};

/// What may be done through a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// Bytes that are not to be had through a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// Bytes beyond the end.
    #[error("{length} bytes at offset {offset} leave the {available} bytes of this memory")]
    OutOfRange {
        /// Where the access begins.
        offset: u64,
        length: u64,
        available: u64,
    },
    /// A store to read-only memory.
    #[error("this memory is mapped read-only")]
    ReadOnly,
    /// Memory that this process has a right to, but no mapping of.
    #[error("this memory is not mapped here; move its bytes by a transfer to a frame that is")]
    NotMapped,
    /// This is a forked child, which does not have this memory.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A range of mapped or owned memory; clones share it, the last one gives it back.
#[derive(Clone)]
pub struct Mapping(Arc<Inner>);

struct Inner {
    base: NonNull<u8>,
    length: usize,
    access: Access,
    page_bytes: usize,
    backing: Backing,
    damaged: AtomicBool,
    /// Tells a forked child, which has no such range, that there is nothing to give back.
    not_forked: OnceLock<ForkGuard>,
}

enum Backing {
    /// Given back with munmap.
    Mapped,
    /// Given back as the `Vec` it was made of: its capacity.
    Owned(usize),
    Lent,
}

/// Memory of this process that somebody else owns and keeps.
#[derive(Debug)]
pub struct Lent {
    base: NonNull<u8>,
    length: usize,
    access: Access,
}

impl Lent {
    /// A promise about `length` bytes at `base`; `None` for a null pointer.
    ///
    /// # Safety
    /// Until the service has let go of the memory (its frame was revoked, or the last holder of the frame was dropped), all
    /// bytes that a transfer or an access by its frame or mapping names stay mapped meanwhile, at least readable, and
    /// writable where it writes; and while a transfer uses them nobody holds a reference that its loads and stores would
    /// break. Who gives the frame to others promises that of the whole range, since they may name any of it.
    pub unsafe fn new(base: *mut u8, length: usize, access: Access) -> Option<Self> {
        Some(Self { base: NonNull::new(base)?, length, access })
    }
}

// SAFETY: M2: all access is by raw copies of bytes, which any thread may do; `Inner` itself never changes but for
// an atomic flag (M1).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Mapping {
    /// A number that no other mapping has while this one, or a clone of it, lives.
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Maps the first `length` bytes of `descriptor`, shared, in pages of `page_bytes`.
    ///
    /// # Errors
    /// Those of `mmap`; `InvalidInput` for a length of zero.
    pub fn shared(
        descriptor: BorrowedFd<'_>,
        length: usize,
        access: Access,
        page_bytes: usize,
    ) -> io::Result<Self> {
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing of ours.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                descriptor.as_fd(),
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(Arc::new(Inner {
            base,
            length,
            access,
            page_bytes,
            backing: Backing::Mapped,
            damaged: AtomicBool::new(false),
            not_forked: OnceLock::new(),
        })))
    }

    /// Takes over memory of this process.
    pub fn owned(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let backing = Backing::Owned(bytes.capacity());
        let access = Access::ReadWrite;
        let damaged = AtomicBool::new(false);
        let inner = Inner {
            base,
            length: bytes.len(),
            access,
            page_bytes: 4096,
            backing,
            damaged,
            not_forked: OnceLock::new(),
        };
        Self(Arc::new(inner))
    }

    /// Takes memory in that its owner keeps.
    pub fn lent(memory: Lent) -> Self {
        let Lent { base, length, access } = memory;
        let page_bytes = 4096;
        let backing = Backing::Lent;
        let damaged = AtomicBool::new(false);
        Self(Arc::new(Inner {
            base,
            length,
            access,
            page_bytes,
            backing,
            damaged,
            not_forked: OnceLock::new(),
        }))
    }

    /// The bytes of an owned mapping again, `self` when it is mapped or another clone lives.
    ///
    /// # Errors
    /// `self`.
    pub fn into_owned(self) -> Result<Vec<u8>, Self> {
        let Backing::Owned(capacity) = self.0.backing else { return Err(self) };
        match Arc::try_unwrap(self.0) {
            Err(shared) => Err(Self(shared)),
            Ok(inner) => {
                let inner = std::mem::ManuallyDrop::new(inner);
                // SAFETY: M1: made from a Vec of this length and capacity in `owned`, and `inner` is not dropped.
                Ok(unsafe { Vec::from_raw_parts(inner.base.as_ptr(), inner.length, capacity) })
            }
        }
    }

    /// Whether it was made of a `Vec` of this process.
    pub fn is_owned(&self) -> bool {
        matches!(self.0.backing, Backing::Owned(_))
    }

    #[inline]
    pub fn length_bytes(&self) -> usize {
        self.0.length
    }

    /// What may be done through it.
    #[inline]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The size of the pages behind it.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// Its first byte. Using it is unsafe: stay inside, copy raw (M2), and do not write when read-only (M3).
    #[inline]
    pub fn pointer(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Whether memory failed in it: part of it was replaced and holds nothing of anyone's.
    #[inline]
    pub fn damaged(&self) -> bool {
        self.0.damaged.load(Ordering::Acquire)
    }

    /// Where it is recorded that memory failed in it.
    pub(crate) fn damage(&self) -> &AtomicBool {
        &self.0.damaged
    }

    /// Whether its pages are its own: memory taken over or lent from this process shares its first and last with neighbours.
    #[inline]
    pub(crate) fn has_own_pages(&self) -> bool {
        matches!(self.0.backing, Backing::Mapped)
    }

    /// Whether both are one range.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Keeps the range out of forked children. A child that drops its copy leaves alone what it has in that place.
    ///
    /// # Errors
    /// Those of `madvise` and `mmap`.
    pub fn do_not_fork(&self) -> io::Result<()> {
        let guard = ForkGuard::new()?;
        self.0.not_forked.get_or_init(|| guard);
        // SAFETY: M1: the range is ours; the advice changes nothing in this process.
        unsafe {
            rustix::mm::madvise(self.pointer().cast(), self.0.length, rustix::mm::Advice::LinuxDontFork)?;
        }
        Ok(())
    }

    /// Replaces whole pages by private ones, filled with zeros: what others write to the memory that was mapped there is
    /// not seen any more.
    ///
    /// # Errors
    /// `InvalidInput` for what is not whole pages of this mapping, those of `mmap`; nothing was changed.
    pub(crate) fn detach(&self, offset: usize, length: usize) -> io::Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= self.0.length);
        let whole = [offset, length].iter().all(|bytes| bytes.is_multiple_of(self.0.page_bytes));
        if !self.has_own_pages() || !whole || end.is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = self.pointer().wrapping_add(offset);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: M1: the pages lie in this mapping and stay mapped; their bytes are given up by whoever holds them.
        unsafe {
            rustix::mm::mmap_anonymous(at.cast(), length, ProtFlags::READ | ProtFlags::WRITE, flags)?;
        }
        Ok(())
    }

    fn checked(&self, offset: u64, length: usize) -> Result<*mut u8, AccessError> {
        self.0.not_forked.get().map_or(Ok(()), ForkGuard::check)?;
        let available = self.0.length as u64;
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > available) {
            return Err(AccessError::OutOfRange { offset, length: length as u64, available });
        }
        Ok(self.pointer().wrapping_add(offset as usize))
    }

    /// Copies bytes out. A peer that writes meanwhile can make them torn.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Forked`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        let from = self.checked(offset, bytes.len())?;
        // SAFETY: M1 and the check above; `bytes` is a unique reference, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`], [`AccessError::Forked`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if self.0.access == Access::ReadOnly {
            return Err(AccessError::ReadOnly);
        }
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: M1, M3 and the checks above; no reference to frame memory exists (M2), so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes in past this CPU's caches, where it can: whoever reads them on another core has them from memory, which is
    /// nearer to some than these caches are. They are there for whoever sees what is stored with release afterwards.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_past_caches(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if self.0.access == Access::ReadOnly {
            return Err(AccessError::ReadOnly);
        }
        let to = self.checked(offset, bytes.len())?;
        stream(bytes, to);
        Ok(())
    }

    /// Copies bytes to another mapping, which may be of the same memory, with the calling CPU.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] of either, [`AccessError::ReadOnly`], [`AccessError::Forked`].
    pub fn copy_to(&self, offset: u64, length: usize, to: &Self, to_offset: u64) -> Result<(), AccessError> {
        if to.0.access == Access::ReadOnly {
            return Err(AccessError::ReadOnly);
        }
        let from = self.checked(offset, length)?;
        let to = to.checked(to_offset, length)?;
        // SAFETY: M1, M3 and the checks above; as with memmove the two may overlap, and no reference to either is formed (M2).
        unsafe { std::ptr::copy(from, to, length) };
        Ok(())
    }
}

/// Stores `from` at `to`, which has room for it, without reading the lines there.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(from: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WIDTH: usize = size_of::<__m128i>();
    let head = to.align_offset(WIDTH).min(from.len());
    let body = (from.len() - head) / WIDTH * WIDTH;
    // SAFETY: M1, M3 and the caller's check: `to` is good for all of `from`, and no reference to it exists (M2). Every x86-64
    // CPU has these instructions; the stores of the body are aligned, since the head ends where they can be.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, head);
        for at in (head..head + body).step_by(WIDTH) {
            _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.as_ptr().add(at).cast()));
        }
        let done = head + body;
        std::ptr::copy_nonoverlapping(from.as_ptr().add(done), to.add(done), from.len() - done);
        // These stores are ordered by nothing else, not by a release either.
        _mm_sfence();
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn stream(from: &[u8], to: *mut u8) {
    // SAFETY: M1, M3 and the caller's check: `to` is good for all of `from`, and no reference to it exists (M2).
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}

impl Memory for Mapping {
    #[inline]
    fn length(&self) -> u64 {
        self.0.length as u64
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.not_forked.get().is_some_and(|guard| guard.check().is_err()) {
            return;
        }
        match self.backing {
            // SAFETY: M1: this is the last holder of the range, which was mapped with this length.
            Backing::Mapped => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.length);
            },
            // SAFETY: M1: made from a Vec of this length and capacity in `owned`.
            Backing::Owned(capacity) => unsafe {
                drop(Vec::from_raw_parts(self.base.as_ptr(), self.length, capacity));
            },
            Backing::Lent => {}
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes, {:?})", self.0.length, self.0.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_memory_is_read_written_and_given_back() {
        let mapping = Mapping::owned(vec![1, 2, 3, 4]);
        mapping.write(1, &[9, 8]).unwrap();
        let mut bytes = [0; 4];
        mapping.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 9, 8, 4]);
        let clone = mapping.clone();
        let mapping = mapping.into_owned().unwrap_err();
        drop(clone);
        assert_eq!(mapping.into_owned().unwrap(), [1, 9, 8, 4]);
    }

    #[test]
    fn lent_memory_is_used_within_its_promise_and_stays_its_owners() {
        let mut bytes = [1, 2, 3, 4];
        let at = bytes.as_mut_ptr();
        // SAFETY: `bytes` outlives both mappings, and is not looked at while they are used.
        let lend = |access| unsafe { Lent::new(at, 4, access) }.map(Mapping::lent).unwrap();
        let writable = lend(Access::ReadWrite);
        let fixed = lend(Access::ReadOnly);
        writable.write(1, &[9, 8]).unwrap();
        assert_eq!(fixed.write(0, &[7]), Err(AccessError::ReadOnly));
        assert!(!writable.is_owned() && writable.into_owned().is_err());
        drop(fixed);
        assert_eq!(bytes, [1, 9, 8, 4]);
        // SAFETY: nothing is promised about no memory.
        assert!(unsafe { Lent::new(std::ptr::null_mut(), 4, Access::ReadOnly) }.is_none());
    }

    #[test]
    fn bytes_are_copied_between_mappings_within_both() {
        let from = Mapping::owned(vec![1, 2, 3, 4]);
        let to = Mapping::owned(vec![0; 3]);
        from.copy_to(1, 2, &to, 1).unwrap();
        from.copy_to(0, 3, &from, 1).unwrap();
        let refused = [(2, 3, 0), (0, 3, 1), (u64::MAX, 1, 0), (0, 1, u64::MAX)];
        for (offset, length, to_offset) in refused {
            assert!(matches!(
                from.copy_to(offset, length, &to, to_offset),
                Err(AccessError::OutOfRange { .. })
            ));
        }
        assert_eq!((from.into_owned().unwrap(), to.into_owned().unwrap()), (vec![1, 1, 2, 3], vec![0, 2, 3]));
    }

    #[test]
    fn bytes_written_past_the_caches_are_those_and_no_others() {
        let source: Vec<u8> = (0..200).map(|byte| byte as u8 | 1).collect();
        for offset in 0..40 {
            for length in [0, 1, 15, 16, 17, 63, 100, 160] {
                let mapping = Mapping::owned(vec![0; 210]);
                mapping.write_past_caches(offset, &source[..length]).unwrap();
                let offset = offset as usize;
                let bytes = mapping.into_owned().unwrap();
                assert_eq!(&bytes[offset..][..length], &source[..length]);
                assert!(bytes[..offset].iter().chain(&bytes[offset + length..]).all(|byte| *byte == 0));
            }
        }
        assert!(Mapping::owned(vec![0; 4]).write_past_caches(1, &[1; 4]).is_err());
    }

    #[test]
    fn no_access_leaves_the_range() {
        let mapping = Mapping::owned(vec![0; 4]);
        for (offset, length) in [(4, 1), (0, 5), (u64::MAX, 1), (3, 2)] {
            let error = AccessError::OutOfRange { offset, length: length as u64, available: 4 };
            assert_eq!(mapping.read(offset, &mut vec![0; length]), Err(error));
            assert_eq!(mapping.write(offset, &vec![0; length]), Err(error));
        }
        mapping.read(4, &mut []).unwrap();
        Mapping::owned(Vec::new()).read(0, &mut []).unwrap();
    }
}
