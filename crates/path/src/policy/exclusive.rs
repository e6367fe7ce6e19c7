//! Exclusive channels: binds each channel to one client (Papa 2014, "Exclusive Channel": private channels).
//!
//! The paper binds channels to CPUs, because its clients are kernel threads; here a client is a session. A client gets its channel
//! with its first request that is not done at once, and keeps it until it departs. Once all channels are bound, further clients get none; with eight
//! channels or more, no user can bind the last eighth alone.

use memferry_transfer::SessionId;

use super::{Ask, ChannelState, Choice, Policy};

/// Binds each channel to one client.
#[derive(Debug, Default)]
pub struct Exclusive {
    owners: Vec<Option<(SessionId, u32)>>,
}

impl Exclusive {
    /// A policy without any bound channel.
    pub const fn new() -> Self {
        Self { owners: Vec::new() }
    }
}

impl Policy for Exclusive {
    fn name(&self) -> &'static str {
        "exclusive"
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        let client = ask.client;
        self.owners.resize(channels.len(), None);
        let healthy = |channel: &usize| channels[*channel] != ChannelState::Faulted;
        let owner_of = |channel: usize| self.owners[channel].map(|(owner, _)| owner);
        let find = |owner| (0..channels.len()).filter(healthy).find(|channel| owner_of(*channel) == owner);
        let is_free = |channel: &usize| channels[*channel] == ChannelState::Free;
        let unbound = || (0..channels.len()).filter(is_free).find(|channel| owner_of(*channel).is_none());
        // With eight channels or more, an eighth is left to other users.
        let of_user = self.owners.iter().flatten().filter(|(_, user)| *user == ask.user).count();
        let may_bind = of_user < channels.len() - channels.len() / 8;
        let Some(channel) = find(Some(client)).or_else(|| unbound().filter(|_| may_bind)) else {
            return Choice::Busy { usable: 0 };
        };
        self.owners[channel] = Some((client, ask.user));
        match channels[channel] {
            ChannelState::Free => Choice::Channel(channel as u32),
            ChannelState::Busy | ChannelState::Faulted => Choice::Busy { usable: 1 },
        }
    }

    fn keeps(&self, channel: u32) -> bool {
        self.owners.get(channel as usize).is_some_and(Option::is_some)
    }

    fn departed(&mut self, client: SessionId) {
        for owner in &mut self.owners {
            if owner.is_some_and(|(owner, _)| owner == client) {
                *owner = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChannelState::{Busy, Faulted, Free};

    #[test]
    fn a_channel_serves_one_client_until_it_departs() {
        let mut policy = Exclusive::new();
        let [a, b, c] = [1, 2, 3].map(|client| Ask::of(SessionId(client), 0));
        assert_eq!(policy.choose(&a, &[Free, Free]), Choice::Channel(0));
        assert_eq!(policy.choose(&b, &[Free, Free]), Choice::Channel(1));
        assert_eq!(policy.choose(&a, &[Busy, Free]), Choice::Busy { usable: 1 });
        assert_eq!(policy.choose(&c, &[Free, Free]), Choice::Busy { usable: 0 });
        assert!(policy.keeps(0) && policy.keeps(1) && !policy.keeps(2));
        policy.departed(a.client);
        assert_eq!(policy.choose(&c, &[Free, Free]), Choice::Channel(0));
    }

    #[test]
    fn a_client_whose_channel_faulted_gets_another() {
        let mut policy = Exclusive::new();
        assert_eq!(policy.choose(&Ask::of(SessionId(1), 0), &[Free, Free]), Choice::Channel(0));
        assert_eq!(policy.choose(&Ask::of(SessionId(1), 0), &[Faulted, Free]), Choice::Channel(1));
    }
}
