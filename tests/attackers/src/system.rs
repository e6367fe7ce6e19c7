//! System calls without a safe interface: changing users, forking, reading memory of a file that never answers.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use memferry_shm::mapping::Mapping;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
use rustix::thread::futex;

fn checked(result: libc::c_long) -> rustix::io::Result<usize> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Gives this process, all threads of it, another user and group, and no supplementary groups.
pub(crate) fn become_user(user: u32) -> rustix::io::Result<()> {
    // SAFETY: the calls change credentials and no memory.
    unsafe {
        checked(libc::setgroups(0, std::ptr::null()).into())?;
        checked(libc::setresgid(user, user, user).into())?;
        checked(libc::setresuid(user, user, user).into())?;
        // A change of users makes a process undumpable, which an ordinary client is not.
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0).into())?;
    }
    Ok(())
}

/// Gives this thread mounts of its own.
pub(crate) fn private_mounts() -> rustix::io::Result<()> {
    // SAFETY: the descriptor table stays shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
}

/// Forks a child that runs `body`, then sleeps until it is killed. It ends with this thread.
pub(crate) fn fork(body: impl FnOnce()) -> rustix::io::Result<Pid> {
    // SAFETY: the child allocates at most. glibc keeps its allocator usable in forked children.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        body();
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    checked(child.into())?;
    Pid::from_raw(child).ok_or(Errno::IO)
}

/// Kills a child and waits for its end.
pub(crate) fn end(child: Pid) {
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
}

/// Writes the bytes of `source` to a descriptor. The kernel reads them, and waits there for memory that is never filled.
pub(crate) fn write_mapping(to: BorrowedFd<'_>, source: &Mapping, at: usize, length: usize) {
    assert!(at + length <= source.length_bytes());
    // SAFETY: M1: the range is inside the mapping, which lives during the call. The kernel only reads it.
    unsafe { libc::write(to.as_raw_fd(), source.pointer().add(at).cast(), length) };
}

/// Waits for an event and has the kernel write it to `buffer`.
pub(crate) fn epoll_wait_into(poll: BorrowedFd<'_>, buffer: &Mapping) {
    assert!(buffer.length_bytes() >= size_of::<libc::epoll_event>());
    // SAFETY: M1: the mapping is writable, has room for one event and lives during the call.
    unsafe { libc::epoll_wait(poll.as_raw_fd(), buffer.pointer().cast(), 1, -1) };
}

/// Collapses pages into huge ones.
pub(crate) const COLLAPSE: i32 = 25;

/// Advises Linux about the use of a whole mapping.
pub(crate) fn advise(mapping: &Mapping, advice: i32) {
    // SAFETY: the advices used here move pages of shared memory and change no byte.
    unsafe { libc::madvise(mapping.pointer().cast(), mapping.length_bytes(), advice) };
}

/// The half of a wake word that is the futex.
fn futex_of(word: &AtomicU64) -> &AtomicU32 {
    let halves = std::ptr::from_ref(word).cast::<AtomicU32>();
    let low = if cfg!(target_endian = "little") { halves } else { halves.wrapping_add(1) };
    // SAFETY: the half lies in the word, and an atomic of 32 bits is valid for all bits. Linux only reads it.
    unsafe { &*low }
}

const SLEEP: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 1, tv_nsec: 0 };

/// Sleeps on a wake word until it changes, at most a second.
pub(crate) fn sleep_on(word: &AtomicU64) {
    let expected = word.load(std::sync::atomic::Ordering::Acquire) as u32;
    let _ = futex::wait(futex_of(word), futex::Flags::empty(), expected, Some(&SLEEP));
}

/// As [`sleep_on`], with as many entries in the futex's list as Linux allows a thread.
pub(crate) fn sleep_many_times_on(word: &AtomicU64) {
    const ENTRIES: usize = 128;
    let mut entry = futex::Wait::new();
    entry.val = word.load(std::sync::atomic::Ordering::Acquire) & 0xffff_ffff;
    entry.uaddr = futex::WaitPtr::new(std::ptr::from_ref(futex_of(word)).cast_mut().cast());
    entry.flags = futex::WaitFlags::SIZE_U32;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let until = rustix::thread::Timespec { tv_sec: now.tv_sec + 1, tv_nsec: now.tv_nsec };
    let clock = futex::ClockId::Monotonic;
    if futex::waitv(&[entry; ENTRIES], futex::WaitvFlags::empty(), Some(&until), clock) == Err(Errno::NOSYS) {
        sleep_on(word);
    }
}
