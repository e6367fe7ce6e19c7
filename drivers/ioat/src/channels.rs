//! Ownership and state of channels.
//!
//! ```text
//! free ── take (in-use bit of CHANCTRL) ──► Channel (one owner) ── release ──► free
//!                                               └── quarantined ──► may still access memory, until a reset succeeds
//! ```
//!
//! A [`Channel`] cannot be copied, so only its holder can use the channel. The in-use bit keeps drivers of other
//! processors or systems away.

use core::time::Duration;

use memferry_ioat_registers::CHANNELS;
use thiserror::Error;

use super::request::RingConfig;

/// Reason why a channel could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TakeError {
    #[error("the device is not initialized: call initialize first")]
    NotInitialized,
    #[error("channel {index} does not exist: the device has {channels} channels")]
    NoSuchChannel {
        index: u8,
        /// Number of channels of the device.
        channels: u8,
    },
    /// This driver has given out the channel already.
    #[error("channel {index} is taken: release it first, or take another")]
    Taken { index: u8 },
    /// The in-use bit of CHANCTRL was set.
    #[error("channel {index} is in use by another driver: take another")]
    InUse { index: u8 },
}

/// Reason why a channel did not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// The channel did not acknowledge the suspend. It continues, or stops later.
    #[error("channel {channel} did not stop within {waited:?}: wait longer, or recover it")]
    NotSuspended {
        channel: u8,
        /// Duration of the wait.
        waited: Duration,
    },
    /// The reset did not end. The channel is quarantined: its memory must not be reused until a recovery succeeds.
    #[error("channel {channel} did not end its reset within {waited:?} and is quarantined: recover it again")]
    NotReset {
        channel: u8,
        /// Duration of the wait.
        waited: Duration,
    },
    /// The channel is quarantined; only a recovery makes it usable.
    #[error("channel {channel} is quarantined: recover it first")]
    Quarantined { channel: u8 },
    /// The channel is active or halted, so its chain cannot be replaced.
    #[error("channel {channel} is active or halted: suspend an active channel, recover a halted one")]
    AtWork { channel: u8 },
}

/// The right to use one channel.
#[derive(Debug, PartialEq, Eq)]
pub struct Channel {
    pub(super) index: u8,
}

impl Channel {
    /// Number of the channel, which interrupts report.
    pub const fn index(&self) -> u8 {
        self.index
    }
}

/// The driver's state of one channel. Positions count descriptors since CHAINADDR was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct State {
    pub(super) taken: bool,
    pub(super) quarantined: bool,
    pub(super) ring: Option<RingConfig>,
    /// Descriptors written into the ring.
    pub(super) written: u64,
    /// Descriptors announced to the device in DMACOUNT.
    pub(super) announced: u64,
    /// Descriptors known to be done.
    pub(super) done: u64,
    /// Position last seen in the completion word.
    pub(super) word: u64,
    /// Last position whose request writes the completion word.
    pub(super) noticed: u64,
    /// What CHANSTS named as completed when CHAINADDR was written: a descriptor of an earlier chain, until this chain has another one done.
    pub(super) stale: u64,
}

pub(super) type States = [State; CHANNELS];
