//! Faults that a test injects into the device and its bus.
//!
//! ```text
//! test ── faults() ──► bus errors, lost interrupts and completions, bad descriptors, stuck channels
//! schedule ── plan() ──► a descriptor's number ──► halt, lost completion or interrupt, delay, stuck channel
//! ```
//!
//! Faults survive a channel's reset. A channel stuck until reset is released by it; one stuck for a time, when the time is over.

use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;
use memferry_registers::ioat::{CHANNELS, Chanerr};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(super) errors: Vec<RangeInclusive<u64>>,
    pub(super) interrupts_to_lose: u32,
    pub(super) completions_to_lose: u32,
    pub(super) descriptors_to_spoil: u32,
    stuck: u32,
    wedged: u32,
    /// How long each channel that a planned fault has stuck stays so.
    until: [Option<Until>; CHANNELS],
    plan: Vec<Planned>,
}

/// A fault at certain descriptors of a channel.
///
/// A descriptor gets its number when the channel fetches it: from 1, in the order of the chain. The channel fetches ahead, and a halt, a
/// reset or a new CHAINADDR drops descriptors that have a number and were not executed; fetched again, they get new ones. Suspending
/// gives the numbers of those it drops back. Resets of the channel do not restart the count. A descriptor with an extension counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// `None` for every channel.
    pub channel: Option<usize>,
    pub first: u64,
    pub last: u64,
    /// Of `first` to `last`, each `step`th one. Zero counts as one.
    pub step: u64,
    pub fault: PlannedFault,
}

/// The effect on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedFault {
    /// It is not executed: the channel halts with this error.
    Halt(Chanerr),
    /// Its completion write does not reach memory.
    LoseCompletion,
    /// It raises no interrupt.
    LoseInterrupt,
    /// It waits for this time before it begins.
    Slow(Duration),
    /// The channel sticks before it executes it: it issues no access and ignores all commands but reset.
    Stick(Until),
}

/// When a stuck channel continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Elapsed(Duration),
    /// When a reset is requested.
    Reset,
    /// Never: its reset does not end either.
    Never,
}

impl Until {
    pub(super) const fn is_elapsed(self) -> bool {
        matches!(self, Self::Elapsed(_))
    }
}

impl Planned {
    const fn is_at(&self, channel: usize, ordinal: u64) -> bool {
        let step = if self.step == 0 { 1 } else { self.step };
        let here = match self.channel {
            Some(only) => only == channel,
            None => true,
        };
        here && self.first <= ordinal && ordinal <= self.last && (ordinal - self.first).is_multiple_of(step)
    }
}

impl Faults {
    /// Accesses that touch `addresses` end in an error.
    pub fn bus_error_at(&mut self, addresses: RangeInclusive<u64>) {
        self.errors.push(addresses);
    }

    /// The next `count` interrupts do not raise the line, though their channels count as having interrupted.
    pub fn lose_interrupts(&mut self, count: u32) {
        self.interrupts_to_lose = count;
    }

    /// The next `count` completion writes do not reach memory.
    pub fn lose_completions(&mut self, count: u32) {
        self.completions_to_lose = count;
    }

    /// The next `count` fetched descriptors have an invalid opcode.
    pub fn spoil_descriptors(&mut self, count: u32) {
        self.descriptors_to_spoil = count;
    }

    /// Channel `channel` issues no access and ignores all commands but reset until [`Faults::release`]; accesses in flight
    /// finish. An invalid channel number is ignored.
    pub fn stick(&mut self, channel: usize) {
        self.stuck |= bit(channel);
    }

    /// Channel `channel` issues no access, and its reset never ends.
    pub fn wedge(&mut self, channel: usize) {
        self.stick(channel);
        self.wedged |= bit(channel);
    }

    /// Channel `channel` continues. If its reset did not end, it may be reset again.
    pub fn release(&mut self, channel: usize) {
        self.stuck &= !bit(channel);
        self.wedged &= !bit(channel);
    }

    /// Adds a fault at certain descriptors. Of several that halt, delay or stick the same descriptor, the last one counts.
    pub fn plan(&mut self, planned: Planned) {
        self.plan.push(planned);
    }

    pub(super) fn planned(&self, channel: usize, ordinal: u64) -> impl Iterator<Item = &Planned> {
        self.plan.iter().filter(move |planned| planned.is_at(channel, ordinal))
    }

    pub(super) fn stick_until(&mut self, channel: usize, until: Until) {
        match until {
            Until::Never => self.wedge(channel),
            Until::Elapsed(_) | Until::Reset => self.stick(channel),
        }
        if let Some(place) = self.until.get_mut(channel) {
            *place = Some(until);
        }
    }

    /// Releases a channel that a planned fault has stuck, if it waits for this.
    pub(super) fn unstick(&mut self, channel: usize, event: impl Fn(Until) -> bool) {
        if let Some(place) = self.until.get_mut(channel)
            && place.take_if(|until| event(*until)).is_some()
        {
            self.release(channel);
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn is_stuck(&self, channel: usize) -> bool {
        self.stuck & bit(channel) != 0
    }

    pub(super) const fn is_wedged(&self, channel: usize) -> bool {
        self.wedged & bit(channel) != 0
    }

    pub(super) fn hits(&self, address: u64, length: u64) -> bool {
        let end = address.saturating_add(length.saturating_sub(1));
        self.errors.iter().any(|range| *range.start() <= end && address <= *range.end())
    }
}

const fn bit(channel: usize) -> u32 {
    if channel < CHANNELS { 1 << channel } else { 0 }
}
