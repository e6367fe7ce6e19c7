//! Suspends, resumes, rewinds and recovers channels.
//!
//! ```text
//! ask_suspend ──► the current descriptor ends ──► is_suspended ─┬─► resume ──► continues with the next descriptor
//!                                                               └─► rewind ──► empty chain; pending requests are dropped
//! recover: reset ─┬─► CHANERR and errors outside the registers cleared, ring set up again
//!                 └─► timeout ──► quarantined: the channel may still access memory
//! ```
//!
//! By erratum CF5 of the Xeon E7 v2, a suspend or reset during an XOR may corrupt copies of other channels. The caller has
//! to suspend those first, because the driver does not know the work of all channels.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_ioat_registers::NarrowIo;
use memferry_ioat_registers::{Chancmd, Chanerr, Register, TransferState};
use thiserror::Error;

use super::channels::{Channel, State, StopError};
use super::device::{Ioat, at};
use super::memory::DmaMemory;
use super::ring::Progress;

/// The channel was not suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("channel {channel} is {state}, not suspended: suspend it before resuming it")]
pub struct ResumeError {
    pub channel: u8,
    pub state: TransferState,
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Asks a channel to suspend at the end of the current descriptor, without waiting.
    pub fn ask_suspend(&mut self, channel: &Channel) {
        self.command(channel, Chancmd::new().with_suspend(true));
    }

    /// Whether the channel is suspended. A suspended channel accesses no memory until it is resumed.
    pub fn is_suspended(&mut self, channel: &Channel) -> bool {
        self.status(channel).state() == TransferState::Suspended
    }

    /// Suspends a channel and waits until it has stopped. A halted channel counts as stopped.
    ///
    /// # Errors
    /// [`StopError::NotSuspended`] after `timeout`.
    pub fn suspend(&mut self, channel: &Channel, timeout: Duration) -> Result<Progress, StopError> {
        let is_stopped = |state| matches!(state, TransferState::Suspended | TransferState::Halted);
        if !is_stopped(self.status(channel).state()) {
            self.ask_suspend(channel);
        }
        let waited = self.wait(timeout, |driver| is_stopped(driver.status(channel).state()));
        let progress = self.inspect(channel);
        waited.map_err(|()| StopError::NotSuspended { channel: channel.index(), waited: timeout })?;
        Ok(progress)
    }

    /// Resumes a suspended channel.
    ///
    /// # Errors
    /// [`ResumeError`] when the channel is not suspended.
    pub fn resume(&mut self, channel: &Channel) -> Result<(), ResumeError> {
        let state = self.status(channel).state();
        if state != TransferState::Suspended {
            return Err(ResumeError { channel: channel.index(), state });
        }
        self.command(channel, Chancmd::new().with_resume(true));
        Ok(())
    }

    /// Gives a stopped channel an empty chain. Pending requests are dropped, and positions count from zero again.
    ///
    /// # Errors
    /// [`StopError::AtWork`] when the channel is working or halted; a halted channel has to be recovered.
    /// [`StopError::Quarantined`] when it is quarantined.
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

    /// Resets a channel in any state and sets up its ring again. Pending requests are dropped.
    ///
    /// # Errors
    /// [`StopError::NotReset`] after `timeout`; the channel is quarantined then.
    pub fn recover(&mut self, channel: &Channel, timeout: Duration) -> Result<(), StopError> {
        self.reset(channel, timeout)?;
        self.set_up(channel);
        Ok(())
    }

    /// Resets every channel of the device, also those in use, and marks each as free. Without it, what another driver left behind would go
    /// on, or keep channels from being taken. For the only user of a device that was not reset; it must not access memory meanwhile.
    ///
    /// # Errors
    /// [`StopError::NotReset`] of the first channel that does not end its reset within `timeout`. It is quarantined, and the rest untouched.
    pub fn seize(&mut self, timeout: Duration) -> Result<(), StopError> {
        for index in 0..self.channels() {
            let channel = Channel { index };
            self.reset(&channel, timeout)?;
            self.io.write(at(&channel, Register::ChanerrMask), 0);
            self.io.write16(at(&channel, Register::Chanctrl), 0);
            *self.state_mut(&channel) = State::default();
        }
        Ok(())
    }

    /// Resets a channel and clears its errors.
    fn reset(&mut self, channel: &Channel, timeout: Duration) -> Result<(), StopError> {
        self.command(channel, Chancmd::new().with_reset(true));
        let is_over = |driver: &mut Self| {
            let command = driver.io.read8(at(channel, Register::Chancmd));
            !Chancmd::from_bits(command).reset()
        };
        if self.wait(timeout, is_over).is_err() {
            self.state_mut(channel).quarantined = true;
            return Err(StopError::NotReset { channel: channel.index(), waited: timeout });
        }
        // Errors survive the reset, and the channel does not start a chain while any is set.
        let errors = Chanerr::from_bits(self.io.read(at(channel, Register::Chanerr)));
        self.io.write(at(channel, Register::Chanerr), errors.into_bits());
        self.io.clear_other_errors();
        self.state_mut(channel).quarantined = false;
        Ok(())
    }

    /// Whether the channel is quarantined: its reset failed, and it may still access memory.
    pub fn is_quarantined(&self, channel: &Channel) -> bool {
        self.state(channel).quarantined
    }
}
