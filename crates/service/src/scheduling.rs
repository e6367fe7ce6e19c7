//! Sets the scheduling class of the calling thread, and counts how often it has slept.
//!
//! ```text
//! class ─► sched_setscheduler(0, policy, priority)        getrusage(RUSAGE_THREAD) ─► voluntary switches
//! ```
//!
//! In a separate module because the calls need unsafe code. The service decides which thread gets which class.

#![expect(unsafe_code, reason = "a system call without a wrapper")]

use std::io;

/// How often the calling thread has given up its CPU to wait for something: a lock, a page. Not how often it was preempted.
pub fn times_slept() -> u64 {
    // SAFETY: a zeroed `rusage` is a valid one, and the call only fills it.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut used);
        used
    };
    used.ru_nvcsw as u64
}

/// How the kernel schedules a thread (sched(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SchedulingClass {
    /// Unchanged: inherited from the creating thread.
    #[default]
    Inherited,
    /// For background work: it preempts other threads less.
    Batch,
    /// Runs only when no other thread needs the CPU.
    Idle,
    /// Real-time at the lowest priority, ahead of all normal threads. Needs CAP_SYS_NICE. While it has work, no normal
    /// thread runs on its CPU.
    Fifo,
}

impl SchedulingClass {
    /// All variants and their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Inherited, "inherited"), (Self::Batch, "batch"), (Self::Idle, "idle"), (Self::Fifo, "fifo")];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(class, _)| *class == self).map_or("", |(_, name)| name)
    }

    /// Applies the class to the calling thread.
    ///
    /// # Errors
    /// Those of `sched_setscheduler`, for instance `PermissionDenied`.
    pub fn apply(self) -> io::Result<()> {
        let (policy, priority) = match self {
            Self::Inherited => return Ok(()),
            Self::Batch => (libc::SCHED_BATCH, 0),
            Self::Idle => (libc::SCHED_IDLE, 0),
            Self::Fifo => (libc::SCHED_FIFO, 1),
        };
        // The raw system call, because musl's function does nothing. `sched_param` is a single int.
        let call = libc::SYS_sched_setscheduler;
        let parameters: *const libc::c_int = &raw const priority;
        // SAFETY: the call reads the parameters, which live on this stack, and changes nothing but this thread's scheduling.
        if unsafe { libc::syscall(call, 0, policy, parameters) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn apply_sets_the_kernels_policy() {
        for (class, policy) in [
            (SchedulingClass::Inherited, libc::SCHED_OTHER),
            (SchedulingClass::Batch, libc::SCHED_BATCH),
            (SchedulingClass::Idle, libc::SCHED_IDLE),
        ] {
            std::thread::spawn(move || {
                class.apply().unwrap();
                // SAFETY: the call reads this thread's class and touches no memory.
                assert_eq!(unsafe { libc::sched_getscheduler(0) }, policy, "{class:?}");
            })
            .join()
            .unwrap();
        }
    }
}
