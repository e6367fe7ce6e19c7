//! Which of the 32 channels are taken.
//!
//! ```text
//! free ── allocate, take ──► Channel (one owner) ── release ──► free
//!                                   └── quarantine ──► no longer given out, until the device is reset
//! ```
//!
//! A [`Channel`] cannot be copied: who holds it is the only one who can configure the channel. Nobody waits here for a
//! channel to become free, and no register is touched.

use memferry_registers::sdma::CHANNELS;
use thiserror::Error;

/// Every channel is taken or quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("all {CHANNELS} channels are taken: release one, or wait until one is released")]
pub struct AllChannelsBusy;

/// The channel asked for is taken, quarantined or not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("channel {index} is not free: allocate any other, or release it first")]
pub struct ChannelTaken {
    /// The channel asked for.
    pub index: u8,
}

/// The right to use one channel.
#[derive(Debug, PartialEq, Eq)]
pub struct Channel {
    index: u8,
}

impl Channel {
    /// The channel's number, 0 to 31, as events report it.
    pub const fn index(&self) -> u8 {
        self.index
    }

    pub(super) const fn bit(&self) -> u32 {
        1 << self.index
    }
}

/// One bit for each channel.
#[derive(Debug, Default)]
pub(super) struct Channels {
    taken: u32,
    quarantined: u32,
}

impl Channels {
    /// The free channel with the lowest number.
    pub(super) fn allocate(&mut self) -> Result<Channel, AllChannelsBusy> {
        let index = (!(self.taken | self.quarantined)).trailing_zeros() as u8;
        self.take(index).map_err(|_| AllChannelsBusy)
    }

    /// The channel with this number.
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

    /// After a reset no channel runs, so none needs to be kept away from.
    pub(super) fn lift_quarantine(&mut self) {
        self.quarantined = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_is_given_once_and_then_none() {
        let mut channels = Channels::default();
        for index in 0..32 {
            assert_eq!(channels.allocate().map(|channel| channel.index()), Ok(index));
        }
        assert_eq!(channels.allocate(), Err(AllChannelsBusy));
        assert_eq!(channels.free(), 0);
    }

    #[test]
    fn released_channel_is_given_again() {
        let mut channels = Channels::default();
        let first = channels.allocate().unwrap();
        let second = channels.allocate().unwrap();
        channels.release(first);
        assert_eq!(channels.allocate().unwrap().index(), 0);
        assert_eq!(second.index(), 1);
    }

    #[test]
    fn refuses_a_channel_that_is_taken_or_not_there() {
        let mut channels = Channels::default();
        let last = channels.take(31).unwrap();
        assert_eq!(channels.take(31), Err(ChannelTaken { index: 31 }));
        assert_eq!(channels.take(32), Err(ChannelTaken { index: 32 }));
        channels.release(last);
        assert!(channels.take(31).is_ok());
    }

    #[test]
    fn quarantined_channel_is_not_given_until_the_reset() {
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
