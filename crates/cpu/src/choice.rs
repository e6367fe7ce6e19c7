//! How a copy goes: through the caches, past them, or past them leaving nothing of the source behind.
//!
//! ```text
//! (hint, bytes, destination) ─┬─ keep ──────────────────────────────► Cached
//!                             ├─ stream ────────────────────────────► Flushing
//!                             └─ auto ─ short ──────────────────────► Cached
//!                                     ─ more than the caches hold ──► Streaming
//!                                     ─ moved to not long ago ──────► Cached: what comes back again is to stay
//!                                     ─ in a cache, by timing loads ► Cached
//!                                     ─ else ───────────────────────► Streaming
//! ```
//!
//! Going past the caches saves reading what will be overwritten, but is slower than a cache where the bytes are in one. Who
//! else touched them nobody tells, so the memory is asked. The choice shows in time only, never in bytes.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_shm::mapping::Mapping;
use memferry_transfer::{CacheHint, Region};

use super::kernels::{self, OutsideRegion};
use super::tuning::{LEAST_HINTED_BYTES, Tuning};

/// How bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// As the C library does.
    Cached,
    Streaming,
    /// Past the caches, and the source's lines are put out of them.
    Flushing,
}

/// What is to be done with the bytes, as far as the choice depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Copy,
    Zero,
    /// They are overwritten with something else: writing takes as long either way.
    Fill,
}

/// The manner that needs no look at memory; `None` when that must decide.
#[inline]
pub(super) fn without_looking(work: Work, hint: CacheHint, bytes: u64, tuning: &Tuning) -> Option<Manner> {
    let least = match work {
        Work::Copy => tuning.stream_cold_bytes,
        Work::Zero => tuning.zero_cold_bytes,
        Work::Fill => u64::MAX,
    };
    match hint {
        CacheHint::Keep => Some(Manner::Cached),
        CacheHint::Stream if bytes >= LEAST_HINTED_BYTES => Some(Manner::Flushing),
        CacheHint::Stream => Some(Manner::Cached),
        CacheHint::Auto if bytes < least => Some(Manner::Cached),
        CacheHint::Auto if work == Work::Copy && bytes >= tuning.stream_always_bytes => {
            Some(Manner::Streaming)
        }
        CacheHint::Auto => None,
    }
}

/// The manner of a copy of `bytes` to the beginning of `destination`.
pub(super) fn by_looking<M: Borrow<Mapping>>(
    (source, destination): (Option<&Region<M>>, &Region<M>),
    bytes: u64,
    tuning: &Tuning,
) -> Result<Manner, OutsideRegion> {
    let start = destination.memory().borrow().pointer().addr() as u64 + destination.offset();
    let mut result = Ok(());
    let manner = by_looking_at(start, bytes, tuning, || {
        kernels::is_far(destination, bytes, tuning.far_ticks, source).unwrap_or_else(|outside| {
            result = Err(outside);
            false
        })
    });
    result.map(|()| manner)
}

/// The manner of a copy of `bytes` to address `start`, of which `is_far` tells whether it is in no cache.
pub(super) fn by_looking_at(
    start: u64,
    bytes: u64,
    tuning: &Tuning,
    is_far: impl FnOnce() -> bool,
) -> Manner {
    let again = RECENT.note(start, bytes, tuning.stream_always_bytes);
    if !again && is_far() { Manner::Streaming } else { Manner::Cached }
}

/// Where copies went lately, in this process.
static RECENT: Recent = Recent::new();

/// Places remembered; as many buffers can be used in turn.
const PLACES: usize = 64;

/// A small, forgetful memory of destinations: addresses by their hash, and how many bytes had been moved by then. Workers
/// that overwrite each other's notes make each other choose worse for once.
struct Recent {
    moved: AtomicU64,
    places: [(AtomicU64, AtomicU64); PLACES],
}

impl Recent {
    const fn new() -> Self {
        Self {
            moved: AtomicU64::new(0),
            places: [const { (AtomicU64::new(u64::MAX), AtomicU64::new(0)) }; PLACES],
        }
    }

    /// Notes a copy of `bytes` to `start`; whether one went there before the last `window` bytes.
    fn note(&self, start: u64, bytes: u64, window: u64) -> bool {
        let now = self.moved.fetch_add(bytes, Ordering::Relaxed);
        let hash = start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let (place, when) = &self.places[hash as usize % PLACES];
        let again = place.swap(start, Ordering::Relaxed) == start
            && now.wrapping_sub(when.load(Ordering::Relaxed)) <= window;
        when.store(now, Ordering::Relaxed);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNING: Tuning = Tuning {
        stream_cold_bytes: 64 << 10,
        stream_always_bytes: 16 << 20,
        zero_cold_bytes: 128 << 10,
        share_awake_bytes: 32 << 10,
        share_asleep_cold_bytes: 1 << 20,
        share_asleep_hot_bytes: 4 << 20,
        inline_bytes: 0,
        far_ticks: 400,
    };

    #[test]
    fn hints_are_obeyed_and_size_decides_where_it_can() {
        use CacheHint::{Auto, Keep, Stream};
        for (hint, bytes, manner) in [
            (Keep, u64::MAX, Some(Manner::Cached)),
            (Stream, 1, Some(Manner::Cached)),
            (Stream, LEAST_HINTED_BYTES, Some(Manner::Flushing)),
            (Auto, (64 << 10) - 1, Some(Manner::Cached)),
            (Auto, 64 << 10, None),
            (Auto, (16 << 20) - 1, None),
            (Auto, 16 << 20, Some(Manner::Streaming)),
        ] {
            assert_eq!(without_looking(Work::Copy, hint, bytes, &TUNING), manner, "{hint:?} {bytes}");
        }
    }

    #[test]
    fn fills_go_past_the_caches_when_told_to_and_zeros_by_their_own_threshold() {
        let auto = |work, bytes| without_looking(work, CacheHint::Auto, bytes, &TUNING);
        assert_eq!(auto(Work::Fill, 1 << 40), Some(Manner::Cached));
        assert_eq!(auto(Work::Zero, (128 << 10) - 1), Some(Manner::Cached));
        assert_eq!(auto(Work::Zero, 128 << 10), None);
        assert_eq!(auto(Work::Zero, 1 << 40), None, "zeroing within the caches is as fast at any size");
        let told = without_looking(Work::Fill, CacheHint::Stream, 1 << 20, &TUNING);
        assert_eq!(told, Some(Manner::Flushing));
    }

    #[test]
    fn a_destination_is_remembered_until_much_else_was_moved() {
        let recent = Recent::new();
        assert!(!recent.note(0x1000, 10, 100));
        assert!(recent.note(0x1000, 10, 100));
        assert!(!recent.note(0x2000, 200, 100), "another place");
        assert!(!recent.note(0x1000, 10, 100), "too long ago");
        assert!(recent.note(0x1000, 10, 100));
    }

    #[test]
    fn a_destination_moved_to_again_stays_in_the_caches() {
        let mapping = Mapping::owned(vec![1; 1 << 17]);
        let region = Region::new(&mapping, 0, 1 << 17).unwrap();
        by_looking((None, &region), 1 << 17, &TUNING).unwrap();
        assert_eq!(by_looking((None, &region), 1 << 17, &TUNING), Ok(Manner::Cached));
    }
}
