//! CPU features: the widest vector level that has kernels, and the instructions `clzero` and `clflushopt`.
//!
//! ```text
//! CPUID ──► best level ──┐
//! MEMFERRY_KERNELS ──────┴─► Cpu { level, clzero, clflushopt }, once for the process
//! ```
//!
//! A level names a set of kernels, not one instruction set: `avx512` needs four extensions. The variable forces a lower level,
//! for tests and comparisons.

use std::env::VarError;
use std::fmt;
use std::sync::OnceLock;

use thiserror::Error;

/// The environment variable that forces a level.
pub const VARIABLE: &str = "MEMFERRY_KERNELS";

/// A set of kernels; later ones use wider vectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Plain Rust, for every CPU.
    Portable,
    /// 128-bit vectors of 64-bit Arm.
    Neon,
    /// 256-bit vectors of x86-64.
    Avx2,
    /// 512-bit vectors of x86-64: AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// All levels, narrowest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];

    /// Name in the variable and in profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this CPU supports the level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Avx2 => detected::avx2(),
            Self::Avx512 => detected::avx512(),
        }
    }

    /// Levels this CPU supports, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Invalid value of [`VARIABLE`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LevelError {
    /// No level has this name.
    #[error("{VARIABLE}={value}: unknown level; choose one of: portable, neon, avx2, avx512")]
    Unknown { value: String },
    /// The CPU does not support the level.
    #[error("{VARIABLE}={level}: this CPU does not support that level; unset the variable")]
    Unavailable { level: Level },
}

/// CPU features that kernels may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// The set of kernels.
    pub level: Level,
    /// `clzero` zeroes a whole line without reading it.
    pub clzero: bool,
    /// `clflushopt` evicts a line from the caches.
    pub clflushopt: bool,
}

impl Cpu {
    /// Features at an available level.
    pub fn at(level: Level) -> Self {
        let x86 = level >= Level::Avx2;
        Self { level, clzero: x86 && detected::clzero(), clflushopt: x86 && detected::clflushopt() }
    }

    /// Features of this process: the level in [`VARIABLE`], or the best available if that is unset or invalid.
    pub fn of_this_process() -> Self {
        *OF_THIS_PROCESS.get_or_init(|| Self::forced_or_best(forced().ok().flatten()))
    }

    /// Has [`of_this_process`](Self::of_this_process) choose the best level, unless it has chosen one already. This does not look at
    /// the environment, which another thread may be changing, and does not allocate.
    pub fn unforced() -> Self {
        *OF_THIS_PROCESS.get_or_init(|| Self::forced_or_best(None))
    }

    fn forced_or_best(forced: Option<Level>) -> Self {
        Self::at(forced.or_else(|| Level::available().last()).unwrap_or(Level::Portable))
    }
}

static OF_THIS_PROCESS: OnceLock<Cpu> = OnceLock::new();

/// The level in [`VARIABLE`]; `None` when it is not set.
///
/// # Errors
/// [`LevelError`]; the kernels then use the best available level.
pub fn forced() -> Result<Option<Level>, LevelError> {
    match std::env::var(VARIABLE) {
        Ok(value) => parse(&value).map(Some),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => {
            Err(LevelError::Unknown { value: value.to_string_lossy().into_owned() })
        }
    }
}

fn parse(value: &str) -> Result<Level, LevelError> {
    let level = Level::ALL.into_iter().find(|level| level.name() == value);
    let level = level.ok_or_else(|| LevelError::Unknown { value: value.to_owned() })?;
    if level.is_available() { Ok(level) } else { Err(LevelError::Unavailable { level }) }
}

#[cfg(target_arch = "x86_64")]
mod detected {
    use std::arch::x86_64::__cpuid;

    pub(super) fn avx2() -> bool {
        is_x86_feature_detected!("avx2")
    }

    pub(super) fn avx512() -> bool {
        avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }

    /// AMD's manual 3, CPUID Fn8000_0008, EBX bit 0. The line it zeroes is the one clflush reports (Fn0000_0001, EBX).
    pub(super) fn clzero() -> bool {
        !cfg!(miri)
            && __cpuid(0x8000_0000).eax >= 0x8000_0008
            && __cpuid(0x8000_0008).ebx & 1 != 0
            && line_is_64()
    }

    /// Intel's manual 2A, CPUID leaf 7, EBX bit 23.
    pub(super) fn clflushopt() -> bool {
        !cfg!(miri) && __cpuid(0).eax >= 7 && __cpuid(7).ebx >> 23 & 1 != 0 && line_is_64()
    }

    fn line_is_64() -> bool {
        __cpuid(1).ebx >> 8 & 0xff == 8
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod detected {
    pub(super) fn avx2() -> bool {
        false
    }

    pub(super) fn avx512() -> bool {
        false
    }

    pub(super) fn clzero() -> bool {
        false
    }

    pub(super) fn clflushopt() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_levels_parse_by_name() {
        for level in Level::available() {
            assert_eq!(parse(level.name()), Ok(level));
        }
        assert!(Level::available().any(|level| level == Level::Portable));
    }

    #[test]
    fn invalid_levels_are_refused_with_advice() {
        let unknown = parse("sse9").unwrap_err().to_string();
        assert!(unknown.contains("MEMFERRY_KERNELS=sse9") && unknown.contains("choose one of"), "{unknown}");
        if let Some(level) = Level::ALL.into_iter().find(|level| !level.is_available()) {
            assert_eq!(parse(level.name()), Err(LevelError::Unavailable { level }));
        }
    }

    #[test]
    fn the_portable_level_has_no_extras() {
        let plain = Cpu::at(Level::Portable);
        assert!(!plain.clzero && !plain.clflushopt);
    }
}
