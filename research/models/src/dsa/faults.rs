//! Faults that a test injects: absent pages, bus errors, lost records, interrupts and portal writes, stuck engines.

use super::Dsa;
use crate::Bus;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use memferry_dsa_registers::PAGE_BYTES;

/// Injected faults. They survive resets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    absent: BTreeSet<u64>,
    read_only: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    errors: Vec<RangeInclusive<u64>>,
    pub(super) records_to_lose: u32,
    pub(super) interrupts_to_lose: u32,
    pub(super) portal_writes_to_lose: u32,
    stuck: u64,
}

impl Faults {
    /// The page of `address` has no translation.
    pub fn absent(&mut self, address: u64) {
        self.absent.insert(address / PAGE_BYTES);
    }

    /// The page of `address` can only be read.
    pub fn read_only(&mut self, address: u64) {
        self.read_only.insert(address / PAGE_BYTES);
    }

    /// Page requests for the page of `address`, which is absent, are answered with an error.
    pub fn unresolvable(&mut self, address: u64) {
        self.absent(address);
        self.refused.insert(address / PAGE_BYTES);
    }

    /// The page of `address` has a translation for reads and writes again, as after software touched it.
    pub fn touch(&mut self, address: u64) {
        let page = address / PAGE_BYTES;
        self.absent.remove(&page);
        self.read_only.remove(&page);
        self.refused.remove(&page);
    }

    /// Accesses that touch `addresses` end in a bus error.
    pub fn bus_error_at(&mut self, addresses: RangeInclusive<u64>) {
        self.errors.push(addresses);
    }

    /// The next `count` completion records do not reach memory; their interrupts are raised.
    pub fn lose_records(&mut self, count: u32) {
        self.records_to_lose = count;
    }

    /// The next `count` interrupts of completions are not raised.
    pub fn lose_interrupts(&mut self, count: u32) {
        self.interrupts_to_lose = count;
    }

    /// The next `count` posted writes to portals do not reach the device.
    pub fn lose_portal_writes(&mut self, count: u32) {
        self.portal_writes_to_lose = count;
    }

    /// Engine `engine` takes no descriptor and makes no access until it is released.
    pub fn stick(&mut self, engine: usize) {
        self.stuck |= 1_u64.checked_shl(engine as u32).unwrap_or(0);
    }

    pub fn release(&mut self, engine: usize) {
        self.stuck &= !1_u64.checked_shl(engine as u32).unwrap_or(0);
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_stuck(&self, engine: usize) -> bool {
        1_u64.checked_shl(engine as u32).is_some_and(|bit| self.stuck & bit != 0)
    }

    /// Whether the page of `address` can be accessed.
    pub(super) fn translates(&self, address: u64, write: bool) -> bool {
        let page = address / PAGE_BYTES;
        let refused = self.absent.contains(&page) || write && self.read_only.contains(&page);
        !refused
    }

    /// The answer to a page request: whether the page can be accessed now.
    pub(super) fn resolve(&mut self, address: u64, write: bool) -> bool {
        let page = address / PAGE_BYTES;
        if self.refused.contains(&page) {
            return false;
        }
        self.absent.remove(&page);
        self.translates(address, write)
    }

    pub(super) fn hits(&self, address: u64, length: u64) -> bool {
        let end = address.saturating_add(length.saturating_sub(1));
        self.errors.iter().any(|range| *range.start() <= end && address <= *range.end())
    }
}

impl<B: Bus> Dsa<B> {
    /// Whether the page of `address` in an address space can be accessed; the accesses that follow are in that space.
    pub(super) fn translates(&mut self, space: u32, address: u64, write: bool) -> bool {
        self.bus.enter_space(space);
        self.faults.translates(address, write) && self.bus.translates(address, write)
    }
}
