//! Chooses how a copy uses the caches: through them, past them, or past them with the source evicted too.
//!
//! ```text
//! (hint, bytes, destination) ─┬─ keep ──────────────────────────────► Cached
//!                             ├─ stream ────────────────────────────► Flushing
//!                             └─ auto ─ short ──────────────────────► Cached
//!                                     ─ more than the caches hold ──► Streaming
//!                                     ─ destination used recently ──► Cached: reused memory should stay cached
//!                                     ─ uncached, by [`history`] or timed loads ─► Streaming
//!                                     ─ else ───────────────────────► Cached
//! ```
//!
//! Bypassing the caches avoids reading lines that are then overwritten, but is slower if those lines are cached. Other users of
//! the memory are unknown, so loads are timed, unless recent ones say enough. The choice affects speed only, never bytes.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_shm::mapping::Mapping;
use memferry_transfer::{CacheHint, Region};

use super::history::{Forecast, History};
use super::kernels::{self, OutsideRegion};
use super::manner::{Manner, Work};
use super::tuning::{MIN_HINTED_BYTES, Tuning};

/// Bytes from which zeroing uncached memory past the caches pays, if it need not be timed.
const MIN_ZERO_BYTES: u64 = 4 << 10;

/// The manner that follows from size and hint; `None` if loads must be timed.
#[inline]
pub(super) fn by_hint_and_size(work: Work, hint: CacheHint, bytes: u64, tuning: &Tuning) -> Option<Manner> {
    let least = match work {
        Work::Copy => tuning.stream_cold_bytes,
        Work::Zero => MIN_ZERO_BYTES,
        Work::Fill => u64::MAX,
    };
    match hint {
        CacheHint::Keep => Some(Manner::Cached),
        CacheHint::Stream if bytes >= MIN_HINTED_BYTES => Some(Manner::Flushing),
        CacheHint::Stream => Some(Manner::Cached),
        CacheHint::Auto if bytes < least => Some(Manner::Cached),
        CacheHint::Auto if work == Work::Copy && bytes >= tuning.stream_always_bytes => {
            Some(Manner::Streaming)
        }
        CacheHint::Auto => None,
    }
}

/// The manner of writing `bytes` to the start of `destination`.
pub(super) fn by_destination<M: Borrow<Mapping>>(
    work: Work,
    (source, destination): (Option<&Region<M>>, &Region<M>),
    bytes: u64,
    tuning: &Tuning,
) -> Result<Manner, OutsideRegion> {
    let start = destination.memory().borrow().pointer().addr() as u64 + destination.offset();
    let mut result = Ok(());
    let manner = by_reuse_or_distance(work, start, bytes, tuning, || {
        kernels::is_far(destination, bytes, tuning.far_ticks, source).unwrap_or_else(|outside| {
            result = Err(outside);
            false
        })
    });
    result.map(|()| manner)
}

/// The manner of writing `bytes` to address `start`. `is_far` times loads.
#[inline]
pub(super) fn by_reuse_or_distance(
    work: Work,
    start: u64,
    bytes: u64,
    tuning: &Tuning,
    is_far: impl FnOnce() -> bool,
) -> Manner {
    let is_long = bytes >= if work == Work::Zero { tuning.zero_cold_bytes } else { tuning.stream_cold_bytes };
    let forecast = History::with(|history| history.forecast(work, bytes, is_long));
    if forecast == Forecast::Near {
        return Manner::Cached;
    }
    let again = RECENT.note(start, bytes, tuning.stream_always_bytes);
    let far = !again && (forecast == Forecast::Far || is_far());
    if again || forecast == Forecast::Unknown {
        History::with(|history| history.record(work, bytes, far));
    }
    if far { Manner::Streaming } else { Manner::Cached }
}

/// Recent destinations of this process.
static RECENT: Recent = Recent::new();

/// Destinations remembered, hence buffers that can alternate.
const PLACES: usize = 64;

/// A small lossy table of destinations: address by hash, and the total bytes moved at that time. Workers that
/// overwrite each other's entries or counts only cause a worse choice.
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

    /// Records a copy of `bytes` to `start`. Returns whether the last copy there is at most `window` bytes ago.
    fn note(&self, start: u64, bytes: u64, window: u64) -> bool {
        let now = self.moved.load(Ordering::Relaxed);
        self.moved.store(now.wrapping_add(bytes), Ordering::Relaxed);
        let hash = start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let (place, when) = &self.places[hash as usize % PLACES];
        let again = place.load(Ordering::Relaxed) == start
            && now.wrapping_sub(when.load(Ordering::Relaxed)) <= window;
        place.store(start, Ordering::Relaxed);
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
    fn hints_decide_first_then_size() {
        use CacheHint::{Auto, Keep, Stream};
        for (hint, bytes, manner) in [
            (Keep, u64::MAX, Some(Manner::Cached)),
            (Stream, 1, Some(Manner::Cached)),
            (Stream, MIN_HINTED_BYTES, Some(Manner::Flushing)),
            (Auto, (64 << 10) - 1, Some(Manner::Cached)),
            (Auto, 64 << 10, None),
            (Auto, (16 << 20) - 1, None),
            (Auto, 16 << 20, Some(Manner::Streaming)),
        ] {
            assert_eq!(by_hint_and_size(Work::Copy, hint, bytes, &TUNING), manner, "{hint:?} {bytes}");
        }
    }

    #[test]
    fn fills_stream_on_a_hint_and_zeros_by_size() {
        let auto = |work, bytes| by_hint_and_size(work, CacheHint::Auto, bytes, &TUNING);
        assert_eq!(auto(Work::Fill, 1 << 40), Some(Manner::Cached));
        assert_eq!(auto(Work::Zero, MIN_ZERO_BYTES - 1), Some(Manner::Cached));
        assert_eq!(auto(Work::Zero, MIN_ZERO_BYTES), None);
        assert_eq!(auto(Work::Zero, 1 << 40), None, "zeroing within the caches is as fast at any size");
        let hinted = by_hint_and_size(Work::Fill, CacheHint::Stream, 1 << 20, &TUNING);
        assert_eq!(hinted, Some(Manner::Flushing));
    }

    #[test]
    fn old_destinations_are_forgotten() {
        let recent = Recent::new();
        assert!(!recent.note(0x1000, 10, 100));
        assert!(recent.note(0x1000, 10, 100));
        assert!(!recent.note(0x2000, 200, 100), "another place");
        assert!(!recent.note(0x1000, 10, 100), "too long ago");
        assert!(recent.note(0x1000, 10, 100));
    }

    #[test]
    fn a_reused_destination_stays_cached() {
        let mapping = Mapping::owned(vec![1; 1 << 17]);
        let region = Region::new(&mapping, 0, 1 << 17).unwrap();
        by_destination(Work::Copy, (None, &region), 1 << 17, &TUNING).unwrap();
        assert_eq!(by_destination(Work::Copy, (None, &region), 1 << 17, &TUNING), Ok(Manner::Cached));
    }
}
