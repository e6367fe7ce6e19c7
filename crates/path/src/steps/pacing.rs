//! Who moves on: the policy's answer handed to the engine, and what was moved told to the policy.
//!
//! ```text
//! run: pace ─ policy.pace(running) ─► engine.set_turns ─► engine.poll ─► charge ─ policy.moved(bytes of each)
//! ```
//!
//! Taken only with policies that pace. What a device paces by its request line is left to it.
//! One that may not move keeps its channel and its claims; a cancel ends it all the same.

use memferry_clock::Instant;
use memferry_transfer::Engine;

use super::Path;
use crate::policy::{Acts, Outstanding, Policy};

/// What the policy said last.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// When it has to be asked again.
    pub(super) wake: Option<Instant>,
    /// Some request may move, or is being ended.
    moving: bool,
    running: Vec<Outstanding>,
    turns: Vec<u32>,
}

impl<E: Engine> Path<E> {
    /// Another policy takes over. Requests that run keep their channels; what the old one knew is gone with it.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.acts = policy.acts();
        self.policy = policy;
        self.pacing = Pacing::default();
        // What was moved before is not the new one's to charge.
        for running in self.ledger.running() {
            running.charged = self.engine.bytes_done(running.ticket);
        }
        for channel in 0..self.channels.states().len() as u32 {
            self.engine.set_turns(channel, 1);
        }
    }

    /// Whether the engine has work that wants to be polled: false while all that runs is suspended, or a device's.
    pub fn progresses(&self) -> bool {
        let suspended = !self.pacing.running.is_empty() && !self.pacing.moving;
        let rests = suspended || self.engine.works_alone();
        self.running() && (!rests || !self.reported.is_empty())
    }

    /// What runs has changed: the policy is asked again at once.
    pub(super) fn has_changed(&mut self) {
        if self.acts.contains(Acts::PACES) {
            self.pacing.wake = Some(self.now);
        }
    }

    /// Asks the policy and tells the engine.
    pub(super) fn pace(&mut self, now: Instant) {
        let Self { engine, ledger, policy, pacing, .. } = self;
        pacing.running.clear();
        pacing.running.extend(ledger.running().filter(|running| running.is_paced).map(|running| {
            Outstanding {
                ask: running.ask,
                done: running.charged,
                at_rest: engine.is_at_rest(running.ticket.channel),
            }
        }));
        pacing.turns.clear();
        pacing.turns.resize(pacing.running.len(), 1);
        pacing.wake = policy.pace(now, &pacing.running, &mut pacing.turns);
        pacing.moving = false;
        for (running, turns) in ledger.running().filter(|running| running.is_paced).zip(&pacing.turns) {
            pacing.moving |= *turns > 0 || running.ending.is_some();
            engine.set_turns(running.ticket.channel, *turns);
        }
    }

    /// Tells the policy what was moved; when nothing runs any more, that too.
    pub(super) fn charge(&mut self, now: Instant) {
        let Self { engine, ledger, policy, reported, .. } = self;
        for running in ledger.running() {
            let ended = reported.iter().find(|completion| completion.ticket == running.ticket);
            let done = ended.map_or_else(
                || engine.bytes_done(running.ticket),
                |completion| completion.outcome.bytes_done,
            );
            if done > running.charged {
                policy.moved(&running.ask, done - running.charged);
                running.charged = done;
            }
        }
        if reported.len() >= ledger.count() {
            self.pacing.wake = policy.pace(now, &[], &mut []);
            self.pacing.running.clear();
        } else if !reported.is_empty() {
            self.pacing.wake = Some(now);
        }
    }
}
