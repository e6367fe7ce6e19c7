//! Linked channels: at the end of one channel's transfer, the device enables the next channel.
//!
//! ```text
//! configure a, b, c ──► link([a, b, c], Stop) ──► enable a ──► a, b, c
//!                       link([a, b, c], Loop) ──► enable a ──► a, b, c, a, b, ... ──► end_after(b) ──► ... a, b
//! ```
//!
//! All channels of a chain must be configured first and stay taken while it runs; a linked list needs only one channel
//! (paper, 2.3.2.2). The driver does not copy configurations from one channel to the next.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{ClnkCtrl, Register};
use thiserror::Error;

use super::channels::Channel;
use super::device::{Sdma, link_control};
use super::stop::StopError;

/// Behaviour at the end of a chain's last channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainEnd {
    Stop,
    /// Starts the first channel again, until [`Sdma::end_after`] ends the loop.
    Loop,
}

/// Reason why channels were not linked. No register was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChainError {
    #[error("the chain has no channels: name at least one")]
    Empty,
    #[error("channel {channel} is named twice: name each channel once, also in a loop")]
    Repeated { channel: u8 },
    #[error("channel {channel} is not configured: configure all channels before they are linked")]
    NotConfigured { channel: u8 },
    #[error("channel {channel} is running: link channels before the first is enabled")]
    Running { channel: u8 },
    /// Another channel would start a channel with a linked list.
    #[error(
        "channel {channel} follows a linked list, which only software can start: put it first, and not in a loop"
    )]
    ListNotFirst { channel: u8 },
}

impl<Io: RegisterIo, C: Clock> Sdma<Io, C> {
    /// Links configured channels in the given order. The chain starts when its first channel is enabled.
    ///
    /// # Errors
    /// [`ChainError`]; no link has changed then.
    pub fn link(&mut self, chain: &[&Channel], end: ChainEnd) -> Result<(), ChainError> {
        if chain.is_empty() {
            return Err(ChainError::Empty);
        }
        let mut seen = 0;
        for channel in chain {
            let index = channel.index();
            let bit = channel.bit();
            if seen & bit != 0 {
                return Err(ChainError::Repeated { channel: index });
            }
            if self.configured & bit == 0 {
                return Err(ChainError::NotConfigured { channel: index });
            }
            if self.lists & bit != 0 && (seen != 0 || end == ChainEnd::Loop) {
                return Err(ChainError::ListNotFirst { channel: index });
            }
            if self.is_running(channel) {
                return Err(ChainError::Running { channel: index });
            }
            seen |= bit;
        }
        for (at, channel) in chain.iter().enumerate() {
            let next = match (chain.get(at + 1), end) {
                (Some(next), _) => Some(next.index()),
                (None, ChainEnd::Loop) => Some(chain[0].index()),
                (None, ChainEnd::Stop) => None,
            };
            self.write(channel, Register::ClnkCtrl, link_control(next).into_bits());
        }
        Ok(())
    }

    /// Ends a loop or cuts a chain after this channel's transfer. The channel may be running.
    pub fn end_after(&mut self, channel: &Channel) {
        let link = ClnkCtrl::from_bits(self.read(channel, Register::ClnkCtrl));
        self.write(channel, Register::ClnkCtrl, link.with_enable_link(false).into_bits());
    }

    /// Stops every channel of a chain or loop. Cuts all links first, so that no channel starts another meanwhile.
    ///
    /// Waits at most `timeout` for each channel.
    ///
    /// # Errors
    /// The first channel that did not drain, which is quarantined; the other channels are stopped too.
    pub fn stop_chain(&mut self, chain: &[&Channel], timeout: Duration) -> Result<(), StopError> {
        for channel in chain {
            self.end_after(channel);
        }
        let mut first_error = Ok(());
        for channel in chain {
            first_error = first_error.and(self.stop(channel, timeout).map(|_| ()));
        }
        first_error
    }
}

#[cfg(test)]
mod tests;
