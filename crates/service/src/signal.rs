//! Signals another process by a descriptor, and never blocks, even if that process tampered with the descriptor.
//!
//! ```text
//! event(eventfd)      ─┐
//! ring(client's ring) ─┴─► the service's io_uring ─► the kernel writes or posts, now or later ─ reap ─► token
//! ```
//!
//! A client shares the file description of its eventfd, so it can fill the counter and make a plain write block. Through
//! io_uring the write waits in the kernel. The ring is restricted at its creation to these two operations and their
//! cancellation, so that a process confined by seccomp may keep using it.

#![expect(unsafe_code, reason = "entries of the ring of io_uring")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};

/// The value added to an eventfd. Static, because the kernel may read it at any later time.
static ONE: u64 = 1;

pub(crate) struct Signaller {
    ring: IoUring,
    outstanding: usize,
    /// The kernel did not accept a pushed entry. That entry names a descriptor whose number may be reused, so nothing is
    /// submitted any more.
    broken: bool,
}

/// Maximum number of retries after a transient error of the kernel.
const MAX_RETRIES: u32 = 1000;

/// User data of cancellations. No signal has this token.
const CANCELLATION: u64 = u64::MAX;

impl Signaller {
    /// Creates a ring for `entries` submissions; twice as many signals can be outstanding.
    ///
    /// # Errors
    /// Those of `io_uring_setup`, for instance if the system forbids it.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let ring = IoUring::builder().setup_r_disabled().build(entries)?;
        let codes = [opcode::Write::CODE, opcode::MsgRingData::CODE, opcode::AsyncCancel::CODE];
        let mut allowed = codes.map(Restriction::sqe_op);
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        Ok(Self { ring, outstanding: 0, broken: false })
    }

    /// Adds one to an eventfd. [`reap`](Self::reap) returns `token` when that has succeeded or failed.
    ///
    /// # Errors
    /// `WouldBlock` if too many signals are outstanding; those of `io_uring_enter`.
    pub(crate) fn event(&mut self, event: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let from = (&raw const ONE).cast();
        let write = opcode::Write::new(types::Fd(event.as_raw_fd()), from, size_of_val(&ONE) as u32);
        self.submit(write.build().user_data(token))
    }

    /// Posts a completion with `user_data` and `result` to the io_uring behind `target`.
    ///
    /// # Errors
    /// As [`event`](Self::event). If `target` is no io_uring, the reaped result is a failure.
    pub(crate) fn ring(
        &mut self,
        target: BorrowedFd<'_>,
        (user_data, result): (u64, i32),
        token: u64,
    ) -> io::Result<()> {
        let message = opcode::MsgRingData::new(types::Fd(target.as_raw_fd()), result, user_data, None);
        self.submit(message.build().user_data(token))
    }

    /// Cancels an outstanding signal. Its token is still reaped.
    ///
    /// # Errors
    /// As [`event`](Self::event).
    pub(crate) fn cancel(&mut self, token: u64) -> io::Result<()> {
        self.submit(opcode::AsyncCancel::new(token).build().user_data(CANCELLATION))
    }

    fn submit(&mut self, entry: squeue::Entry) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::Other.into());
        }
        if self.outstanding >= self.ring.params().cq_entries() as usize {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: the only memory that the entry names is a static, which outlives every access by the kernel.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.outstanding += 1;
        self.submit_pushed().inspect_err(|_| self.broken = true)
    }

    /// Submits the pushed entries. Retries transient errors, because a client whose signal is lost would sleep forever.
    fn submit_pushed(&mut self) -> io::Result<()> {
        let mut retries = 0;
        loop {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if is_transient(&error) && retries < MAX_RETRIES => retries += 1,
                Err(error) => return Err(error),
            }
            std::thread::yield_now();
        }
    }

    /// Whether submissions are outstanding.
    #[cfg(test)]
    fn outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Calls `ended` with the token of each completed signal and whether it reached its target.
    pub(crate) fn reap(&mut self, mut ended: impl FnMut(u64, bool)) {
        for entry in self.ring.completion() {
            self.outstanding = self.outstanding.saturating_sub(1);
            if entry.user_data() != CANCELLATION {
                ended(entry.user_data(), entry.result() >= 0);
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

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// A signaller; `None` if the system allows no io_uring.
    fn signaller() -> Option<Signaller> {
        Signaller::new(8).inspect_err(|error| println!("no io_uring here: {error}")).ok()
    }

    /// Waits until `count` signals have completed and returns their tokens.
    fn ended(signaller: &mut Signaller, count: usize) -> Vec<(u64, bool)> {
        let mut tokens = Vec::new();
        while tokens.len() < count {
            signaller.reap(|token, reached| tokens.push((token, reached)));
        }
        tokens
    }

    #[test]
    fn an_eventfd_is_signalled() {
        let Some(mut signaller) = signaller() else { return };
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        for token in [7, 8] {
            signaller.event(event.as_fd(), token).unwrap();
        }
        assert_eq!(ended(&mut signaller, 2), [(7, true), (8, true)]);
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
        assert!(!signaller.outstanding());
    }

    #[test]
    fn a_full_eventfd_delays_no_other_signal() {
        let Some(mut signaller) = signaller() else { return };
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        signaller.event(event.as_fd(), 1).unwrap();
        let other = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        signaller.event(other.as_fd(), 2).unwrap();
        assert_eq!(ended(&mut signaller, 1), [(2, true)], "the other does not wait");
        rustix::io::read(&event, &mut [0; 8]).unwrap();
        assert_eq!(ended(&mut signaller, 1), [(1, true)]);
    }

    #[test]
    fn a_blocked_signal_can_be_cancelled() {
        let Some(mut signaller) = signaller() else { return };
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        // Far more than can be outstanding at a time.
        for token in 0..200 {
            signaller.event(event.as_fd(), token).unwrap();
            signaller.cancel(token).unwrap();
            assert_eq!(ended(&mut signaller, 1), [(token, false)]);
            while signaller.outstanding() {
                signaller.reap(|_, _| unreachable!("reaped twice"));
            }
        }
    }

    #[test]
    fn ring_posts_to_a_ring_and_fails_elsewhere() {
        let Some(mut signaller) = signaller() else { return };
        let Ok(mut theirs) = IoUring::new(4) else { return };
        // SAFETY: the ring outlives the borrow.
        let target = unsafe { BorrowedFd::borrow_raw(theirs.as_raw_fd()) };
        signaller.ring(target, (0xabc, 3), 1).unwrap();
        assert_eq!(ended(&mut signaller, 1), [(1, true)]);
        let posted = theirs.completion().next().unwrap();
        assert_eq!((posted.user_data(), posted.result()), (0xabc, 3));
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        signaller.ring(event.as_fd(), (1, 1), 2).unwrap();
        assert_eq!(ended(&mut signaller, 1), [(2, false)]);
    }

    #[test]
    fn only_transient_errors_are_retried() {
        for (number, passes) in
            [(libc::EAGAIN, true), (libc::EINTR, true), (libc::EBADR, false), (libc::EINVAL, false)]
        {
            assert_eq!(is_transient(&io::Error::from_raw_os_error(number)), passes, "{number}");
        }
    }

    #[test]
    fn too_many_outstanding_signals_are_refused() {
        let Some(mut signaller) = signaller() else { return };
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let sent = (0..100).take_while(|token| signaller.event(event.as_fd(), *token).is_ok()).count();
        assert_eq!(sent, 16, "twice the submission entries");
        rustix::io::read(&event, &mut [0; 8]).unwrap();
        assert_eq!(ended(&mut signaller, sent).len(), sent);
        signaller.event(event.as_fd(), 0).unwrap();
    }
}
