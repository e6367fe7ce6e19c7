//! Stage 2, policy: which engine channel serves which client.
//!
//! ```text
//! request of a client ──choose(client, channels)──► a free channel, or busy
//! ```
//!
//! A policy sees clients and the state of channels, never memory. Its answer is checked by the channel stage, so a faulty
//! policy cannot make a channel serve two requests, nor one user hold so many that others find none. To write one: a file
//! beside `shared.rs` that implements [`Policy`], and a line in [`PolicyKind`]. The policies are those of Papa 2014
//! ("Exclusive Channel", "Shared Channel").

mod exclusive;
mod shared;

use memferry_transfer::SessionId;

pub use exclusive::Exclusive;
pub use shared::Shared;

use crate::channel::ChannelState;

/// A policy's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// This free channel.
    Channel(u32),
    /// None is free of the `usable` channels this client may use.
    Busy {
        /// How many channels the client may use.
        usable: u32,
    },
}

/// Decides which channel serves which client.
pub trait Policy: Send {
    /// Its name in configuration and status.
    fn name(&self) -> &'static str;

    /// Picks a channel for a request of `client`; `channels` tells each channel's state by index.
    fn choose(&mut self, client: SessionId, channels: &[ChannelState]) -> Choice;

    /// `client` is gone: what was kept for it is free.
    fn departed(&mut self, client: SessionId);
}

/// The policies that can be named in configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyKind {
    /// [`Shared`].
    #[default]
    Shared,
    /// [`Exclusive`].
    Exclusive,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Shared, Self::Exclusive];

    /// Its name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
        }
    }

    /// A fresh policy of this kind.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Shared => Box::new(Shared::new()),
            Self::Exclusive => Box::new(Exclusive::new()),
        }
    }
}
