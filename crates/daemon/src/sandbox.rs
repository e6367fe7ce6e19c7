//! What the service's processes may still do once they have started: a second line of defence.
//!
//! ```text
//! Landlock   before anything starts: no file written, created or removed; no TCP; no abstract socket or signal outside
//! seccomp    after the start:       the system calls listed here, some with fixed arguments; all others fail with EPERM
//! ```
//!
//! A client that exploits a fault of the service still cannot open files, start programs, make memory executable, signal other
//! processes, or talk to a socket that the service does not hold. Kernels without Landlock have the seccomp filter only. Each
//! kind of process has its own list: the service, attendants (which see what clients send), and the spawner (which sees nothing of
//! clients).

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use memferry_kmod::device;
use memferry_shm::conduit;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use thiserror::Error;

/// The process could not be confined.
#[derive(Debug, Error)]
#[error("cannot confine the process ({step}): {why}")]
pub struct SandboxError {
    step: &'static str,
    why: String,
}

impl SandboxError {
    fn new(step: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Self {
        move |why| Self { step, why: why.to_string() }
    }
}

/// Calls of every process, in every state.
const ALWAYS: &[i64] = &[
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Tells a thread how often it has slept.
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Further calls of the service: connections, queue pairs, workers.
const SERVICE: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_socketpair,
    libc::SYS_getsockopt,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_membarrier,
];

/// Further calls of an attendant: the checks of memory.
const ATTENDANT: &[i64] =
    &[libc::SYS_sendmsg, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_lseek, libc::SYS_eventfd2];

/// Further calls of the spawner: attendants on their way, and the files of the socket at the end.
const SPAWNER: &[i64] = &[
    libc::SYS_sendmsg,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_lseek,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_pidfd_open,
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_getppid,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Takes the file systems and networks from this thread and those that it starts, as far as the kernel has Landlock. Files can still
/// be read, `device` used, and files of `directory` removed.
///
/// # Errors
/// [`SandboxError`].
pub(crate) fn take_file_systems(device: Option<&Path>, directory: Option<&Path>) -> Result<(), SandboxError> {
    let failed = SandboxError::new("Landlock");
    let abi = ABI::V6;
    let mut rules = ruleset(abi).map_err(|error| failed(&error))?.create().map_err(|error| failed(&error))?;
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let root = PathFd::new("/").map_err(|error| failed(&error))?;
    rules = rules.add_rule(PathBeneath::new(root, reading)).map_err(|error| failed(&error))?;
    if let Some(device) = device.and_then(|device| PathFd::new(device).ok()) {
        let using = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        rules = rules.add_rule(PathBeneath::new(device, using)).map_err(|error| failed(&error))?;
    }
    if let Some(directory) = directory.and_then(|directory| PathFd::new(directory).ok()) {
        let removing = PathBeneath::new(directory, AccessFs::RemoveFile);
        rules = rules.add_rule(removing).map_err(|error| failed(&error))?;
    }
    rules.restrict_self().map(drop).map_err(|error| failed(&error))
}

/// Everything that Landlock can take, as far as this kernel's version of it can.
fn ruleset(abi: ABI) -> Result<Ruleset, landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))
}

/// Confines all threads of the service. `module`: whether the Linux module is used; `supervisor`: the datagram socket to the
/// supervisor, if there is one.
///
/// # Errors
/// [`SandboxError`] on an unsupported architecture, or if the kernel refuses.
pub(crate) fn enter(module: bool, supervisor: Option<RawFd>) -> Result<(), SandboxError> {
    let failed = SandboxError::new("seccomp");
    let mut rules = listed(&[ALWAYS, SERVICE]);
    arguments(&mut rules, module, supervisor).map_err(|error| failed(&error))?;
    let program = program(rules)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| failed(&error))
}

/// Confines an attendant.
///
/// # Errors
/// As [`enter`].
pub(crate) fn confine_attendant() -> Result<(), SandboxError> {
    let failed = SandboxError::new("seccomp");
    let mut rules = listed(&[ALWAYS, ATTENDANT]);
    common_arguments(&mut rules).map_err(|error| failed(&error))?;
    seccompiler::apply_filter_all_threads(&program(rules)?).map_err(|error| failed(&error))
}

/// Confines the spawner, whose filter also holds for its attendants.
///
/// # Errors
/// As [`enter`].
pub(crate) fn confine_spawner() -> Result<(), SandboxError> {
    let failed = SandboxError::new("seccomp");
    let mut rules = listed(&[ALWAYS, SPAWNER]);
    sockets(&mut rules).map_err(|error| failed(&error))?;
    no_executable_memory(&mut rules).map_err(|error| failed(&error))?;
    // The attendants' own process ids are not known here, so only the signal is fixed.
    let abort =
        condition(2, SeccompCmpOp::Eq, libc::SIGABRT as u64).and_then(|is| SeccompRule::new(vec![is]));
    rules.insert(libc::SYS_tgkill, vec![abort.map_err(|error| failed(&error))?]);
    seccompiler::apply_filter(&program(rules)?).map_err(|error| failed(&error))
}

/// Takes the file systems and networks from an attendant, before it has threads.
///
/// # Errors
/// [`SandboxError`].
pub(crate) fn take_everything() -> Result<(), SandboxError> {
    let failed = SandboxError::new("Landlock");
    let rules = ruleset(ABI::V6).and_then(Ruleset::create).map_err(|error| failed(&error))?;
    rules.restrict_self().map(drop).map_err(|error| failed(&error))
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn listed(lists: &[&[i64]]) -> Rules {
    lists.concat().into_iter().map(|number| (number, Vec::new())).collect()
}

fn program(rules: Rules) -> Result<BpfProgram, SandboxError> {
    let failed = SandboxError::new("seccomp");
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    let filter =
        SeccompFilter::new(rules, deny, SeccompAction::Allow, arch).map_err(|error| failed(&error))?;
    BpfProgram::try_from(filter).map_err(|error| failed(&error))
}

fn condition(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)
}

/// The calls of the service that are allowed with certain arguments only.
fn arguments(rules: &mut Rules, module: bool, supervisor: Option<RawFd>) -> Result<(), BackendError> {
    common_arguments(rules)?;
    // A datagram socket could reach any other one in the system by its address. The only one is that of the supervisor: it may
    // send without an address, and nothing else.
    match supervisor {
        None => drop(rules.insert(libc::SYS_sendmsg, Vec::new())),
        Some(number) => {
            let number = number as u64;
            let others = SeccompRule::new(vec![condition(0, SeccompCmpOp::Ne, number)?])?;
            rules.insert(libc::SYS_sendmsg, vec![others.clone()]);
            rules.insert(libc::SYS_fcntl, vec![others]);
            let no_address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
            let there = SeccompRule::new(vec![condition(0, SeccompCmpOp::Eq, number)?, no_address])?;
            rules.insert(libc::SYS_sendto, vec![there]);
        }
    }
    if module {
        let calls = device::CALLS
            .iter()
            .map(|call| SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, u64::from(*call))?]));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        rules.entry(libc::SYS_ioctl).or_default().extend(calls);
    }
    Ok(())
}

/// No executable memory, and no signal but the own end by a panic.
fn common_arguments(rules: &mut Rules) -> Result<(), BackendError> {
    no_executable_memory(rules)?;
    sockets(rules)?;
    let own_end = vec![
        condition(0, SeccompCmpOp::Eq, u64::from(std::process::id()))?,
        condition(2, SeccompCmpOp::Eq, libc::SIGABRT as u64)?,
    ];
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(own_end)?]);
    Ok(())
}

/// The calls that see whether a socket is drained, and whether its peer reads.
fn sockets(rules: &mut Rules) -> Result<(), BackendError> {
    let passing_credentials = vec![
        condition(1, SeccompCmpOp::Eq, libc::SOL_SOCKET as u64)?,
        condition(2, SeccompCmpOp::Eq, libc::SO_PASSCRED as u64)?,
    ];
    let passing_descriptors = vec![
        condition(1, SeccompCmpOp::Eq, libc::SOL_SOCKET as u64)?,
        condition(2, SeccompCmpOp::Eq, conduit::SO_PASSRIGHTS as u64)?,
    ];
    let options = [passing_credentials, passing_descriptors].map(SeccompRule::new);
    rules.insert(libc::SYS_setsockopt, options.into_iter().collect::<Result<_, _>>()?);
    let unread = SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, u64::from(libc::TIOCOUTQ as u32))?])?;
    rules.insert(libc::SYS_ioctl, vec![unread]);
    Ok(())
}

fn no_executable_memory(rules: &mut Rules) -> Result<(), BackendError> {
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        rules.insert(call, vec![SeccompRule::new(vec![condition(2, executable, 0)?])?]);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
