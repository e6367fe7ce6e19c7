//! Parking and waking: the side that sleeps pays for the fence, the side that publishes does not.
//!
//! ```text
//! parker                               publisher
//!   parked := 1                          publish (release)
//!   heavy barrier (membarrier)           light barrier (compiler only)
//!   look once more ── found: go on       parked? ── yes: wake it
//!   sleep
//! ```
//!
//! Before it parks, a waiter spins for about a wake-up's cost, as long as that is worth it ([`Spin`]).
//!
//! `membarrier(GLOBAL_EXPEDITED)` puts a full barrier on every CPU that runs a registered process, so either the parker
//! sees what was published or the publisher sees the flag; the publisher saves some 40 ns a request. Both processes
//! must have called [`Fences::register`]; where either could not, both use full fences. How to sleep and to wake is
//! the caller's: it has to be a wake that is not lost when it comes before the sleep (an eventfd, or a futex word that
//! the waker changes).

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering, fence};

/// How the two sides of a parking flag are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fences {
    /// Light: a compiler fence. Heavy: `membarrier`.
    Asymmetric,
    /// A full fence on both sides.
    Full,
}

impl Fences {
    /// Registers this process for expedited barriers; [`Fences::Full`] where the kernel refuses.
    #[cfg(not(loom))]
    pub fn register() -> Self {
        use std::sync::atomic::AtomicU8;
        // No lock: registering takes long enough for another thread to fork in the middle of it, and doing it twice is no harm.
        static REGISTERED: AtomicU8 = AtomicU8::new(0);
        const ASYMMETRIC: u8 = 1;
        const FULL: u8 = 2;
        let known = match REGISTERED.load(Ordering::Relaxed) {
            0 => {
                let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
                let usable = registered && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
                let found = if usable { ASYMMETRIC } else { FULL };
                REGISTERED.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        };
        if known == ASYMMETRIC { Self::Asymmetric } else { Self::Full }
    }

    /// Orders the publisher's store before its look at the flag.
    #[inline]
    pub fn light(self) {
        match self {
            // Loom knows no membarrier; a full fence on the light side stands for what the heavy side forces on it.
            #[cfg(loom)]
            Self::Asymmetric => fence(Ordering::SeqCst),
            #[cfg(not(loom))]
            Self::Asymmetric => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            Self::Full => fence(Ordering::SeqCst),
        }
    }

    /// Orders the parker's flag before its last look.
    pub fn heavy(self) {
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        if self == Self::Asymmetric {
            membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        }
    }
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY: the call takes two integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Raises the flag (all flags of one sleeper) by `set(1)`, looks once more and sleeps unless `ready`; lowers it by `set(0)`.
///
/// Returns whether it slept.
pub fn park(set: impl Fn(u64), fences: Fences, ready: impl FnOnce() -> bool, sleep: impl FnOnce()) -> bool {
    set(1);
    fences.heavy();
    let slept = !ready();
    if slept {
        sleep();
    }
    set(0);
    slept
}

/// How long to spin before parking, by what spinning has been worth.
///
/// A spin that found nothing halves the next; one that found something restores it. A waiter that does not spin never finds
/// that it would be worth it again, as when a neighbour has left the peer's CPU, so now and then it tries the whole spin.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    most: Duration,
    next: Duration,
    waits: u32,
}

impl Spin {
    /// Waits between two that spin as long as they may.
    const TRIAL: u32 = 64;

    /// A waiter that spins for `most` at first: about what a wake-up costs.
    pub const fn new(most: Duration) -> Self {
        Self { most, next: most, waits: 0 }
    }

    /// How long this wait is to spin.
    #[inline]
    pub fn time(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(Self::TRIAL) { self.most } else { self.next }
    }

    /// Spinning found what was waited for.
    #[inline]
    pub fn was_worth_it(&mut self) {
        self.next = self.most;
    }

    pub fn was_in_vain(&mut self) {
        self.next /= 2;
    }
}

/// Whether the peer has to be woken for what was just published.
#[inline]
pub fn must_wake(parked: &AtomicU64, fences: Fences) -> bool {
    wanted(parked, fences) != 0
}

/// What the peer's flag says after something was published: 0 when it need not be woken.
#[inline]
pub fn wanted(parked: &AtomicU64, fences: Fences) -> u64 {
    fences.light();
    parked.load(Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn spinning_ends_where_it_is_in_vain_and_is_tried_again() {
        let most = Duration::from_micros(50);
        let mut spin = Spin::new(most);
        assert_eq!(spin.time(), most);
        let mut times = Vec::new();
        for _ in 0..2 * Spin::TRIAL {
            spin.was_in_vain();
            times.push(spin.time());
        }
        assert_eq!((times[0], times[1]), (most / 2, most / 4));
        assert_eq!(times.iter().filter(|time| **time == most).count(), 2, "one wait in {}", Spin::TRIAL);
        assert!(times.last().is_some_and(|time| *time < Duration::from_nanos(10)));
        spin.was_worth_it();
        assert_eq!(spin.time(), most);
    }
}
