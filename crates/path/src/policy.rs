//! Stage 2, policy: which engine channel serves which client, and who moves on when several do.
//!
//! ```text
//! request ──accept──► taken in, or refused      before it asks for a channel    (deadlines that cannot be met)
//!         ──choose──► a free channel, or busy   when it asks for one
//! waiting ──urgency─► who is next               when a channel becomes free
//! running ──pace────► turns of each, a wake     before the engine moves on      (0 suspends)
//!         ◄─moved──── bytes of each             after it did
//! ```
//!
//! A policy sees who asks, how much and until when, and the state of channels; never memory, never rights. What it answers is
//! checked by the channel stage, so a faulty policy can delay a request, not make a channel serve two, nor one user hold so many
//! that others find none. A policy only has what it needs: [`Policy::acts`] says which of the steps beyond `choose` it takes,
//! and the others cost nothing. The same code runs in live workers and in virtual time: a policy has no clock of its own.
//!
//! After Papa 2014 (exclusive, shared, priority), and what its future work asks for (real-time policies). To write one: a file
//! beside `shared.rs` that implements [`Policy`], and a line in `kinds.rs` to name it in configuration.
//!
//! ```
//! use memferry_path::{Ask, ChannelState, Choice, Policy};
//! use memferry_transfer::SessionId;
//!
//! /// Short requests may use every channel, long ones only the first half.
//! struct ShortFirst;
//!
//! impl Policy for ShortFirst {
//!     fn name(&self) -> &'static str {
//!         "short-first"
//!     }
//!
//!     fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
//!         let usable = if ask.bytes <= 64 << 10 { channels.len() } else { channels.len().div_ceil(2) };
//!         match channels[..usable].iter().position(|state| *state == ChannelState::Free) {
//!             Some(channel) => Choice::Channel(channel as u32),
//!             None => Choice::Busy { usable: usable as u32 },
//!         }
//!     }
//!
//!     fn departed(&mut self, _client: SessionId) {}
//! }
//!
//! let ask = Ask { bytes: 1 << 20, ..Ask::of(SessionId(1), 1000) };
//! let channels = [ChannelState::Busy, ChannelState::Free];
//! assert_eq!(ShortFirst.choose(&ask, &channels), Choice::Busy { usable: 1 });
//! ```

mod by_class;
mod deadline;
mod exclusive;
mod kinds;
mod priority;
mod rate_limit;
mod shared;
mod slices;
mod weighted;

use memferry_clock::Instant;
use memferry_transfer::{Failure, PriorityClass, SessionId};

pub use by_class::ByClass;
pub use deadline::Deadline;
pub use exclusive::Exclusive;
pub use kinds::{PolicyError, PolicyKind, PolicySettings};
pub use priority::Priority;
pub use rate_limit::RateLimit;
pub use shared::Shared;
pub use slices::{SliceCounts, Slices};
pub use weighted::Weighted;

/// What an engine channel is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelState {
    Free,
    /// It holds a descriptor.
    Busy,
    /// It failed and waits for a reset.
    Faulted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    Channel(u32),
    /// None is free of the `usable` channels this client may use.
    Busy {
        /// How many channels the client may use.
        usable: u32,
    },
}

/// A request as a policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub client: SessionId,
    /// The user behind the client.
    pub user: u32,
    /// Its class; admission has checked that the client may use it.
    pub class: PriorityClass,
    pub bytes: u64,
    /// When it is given up.
    pub deadline: Option<Instant>,
}

impl Ask {
    /// A request of no bytes, of the normal class, without a deadline.
    pub const fn of(client: SessionId, user: u32) -> Self {
        Self { client, user, class: PriorityClass::Normal, bytes: 0, deadline: None }
    }
}

/// A request that was taken in and has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    pub ask: Ask,
    /// Bytes of it that are done, as far as the engine tells.
    pub done: u64,
    /// It has a channel, which has come to rest. Without a channel it rests too.
    pub at_rest: bool,
}

/// Gathers all that was taken in and has not ended: for a policy that needs to know.
pub type AllOutstanding<'a> = dyn Fn() -> Vec<Outstanding> + 'a;

bitflags::bitflags! {
    /// The steps a policy takes besides choosing channels.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Acts: u8 {
        const ACCEPTS = 1;
        const ORDERS = 1 << 1;
        /// [`Policy::pace`] and [`Policy::moved`]. Short requests then go through channels too.
        const PACES = 1 << 2;
    }
}

/// Decides which channel serves which client, and who moves on.
pub trait Policy: Send {
    /// Its name in configuration and status.
    fn name(&self) -> &'static str;

    /// Picks a channel for a request; `channels` tells each channel's state by index.
    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice;

    /// `client` is gone: what was kept for it is free.
    fn departed(&mut self, client: SessionId);

    /// The steps it takes besides; never changes.
    fn acts(&self) -> Acts {
        Acts::empty()
    }

    /// Whether a channel is kept for somebody, so that no other policy beside this one may give it away.
    fn keeps(&self, _channel: u32) -> bool {
        false
    }

    /// Whether a request may be taken in, given all that was and has not ended.
    ///
    /// # Errors
    /// The [`Failure`] it completes with.
    fn accept(
        &mut self,
        _now: Instant,
        _ask: &Ask,
        _outstanding: &AllOutstanding<'_>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// Of requests that wait, those with less go first, whatever their class.
    fn urgency(&self, _ask: &Ask) -> u64 {
        0
    }

    /// How many chunks (or descriptors) of each request that runs may move until this is asked again: `turns` come as 1 for
    /// each of `running`, 0 suspends. Gives when to ask again at the latest. Nothing runs: `running` is empty.
    fn pace(&mut self, _now: Instant, _running: &[Outstanding], _turns: &mut [u32]) -> Option<Instant> {
        None
    }

    /// Bytes were moved for a request, since this was last told of it.
    fn moved(&mut self, _ask: &Ask, _bytes: u64) {}
}

/// Channels that have not failed.
fn healthy(channels: &[ChannelState]) -> u32 {
    channels.iter().filter(|state| **state != ChannelState::Faulted).count() as u32
}

/// The choice of `inner` for a request that has to leave some channels, an eighth, to others: those of more importance never wait
/// for all of the others' to end.
fn leaving_an_eighth(inner: &mut Shared, ask: &Ask, channels: &[ChannelState]) -> Choice {
    let free = channels.iter().filter(|state| **state == ChannelState::Free).count();
    let healthy = healthy(channels) as usize;
    let left = if healthy > 1 { healthy.div_ceil(8) } else { 0 };
    if free > left { inner.choose(ask, channels) } else { Choice::Busy { usable: (healthy - left) as u32 } }
}
