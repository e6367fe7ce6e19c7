//! Completion signals for programs with an event loop.
//!
//! ```text
//! notify_by_event ─► eventfd ─► epoll, select, any loop        notify_by_ring ─► a completion in the program's io_uring
//! arm ─► the next completion signals once ─► the loop wakes ─► poll until empty ─► arm again
//! ```
//!
//! Each `arm` asks for one signal, as `ibv_req_notify_cq` does, so a program that is busy taking completions gets none and
//! causes no work in the service. A killed service does not signal. A loop therefore limits its wait, for example to a second,
//! and arms again, which finds the loss.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use memferry_service::protocol::{Answer, Command, NotifyBy};

use super::Queue;
use crate::error::CallError;

/// The result of [`Queue::arm`].
///
/// ```
/// use memferry::{Armed, Client, nop};
///
/// let mut queue = Client::embedded()?.queue(4)?;
/// let readable = queue.notify_by_event()?; // an eventfd, for poll or epoll
/// let ticket = queue.submit(nop())?;
/// while queue.poll().is_none() {
///     if queue.arm() == Armed::Waiting {
///         // An event loop waits for `readable` here, and reads it before it goes on.
///     }
/// }
/// # let _ = (readable, ticket);
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// The queue is empty. The next completion will signal.
    Waiting,
    /// A completion or the loss of the service is already there, so no signal will come: poll until the queue is empty.
    Ready,
}

impl Queue {
    /// Creates an eventfd that becomes readable when a completion arrives while the queue is [armed](Self::arm). A queue has at
    /// most one signal. Reading the descriptor resets it. A killed service does not signal: wait with a limit, then
    /// [arm](Self::arm) again.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the queue has a signal already; other [`CallError`]s.
    pub fn notify_by_event(&self) -> Result<OwnedFd, CallError> {
        let command = Command::Notify { queue: self.number, by: NotifyBy::Event };
        let (answer, descriptors) = self.session.call(command, Vec::new())?;
        match (answer, <[OwnedFd; 1]>::try_from(descriptors)) {
            (Answer::Notified, Ok([event])) => Ok(event),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Asks the service to post a completion with `user_data` and result 0 to this program's io_uring (`IORING_OP_MSG_RING`)
    /// when a completion arrives while the queue is [armed](Self::arm).
    ///
    /// Since version 6.7, Linux does not let a process send its io_uring to another, so this fails with a service in another
    /// process. There, read or poll the descriptor of [`notify_by_event`](Self::notify_by_event) with the ring instead.
    ///
    /// # Errors
    /// As [`notify_by_event`](Self::notify_by_event); [`CallError::Refused`] also if the system gives the service no io_uring, and
    /// [`CallError::Send`] if it does not allow the ring to be sent or the process is out of descriptors (`EMFILE`).
    pub fn notify_by_ring(&self, ring: BorrowedFd<'_>, user_data: u64) -> Result<(), CallError> {
        let ring = ring.try_clone_to_owned().map_err(CallError::Send)?;
        let command = Command::Notify { queue: self.number, by: NotifyBy::Ring { user_data } };
        match self.session.call(command, vec![ring])?.0 {
            Answer::Notified => Ok(()),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Asks for a signal at the next completion, unless one is there already. The request holds until [`poll`](Self::poll) or a
    /// wait is called. Call it again after a timeout: it returns [`Armed::Ready`] if the service was lost meanwhile, and
    /// [`poll`](Self::poll) then returns the failed transfers.
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

    /// Cancels the request for a signal.
    pub(super) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.end.parked().store(0, Ordering::Relaxed);
        }
    }
}
