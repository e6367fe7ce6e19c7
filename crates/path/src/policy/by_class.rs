//! Separate policies for some classes, combined with the general policy of the service.
//!
//! ```text
//! choose   the class's policy, else the general one; channels that another policy keeps count as busy
//! accept   the class's, then the general one
//! pace     each class's policy over its requests, then the general one over all that may still move
//! lend     what both lend
//! ```

use memferry_clock::Instant;
use memferry_transfer::{Failure, SessionId};

use super::{Acts, AllOutstanding, Ask, ChannelState, Choice, Outstanding, Policy};

/// The general policy, and those of single classes.
pub struct ByClass {
    general: Box<dyn Policy>,
    /// Indexed by class: low, normal, high.
    own: [Option<Box<dyn Policy>>; 3],
}

impl ByClass {
    /// Combines `general` with the policies that the classes low, normal and high have in `own`.
    pub fn new(general: Box<dyn Policy>, own: [Option<Box<dyn Policy>>; 3]) -> Self {
        Self { general, own }
    }

    fn all(&self) -> impl Iterator<Item = &Box<dyn Policy>> {
        self.own.iter().flatten().chain([&self.general])
    }
}

impl Policy for ByClass {
    fn name(&self) -> &'static str {
        self.general.name()
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        let asked = self.own[ask.class.index()].as_ref().map_or(3, |_| ask.class.index());
        let kept_by_other = |channel| {
            let policies = self.own.iter().map(Option::as_ref).chain([Some(&self.general)]).enumerate();
            let mut others = policies.filter(|(at, _)| *at != asked);
            others.any(|(_, policy)| policy.is_some_and(|one| one.keeps(channel)))
        };
        let seen: Vec<ChannelState> = (0..)
            .zip(channels)
            .map(|(channel, state)| match state {
                ChannelState::Free if kept_by_other(channel) => ChannelState::Busy,
                state => *state,
            })
            .collect();
        self.own[ask.class.index()].as_mut().unwrap_or(&mut self.general).choose(ask, &seen)
    }

    fn departed(&mut self, client: SessionId) {
        self.own.iter_mut().flatten().chain([&mut self.general]).for_each(|policy| policy.departed(client));
    }

    fn acts(&self) -> Acts {
        self.all().fold(Acts::empty(), |acts, policy| acts | policy.acts())
    }

    fn keeps(&self, channel: u32) -> bool {
        self.all().any(|policy| policy.keeps(channel))
    }

    fn accept(&mut self, now: Instant, ask: &Ask, outstanding: &AllOutstanding<'_>) -> Result<(), Failure> {
        if let Some(own) = &mut self.own[ask.class.index()] {
            own.accept(now, ask, outstanding)?;
        }
        self.general.accept(now, ask, outstanding)
    }

    fn urgency(&self, ask: &Ask) -> u64 {
        self.general.urgency(ask)
    }

    fn pace(&mut self, now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let mut wake = None;
        for (class, own) in self.own.iter_mut().enumerate() {
            let Some(own) = own else { continue };
            let of_class = |one: &Outstanding, _| one.ask.class.index() == class;
            wake = earlier(wake, pace_some(own.as_mut(), now, (running, turns), of_class));
        }
        // The general policy sees only requests that may move, or are still coming to rest. No policy overrules its turns, so
        // always a request moves or a policy has set a wake.
        let may_move = |one: &Outstanding, turns| turns > 0 || !one.at_rest;
        earlier(wake, pace_some(self.general.as_mut(), now, (running, turns), may_move))
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        if let Some(own) = &mut self.own[ask.class.index()] {
            own.moved(ask, bytes);
        }
        self.general.moved(ask, bytes);
    }

    fn lend(&mut self, ask: &Ask, at_most: u64) -> u64 {
        let general = lend(&mut *self.general, ask, at_most);
        let Some(own) = self.own[ask.class.index()].as_mut().filter(|_| general > 0) else { return general };
        let both = lend(&mut **own, ask, general);
        if both == general {
            return both;
        }
        // Each loan is taken back as a whole, so both must be of the same bytes.
        take_back(&mut *self.general, ask, 0, general);
        let again = if both > 0 { lend(&mut *self.general, ask, both) } else { 0 };
        if again == both {
            return both;
        }
        take_back(&mut **own, ask, 0, both);
        // Nothing lent is no loan: to take it back would end another one.
        if again > 0 {
            take_back(&mut *self.general, ask, 0, again);
        }
        0
    }

    fn take_back(&mut self, ask: &Ask, used: u64, unused: u64) {
        for policy in self.own[ask.class.index()].iter_mut().chain([&mut self.general]) {
            take_back(&mut **policy, ask, used, unused);
        }
    }
}

/// What a policy lends; one that does not pace lends all.
fn lend(policy: &mut dyn Policy, ask: &Ask, at_most: u64) -> u64 {
    if policy.acts().contains(Acts::PACES) { policy.lend(ask, at_most) } else { at_most }
}

fn take_back(policy: &mut dyn Policy, ask: &Ask, used: u64, unused: u64) {
    if policy.acts().contains(Acts::PACES) {
        policy.take_back(ask, used, unused);
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Lets a policy pace the `chosen` requests. Requests that are suspended already stay so.
fn pace_some(
    policy: &mut dyn Policy,
    now: Instant,
    (running, turns): (&[Outstanding], &mut [u32]),
    chosen: impl Fn(&Outstanding, u32) -> bool,
) -> Option<Instant> {
    let (at, some): (Vec<usize>, Vec<Outstanding>) = running
        .iter()
        .enumerate()
        .filter(|(at, one)| chosen(one, turns[*at]))
        .map(|(at, one)| (at, *one))
        .unzip();
    let mut own_turns = vec![1; some.len()];
    let wake = policy.pace(now, &some, &mut own_turns);
    for (at, own) in at.into_iter().zip(own_turns) {
        turns[at] = if turns[at] == 0 { 0 } else { own };
    }
    wake
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::super::RateLimit;
    use super::*;

    #[test]
    fn both_policies_lend_the_lesser_of_two() {
        let ask = Ask { bytes: 1, ..Ask::of(SessionId(1), 1000) };
        for (general, own) in [(100, 30), (30, 100)] {
            let own: Box<dyn Policy> = Box::new(RateLimit::new(1, own));
            let mut policy = ByClass::new(Box::new(RateLimit::new(1, general)), [None, Some(own), None]);
            assert_eq!(policy.lend(&ask, 1000), 30);
            policy.take_back(&ask, 10, 20);
            assert_eq!(policy.lend(&ask, 1000), 20, "both take back what was not used");
            assert_eq!(policy.lend(&ask, 1000), 0, "one of them has nothing left");
        }
    }

    /// Lends these numbers of bytes, the last one first, and counts the loans that are open.
    struct Lender {
        lends: Vec<u64>,
        open: Arc<AtomicI32>,
    }

    impl Policy for Lender {
        fn name(&self) -> &'static str {
            "lender"
        }

        fn choose(&mut self, _ask: &Ask, _channels: &[ChannelState]) -> Choice {
            Choice::Busy { usable: 0 }
        }

        fn departed(&mut self, _client: SessionId) {}

        fn acts(&self) -> Acts {
            Acts::PACES
        }

        fn lend(&mut self, _ask: &Ask, at_most: u64) -> u64 {
            let bytes = self.lends.pop().unwrap_or(0).min(at_most);
            self.open.fetch_add(i32::from(bytes > 0), Ordering::Relaxed);
            bytes
        }

        fn take_back(&mut self, _ask: &Ask, _used: u64, _unused: u64) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_loan_is_ended_once() {
        let open: [Arc<AtomicI32>; 2] = Default::default();
        let lender = |of: usize, lends: &[u64]| -> Box<dyn Policy> {
            Box::new(Lender { lends: lends.to_vec(), open: Arc::clone(&open[of]) })
        };
        // The general policy lends 100, then nothing, and the class's own 30.
        let mut policy = ByClass::new(lender(0, &[0, 100]), [None, Some(lender(1, &[30])), None]);
        assert_eq!(policy.lend(&Ask::of(SessionId(1), 1000), 1000), 0);
        assert_eq!(open.map(|open| open.load(Ordering::Relaxed)), [0, 0]);
    }
}
