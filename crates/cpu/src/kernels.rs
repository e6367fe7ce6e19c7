//! The loops that touch frame memory, each confined to the regions it is given.
//!
//! ```text
//! (Region, offset, length)            ──contiguous──┐
//! (Region, first, step, count, size)  ──strided─────┴─► pointer, every byte inside ──► loop over raw memory
//!                                                    └─► OutsideRegion: nothing touched
//! ```
//!
//! Every function checks its own range once per call, so no caller can make it leave a region or write read-only memory.
//! Invariants of the unsafe blocks: M1 a mapping lives as long as a `Mapping` (each region holds one); M2 frame
//! memory is accessed by raw copies only, never through a reference; M3 read-only mappings are never written; M4 the CPU
//! supports the level a kernel is called at, which [`Cpu::of_this_process`] guarantees. `Region::new` checks that a region lies
//! inside its mapping. `progress` decides order, chunks and directions.

#![expect(unsafe_code, reason = "moving bytes of memory that other processes share needs raw pointers")]

mod raw;
pub mod team;

use std::borrow::Borrow;
use std::ptr;

use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::{Color24, PixelSize, Region};

use super::level::Cpu;
use super::manner::Manner;
pub(super) use raw::{own_load_ticks, untouched_ticks};

const PAGE_BYTES: usize = 4096;
/// Ranges shorter than this are not timed: timing loads takes as long as copying this much.
pub(super) const MIN_TIMED_BYTES: u64 = 8 << 10;

/// The call would have left its region or written read-only memory; nothing was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OutsideRegion;

/// Pixels at equal distances within a region.
#[derive(Debug)]
pub(super) struct Run<'a, M> {
    pub(super) region: &'a Region<M>,
    /// Offset of the first pixel's first byte.
    pub(super) first: i128,
    /// Bytes from one pixel to the next.
    pub(super) step: i64,
}

impl<M> Clone for Run<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Run<'_, M> {}

/// Copies `length` bytes as `memmove` does; uses `manner` if the ranges are disjoint.
#[inline]
pub(super) fn copy<M: Borrow<Mapping>>(
    manner: Manner,
    source: &Region<M>,
    from: u64,
    destination: &Region<M>,
    to: u64,
    length: u64,
) -> Result<(), OutsideRegion> {
    let from = contiguous(source, from, length)?;
    let to = contiguous(writable(destination)?, to, length)?;
    // SAFETY: M1, M2, M3: both ranges were just checked to lie in their regions, the destination's mapping is writable.
    unsafe { move_bytes(manner, from, to, length as usize) };
    Ok(())
}

/// Copies as `memmove` does; uses `manner` if the ranges are disjoint.
///
/// # Safety
/// M1, M2, M3 for `length` bytes at `from` and `to`.
#[inline]
pub(super) unsafe fn move_bytes(manner: Manner, from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: M1, M2, M3: the caller's promise.
    unsafe { move_unsettled(manner, from, to, length) };
    settle(manner);
}

/// As [`move_bytes`], but the caller must call [`settle`] afterwards.
///
/// # Safety
/// As [`move_bytes`].
#[inline]
unsafe fn move_unsettled(manner: Manner, from: *const u8, to: *mut u8, length: usize) {
    let apart = from.addr().abs_diff(to.addr()) >= length;
    // SAFETY: M1, M2, M3: the caller's promise; `copy` allows overlap. M4: the level is this CPU's.
    unsafe {
        match manner {
            Manner::Streaming if apart => {
                raw::copy_streaming(Cpu::of_this_process().level, from, to, length);
            }
            Manner::Flushing if apart => raw::copy_flushing(Cpu::of_this_process(), from, to, length),
            _ => ptr::copy(from, to, length),
        }
    }
}

/// Orders streamed stores before later ones; call it before reporting completion.
#[inline]
pub(super) fn settle(manner: Manner) {
    if manner != Manner::Cached {
        raw::fence();
    }
}

/// Whether the first `length` bytes of a region appear to be uncached. Prefetches the start of `source` meanwhile, because the
/// copy reads it next.
pub(super) fn is_far<M: Borrow<Mapping>>(
    region: &Region<M>,
    length: u64,
    far_ticks: u64,
    source: Option<&Region<M>>,
) -> Result<bool, OutsideRegion> {
    let start = contiguous(region, 0, length)?;
    let source = source.map_or(Ok(ptr::null_mut()), |source| contiguous(source, 0, 0))?;
    // SAFETY: M1, M2: the range was just checked to lie in the region.
    Ok(unsafe { is_far_at(start, length as usize, far_ticks, source) })
}

/// Ticks of a load at an offset, if the CPU can count them.
pub(super) fn region_ticks<M: Borrow<Mapping>>(
    region: &Region<M>,
    at: u64,
) -> Result<Option<u64>, OutsideRegion> {
    let place = contiguous(region, at, 1)?;
    // SAFETY: M1, M2: the byte was just checked to lie in the region.
    Ok(unsafe { raw::load_ticks([place]) })
}

/// Where memory is, by the time of loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Distance {
    /// In a cache, or too short to time.
    Near,
    Far,
    /// Not populated: the kernel allocates its pages on first touch.
    Untouched,
}

/// Whether timed loads within `length` bytes take `far_ticks` or more.
///
/// # Safety
/// M1 and M2 for `length` bytes at `start`.
pub(super) unsafe fn is_far_at(start: *const u8, length: usize, far_ticks: u64, soon: *const u8) -> bool {
    // SAFETY: M1, M2: the caller's promise.
    unsafe { distance(start, length, (far_ticks, u64::MAX), soon) == Distance::Far }
}

/// Times loads in `length` bytes: those that take `far_ticks` or more went to memory, those that take `untouched_ticks` may
/// have caused a page fault.
///
/// Up to a mebibyte it times one load in the first page, which the copy needs anyway. Beyond that it times two, in pages
/// touched beforehand: a miss in the page tables takes as long as a miss in the caches.
/// Prefetches lines at `soon` meanwhile; any address is allowed.
///
/// # Safety
/// M1 and M2 for `length` bytes at `start`.
pub(super) unsafe fn distance(
    start: *const u8,
    length: usize,
    (far_ticks, untouched_ticks): (u64, u64),
    soon: *const u8,
) -> Distance {
    const ONE_LOAD_BYTES: usize = 1 << 20;
    if far_ticks == 0 || length < PAGE_BYTES {
        return Distance::Near;
    }
    raw::ask_for_lines(soon);
    let places = [start, start.wrapping_add(length / 2 / PAGE_BYTES * PAGE_BYTES)];
    // SAFETY: M1, M2: `length` is a page or more, so both places have 2048 bytes of the caller's range after them.
    unsafe {
        let (first, deciding) = if length <= ONE_LOAD_BYTES {
            let first = raw::load_ticks([start]);
            (first, first)
        } else {
            (raw::load_ticks(places), raw::load_ticks(places.map(|place| place.wrapping_add(1023))))
        };
        if first.is_some_and(|ticks| ticks >= untouched_ticks) && is_one_page(places, far_ticks) {
            return Distance::Untouched;
        }
        if deciding.is_some_and(|ticks| ticks >= far_ticks) { Distance::Far } else { Distance::Near }
    }
}

/// Whether two pages appear to be the same: after a load from the first, the same line of the other is cached. All memory that
/// was read but never written maps to the kernel's zero page.
///
/// # Safety
/// M1 and M2 for 2048 bytes at each place.
unsafe fn is_one_page([one, other]: [*const u8; 2], far_ticks: u64) -> bool {
    const AT: usize = 2047;
    // SAFETY: M1, M2: the caller's promise.
    let ticks = unsafe {
        // Brings both pages into the TLB.
        raw::load_ticks([one.wrapping_add(AT), other]);
        raw::load_ticks([other.wrapping_add(AT)])
    };
    ticks.is_some_and(|ticks| ticks < far_ticks)
}

/// Counts the equal bytes of two ranges before their first difference.
pub(super) fn equal_bytes<M: Borrow<Mapping>>(
    first: &Region<M>,
    second: &Region<M>,
    at: u64,
    length: u64,
) -> Result<u64, OutsideRegion> {
    let first = contiguous(first, at, length)?;
    let second = contiguous(second, at, length)?;
    let level = Cpu::of_this_process().level;
    // SAFETY: M1, M2: both ranges were just checked to lie in their regions. M4: the level is this CPU's.
    Ok(unsafe { raw::first_difference(level, first, second, length as usize) } as u64)
}

/// Maximum number of sources combined in one pass.
pub(super) const XOR_GROUP: usize = 4;

/// Sets `block` to the exclusive or of at most [`XOR_GROUP`] regions, and of its old contents if `on`.
pub(super) fn xor_group<M: Borrow<Mapping>>(
    block: &mut [u8],
    sources: &[Region<M>],
    from: u64,
    on: bool,
) -> Result<(), OutsideRegion> {
    let length = block.len();
    let block = block.as_mut_ptr();
    let mut places = [block.cast_const(); XOR_GROUP + 1];
    let group = sources.iter().take(XOR_GROUP);
    for (place, source) in places[1..].iter_mut().zip(group.clone()) {
        *place = contiguous(source, from, length as u64)?;
    }
    let places = &places[usize::from(!on)..=group.len()];
    // SAFETY: M1, M2: the ranges were just checked to lie in their regions; `block` was a unique reference. M4.
    unsafe { raw::xor_all(Cpu::of_this_process().level, block, length, places) };
    Ok(())
}

/// Sets `length` bytes of the destination to the exclusive or of at most [`XOR_GROUP`] regions. The caller must call
/// [`settle`] afterwards.
pub(super) fn xor<M: Borrow<Mapping>>(
    manner: Manner,
    sources: &[Region<M>],
    destination: &Region<M>,
    at: u64,
    length: u64,
) -> Result<(), OutsideRegion> {
    let mut places = [ptr::null(); XOR_GROUP];
    let group = sources.get(..sources.len().min(XOR_GROUP)).unwrap_or_default();
    for (place, source) in places.iter_mut().zip(group) {
        *place = contiguous(source, at, length)?.cast_const();
    }
    let to = contiguous(writable(destination)?, at, length)?;
    let level = Cpu::of_this_process().level;
    let places = &places[..group.len()];
    // SAFETY: M1, M2, M3: all ranges were just checked to lie in their regions, the destination's mapping is writable. M4.
    unsafe {
        match manner {
            Manner::Cached => raw::xor_all(level, to, length as usize, places),
            _ => raw::xor_all_streaming(level, to, length as usize, places),
        }
    }
    Ok(())
}

/// Copies bytes from a region into private memory.
pub(super) fn load<M: Borrow<Mapping>>(
    source: &Region<M>,
    from: u64,
    bytes: &mut [u8],
) -> Result<(), OutsideRegion> {
    let from = contiguous(source, from, bytes.len() as u64)?;
    // SAFETY: M1, M2: the range was just checked to lie in its region; `bytes` is a unique reference, so they are apart.
    unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    Ok(())
}

/// Copies private bytes into a region. The caller must call [`settle`] afterwards.
pub(super) fn store<M: Borrow<Mapping>>(
    manner: Manner,
    destination: &Region<M>,
    to: u64,
    bytes: &[u8],
) -> Result<(), OutsideRegion> {
    let to = contiguous(writable(destination)?, to, bytes.len() as u64)?;
    // The private copy is reused, so only the destination bypasses the caches.
    let manner = if manner == Manner::Flushing { Manner::Streaming } else { manner };
    // SAFETY: M1, M2, M3: the range was just checked to lie in its region, whose mapping is writable; no reference to
    // frame memory exists, so they are apart.
    unsafe { move_unsettled(manner, bytes.as_ptr(), to, bytes.len()) };
    Ok(())
}

/// Repeats `word` over `length` bytes; the first byte becomes `word[0]`.
pub(super) fn fill<M: Borrow<Mapping>>(
    manner: Manner,
    destination: &Region<M>,
    at: u64,
    length: u64,
    word: [u8; 4],
) -> Result<(), OutsideRegion> {
    let at = contiguous(writable(destination)?, at, length)?;
    // SAFETY: M1, M2, M3: the range was just checked to lie in its region, whose mapping is writable.
    unsafe { fill_bytes(manner, at, length as usize, word) };
    Ok(())
}

/// # Safety
/// M1, M2, M3 for `length` bytes at `to`.
#[inline]
pub(super) unsafe fn fill_bytes(manner: Manner, to: *mut u8, length: usize, word: [u8; 4]) {
    let cpu = Cpu::of_this_process();
    // SAFETY: M1, M2, M3: the caller's promise. M4: `clzero` and the level are this CPU's.
    unsafe {
        match manner {
            Manner::Cached if word == [word[0]; 4] => ptr::write_bytes(to, word[0], length),
            Manner::Cached => raw::fill_words(cpu.level, to, length, word),
            _ if word == [0; 4] && cpu.clzero => raw::zero_lines(to, length),
            _ => raw::fill_words_streaming(cpu.level, to, length, word),
        }
    }
    settle(manner);
}

/// Copies `count` pixels one by one, in order; skips pixels of the `transparent` colour.
pub(super) fn copy_pixels<M: Borrow<Mapping>>(
    size: PixelSize,
    source: Run<'_, M>,
    destination: Run<'_, M>,
    count: u64,
    transparent: Option<Color24>,
) -> Result<(), OutsideRegion> {
    let from = strided(&source, count, size)?;
    writable(destination.region)?;
    let to = strided(&destination, count, size)?;
    // SAFETY: M1, M2, M3: the first and the last pixel of both runs, hence all, were just checked to lie in their
    // regions, and the destination's mapping is writable.
    unsafe {
        match size {
            PixelSize::Bits8 => copy_run::<u8>(from, to, count, transparent),
            PixelSize::Bits16 => copy_run::<u16>(from, to, count, transparent),
            PixelSize::Bits32 => copy_run::<u32>(from, to, count, transparent),
        }
    }
    Ok(())
}

/// Writes the low bytes of `color` to `count` pixels.
pub(super) fn fill_pixels<M: Borrow<Mapping>>(
    size: PixelSize,
    destination: Run<'_, M>,
    count: u64,
    color: Color24,
) -> Result<(), OutsideRegion> {
    writable(destination.region)?;
    let to = strided(&destination, count, size)?;
    let value = color.value();
    // SAFETY: M1, M2, M3: the first and the last pixel of the run, hence all, were just checked to lie in the region,
    // whose mapping is writable.
    unsafe {
        match size {
            PixelSize::Bits8 => fill_run(to, count, value as u8),
            PixelSize::Bits16 => fill_run(to, count, (value as u16).to_le()),
            PixelSize::Bits32 => fill_run(to, count, value.to_le()),
        }
    }
    Ok(())
}

/// The region, if its mapping is writable (M3).
#[inline]
pub(super) fn writable<M: Borrow<Mapping>>(region: &Region<M>) -> Result<&Region<M>, OutsideRegion> {
    if region.memory().borrow().access() == Access::ReadWrite { Ok(region) } else { Err(OutsideRegion) }
}

/// Address of `length` bytes at `offset`, all checked to lie in `region`, whose memory must be here (M3).
#[inline]
pub(super) fn contiguous<M: Borrow<Mapping>>(
    region: &Region<M>,
    offset: u64,
    length: u64,
) -> Result<*mut u8, OutsideRegion> {
    let end = offset.checked_add(length).ok_or(OutsideRegion)?;
    if end > region.length() || region.memory().borrow().is_elsewhere() {
        return Err(OutsideRegion);
    }
    Ok(region.memory().borrow().pointer().wrapping_add((region.offset() + offset) as usize))
}

/// A checked run: address of the first pixel and bytes to the next.
#[derive(Clone, Copy)]
struct Pixels {
    first: *mut u8,
    step: isize,
}

/// Checks that all `count` pixels of a run lie in its region. Offsets are linear, so checking both ends suffices.
fn strided<M: Borrow<Mapping>>(
    run: &Run<'_, M>,
    count: u64,
    size: PixelSize,
) -> Result<Pixels, OutsideRegion> {
    let inside = |first: i128| {
        let first = u64::try_from(first).map_err(|_| OutsideRegion)?;
        contiguous(run.region, first, size.bytes())
    };
    let Some(steps) = count.checked_sub(1) else {
        return Ok(Pixels { first: run.region.memory().borrow().pointer(), step: 0 });
    };
    let travelled = i128::from(steps).checked_mul(i128::from(run.step)).ok_or(OutsideRegion)?;
    inside(run.first.checked_add(travelled).ok_or(OutsideRegion)?)?;
    Ok(Pixels { first: inside(run.first)?, step: run.step as isize })
}

/// A pixel as it lies in memory.
trait Pixel: Copy {
    fn value(self) -> u32;
    const SIZE: PixelSize;
}

impl Pixel for u8 {
    fn value(self) -> u32 {
        self.into()
    }
    const SIZE: PixelSize = PixelSize::Bits8;
}

impl Pixel for u16 {
    fn value(self) -> u32 {
        Self::from_le(self).into()
    }
    const SIZE: PixelSize = PixelSize::Bits16;
}

impl Pixel for u32 {
    fn value(self) -> u32 {
        Self::from_le(self)
    }
    const SIZE: PixelSize = PixelSize::Bits32;
}

/// # Safety
/// All `count` pixels of both runs can be read and written respectively.
unsafe fn copy_run<P: Pixel>(mut from: Pixels, mut to: Pixels, count: u64, transparent: Option<Color24>) {
    for _ in 0..count {
        // SAFETY: the caller's promise. The pointers wrap because they leave the run after its last pixel.
        unsafe {
            let pixel = from.first.cast::<P>().read_unaligned();
            if transparent.is_none_or(|color| !color.matches(P::SIZE, pixel.value())) {
                to.first.cast::<P>().write_unaligned(pixel);
            }
        }
        from.first = from.first.wrapping_offset(from.step);
        to.first = to.first.wrapping_offset(to.step);
    }
}

/// # Safety
/// All `count` pixels of the run can be written.
unsafe fn fill_run<P: Copy>(mut to: Pixels, count: u64, pixel: P) {
    for _ in 0..count {
        // SAFETY: the caller's promise.
        unsafe { to.first.cast::<P>().write_unaligned(pixel) };
        to.first = to.first.wrapping_offset(to.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOR: Color24 = Color24::new(0x03_0201).unwrap();

    /// Bytes 4..12 of a mapping of 16.
    fn middle() -> (Mapping, Region<Mapping>) {
        let mapping = Mapping::owned(vec![0xee; 16]);
        (mapping.clone(), Region::new(mapping, 4, 8).unwrap())
    }

    fn untouched(mapping: &Mapping) -> bool {
        let mut bytes = [0; 16];
        mapping.read(0, &mut bytes).unwrap();
        bytes == [0xee; 16]
    }

    #[test]
    fn contiguous_kernels_stay_in_the_region() {
        let (mapping, region) = middle();
        for (offset, length) in [(0, 9), (8, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(copy(Manner::Streaming, &region, offset, &region, 0, length), Err(OutsideRegion));
            assert_eq!(copy(Manner::Cached, &region, 0, &region, offset, length), Err(OutsideRegion));
            let mut bytes = vec![0; length.min(9) as usize];
            assert_eq!(load(&region, offset.min(8), &mut bytes), Err(OutsideRegion));
            assert_eq!(store(Manner::Streaming, &region, offset.min(8), &bytes), Err(OutsideRegion));
            assert_eq!(fill(Manner::Streaming, &region, offset, length, [1; 4]), Err(OutsideRegion));
            assert_eq!(fill(Manner::Streaming, &region, offset, length, [1, 2, 3, 4]), Err(OutsideRegion));
        }
        assert!(untouched(&mapping));
    }

    #[test]
    fn pixel_kernels_stay_in_the_region() {
        let (mapping, region) = middle();
        let inside = Run { region: &region, first: 0, step: 0 };
        for (first, step, count) in
            [(-1, 1, 1), (5, 1, 1), (0, 4, 3), (0, -1, 2), (i128::MAX, i64::MAX, u64::MAX), (0, 1, u64::MAX)]
        {
            let outside = Run { region: &region, first, step };
            let size = PixelSize::Bits32;
            assert_eq!(copy_pixels(size, outside, inside, count, None), Err(OutsideRegion));
            assert_eq!(copy_pixels(size, inside, outside, count, None), Err(OutsideRegion));
            assert_eq!(fill_pixels(size, outside, count, COLOR), Err(OutsideRegion));
        }
        assert!(untouched(&mapping));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn read_only_memory_is_not_written() {
        let (descriptor, _writable) = memferry_shm::frame::allocate(64, Default::default()).unwrap();
        let mapping =
            Mapping::shared(std::os::fd::AsFd::as_fd(&descriptor), 64, Access::ReadOnly, 4096).unwrap();
        let region = Region::new(mapping, 0, 64).unwrap();
        let run = Run { region: &region, first: 0, step: 1 };
        assert_eq!(copy(Manner::Cached, &region, 0, &region, 1, 1), Err(OutsideRegion));
        assert_eq!(fill(Manner::Cached, &region, 0, 4, [0; 4]), Err(OutsideRegion));
        assert_eq!(copy_pixels(PixelSize::Bits8, run, run, 1, None), Err(OutsideRegion));
        assert_eq!(fill_pixels(PixelSize::Bits8, run, 1, COLOR), Err(OutsideRegion));
    }
}
