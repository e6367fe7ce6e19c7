//! Between capability and channel, order: requests that may not start yet, because others of their queue have to end first.
//!
//! ```text
//! accept ─► held, in order ─ next: link kept? fence passed? ─► placement
//!    │            ▲                                                │
//!    │            └──────────── ended: Ok frees the next, Err fails it with the same reason
//!    └─ repeat: members are collected, then done by turns, round after round, until stopped
//! ```
//!
//! Only queues that use links, fences or loops have an [`Order`]; all others never come here. Requests start in the order
//! they came, so what follows a held request waits behind it, and what follows a loop waits until it has ended. Links are
//! io_uring's, fences those of a DSA batch, loops those of a DMA controller's linked channels (Wicki 2014, 2.3.2.4).
//! Nothing here touches channels, engines or the table: what ended without an engine leaves as [`Retired`]. What is held has its
//! places in the quota of its user from [`Orders::accept`] until it starts or leaves so.

use std::collections::VecDeque;

use memferry_clock::Instant;
use memferry_transfer::{EngineKind, Failure, Outcome, Terms};

use crate::capability::{Admitted, Claims};
use crate::request::{Origin, QueueKey, Retired};

/// A request that failed here without having been started; `places` is 0 when it was not held.
fn failed(origin: Origin, (claims, places): (Claims, usize), failure: Failure, inherited: bool) -> Retired {
    Retired { places, inherited, ..Retired::refused(origin, claims, failure) }
}

/// A request as it comes from admission.
pub(crate) enum Arrived<M> {
    Refused(Failure),
    Transfer(Admitted<M>),
    /// A loop over what follows.
    Repeat(u32),
}

impl<M> Arrived<M> {
    /// What it counts for in the quota of its user while it is held.
    pub(crate) fn places(&self) -> usize {
        match self {
            Self::Refused(_) => 0,
            Self::Transfer(admitted) => admitted.places(),
            Self::Repeat(_) => 1,
        }
    }
}

/// What the next request of the queue depends on.
#[derive(Clone, Copy, Default)]
enum Incoming {
    #[default]
    Nothing,
    /// The one before it.
    Linked,
    /// The one before it, which failed so.
    Broken(Failure),
}

/// How the request that was started last stands, when the next depends on it.
#[derive(Clone, Copy, Default)]
enum Link {
    #[default]
    Kept,
    /// It runs under this tag.
    Running(u64),
    Broken(Failure),
}

struct Held<M> {
    step: Step<M>,
    origin: Origin,
    /// It depends on the request before it.
    linked: bool,
    fenced: bool,
}

enum Step<M> {
    One(Admitted<M>),
    Loop(Chain<M>),
}

struct Member<M> {
    admitted: Admitted<M>,
    origin: Origin,
    bytes: u64,
    value: u64,
}

/// A loop: its members keep their claims until it ends.
struct Chain<M> {
    origin: Origin,
    terms: Terms,
    linked: bool,
    rounds: u32,
    members: Vec<Member<M>>,
    at: usize,
    /// Rounds that were whole.
    done: u64,
    running: bool,
    /// It is to end after the present round.
    stop: bool,
    /// It is to end at once.
    ending: Option<Failure>,
    /// The channel that failed under it.
    quarantine: Option<u32>,
    /// What moved the bytes of its latest member that had an engine.
    engine: EngineKind,
}

impl<M: Clone> Chain<M> {
    fn new(origin: Origin, terms: Terms, linked: bool, rounds: u32) -> Self {
        let members = Vec::new();
        let quarantine = None;
        let at = 0;
        let done = 0;
        let running = false;
        let stop = false;
        let ending = None;
        let engine = EngineKind::None;
        Self { origin, terms, linked, rounds, members, at, done, running, stop, ending, quarantine, engine }
    }

    fn add(&mut self, mut admitted: Admitted<M>, origin: Origin) {
        let terms = admitted.terms_mut();
        terms.deadline = [terms.deadline, self.terms.deadline].into_iter().flatten().min();
        let origin = Origin { member: true, linked: false, ..origin };
        self.members.push(Member { admitted, origin, bytes: 0, value: 0 });
    }

    fn is_over(&self) -> bool {
        let whole = self.at == 0 && (self.stop || self.rounds > 0 && self.done >= u64::from(self.rounds));
        self.ending.is_some() || whole
    }

    fn member_ended(&mut self, outcome: &Outcome) {
        self.running = false;
        if outcome.engine != EngineKind::None {
            self.engine = outcome.engine;
        }
        let Some(member) = self.members.get_mut(self.at) else { return };
        member.bytes = member.bytes.saturating_add(outcome.bytes_done);
        member.value = outcome.value;
        match outcome.result {
            Err(failure) => self.ending = Some(failure),
            Ok(()) => {
                self.at += 1;
                if self.at == self.members.len() {
                    (self.at, self.done) = (0, self.done + 1);
                }
            }
        }
    }

    /// The end of all of it: with a failure, members before the failed one had succeeded in that round.
    fn finish(self, retired: &mut Vec<Retired>) {
        let engine = self.engine;
        let result = self.ending.map_or(Ok(()), Err);
        let whole = Retired {
            origin: self.origin,
            claims: Claims::none(),
            quarantine: None,
            places: 1,
            outcome: Outcome { result, bytes_done: 0, value: self.done, engine },
            inherited: result.is_err(),
            watermarked: false,
        };
        for (index, member) in self.members.into_iter().enumerate() {
            let result = if index < self.at { Ok(()) } else { result };
            let (claims, places) = member.admitted.into_kept();
            retired.push(Retired {
                origin: member.origin,
                claims,
                quarantine: self.quarantine,
                places,
                outcome: Outcome { result, bytes_done: member.bytes, value: member.value, engine },
                inherited: result.is_err() && index > self.at,
                watermarked: false,
            });
        }
        retired.push(whole);
    }

    /// Nothing of it was started: all of it fails.
    fn fail(self, failure: Failure, inherited: bool, retired: &mut Vec<Retired>) {
        for member in self.members {
            retired.push(failed(member.origin, member.admitted.into_kept(), failure, inherited));
        }
        retired.push(failed(self.origin, (Claims::none(), 1), failure, inherited));
    }

    /// The earliest of its own and its members', one of which ends all of it.
    fn deadline(&self) -> Option<Instant> {
        let members = self.members.iter().filter_map(|member| member.admitted.terms().deadline);
        members.chain(self.terms.deadline).min()
    }

    fn given_up(&self, gives_up: &mut GivesUp<'_>) -> Option<Failure> {
        gives_up(self.origin, &Claims::none(), &self.terms).or_else(|| {
            let mut members = self.members.iter();
            members
                .find_map(|member| gives_up(member.origin, member.admitted.claims(), member.admitted.terms()))
        })
    }
}

/// Names the failure a request is given up with.
pub(crate) type GivesUp<'a> = dyn FnMut(Origin, &Claims, &Terms) -> Option<Failure> + 'a;

/// What one queue holds back.
pub(crate) struct Order<M> {
    incoming: Incoming,
    link: Link,
    held: VecDeque<Held<M>>,
    collecting: Option<Chain<M>>,
    looping: Option<Chain<M>>,
}

impl<M: Clone> Order<M> {
    fn new() -> Self {
        let incoming = Incoming::Nothing;
        let link = Link::Kept;
        let held = VecDeque::new();
        Self { incoming, link, held, collecting: None, looping: None }
    }

    /// Whether the queue needs no order any more.
    fn is_over(&self) -> bool {
        let nothing = matches!(self.incoming, Incoming::Nothing);
        nothing && self.held.is_empty() && self.collecting.is_none() && self.looping.is_none()
    }

    /// Takes the queue's next request; returns whether it is held.
    fn accept(
        &mut self,
        origin: Origin,
        arrived: Arrived<M>,
        terms: &Terms,
        retired: &mut Vec<Retired>,
    ) -> bool {
        let incoming = std::mem::take(&mut self.incoming);
        let inherited = if let Incoming::Broken(failure) = incoming { Some(failure) } else { None };
        let failed = match self.try_accept(origin, arrived, terms, incoming) {
            Ok(()) => None,
            Err((claims, own)) => {
                let failure = inherited.unwrap_or(own);
                retired.push(failed(origin, (claims, 0), failure, inherited.is_some()));
                if let Some(chain) = self.collecting.take() {
                    chain.fail(failure, true, retired);
                }
                Some(failure)
            }
        };
        if origin.linked {
            self.incoming = failed.map_or(Incoming::Linked, Incoming::Broken);
        }
        failed.is_none()
    }

    /// Holds a request, or says why it fails; a request that inherits a failure is given back with any.
    fn try_accept(
        &mut self,
        origin: Origin,
        arrived: Arrived<M>,
        terms: &Terms,
        incoming: Incoming,
    ) -> Result<(), (Claims, Failure)> {
        let broken = matches!(incoming, Incoming::Broken(_));
        let linked = matches!(incoming, Incoming::Linked);
        match (arrived, &mut self.collecting) {
            (Arrived::Refused(failure), _) => Err((Claims::none(), failure)),
            (Arrived::Transfer(admitted), _) if broken => Err((admitted.into_parts().1, Failure::Cancelled)),
            (Arrived::Repeat(_), Some(_)) => Err((Claims::none(), Failure::BadLoop)),
            (Arrived::Repeat(_), None) if broken || !origin.linked => Err((Claims::none(), Failure::BadLoop)),
            (Arrived::Repeat(rounds), None) => {
                // What links to the loop's first member is the loop itself; nothing can link to its end.
                let origin = Origin { linked: false, ..origin };
                self.collecting = Some(Chain::new(origin, *terms, linked, rounds));
                Ok(())
            }
            (Arrived::Transfer(admitted), Some(chain)) => {
                chain.add(admitted, origin);
                if !origin.linked
                    && let Some(chain) = self.collecting.take()
                {
                    let origin = chain.origin;
                    let linked = chain.linked;
                    let fenced = chain.terms.fenced;
                    self.held.push_back(Held { step: Step::Loop(chain), origin, linked, fenced });
                }
                Ok(())
            }
            (Arrived::Transfer(admitted), None) => {
                self.held.push_back(Held { step: Step::One(admitted), origin, linked, fenced: terms.fenced });
                Ok(())
            }
        }
    }

    /// The next request that may start, when `active` others of the queue run.
    pub(crate) fn next(&mut self, active: u32, retired: &mut Vec<Retired>) -> Option<(Admitted<M>, Origin)> {
        loop {
            if let Some(chain) = self.looping.take_if(|chain| !chain.running && chain.is_over()) {
                chain.finish(retired);
            }
            if let Some(chain) = &mut self.looping {
                let member = chain.members.get(chain.at).filter(|_| !chain.running)?;
                let next = (member.admitted.again(), member.origin);
                chain.running = true;
                return Some(next);
            }
            let head = self.held.front()?;
            match self.link {
                Link::Running(_) if head.linked => return None,
                Link::Broken(failure) if head.linked => {
                    let held = self.held.pop_front()?;
                    self.link = if held.origin.linked { Link::Broken(failure) } else { Link::Kept };
                    held.fail(failure, true, retired);
                    continue;
                }
                _ => {}
            }
            if head.fenced && active > 0 {
                return None;
            }
            let Held { step, origin, .. } = self.held.pop_front()?;
            self.link = if origin.linked { Link::Running(origin.tag) } else { Link::Kept };
            match step {
                Step::One(admitted) => return Some((admitted, origin)),
                Step::Loop(chain) => self.looping = Some(chain),
            }
        }
    }

    /// Takes note of the end of a started request. Returns whether it is complete; a member of a loop is when the loop ends.
    pub(crate) fn ended(&mut self, origin: Origin, outcome: &Outcome) -> bool {
        if origin.member {
            if let Some(chain) = &mut self.looping {
                chain.member_ended(outcome);
            }
            return false;
        }
        // An earlier one may end late, when what was linked to it is gone and another one is awaited.
        if let Link::Running(tag) = self.link
            && origin.linked
            && tag == origin.tag
        {
            self.link = outcome.result.map_or_else(Link::Broken, |()| Link::Kept);
        }
        true
    }

    /// The memory of the loop that runs is to be quarantined with a channel that failed.
    pub(crate) fn quarantine(&mut self, channel: u32) {
        if let Some(chain) = &mut self.looping {
            chain.quarantine = Some(channel);
        }
    }

    /// Gives up requests that did not start, and what is linked to them.
    pub(crate) fn give_up_held(&mut self, gives_up: &mut GivesUp<'_>, retired: &mut Vec<Retired>) {
        let mut carried = None;
        for held in std::mem::take(&mut self.held) {
            let inherited = carried.take().filter(|_| held.linked);
            match held.given_up(gives_up).or(inherited) {
                None => self.held.push_back(held),
                Some(failure) => {
                    carried = Some(failure).filter(|_| held.origin.linked);
                    held.fail(failure, inherited.is_some(), retired);
                }
            }
        }
        if let Some(failure) = carried.filter(|_| self.awaits_successor()) {
            self.break_incoming(failure, true, retired);
        }
        if let Some(failure) = self.collecting.as_ref().and_then(|chain| chain.given_up(gives_up)) {
            self.break_incoming(failure, false, retired);
        }
    }

    /// Whether what is linked to the request held last is still to come, wholly or in part. One that was refused when it came
    /// is not held, and what came after it is linked to nothing before it.
    fn awaits_successor(&self) -> bool {
        match &self.collecting {
            Some(chain) => chain.linked,
            None => matches!(self.incoming, Incoming::Linked),
        }
    }

    /// Ends the loop that runs when one of its requests is to end; its running member is the caller's to cancel.
    pub(crate) fn end_loop(&mut self, gives_up: &mut GivesUp<'_>) -> Option<Failure> {
        let chain = self.looping.as_mut()?;
        let failure = chain.given_up(gives_up)?;
        Some(*chain.ending.get_or_insert(failure))
    }

    /// What comes next fails too.
    fn break_incoming(&mut self, failure: Failure, inherited: bool, retired: &mut Vec<Retired>) {
        if let Some(chain) = self.collecting.take() {
            chain.fail(failure, inherited, retired);
        }
        self.incoming = Incoming::Broken(failure);
    }

    /// Ends loops after their present round.
    pub(crate) fn stop(&mut self, named: &dyn Fn(Origin) -> bool) {
        let held = self.held.iter_mut().filter_map(|held| match &mut held.step {
            Step::Loop(chain) => Some(chain),
            Step::One(_) => None,
        });
        let chains = held.chain(&mut self.looping).chain(&mut self.collecting);
        for chain in chains.filter(|chain| named(chain.origin)) {
            chain.stop = true;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let held = self.held.iter().filter_map(|held| match &held.step {
            Step::One(admitted) => admitted.terms().deadline,
            Step::Loop(chain) => chain.deadline(),
        });
        held.chain(self.collecting.as_ref().and_then(Chain::deadline)).min()
    }
}

impl<M: Clone> Held<M> {
    fn given_up(&self, gives_up: &mut GivesUp<'_>) -> Option<Failure> {
        match &self.step {
            Step::One(admitted) => gives_up(self.origin, admitted.claims(), admitted.terms()),
            Step::Loop(chain) => chain.given_up(gives_up),
        }
    }

    fn fail(self, failure: Failure, inherited: bool, retired: &mut Vec<Retired>) {
        match self.step {
            Step::One(admitted) => {
                retired.push(failed(self.origin, admitted.into_kept(), failure, inherited));
            }
            Step::Loop(chain) => chain.fail(failure, inherited, retired),
        }
    }
}

/// The orders of the queues that have one.
pub(crate) struct Orders<M> {
    queues: Vec<Option<Box<Order<M>>>>,
    count: usize,
    /// No deadline of what is held is earlier. One that has left may have had it: that is found out when it has passed.
    earliest: Option<Instant>,
}

impl<M: Clone> Orders<M> {
    pub(crate) const fn new() -> Self {
        Self { queues: Vec::new(), count: 0, earliest: None }
    }

    /// Whether no queue holds anything back.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn get(&mut self, key: QueueKey) -> Option<&mut Order<M>> {
        if self.count == 0 {
            return None;
        }
        self.queues.get_mut(key.0 as usize)?.as_deref_mut()
    }

    /// Takes a queue's next request; returns whether it is held.
    pub(crate) fn accept(
        &mut self,
        origin: Origin,
        arrived: Arrived<M>,
        terms: &Terms,
        retired: &mut Vec<Retired>,
    ) -> bool {
        let held = self.get_or_begin(origin.queue).accept(origin, arrived, terms, retired);
        if held {
            self.earliest = self.earliest.into_iter().chain(terms.deadline).min();
        }
        held
    }

    fn get_or_begin(&mut self, key: QueueKey) -> &mut Order<M> {
        let index = key.0 as usize;
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, || None);
        }
        let slot = &mut self.queues[index];
        self.count += usize::from(slot.is_none());
        slot.get_or_insert_with(|| Box::new(Order::new()))
    }

    /// Ends an order that is over, or any when its queue is `gone`.
    pub(crate) fn tidy(&mut self, key: QueueKey, gone: bool) {
        if let Some(slot) = self.queues.get_mut(key.0 as usize)
            && slot.take_if(|order| gone || order.is_over()).is_some()
        {
            self.count -= 1;
            self.earliest = self.earliest.filter(|_| self.count > 0);
        }
    }

    /// The queues that have one.
    pub(crate) fn keys(&self) -> Vec<QueueKey> {
        let keys = (0..).zip(&self.queues).filter(|(_, order)| order.is_some());
        keys.map(|(key, _)| QueueKey(key)).collect()
    }

    /// When to look for what is held beyond its deadline. Asked in every turn, so it is kept.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    /// Looks for the earliest deadline anew, when one has passed.
    pub(crate) fn deadline_passed(&mut self) {
        self.earliest = self.queues.iter().flatten().filter_map(|order| order.next_deadline()).min();
    }
}
