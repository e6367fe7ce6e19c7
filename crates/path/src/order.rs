//! Order, between capability and channel: holds requests that must not start before others of their queue have ended.
//!
//! ```text
//! accept ─► held, in order ─ next: link kept? fence passed? ─► placement
//!    │            ▲                                                │
//!    │            └──────────── ended: Ok frees the next, Err fails it with the same reason
//!    └─ repeat: collects the members, then runs them one by one, round after round, until stopped
//! ```
//!
//! Only queues that use links, fences or loops have an [`Order`]. Requests start in submission order, so requests behind a held one
//! wait, and requests behind a loop wait until it ends. Links are those of io_uring, fences those of a DSA batch, loops those of a
//! DMA controller's linked channels (Wicki 2014, 2.3.2.4). Nothing here touches channels, engines or the capability table:
//! requests that end without an engine leave as [`Retired`]. A held request takes its places in the quota of its user from
//! [`Orders::accept`] until it starts or is retired.

use std::collections::VecDeque;

use memferry_clock::Instant;
use memferry_transfer::{EngineKind, Failure, Outcome, Terms};

use crate::capability::{Admitted, Claims};
use crate::request::{Origin, QueueKey, Retired};

/// A request that failed before it started; `places` is 0 if it was not held.
fn failed(origin: Origin, (claims, places): (Claims, usize), failure: Failure, inherited: bool) -> Retired {
    Retired { places, inherited, ..Retired::refused(origin, claims, failure) }
}

/// A request after admission.
pub(crate) enum Arrived<M> {
    Refused(Failure),
    Transfer(Admitted<M>),
    /// A loop over the linked requests that follow, with its number of rounds; 0 is endless.
    Repeat(u32),
}

impl<M> Arrived<M> {
    /// Places it takes in the quota of its user while it is held.
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
    /// The request before it.
    Linked,
    /// The request before it, which failed with this.
    Broken(Failure),
}

/// The state of the latest started request that the next one may depend on.
#[derive(Clone, Copy, Default)]
enum Link {
    #[default]
    Kept,
    /// The request with this tag still runs.
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

/// A loop. Its members keep their claims until it ends.
struct Chain<M> {
    origin: Origin,
    terms: Terms,
    linked: bool,
    rounds: u32,
    members: Vec<Member<M>>,
    /// Index of the member that runs or is next.
    at: usize,
    rounds_done: u64,
    running: bool,
    /// End it after the present round.
    stop: bool,
    /// End it at once, with this failure.
    ending: Option<Failure>,
    /// The channel that failed under it.
    quarantine: Option<u32>,
    /// The engine of the latest member that reached one.
    engine: EngineKind,
}

impl<M: Clone> Chain<M> {
    fn new(origin: Origin, terms: Terms, linked: bool, rounds: u32) -> Self {
        let members = Vec::new();
        let quarantine = None;
        let at = 0;
        let rounds_done = 0;
        let running = false;
        let stop = false;
        let ending = None;
        let engine = EngineKind::None;
        Self {
            origin,
            terms,
            linked,
            rounds,
            members,
            at,
            rounds_done,
            running,
            stop,
            ending,
            quarantine,
            engine,
        }
    }

    fn add(&mut self, mut admitted: Admitted<M>, origin: Origin) {
        let terms = admitted.terms_mut();
        terms.deadline = [terms.deadline, self.terms.deadline].into_iter().flatten().min();
        let origin = Origin { member: true, linked: false, ..origin };
        self.members.push(Member { admitted, origin, bytes: 0, value: 0 });
    }

    fn is_over(&self) -> bool {
        let whole =
            self.at == 0 && (self.stop || self.rounds > 0 && self.rounds_done >= u64::from(self.rounds));
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
                    (self.at, self.rounds_done) = (0, self.rounds_done + 1);
                }
            }
        }
    }

    /// Retires the members, then the loop. After a failure, the members before the failed one count as successful.
    fn finish(self, retired: &mut Vec<Retired>) {
        let engine = self.engine;
        let result = self.ending.map_or(Ok(()), Err);
        let whole = Retired {
            origin: self.origin,
            claims: Claims::none(),
            quarantine: None,
            places: 1,
            outcome: Outcome { result, bytes_done: 0, value: self.rounds_done, engine },
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

    /// Fails the whole loop before it has started.
    fn fail(self, failure: Failure, inherited: bool, retired: &mut Vec<Retired>) {
        for member in self.members {
            retired.push(failed(member.origin, member.admitted.into_kept(), failure, inherited));
        }
        retired.push(failed(self.origin, (Claims::none(), 1), failure, inherited));
    }

    /// The earliest deadline of the loop and its members. The loop ends when any of them passes.
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

/// Returns the failure with which to end a request early, if any.
pub(crate) type GivesUp<'a> = dyn FnMut(Origin, &Claims, &Terms) -> Option<Failure> + 'a;

/// The held requests and the loop of one queue.
pub(crate) struct Order<M> {
    incoming: Incoming,
    link: Link,
    held: VecDeque<Held<M>>,
    /// The loop whose members are still being submitted.
    collecting: Option<Chain<M>>,
    /// The loop that runs.
    looping: Option<Chain<M>>,
}

impl<M: Clone> Order<M> {
    fn new() -> Self {
        let incoming = Incoming::Nothing;
        let link = Link::Kept;
        let held = VecDeque::new();
        Self { incoming, link, held, collecting: None, looping: None }
    }

    /// Whether the queue no longer needs an order.
    fn is_over(&self) -> bool {
        let nothing = matches!(self.incoming, Incoming::Nothing);
        nothing && self.held.is_empty() && self.collecting.is_none() && self.looping.is_none()
    }

    /// Holds the queue's next request, or retires it as failed. Returns whether it is held.
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

    /// Holds a request, or returns its claims and why it fails. The caller replaces the failure if the request inherits one.
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
                // The link of a repeat request leads to its first member; no request can be linked to the end of a loop.
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

    /// The next request that may start while `active` others of the queue run.
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

    /// Records the end of a started request. Returns whether it is complete; a member of a loop completes with the loop.
    pub(crate) fn ended(&mut self, origin: Origin, outcome: &Outcome) -> bool {
        if origin.member {
            if let Some(chain) = &mut self.looping {
                chain.member_ended(outcome);
            }
            return false;
        }
        // An earlier linked request may end after its successor is gone, while the link is that of a later request.
        if let Link::Running(tag) = self.link
            && origin.linked
            && tag == origin.tag
        {
            self.link = outcome.result.map_or_else(Link::Broken, |()| Link::Kept);
        }
        true
    }

    /// Marks the memory of the running loop for quarantine with a failed channel.
    pub(crate) fn quarantine(&mut self, channel: u32) {
        if let Some(chain) = &mut self.looping {
            chain.quarantine = Some(channel);
        }
    }

    /// Fails the held requests for which `gives_up` returns a failure, and the requests linked to them.
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

    /// Whether the successor of the last held request has not arrived yet, or not completely. A successor that was refused on arrival
    /// ends the chain: later requests are not linked to anything before it.
    fn awaits_successor(&self) -> bool {
        match &self.collecting {
            Some(chain) => chain.linked,
            None => matches!(self.incoming, Incoming::Linked),
        }
    }

    /// Marks the running loop for its end if `gives_up` names a failure for any of its requests. The caller cancels the member that
    /// runs.
    pub(crate) fn end_loop(&mut self, gives_up: &mut GivesUp<'_>) -> Option<Failure> {
        let chain = self.looping.as_mut()?;
        let failure = chain.given_up(gives_up)?;
        Some(*chain.ending.get_or_insert(failure))
    }

    /// Fails the loop that is being collected, and the next request to arrive.
    fn break_incoming(&mut self, failure: Failure, inherited: bool, retired: &mut Vec<Retired>) {
        if let Some(chain) = self.collecting.take() {
            chain.fail(failure, inherited, retired);
        }
        self.incoming = Incoming::Broken(failure);
    }

    /// Ends the `named` loops after their present round.
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

    /// Ends the running loop after its present round if it has no number of rounds.
    pub(crate) fn stop_endless(&mut self) {
        if let Some(chain) = self.looping.as_mut().filter(|chain| chain.rounds == 0) {
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

/// The orders of all queues that need one.
pub(crate) struct Orders<M> {
    queues: Vec<Option<Box<Order<M>>>>,
    count: usize,
    /// A lower bound of the deadlines of held requests. It may be that of a request that has left; once it has passed,
    /// [`deadline_passed`](Self::deadline_passed) corrects it.
    earliest: Option<Instant>,
}

impl<M: Clone> Orders<M> {
    pub(crate) const fn new() -> Self {
        Self { queues: Vec::new(), count: 0, earliest: None }
    }

    /// Whether no queue has an order.
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

    /// Holds a queue's next request, or retires it as failed. Returns whether it is held.
    pub(crate) fn accept(
        &mut self,
        origin: Origin,
        arrived: Arrived<M>,
        terms: &Terms,
        retired: &mut Vec<Retired>,
    ) -> bool {
        let held = self.get_or_create(origin.queue).accept(origin, arrived, terms, retired);
        if held {
            self.earliest = self.earliest.into_iter().chain(terms.deadline).min();
        }
        held
    }

    fn get_or_create(&mut self, key: QueueKey) -> &mut Order<M> {
        let index = key.0 as usize;
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, || None);
        }
        let slot = &mut self.queues[index];
        self.count += usize::from(slot.is_none());
        slot.get_or_insert_with(|| Box::new(Order::new()))
    }

    /// Removes an order that is over, or whose queue is `gone`.
    pub(crate) fn tidy(&mut self, key: QueueKey, gone: bool) {
        if let Some(slot) = self.queues.get_mut(key.0 as usize)
            && slot.take_if(|order| gone || order.is_over()).is_some()
        {
            self.count -= 1;
            self.earliest = self.earliest.filter(|_| self.count > 0);
        }
    }

    /// The queues that have an order.
    pub(crate) fn keys(&self) -> Vec<QueueKey> {
        let keys = (0..).zip(&self.queues).filter(|(_, order)| order.is_some());
        keys.map(|(key, _)| QueueKey(key)).collect()
    }

    /// When to check for overdue held requests. Cached, because every turn reads it.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    /// Recomputes the earliest deadline after one has passed.
    pub(crate) fn deadline_passed(&mut self) {
        self.earliest = self.queues.iter().flatten().filter_map(|order| order.next_deadline()).min();
    }
}
