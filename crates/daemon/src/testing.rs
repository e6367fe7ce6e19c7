//! What several unit tests of this crate need: waits that end, folders, and tests that run alone.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// Far above what anything here takes.
const LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Waits until `descriptor` can be read, or has hung up.
pub(crate) fn wait_readable(descriptor: &impl AsFd) {
    assert!(is_readable_within(descriptor.as_fd(), &LIMIT), "nothing came");
}

pub(crate) fn is_readable(descriptor: &impl AsFd) -> bool {
    is_readable_within(descriptor.as_fd(), &Timespec { tv_sec: 0, tv_nsec: 0 })
}

fn is_readable_within(descriptor: BorrowedFd<'_>, limit: &Timespec) -> bool {
    let mut entry = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut entry, Some(limit)).unwrap() == 1
}

/// A new folder for the test of this name.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("memferry-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).unwrap();
    path
}

/// Runs the ignored tests of a module one by one in another process. If other tests start threads meanwhile, a lock of the C library
/// may be held for good in a fork of this process, and attendants start threads.
pub(crate) fn run_one_by_one(module: &str) {
    let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let output = tests.args(["--ignored", "--test-threads=1", module]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !report.contains(" 0 passed"), "{report}");
}

/// Whether only the harness's main thread, which waits, runs beside the test. The thread of the test before was joined, but the kernel
/// wakes who joins a thread before it takes the thread off the list: so this waits for that.
pub(crate) fn runs_alone() -> bool {
    let since = Instant::now();
    let alone = || std::fs::read_dir("/proc/self/task").unwrap().count() <= 2;
    while !alone() {
        if since.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
