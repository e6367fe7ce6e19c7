//! Stage 2, policy: chooses the engine channel of each request and shares the engine among the running ones.
//!
//! ```text
//! request ──accept──► accepted, or refused      before it asks for a channel    (deadlines that cannot be met)
//!         ──choose──► a free channel, or busy   when it asks for one
//! waiting ──urgency─► the next to start         when a channel becomes free
//! running ──pace────► turns of each, a wake     before the engine moves bytes   (0 suspends)
//!         ◄─moved──── bytes of each             afterwards
//! short   ──lend────► bytes                     before requests are done at once  (0: through a channel)
//!         ◄─take_back─ what is left of them     after a batch of these
//! ```
//!
//! # Requests done at once
//!
//! Short requests use no channel, so `choose`, `accept` and `urgency` never see them. Policies that pace promise bytes, and lend the
//! bytes that such requests move; what they do not lend goes through a channel. All other policies allow every short request:
//!
//! | policy | short requests |
//! | --- | --- |
//! | shared, exclusive | always done at once, also those of a client without a channel |
//! | priority | of other classes than high: not within a slice, which begins after the batch under way; high ones cause slices as long ones do |
//! | deadline | those with a deadline are never done at once, but accepted or refused; the others share a tenth with long ones while one is accepted |
//! | weighted | count for their client's share as long ones do; an idle client may be ahead by one loan |
//! | rate limit | pay in advance from the same bucket as long ones, without exceeding it |
//!
//! Those that move nothing are always done at once. One of a queue never overtakes another of the same queue that waits.
//!
//! A policy sees the client, the length and deadline of each request, and the state of each channel, but no memory and no rights.
//! The channel stage checks its choices, so a faulty policy can delay a request, but cannot make two share a channel or let one
//! user take the channels that are left to others. [`Policy::acts`] names the steps beyond `choose` that a policy takes; the
//! others cost nothing. A policy gets the time from its caller, so the same code runs in live workers and in virtual time.
//!
//! Exclusive, shared and priority are those of Papa 2014; the real-time policies are its future work. To write one, see "Adding
//! a policy" in ARCHITECTURE.md.
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
    /// All of the channels that this client may use are taken.
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
    /// Its class; admission checked that the client may use it.
    pub class: PriorityClass,
    pub bytes: u64,
    /// The request fails if it is not complete by then.
    pub deadline: Option<Instant>,
}

impl Ask {
    /// A request of no bytes, of the normal class, without a deadline.
    pub const fn of(client: SessionId, user: u32) -> Self {
        Self { client, user, class: PriorityClass::Normal, bytes: 0, deadline: None }
    }
}

/// A request that was accepted and has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    pub ask: Ask,
    /// Bytes done, as far as the engine reported.
    pub done: u64,
    /// Nothing of it is moving: its channel is at rest, or it has none.
    pub at_rest: bool,
}

/// Collects the outstanding requests. A function, because only some policies need them.
pub type AllOutstanding<'a> = dyn Fn() -> Vec<Outstanding> + 'a;

bitflags::bitflags! {
    /// The steps a policy takes besides choosing channels.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Acts: u8 {
        const ACCEPTS = 1;
        const ORDERS = 1 << 1;
        /// [`Policy::pace`], [`Policy::moved`], [`Policy::lend`] and [`Policy::take_back`].
        const PACES = 1 << 2;
    }
}

/// Chooses channels for requests, and paces the running ones.
pub trait Policy: Send {
    /// Its name in configuration and status.
    fn name(&self) -> &'static str;

    /// Picks a channel for a request; `channels` holds each channel's state by index.
    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice;

    /// Forgets `client`, which has closed its last queue, and frees the channels kept for it.
    fn departed(&mut self, client: SessionId);

    /// The steps it takes besides `choose`. Must not change during its life.
    fn acts(&self) -> Acts {
        Acts::empty()
    }

    /// Whether a channel is bound to a client, so that the policy of another class must not use it.
    fn keeps(&self, _channel: u32) -> bool {
        false
    }

    /// Whether to accept a request, given the outstanding ones.
    ///
    /// # Errors
    /// The [`Failure`] that the request completes with.
    fn accept(
        &mut self,
        _now: Instant,
        _ask: &Ask,
        _outstanding: &AllOutstanding<'_>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// Waiting requests start in ascending order of this number, whatever their class.
    fn urgency(&self, _ask: &Ask) -> u64 {
        0
    }

    /// Sets how many chunks (or descriptors) each request of `running` may move before the next call. `turns` come as 1 for each;
    /// 0 suspends. Returns the latest time of the next call. Also called with an empty `running` when the last request ended.
    fn pace(&mut self, _now: Instant, _running: &[Outstanding], _turns: &mut [u32]) -> Option<Instant> {
        None
    }

    /// Charges the bytes moved for a request since the last call.
    fn moved(&mut self, _ask: &Ask, _bytes: u64) {}

    /// Lends bytes for requests like `ask` that are done at once: at least its bytes, which are not 0, and not more than `at_most`; or
    /// 0, and they go through channels. The time is that of the last `pace`.
    fn lend(&mut self, _ask: &Ask, _at_most: u64) -> u64 {
        0
    }

    /// Ends one [loan](Self::lend) of more than 0 bytes: so many of them were `used`, and so many not. Comes before `pace`, `moved` and
    /// `accept`.
    fn take_back(&mut self, _ask: &Ask, _used: u64, _unused: u64) {}
}

/// Channels that have not failed.
fn healthy(channels: &[ChannelState]) -> u32 {
    channels.iter().filter(|state| **state != ChannelState::Faulted).count() as u32
}

/// The choice of `inner` for a less important request, which leaves an eighth of the channels free: a more important one then finds
/// a channel without waiting for long transfers.
fn leaving_an_eighth(inner: &mut Shared, ask: &Ask, channels: &[ChannelState]) -> Choice {
    let free = channels.iter().filter(|state| **state == ChannelState::Free).count();
    let healthy = healthy(channels) as usize;
    let left = if healthy > 1 { healthy.div_ceil(8) } else { 0 };
    if free > left { inner.choose(ask, channels) } else { Choice::Busy { usable: (healthy - left) as u32 } }
}
