//! Copies, and why a job with them is refused: lengths, rights, overlaps, too many calls.

use thiserror::Error;

use crate::driver::{Address, CallError, Code};
use crate::place::Place;

/// Most calls of the driver for rows or parts of one job: they are planned in memory, and made while other jobs wait.
pub(crate) const MAX_CALLS: u64 = 1 << 16;

/// Why a job was refused or did not end well.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JobError {
    #[error("the source has {from_bytes} bytes, the destination {to_bytes}")]
    Lengths { from_bytes: u64, to_bytes: u64 },
    #[error("the destination is mapped read-only")]
    ReadOnly,
    #[error("source and destination overlap")]
    Overlap,
    #[error(
        "{rows} rows of {row_bytes} bytes at distances of {pitch_bytes} do not fit a place of {place_bytes} bytes"
    )]
    Geometry { rows: u64, row_bytes: u64, pitch_bytes: u64, place_bytes: u64 },
    #[error("the job takes more than {MAX_CALLS} calls of the driver; divide it")]
    TooManyCalls,
    #[error("the device fills its own memory only, and copies only from it or to it")]
    NoVram,
    #[error("a detour goes through memory of the device, or between places in pinned host memory")]
    NoDetour,
    /// Part of it may have been done.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The device may still access the job's memory until this process has ended.
    #[error("the context of the device is lost: {0}; this process has to end")]
    Lost(Code),
}

/// One range to another of the same length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) length: u64,
}

pub(crate) fn check_sides(from: &Place, to: &Place) -> Result<(), JobError> {
    match () {
        () if to.is_read_only() => Err(JobError::ReadOnly),
        () if !from.is_vram() && !to.is_vram() => Err(JobError::NoVram),
        () if from.overlaps(to) => Err(JobError::Overlap),
        () => Ok(()),
    }
}

pub(crate) fn check_lengths(from: &Place, to: &Place) -> Result<(), JobError> {
    let from_bytes = from.length_bytes();
    let to_bytes = to.length_bytes();
    if from_bytes == to_bytes { Ok(()) } else { Err(JobError::Lengths { from_bytes, to_bytes }) }
}

pub(crate) fn check_calls(calls: u64) -> Result<(), JobError> {
    if calls <= MAX_CALLS { Ok(()) } else { Err(JobError::TooManyCalls) }
}
