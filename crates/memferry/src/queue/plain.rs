//! The short way through a queue: requests that fit a short slot, and successes without a value.
//!
//! ```text
//! stage ─► stage_plain ──► the ring                poll ─► next_plain ─ take_plain ─► the result
//!             └ else stage_any: every request              └ else the general way: failures, values, a lost service
//! ```
//!
//! Both are inlined into the program where the compiler likes it. There it often knows the operation. What they return fits two
//! registers: a larger result is written by parts and read back as a whole, which no store buffer forwards.
//! Where the short way returns `None`, it has changed nothing, and the general way does all checks again.

use memferry_transfer::wire::{self, ShortSlot};

use super::{Queue, wire_tag};
use crate::completion::NO_TAG;
use crate::transfer::Description;

impl Queue {
    /// Stages a transfer that has a short slot, moves its frames to the queue's slot and returns its tag.
    #[inline]
    pub(super) fn stage_plain(&mut self, transfer: &mut Description) -> Option<u64> {
        // A lost service is noticed once for each publication.
        let usable = self.session.check_fork().is_ok() && (self.staged || !self.is_known_lost());
        if !usable || transfer.invalid.is_some() {
            return None;
        }
        if !transfer.held.iter().all(|frame| frame.is_of(&self.session)) {
            return None;
        }
        let tag = self.next_tag()?;
        let slot = transfer.work.short(wire_tag(tag))?;
        self.stage_short(slot)?;
        self.binds_next = wire::is_linked(slot[0]);
        self.record_staged(tag, wire::short_length(&slot), transfer);
        Some(tag)
    }

    #[inline]
    fn stage_short(&mut self, slot: ShortSlot) -> Option<()> {
        if self.end.is_full() {
            self.presume_consumed();
        }
        self.end.stage_short(slot).ok()
    }

    /// Takes the completion of the request in slot `index`, which [`next_plain`](Self::next_plain) found. Returns the request's tag and
    /// length.
    #[inline]
    pub(super) fn take_plain(&mut self, index: usize) -> (u64, u64) {
        self.end.take_peeked();
        let slot = &mut self.slots[index];
        let tag = std::mem::replace(&mut slot.tag, NO_TAG);
        let length = slot.length;
        if !slot.held.is_empty() {
            slot.held.clear();
        }
        self.free.push(index as u32);
        self.empty_polls = 0;
        (tag, length)
    }

    /// The slot to which the next completion belongs, if it is a success without a value.
    #[inline]
    pub(super) fn next_plain(&self) -> Option<usize> {
        if self.lost || self.armed || self.session.check_fork().is_err() {
            return None;
        }
        let header = self.end.peek_header()?;
        let name = wire::tag_of_completion(header);
        let index = self.slot_of(name.into());
        let tag = self.slots[index].tag;
        let known = wire_tag(tag) == name && tag != NO_TAG;
        (known && wire::is_plain_success(header)).then_some(index)
    }
}
