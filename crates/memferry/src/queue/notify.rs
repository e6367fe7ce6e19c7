//! Being signalled by a descriptor, for programs that wait in a loop of their own.
//!
//! ```text
//! notify_by_event ─► eventfd ─► epoll, select, any loop        notify_by_ring ─► a completion in this program's io_uring
//! arm ─► nothing there yet: the next completion signals, once the loop sees it: poll until empty, arm again
//! ```
//!
//! Signals are asked for one at a time, as with `ibv_req_notify_cq`: while a program is busy taking completions it gets
//! none, and they cost the service nothing. It is the service that signals: one that was killed does not, so a loop that waits
//! for signals alone would wait for ever. It gives its wait a limit, of a second say, and arms again: that finds the loss.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use memferry_service::protocol::{Answer, Command, NotifyBy};

use super::Queue;
use crate::error::CallError;

/// What [`Queue::arm`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// The next completion is signalled.
    Waiting,
    /// There is something already, so nothing will be signalled: take it first.
    Ready,
}

impl Queue {
    /// An eventfd that becomes readable when a completion comes while the queue is [armed](Self::arm). A queue has one
    /// signal; reading the descriptor resets it. A service that was killed signals nothing: wait with a limit, and
    /// [arm](Self::arm) again.
    ///
    /// # Errors
    /// [`CallError::Refused`] when the queue is signalled already, or the service's system has no io_uring.
    pub fn notify_by_event(&self) -> Result<OwnedFd, CallError> {
        let command = Command::Notify { queue: self.number, by: NotifyBy::Event };
        let (answer, descriptors) = self.session.call(command, Vec::new())?;
        match (answer, <[OwnedFd; 1]>::try_from(descriptors)) {
            (Answer::Notified, Ok([event])) => Ok(event),
            _ => Err(CallError::Protocol("it answered something else")),
        }
    }

    /// Has a completion with `user_data` and result 0 posted to this program's io_uring (`IORING_OP_MSG_RING`) when one comes
    /// while the queue is [armed](Self::arm).
    ///
    /// Linux lets no process hand its io_uring to another (since 6.7), so with a service in another process this fails there;
    /// read or poll the descriptor of [`notify_by_event`](Self::notify_by_event) with the ring instead.
    ///
    /// # Errors
    /// As [`notify_by_event`](Self::notify_by_event), and [`CallError::Send`] when the system does not let the ring be sent, or
    /// has no descriptor for it (`EMFILE`).
    pub fn notify_by_ring(&self, ring: BorrowedFd<'_>, user_data: u64) -> Result<(), CallError> {
        let ring = ring.try_clone_to_owned().map_err(CallError::Send)?;
        let command = Command::Notify { queue: self.number, by: NotifyBy::Ring { user_data } };
        match self.session.call(command, vec![ring])?.0 {
            Answer::Notified => Ok(()),
            _ => Err(CallError::Protocol("it answered something else")),
        }
    }

    /// Asks to be signalled for the next completion, unless one is there. It holds until [`poll`](Self::poll) or a wait is
    /// called. It may be called again while it holds: where the service has gone meanwhile, which nothing signals, it finds
    /// that, and [`poll`](Self::poll) gives the completions of what was lost.
    pub fn arm(&mut self) -> Armed {
        self.publish();
        if self.session.check_fork().is_err() {
            return Armed::Ready;
        }
        self.armed = true;
        self.end.parked().store(self.end.signal_wanted(), Ordering::Relaxed);
        self.end.fences().heavy();
        if self.has_news() {
            self.disarm();
            return Armed::Ready;
        }
        Armed::Waiting
    }

    /// Takes the wish for a signal back.
    pub(super) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.end.parked().store(0, Ordering::Relaxed);
        }
    }
}
