//! Standing still, going on, and what to do with a channel that failed.
//!
//! ```text
//! ask_suspend ──► the descriptor at work ends ──► is_suspended ─┬─► resume ──► goes on where it was
//!                                                               └─► rewind ──► an empty chain, what was not done is forgotten
//! recover: reset ─┬─► CHANERR cleared, ring set up again
//!                 └─► time is over ──► quarantined: it may still touch memory
//! ```
//!
//! An erratum of the Xeon E7 v2 (CF5) lets a suspend or reset during an XOR spoil other channels' copies there: suspend those first.
//! The driver leaves that to who knows all channels' work.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_registers::NarrowIo;
use memferry_registers::ioat::{Chancmd, Chanerr, Register, TransferState};
use thiserror::Error;

use super::channels::Channel;
use super::device::{Ioat, at};
use super::memory::DmaMemory;
use super::ring::Progress;

/// Why a channel does not stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// It did not acknowledge the suspend. It goes on, or stops later.
    #[error("channel {channel} did not stop within {waited:?}: wait longer, or recover it")]
    NotSuspended {
        channel: u8,
        /// How long was waited.
        waited: Duration,
    },
    /// It did not end its reset. It is quarantined: its memory must not be reused until a recovery succeeds.
    #[error("channel {channel} did not end its reset within {waited:?} and is quarantined: recover it again")]
    NotReset {
        channel: u8,
        /// How long was waited.
        waited: Duration,
    },
    /// It was given up, and only a recovery makes it usable.
    #[error("channel {channel} is quarantined: recover it first")]
    Quarantined { channel: u8 },
    /// It is at work, and cannot be given another chain.
    #[error("channel {channel} is at work: suspend it first")]
    AtWork { channel: u8 },
}

/// The channel did not stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("channel {channel} is {state}, not suspended: there is nothing to resume")]
pub struct ResumeError {
    pub channel: u8,
    /// What it is doing.
    pub state: TransferState,
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Asks a channel to stand still at the end of the descriptor at work. Nothing is waited for.
    pub fn ask_suspend(&mut self, channel: &Channel) {
        self.command(channel, Chancmd::new().with_suspend(true));
    }

    /// Whether the channel stands still: it touches no memory until it is resumed.
    pub fn is_suspended(&mut self, channel: &Channel) -> bool {
        self.status(channel).state() == TransferState::Suspended
    }

    /// Suspends a channel and waits until it stands still.
    ///
    /// # Errors
    /// [`StopError::NotSuspended`] after `timeout`; a halted channel stands still already.
    pub fn suspend(&mut self, channel: &Channel, timeout: Duration) -> Result<Progress, StopError> {
        let still = |state| matches!(state, TransferState::Suspended | TransferState::Halted);
        if !still(self.status(channel).state()) {
            self.ask_suspend(channel);
        }
        let waited = self.wait(timeout, |driver| still(driver.status(channel).state()));
        let progress = self.inspect(channel);
        waited.map_err(|()| StopError::NotSuspended { channel: channel.index(), waited: timeout })?;
        Ok(progress)
    }

    /// Lets a suspended channel go on.
    ///
    /// # Errors
    /// [`ResumeError`] for one that is not suspended.
    pub fn resume(&mut self, channel: &Channel) -> Result<(), ResumeError> {
        let state = self.status(channel).state();
        if state != TransferState::Suspended {
            return Err(ResumeError { channel: channel.index(), state });
        }
        self.command(channel, Chancmd::new().with_resume(true));
        Ok(())
    }

    /// Gives a channel that stands still an empty chain: what was not done is forgotten, positions count from zero again.
    ///
    /// # Errors
    /// [`StopError::AtWork`] for one that does not stand still, [`StopError::Quarantined`]; one that halted for an error is
    /// recovered instead.
    pub fn rewind(&mut self, channel: &Channel) -> Result<(), StopError> {
        let state = self.status(channel).state();
        if self.is_quarantined(channel) {
            return Err(StopError::Quarantined { channel: channel.index() });
        }
        if !matches!(state, TransferState::Suspended | TransferState::Idle | TransferState::Armed) {
            return Err(StopError::AtWork { channel: channel.index() });
        }
        if let Some(ring) = self.state(channel).ring {
            self.give_chain(channel, &ring);
        }
        Ok(())
    }

    /// Resets a channel, whatever it is doing, and sets it up with its ring again: what was not done is forgotten.
    ///
    /// # Errors
    /// [`StopError::NotReset`] after `timeout`: the channel is quarantined.
    pub fn recover(&mut self, channel: &Channel, timeout: Duration) -> Result<(), StopError> {
        self.command(channel, Chancmd::new().with_reset(true));
        let is_over = |driver: &mut Self| {
            let command = driver.io.read8(at(channel, Register::Chancmd));
            !Chancmd::from_bits(command).reset()
        };
        if self.wait(timeout, is_over).is_err() {
            self.state_mut(channel).quarantined = true;
            return Err(StopError::NotReset { channel: channel.index(), waited: timeout });
        }
        // Errors survive the reset, and keep the channel from taking up a chain.
        let errors = Chanerr::from_bits(self.io.read(at(channel, Register::Chanerr)));
        self.io.write(at(channel, Register::Chanerr), errors.into_bits());
        self.state_mut(channel).quarantined = false;
        self.set_up(channel);
        Ok(())
    }

    /// Whether the channel may still touch memory although it was given up.
    pub fn is_quarantined(&self, channel: &Channel) -> bool {
        self.state(channel).quarantined
    }
}
