//! Parking and waking: the sleeping side pays for the memory barrier, the publishing side does not.
//!
//! ```text
//! parker                               publisher
//!   parked := 1                          publish (release)
//!   heavy barrier (membarrier)           light barrier (compiler only)
//!   check again ── found: continue       parked? ── yes: wake it
//!   sleep
//! ```
//!
//! Before it parks, a waiter spins for about the cost of a wake-up, as long as spinning pays off ([`Spin`]).
//!
//! `membarrier(GLOBAL_EXPEDITED)` executes a full barrier on every CPU that runs a registered process. So either the parker
//! sees the published element or the publisher sees the flag, and the publisher saves about 40 ns a request. Both processes
//! must have called [`Fences::register`]; if either could not, both use full fences.
//!
//! The caller provides sleep and wake. A wake that comes before the sleep must not be lost: use an eventfd, or a futex word
//! that the waker changes.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering, fence};

/// The memory barriers of the two sides of a parking flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fences {
    /// Light: a compiler fence. Heavy: `membarrier`.
    Asymmetric,
    /// A full fence on both sides.
    Full,
}

/// What this process has registered; 0 before that. No lock: another thread may fork during the slow registration, and a child would
/// inherit the held lock. A second registration is harmless.
#[cfg(not(loom))]
static REGISTERED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
#[cfg(not(loom))]
const ASYMMETRIC: u8 = 1;
#[cfg(not(loom))]
const FULL: u8 = 2;

impl Fences {
    /// Registers this process for expedited barriers. Returns [`Fences::Full`] if Linux refuses.
    #[cfg(not(loom))]
    pub fn register() -> Self {
        match REGISTERED.load(Ordering::Relaxed) {
            0 => Self::register_again(),
            ASYMMETRIC => Self::Asymmetric,
            _ => Self::Full,
        }
    }

    /// As [`register`](Self::register), in a child that may have inherited only the knowledge of a registration.
    #[cfg(not(loom))]
    pub fn register_again() -> Self {
        let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
        let usable = registered && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        REGISTERED.store(if usable { ASYMMETRIC } else { FULL }, Ordering::Relaxed);
        if usable { Self::Asymmetric } else { Self::Full }
    }

    /// Orders the publisher's stores before its load of the flag.
    #[inline]
    pub fn light(self) {
        match self {
            // Loom has no membarrier: a full fence here stands for the one that the heavy side executes on this CPU.
            #[cfg(loom)]
            Self::Asymmetric => fence(Ordering::SeqCst),
            #[cfg(not(loom))]
            Self::Asymmetric => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            Self::Full => fence(Ordering::SeqCst),
        }
    }

    /// Orders the parker's store of the flag before its last check.
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
    // SAFETY: the call takes integers only and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Raises the flag (or all flags of one sleeper) with `set(1)`, sleeps unless `ready` returns true, and lowers the flag with
/// `set(0)`. Returns whether it slept.
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

/// Adapts the time to spin before parking.
///
/// A spin that finds nothing halves the next one; a spin that finds something restores the full time. Every 64th wait spins
/// for the full time all the same, so that a waiter notices when spinning pays off again, for example
/// after another thread left the peer's CPU.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    full: Duration,
    next: Duration,
    waits: u32,
}

impl Spin {
    /// Number of waits from one full spin to the next.
    const TRIAL: u32 = 64;

    /// Starts with a spin of `full`, which should be about the cost of a wake-up.
    pub const fn new(full: Duration) -> Self {
        Self { full, next: full, waits: 0 }
    }

    /// The time to spin in this wait.
    #[inline]
    pub fn time(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(Self::TRIAL) { self.full } else { self.next }
    }

    /// Records that the spin found something.
    #[inline]
    pub fn record_success(&mut self) {
        self.next = self.full;
    }

    /// Records that the spin found nothing.
    pub fn record_failure(&mut self) {
        self.next /= 2;
    }
}

/// Whether the peer sleeps and must be woken for the elements just published.
#[inline]
pub fn must_wake(parked: &AtomicU64, fences: Fences) -> bool {
    wanted(parked, fences) != 0
}

/// The peer's flag after a publish: 0 when the peer need not be woken.
#[inline]
pub fn wanted(parked: &AtomicU64, fences: Fences) -> u64 {
    fences.light();
    parked.load(Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn vain_spins_shorten_and_are_retried() {
        let full = Duration::from_micros(50);
        let mut spin = Spin::new(full);
        assert_eq!(spin.time(), full);
        let mut times = Vec::new();
        for _ in 0..2 * Spin::TRIAL {
            spin.record_failure();
            times.push(spin.time());
        }
        assert_eq!((times[0], times[1]), (full / 2, full / 4));
        assert_eq!(times.iter().filter(|time| **time == full).count(), 2, "one wait in {}", Spin::TRIAL);
        assert!(times.last().is_some_and(|time| *time < Duration::from_nanos(10)));
        spin.record_success();
        assert_eq!(spin.time(), full);
    }
}
