//! Thresholds of the kernels: measured by `memferry tune`, or estimated from the cache sizes.
//!
//! ```text
//! profile ─ install ─┐
//! sysfs: caches ─────┴─► current(): once per process ──► choice
//! ```
//!
//! The C library's cache sizes are not used: under some hypervisors they are off by a factor of ten.
//! This module times only a few loads. The caller reads and writes profiles.

use std::fs;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::kernels;

/// Thresholds of the kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Bytes from which a copy to an uncached destination bypasses the caches.
    pub stream_cold_bytes: u64,
    /// Bytes from which every copy bypasses the caches.
    pub stream_always_bytes: u64,
    /// Bytes from which zeroing uncached memory bypasses the caches.
    pub zero_cold_bytes: u64,
    /// Bytes from which a copy is shared with a thread that already looks for work.
    pub share_awake_bytes: u64,
    /// Bytes from which a thread is woken to share a copy that bypasses the caches.
    pub share_asleep_cold_bytes: u64,
    /// Bytes from which a thread is woken to share a cached copy.
    pub share_asleep_hot_bytes: u64,
    /// Bytes up to which an embedded client's requests run on the submitting thread; zero for none.
    pub inline_bytes: u64,
    /// Ticks from which two simultaneous loads must have gone to memory; zero if loads cannot be timed.
    pub far_ticks: u64,
}

/// Invalid or late thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TuningError {
    /// Too short for any copy to gain by bypassing the caches.
    #[error("{name} = {value} is below {least}: a shorter transfer never gains; raise it")]
    TooShort { name: &'static str, value: u64, least: u64 },
    /// A request of this size would hold up the thread that submits it.
    #[error("{name} = {value} is above {most}; lower it")]
    TooLong { name: &'static str, value: u64, most: u64 },
    /// Streaming would always apply below the size where it applies to cold memory.
    #[error("stream_always_bytes = {always} is below stream_cold_bytes = {cold}; raise it")]
    OutOfOrder { always: u64, cold: u64 },
    /// The process already uses other thresholds.
    #[error("this process already uses other thresholds; install them before the first copy")]
    InUse,
}

/// Minimum of the thresholds: timing loads takes as long as copying this much.
pub const MIN_BYTES: u64 = kernels::MIN_TIMED_BYTES;
/// Minimum for bypassing the caches on a hint: a fence takes as long as copying this much.
pub const MIN_HINTED_BYTES: u64 = 2 << 10;

/// Maximum of `inline_bytes`.
pub const MAX_INLINE_BYTES: u64 = 64 << 10;
/// Longer than any load takes.
const MAX_FAR_TICKS: u64 = 1 << 20;

static CURRENT: OnceLock<Tuning> = OnceLock::new();

impl Tuning {
    /// Estimates for this machine, from its largest cache.
    pub fn of_this_machine() -> Self {
        Self::of_caches(caches().into_iter().max().unwrap_or(8 << 20))
    }

    /// Estimates for a machine whose last-level cache has `last_level` bytes.
    pub fn of_caches(last_level: u64) -> Self {
        Self {
            stream_cold_bytes: 64 << 10,
            stream_always_bytes: (last_level / 2).max(1 << 20),
            zero_cold_bytes: 128 << 10,
            share_awake_bytes: 256 << 10,
            share_asleep_cold_bytes: 1 << 20,
            share_asleep_hot_bytes: 4 << 20,
            inline_bytes: 8 << 10,
            far_ticks: 5 * near_ticks(),
        }
    }

    /// Checks the ranges and the order of the thresholds.
    ///
    /// # Errors
    /// [`TuningError`], except `InUse`.
    pub fn check(&self) -> Result<(), TuningError> {
        let named = [
            ("stream_cold_bytes", self.stream_cold_bytes),
            ("stream_always_bytes", self.stream_always_bytes),
            ("zero_cold_bytes", self.zero_cold_bytes),
            ("share_awake_bytes", self.share_awake_bytes),
            ("share_asleep_cold_bytes", self.share_asleep_cold_bytes),
            ("share_asleep_hot_bytes", self.share_asleep_hot_bytes),
        ];
        if let Some((name, value)) = named.into_iter().find(|(_, value)| *value < MIN_BYTES) {
            return Err(TuningError::TooShort { name, value, least: MIN_BYTES });
        }
        for (name, value, most) in [
            ("inline_bytes", self.inline_bytes, MAX_INLINE_BYTES),
            ("far_ticks", self.far_ticks, MAX_FAR_TICKS),
        ] {
            if value > most {
                return Err(TuningError::TooLong { name, value, most });
            }
        }
        let always = self.stream_always_bytes;
        let cold = self.stream_cold_bytes;
        if always < cold { Err(TuningError::OutOfOrder { always, cold }) } else { Ok(()) }
    }
}

/// Sets the thresholds for all engines of this process.
///
/// # Errors
/// [`TuningError`]; `InUse` if different ones are in use.
pub fn install(tuning: Tuning) -> Result<(), TuningError> {
    tuning.check()?;
    if *CURRENT.get_or_init(|| tuning) == tuning { Ok(()) } else { Err(TuningError::InUse) }
}

/// The thresholds of this process.
#[inline]
pub fn current() -> &'static Tuning {
    // Measured outside the cell: in a child forked during initialisation the cell would never complete.
    CURRENT.get().unwrap_or_else(|| {
        let measured = Tuning::of_this_machine();
        CURRENT.get_or_init(|| measured)
    })
}

/// Sizes of CPU 0's data caches in bytes, from sysfs.
pub fn caches() -> Vec<u64> {
    // Miri isolates the program from the file system.
    let entries = if cfg!(miri) { None } else { fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok() };
    let Some(entries) = entries else { return Vec::new() };
    let size = |directory: &std::path::Path| {
        let read = |name| fs::read_to_string(directory.join(name)).ok();
        let holds_data = read("type").is_some_and(|kind| kind.trim() != "Instruction");
        read("size").filter(|_| holds_data).and_then(|size| parse_size(size.trim()))
    };
    entries.flatten().filter_map(|entry| size(&entry.path())).collect()
}

/// Parses sysfs sizes: digits, then optionally K or M.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|size| *size > 0)
}

/// Minimum ticks of two simultaneous loads from the nearest cache.
fn near_ticks() -> u64 {
    let bytes = [1; 128];
    (0..32).filter_map(|_| kernels::own_load_ticks([&bytes[0], &bytes[64]])).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_sizes_parse() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("512"), Some(512));
        for nonsense in ["", "K", "-1K", "0K", "99999999999999999999M", "18446744073709551615K"] {
            assert_eq!(parse_size(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn estimates_for_this_machine_are_valid() {
        Tuning::of_this_machine().check().unwrap();
    }

    #[test]
    fn errors_name_the_invalid_threshold() {
        let sound = Tuning::of_this_machine();
        let short = Tuning { zero_cold_bytes: 64, ..sound };
        assert!(short.check().unwrap_err().to_string().contains("zero_cold_bytes = 64"));
        let cold = 1 << 20;
        let always = 1 << 16;
        let inverted = Tuning { stream_cold_bytes: cold, stream_always_bytes: always, ..sound };
        assert_eq!(inverted.check(), Err(TuningError::OutOfOrder { always, cold }));
    }

    #[test]
    fn thresholds_in_use_cannot_change() {
        let used = *current();
        assert_eq!(install(used), Ok(()));
        let other = Tuning { stream_cold_bytes: used.stream_cold_bytes + 1, ..used };
        assert_eq!(install(other), Err(TuningError::InUse));
    }
}
