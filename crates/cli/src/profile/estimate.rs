//! Estimates what handing a program's copies over would have saved.
//!
//! ```text
//! thresholds: the machine's profile, else a guess ─┐
//! cost of handing over: measured now ──────────────┼─► Basis ─ rows long enough ─► their time - calls * handing over
//! the preloaded library's thresholds: a guess ─────┘         ─ far or very long rows ─► calls that bypass the caches
//! ```
//!
//! It does not estimate how much of the saved time the program could use, nor the cost of the copy for the worker that makes it.

use memferry_recording::{Distance, Kind, Operation, Row, shortest_of};
use memferry_service::profile::{self, Tuning};
use serde::Serialize;

use crate::{CommandError, tune};

/// The numbers that the estimate is based on.
pub(super) struct Basis {
    thresholds: Tuning,
    is_measured: bool,
    /// The thresholds of `libmemferry_preload.so`, which reads no profile and guesses from the last-level cache.
    preloaded: Tuning,
    hand_over_seconds: f64,
}

impl Basis {
    /// The measured thresholds of this machine, else guessed ones; and the cost of handing over, measured now.
    pub(super) fn of_this_machine() -> Result<Self, CommandError> {
        let measured = profile::load()?;
        Ok(Self {
            thresholds: measured.unwrap_or_else(Tuning::of_this_machine),
            is_measured: measured.is_some(),
            preloaded: Tuning::of_this_machine(),
            hand_over_seconds: tune::hand_over_ns()? as f64 * 1e-9,
        })
    }

    /// Estimates the savings for these rows.
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

    /// Whether `libmemferry_preload.so` would bypass the caches. Overlaps and recently written destinations are not considered.
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

/// Whether the destination was in no cache, which the engine's choice depends on.
pub(super) fn is_cold(distance: Distance) -> bool {
    matches!(distance, Distance::DestinationFar | Distance::Far)
}

#[derive(Clone, Default, Serialize)]
pub(super) struct Estimate {
    /// Shorter copies are not worth handing over.
    pub(super) least_bytes: u64,
    /// Whether the thresholds are measured rather than guessed.
    pub(super) thresholds_are_measured: bool,
    /// Cost of handing one copy over and taking its completion.
    pub(super) hand_over_seconds: f64,
    /// Calls that are long enough and were timed.
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Their time less the cost of handing them over.
    pub(super) saved_seconds: f64,
    /// Calls that would bypass the caches.
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
        // Measured thresholds, which the preloaded library does not use.
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
    fn only_long_copies_save_time() {
        let rows = [
            row(Operation::Memcpy, 4096, Distance::Unknown, 1000, 5000),
            row(Operation::Memcpy, 65536, Distance::Near, 100, 2_000_000),
            row(Operation::Memset, 16384, Distance::Near, 10, 1000),
        ];
        let estimate = basis().estimate(&rows, 1e9);
        assert_eq!((estimate.calls, estimate.bytes), (110, 100 * 65536 + 10 * 16384));
        assert!((estimate.seconds - 2.001e-3).abs() < 1e-9);
        // 2 ms less 100 us. The fills take less time than handing them over and save nothing.
        assert!((estimate.saved_seconds - 1.9e-3).abs() < 1e-9, "{}", estimate.saved_seconds);
    }

    #[test]
    fn cold_and_very_long_copies_bypass_the_caches() {
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
    fn hostile_numbers_give_a_finite_estimate() {
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
