//! What handing a program's copies over would have saved: an estimate, with what it assumes.
//!
//! ```text
//! thresholds: the machine's profile, else a guess ─┐
//! handing over: an embedded client, now ───────────┼─► Basis ─ long enough rows ─► their time - calls * handing over
//! the preloaded library's thresholds: a guess ─────┘         ─ far or very long rows ─► calls past the caches
//! ```
//!
//! It does not say how much of the saved time the program could have used, nor what a copy costs whoever does it
//! instead.

use memferry_recording::{Distance, Kind, Operation, Row, shortest_of};
use memferry_service::profile::{self, Tuning};
use serde::Serialize;

use crate::{CommandError, tune};

/// What the estimate rests on.
pub(super) struct Basis {
    thresholds: Tuning,
    is_measured: bool,
    /// What `libmemferry_preload.so` goes by: it reads no profile, and guesses from the last cache.
    preloaded: Tuning,
    hand_over_seconds: f64,
}

impl Basis {
    /// The thresholds this machine was measured for, else those guessed for it; handing over as it is now.
    pub(super) fn of_this_machine() -> Result<Self, CommandError> {
        let measured = profile::load()?;
        Ok(Self {
            thresholds: measured.unwrap_or_else(Tuning::of_this_machine),
            is_measured: measured.is_some(),
            preloaded: Tuning::of_this_machine(),
            hand_over_seconds: tune::hand_over_ns()? as f64 * 1e-9,
        })
    }

    /// The estimate for these rows.
    pub(super) fn estimate(&self, rows: &[Row], ticks_per_second: f64) -> Estimate {
        let least = self.thresholds.inline_bytes.max(1);
        let mut estimate = Estimate {
            least_bytes: least,
            thresholds_are_measured: self.is_measured,
            hand_over_seconds: self.hand_over_seconds,
            ..Estimate::default()
        };
        for row in rows {
            let seconds = row.ticks as f64 / ticks_per_second;
            let handing = row.calls as f64 * self.hand_over_seconds;
            if shortest_of(row.kind.size_class) >= least && row.ticks > 0 {
                estimate.calls = estimate.calls.saturating_add(row.calls);
                estimate.bytes = estimate.bytes.saturating_add(row.bytes);
                estimate.seconds += seconds;
                estimate.saved_seconds += (seconds - handing).max(0.0);
            }
            if self.goes_past_caches(row.kind) {
                estimate.past_caches_calls = estimate.past_caches_calls.saturating_add(row.calls);
                estimate.past_caches_bytes = estimate.past_caches_bytes.saturating_add(row.bytes);
            }
        }
        estimate
    }

    /// What `libmemferry_preload.so` would do, but for copies that overlap and places that were written to lately.
    fn goes_past_caches(&self, kind: Kind) -> bool {
        let least = shortest_of(kind.size_class);
        let far = is_cold(kind.distance);
        match kind.operation {
            Operation::Memset => false,
            Operation::Zero => far && least >= self.preloaded.zero_cold_bytes,
            _ => {
                least >= self.preloaded.stream_always_bytes
                    || far && least >= self.preloaded.stream_cold_bytes
            }
        }
    }
}

/// Whether what is written was in no cache: what the engine's choice goes by.
pub(super) fn is_cold(distance: Distance) -> bool {
    matches!(distance, Distance::DestinationFar | Distance::Far)
}

/// What would have been saved.
#[derive(Clone, Default, Serialize)]
pub(super) struct Estimate {
    /// Shorter copies are not worth handing over.
    pub(super) least_bytes: u64,
    /// Whether that is measured, or guessed.
    pub(super) thresholds_are_measured: bool,
    /// To hand one over and take its completion.
    pub(super) hand_over_seconds: f64,
    /// Calls that are long enough and were timed.
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Of that, less what handing them over takes.
    pub(super) saved_seconds: f64,
    /// Calls that would go past the caches.
    pub(super) past_caches_calls: u64,
    pub(super) past_caches_bytes: u64,
}

#[cfg(test)]
mod tests {
    use memferry_recording::{Alignment, size_class};

    use super::*;

    fn row(operation: Operation, bytes: u64, distance: Distance, calls: u64, ticks: u64) -> Row {
        let size_class = size_class(bytes);
        let alignment = Alignment::Lines;
        let caller = None;
        let kind = Kind { operation, size_class, alignment, distance, caller };
        Row { kind, calls, bytes: calls * bytes, ticks }
    }

    fn basis() -> Basis {
        let preloaded = Tuning::of_caches(32 << 20);
        // Whatever was measured, the library does not know it.
        let stream_cold_bytes = 8 << 20;
        let stream_always_bytes = 64 << 20;
        let zero_cold_bytes = 8 << 20;
        let thresholds = Tuning {
            inline_bytes: 8 << 10,
            stream_cold_bytes,
            stream_always_bytes,
            zero_cold_bytes,
            ..preloaded
        };
        Basis { thresholds, is_measured: true, preloaded, hand_over_seconds: 1e-6 }
    }

    #[test]
    fn long_copies_save_their_time_less_handing_over_and_short_ones_nothing() {
        let rows = [
            row(Operation::Memcpy, 4096, Distance::Unknown, 1000, 5000),
            row(Operation::Memcpy, 65536, Distance::Near, 100, 2_000_000),
            row(Operation::Memset, 16384, Distance::Near, 10, 1000),
        ];
        let estimate = basis().estimate(&rows, 1e9);
        assert_eq!((estimate.calls, estimate.bytes), (110, 100 * 65536 + 10 * 16384));
        assert!((estimate.seconds - 2.001e-3).abs() < 1e-9);
        // 2 ms less 100 us; the fills take less than handing them over and save nothing.
        assert!((estimate.saved_seconds - 1.9e-3).abs() < 1e-9, "{}", estimate.saved_seconds);
    }

    #[test]
    fn cold_and_very_long_ones_would_go_past_the_caches() {
        let rows = [
            row(Operation::Memcpy, 65536, Distance::DestinationFar, 1, 9),
            row(Operation::Memcpy, 65536, Distance::SourceFar, 2, 9),
            row(Operation::Memmove, 16 << 20, Distance::Near, 4, 9),
            row(Operation::Zero, 65536, Distance::Far, 8, 9),
            row(Operation::Zero, 131_072, Distance::Far, 16, 9),
            row(Operation::Memset, 16 << 20, Distance::Far, 32, 9),
        ];
        assert_eq!(basis().estimate(&rows, 1e9).past_caches_calls, 1 + 4 + 16);
    }

    #[test]
    fn absurd_numbers_of_a_hostile_program_give_an_estimate_still() {
        let rows = [u64::MAX; 3].map(|most| Row {
            calls: most,
            bytes: most,
            ticks: most,
            ..row(Operation::Memcpy, 1 << 40, Distance::Far, 1, 1)
        });
        let estimate = basis().estimate(&rows, 1e9);
        assert_eq!((estimate.calls, estimate.past_caches_bytes), (u64::MAX, u64::MAX));
        assert!(estimate.saved_seconds.is_finite());
    }
}
