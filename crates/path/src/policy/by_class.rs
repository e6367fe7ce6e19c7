//! A policy of its own for some classes, beside that of the service.
//!
//! ```text
//! choose   the class's policy, else the service's; channels that another policy keeps count as busy
//! accept   the class's, then the service's        pace  each class's over its own, then the service's over what may move
//! ```

use memferry_clock::Instant;
use memferry_transfer::{Failure, SessionId};

use super::{Acts, AllOutstanding, Ask, ChannelState, Choice, Outstanding, Policy};

/// The policy of the service, and those of single classes.
pub struct ByClass {
    general: Box<dyn Policy>,
    /// Of low, normal, high.
    own: [Option<Box<dyn Policy>>; 3],
}

impl ByClass {
    /// `own` are those of the classes low, normal and high.
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
        let others = |channel| {
            let own = self.own.iter().map(Option::as_ref).chain([Some(&self.general)]).enumerate();
            own.filter(|(at, _)| *at != asked).any(|(_, policy)| policy.is_some_and(|one| one.keeps(channel)))
        };
        let kept: Vec<ChannelState> = (0..)
            .zip(channels)
            .map(|(channel, state)| match state {
                ChannelState::Free if others(channel) => ChannelState::Busy,
                state => *state,
            })
            .collect();
        self.own[ask.class.index()].as_mut().unwrap_or(&mut self.general).choose(ask, &kept)
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
            wake = earlier(wake, among(own.as_mut(), now, (running, turns), of_class));
        }
        // The general policy decides among those that may move: what it grants is granted, so that somebody always moves or
        // somebody is to be asked again. It sees what is still coming to rest, too.
        let may_move = |one: &Outstanding, turns| turns > 0 || !one.at_rest;
        earlier(wake, among(self.general.as_mut(), now, (running, turns), may_move))
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        if let Some(own) = &mut self.own[ask.class.index()] {
            own.moved(ask, bytes);
        }
        self.general.moved(ask, bytes);
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Asks a policy about some of what runs; what may not move already does not.
fn among(
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
