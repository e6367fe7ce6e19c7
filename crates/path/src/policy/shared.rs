//! Shared channels: every client may use every channel (Papa 2014, "Shared Channel": public channels).
//!
//! Channels are taken in turn, starting after the last one given.

use memferry_transfer::SessionId;

use super::{Ask, ChannelState, Choice, Policy, healthy};

/// Every channel is public.
#[derive(Debug, Default)]
pub struct Shared {
    next: usize,
}

impl Shared {
    /// A policy that has given no channel yet.
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
        let free = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|channel| channels[*channel] == ChannelState::Free);
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
    fn gives_free_channels_in_turn_and_skips_the_rest() {
        let mut policy = Shared::new();
        let ask = Ask::of(SessionId(1), 0);
        assert_eq!(policy.choose(&ask, &[Free, Free]), Choice::Channel(0));
        assert_eq!(policy.choose(&ask, &[Free, Free]), Choice::Channel(1));
        assert_eq!(policy.choose(&ask, &[Busy, Free]), Choice::Channel(1));
        assert_eq!(policy.choose(&ask, &[Busy, Faulted]), Choice::Busy { usable: 1 });
        assert_eq!(policy.choose(&ask, &[]), Choice::Busy { usable: 0 });
    }
}
