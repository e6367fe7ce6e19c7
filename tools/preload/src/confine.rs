//! The system calls a lane may make.
//!
//! ```text
//! this architecture, and one of CALLS ─► yes           anything else ─► the process is killed
//! ```
//!
//! A lane keeps the rights the program had when it was started, even when the program gives them up. Whoever takes over such a program
//! shall gain nothing by taking over its lane: it can open no file, send no signal, start nothing.

use std::ffi::c_long;

use crate::system;

const CALLS: [c_long; 14] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_close,
    libc::SYS_ioctl,
    libc::SYS_userfaultfd,
    libc::SYS_vmsplice,
    libc::SYS_tee,
    libc::SYS_pipe2,
    libc::SYS_fcntl,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Where the kernel tells the filter of the call's number, and of the architecture.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const ANSWER: u16 = 0x06;

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

const FILTER: [libc::sock_filter; CALLS.len() + 5] = {
    let kill = step(ANSWER, libc::SECCOMP_RET_KILL_PROCESS, 0, 0);
    let mut filter = [kill; CALLS.len() + 5];
    filter[0] = step(LOAD, ARCHITECTURE_AT, 0, 0);
    filter[1] = step(JUMP_IF_EQUAL, ARCHITECTURE, 0, CALLS.len() as u8 + 1);
    filter[2] = step(LOAD, NUMBER_AT, 0, 0);
    let mut at = 0;
    while at < CALLS.len() {
        // Equal: over the other calls and the answer that kills.
        filter[3 + at] = step(JUMP_IF_EQUAL, CALLS[at] as u32, (CALLS.len() - at) as u8, 0);
        at += 1;
    }
    filter[CALLS.len() + 4] = step(ANSWER, libc::SECCOMP_RET_ALLOW, 0, 0);
    filter
};

/// Confines the calling thread alone; `false` where that cannot be done.
pub(crate) fn this_thread() -> bool {
    const SPECULATION_ALLOWED: usize = 4;
    let program = libc::sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
    let name = c"memferry-lane".as_ptr().addr();
    let filter =
        [libc::SECCOMP_SET_MODE_FILTER as usize, SPECULATION_ALLOWED, (&raw const program).addr(), 0, 0, 0];
    // SAFETY: the calls read a name and a program; they change what this thread may do, and nothing else.
    unsafe {
        let _ = system::call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]);
        system::call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]).is_ok()
            && system::call(libc::SYS_seccomp, filter).is_ok()
    }
}
