//! What each kind of process may still do: tried in forked processes.

#![allow(
    unsafe_code,
    reason = "a filter cannot be removed, so it is tried in a fork; forbidden calls are made by number"
)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::PoisonError;

use memferry_shm::conduit;
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::testing::folder;

const ALLOWED: i32 = 0;
const DENIED: i32 = libc::EPERM;

/// Results of calls, by name: an error number, or 0.
type Results = Vec<(&'static str, i32)>;

/// Runs `try_calls` in a forked process and returns its results.
fn in_fork(try_calls: impl FnOnce() -> Results) -> Vec<(String, i32)> {
    let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // SAFETY: the child runs only the lines below, takes no lock that another thread may hold, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let results: String = try_calls().iter().map(|(name, error)| format!("{name} {error}\n")).collect();
        let _ = File::from(writer).write_all(results.as_bytes());
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    drop(writer);
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text).unwrap();
    // SAFETY: waits for the child, and stores no status.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let line = |line: &str| {
        let (name, error) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), error.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Calls of [`try_calls`] that all kinds of processes may make.
const COMMON: [(&str, i32); 7] = [
    ("confine", ALLOWED),
    ("mmap", ALLOWED),
    ("tgkill abort here", libc::ESRCH),
    ("sendmsg", libc::EBADF),
    ("setsockopt SO_PASSCRED", libc::EBADF),
    ("ioctl TIOCOUTQ", libc::EBADF),
    ("ftruncate", libc::EBADF),
];

/// Asserts that all calls are denied but the common ones and `more`.
fn expect_common_and(results: &[(String, i32)], more: &[(&str, i32)]) {
    expect_denied_except(results, &[&COMMON, more].concat());
}

/// Compares results with the set of all that are not denied.
fn expect_denied_except(results: &[(String, i32)], allowed: &[(&str, i32)]) {
    let found: BTreeSet<_> = results
        .iter()
        .filter(|(_, error)| *error != DENIED)
        .map(|(name, error)| (name.as_str(), *error))
        .collect();
    assert_eq!(found, allowed.iter().copied().collect());
}

/// The error number of a system call, or 0. Arguments are numbers, or addresses that outlive the call.
fn call(number: i64, arguments: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the calls of these tests fail, or name memory that lives, or make objects that end with this process.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        _ => 0,
    }
}

fn error_of<T>(result: std::io::Result<T>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| ALLOWED)
}

/// A process that does not exist: a signal to it is an error other than `DENIED` if the filter lets it pass.
const NO_PROCESS: u64 = i32::MAX as u64;

/// Tries calls that some kinds of processes may make and others not, or none.
fn try_calls(confined: Result<(), SandboxError>) -> Results {
    let none = [0; 6];
    let bad = u64::MAX;
    let path = c"/nowhere/at-all".as_ptr() as u64;
    let own = u64::from(std::process::id());
    let at = i64::from(libc::AT_FDCWD).cast_unsigned();
    let writable = u64::from((libc::PROT_READ | libc::PROT_WRITE).unsigned_abs());
    let executable = u64::from((libc::PROT_READ | libc::PROT_EXEC).unsigned_abs());
    let private = u64::from((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).unsigned_abs());
    let kinds = [libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64];
    let credentials = [bad, libc::SOL_SOCKET as u64, libc::SO_PASSCRED as u64, path, 4, 0];
    let option = [bad, libc::SOL_SOCKET as u64, libc::SO_RCVBUF as u64, path, 4, 0];
    let abort = libc::SIGABRT as u64;
    vec![
        ("confine", if confined.is_ok() { ALLOWED } else { -1 }),
        ("mmap", call(libc::SYS_mmap, [0, 4096, writable, private, bad, 0])),
        ("mmap executable", call(libc::SYS_mmap, [0, 4096, executable, private, bad, 0])),
        ("mprotect executable", call(libc::SYS_mprotect, [0, 0, executable, 0, 0, 0])),
        ("openat", call(libc::SYS_openat, [at, path, 0, 0, 0, 0])),
        ("unlinkat", call(libc::SYS_unlinkat, [at, path, 0, 0, 0, 0])),
        ("renameat2", call(libc::SYS_renameat2, [at, path, at, path, 0, 0])),
        ("execve", call(libc::SYS_execve, [path, 0, 0, 0, 0, 0])),
        ("ptrace", call(libc::SYS_ptrace, none)),
        ("process_vm_readv", call(libc::SYS_process_vm_readv, [NO_PROCESS, 0, 0, 0, 0, 0])),
        ("kill", call(libc::SYS_kill, [NO_PROCESS, 0, 0, 0, 0, 0])),
        ("tgkill abort", call(libc::SYS_tgkill, [NO_PROCESS, NO_PROCESS, abort, 0, 0, 0])),
        ("tgkill other", call(libc::SYS_tgkill, [own, NO_PROCESS, 0, 0, 0, 0])),
        ("tgkill abort here", call(libc::SYS_tgkill, [own, NO_PROCESS, abort, 0, 0, 0])),
        ("pidfd_send_signal", call(libc::SYS_pidfd_send_signal, [bad, 0, 0, 0, 0, 0])),
        ("socket", call(libc::SYS_socket, [kinds[0], kinds[1], 0, 0, 0, 0])),
        ("connect", call(libc::SYS_connect, [bad, 0, 0, 0, 0, 0])),
        ("bind", call(libc::SYS_bind, [bad, 0, 0, 0, 0, 0])),
        ("accept4", call(libc::SYS_accept4, [bad, 0, 0, 0, 0, 0])),
        ("sendmsg", call(libc::SYS_sendmsg, [bad, 0, 0, 0, 0, 0])),
        ("sendto", call(libc::SYS_sendto, [bad, 0, 0, 0, 0, 0])),
        ("setsockopt SO_PASSCRED", call(libc::SYS_setsockopt, credentials)),
        ("setsockopt SO_RCVBUF", call(libc::SYS_setsockopt, option)),
        ("ioctl TIOCOUTQ", call(libc::SYS_ioctl, [bad, libc::TIOCOUTQ, 0, 0, 0, 0])),
        ("ioctl TIOCSTI", call(libc::SYS_ioctl, [bad, libc::TIOCSTI, 0, 0, 0, 0])),
        ("dup", call(libc::SYS_dup, [bad, 0, 0, 0, 0, 0])),
        ("memfd_create", call(libc::SYS_memfd_create, [path, bad, 0, 0, 0, 0])),
        ("ftruncate", call(libc::SYS_ftruncate, [bad, 0, 0, 0, 0, 0])),
        ("lseek", call(libc::SYS_lseek, [bad, 0, 0, 0, 0, 0])),
        ("clone", call(libc::SYS_clone, [libc::CLONE_FS as u64 | libc::CLONE_NEWNS as u64, 0, 0, 0, 0, 0])),
        ("io_uring_setup", call(libc::SYS_io_uring_setup, none)),
        ("setuid", call(libc::SYS_setuid, [bad, 0, 0, 0, 0, 0])),
    ]
}

#[test]
fn the_service_may_make_its_calls_only() {
    let results = in_fork(|| try_calls(enter(false, None)));
    let allowed =
        [("pidfd_send_signal", libc::EBADF), ("accept4", libc::EBADF), ("memfd_create", libc::EINVAL)];
    expect_common_and(&results, &allowed);
}

#[test]
fn an_attendant_may_make_its_calls_only() {
    let results = in_fork(|| try_calls(confine_attendant()));
    let allowed = [("lseek", libc::EBADF)];
    expect_common_and(&results, &allowed);
}

#[test]
fn the_spawner_may_make_its_calls_only() {
    let results = in_fork(|| try_calls(confine_spawner()));
    let allowed = [
        ("unlinkat", libc::ENOENT),
        ("tgkill abort", libc::ESRCH),
        ("lseek", libc::EBADF),
        // Refused for its flags, not by the filter.
        ("clone", libc::EINVAL),
    ];
    expect_common_and(&results, &allowed);
}

#[test]
fn an_attendant_has_both_filters() {
    let results = in_fork(|| {
        let confined = confine_spawner().and_then(|()| confine_attendant());
        try_calls(confined)
            .into_iter()
            .filter(|(name, _)| ["confine", "lseek", "unlinkat"].contains(name))
            .collect()
    });
    expect_denied_except(&results, &[("confine", ALLOWED), ("lseek", libc::EBADF)]);
}

#[test]
fn the_supervisors_socket_sends_without_an_address_only() {
    let folder = folder("supervisor");
    let address = folder.join("other");
    let results = in_fork(|| {
        let (Ok((ours, theirs)), Ok(other)) = (UnixDatagram::pair(), UnixDatagram::bind(&address)) else {
            return Vec::new();
        };
        let confined = enter(false, Some(ours.as_raw_fd()));
        let number = u64::from(ours.as_raw_fd().unsigned_abs());
        vec![
            ("confine", if confined.is_ok() { ALLOWED } else { -1 }),
            ("send", error_of(ours.send(b"READY=1"))),
            ("send to an address", error_of(ours.send_to(b"x", &address))),
            ("sendmsg", error_of(conduit::send(ours.as_fd(), b"x", &[], false).map_err(Into::into))),
            ("fcntl", call(libc::SYS_fcntl, [number, libc::F_DUPFD as u64, 0, 0, 0, 0])),
            (
                "sendmsg of another",
                error_of(conduit::send(theirs.as_fd(), b"x", &[], false).map_err(Into::into)),
            ),
            ("send of another to an address", error_of(other.send_to(b"x", &address))),
        ]
    });
    std::fs::remove_dir_all(&folder).unwrap();
    expect_denied_except(
        &results,
        &[("confine", ALLOWED), ("send", ALLOWED), ("sendmsg of another", ALLOWED)],
    );
}

/// Whether the kernel has Landlock.
fn has_landlock() -> bool {
    const VERSION: u64 = 1;
    let has = call(libc::SYS_landlock_create_ruleset, [0, 0, VERSION, 0, 0, 0]) == 0;
    if !has {
        eprintln!("not tried: this kernel has no Landlock");
    }
    has
}

#[test]
fn file_systems_can_only_be_read() {
    if !has_landlock() {
        return;
    }
    let folder = folder("landlock");
    let own = folder.join("own");
    std::fs::create_dir(&own).unwrap();
    for path in [folder.join("other"), own.join("socket")] {
        std::fs::write(path, b"x").unwrap();
    }
    let results = in_fork(|| {
        let confined = take_file_systems(None, Some(&own));
        vec![
            ("confine", if confined.is_ok() { ALLOWED } else { -1 }),
            ("read", error_of(std::fs::read(folder.join("other")))),
            ("write", error_of(std::fs::write(folder.join("other"), b"y"))),
            ("create", error_of(std::fs::write(own.join("new"), b"y"))),
            ("remove elsewhere", error_of(std::fs::remove_file(folder.join("other")))),
            ("remove the socket", error_of(std::fs::remove_file(own.join("socket")))),
            ("with the attendant's", if take_everything().is_ok() { ALLOWED } else { -1 }),
            ("read as an attendant", error_of(std::fs::read(folder.join("other")))),
        ]
    });
    std::fs::remove_dir_all(&folder).unwrap();
    let expected = [
        ("confine", ALLOWED),
        ("read", ALLOWED),
        ("write", libc::EACCES),
        ("create", libc::EACCES),
        ("remove elsewhere", libc::EACCES),
        ("remove the socket", ALLOWED),
        ("with the attendant's", ALLOWED),
        ("read as an attendant", libc::EACCES),
    ];
    expect_denied_except(&results, &expected);
}

#[test]
fn confinement_works_without_landlock() {
    let results = in_fork(|| {
        let confined = take_file_systems(None, None).and_then(|()| take_everything());
        vec![("confine", if confined.is_ok() { ALLOWED } else { -1 })]
    });
    expect_denied_except(&results, &[("confine", ALLOWED)]);
}
