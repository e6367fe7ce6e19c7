//! Seccomp filter: allows the system calls that the service needs after its start. All others fail with EPERM.
//!
//! The filter applies to all threads and cannot be removed. It is a second line of defence: a client that exploits a fault of
//! the service still cannot open files, start programs or make connections. It checks arguments of two calls: setsockopt may
//! only set `SO_PASSCRED`, and ioctl only issue commands of the Linux module, if that is used.

use std::collections::BTreeMap;

use memferry_kmod::device;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use thiserror::Error;

/// The filter could not be installed.
#[derive(Debug, Error)]
#[error("cannot install the seccomp filter: {0}")]
pub struct SandboxError(String);

const ALLOWED: &[i64] = &[
    // Messages, doorbells, log lines.
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    // Signals to clients. The ring was restricted to them at its creation.
    libc::SYS_io_uring_enter,
    libc::SYS_pidfd_open,
    // Frames and queue pairs.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads, waiting and time.
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_restart_syscall,
    // POSIX signals and exit.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Confines all threads of this process. `module`: whether the Linux module is used.
///
/// # Errors
/// [`SandboxError`] on an unsupported architecture, or if the kernel refuses.
pub(crate) fn enter(module: bool) -> Result<(), SandboxError> {
    let failed = |error: &dyn std::fmt::Display| SandboxError(error.to_string());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let mut rules: BTreeMap<_, _> = ALLOWED.iter().map(|number| (*number, Vec::new())).collect();
    rules.insert(libc::SYS_setsockopt, vec![passing_credentials().map_err(|error| failed(&error))?]);
    if module {
        rules.insert(libc::SYS_ioctl, module_calls().map_err(|error| failed(&error))?);
    }
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let filter =
        SeccompFilter::new(rules, deny, SeccompAction::Allow, arch).map_err(|error| failed(&error))?;
    let program = BpfProgram::try_from(filter).map_err(|error| failed(&error))?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| failed(&error))
}

/// Allows setsockopt only for `SO_PASSCRED`, which serves to check that a socket is drained.
fn passing_credentials() -> Result<SeccompRule, BackendError> {
    let is = |argument, value: libc::c_int| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value as u64)
    };
    SeccompRule::new(vec![is(1, libc::SOL_SOCKET)?, is(2, libc::SO_PASSCRED)?])
}

/// Allows the ioctl commands of the Linux module. One rule each, of which one must match.
fn module_calls() -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |call: &u32| {
        let command = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(*call))?;
        SeccompRule::new(vec![command])
    };
    device::CALLS.iter().map(rule).collect()
}
