//! Several measurements of the same machine: their medians, and how many of them agree.
//!
//! ```text
//! measurements ─► for each threshold: median, measurements within a factor of two of it ─► enough? ─► Tuning
//! ```
//!
//! Sizes are measured in doublings, so neighbours agree. Nothing here measures.

use memferry_service::profile::Tuning;
use serde::Serialize;

use crate::measure::median;

pub(super) const FEWEST: usize = 3;
/// Most measurements. As many are made where they do not agree.
pub(super) const MOST: usize = 7;

/// A threshold over all measurements.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Threshold {
    pub(super) name: &'static str,
    pub(super) median: u64,
    /// Measurements within a factor of two of the median.
    pub(super) agreeing: usize,
    /// All of them, in order of size.
    pub(super) measured: Vec<u64>,
}

impl Threshold {
    /// The threshold with these measured values.
    pub(super) fn over(name: &'static str, mut measured: Vec<u64>) -> Self {
        let median = median(&mut measured);
        let agrees = |value: &&u64| value.saturating_mul(2) >= median && **value <= median.saturating_mul(2);
        let agreeing = measured.iter().filter(agrees).count();
        Self { name, median, agreeing, measured }
    }

    /// Whether at least three of five measurements agree, and never fewer than three.
    pub(super) fn is_certain(&self) -> bool {
        self.agreeing >= FEWEST && self.agreeing * 5 >= self.measured.len() * 3
    }
}

/// All thresholds over some measurements.
pub(super) fn thresholds(measurements: &[Tuning]) -> [Threshold; 8] {
    let of =
        |name, value: fn(&Tuning) -> u64| Threshold::over(name, measurements.iter().map(value).collect());
    [
        of("stream_cold_bytes", |tuning| tuning.stream_cold_bytes),
        of("stream_always_bytes", |tuning| tuning.stream_always_bytes),
        of("zero_cold_bytes", |tuning| tuning.zero_cold_bytes),
        of("share_awake_bytes", |tuning| tuning.share_awake_bytes),
        of("share_asleep_cold_bytes", |tuning| tuning.share_asleep_cold_bytes),
        of("share_asleep_hot_bytes", |tuning| tuning.share_asleep_hot_bytes),
        of("inline_bytes", |tuning| tuning.inline_bytes),
        of("far_ticks", |tuning| tuning.far_ticks),
    ]
}

/// The medians of some measurements.
pub(super) fn medians(measurements: &[Tuning]) -> Tuning {
    let of = |value: fn(&Tuning) -> u64| median(&mut measurements.iter().map(value).collect::<Vec<_>>());
    Tuning {
        stream_cold_bytes: of(|tuning| tuning.stream_cold_bytes),
        stream_always_bytes: of(|tuning| tuning.stream_always_bytes),
        zero_cold_bytes: of(|tuning| tuning.zero_cold_bytes),
        share_awake_bytes: of(|tuning| tuning.share_awake_bytes),
        share_asleep_cold_bytes: of(|tuning| tuning.share_asleep_cold_bytes),
        share_asleep_hot_bytes: of(|tuning| tuning.share_asleep_hot_bytes),
        inline_bytes: of(|tuning| tuning.inline_bytes),
        far_ticks: of(|tuning| tuning.far_ticks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_awake(values: &[u64]) -> Vec<Tuning> {
        let sound = Tuning::of_caches(32 << 20);
        values.iter().map(|value| Tuning { share_awake_bytes: *value, ..sound }).collect()
    }

    fn awake(values: &[u64]) -> Threshold {
        thresholds(&with_awake(values)).into_iter().find(|one| one.name == "share_awake_bytes").unwrap()
    }

    #[test]
    fn measurements_of_a_noisy_machine_disagree() {
        let noisy = awake(&[32 << 10, 8 << 20, 128 << 10]);
        assert_eq!((noisy.median, noisy.agreeing, noisy.is_certain()), (128 << 10, 1, false));
        assert!(!awake(&[4096, 4096]).is_certain(), "two are too few");
        assert!(!awake(&[4096, 4096, 32 << 10]).is_certain());
    }

    #[test]
    fn neighbouring_sizes_agree() {
        let quiet = awake(&[64 << 10, 32 << 10, 128 << 10]);
        assert_eq!((quiet.median, quiet.agreeing, quiet.is_certain()), (64 << 10, 3, true));
        assert!(awake(&[4096, 4096, 32 << 10, 8192, 1 << 20]).is_certain());
        assert!(!awake(&[4096, 4096, 32 << 10, 8192, 1 << 20, 1 << 21, 1 << 22]).is_certain());
        assert!(awake(&[1 << 40; 3]).is_certain(), "no size pays");
    }

    #[test]
    fn medians_are_taken_for_each_threshold() {
        let measurements = with_awake(&[32 << 10, 8 << 20, 128 << 10]);
        assert_eq!(medians(&measurements), measurements[2]);
    }

    #[test]
    fn thresholds_and_medians_go_by_name() {
        let tuning = Tuning {
            stream_cold_bytes: 1,
            stream_always_bytes: 2,
            zero_cold_bytes: 3,
            share_awake_bytes: 4,
            share_asleep_cold_bytes: 5,
            share_asleep_hot_bytes: 6,
            inline_bytes: 7,
            far_ticks: 8,
        };
        assert_eq!(medians(&[tuning; 3]), tuning);
        let named = serde_json::to_value(tuning).unwrap();
        let thresholds = thresholds(&[tuning; 3]);
        assert_eq!(thresholds.len(), named.as_object().unwrap().len());
        for threshold in thresholds {
            assert_eq!(named[threshold.name], threshold.median, "{}", threshold.name);
        }
    }
}
