//! Ownership of the 32 channels.
//!
//! ```text
//! free ── allocate, take ──► Channel (one owner) ── release ──► free
//!                                   └── quarantine ──► not given out again until the device is reset
//! ```
//!
//! A [`Channel`] cannot be copied, so only its holder can configure the channel. The module does not wait for free
//! channels and accesses no register.

use memferry_registers::sdma::CHANNELS;
use thiserror::Error;

/// Every channel is taken or quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("all {CHANNELS} channels are taken: release one, or wait for one")]
pub struct AllChannelsBusy;

/// The requested channel is taken, is quarantined or does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("channel {index} is not free: allocate another one, or release it first")]
pub struct ChannelTaken {
    pub index: u8,
}

/// The right to use one channel.
#[derive(Debug, PartialEq, Eq)]
pub struct Channel {
    index: u8,
}

impl Channel {
    /// Number of the channel, 0 to 31, which events report.
    pub const fn index(&self) -> u8 {
        self.index
    }

    pub(super) const fn bit(&self) -> u32 {
        1 << self.index
    }
}

/// Sets of channels, one bit for each.
#[derive(Debug, Default)]
pub(super) struct Channels {
    taken: u32,
    quarantined: u32,
}

impl Channels {
    /// Takes the free channel with the lowest number.
    pub(super) fn allocate(&mut self) -> Result<Channel, AllChannelsBusy> {
        let index = (!(self.taken | self.quarantined)).trailing_zeros() as u8;
        self.take(index).map_err(|_| AllChannelsBusy)
    }

    pub(super) fn take(&mut self, index: u8) -> Result<Channel, ChannelTaken> {
        let bit = 1u32.checked_shl(u32::from(index)).ok_or(ChannelTaken { index })?;
        if (self.taken | self.quarantined) & bit != 0 {
            return Err(ChannelTaken { index });
        }
        self.taken |= bit;
        Ok(Channel { index })
    }

    pub(super) fn release(&mut self, channel: Channel) {
        self.taken &= !channel.bit();
    }

    pub(super) fn quarantine(&mut self, channel: &Channel) {
        self.quarantined |= channel.bit();
    }

    pub(super) fn is_quarantined(&self, channel: &Channel) -> bool {
        self.quarantined & channel.bit() != 0
    }

    pub(super) fn free(&self) -> u32 {
        (!(self.taken | self.quarantined)).count_ones()
    }

    /// Ends all quarantines after a reset, which stops every channel.
    pub(super) fn lift_quarantine(&mut self) {
        self.quarantined = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_out_each_channel_once() {
        let mut channels = Channels::default();
        for index in 0..32 {
            assert_eq!(channels.allocate().map(|channel| channel.index()), Ok(index));
        }
        assert_eq!(channels.allocate(), Err(AllChannelsBusy));
        assert_eq!(channels.free(), 0);
    }

    #[test]
    fn gives_out_a_released_channel_again() {
        let mut channels = Channels::default();
        let first = channels.allocate().unwrap();
        let second = channels.allocate().unwrap();
        channels.release(first);
        assert_eq!(channels.allocate().unwrap().index(), 0);
        assert_eq!(second.index(), 1);
    }

    #[test]
    fn refuses_taken_and_missing_channels() {
        let mut channels = Channels::default();
        let last = channels.take(31).unwrap();
        assert_eq!(channels.take(31), Err(ChannelTaken { index: 31 }));
        assert_eq!(channels.take(32), Err(ChannelTaken { index: 32 }));
        channels.release(last);
        assert!(channels.take(31).is_ok());
    }

    #[test]
    fn keeps_a_quarantined_channel_until_the_reset() {
        let mut channels = Channels::default();
        let channel = channels.take(0).unwrap();
        channels.quarantine(&channel);
        assert!(channels.is_quarantined(&channel));
        channels.release(channel);
        assert_eq!(channels.free(), 31);
        assert_eq!(channels.take(0), Err(ChannelTaken { index: 0 }));
        channels.lift_quarantine();
        assert!(channels.take(0).is_ok());
    }
}
