//! Stage 3, channel: an admitted request gets an engine channel, waits for one, or is refused.
//!
//! ```text
//! Admitted ─► policy's choice, checked ─► Placed ─► Descriptor
//!          └► busy: waiting list (bounded per client) or refusal
//! ```
//!
//! The thesis's driver returns an error when all 32 channels are occupied and names a waiting list as the alternative
//! (Wicki 2014, 3.4); here the request chooses. Requests of one queue start in the order they came. Running them is the
//! engine's.

use std::collections::VecDeque;

use memferry_transfer::{Descriptor, Failure, SessionId, WhenBusy};

use crate::capability::{Admitted, Claims};
use crate::completion::QueueKey;
use crate::policy::{Choice, Policy};

/// What an engine channel is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelState {
    /// Nothing.
    Free,
    /// It holds a descriptor.
    Busy,
    /// It failed and waits for a reset.
    Faulted,
}

/// Who asked, under which name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) queue: QueueKey,
    pub(crate) user: u32,
    pub(crate) tag: u64,
}

/// A request with a channel to itself: output of placement.
#[derive(Debug)]
#[must_use = "a placed request holds a channel"]
pub struct Placed<M> {
    admitted: Admitted<M>,
    origin: Origin,
    channel: u32,
}

/// A placed request taken apart for the engine.
pub(crate) struct Unfolded<M> {
    pub(crate) descriptor: Result<Descriptor<M>, Failure>,
    pub(crate) claims: Claims,
    pub(crate) origin: Origin,
    pub(crate) channel: u32,
    pub(crate) deadline: Option<memferry_clock::Instant>,
}

impl<M> Placed<M> {
    /// The engine's descriptor and what the ledger keeps meanwhile.
    pub(crate) fn unfold(self) -> Unfolded<M> {
        let (channel, origin, deadline) = (self.channel, self.origin, self.admitted.deadline());
        let (operation, claims) = self.admitted.into_parts();
        // Admission checked the same bounds; should the two ever disagree, the request fails and nothing moves.
        let descriptor = Descriptor::new(channel, operation)
            .map_err(|error| Failure::OutOfBounds { side: error.side, available: 0 });
        Unfolded { descriptor, claims, origin, channel, deadline }
    }
}

/// A request that did not get a channel.
pub(crate) struct Unplaced {
    pub(crate) claims: Claims,
    pub(crate) origin: Origin,
    pub(crate) failure: Failure,
}

/// The channels of one engine and who waits for them.
pub(crate) struct Channels<M> {
    states: Vec<ChannelState>,
    /// Whose request a busy channel serves.
    holders: Vec<Option<u32>>,
    /// Users of more than one id have queues here, so that none may hold more than its share.
    pub(crate) crowded: bool,
    waiting: VecDeque<(Admitted<M>, Origin)>,
    waiting_per_session: usize,
}

impl<M> Channels<M> {
    pub(crate) fn new(channels: u32, waiting_per_session: usize) -> Self {
        let states = vec![ChannelState::Free; channels as usize];
        let holders = vec![None; channels as usize];
        Self { states, holders, crowded: false, waiting: VecDeque::new(), waiting_per_session }
    }

    pub(crate) fn states(&self) -> &[ChannelState] {
        &self.states
    }

    pub(crate) fn set(&mut self, channel: u32, state: ChannelState) {
        if let Some(entry) = self.states.get_mut(channel as usize) {
            *entry = state;
            self.holders[channel as usize] = None;
        }
    }

    /// Gives a channel to a user's request.
    fn hold(&mut self, channel: u32, user: u32) {
        self.set(channel, ChannelState::Busy);
        if let Some(holder) = self.holders.get_mut(channel as usize) {
            *holder = Some(user);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The earliest deadline among the requests that wait.
    pub(crate) fn next_deadline(&self) -> Option<memferry_clock::Instant> {
        self.waiting.iter().filter_map(|(admitted, _)| admitted.deadline()).min()
    }

    /// Places a new request: `Ok(None)` when it waits.
    pub(crate) fn place(
        &mut self,
        admitted: Admitted<M>,
        origin: Origin,
        policy: &mut dyn Policy,
    ) -> Result<Option<Placed<M>>, Unplaced> {
        let session = admitted.session();
        let overtakes = self.waiting.iter().any(|(_, other)| other.queue == origin.queue);
        let choice = if overtakes {
            Choice::Busy { usable: self.usable() }
        } else {
            self.choose(session, origin.user, policy)
        };
        let usable = match choice {
            Choice::Channel(channel) => {
                self.hold(channel, origin.user);
                return Ok(Some(Placed { admitted, origin, channel }));
            }
            Choice::Busy { usable } => usable,
        };
        let all_faulted = self.usable() == 0;
        let failure = match admitted.when_busy() {
            _ if all_faulted => Failure::ChannelFaulted,
            WhenBusy::Refuse => Failure::ChannelsBusy { channels: u64::from(usable) },
            WhenBusy::Wait if self.waiting_of(session) < self.waiting_per_session => {
                self.waiting.push_back((admitted, origin));
                return Ok(None);
            }
            WhenBusy::Wait => Failure::WaitingQuota { limit: self.waiting_per_session as u64 },
        };
        let (_, claims) = admitted.into_parts();
        Err(Unplaced { claims, origin, failure })
    }

    /// Places the first waiting request that can be: one of a queue only when no earlier one of that queue still waits.
    pub(crate) fn place_waiting(&mut self, policy: &mut dyn Policy) -> Option<Placed<M>> {
        if !self.states.contains(&ChannelState::Free) {
            return None;
        }
        let mut held_back: Vec<QueueKey> = Vec::new();
        for index in 0..self.waiting.len() {
            let (admitted, origin) = &self.waiting[index];
            if held_back.contains(&origin.queue) {
                continue;
            }
            match self.choose(admitted.session(), origin.user, policy) {
                Choice::Channel(channel) => {
                    let (admitted, origin) = self.waiting.remove(index)?;
                    self.hold(channel, origin.user);
                    return Some(Placed { admitted, origin, channel });
                }
                Choice::Busy { .. } => held_back.push(origin.queue),
            }
        }
        None
    }

    /// Takes the waiting requests that `gives_up` names a failure for.
    pub(crate) fn give_up(
        &mut self,
        mut gives_up: impl FnMut(&Admitted<M>, Origin) -> Option<Failure>,
    ) -> Vec<Unplaced> {
        let mut given_up = Vec::new();
        for (admitted, origin) in std::mem::take(&mut self.waiting) {
            match gives_up(&admitted, origin) {
                None => self.waiting.push_back((admitted, origin)),
                Some(failure) => {
                    let (_, claims) = admitted.into_parts();
                    given_up.push(Unplaced { claims, origin, failure });
                }
            }
        }
        given_up
    }

    /// The policy's choice; a channel that does not exist or is not free counts as busy. Whatever the policy, while users
    /// share an engine one of them holds at most half of its channels, and alone it leaves an eighth to who may come:
    /// requests may run for hours, and another user's must not wait for all of them.
    fn choose(&self, session: SessionId, user: u32, policy: &mut dyn Policy) -> Choice {
        let channels = self.states.len();
        let share = if self.crowded { (channels / 2).max(1) } else { channels - channels / 8 };
        let held = || self.holders.iter().filter(|holder| **holder == Some(user)).count();
        match policy.choose(session, &self.states) {
            Choice::Channel(channel) if self.states.get(channel as usize) != Some(&ChannelState::Free) => {
                Choice::Busy { usable: self.usable() }
            }
            Choice::Channel(_) if held() >= share => Choice::Busy { usable: share as u32 },
            choice => choice,
        }
    }

    /// Channels that have not failed.
    pub(crate) fn usable(&self) -> u32 {
        self.states.iter().filter(|state| **state != ChannelState::Faulted).count() as u32
    }

    fn waiting_of(&self, session: SessionId) -> usize {
        self.waiting.iter().filter(|(admitted, _)| admitted.session() == session).count()
    }
}
