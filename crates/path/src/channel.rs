//! Stage 3, channel: an admitted request gets an engine channel, waits for one, or is refused.
//!
//! ```text
//! Admitted ─► policy's choice, checked ─► Placed ─► Descriptor
//!          └► busy: waiting list (bounded per user) or refusal
//! ```
//!
//! The thesis's driver returns an error when all 32 channels are busy and names a waiting list as the alternative (Wicki 2014,
//! 3.4); here each request chooses. Higher classes get channels first. Requests of one queue start in submission order, so a
//! request behind a waiting one of a lower class waits in that class. The engine runs them.
//!
//! Requests may run for hours, and other users must not wait for all of them. So, independent of the policy, the last eighth of the
//! channels goes only to users that hold none, and a user holds at most half if there are several users. Of 32 channels, two
//! users that take all they can leave four for others. With several users the eighth is at least one channel; a single user may use
//! all of fewer than eight.
//!
//! Some operations need one of a few [`Places`] of the engine, too. They wait without a channel while these are taken, and users
//! share the places by the same rule.

use std::collections::{BTreeMap, VecDeque};

use memferry_clock::Instant;
use memferry_transfer::{Descriptor, Failure, Places, PriorityClass, WhenBusy};

use crate::capability::{Admitted, Claims, Limit};
use crate::policy::{Acts, Ask, ChannelState, Choice, Outstanding, Policy};
use crate::request::{Origin, QueueKey, Retired};

/// A request with a channel to itself: output of placement.
#[derive(Debug)]
#[must_use = "a placed request holds a channel"]
pub struct Placed<M> {
    admitted: Admitted<M>,
    origin: Origin,
    channel: u32,
}

/// The parts of a placed request: for the engine, and for the ledger.
pub(crate) struct Unfolded<M> {
    pub(crate) descriptor: Result<Descriptor<M>, Failure>,
    pub(crate) claims: Claims,
    pub(crate) origin: Origin,
    pub(crate) channel: u32,
    pub(crate) ask: Ask,
    pub(crate) limit: Option<Limit>,
}

impl<M> Placed<M> {
    /// Splits the request into the engine's descriptor and what the ledger keeps while it runs.
    pub(crate) fn unfold(self) -> Unfolded<M> {
        let channel = self.channel;
        let origin = self.origin;
        let terms = *self.admitted.terms();
        let ask = ask(&self.admitted, origin.user);
        let limit = self.admitted.limit();
        let (operation, claims) = self.admitted.into_parts();
        // Admission checked the same bounds; should the two ever disagree, the request fails and nothing moves.
        let descriptor = Descriptor::new(channel, operation)
            .map(|descriptor| descriptor.with_hint(terms.hint))
            .map_err(|error| Failure::OutOfBounds { side: error.side, available: 0 });
        Unfolded { descriptor, claims, origin, channel, ask, limit }
    }
}

/// What a policy sees of an admitted request.
pub(crate) fn ask<M>(admitted: &Admitted<M>, user: u32) -> Ask {
    let terms = admitted.terms();
    let bytes = admitted.operation().total_bytes();
    Ask { client: admitted.session(), user, class: terms.class, bytes, deadline: terms.deadline }
}

/// Index of the waiting list of a class.
const fn rank(class: PriorityClass) -> usize {
    PriorityClass::High.index() - class.index()
}

/// A request that waits for a channel, and for one of these places.
struct Waits<M> {
    admitted: Admitted<M>,
    origin: Origin,
    places: Option<Places>,
    /// Its number among arrivals, or the latest one at which its user got one of these places.
    since: u64,
}

/// Who has a busy channel.
#[derive(Clone, Copy)]
struct Holder {
    user: u32,
    /// The group of the place that it has, too.
    group: Option<u64>,
}

/// Waiting requests of one queue.
#[derive(Clone, Copy, Default)]
struct Waiting {
    count: u32,
    /// Rank of the latest one.
    rank: usize,
    /// The latest pass over the waiting lists that met one of them.
    met: u64,
    /// The count changed since it was reported.
    changed: bool,
}

/// The channels of one engine and the requests that wait for them.
pub(crate) struct Channels<M> {
    states: Vec<ChannelState>,
    /// Whose request a busy channel serves.
    holders: Vec<Option<Holder>>,
    /// Channels held, by user.
    held: BTreeMap<u32, usize>,
    /// Queues of more than one user are open.
    crowded: bool,
    /// Waiting lists by rank, each in order of arrival.
    waiting: [VecDeque<Waits<M>>; 3],
    /// The latest pass over the waiting lists found only requests that lack a place, and nothing has changed since.
    rests: bool,
    /// Counts arrivals in the waiting lists, and places that were given.
    turn: u64,
    waiting_count: usize,
    /// Waiting requests that have a deadline.
    timed: usize,
    of_queue: Vec<Waiting>,
    /// Queues with waiting requests.
    waiting_queues: usize,
    /// Queues whose number of waiting requests changed since it was reported.
    changed: Vec<QueueKey>,
    /// Passes over the waiting lists so far.
    pass: u64,
    /// Quota places taken, by user: by requests that wait, and by those that orders hold.
    places: BTreeMap<u32, usize>,
    waiting_per_user: usize,
}

impl<M> Channels<M> {
    pub(crate) fn new(channels: u32, waiting_per_user: usize) -> Self {
        let states = vec![ChannelState::Free; channels as usize];
        let holders = vec![None; channels as usize];
        let held = Default::default();
        let waiting = Default::default();
        let of_queue = Default::default();
        let places = Default::default();
        let crowded = false;
        let rests = false;
        let turn = 0;
        let waiting_count = 0;
        let timed = 0;
        let waiting_queues = 0;
        let changed = Vec::new();
        let pass = 0;
        Self {
            states,
            holders,
            held,
            crowded,
            waiting,
            rests,
            turn,
            waiting_count,
            timed,
            of_queue,
            waiting_queues,
            changed,
            pass,
            places,
            waiting_per_user,
        }
    }

    pub(crate) fn states(&self) -> &[ChannelState] {
        &self.states
    }

    pub(crate) fn set(&mut self, channel: u32, state: ChannelState) {
        let Some(entry) = self.states.get_mut(channel as usize) else { return };
        *entry = state;
        self.rests = false;
        if let Some(Holder { user, .. }) = self.holders[channel as usize].take()
            && let Some(count) = self.held.get_mut(&user)
        {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&user);
            }
        }
    }

    /// Gives a channel to a user's request, with one of these places.
    fn hold(&mut self, channel: u32, user: u32, places: Option<Places>) {
        self.set(channel, ChannelState::Busy);
        let group = places.map(|places| places.group);
        if group.is_some() {
            self.turn += 1;
            let of_group = |waits: &&mut Waits<M>| waits.places.map(|places| places.group) == group;
            let waiting = self.waiting.iter_mut().flatten().filter(of_group);
            waiting.filter(|waits| waits.origin.user == user).for_each(|waits| waits.since = self.turn);
        }
        if let Some(holder) = self.holders.get_mut(channel as usize) {
            *holder = Some(Holder { user, group });
            *self.held.entry(user).or_default() += 1;
        }
    }

    /// Sets whether queues of more than one user are open.
    pub(crate) fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
        self.rests = false;
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting_count
    }

    /// Whether a waiting request may be able to start, or may be overdue.
    #[inline]
    pub(crate) fn must_settle(&self) -> bool {
        self.waiting_count > 0 && (!self.rests || self.timed > 0)
    }

    /// Whether any request of the queue waits.
    #[inline]
    pub(crate) fn waits(&self, queue: QueueKey) -> bool {
        self.waiting_count > 0 && self.of_queue.get(queue.0 as usize).is_some_and(|queue| queue.count > 0)
    }

    /// Requests of the queue that wait.
    #[cfg(test)]
    pub(crate) fn waiting_of(&self, queue: QueueKey) -> u32 {
        self.of_queue.get(queue.0 as usize).map_or(0, |queue| queue.count)
    }

    /// Reports how many requests wait of each queue for which that changed since the last call.
    pub(crate) fn report_waiting(&mut self, mut report: impl FnMut(QueueKey, u32)) {
        for key in self.changed.drain(..) {
            if let Some(queue) = self.of_queue.get_mut(key.0 as usize) {
                queue.changed = false;
                report(key, queue.count);
            }
        }
    }

    /// The earliest deadline among the requests that wait.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.timed == 0 {
            return None;
        }
        self.waiting.iter().flatten().filter_map(|waits| waits.admitted.terms().deadline).min()
    }

    /// Whether one more request of a user may wait here, or be held by an order.
    pub(crate) fn room_for(&self, user: u32) -> Result<(), Failure> {
        let taken = self.places.get(&user).copied().unwrap_or(0);
        let limit = self.waiting_per_user;
        if taken < limit { Ok(()) } else { Err(Failure::WaitingQuota { limit: limit as u64 }) }
    }

    /// Counts a request that waits or is held.
    pub(crate) fn take_places(&mut self, user: u32, places: usize) {
        *self.places.entry(user).or_default() += places;
    }

    /// Counts off a request that no longer waits or is held.
    pub(crate) fn free_places(&mut self, user: u32, places: usize) {
        if let Some(taken) = self.places.get_mut(&user) {
            *taken -= places;
            if *taken == 0 {
                self.places.remove(&user);
            }
        }
    }

    /// Places a new request, which may need one of `places`; `Ok(None)` if it waits. If the policy `promises` deadlines, a request
    /// with a deadline never waits. One `held` by an order passed the quota when the order took it.
    pub(crate) fn place(
        &mut self,
        admitted: Admitted<M>,
        origin: Origin,
        places: Option<Places>,
        (held, promises): (bool, bool),
        policy: &mut dyn Policy,
    ) -> Result<Option<Placed<M>>, Retired> {
        let choice = if self.waits(origin.queue) {
            Choice::Busy { usable: self.usable() }
        } else if self.lacks_place(places, origin.user) {
            Choice::Busy { usable: places.map_or(0, |places| places.most) }
        } else {
            self.choose(&ask(&admitted, origin.user), policy)
        };
        let usable = match choice {
            Choice::Channel(channel) => {
                self.hold(channel, origin.user, places);
                return Ok(Some(Placed { admitted, origin, channel }));
            }
            Choice::Busy { usable } => usable,
        };
        let all_faulted = self.usable() == 0;
        let failure = match admitted.terms().when_busy {
            _ if all_faulted => Failure::ChannelFaulted,
            _ if promises && admitted.terms().deadline.is_some() => Failure::DeadlineUnreachable,
            WhenBusy::Refuse => Failure::ChannelsBusy { channels: u64::from(usable) },
            WhenBusy::Wait => match self.room_for(origin.user) {
                Err(full) if !held => full,
                _ => {
                    self.turn += 1;
                    self.wait(Waits { admitted, origin, places, since: self.turn });
                    return Ok(None);
                }
            },
        };
        let (_, claims) = admitted.into_parts();
        Err(Retired::refused(origin, claims, failure))
    }

    fn wait(&mut self, waits: Waits<M>) {
        let Waits { admitted, origin, .. } = &waits;
        self.rests = false;
        let index = origin.queue.0 as usize;
        if index >= self.of_queue.len() {
            self.of_queue.resize_with(index + 1, Default::default);
        }
        let queue = &mut self.of_queue[index];
        let own = rank(admitted.terms().class);
        queue.rank = if queue.count > 0 { own.max(queue.rank) } else { own };
        self.waiting_queues += usize::from(queue.count == 0);
        queue.count += 1;
        if !std::mem::replace(&mut queue.changed, true) {
            self.changed.push(origin.queue);
        }
        let to = queue.rank;
        self.take_places(origin.user, admitted.places());
        self.waiting_count += 1;
        self.timed += usize::from(admitted.terms().deadline.is_some());
        self.waiting[to].push_back(waits);
    }

    /// Updates the counts for a request that no longer waits.
    fn count_off_waiting(&mut self, admitted: &Admitted<M>, origin: Origin) {
        self.waiting_count -= 1;
        self.rests = false;
        self.timed -= usize::from(admitted.terms().deadline.is_some());
        if let Some(queue) = self.of_queue.get_mut(origin.queue.0 as usize) {
            queue.count -= 1;
            if !std::mem::replace(&mut queue.changed, true) {
                self.changed.push(origin.queue);
            }
            self.waiting_queues -= usize::from(queue.count == 0);
        }
        self.free_places(origin.user, admitted.places());
    }

    /// Whether the present pass meets a queue for the first time; only that request of the queue may start. A mark, not a list to
    /// search, because thousands may wait while all workers need the capability table.
    fn meet(&mut self, queue: QueueKey) -> bool {
        let pass = self.pass;
        let queue = self.of_queue.get_mut(queue.0 as usize);
        queue.is_some_and(|queue| std::mem::replace(&mut queue.met, pass) != pass)
    }

    /// Places the first waiting request that can start. Of each queue, only the earliest may.
    pub(crate) fn place_waiting(&mut self, policy: &mut dyn Policy) -> Option<Placed<M>> {
        if self.rests || !self.states.contains(&ChannelState::Free) {
            return None;
        }
        self.pass += 1;
        if policy.acts().contains(Acts::ORDERS) {
            return self.place_most_urgent(policy);
        }
        let mut met = 0;
        let mut placeless = 0;
        for rank in 0..self.waiting.len() {
            let mut with_place = Vec::new();
            for index in 0..self.waiting[rank].len() {
                // The rest wait behind requests that were tried.
                if met == self.waiting_queues {
                    break;
                }
                let Waits { origin, places, since, .. } = self.waiting[rank][index];
                if !self.meet(origin.queue) {
                    continue;
                }
                met += 1;
                if places.is_some() {
                    let lacks = self.lacks_place(places, origin.user);
                    placeless += usize::from(lacks);
                    with_place.extend((!lacks).then_some((since, index)));
                    continue;
                }
                let asked = ask(&self.waiting[rank][index].admitted, origin.user);
                if let Choice::Channel(channel) = self.choose(&asked, policy) {
                    return self.give((rank, index), channel);
                }
            }
            // A place may be free seldom: it goes to the user who has waited longest since the last one.
            with_place.sort_unstable();
            for (_, index) in with_place {
                let Waits { admitted, origin, .. } = &self.waiting[rank][index];
                let asked = ask(admitted, origin.user);
                if let Choice::Channel(channel) = self.choose(&asked, policy) {
                    return self.give((rank, index), channel);
                }
            }
        }
        // A policy may choose otherwise at any time; a place is free only after one of the changes that end the rest.
        self.rests = placeless == met;
        None
    }

    /// Places the most urgent request that can start, out of the earliest waiting one of each queue.
    fn place_most_urgent(&mut self, policy: &mut dyn Policy) -> Option<Placed<M>> {
        let mut first: Vec<(u64, (usize, usize), Ask)> = Vec::new();
        let mut placeless = 0;
        for rank in 0..self.waiting.len() {
            for index in 0..self.waiting[rank].len() {
                if first.len() + placeless == self.waiting_queues {
                    break;
                }
                let Waits { origin, places, .. } = self.waiting[rank][index];
                if !self.meet(origin.queue) {
                    continue;
                }
                if self.lacks_place(places, origin.user) {
                    placeless += 1;
                    continue;
                }
                let asked = ask(&self.waiting[rank][index].admitted, origin.user);
                first.push((policy.urgency(&asked), (rank, index), asked));
            }
        }
        self.rests = first.is_empty();
        first.sort_unstable_by_key(|(urgency, place, _)| (*urgency, *place));
        first.into_iter().find_map(|(_, place, asked)| match self.choose(&asked, policy) {
            Choice::Channel(channel) => self.give(place, channel),
            Choice::Busy { .. } => None,
        })
    }

    /// Gives a channel to a waiting request, named by rank and index.
    fn give(&mut self, (rank, index): (usize, usize), channel: u32) -> Option<Placed<M>> {
        let Waits { admitted, origin, places, .. } = self.waiting[rank].remove(index)?;
        self.count_off_waiting(&admitted, origin);
        self.hold(channel, origin.user, places);
        Some(Placed { admitted, origin, channel })
    }

    /// The waiting requests, as a policy sees them.
    pub(crate) fn asks(&self) -> impl Iterator<Item = Outstanding> {
        let waiting = self.waiting.iter().flatten();
        waiting.map(|waits| Outstanding {
            ask: ask(&waits.admitted, waits.origin.user),
            done: 0,
            at_rest: true,
        })
    }

    /// Removes the waiting requests for which `gives_up` returns a failure.
    pub(crate) fn give_up(
        &mut self,
        mut gives_up: impl FnMut(&Admitted<M>, Origin) -> Option<Failure>,
    ) -> Vec<Retired> {
        let mut given_up = Vec::new();
        if self.waiting_count == 0 {
            return given_up;
        }
        for rank in 0..self.waiting.len() {
            for waits in std::mem::take(&mut self.waiting[rank]) {
                let origin = waits.origin;
                match gives_up(&waits.admitted, origin) {
                    None => self.waiting[rank].push_back(waits),
                    Some(failure) => {
                        self.count_off_waiting(&waits.admitted, origin);
                        let (_, claims) = waits.admitted.into_parts();
                        given_up.push(Retired::refused(origin, claims, failure));
                    }
                }
            }
        }
        given_up
    }

    /// The policy's choice, checked: a channel that does not exist, is not free, or exceeds the user's share counts as busy.
    #[inline]
    pub(crate) fn choose(&self, ask: &Ask, policy: &mut dyn Policy) -> Choice {
        let held = || self.held.get(&ask.user).copied().unwrap_or(0);
        match policy.choose(ask, &self.states) {
            Choice::Channel(channel) if self.states.get(channel as usize) != Some(&ChannelState::Free) => {
                Choice::Busy { usable: self.usable() }
            }
            Choice::Channel(_) if self.has_its_share(held()) => Choice::Busy { usable: held() as u32 },
            choice => choice,
        }
    }

    /// Whether a user that holds this many channels has its share.
    fn has_its_share(&self, held: usize) -> bool {
        let free = || self.states.iter().filter(|state| **state == ChannelState::Free).count();
        self.is_share(held, self.states.len(), free)
    }

    /// Whether `held` of `all` are a user's share, if so many are free.
    fn is_share(&self, held: usize, all: usize, free: impl FnOnce() -> usize) -> bool {
        let left = (all / 8).max(usize::from(self.crowded));
        held > 0 && (self.crowded && held >= all / 2 || free() <= left)
    }

    /// Lets waiting requests start without a place of this group.
    pub(crate) fn places_are_gone(&mut self, group: u64) {
        let of_group = |waits: &&mut Waits<M>| waits.places.is_some_and(|places| places.group == group);
        self.waiting.iter_mut().flatten().filter(of_group).for_each(|waits| waits.places = None);
        self.rests = false;
    }

    /// Whether a request of the user has to wait for one of these places.
    fn lacks_place(&self, places: Option<Places>, user: u32) -> bool {
        let Some(Places { group, most }) = places else { return false };
        let holders = || self.holders.iter().flatten().filter(|holder| holder.group == Some(group));
        let all = most as usize;
        let free = all.saturating_sub(holders().count());
        free == 0 || self.is_share(holders().filter(|holder| holder.user == user).count(), all, || free)
    }

    /// Channels that have not failed.
    pub(crate) fn usable(&self) -> u32 {
        self.states.iter().filter(|state| **state != ChannelState::Faulted).count() as u32
    }
}
