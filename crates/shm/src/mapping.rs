//! A range of memory that another process may write at any time.
//!
//! The range is mapped from a descriptor, owned by this process, or lent to it by a program that keeps the memory. Or its bytes are
//! elsewhere, where only a device reaches them: then it is a name, and nothing is read or written here. Bytes go in and out by raw
//! copies. No reference to them is formed (invariant M2), so a racing peer can cause torn values and nothing worse. `frame` checks descriptors; this module does not.

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
use crate::line::Line;

/// Bytes unmapped by one system call, unless a page is larger. Linux locks the address space of the process meanwhile, and page
/// faults and mappings of other threads wait.
const UNMAP_BYTES: usize = 32 << 20;

/// What a mapping allows.
///
/// ```
/// use memferry_shm::mapping::{Access, Mapping};
///
/// assert_eq!(Mapping::owned(vec![0; 8]).access(), Access::ReadWrite);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    ReadOnly,
    ReadWrite,
    /// None by the CPU: the bytes are in memory that only a device reaches.
    Elsewhere,
}

/// Why a mapping cannot be accessed.
///
/// ```
/// use memferry_shm::mapping::{AccessError, Mapping};
///
/// let memory = Mapping::owned(vec![0; 100]);
/// let refused = memory.write(90, &[1; 20]).unwrap_err();
/// assert_eq!(refused, AccessError::OutOfRange { offset: 90, length: 20, available: 100 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    #[error(
        "{length} bytes at offset {offset} exceed the {available} bytes of this memory; name a range within them"
    )]
    OutOfRange { offset: u64, length: u64, available: u64 },
    /// A store to read-only memory.
    #[error("cannot write: this memory is mapped read-only")]
    ReadOnly,
    /// This process has rights on the memory but has not mapped it.
    #[error("this memory is not mapped here; transfer its bytes to a mapped frame")]
    NotMapped,
    /// A forked child does not have this memory.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A range of mapped, owned or lent memory. Clones share it; dropping the last one releases it.
///
/// ```
/// use memferry_shm::mapping::Mapping;
///
/// let memory = Mapping::owned(vec![0; 100]);
/// memory.write(10, b"bytes")?;
/// let mut read = [0; 5];
/// memory.clone().read(10, &mut read)?;
/// assert_eq!(&read, b"bytes");
/// # Ok::<(), memferry_shm::mapping::AccessError>(())
/// ```
#[derive(Clone)]
pub struct Mapping(Arc<Inner>);

/// What clones of a [`Mapping`] share.
pub(crate) struct Inner {
    base: NonNull<u8>,
    length: usize,
    access: Access,
    page_bytes: usize,
    backing: Backing,
    damaged: AtomicBool,
    /// Set when the range is kept out of forked children: a child must not unmap it.
    not_forked: OnceLock<ForkGuard>,
}

enum Backing {
    /// Made by `mmap`, released by `munmap`.
    Mapped,
    /// Released as a `Vec` of this capacity.
    Owned(usize),
    /// The lender keeps the memory.
    Lent,
    /// Nothing of this process's memory: a device's address.
    Address,
}

/// A caller's promise that a [`Mapping`] may use memory of this process.
///
/// ```
/// use memferry_shm::mapping::{Access, Lent, Mapping};
///
/// let mut bytes = vec![7; 100];
/// // SAFETY: the mapping is dropped before the vector, which nothing else uses meanwhile.
/// let lent = unsafe { Lent::new(bytes.as_mut_ptr(), bytes.len(), Access::ReadWrite) }.unwrap();
/// let memory = Mapping::lent(lent);
/// assert_eq!(memory.write(0, &[8]), Ok(()));
/// drop(memory);
/// assert_eq!(bytes[..2], [8, 7]);
/// ```
#[derive(Debug)]
pub struct Lent {
    base: NonNull<u8>,
    length: usize,
    access: Access,
}

impl Lent {
    /// Makes a promise about `length` bytes at `base`; `None` for a null pointer.
    ///
    /// # Safety
    /// The promise lasts until the service has released the memory: its frame was revoked, or the last holder of the frame
    /// was dropped. While a transfer or an access through the frame or mapping runs, the bytes it names stay mapped and
    /// readable, and writable where it writes. While a transfer uses them, no reference exists that its loads or stores
    /// would invalidate. A caller that grants the frame to others promises this for the whole range, because they may name
    /// any part of it.
    pub unsafe fn new(base: *mut u8, length: usize, access: Access) -> Option<Self> {
        Some(Self { base: NonNull::new(base)?, length, access })
    }
}

// SAFETY: M2: all access is by raw copies of bytes, which any thread may do. Only an atomic flag and a `OnceLock` of
// `Inner` change after it was made (M1).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    #[inline]
    pub(crate) fn damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    pub(crate) fn set_damaged(&self) {
        self.damaged.store(true, Ordering::SeqCst);
    }

    /// The page that has this address, as start and length, if the SIGBUS handler may replace it: a page is replaced only where no
    /// other object can lie in it. So what is replaced ends with the mapping, even if that was made with too large a page.
    /// Async-signal-safe.
    pub(crate) fn replaceable_page(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.base.as_ptr().addr();
        let end = start + self.length;
        let hit = matches!(self.backing, Backing::Mapped) && (start..end).contains(&address);
        let page = address & !(self.page_bytes - 1);
        let first = page.max(start);
        hit.then(|| (first, page.saturating_add(self.page_bytes).min(end) - first))
    }
}

impl Mapping {
    /// Identifies the range: clones have the same number, and no other living mapping has it.
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
            Access::Elsewhere => ProtFlags::empty(),
        };
        // SAFETY: a fresh mapping at an address that Linux chooses overlaps no other.
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
        Ok(Self::with(base, length, access, Backing::Mapped, page_bytes))
    }

    /// Reserves addresses for memory that is elsewhere. A load or store there ends the process, so a mistake cannot reach other memory.
    ///
    /// # Errors
    /// Those of `mmap`; `InvalidInput` for a length of zero.
    pub fn reserved(length: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address that Linux chooses overlaps no other.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), flags)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self::with(base, length, Access::Elsewhere, Backing::Mapped, rustix::param::page_size()))
    }

    /// Names memory that a device has at this address, which this process's CPUs need not reach; `None` for address 0.
    ///
    /// ```
    /// use memferry_shm::mapping::{Access, AccessError, Mapping};
    ///
    /// let far = Mapping::elsewhere(0x7000_0000, 4096).unwrap();
    /// assert_eq!(far.access(), Access::Elsewhere);
    /// assert_eq!(far.read(0, &mut [0]), Err(AccessError::NotMapped));
    /// ```
    pub fn elsewhere(address: usize, length: usize) -> Option<Self> {
        let base = NonNull::new(std::ptr::without_provenance_mut(address))?;
        Some(Self::with(base, length, Access::Elsewhere, Backing::Address, 1))
    }

    fn with(base: NonNull<u8>, length: usize, access: Access, backing: Backing, page_bytes: usize) -> Self {
        Self(Arc::new(Inner {
            base,
            length,
            access,
            page_bytes,
            backing,
            damaged: AtomicBool::new(false),
            not_forked: OnceLock::new(),
        }))
    }

    /// Takes over heap memory.
    pub fn owned(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self::with(base, bytes.len(), Access::ReadWrite, Backing::Owned(bytes.capacity()), 4096)
    }

    /// Makes a mapping of memory that its lender keeps.
    pub fn lent(memory: Lent) -> Self {
        let Lent { base, length, access } = memory;
        Self::with(base, length, access, Backing::Lent, 4096)
    }

    /// Returns the `Vec` that [`owned`](Self::owned) took.
    ///
    /// # Errors
    /// `self`, when it is mapped or lent, or when another clone lives.
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

    /// Whether it was made by [`owned`](Self::owned).
    pub fn is_owned(&self) -> bool {
        matches!(self.0.backing, Backing::Owned(_))
    }

    #[inline]
    pub fn length_bytes(&self) -> usize {
        self.0.length
    }

    #[inline]
    pub fn access(&self) -> Access {
        self.0.access
    }

    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// Whether the bytes are in memory that the CPU does not reach.
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        self.0.access == Access::Elsewhere
    }

    /// The address of the first byte. Unsafe code that uses it stays inside the range, copies raw (M2), does not write
    /// a read-only mapping, and does not touch one whose bytes are elsewhere (M3).
    #[inline]
    pub fn pointer(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Whether memory failed in the range. Part of it then is a fresh private page, and its contents are lost.
    #[inline]
    pub fn damaged(&self) -> bool {
        self.0.damaged()
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Hands its share of the memory over to a pointer. [`from_raw`](Self::from_raw) takes it back.
    pub(crate) fn into_raw(self) -> *const Inner {
        Arc::into_raw(self.0)
    }

    /// Takes back what [`into_raw`](Self::into_raw) handed over.
    ///
    /// # Safety
    /// The pointer is from `into_raw`, and each such pointer is taken back at most once.
    pub(crate) unsafe fn from_raw(inner: *const Inner) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Arc::from_raw(inner) })
    }

    /// Whether no other object lies in its pages. Owned and lent memory can share its first and last page with neighbours.
    #[inline]
    pub fn has_own_pages(&self) -> bool {
        matches!(self.0.backing, Backing::Mapped)
    }

    /// Whether both are clones of one mapping.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Keeps the range out of forked children. A child that drops its clone does not unmap that place.
    ///
    /// # Errors
    /// Those of `madvise` and `mmap`.
    pub fn do_not_fork(&self) -> io::Result<()> {
        let guard = ForkGuard::new()?;
        self.0.not_forked.get_or_init(|| guard);
        // SAFETY: M1: the range is mapped by `self`; the advice changes nothing in this process.
        unsafe {
            rustix::mm::madvise(self.pointer().cast(), self.0.length, rustix::mm::Advice::LinuxDontFork)?;
        }
        Ok(())
    }

    /// Makes the pages of a range present, for writing too if the mapping can be written. The range begins with a page. Needs Linux 5.14.
    ///
    /// # Errors
    /// [`AccessError`] as `InvalidInput`; those of `madvise`, if a page has no memory behind it, as behind the end of a file: no signal
    /// comes then.
    pub fn make_present(&self, offset: u64, length: usize) -> io::Result<()> {
        let start = self
            .checked(offset, length)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let advice = match self.access() {
            Access::ReadWrite => rustix::mm::Advice::LinuxPopulateWrite,
            Access::ReadOnly | Access::Elsewhere => rustix::mm::Advice::LinuxPopulateRead,
        };
        // SAFETY: M1: the range is mapped by `self`. The kernel does what a load or a store of the same value would do: no byte changes.
        Ok(unsafe { rustix::mm::madvise(start.cast(), length, advice) }?)
    }

    /// Replaces whole pages by private zeroed ones, so that later writes of other processes to the shared memory do not
    /// appear here.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not whole pages of this mapping; those of `mmap`. The mapping is then unchanged.
    pub(crate) fn detach(&self, offset: usize, length: usize) -> io::Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= self.0.length);
        let whole = [offset, length].iter().all(|bytes| bytes.is_multiple_of(self.0.page_bytes));
        if !self.has_own_pages() || !whole || end.is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = self.pointer().wrapping_add(offset);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: M1: the pages lie in this mapping and stay mapped. The caller holds their bytes and gives them up.
        unsafe {
            rustix::mm::mmap_anonymous(at.cast(), length, ProtFlags::READ | ProtFlags::WRITE, flags)?;
        }
        Ok(())
    }

    /// The cache line of a byte.
    #[inline]
    pub fn line(&self, offset: u64) -> Line {
        Line::at(self.pointer().addr().wrapping_add(offset as usize))
    }

    fn checked(&self, offset: u64, length: usize) -> Result<*mut u8, AccessError> {
        self.0.not_forked.get().map_or(Ok(()), ForkGuard::check)?;
        let available = self.0.length as u64;
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > available) {
            return Err(AccessError::OutOfRange { offset, length: length as u64, available });
        }
        if self.is_elsewhere() {
            return Err(AccessError::NotMapped);
        }
        Ok(self.pointer().wrapping_add(offset as usize))
    }

    /// Copies bytes out. They are torn if a peer writes them at the same time.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::NotMapped`], [`AccessError::Forked`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        let from = self.checked(offset, bytes.len())?;
        // SAFETY: M1 and the check above. `bytes` is a unique reference, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`], [`AccessError::NotMapped`], [`AccessError::Forked`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if self.0.access == Access::ReadOnly {
            return Err(AccessError::ReadOnly);
        }
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: M1, M3 and the checks above. No reference to frame memory exists (M2), so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes in with non-temporal stores where the CPU has them: a reader on another core then reads memory rather
    /// than this core's caches, which can be farther away. A release store after this call publishes the bytes.
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

    /// Copies bytes to another mapping on the calling CPU. The two may overlap.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] of either, [`AccessError::ReadOnly`], [`AccessError::NotMapped`], [`AccessError::Forked`].
    pub fn copy_to(&self, offset: u64, length: usize, to: &Self, to_offset: u64) -> Result<(), AccessError> {
        if to.0.access == Access::ReadOnly {
            return Err(AccessError::ReadOnly);
        }
        let from = self.checked(offset, length)?;
        let to = to.checked(to_offset, length)?;
        // SAFETY: M1, M3 and the checks above. `copy` allows overlap, and no reference to either is formed (M2).
        unsafe { std::ptr::copy(from, to, length) };
        Ok(())
    }
}

/// Stores `from` at `to`, which has room for it, without first reading the cache lines there.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(from: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WIDTH: usize = size_of::<__m128i>();
    let head = to.align_offset(WIDTH).min(from.len());
    let body = (from.len() - head) / WIDTH * WIDTH;
    // SAFETY: M1, M3 and the caller's check: `to` is writable for all of `from`, and no reference to it exists (M2). Every
    // x86-64 CPU has these instructions. The head ends at an aligned address, so the stores of the body are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, head);
        for at in (head..head + body).step_by(WIDTH) {
            _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.as_ptr().add(at).cast()));
        }
        let done = head + body;
        std::ptr::copy_nonoverlapping(from.as_ptr().add(done), to.add(done), from.len() - done);
        // Not even a release store orders non-temporal stores; only a fence does.
        _mm_sfence();
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn stream(from: &[u8], to: *mut u8) {
    // SAFETY: M1, M3 and the caller's check: `to` is writable for all of `from`, and no reference to it exists (M2).
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
            Backing::Mapped => {
                for (offset, length) in parts_to_unmap(self.length, self.page_bytes) {
                    // SAFETY: M1: this is the last holder of the range, which was mapped with this length.
                    let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().byte_add(offset).cast(), length) };
                }
            }
            // SAFETY: M1: made from a Vec of this length and capacity in `owned`.
            Backing::Owned(capacity) => unsafe {
                drop(Vec::from_raw_parts(self.base.as_ptr(), self.length, capacity));
            },
            Backing::Lent | Backing::Address => {}
        }
    }
}

/// The parts, as offset and length, in which a mapping is unmapped: whole pages, the last one excepted.
fn parts_to_unmap(length: usize, page_bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let part = UNMAP_BYTES.max(page_bytes);
    (0..length).step_by(part).map(move |offset| (offset, part.min(length - offset)))
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
    fn unmaps_in_parts_of_whole_pages() {
        let parts = |length, page_bytes| Vec::from_iter(parts_to_unmap(length, page_bytes));
        assert_eq!(parts(4096, 4096), [(0, 4096)]);
        assert_eq!(parts(UNMAP_BYTES + 1, 4096), [(0, UNMAP_BYTES), (UNMAP_BYTES, 1)]);
        assert_eq!(parts(2 << 30, 1 << 30), [(0, 1 << 30), (1 << 30, 1 << 30)]);
        assert_eq!(parts(1 << 30, 2 << 20).len(), 32);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn pages_are_made_present_where_there_are_any() {
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let map = |access| Mapping::shared(file.as_fd(), 8192, access, 4096).unwrap();
        let mappings = [Access::ReadWrite, Access::ReadOnly].map(map);
        rustix::fs::ftruncate(&file, 4096).unwrap();
        for mapping in mappings {
            assert!(mapping.make_present(0, 4096).is_ok());
            assert!(mapping.make_present(4096, 4096).is_err(), "behind the end of the file");
            for (offset, length) in [(1, 4096), (0, 8193), (u64::MAX, 1)] {
                assert!(mapping.make_present(offset, length).is_err(), "{offset} {length}");
            }
        }
        let elsewhere = Mapping::elsewhere(4096, 4096).unwrap();
        assert!(elsewhere.make_present(0, 4096).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn a_long_mapping_is_unmapped_as_a_whole() {
        let name = format!("memferry-unmapped-{}", std::process::id());
        let file = rustix::fs::memfd_create(&name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let length = 3 * UNMAP_BYTES + 4096;
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        let mapping = Mapping::shared(file.as_fd(), length, Access::ReadWrite, 4096).unwrap();
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps().contains(&name));
        drop(mapping);
        assert!(!maps().contains(&name));
    }

    #[test]
    fn owned_memory_returns_as_its_vec() {
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
    fn lent_memory_stays_its_owners() {
        let mut bytes = [1, 2, 3, 4];
        let at = bytes.as_mut_ptr();
        // SAFETY: `bytes` outlives both mappings, and is not accessed while they are used.
        let lend = |access| unsafe { Lent::new(at, 4, access) }.map(Mapping::lent).unwrap();
        let writable = lend(Access::ReadWrite);
        let fixed = lend(Access::ReadOnly);
        writable.write(1, &[9, 8]).unwrap();
        assert_eq!(fixed.write(0, &[7]), Err(AccessError::ReadOnly));
        assert!(!writable.is_owned() && writable.into_owned().is_err());
        drop(fixed);
        assert_eq!(bytes, [1, 9, 8, 4]);
        // SAFETY: a null pointer is refused, so the promise covers no memory.
        assert!(unsafe { Lent::new(std::ptr::null_mut(), 4, Access::ReadOnly) }.is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no pages without access")]
    fn memory_elsewhere_cannot_be_touched() {
        let near = Mapping::owned(vec![1, 2, 3]);
        let reserved = Mapping::reserved(1 << 40).unwrap();
        assert!(Mapping::reserved(0).is_err() && Mapping::elsewhere(0, 1).is_none());
        for far in [reserved, Mapping::elsewhere(0x1234_0000, 4096).unwrap()] {
            assert!(far.is_elsewhere());
            assert_eq!(far.read(0, &mut [0]), Err(AccessError::NotMapped));
            assert_eq!(far.write(0, &[0]), Err(AccessError::NotMapped));
            assert_eq!(far.write_past_caches(0, &[0]), Err(AccessError::NotMapped));
            assert_eq!(far.copy_to(0, 1, &near, 0), Err(AccessError::NotMapped));
            assert_eq!(near.copy_to(0, 1, &far, 0), Err(AccessError::NotMapped));
            assert!(far.into_owned().is_err());
        }
    }

    #[test]
    fn copies_between_mappings_stay_in_range() {
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
    fn streaming_writes_only_its_bytes() {
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
    fn refuses_accesses_out_of_range() {
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
