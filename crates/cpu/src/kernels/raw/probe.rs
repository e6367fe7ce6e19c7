//! Times a few loads, to estimate how far away memory is.
//!
//! ```text
//! addresses ─ fence ─ ticks ─ simultaneous loads ─ fence ─ ticks ──► difference
//! ```
//!
//! Returns `None` if the CPU has no suitable counter. Invariants as in the module above.

use super::super::PAGE_BYTES;
use super::{AHEAD, LINE, prefetch};

/// Ticks of the time-stamp counter for simultaneous loads at all addresses; `None` without such a counter.
///
/// # Safety
/// M1 and M2 for a byte at each address.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(in super::super) unsafe fn load_ticks<const N: usize>(addresses: [*const u8; N]) -> Option<u64> {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: M1, M2 for the loads; the counter and the fences are part of x86-64.
    unsafe {
        _mm_lfence();
        let before = _rdtsc();
        _mm_lfence();
        for address in addresses {
            address.read_volatile();
        }
        _mm_lfence();
        Some(_rdtsc().wrapping_sub(before))
    }
}

/// `None`: no counter.
///
/// # Safety
/// None.
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(in super::super) unsafe fn load_ticks<const N: usize>(_addresses: [*const u8; N]) -> Option<u64> {
    None
}

/// Prefetches the first lines at an address; any address is allowed.
#[inline]
pub(in super::super) fn ask_for_lines(at: *const u8) {
    for line in 0..AHEAD / LINE {
        prefetch(at.wrapping_add(line * LINE));
    }
}

/// Minimum ticks of a load from an untouched page; `None` without a counter or memory.
pub(crate) fn untouched_ticks() -> Option<u64> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    const PAGES: usize = 8;
    let length = PAGES * PAGE_BYTES;
    // SAFETY: a new mapping that only this function uses and unmaps.
    unsafe {
        let start = mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE).ok()?;
        let page = |number: usize| start.cast::<u8>().cast_const().wrapping_add(number * PAGE_BYTES);
        let least = (0..PAGES).filter_map(|number| load_ticks([page(number)])).min();
        let _ = munmap(start, length);
        least
    }
}

/// [`load_ticks`] for private memory.
pub(crate) fn own_load_ticks<const N: usize>(bytes: [&u8; N]) -> Option<u64> {
    // SAFETY: M1: the bytes are borrowed.
    unsafe { load_ticks(bytes.map(std::ptr::from_ref)) }
}
