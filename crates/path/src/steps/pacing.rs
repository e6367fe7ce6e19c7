//! Pacing: passes the policy's turns to the engine, and charges the policy for the bytes moved.
//!
//! ```text
//! run: pace ─ policy.pace(running) ─► engine.set_turns ─► engine.poll ─► charge ─ policy.moved(bytes of each)
//! ```
//!
//! Only with policies that pace, and not for transfers that a device paces by its request line. A suspended request keeps its
//! channel and its claims; a cancel still ends it.

use memferry_clock::Instant;
use memferry_transfer::Engine;

use super::Path;
use crate::policy::{Acts, Outstanding, Policy};

/// The policy's latest decisions.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// The latest time of the next `pace`.
    pub(super) wake: Option<Instant>,
    /// At least one request may move, or is being ended.
    moving: bool,
    running: Vec<Outstanding>,
    turns: Vec<u32>,
}

impl<E: Engine> Path<E> {
    /// Replaces the policy. Running requests keep their channels; the state of the old policy is lost.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.forget_loans();
        self.acts = policy.acts();
        self.policy = policy;
        self.pacing = Pacing::default();
        // The new policy is not charged for bytes moved before.
        for running in self.ledger.running() {
            running.charged = self.engine.bytes_done(running.ticket);
        }
        for channel in 0..self.channels.states().len() as u32 {
            self.engine.set_turns(channel, 1);
        }
    }

    /// Whether the engine must be polled: false while all running requests are suspended, or a device does the work.
    pub fn progresses(&self) -> bool {
        let suspended = !self.pacing.running.is_empty() && !self.pacing.moving;
        let rests = suspended || self.engine.works_alone();
        self.running() && (!rests || !self.reported.is_empty())
    }

    /// Makes the next run ask the policy, because the set of running requests changed.
    pub(super) fn has_changed(&mut self) {
        if self.acts.contains(Acts::PACES) {
            self.pacing.wake = Some(self.now);
        }
    }

    /// Asks the policy for turns and sets them in the engine.
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

    /// Charges the policy for the bytes moved, and calls it with no requests when the last one has ended.
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
