//! The short way through a queue: requests that fit a short slot, and successes without a value.
//!
//! ```text
//! stage, submit ─► stage_plain ──► the ring        poll ─► poll_plain ──► the result, or nothing
//!                     └ else stage_any: every request      └ else the general way: failures, values, a lost service
//! ```
//!
//! Both are inlined into the program: there the compiler knows the operation, and keeps transfer and result in registers. A core
//! holds few stores that wait for a cache line, and those of a transfer in memory would delay those of the next slots.
//! Where the short way gives up, it has changed nothing, and the general way does all checks again.

use memferry_transfer::wire;

use super::{Queue, wire_tag};
use crate::completion::NO_TAG;
use crate::transfer::{Description, Work};

/// Longest copy whose destination a poll prefetches.
const AWAITED_BYTES: u64 = 4096;

/// What a poll found.
pub(super) enum Polled {
    Nothing,
    /// The completion of the request with this tag and length, which was taken.
    Success {
        tag: u64,
        length: u64,
    },
    /// The general way has to look.
    Other,
}

impl Queue {
    /// Stages a transfer that has a short slot, moves its frames to the queue's slot and returns its tag, or gives it back. With
    /// `PUBLISH` it starts, with all staged ones.
    ///
    /// It takes the transfer apart, and no address of it leaves this function, so that a transfer made for the call never is in memory.
    #[inline(always)]
    pub(super) fn stage_plain<const PUBLISH: bool>(
        &mut self,
        transfer: Description,
    ) -> Result<u64, Description> {
        let Description { work, held, invalid } = transfer;
        let is_ours = held.iter().all(|frame| frame.is_of(&self.session));
        let may_stage = invalid.is_none() && is_ours && self.is_usable();
        let staged = if may_stage { self.stage_short::<PUBLISH>(&work) } else { None };
        let Some((tag, length)) = staged else { return Err(Description { work, held, invalid }) };
        let index = self.record_staged(tag, length);
        self.staged = !PUBLISH;
        if PUBLISH {
            let short = work.plain_copy().filter(|plain| plain.length <= AWAITED_BYTES);
            self.awaited = short.and_then(|plain| held.last()?.line(plain.destination.offset));
        }
        if held.is_empty() && !held.spilled() {
            // Nothing to drop, which the compiler does not see.
            std::mem::forget(held);
        } else {
            self.slots[index].held = held;
        }
        Ok(tag)
    }

    /// Whether transfers may be staged. A lost service is noticed once for each publication.
    #[inline(always)]
    fn is_usable(&self) -> bool {
        self.session.check_fork().is_ok() && (self.staged || !self.is_known_lost())
    }

    /// Stages or publishes a short slot. Returns the tag and the length of its request.
    #[inline(always)]
    fn stage_short<const PUBLISH: bool>(&mut self, work: &Work) -> Option<(u64, u64)> {
        let tag = self.next_tag()?;
        let slot = work.short(wire_tag(tag))?;
        if self.end.is_full() {
            self.presume_consumed();
        }
        if !PUBLISH {
            self.end.stage_short(slot).ok()?;
        } else if self.end.put_short(slot).ok()? {
            self.ring_doorbell();
        }
        self.binds_next = wire::is_linked(slot[0]);
        Some((tag, wire::short_length(&slot)))
    }

    /// Takes the next completion, if it is a success without a value.
    #[inline(always)]
    pub(super) fn poll_plain(&mut self) -> Polled {
        if self.lost || self.armed || self.session.check_fork().is_err() {
            return Polled::Other;
        }
        match self.end.peek_header() {
            None if self.is_early() => Polled::Nothing,
            None => Polled::Other,
            Some(header) => match self.plain_slot(header) {
                Some(index) => self.take_plain(index),
                None => Polled::Other,
            },
        }
    }

    /// Counts a poll that found nothing, unless it has a reason to ask whether the service still runs.
    #[inline(always)]
    fn is_early(&mut self) -> bool {
        let polls = self.empty_polls.saturating_add(1);
        let early = polls < self.polls_per_clock_read && !self.is_known_lost();
        if early {
            self.empty_polls = polls;
            if let Some(line) = self.awaited {
                line.prefetch();
            }
        }
        early
    }

    /// The slot to which the completion with this header belongs, if it is a success without a value.
    #[inline(always)]
    fn plain_slot(&self, header: u64) -> Option<usize> {
        let name = wire::tag_of_completion(header);
        let index = self.slot_of(name.into());
        let tag = self.slots[index].tag;
        let known = wire_tag(tag) == name && tag != NO_TAG;
        (known && wire::is_plain_success(header)).then_some(index)
    }

    /// Takes the completion of the request in slot `index`, which is the next one and a success without a value.
    #[inline(always)]
    fn take_plain(&mut self, index: usize) -> Polled {
        self.end.take_peeked();
        let slot = &mut self.slots[index];
        let tag = std::mem::replace(&mut slot.tag, NO_TAG);
        let length = slot.length;
        if !slot.held.is_empty() {
            slot.held.clear();
        }
        self.free.push(index as u32);
        self.empty_polls = 0;
        self.awaited = None;
        Polled::Success { tag, length }
    }
}
