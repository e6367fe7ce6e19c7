//! Arena memory for safe code: owned blocks, and slices that the service fills.
//!
//! ```text
//! Block     owned, freed on drop; read and written by copy, so the service may write it at the same time
//! Landing   whole pages of a borrowed slice while the service writes them
//!             ├─ settled ─► the slice is the caller's again
//!             └─ dropped ─► private pages replace the shared ones, so that late writes miss the slice
//! ```
//!
//! Neither submits a transfer.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Arena, ArenaError, MAX_ALIGNMENT, Place, SegmentSource};
use crate::line::Line;
use crate::mapping::{AccessError, Mapping};

/// An owned block of an arena. No reference to its bytes is formed (invariant M2).
pub struct Block<S: SegmentSource> {
    arena: Arena<S>,
    mapping: Mapping,
    id: S::Id,
    offset: usize,
    layout: Layout,
    abandoned: AtomicBool,
}

impl<S: SegmentSource> Block<S> {
    /// The number of bytes requested.
    pub fn length_bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    pub fn segment(&self) -> &S::Id {
        &self.id
    }

    /// Offset of the block's first byte in its segment.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Copies bytes out of the block.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.mapping.read(self.checked(offset, bytes.len())?, bytes)
    }

    /// Copies bytes into the block.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.mapping.write(self.checked(offset, bytes.len())?, bytes)
    }

    /// The cache line of a byte.
    #[inline]
    pub fn line(&self, offset: u64) -> Line {
        self.mapping.line(self.offset as u64 + offset)
    }

    fn checked(&self, offset: u64, length: usize) -> Result<u64, AccessError> {
        let available = self.length_bytes();
        let length = length as u64;
        match offset.checked_add(length) {
            Some(end) if end <= available => Ok(self.offset as u64 + offset),
            _ => Err(AccessError::OutOfRange { offset, length, available }),
        }
    }

    /// Marks the block as one that a transfer may still write when it is dropped. The arena then does not reuse its bytes
    /// before the segment is retired.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }
}

impl<S: SegmentSource> Drop for Block<S> {
    fn drop(&mut self) {
        let address = self.mapping.pointer().addr() + self.offset;
        let given_back = if self.abandoned.load(Ordering::Acquire) {
            self.arena.abandon(address, self.layout)
        } else {
            self.arena.give_back(address, self.layout)
        };
        debug_assert_eq!(given_back, Ok(()), "a block is given back once, with its own layout");
    }
}

/// Whole pages of a slice in an arena while the service writes them. Its segment and offset name them in a request.
pub struct Landing<'a, S: SegmentSource> {
    arena: &'a Arena<S>,
    mapping: Mapping,
    id: S::Id,
    offset: usize,
    length: usize,
    settled: bool,
    bytes: PhantomData<&'a mut [u8]>,
}

impl<S: SegmentSource> Landing<'_, S> {
    pub fn segment(&self) -> &S::Id {
        &self.id
    }

    /// Offset of the first page in the segment, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Declares that the service no longer writes to it, and returns the slice to the caller.
    pub fn settled(mut self) {
        self.settled = true;
    }
}

impl<S: SegmentSource> Drop for Landing<'_, S> {
    fn drop(&mut self) {
        let first = self.mapping.pointer().wrapping_add(self.offset);
        if !self.settled {
            if let Some((segment, _)) = self.arena.state().segment_of(first.addr()) {
                segment.detached = true;
            }
            if let Err(error) = self.mapping.detach(self.offset, self.length) {
                eprintln!(
                    "memferry: cannot replace pages that a transfer may still write ({error}); aborting"
                );
                std::process::abort();
            }
        }
        compiler_barrier(first);
    }
}

impl<S: SegmentSource> Arena<S> {
    /// Allocates a block of `length` bytes, aligned to `align`.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn block(&self, length: usize, align: usize) -> Result<Block<S>, ArenaError<S::Error>> {
        if !align.is_power_of_two() || align > MAX_ALIGNMENT {
            return Err(ArenaError::Alignment { align, most: MAX_ALIGNMENT });
        }
        let layout =
            Layout::from_size_align(length, align).map_err(|_| ArenaError::TooLong { length, align })?;
        let Place { mapping, id, offset } = self.place(layout)?;
        Ok(Block { arena: self.clone(), mapping, id, offset, layout, abandoned: AtomicBool::new(false) })
    }

    /// As [`locate`](Self::locate), for a slice that the service only reads.
    pub fn locate_slice(&self, bytes: &[u8]) -> Option<(S::Id, u64)> {
        compiler_barrier(bytes.as_ptr().cast_mut());
        self.locate(bytes.as_ptr(), bytes.len())
    }

    /// The part of `bytes` that consists of whole pages. `None` when the bytes do not all lie in one segment, or when its
    /// pages cannot be replaced.
    pub fn whole_pages(&self, bytes: &[u8]) -> Option<Range<usize>> {
        self.locate(bytes.as_ptr(), bytes.len())?;
        let mut state = self.state();
        let (segment, offset) = state.segment_of(bytes.as_ptr().addr())?;
        if !segment.mapping.has_own_pages() {
            return None;
        }
        let page = segment.mapping.page_bytes();
        let start = offset.next_multiple_of(page);
        let end = (offset + bytes.len()) / page * page;
        let none = end <= start;
        Some(if none { 0..0 } else { start - offset..end - offset })
    }

    /// Makes `bytes` a destination that the service writes. `None` unless they are whole pages of one segment
    /// ([`whole_pages`](Self::whole_pages)).
    pub fn landing<'a>(&'a self, bytes: &'a mut [u8]) -> Option<Landing<'a, S>> {
        let all = 0..bytes.len();
        if bytes.is_empty() || self.whole_pages(bytes)? != all {
            return None;
        }
        compiler_barrier(bytes.as_mut_ptr());
        let mut state = self.state();
        let (segment, offset) = state.segment_of(bytes.as_ptr().addr())?;
        Some(Landing {
            arena: self,
            mapping: segment.mapping.clone(),
            id: segment.id.clone(),
            offset,
            length: bytes.len(),
            settled: false,
            bytes: PhantomData,
        })
    }
}

/// Arena memory that is not held as a [`Block`], with its holder's promise that a request may name it.
///
/// ```
/// use memferry_shm::arena::Promised;
///
/// let bytes = [0; 100];
/// // SAFETY: no request is made of it.
/// let promised = unsafe { Promised::new(bytes.as_ptr(), bytes.len()) };
/// assert_eq!(promised.length_bytes(), 100);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Promised {
    pointer: *const u8,
    length: usize,
}

impl Promised {
    /// Promises that the service may read and write `length` bytes at `pointer`.
    ///
    /// # Safety
    /// The bytes stay allocated as long as the service may still run a request made of this, or use an id or grant derived
    /// from it. If such a request writes them, no reference to them is used meanwhile. Assume that a request runs without
    /// end if the service was lost before it completed, or if it completed with an engine channel failure.
    pub const unsafe fn new(pointer: *const u8, length: usize) -> Self {
        Self { pointer, length }
    }

    pub const fn length_bytes(&self) -> u64 {
        self.length as u64
    }
}

impl<S: SegmentSource> Arena<S> {
    /// As [`locate`](Self::locate), for promised bytes.
    pub fn locate_promised(&self, promised: Promised) -> Option<(S::Id, u64)> {
        compiler_barrier(promised.pointer.cast_mut());
        self.locate(promised.pointer, promised.length)
    }
}

/// A compiler barrier for the bytes at `pointer`: earlier stores to them are done before it, and values loaded from them
/// earlier are not reused after it.
fn compiler_barrier(pointer: *mut u8) {
    #[cfg(not(miri))]
    // SAFETY: A: no instruction is executed. By the operands the compiler must assume a write through the pointer, which
    // comes from a slice that is borrowed for that write.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    let _ = pointer;
}
