//! Telling another process that something happened, without ever blocking, whatever that process did to the descriptor.
//!
//! ```text
//! event(eventfd)      ─┐
//! ring(their ring)    ─┴─► our own io_uring ─► the kernel writes or posts, now or when it can ─ reap ─► token
//! ```
//!
//! A client shares the file description of an eventfd that it is signalled by: it can fill the counter and make a plain
//! write block. Through io_uring the write waits in the kernel. Our ring is restricted to these two operations, and calling
//! them back, when it is made, so that a process confined by seccomp may keep using it.

#![expect(unsafe_code, reason = "entries of the ring of io_uring")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};

/// What is added to an eventfd. It lives as long as any write of it can take.
static ONE: u64 = 1;

pub(crate) struct Signaller {
    ring: IoUring,
    outstanding: usize,
    /// The system refused to take what was written down. It names descriptors whose numbers may be used again, so nothing is
    /// ever handed over any more.
    broken: bool,
}

/// How often the kernel is asked again for what it lacks for a moment.
const TRIES: u32 = 1000;

/// What calling a signal back is known by; no signal is.
const CALLED_BACK: u64 = u64::MAX;

impl Signaller {
    /// Room for `entries` signals between two calls of [`reap`](Self::reap).
    ///
    /// # Errors
    /// Those of `io_uring_setup`, for instance where the system forbids it.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let ring = IoUring::builder().setup_r_disabled().build(entries)?;
        let codes = [opcode::Write::CODE, opcode::MsgRingData::CODE, opcode::AsyncCancel::CODE];
        let mut allowed = codes.map(Restriction::sqe_op);
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        Ok(Self { ring, outstanding: 0, broken: false })
    }

    /// Adds one to an eventfd. `token` comes back when that is done or has failed.
    ///
    /// # Errors
    /// `WouldBlock` when too many signals are outstanding; those of `io_uring_enter`.
    pub(crate) fn event(&mut self, event: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let from = (&raw const ONE).cast();
        let write = opcode::Write::new(types::Fd(event.as_raw_fd()), from, size_of_val(&ONE) as u32);
        self.submit(write.build().user_data(token))
    }

    /// Posts a completion with `user_data` and `result` to the io_uring behind `target`.
    ///
    /// # Errors
    /// As [`event`](Self::event). That `target` is no io_uring shows when it is reaped.
    pub(crate) fn ring(
        &mut self,
        target: BorrowedFd<'_>,
        (user_data, result): (u64, i32),
        token: u64,
    ) -> io::Result<()> {
        let message = opcode::MsgRingData::new(types::Fd(target.as_raw_fd()), result, user_data, None);
        self.submit(message.build().user_data(token))
    }

    /// Calls back a signal that is on its way. Its token comes in any case.
    ///
    /// # Errors
    /// As [`event`](Self::event).
    pub(crate) fn call_back(&mut self, token: u64) -> io::Result<()> {
        self.submit(opcode::AsyncCancel::new(token).build().user_data(CALLED_BACK))
    }

    fn submit(&mut self, entry: squeue::Entry) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::Other.into());
        }
        if self.outstanding >= self.ring.params().cq_entries() as usize {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: the entry names a static, which outlives every use the kernel can make of it, and a descriptor, which is
        // no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.outstanding += 1;
        self.hand_over().inspect_err(|_| self.broken = true)
    }

    /// Has the kernel take what was pushed. What it lacks for a moment is asked for again: a client that sleeps until it is
    /// signalled would sleep for ever.
    fn hand_over(&mut self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if is_passing(&error) && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
            std::thread::yield_now();
        }
    }

    /// Whether signals were sent whose end was not seen yet.
    #[cfg(test)]
    fn outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Tells the tokens of signals that have ended, and whether they reached their target.
    pub(crate) fn reap(&mut self, mut ended: impl FnMut(u64, bool)) {
        for entry in self.ring.completion() {
            self.outstanding = self.outstanding.saturating_sub(1);
            if entry.user_data() != CALLED_BACK {
                ended(entry.user_data(), entry.result() >= 0);
            }
        }
    }
}

/// Whether asking again may help.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::EBUSY | libc::ENOMEM))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// A signaller, `None` where the system has no io_uring to give.
    fn signaller() -> Option<Signaller> {
        Signaller::new(8).inspect_err(|error| println!("no io_uring here: {error}")).ok()
    }

    /// The tokens that have ended once `count` have.
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
    fn a_full_and_blocking_eventfd_blocks_nobody() {
        let Some(mut signaller) = signaller() else { return };
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        signaller.event(event.as_fd(), 1).unwrap();
        let other = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        signaller.event(other.as_fd(), 2).unwrap();
        assert_eq!(ended(&mut signaller, 1), [(2, true)], "the other is not kept waiting");
        rustix::io::read(&event, &mut [0; 8]).unwrap();
        assert_eq!(ended(&mut signaller, 1), [(1, true)]);
    }

    #[test]
    fn a_signal_that_is_held_up_is_called_back() {
        let Some(mut signaller) = signaller() else { return };
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        // Far more than may be on their way at a time.
        for token in 0..200 {
            signaller.event(event.as_fd(), token).unwrap();
            signaller.call_back(token).unwrap();
            assert_eq!(ended(&mut signaller, 1), [(token, false)]);
            while signaller.outstanding() {
                signaller.reap(|_, _| unreachable!("told once"));
            }
        }
    }

    #[test]
    fn another_ring_gets_what_was_posted_and_what_is_no_ring_is_told() {
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
    fn only_what_passes_is_asked_for_again() {
        for (number, passes) in
            [(libc::EAGAIN, true), (libc::EINTR, true), (libc::EBADR, false), (libc::EINVAL, false)]
        {
            assert_eq!(is_passing(&io::Error::from_raw_os_error(number)), passes, "{number}");
        }
    }

    #[test]
    fn too_many_signals_are_refused_until_some_have_ended() {
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
