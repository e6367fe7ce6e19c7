//! The [`Allocator`] trait for an arena, so that collections can live in it.
//!
//! ```text
//! allocate          ─► a block of the arena
//! grow, shrink      ─► the same block if it fits the new layout, else a fresh block with the bytes copied
//! deallocate        ─► frees the block; panics if it was freed before or is not in the arena
//! ```
//!
//! A layout of zero bytes takes no memory. The trait's one error has no room for the reason of a failure; to learn it,
//! call [`Arena::allocate`].

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::pages::Shape;
use super::{Arena, SegmentSource};

// SAFETY: A: blocks do not overlap, and each lies in a segment that stays mapped while the block is in use. Clones share
// the arena, and moving an arena moves no segment.
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
            panic!("cannot free memory that is not in use in this arena: {error}");
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
        // SAFETY: A: the fresh block does not overlap the old one and is not shorter. The old block has `old.size()` bytes,
        // and the caller, its only holder, frees it here.
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
        // SAFETY: A: as in `grow`. The fresh block has `new.size()` bytes, and the old one has at least as many.
        unsafe {
            std::ptr::copy_nonoverlapping(pointer.as_ptr(), fresh.cast().as_ptr(), new.size());
            self.deallocate(pointer, old);
        }
        Ok(fresh)
    }
}

/// Whether a block allocated for `old` also serves `new`.
fn fits_in_place(old: Layout, new: Layout) -> bool {
    old.size() > 0 && new.size() > 0 && old.align() >= new.align() && Shape::of(old) == Shape::of(new)
}
