//! Shared channels: every client may use every channel (Papa 2014, "Shared Channel": public channels).
//!
//! Channels are assigned round robin.

use memferry_transfer::SessionId;

use super::{Ask, ChannelState, Choice, Policy, healthy};

/// Every client may use every channel.
#[derive(Debug, Default)]
pub struct Shared {
    next: usize,
}

impl Shared {
    /// A policy that begins with channel 0.
    pub const fn new() -> Self {
        Self { next: 0 }
    }
}

impl Policy for Shared {
    fn name(&self) -> &'static str {
        "shared"
    }

    #[inline]
    fn choose(&mut self, _ask: &Ask, channels: &[ChannelState]) -> Choice {
        let count = channels.len();
        let next = self.next.min(count);
        let free = (next..count).chain(0..next).find(|channel| channels[*channel] == ChannelState::Free);
        match free {
            Some(channel) => {
                self.next = channel + 1;
                Choice::Channel(channel as u32)
            }
            None => Choice::Busy { usable: healthy(channels) },
        }
    }

    fn departed(&mut self, _client: SessionId) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChannelState::{Busy, Faulted, Free};

    #[test]
    fn assigns_free_channels_round_robin() {
        let mut policy = Shared::new();
        let ask = Ask::of(SessionId(1), 0);
        assert_eq!(policy.choose(&ask, &[Free, Free]), Choice::Channel(0));
        assert_eq!(policy.choose(&ask, &[Free, Free]), Choice::Channel(1));
        assert_eq!(policy.choose(&ask, &[Busy, Free]), Choice::Channel(1));
        assert_eq!(policy.choose(&ask, &[Busy, Faulted]), Choice::Busy { usable: 1 });
        assert_eq!(policy.choose(&ask, &[]), Choice::Busy { usable: 0 });
    }
}
