//! The kernels over memory of this process alone: what a program links when it only wants the copies.
//!
//! ```text
//! (&mut [u8], &[u8], hint) ──► the manner the engine would choose ──► the engine's loops
//! ```
//!
//! No engine, thread or capability takes part. Slices are never shared with other processes, so they are plain references.

use memferry_transfer::CacheHint;
use thiserror::Error;

use super::super::choice::{self, Manner, Work};
use super::super::tuning;

/// A copy between slices of different lengths.
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
/// use memferry_engines::cpu::slices;
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

/// Whether nothing has to be chosen: the commonest lengths are told apart by one comparison.
#[inline]
fn is_plain(length: usize, hint: CacheHint) -> bool {
    let least = if hint == CacheHint::Stream { tuning::LEAST_HINTED_BYTES } else { tuning::LEAST_BYTES };
    length < least as usize
}

#[inline(never)]
fn copy_long(destination: &mut [u8], source: &[u8], hint: CacheHint) {
    let manner = manner(Work::Copy, destination, source.as_ptr(), hint);
    // SAFETY: M1, M2, M3: a shared and a unique reference, equally long.
    unsafe { super::move_bytes(manner, source.as_ptr(), destination.as_mut_ptr(), source.len()) };
}

/// Makes all bytes `byte`.
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
    unsafe { super::fill_bytes(manner, destination.as_mut_ptr(), destination.len(), [byte; 4]) };
}

fn manner(work: Work, destination: &[u8], source: *const u8, hint: CacheHint) -> Manner {
    let tuning = tuning::current();
    choice::without_looking(work, hint, destination.len() as u64, tuning).unwrap_or_else(|| {
        choice::by_looking_at(destination.as_ptr().addr() as u64, destination.len() as u64, tuning, || {
            // SAFETY: M1, M2: the addresses looked at lie in the slice.
            unsafe { super::looks_far(destination.as_ptr(), destination.len(), tuning.far_ticks, source) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_fills_of_every_length_around_the_thresholds_are_right() {
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
}
