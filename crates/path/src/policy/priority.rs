//! Priority channels: high requests have the engine to themselves for a slice of every period (Papa 2014, "Priority Channel").
//!
//! ```text
//! choose  requests of other classes leave channels free, so that a high request need not wait for one of theirs
//! pace    Slices ── low work suspended ── acknowledged by all workers ── slice ── all move again
//! ```
//!
//! "Low work" is that of all classes but high. Admission checks that a client was granted the high class. Between slices all
//! requests have equal turns, as in the paper. Short requests of low work are done at once only while no slice begins or lasts, and
//! a slice begins only after those under way; short ones of the high class are always done at once, and cause slices.

use memferry_clock::Instant;
use memferry_transfer::{PriorityClass, SessionId};

use super::slices::View;
use super::{Acts, Ask, ChannelState, Choice, Outstanding, Policy, Shared, Slices, leaving_an_eighth};

/// Suspends all but high requests in slices.
#[derive(Debug)]
pub struct Priority {
    channels: Shared,
    slices: Slices,
    worker: usize,
}

impl Priority {
    /// The policy of worker number `worker`, below the count that `slices` was made for.
    pub const fn new(slices: Slices, worker: usize) -> Self {
        Self { channels: Shared::new(), slices, worker }
    }
}

const fn is_high(ask: &Ask) -> bool {
    matches!(ask.class, PriorityClass::High)
}

impl Policy for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        match is_high(ask) {
            true => self.channels.choose(ask, channels),
            false => leaving_an_eighth(&mut self.channels, ask, channels),
        }
    }

    fn departed(&mut self, _client: SessionId) {}

    fn acts(&self) -> Acts {
        Acts::PACES
    }

    fn pace(&mut self, now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let mut low = running.iter().filter(|one| !is_high(&one.ask)).peekable();
        let view = View {
            low: low.peek().is_some(),
            low_rests: low.all(|one| one.at_rest),
            high: running.iter().any(|one| is_high(&one.ask)),
        };
        let decision = self.slices.step(self.worker, now, view);
        if !decision.low_moves {
            let low = running.iter().zip(turns).filter(|(one, _)| !is_high(&one.ask));
            low.for_each(|(_, turns)| *turns = 0);
        }
        decision.wake
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        if !is_high(ask) {
            self.slices.low_moved(bytes);
        }
    }

    fn lend(&mut self, ask: &Ask, at_most: u64) -> u64 {
        let lends = match is_high(ask) {
            true => self.slices.see_high(),
            false => self.slices.lend(self.worker),
        };
        if lends { at_most } else { 0 }
    }

    fn take_back(&mut self, ask: &Ask, used: u64, _unused: u64) {
        if !is_high(ask) {
            self.slices.take_back(self.worker, used);
        }
    }
}

impl Drop for Priority {
    /// When a worker changes its policy, the other workers no longer wait for its low work to rest.
    fn drop(&mut self) {
        self.slices.leave(self.worker);
    }
}
