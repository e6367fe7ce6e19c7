//! What several unit tests of this crate need: waits that end, and folders.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

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
