//! The kernels on private memory, for programs that want only the copies.
//!
//! ```text
//! (&mut [u8], &[u8], hint) ──► the manner the engine would choose ──► the engine's loops
//! (pointers, length)       ──► the same if that bypasses the caches; otherwise the caller copies
//! ```
//!
//! Uses no engine, thread or capability. Slices are never shared with other processes, so references are sound.

#![expect(unsafe_code, reason = "replacements of `memcpy` pass raw pointers")]

use std::sync::OnceLock;

use memferry_transfer::CacheHint;
use thiserror::Error;

use super::choice;
use super::kernels::{self, Distance};
use super::manner::{Manner, Work};
use super::tuning;

/// The slices of a copy have different lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the source has {source_bytes} bytes and the destination {destination_bytes}; make them equal")]
pub struct LengthsDiffer {
    /// Bytes of the source.
    pub source_bytes: usize,
    /// Bytes of the destination.
    pub destination_bytes: usize,
}

/// Copies `source` to `destination`.
///
/// ```
/// use memferry_cpu::slices;
/// use memferry_transfer::CacheHint;
///
/// let (source, mut destination) = ([7; 100], [0; 100]);
/// slices::copy(&mut destination, &source, CacheHint::Auto)?;
/// assert_eq!(destination, source);
/// assert!(slices::copy(&mut destination[1..], &source, CacheHint::Auto).is_err());
/// # Ok::<(), slices::LengthsDiffer>(())
/// ```
///
/// # Errors
/// [`LengthsDiffer`]; nothing was copied.
#[inline]
pub fn copy(destination: &mut [u8], source: &[u8], hint: CacheHint) -> Result<(), LengthsDiffer> {
    if source.len() != destination.len() {
        return Err(LengthsDiffer { source_bytes: source.len(), destination_bytes: destination.len() });
    }
    if is_plain(source.len(), hint) {
        destination.copy_from_slice(source);
    } else {
        copy_long(destination, source, hint);
    }
    Ok(())
}

/// Whether the length is below all thresholds: one comparison for the most common lengths. Without a hint, deciding takes a tenth of
/// the time in which the C library writes 8 KiB of cached memory.
#[inline]
fn is_plain(length: usize, hint: CacheHint) -> bool {
    let least = if hint == CacheHint::Stream { tuning::MIN_HINTED_BYTES } else { 2 * tuning::MIN_BYTES };
    length < least as usize
}

#[inline(never)]
fn copy_long(destination: &mut [u8], source: &[u8], hint: CacheHint) {
    let manner = manner(Work::Copy, destination, source.as_ptr(), hint);
    // SAFETY: M1, M2, M3: a shared and a unique reference, equally long.
    unsafe { kernels::move_bytes(manner, source.as_ptr(), destination.as_mut_ptr(), source.len()) };
}

/// Sets all bytes to `byte`.
#[inline]
pub fn fill(destination: &mut [u8], byte: u8, hint: CacheHint) {
    if is_plain(destination.len(), hint) {
        destination.fill(byte);
    } else {
        fill_long(destination, byte, hint);
    }
}

#[inline(never)]
fn fill_long(destination: &mut [u8], byte: u8, hint: CacheHint) {
    let work = if byte == 0 { Work::Zero } else { Work::Fill };
    let manner = manner(work, destination, std::ptr::null(), hint);
    // SAFETY: M1, M2, M3: a unique reference.
    unsafe { kernels::fill_bytes(manner, destination.as_mut_ptr(), destination.len(), [byte; 4]) };
}

/// Copies if the engine would bypass the caches; otherwise copies nothing and returns `false`. For replacements of
/// `memcpy` that leave other copies to the C library.
///
/// # Safety
/// `length` bytes at `source` may be read and at `destination` written, and they are apart.
#[inline(never)]
pub unsafe fn copy_past_caches(destination: *mut u8, source: *const u8, length: usize) -> bool {
    // SAFETY: M1, M2: the caller's promise.
    let manner = unsafe { manner_at(Work::Copy, destination, source, length, CacheHint::Auto) };
    if manner != Manner::Streaming {
        return false;
    }
    // SAFETY: M1, M2, M3: the caller's promise.
    unsafe { kernels::move_bytes(manner, source, destination, length) };
    true
}

/// Zeroes if the engine would bypass the caches; otherwise writes nothing and returns `false`.
///
/// # Safety
/// `length` bytes at `destination` may be read and written.
#[inline(never)]
pub unsafe fn zero_past_caches(destination: *mut u8, length: usize) -> bool {
    // SAFETY: M1, M2: the caller's promise.
    let manner = unsafe { manner_at(Work::Zero, destination, std::ptr::null(), length, CacheHint::Auto) };
    if manner != Manner::Streaming {
        return false;
    }
    // SAFETY: M1, M2, M3: the caller's promise.
    unsafe { kernels::fill_bytes(manner, destination, length, [0; 4]) };
    true
}

/// Whether memory appears to be uncached, by the time of a load; `false` if it is too short to time. For
/// tools that count copies.
///
/// # Safety
/// `length` bytes at `start` may be read.
#[inline(never)]
pub unsafe fn is_far(start: *const u8, length: usize) -> bool {
    // SAFETY: M1, M2: the caller's promise; a null pointer is only prefetched.
    unsafe { kernels::is_far_at(start, length, tuning::current().far_ticks, std::ptr::null()) }
}

fn manner(work: Work, destination: &[u8], source: *const u8, hint: CacheHint) -> Manner {
    // SAFETY: M1, M2: a reference to as many bytes.
    unsafe { manner_at(work, destination.as_ptr(), source, destination.len(), hint) }
}

/// The manner the engine would use for `length` bytes to `destination`, with one exception.
///
/// Unpopulated memory is written through the caches: the kernel zeroes its pages there first, and bypassing stores would
/// have to evict those lines.
///
/// # Safety
/// M1 and M2 for `length` bytes at `destination`.
unsafe fn manner_at(
    work: Work,
    destination: *const u8,
    source: *const u8,
    length: usize,
    hint: CacheHint,
) -> Manner {
    let tuning = tuning::current();
    let ticks = (tuning.far_ticks, untouched_ticks());
    // SAFETY: M1, M2: the caller's promise.
    let distance = || unsafe { kernels::distance(destination, length, ticks, source) };
    match choice::by_hint_and_size(work, hint, length as u64, tuning) {
        Some(Manner::Streaming) if distance() == Distance::Untouched => Manner::Cached,
        Some(manner) => manner,
        None => choice::by_reuse_or_distance(work, destination.addr() as u64, length as u64, tuning, || {
            distance() == Distance::Far
        }),
    }
}

/// Ticks from which a load may have caused a page fault; `u64::MAX` if that cannot be measured. Measured once,
/// with a mapping of some pages: call it early if later system calls are forbidden.
pub fn untouched_ticks() -> u64 {
    static TICKS: OnceLock<u64> = OnceLock::new();
    if let Some(ticks) = TICKS.get() {
        return *ticks;
    }
    let measured = || if tuning::current().far_ticks == 0 { None } else { kernels::untouched_ticks() };
    // Other page faults may be slightly quicker.
    let ticks = measured().map_or(u64::MAX, |ticks| ticks - ticks / 8);
    *TICKS.get_or_init(|| ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_do_not_change_results() {
        let source: Vec<u8> = (0..300_000u32).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut space = vec![0; source.len() + 1];
        let lengths =
            if cfg!(miri) { vec![0, 1, 2047, 2048] } else { vec![0, 1, 2047, 2048, 65_535, 65_536, 300_000] };
        for length in lengths {
            for hint in [CacheHint::Auto, CacheHint::Keep, CacheHint::Stream] {
                space.fill(0xee);
                copy(&mut space[..length], &source[..length], hint).unwrap();
                assert!(space[..length] == source[..length] && space[length] == 0xee, "{length} {hint:?}");
                for byte in [0, 0xa7] {
                    fill(&mut space[..length], byte, hint);
                    assert!(space[..length].iter().all(|filled| *filled == byte) && space[length] == 0xee);
                }
            }
        }
    }

    #[test]
    fn short_memory_is_never_far() {
        let bytes = vec![1; 1 << 17];
        // SAFETY: M1: as many bytes as there are, or fewer.
        let found = [0, 100, bytes.len()].map(|length| unsafe { is_far(bytes.as_ptr(), length) });
        assert_eq!(found[..2], [false, false]);
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn untouched_memory_is_detected() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        const BYTES: usize = 512 << 10;
        let ticks = (tuning::current().far_ticks, untouched_ticks());
        // An interrupt may delay any attempt, so one of several must succeed.
        let attempts = (0..20).map(|_| {
            // SAFETY: memory of this test's own, unmapped when nothing refers to it.
            unsafe {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                let start = mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::PRIVATE).unwrap();
                let place = start.cast::<u8>();
                let distance = || kernels::distance(place, BYTES, ticks, std::ptr::null());
                let untouched = distance();
                place.write_bytes(1, BYTES);
                let touched = distance();
                munmap(start, BYTES).unwrap();
                (untouched, touched)
            }
        });
        let attempts: Vec<_> = attempts.collect();
        assert!(attempts.iter().any(|(untouched, _)| *untouched == Distance::Untouched), "{attempts:?}");
        assert!(attempts.iter().any(|(_, touched)| *touched == Distance::Near), "{attempts:?}");
    }
}
