//! Ranges of memory that jobs name.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::driver::Address;

/// Memory that a job can name.
pub(crate) trait Memory: fmt::Debug + Send + Sync {
    fn address(&self) -> Address;
    fn is_read_only(&self) -> bool;
}

/// A range that lies in host memory or VRAM, which it keeps.
#[derive(Clone, Debug)]
pub struct Place {
    memory: Arc<dyn Memory>,
    /// What the memory says of itself.
    base: Address,
    is_read_only: bool,
    offset: u64,
    length: u64,
}

impl Place {
    /// `None`: the range is reversed, or not inside `length`.
    pub(crate) fn new(memory: Arc<dyn Memory>, range: Range<u64>, length: u64) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= length;
        let base = memory.address();
        let is_read_only = memory.is_read_only();
        is_inside.then(|| Self {
            memory,
            base,
            is_read_only,
            offset: range.start,
            length: range.end - range.start,
        })
    }

    /// A range of it; `None` if that is reversed or leaves it.
    pub fn part(&self, range: Range<u64>) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= self.length;
        is_inside.then(|| Self {
            offset: self.offset + range.start,
            length: range.end - range.start,
            ..self.clone()
        })
    }

    pub fn length_bytes(&self) -> u64 {
        self.length
    }

    pub fn is_vram(&self) -> bool {
        matches!(self.base, Address::Vram(_))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn address(&self) -> Address {
        self.base.plus(self.offset)
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.is_same_memory(other)
            && self.offset < other.offset + other.length
            && other.offset < self.offset + self.length
    }

    /// Whether this place begins after the other one in the same memory.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.is_same_memory(other) && self.offset > other.offset
    }

    /// Two values for one mapping have the same address.
    pub(crate) fn is_same_memory(&self, other: &Self) -> bool {
        self.base == other.base
    }
}
