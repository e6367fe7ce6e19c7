//! Stopping a channel before its end, and how far it came.
//!
//! ```text
//! stop: link off ──► enable bit off ──► poll until both ports are idle ──► Progress
//!                                              └── time is over ──► quarantined: it may still touch memory
//! ```
//!
//! The device has no pause. A channel that was stopped is resumed by a new transfer of what is left, which
//! [`Progress::pieces_left`] plans; a linked list can pause itself between two blocks (`ListOptions::pause_at`).

use core::time::Duration;

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{Ccr, Cdp, MidleMode, OcpSysconfig, Register, offset};
use thiserror::Error;

use super::channels::Channel;
use super::config::{Addressing, ChannelConfig};
use super::device::{Sdma, is_running, read_ccr};
use super::linear::{LinearError, LinearPieces};

/// Why a channel could not be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// It is still on a port. It is quarantined: its memory must not be reused until the device is initialized again.
    #[error(
        "channel {channel} did not drain within {waited:?} and is quarantined: initialize the device again"
    )]
    NotDrained {
        channel: u8,
        /// How long was waited.
        waited: Duration,
        /// Whether it was still reading.
        reading: bool,
        /// Whether it was still writing.
        writing: bool,
    },
}

/// How far a channel came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether the channel had already ended by itself.
    pub ended: bool,
    /// Address of the element read last (CSAC).
    pub source: u32,
    /// Address of the element written last (CDAC).
    pub destination: u32,
    /// Elements of the current frame that are done (CCEN).
    pub elements: u32,
    /// Frames that are done (CCFN).
    pub frames: u32,
    /// Number of the current descriptor of a linked list (CCDN), zero where there is none.
    pub descriptor: u32,
}

/// Bytes that may be written together; what is left begins on a multiple of this.
const LARGEST_BURST: u64 = 64;

impl Progress {
    /// Plans what is left of a contiguous transfer: none when it had ended, or where the addresses do not simply rise.
    ///
    /// Up to a burst is moved again, which is harmless unless source and destination overlap.
    ///
    /// # Errors
    /// [`LinearError`] when the configuration was not a valid one.
    pub fn pieces_left(&self, config: &ChannelConfig) -> Result<Option<LinearPieces>, LinearError> {
        let rises = |side: super::Side| side.addressing == Addressing::PostIncrement;
        let linear = rises(config.destination) && (!config.operation.reads() || rises(config.source));
        if self.ended || !linear {
            return Ok(None);
        }
        let start = config.destination.address;
        let total = config.size.bytes();
        let written = u64::from(self.destination).saturating_sub(start).min(total);
        let until = start + written - (start + written) % LARGEST_BURST;
        let done = until.saturating_sub(start);
        let source = if config.operation.reads() { config.source.address + done } else { 0 };
        LinearPieces::with_element(source, start + done, total - done, config.size.element).map(Some)
    }
}

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Reads how far a channel came; a running channel goes on meanwhile, so the values need not belong together.
    pub fn progress(&mut self, channel: &Channel) -> Progress {
        Progress {
            ended: !self.is_running(channel),
            source: self.read(channel, Register::Csac),
            destination: self.read(channel, Register::Cdac),
            elements: self.read(channel, Register::Ccen),
            frames: self.read(channel, Register::Ccfn),
            descriptor: if self.has_linked_lists() { self.read(channel, Register::Ccdn) } else { 0 },
        }
    }

    /// Disables a channel and waits until it no longer touches memory.
    ///
    /// A channel that its source feeds, with buffering, drains: what it read is written. Any other drops what it read
    /// but had not written (manual, 16.4.18). The channel must be configured again before it is used.
    ///
    /// # Errors
    /// [`StopError::NotDrained`] when it goes on for longer than `timeout`.
    pub fn stop(&mut self, channel: &Channel, timeout: Duration) -> Result<Progress, StopError> {
        let index = usize::from(channel.index());
        let before = read_ccr(&mut self.io, index);
        let ended = !is_running(before);
        self.configured &= !channel.bit();
        // First the link: a stopped channel of a loop would otherwise start the next one.
        self.write(channel, Register::ClnkCtrl, 0);
        self.write(channel, Register::Cicr, 0);
        let standby = drains(before).then(|| self.hold_standby());
        self.write(channel, Register::Ccr, before.with_enable(false).into_bits());
        let idle = self.wait(timeout, |io| !is_running(read_ccr(io, index)));
        if let Some(configuration) = standby {
            self.io.write(offset::OCP_SYSCONFIG, configuration.into_bits());
        }
        if idle.is_err() {
            let control = read_ccr(&mut self.io, index);
            self.channels.quarantine(channel);
            return Err(StopError::NotDrained {
                channel: channel.index(),
                waited: timeout,
                reading: control.read_active(),
                writing: control.write_active(),
            });
        }
        let progress = Progress { ended, ..self.progress(channel) };
        self.forget_events(channel);
        Ok(progress)
    }

    /// Keeps the ports out of standby while a channel drains, as the manual asks (16.4.18), and says what was set.
    fn hold_standby(&mut self) -> OcpSysconfig {
        let configuration = OcpSysconfig::from_bits(self.io.read(offset::OCP_SYSCONFIG));
        let held = configuration.with_midle_mode(MidleMode::NoStandby);
        self.io.write(offset::OCP_SYSCONFIG, held.into_bits());
        configuration
    }

    /// Lets a linked list go on that paused between two blocks. One that is not paused is left alone.
    pub fn resume_list(&mut self, channel: &Channel) {
        let parameters = Cdp::from_bits(self.read(channel, Register::Cdp));
        if self.has_linked_lists() && parameters.pause() {
            self.write(channel, Register::Cdp, parameters.with_pause(false).into_bits());
        }
    }
}

/// Whether the channel writes out what it had read when it is disabled.
const fn drains(control: Ccr) -> bool {
    control.request() != 0 && control.source_sync() && !control.buffering_disable()
}

#[cfg(test)]
mod tests;
