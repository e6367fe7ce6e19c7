//! Remembers whether memory was recently uncached, so that a pattern that repeats need not be timed.
//!
//! ```text
//! forecast ─┬─ the last ones were far ─► Far; every few times it is timed again
//!           ├─ long, or a sample ──────► Unknown: time loads, then record
//!           └─ short ──────────────────► Near
//! ```
//!
//! Timing a load of uncached memory takes as long as the load. That is a tenth of a copy of 64 KiB, and more than bypassing the
//! caches saves for a short one. Each thread remembers on its own, by kind of work and size. A wrong forecast costs time only.

use std::cell::Cell;

use super::manner::Work;

/// Far findings in a row after which the next are expected to be far.
const CONFIDENT: u8 = 4;
/// Forecasts of far memory between two timings.
const TRUSTED: u8 = 8;
/// Short ranges between two samples.
const SAMPLED: u8 = 32;
/// Ranges of 2^N bytes and more share an entry, up to this N.
const SIZES: usize = 40;

/// Where memory is expected to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forecast {
    Near,
    Far,
    /// Time loads and [record](History::record) the finding.
    Unknown,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Far findings in a row, at most [`CONFIDENT`].
    far: u8,
    /// Forecasts since the last finding.
    since: u8,
}

/// What one thread has found.
pub(super) struct History([[Cell<Entry>; SIZES]; 2]);

thread_local! {
    static OWN: History = const { History::new() };
}

impl History {
    const fn new() -> Self {
        Self([const { [const { Cell::new(Entry { far: 0, since: 0 }) }; SIZES] }; 2])
    }

    /// Calls `access` with this thread's history.
    pub(super) fn with<T>(access: impl FnOnce(&Self) -> T) -> T {
        OWN.with(access)
    }

    fn entry(&self, work: Work, bytes: u64) -> &Cell<Entry> {
        let size = (bytes.max(1).ilog2() as usize).min(SIZES - 1);
        &self.0[usize::from(work == Work::Zero)][size]
    }

    /// Where the memory of the next range is expected to be. For `long` ones, timing pays even if it finds them near.
    #[inline]
    pub(super) fn forecast(&self, work: Work, bytes: u64, long: bool) -> Forecast {
        let cell = self.entry(work, bytes);
        let entry = cell.get();
        cell.set(Entry { since: entry.since.wrapping_add(1), ..entry });
        match entry.far {
            CONFIDENT if entry.since < TRUSTED => Forecast::Far,
            0 if !long && !entry.since.is_multiple_of(SAMPLED) => Forecast::Near,
            _ => Forecast::Unknown,
        }
    }

    /// Records what timing found.
    pub(super) fn record(&self, work: Work, bytes: u64, is_far: bool) {
        let cell = self.entry(work, bytes);
        let far = if is_far { (cell.get().far + 1).min(CONFIDENT) } else { 0 };
        // Not zero for near memory: the next sample is not due at once.
        cell.set(Entry { far, since: u8::from(!is_far) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 10;

    #[test]
    fn far_memory_is_expected_after_some_findings() {
        let history = History::new();
        for _ in 0..CONFIDENT {
            assert_eq!(history.forecast(Work::Copy, BYTES, true), Forecast::Unknown);
            history.record(Work::Copy, BYTES, true);
        }
        for _ in 0..TRUSTED {
            assert_eq!(history.forecast(Work::Copy, BYTES, true), Forecast::Far);
        }
        assert_eq!(history.forecast(Work::Copy, BYTES, true), Forecast::Unknown, "timed again");
        assert_eq!(history.forecast(Work::Zero, BYTES, true), Forecast::Unknown, "another kind");
        assert_eq!(history.forecast(Work::Copy, 2 * BYTES, true), Forecast::Unknown, "another size");
        history.record(Work::Copy, BYTES, false);
        assert_eq!(history.forecast(Work::Copy, BYTES, true), Forecast::Unknown, "forgotten");
    }

    #[test]
    fn short_ranges_are_sampled() {
        let history = History::new();
        let timed = |history: &History| {
            let next = || history.forecast(Work::Zero, 4096, false);
            (0..1024).map(|_| next()).filter(|forecast| *forecast == Forecast::Unknown).count()
        };
        assert_eq!(timed(&history), 1024 / usize::from(SAMPLED));
        history.record(Work::Zero, 4096, true);
        assert_eq!(
            history.forecast(Work::Zero, 4096, false),
            Forecast::Unknown,
            "a far one may have followers"
        );
        history.record(Work::Zero, 4096, false);
        assert_eq!(history.forecast(Work::Zero, 4096, false), Forecast::Near);
    }
}
