//! One segment of a pool: a mapped memfd and the list of its free buffers.
//!
//! ```text
//! map ─ huge pages? ─ memfd ─ mmap ─ mlock? ─ /proc/self/pagemap? ─► usable buffers are free, others set aside
//! ```
//!
//! The free list has a mutex only so that threads can share the segment: every access also holds the pool's lock. The pool
//! decides when a segment is mapped or released.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::SealFlags;

use super::{Constraints, Contiguity, Options, PoolError};
use memferry_shm::frame::{self, AllocateError, Pages};
use memferry_shm::mapping::Mapping;

/// Bits of an entry of `/proc/PID/pagemap` that hold the page frame number (Linux, admin-guide/mm/pagemap.rst).
const FRAME_NUMBER: u64 = (1 << 55) - 1;

pub struct Segment {
    id: u32,
    descriptor: OwnedFd,
    mapping: Mapping,
    /// Bytes before the first buffer, for its alignment.
    origin: usize,
    buffer_bytes: usize,
    usable: usize,
    set_aside: usize,
    locked: bool,
    /// The pool released it.
    retired: AtomicBool,
    free: Mutex<Free>,
}

/// Indices of free buffers. A fresh segment is zero.
struct Free {
    zero: Vec<u32>,
    used: Vec<u32>,
}

/// A snapshot of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// Unique in the pool; not reused.
    pub id: u32,
    pub bytes: usize,
    pub buffer_bytes: usize,
    pub buffers: usize,
    /// Number of free buffers.
    pub free: usize,
    /// Number of buffers that do not meet the constraints.
    pub set_aside: usize,
    pub page_bytes: usize,
    /// Address of its mapping in this process.
    pub address: usize,
    /// Whether `mlock` locked it into memory.
    pub locked: bool,
}

impl Segment {
    pub(super) fn map(id: u32, options: &Options) -> Result<Self, PoolError> {
        let Options { buffer_bytes, segment_bytes: bytes, constraints, .. } = *options;
        let (descriptor, mapping) = allocate(bytes, constraints)?;
        // Sealed before it is shared: a process that shares the segment must not be able to remove its pages (M1, P).
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW).map_err(|source| {
            AllocateError::System { length: bytes as u64, step: "fcntl(F_ADD_SEALS)", source: source.into() }
        })?;
        let origin = mapping.pointer().addr().next_multiple_of(constraints.align) - mapping.pointer().addr();
        if constraints.locked {
            // SAFETY: M1: the range is mapped by `mapping`, and locking it changes no byte.
            let locked = unsafe { rustix::mm::mlock(mapping.pointer().cast(), mapping.length_bytes()) };
            locked.map_err(|source| PoolError::Lock { bytes, source: source.into() })?;
        }
        // Bytes of the mapping above `bytes` make room for the alignment, not for more buffers.
        let fit = bytes.min(mapping.length_bytes().saturating_sub(origin)) / buffer_bytes;
        let offsets = (0..fit).map(|index| origin + index * buffer_bytes);
        let reach = Reach::of(&mapping, constraints, offsets.clone().map(|at| at..at + buffer_bytes))?;
        let usable = offsets.enumerate().filter(|(_, at)| reach.allows(*at, buffer_bytes));
        let free: Vec<u32> = usable.map(|(index, _)| index as u32).rev().collect();
        if free.is_empty() {
            return Err(PoolError::OutOfReach { bytes });
        }
        Ok(Self {
            id,
            descriptor,
            mapping,
            origin,
            buffer_bytes,
            usable: free.len(),
            set_aside: fit - free.len(),
            locked: constraints.locked,
            retired: AtomicBool::new(false),
            free: Mutex::new(Free { zero: free, used: Vec::new() }),
        })
    }

    fn list(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free buffer and returns whether it is known to be zero. Prefers zero buffers if `zero`, else used ones.
    pub(super) fn take(&self, zero: bool) -> Option<(u32, bool)> {
        let mut list = self.list();
        let Free { zero: clean, used } = &mut *list;
        let (first, second) = if zero { (clean, used) } else { (used, clean) };
        let tagged = |index: Option<u32>, zero| index.map(|index| (index, zero));
        tagged(first.pop(), zero).or_else(|| tagged(second.pop(), !zero))
    }

    pub(super) fn take_used(&self) -> Option<u32> {
        self.list().used.pop()
    }

    pub(super) fn give_back(&self, index: u32, zero: bool) {
        let mut list = self.list();
        if zero { list.zero.push(index) } else { list.used.push(index) }
    }

    pub(super) fn free(&self) -> usize {
        let list = self.list();
        list.zero.len() + list.used.len()
    }

    /// The number of free buffers that are known to be zero.
    pub(super) fn zero(&self) -> usize {
        self.list().zero.len()
    }

    pub(super) fn usable(&self) -> usize {
        self.usable
    }

    pub(super) fn set_aside(&self) -> usize {
        self.set_aside
    }

    pub(super) fn huge(&self) -> bool {
        self.mapping.page_bytes() > rustix::param::page_size()
    }

    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the pool released it.
    pub(crate) fn retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Unique in the pool; not reused.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The memfd, for another process to map or to register as a frame.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Bytes of its mapping, which may be longer than its buffers together.
    pub(super) fn bytes(&self) -> u64 {
        self.mapping.length_bytes() as u64
    }

    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Offset of a buffer in the segment, in bytes.
    pub fn offset_of(&self, index: u32) -> usize {
        self.origin + index as usize * self.buffer_bytes
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    pub(super) fn view(&self) -> SegmentView {
        SegmentView {
            id: self.id,
            bytes: self.mapping.length_bytes(),
            buffer_bytes: self.buffer_bytes,
            buffers: self.usable,
            free: self.free(),
            set_aside: self.set_aside,
            page_bytes: self.mapping.page_bytes(),
            address: self.mapping.pointer().addr(),
            locked: self.locked,
        }
    }
}

fn allocate(bytes: usize, constraints: Constraints) -> Result<(OwnedFd, Mapping), PoolError> {
    // Huge pages larger than a segment would exceed the bytes that were counted against the pool's limit.
    if constraints.contiguity != Contiguity::Any
        && let Ok(huge) = frame::allocate(bytes as u64, Pages::Huge)
        && huge.1.length_bytes() == bytes
    {
        return Ok(huge);
    }
    Ok(frame::allocate((bytes + alignment_slack(constraints)) as u64, Pages::Ordinary)?)
}

/// Extra bytes of a mapping, which may begin at any page, so that an aligned first buffer still fits.
fn alignment_slack(constraints: Constraints) -> usize {
    if constraints.align > rustix::param::page_size() { constraints.align } else { 0 }
}

/// Maximum bytes of a segment's mapping.
pub(super) fn maximum_bytes(options: &Options) -> u64 {
    (options.segment_bytes + alignment_slack(options.constraints)) as u64
}

/// Decides which buffers of a segment meet the constraints on physical addresses.
enum Reach {
    /// No constraint concerns physical addresses.
    Anywhere,
    /// The physical frame number of each page, and the constraints.
    Known { frames: Vec<u64>, limit: u64, contiguous: bool },
}

impl Reach {
    fn of(
        mapping: &Mapping,
        constraints: Constraints,
        mut buffers: impl Iterator<Item = Range<usize>>,
    ) -> Result<Self, PoolError> {
        let required = constraints.contiguity == Contiguity::Required;
        let contiguous = required && buffers.any(|buffer| crosses(&buffer, mapping.page_bytes()));
        if constraints.address_limit.is_none() && !contiguous {
            return Ok(Self::Anywhere);
        }
        let frames = frame_numbers(mapping).map_err(|source| PoolError::AddressesHidden { source })?;
        Ok(Self::Known { frames, limit: constraints.address_limit.unwrap_or(u64::MAX), contiguous })
    }

    /// Whether `length` bytes at `offset` of the segment meet the constraints.
    fn allows(&self, offset: usize, length: usize) -> bool {
        let Self::Known { frames, limit, contiguous } = self else { return true };
        let page = rustix::param::page_size();
        let pages = &frames[offset / page..(offset + length).div_ceil(page)];
        let below = |frame: &u64| (frame + 1).checked_mul(page as u64).is_some_and(|end| end <= *limit);
        let follows = pages.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        pages.iter().all(below) && (follows || !contiguous)
    }
}

/// Whether the bytes lie on more than one page of the mapping. Only bytes of one page are certainly contiguous in physical
/// memory.
fn crosses(bytes: &Range<usize>, page: usize) -> bool {
    bytes.start / page != bytes.end.saturating_sub(1) / page
}

/// The present physical frame number of each page. Linux may move pages that are not pinned.
fn frame_numbers(mapping: &Mapping) -> io::Result<Vec<u64>> {
    let page = rustix::param::page_size();
    let count = mapping.length_bytes() / page;
    let mut entries = vec![0; count * 8];
    // The page table of this process has a page only after an access.
    for index in 0..count {
        let mut byte = [0];
        mapping.read((index * page) as u64, &mut byte).map_err(io::Error::other)?;
    }
    let first = mapping.pointer().addr() / page;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, first as u64 * 8)?;
    let number =
        |entry: &[u8]| entry.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)) & FRAME_NUMBER;
    let frames: Vec<u64> = entries.chunks_exact(8).map(number).collect();
    // Linux reports 0 to a process without the right to read frame numbers.
    if frames.contains(&0) { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(frames) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use memferry_shm::mapping::Access;

    #[test]
    fn reach_checks_every_page_of_a_buffer() {
        let page = rustix::param::page_size();
        let reach = |limit, contiguous| Reach::Known { frames: vec![4, 5, 9, 10], limit, contiguous };
        assert!(reach(u64::MAX, true).allows(0, 2 * page));
        assert!(!reach(u64::MAX, true).allows(page, 2 * page), "frames 5 and 9 are not contiguous");
        assert!(reach(u64::MAX, false).allows(page, 2 * page));
        assert!(reach(6 * page as u64, false).allows(0, 2 * page));
        assert!(!reach(6 * page as u64 - 1, false).allows(0, 2 * page));
        assert!(Reach::Anywhere.allows(0, usize::MAX));
    }

    #[test]
    fn contiguity_is_assumed_within_one_page_only() {
        const HUGE: usize = 2 << 20;
        let (descriptor, _) = frame::allocate(2 * HUGE as u64, Pages::Ordinary).unwrap();
        // Claims huge pages, so that the test needs none.
        let mapping = Mapping::shared(descriptor.as_fd(), 2 * HUGE, Access::ReadWrite, HUGE).unwrap();
        let required = Constraints { contiguity: Contiguity::Required, ..Constraints::default() };
        let reach =
            |constraints, buffers: &[Range<usize>]| Reach::of(&mapping, constraints, buffers.iter().cloned());
        assert!(matches!(reach(required, &[0..4096, HUGE / 2..HUGE, HUGE..2 * HUGE]), Ok(Reach::Anywhere)));
        for across in [HUGE - 1..HUGE + 1, 0..HUGE + 4096, 0..2 * HUGE] {
            match reach(required, &[0..4096, across.clone()]) {
                Ok(Reach::Known { contiguous: true, .. }) => {}
                Err(PoolError::AddressesHidden { source }) => {
                    println!("physical addresses are hidden: {source}")
                }
                _ => panic!("{across:?} was taken to be contiguous"),
            }
            assert!(matches!(reach(Constraints::default(), &[across]), Ok(Reach::Anywhere)));
        }
    }

    #[test]
    fn frame_numbers_are_real_or_an_error() {
        let (_, mapping) = frame::allocate(4 * rustix::param::page_size() as u64, Pages::Ordinary).unwrap();
        match frame_numbers(&mapping) {
            Ok(frames) => assert!(frames.len() == 4 && !frames.contains(&0)),
            Err(error) => println!("physical addresses are hidden: {error}"),
        }
    }
}
