//! Stops channels before the end of their transfer, and reports their progress.
//!
//! ```text
//! stop: disable link ──► disable channel ──► poll until both ports are idle ──► Progress
//!                                                   └── timeout ──► quarantined: the channel may still access memory
//! ```
//!
//! The device cannot pause a transfer. To resume a stopped one, start a new transfer of the rest, which
//! [`Progress::pieces_left`] plans. A linked list can pause between two blocks (`ListOptions::pause_at`).

use core::time::Duration;

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{Ccr, Cdp, MidleMode, OcpSysconfig, Register, offset};
use thiserror::Error;

use super::channels::Channel;
use super::config::{Addressing, ChannelConfig};
use super::device::{Sdma, is_running, read_ccr};
use super::linear::{LinearError, LinearPieces};

/// Reason why a channel did not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// The channel is still active on a port. It is quarantined: its memory must not be reused until the device is
    /// initialized again.
    #[error(
        "channel {channel} did not drain within {waited:?} and is quarantined: initialize the device again"
    )]
    NotDrained {
        channel: u8,
        /// Duration of the wait.
        waited: Duration,
        /// Whether the channel is still active on the read port.
        reading: bool,
        /// Whether the channel is still active on the write port.
        writing: bool,
    },
}

/// Progress of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether the channel had ended before it was stopped.
    pub ended: bool,
    /// Address of the last element read (CSAC).
    pub source: u32,
    /// Address of the last element written (CDAC).
    pub destination: u32,
    /// Number of elements of the current frame that are done (CCEN).
    pub elements: u32,
    /// Number of frames that are done (CCFN).
    pub frames: u32,
    /// Number of the current descriptor of a linked list (CCDN); zero if the device has no linked lists.
    pub descriptor: u32,
}

/// Size of the largest burst in bytes. The rest of a transfer begins on a multiple of it.
const LARGEST_BURST: u64 = 64;

impl Progress {
    /// Plans the rest of a contiguous transfer. `None` when the transfer has ended, or when its addressing is not
    /// post-increment.
    ///
    /// Moves up to one burst again, which is harmless unless source and destination overlap.
    ///
    /// # Errors
    /// [`LinearError`] when the configuration is invalid.
    pub fn pieces_left(&self, config: &ChannelConfig) -> Result<Option<LinearPieces>, LinearError> {
        let is_linear = |side: super::Side| side.addressing == Addressing::PostIncrement;
        let both_linear =
            is_linear(config.destination) && (!config.operation.reads() || is_linear(config.source));
        if self.ended || !both_linear {
            return Ok(None);
        }
        let start = config.destination.address;
        let total = config.size.bytes();
        let written = u64::from(self.destination).saturating_sub(start).min(total);
        let burst_start = start + written - (start + written) % LARGEST_BURST;
        let done = burst_start.saturating_sub(start);
        let source = if config.operation.reads() { config.source.address + done } else { 0 };
        LinearPieces::with_element(source, start + done, total - done, config.size.element).map(Some)
    }
}

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Reads a channel's progress. A running channel advances between the reads, so the values may be inconsistent.
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

    /// Disables a channel and waits until it no longer accesses memory.
    ///
    /// A channel whose source makes the requests, with buffering, drains: it writes the data that it has read. Any other
    /// channel drops that data (manual, 16.4.18). The channel must be configured again before it is used.
    ///
    /// # Errors
    /// [`StopError::NotDrained`] when the channel is still active after `timeout`.
    pub fn stop(&mut self, channel: &Channel, timeout: Duration) -> Result<Progress, StopError> {
        let index = usize::from(channel.index());
        let before = read_ccr(&mut self.io, index);
        let ended = !is_running(before);
        self.configured &= !channel.bit();
        // Disable the link first: otherwise a stopped channel of a loop would start the next one.
        self.write(channel, Register::ClnkCtrl, 0);
        self.write(channel, Register::Cicr, 0);
        let standby = drains(before).then(|| self.prevent_standby());
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
        self.clear_events(channel);
        Ok(progress)
    }

    /// Keeps the ports out of standby, as the manual requires while a channel drains (16.4.18). Returns the previous
    /// configuration.
    fn prevent_standby(&mut self) -> OcpSysconfig {
        let configuration = OcpSysconfig::from_bits(self.io.read(offset::OCP_SYSCONFIG));
        let no_standby = configuration.with_midle_mode(MidleMode::NoStandby);
        self.io.write(offset::OCP_SYSCONFIG, no_standby.into_bits());
        configuration
    }

    /// Continues a linked list that paused between two blocks. Does nothing when it is not paused.
    pub fn resume_list(&mut self, channel: &Channel) {
        let parameters = Cdp::from_bits(self.read(channel, Register::Cdp));
        if self.has_linked_lists() && parameters.pause() {
            self.write(channel, Register::Cdp, parameters.with_pause(false).into_bits());
        }
    }
}

/// Whether the channel, when disabled, writes the data that it has read.
const fn drains(control: Ccr) -> bool {
    control.request() != 0 && control.source_sync() && !control.buffering_disable()
}

#[cfg(test)]
mod tests;
