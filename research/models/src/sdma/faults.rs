//! Faults that a test injects into the device and its bus.
//!
//! ```text
//! test ── faults() ──► bus errors at addresses, lost interrupts, stuck channels
//! ```
//!
//! Faults survive a device reset; only the test removes them.

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

    /// The next `count` interrupts do not raise their lines; the status registers still show them.
    pub fn lose_interrupts(&mut self, count: u32) {
        self.interrupts_to_lose = count;
    }

    /// Channel `channel` issues no transaction until [`Faults::release`]; those in flight finish. An invalid channel
    /// number is ignored.
    pub fn stick(&mut self, channel: usize) {
        if channel < CHANNELS {
            self.stuck |= 1 << channel;
        }
    }

    /// Channel `channel` continues.
    pub fn release(&mut self, channel: usize) {
        if channel < CHANNELS {
            self.stuck &= !(1 << channel);
        }
    }

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
