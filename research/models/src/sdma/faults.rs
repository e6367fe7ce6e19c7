//! Faults that a test puts into the device and its surroundings.
//!
//! ```text
//! test ── faults() ──► a bus error at addresses, interrupts that get lost, channels that stand still
//! ```
//!
//! Faults stay through a reset of the device: a test takes them away by itself.

use alloc::vec::Vec;
use core::ops::RangeInclusive;
use memferry_registers::sdma::CHANNELS;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(super) errors: Vec<RangeInclusive<u32>>,
    pub(super) interrupts_to_lose: u32,
    pub(super) stuck: u32,
}

impl Faults {
    /// Accesses that touch `addresses` end in a transaction error.
    pub fn bus_error_at(&mut self, addresses: RangeInclusive<u32>) {
        self.errors.push(addresses);
    }

    /// The next `count` interrupts do not raise their lines. The status registers show them.
    pub fn lose_interrupts(&mut self, count: u32) {
        self.interrupts_to_lose = count;
    }

    /// Channel `channel` issues nothing more until [`Faults::release`]; what is on its way ends. A channel that does
    /// not exist is ignored.
    pub fn stick(&mut self, channel: usize) {
        if channel < CHANNELS {
            self.stuck |= 1 << channel;
        }
    }

    /// Channel `channel` goes on.
    pub fn release(&mut self, channel: usize) {
        if channel < CHANNELS {
            self.stuck &= !(1 << channel);
        }
    }

    /// Nothing is broken any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn is_stuck(&self, channel: usize) -> bool {
        self.stuck >> channel & 1 == 1
    }

    pub(super) fn hits(&self, address: u32, length: usize) -> bool {
        let end = address.saturating_add((length as u32).saturating_sub(1));
        self.errors.iter().any(|range| *range.start() <= end && address <= *range.end())
    }
}
