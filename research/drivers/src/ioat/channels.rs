//! Who has which channel.
//!
//! ```text
//! free ── take (CHANCTRL's mark) ──► Channel (one owner) ── release ──► free
//!                                        └── quarantined ──► may touch memory, until a reset of it succeeds
//! ```
//!
//! A [`Channel`] cannot be copied: who holds it is the only one who can use it. CHANCTRL's mark keeps drivers of other
//! processors or systems away.

use memferry_registers::ioat::CHANNELS;
use thiserror::Error;

use super::request::RingConfig;

/// Why a channel was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TakeError {
    /// The device is not initialized.
    #[error("the device is not initialized: call initialize first")]
    NotInitialized,
    /// There is no such channel.
    #[error("channel {index} does not exist: the device has {channels}")]
    NoSuchChannel {
        /// The channel asked for.
        index: u8,
        /// How many there are.
        channels: u8,
    },
    /// It was given already.
    #[error("channel {index} is taken: release it first, or take another")]
    Taken {
        /// The channel asked for.
        index: u8,
    },
    /// CHANCTRL says that another driver has it.
    #[error("channel {index} is in use by another driver: take another")]
    InUse {
        /// The channel asked for.
        index: u8,
    },
}

/// The right to use one channel.
#[derive(Debug, PartialEq, Eq)]
pub struct Channel {
    pub(super) index: u8,
}

impl Channel {
    /// The channel's number, as interrupts report it.
    pub const fn index(&self) -> u8 {
        self.index
    }
}

/// What the driver knows of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct State {
    pub(super) taken: bool,
    pub(super) quarantined: bool,
    pub(super) ring: Option<RingConfig>,
    /// Descriptors written into the ring, told to the device, and known to be done, since the chain was given.
    pub(super) written: u64,
    pub(super) told: u64,
    pub(super) done: u64,
    /// What the completion word last told, and the last position that it will tell of.
    pub(super) word: u64,
    pub(super) noticed: u64,
}

pub(super) type States = [State; CHANNELS];
