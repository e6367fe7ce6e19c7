//! Signals embedded clients by completions in their io_urings (`IORING_OP_MSG_RING`).
//!
//! ```text
//! post(client's ring, user data) ─► this module's io_uring ─► the kernel posts a completion to the client's
//! ```
//!
//! Both rings belong to one process, so nobody here is hostile. Clients in other processes are signalled by eventfds: Linux
//! passes no io_uring from one process to another.

#![expect(unsafe_code, reason = "entries of the ring of io_uring")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

pub(crate) struct Signaller(IoUring);

/// Maximum number of retries after a transient error of the kernel.
const MAX_RETRIES: u32 = 1000;

impl Signaller {
    /// Creates a ring for `entries` submissions.
    ///
    /// # Errors
    /// Those of `io_uring_setup`, for instance if the system forbids it.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        IoUring::new(entries).map(Self)
    }

    /// Posts a completion with `user_data` and result 0 to the io_uring behind `target`. Nothing happens if that is no io_uring, or
    /// if it is full.
    pub(crate) fn post(&mut self, target: BorrowedFd<'_>, user_data: u64) {
        // Their results tell nothing that this module could act on.
        self.0.completion().for_each(drop);
        let message = opcode::MsgRingData::new(types::Fd(target.as_raw_fd()), 0, user_data, None);
        if self.push(&message.build()) {
            self.submit();
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the entry names no memory, and the kernel takes its own reference to the target.
        unsafe { self.0.submission().push(entry) }.is_ok()
    }

    /// Submits the pushed entries. Retries transient errors, because a client whose signal is lost would sleep forever.
    fn submit(&self) {
        for _ in 0..MAX_RETRIES {
            match self.0.submit() {
                Err(error) if is_transient(&error) => std::thread::yield_now(),
                _ => return,
            }
        }
    }
}

/// Whether a retry may succeed.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::EBUSY | libc::ENOMEM))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A signaller; `None` if the system allows no io_uring.
    fn signaller() -> Option<Signaller> {
        Signaller::new(8).inspect_err(|error| println!("no io_uring here: {error}")).ok()
    }

    #[test]
    fn posts_to_a_ring_and_nowhere_else() {
        let Some(mut signaller) = signaller() else { return };
        let Ok(mut theirs) = IoUring::new(4) else { return };
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        // Far more than either ring holds at a time.
        for number in 0..100 {
            signaller.post(event.as_fd(), 1);
            // SAFETY: the ring outlives the borrow.
            let target = unsafe { BorrowedFd::borrow_raw(theirs.as_raw_fd()) };
            signaller.post(target, number);
            let posted = theirs.completion().next().unwrap();
            assert_eq!((posted.user_data(), posted.result()), (number, 0));
        }
        assert_eq!(rustix::io::read(&event, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn a_full_ring_is_no_obstacle() {
        let Some(mut signaller) = signaller() else { return };
        let Ok(theirs) = IoUring::new(1) else { return };
        // SAFETY: the ring outlives the borrow.
        let target = unsafe { BorrowedFd::borrow_raw(theirs.as_raw_fd()) };
        for _ in 0..100 {
            signaller.post(target, 1);
        }
    }

    #[test]
    fn only_transient_errors_are_retried() {
        for (number, passes) in
            [(libc::EAGAIN, true), (libc::EINTR, true), (libc::EBADR, false), (libc::EINVAL, false)]
        {
            assert_eq!(is_transient(&io::Error::from_raw_os_error(number)), passes, "{number}");
        }
    }
}
