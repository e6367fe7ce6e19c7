//! Faults that a test injects into the device and its bus.
//!
//! ```text
//! test ── faults() ──► bus errors, lost interrupts and completions, bad descriptors, stuck channels
//! ```
//!
//! Faults survive a channel's reset; only the test removes them.

use alloc::vec::Vec;
use core::ops::RangeInclusive;
use memferry_registers::ioat::CHANNELS;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(super) errors: Vec<RangeInclusive<u64>>,
    pub(super) interrupts_to_lose: u32,
    pub(super) completions_to_lose: u32,
    pub(super) descriptors_to_spoil: u32,
    stuck: u32,
    wedged: u32,
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
