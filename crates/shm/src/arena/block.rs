//! Blocks that safe code may hold, and the destinations of copies that it waits for.
//!
//! ```text
//! Block     owned; read and written by copy, so another may write it too; given back when it is dropped
//! Landing   whole pages of a borrowed slice, while somebody else fills them
//!             ├─ settled ─► the slice is the caller's again
//!             └─ dropped ─► the pages are taken out of the segment, so that what is still written misses them
//! ```
//!
//! Neither asks anybody to move bytes.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Arena, ArenaError, MOST_ALIGNMENT, Place, SegmentSource};
use crate::mapping::{AccessError, Mapping};

/// Memory of an arena that is held by value. No reference to its bytes is ever formed (invariant M2).
pub struct Block<S: SegmentSource> {
    arena: Arena<S>,
    mapping: Mapping,
    id: S::Id,
    offset: usize,
    layout: Layout,
    abandoned: AtomicBool,
}

impl<S: SegmentSource> Block<S> {
    /// Bytes it has: as many as were asked for.
    pub fn length_bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// The name of its segment.
    pub fn segment(&self) -> &S::Id {
        &self.id
    }

    /// Where it begins in the segment, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.mapping.read(self.checked(offset, bytes.len())?, bytes)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.mapping.write(self.checked(offset, bytes.len())?, bytes)
    }

    fn checked(&self, offset: u64, length: usize) -> Result<u64, AccessError> {
        let available = self.length_bytes();
        let length = length as u64;
        match offset.checked_add(length) {
            Some(end) if end <= available => Ok(self.offset as u64 + offset),
            _ => Err(AccessError::OutOfRange { offset, length, available }),
        }
    }

    /// Says that somebody may still write to it when it is dropped: its bytes are nobody's then until the segment is
    /// retired.
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

/// The whole pages of a slice in an arena, which somebody else fills. Its segment and offset say where.
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
    /// The name of its segment.
    pub fn segment(&self) -> &S::Id {
        &self.id
    }

    /// Where it begins in the segment, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Says that nobody writes to it any more.
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
                    "memferry: memory that may still be written to cannot be taken out of use: {error}"
                );
                std::process::abort();
            }
        }
        touched_elsewhere(first);
    }
}

impl<S: SegmentSource> Arena<S> {
    /// A block of `length` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn block(&self, length: usize, align: usize) -> Result<Block<S>, ArenaError<S::Error>> {
        if !align.is_power_of_two() || align > MOST_ALIGNMENT {
            return Err(ArenaError::Alignment { align, most: MOST_ALIGNMENT });
        }
        let layout =
            Layout::from_size_align(length, align).map_err(|_| ArenaError::TooLong { length, align })?;
        let Place { mapping, id, offset } = self.place(layout)?;
        Ok(Block { arena: self.clone(), mapping, id, offset, layout, abandoned: AtomicBool::new(false) })
    }

    /// Where `bytes` lie, for somebody who only reads them; as [`locate`](Self::locate).
    pub fn locate_slice(&self, bytes: &[u8]) -> Option<(S::Id, u64)> {
        touched_elsewhere(bytes.as_ptr().cast_mut());
        self.locate(bytes.as_ptr(), bytes.len())
    }

    /// Which of `bytes` make up whole pages of their segment; `None` when they do not all lie in one segment, or when
    /// pages cannot be taken out of it.
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

    /// Lets somebody else fill `bytes`, which are whole pages of one segment ([`whole_pages`](Self::whole_pages)).
    pub fn landing<'a>(&'a self, bytes: &'a mut [u8]) -> Option<Landing<'a, S>> {
        let all = 0..bytes.len();
        if bytes.is_empty() || self.whole_pages(bytes)? != all {
            return None;
        }
        touched_elsewhere(bytes.as_mut_ptr());
        let mut state = self.state();
        let (segment, offset) = state.segment_of(bytes.as_ptr().addr())?;
        let mapping = segment.mapping.clone();
        let id = segment.id.clone();
        Some(Landing {
            arena: self,
            mapping,
            id,
            offset,
            length: bytes.len(),
            settled: false,
            bytes: PhantomData,
        })
    }
}

/// A promise about memory of an arena that somebody holds otherwise than as a [`Block`], so that it may be named in requests.
#[derive(Clone, Copy, Debug)]
pub struct Promised {
    pointer: *const u8,
    length: usize,
}

impl Promised {
    /// Promises that `length` bytes at `pointer` may be moved by a service.
    ///
    /// # Safety
    /// While a request that was made of this, or a name or right that was derived from it, may still be served, the bytes
    /// stay allocated; if it writes them, nobody uses references to them meanwhile. A request whose end is unknown, because the
    /// service was lost, or that ended because its engine channel failed, may be served for ever.
    pub const unsafe fn new(pointer: *const u8, length: usize) -> Self {
        Self { pointer, length }
    }

    pub const fn length_bytes(&self) -> u64 {
        self.length as u64
    }
}

impl<S: SegmentSource> Arena<S> {
    /// Where the promised bytes lie; as [`locate`](Self::locate).
    pub fn locate_promised(&self, promised: Promised) -> Option<(S::Id, u64)> {
        touched_elsewhere(promised.pointer.cast_mut());
        self.locate(promised.pointer, promised.length)
    }
}

/// Tells the compiler that the bytes at `pointer` are read or written by what it does not see: all stores to them come
/// before this, and nothing that was loaded from them is still known after it.
fn touched_elsewhere(pointer: *mut u8) {
    #[cfg(not(miri))]
    // SAFETY: no instruction is executed; by its operands the compiler must assume that it writes through the pointer, which
    // comes from a slice that is borrowed for that (A).
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    let _ = pointer;
}
