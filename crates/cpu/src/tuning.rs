//! From how many bytes on each way of moving them pays: measured by `memferry tune`, or guessed from the caches.
//!
//! ```text
//! profile ─ install ─┐
//! sysfs: caches ─────┴─► current(): once for the process ──► choice
//! ```
//!
//! The C library's idea of the caches is not asked: where a hypervisor reports them oddly it is off by a factor of ten.
//! Nothing here measures more than a few loads; reading and writing profiles is the caller's business.

use std::fs;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::kernels;

/// Thresholds of the kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Bytes from which a copy whose destination is in no cache goes past the caches.
    pub stream_cold_bytes: u64,
    /// Bytes from which every copy does.
    pub stream_always_bytes: u64,
    /// Bytes from which zeroing memory that is in no cache goes past the caches.
    pub zero_cold_bytes: u64,
    /// Bytes from which a copy is shared with a thread that is looking for work.
    pub share_awake_bytes: u64,
    /// Bytes from which a thread is woken to share a copy past the caches.
    pub share_asleep_cold_bytes: u64,
    /// Bytes from which a thread is woken to share a copy within the caches.
    pub share_asleep_hot_bytes: u64,
    /// Bytes up to which an embedded client's requests are done on the thread that submits them; zero for none.
    pub inline_bytes: u64,
    /// Ticks from which two loads side by side must have gone to memory; zero where that cannot be told.
    pub far_ticks: u64,
}

/// What a threshold that is out of the question would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TuningError {
    /// Shorter than any copy that could gain by going past the caches.
    #[error("{name} = {value} is below {least}: a shorter transfer never gains by it")]
    TooShort {
        name: &'static str,
        value: u64,
        /// The least it may be.
        least: u64,
    },
    /// A request this long must not keep the thread that submits it.
    #[error("{name} = {value} is above {most}")]
    TooLong {
        name: &'static str,
        value: u64,
        /// The most it may be.
        most: u64,
    },
    /// A copy would always stream before it may when cold.
    #[error("stream_always_bytes = {always} is below stream_cold_bytes = {cold}")]
    OutOfOrder { always: u64, cold: u64 },
    /// Thresholds were installed, or used, before.
    #[error("the thresholds of this process are in use already")]
    InUse,
}

/// The least a threshold may be: to look how far memory is takes as long as copying this much.
pub const LEAST_BYTES: u64 = 8 << 10;
/// The least that goes past the caches when a hint says so: a fence alone takes as long as copying this much.
pub const LEAST_HINTED_BYTES: u64 = 2 << 10;

/// The most that is done on the thread that submits it.
pub const MOST_INLINE_BYTES: u64 = 64 << 10;
/// No load takes longer.
const MOST_FAR_TICKS: u64 = 1 << 20;

static CURRENT: OnceLock<Tuning> = OnceLock::new();

impl Tuning {
    /// What is right for most machines whose caches are like this one's.
    pub fn of_this_machine() -> Self {
        Self::of_caches(caches().into_iter().max().unwrap_or(8 << 20))
    }

    /// The same for a machine whose last cache has so many bytes.
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

    /// Whether the thresholds make sense.
    ///
    /// # Errors
    /// [`TuningError`] but for `InUse`.
    pub fn check(&self) -> Result<(), TuningError> {
        let named = [
            ("stream_cold_bytes", self.stream_cold_bytes),
            ("stream_always_bytes", self.stream_always_bytes),
            ("zero_cold_bytes", self.zero_cold_bytes),
            ("share_awake_bytes", self.share_awake_bytes),
            ("share_asleep_cold_bytes", self.share_asleep_cold_bytes),
            ("share_asleep_hot_bytes", self.share_asleep_hot_bytes),
        ];
        if let Some((name, value)) = named.into_iter().find(|(_, value)| *value < LEAST_BYTES) {
            return Err(TuningError::TooShort { name, value, least: LEAST_BYTES });
        }
        for (name, value, most) in [
            ("inline_bytes", self.inline_bytes, MOST_INLINE_BYTES),
            ("far_ticks", self.far_ticks, MOST_FAR_TICKS),
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

/// Makes all engines of this process go by these thresholds, from the first on.
///
/// # Errors
/// [`TuningError`]; `InUse` unless the same ones are in use.
pub fn install(tuning: Tuning) -> Result<(), TuningError> {
    tuning.check()?;
    if *CURRENT.get_or_init(|| tuning) == tuning { Ok(()) } else { Err(TuningError::InUse) }
}

/// The thresholds of this process.
pub fn current() -> &'static Tuning {
    // Measured before the cell is begun: a child that is forked meanwhile would find it begun for ever.
    CURRENT.get().unwrap_or_else(|| {
        let measured = Tuning::of_this_machine();
        CURRENT.get_or_init(|| measured)
    })
}

/// Bytes of the data caches of CPU 0, as the kernel tells.
pub fn caches() -> Vec<u64> {
    // Miri keeps what it runs from the file system.
    let entries = if cfg!(miri) { None } else { fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok() };
    let Some(entries) = entries else { return Vec::new() };
    let size = |directory: &std::path::Path| {
        let read = |name| fs::read_to_string(directory.join(name)).ok();
        let holds_data = read("type").is_some_and(|kind| kind.trim() != "Instruction");
        read("size").filter(|_| holds_data).and_then(|size| parse_size(size.trim()))
    };
    entries.flatten().filter_map(|entry| size(&entry.path())).collect()
}

/// A size as sysfs writes it: digits, and K or M.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|size| *size > 0)
}

/// Ticks that two loads from the nearest cache take together, at best.
fn near_ticks() -> u64 {
    let bytes = [1; 128];
    (0..32).filter_map(|_| kernels::own_load_ticks([&bytes[0], &bytes[64]])).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_sysfs_are_understood_and_nonsense_is_not() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("512"), Some(512));
        for nonsense in ["", "K", "-1K", "0K", "99999999999999999999M", "18446744073709551615K"] {
            assert_eq!(parse_size(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn what_is_guessed_for_this_machine_makes_sense() {
        Tuning::of_this_machine().check().unwrap();
    }

    #[test]
    fn thresholds_that_make_no_sense_are_refused_by_name() {
        let sound = Tuning::of_this_machine();
        let short = Tuning { zero_cold_bytes: 64, ..sound };
        assert!(short.check().unwrap_err().to_string().contains("zero_cold_bytes = 64"));
        let cold = 1 << 20;
        let always = 1 << 16;
        let odd = Tuning { stream_cold_bytes: cold, stream_always_bytes: always, ..sound };
        assert_eq!(odd.check(), Err(TuningError::OutOfOrder { always, cold }));
    }

    #[test]
    fn thresholds_in_use_are_not_changed() {
        let used = *current();
        assert_eq!(install(used), Ok(()));
        let other = Tuning { stream_cold_bytes: used.stream_cold_bytes + 1, ..used };
        assert_eq!(install(other), Err(TuningError::InUse));
    }
}
