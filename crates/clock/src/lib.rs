//! Instants, clocks, and the event queue of virtual time. The live service and simulations use the same instant type.
//!
//! ```text
//! live:     monotonic clock ──now()──► Instant ──► path step ──► next_wake
//! virtual:  EventQueue::pop ──► VirtualClock::advance_to ──► path step ──► EventQueue::push
//! ```
//!
//! Instants are integers of picoseconds, so device models can add cycles of any clock without rounding, and two runs of one
//! plan give the same bytes. This crate does not sleep or read the machine's clock; the live clock is in the service.

#![no_std]

#[cfg(feature = "event-queue")]
extern crate alloc;

#[cfg(feature = "event-queue")]
mod event_queue;

#[cfg(feature = "event-queue")]
pub use event_queue::EventQueue;

use core::cell::Cell;
use core::fmt;

/// A point in time: picoseconds since the clock's origin. The origin of the live clock is that of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant {
    picoseconds: u128,
}

impl Instant {
    /// The origin of a clock.
    pub const ORIGIN: Self = Self { picoseconds: 0 };

    /// The instant `picoseconds` after the origin.
    pub const fn from_picoseconds(picoseconds: u128) -> Self {
        Self { picoseconds }
    }

    /// The instant `nanoseconds` after the origin.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { picoseconds: nanoseconds as u128 * 1000 }
    }

    /// Picoseconds since the origin.
    pub const fn picoseconds(self) -> u128 {
        self.picoseconds
    }

    /// Whole nanoseconds since the origin; `u64::MAX` when they do not fit.
    pub fn nanoseconds(self) -> u64 {
        u64::try_from(self.picoseconds / 1000).unwrap_or(u64::MAX)
    }

    /// This instant plus `picoseconds`, saturating at the largest instant.
    pub const fn after_picoseconds(self, picoseconds: u128) -> Self {
        Self { picoseconds: self.picoseconds.saturating_add(picoseconds) }
    }

    /// This instant plus `duration`, saturating at the largest instant.
    pub const fn after(self, duration: core::time::Duration) -> Self {
        self.after_picoseconds(duration.as_nanos().saturating_mul(1000))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ps", self.picoseconds)
    }
}

/// A source of the present instant.
pub trait Clock {
    /// The present instant. It never goes back.
    fn now(&self) -> Instant;
}

/// The clock of a simulation: it stands still until the caller advances it.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now: Cell<Instant>,
}

impl VirtualClock {
    /// A clock at the origin.
    pub const fn new() -> Self {
        Self { now: Cell::new(Instant::ORIGIN) }
    }

    /// Advances the clock to `instant`. An earlier instant changes nothing.
    pub fn advance_to(&self, instant: Instant) {
        if instant > self.now.get() {
            self.now.set(instant);
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.now.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_virtual_clock_never_goes_back() {
        let clock = VirtualClock::new();
        clock.advance_to(Instant::from_nanoseconds(5));
        clock.advance_to(Instant::from_nanoseconds(3));
        assert_eq!(clock.now(), Instant::from_nanoseconds(5));
    }

    #[test]
    fn far_instants_saturate() {
        let end = Instant::from_picoseconds(u128::MAX);
        assert_eq!(end.after_picoseconds(1), end);
        assert_eq!(end.nanoseconds(), u64::MAX);
    }
}
