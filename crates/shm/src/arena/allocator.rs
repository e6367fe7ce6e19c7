//! An arena as the allocator of collections.
//!
//! ```text
//! allocate, grow, shrink ─ the same block serves the new layout? ─ yes ─► stays in place
//!                                                                └ no ──► a block of the arena, the bytes copied
//! deallocate ─► given back; a panic when it was given back before or came from elsewhere
//! ```
//!
//! A layout without bytes takes no memory. Why there was no memory is not said here: the trait has one error.

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::pages::Shape;
use super::{Arena, SegmentSource};

// SAFETY: A: a block's bytes are no other block's, lie in a segment that stays mapped while the block is in use, and clones
// share the arena. Moving an arena moves no segment.
unsafe impl<S: SegmentSource> Allocator for Arena<S> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let dangling =
                NonNull::new(std::ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        let pointer = Self::allocate(self, layout).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        if let Err(error) = self.give_back(pointer.as_ptr().addr(), layout) {
            panic!("memory given back to an arena that did not hand it out: {error}");
        }
    }

    unsafe fn grow(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if fits_in_place(old, new) {
            return Ok(NonNull::slice_from_raw_parts(pointer, new.size()));
        }
        let fresh = Allocator::allocate(self, new)?;
        // SAFETY: A: the fresh block is another one and not shorter; the caller's old block has `old.size()` bytes and is
        // given back by its only holder.
        unsafe {
            std::ptr::copy_nonoverlapping(pointer.as_ptr(), fresh.cast().as_ptr(), old.size());
            self.deallocate(pointer, old);
        }
        Ok(fresh)
    }

    unsafe fn shrink(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if fits_in_place(old, new) {
            return Ok(NonNull::slice_from_raw_parts(pointer, new.size()));
        }
        let fresh = Allocator::allocate(self, new)?;
        // SAFETY: A: as in `grow`; the fresh block has `new.size()` bytes, and the old one has no fewer.
        unsafe {
            std::ptr::copy_nonoverlapping(pointer.as_ptr(), fresh.cast().as_ptr(), new.size());
            self.deallocate(pointer, old);
        }
        Ok(fresh)
    }
}

/// Whether a block of layout `old` is one of layout `new` too.
fn fits_in_place(old: Layout, new: Layout) -> bool {
    old.size() > 0 && new.size() > 0 && old.align() >= new.align() && Shape::of(old) == Shape::of(new)
}
