//! The scheduling class of the calling thread.
//!
//! ```text
//! class ─► sched_setscheduler(0, policy, priority)
//! ```
//!
//! It stands here because the call needs unsafe code, which this crate keeps in one place. Which thread gets which class is
//! the service's business.

#![expect(unsafe_code, reason = "a system call without a wrapper")]

use std::io;

/// How the kernel schedules a thread (sched(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SchedulingClass {
    /// As it was when the thread began.
    #[default]
    Inherited,
    /// As work that nobody waits for: it preempts others less.
    Batch,
    /// Only when nothing else wants the CPU.
    Idle,
    /// Before all that is not real-time, at the lowest such priority. Needs CAP_SYS_NICE. While it has work, nothing else
    /// runs on its CPU.
    Fifo,
}

impl SchedulingClass {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Inherited, "inherited"), (Self::Batch, "batch"), (Self::Idle, "idle"), (Self::Fifo, "fifo")];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(class, _)| *class == self).map_or("", |(_, name)| name)
    }

    /// Schedules the calling thread so.
    ///
    /// # Errors
    /// Those of `sched_setscheduler`: `PermissionDenied` where the process may not.
    pub fn apply(self) -> io::Result<()> {
        let (policy, priority) = match self {
            Self::Inherited => return Ok(()),
            Self::Batch => (libc::SCHED_BATCH, 0),
            Self::Idle => (libc::SCHED_IDLE, 0),
            Self::Fifo => (libc::SCHED_FIFO, 1),
        };
        // The call itself: musl's function does nothing. Its parameters are one number.
        let call: _ = libc::SYS_sched_setscheduler;
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
    fn the_kernel_schedules_the_thread_as_it_was_told() {
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
