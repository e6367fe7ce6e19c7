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
//! `membarrier(GLOBAL_EXPEDITED)` puts a full barrier on every CPU that runs a registered process, so either the parker
//! sees what was published or the publisher sees the flag; the publisher saves some 40 ns a request. Both processes
//! must have called [`Fences::register`]; where either could not, both use full fences. How to sleep and to wake is
//! the caller's: it has to be a wake that is not lost when it comes before the sleep (an eventfd, or a futex word that
//! the waker changes).

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
        use std::sync::OnceLock;
        static REGISTERED: OnceLock<Fences> = OnceLock::new();
        *REGISTERED.get_or_init(|| {
            let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
            let usable = registered && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
            if usable { Self::Asymmetric } else { Self::Full }
        })
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
