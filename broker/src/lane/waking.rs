//! Waking clients that sleep: by their wake word, and by the descriptor they asked to be signalled with.
//!
//! ```text
//! client: raises its parked flag, looks once more ─► lane: changes the wake word, futex, and one signal ─► eventfd, io_uring
//! ```
//!
//! A signal never blocks ([`memferry_memory::signal`]). One at a time is on its way to each queue: while a client's own doing
//! holds one up, that client needs no second one. Whether there is anything to wake for is the caller's to know.

use std::os::fd::{AsFd, OwnedFd};

use memferry_memory::queue_pair::{futex, wants_signal};
use memferry_memory::signal::Signaller;

use super::Queue;

/// Signals that may be on their way before more have to wait: many times what one user has channels.
const ENTRIES: u32 = 1024;

/// Where a client is signalled.
pub(crate) enum Target {
    /// Its eventfd, made by the service.
    Event(OwnedFd),
    /// Its io_uring, with the user data of the completion.
    Ring(OwnedFd, u64),
}

/// What wakes the clients of one lane.
pub(super) struct Waking {
    signaller: Option<Signaller>,
    /// By queue: a signal is on its way.
    under_way: Vec<bool>,
}

impl Waking {
    pub(super) fn new() -> Self {
        let signaller = Signaller::new(ENTRIES)
            .inspect_err(|error| tracing::debug!("no io_uring, so no client can be signalled: {error}"));
        Self { signaller: signaller.ok(), under_way: Vec::new() }
    }

    /// Whether clients can be signalled.
    pub(super) fn signals(&self) -> bool {
        self.signaller.is_some()
    }

    /// Wakes the client of queue `index`, in the way its flag asks for.
    pub(super) fn wake(&mut self, index: usize, queue: &Queue, flag: u64) {
        queue.end.change_wake_word();
        futex::wake(queue.end.wake_word());
        if wants_signal(flag) {
            self.signal(index, queue);
        }
    }

    /// Tells a client that no more will come, whether it asked for a signal or not.
    pub(super) fn wake_for_good(&mut self, index: usize, queue: &Queue) {
        queue.end.change_wake_word();
        futex::wake(queue.end.wake_word());
        self.signal(index, queue);
    }

    fn signal(&mut self, index: usize, queue: &Queue) {
        let (Some(signaller), Some(target)) = (&mut self.signaller, &queue.target) else { return };
        let under_way = &mut self.under_way;
        signaller.reap(|token, _| {
            if let Some(flag) = under_way.get_mut(token as usize) {
                *flag = false;
            }
        });
        if under_way.len() <= index {
            under_way.resize(index + 1, false);
        }
        if under_way[index] {
            return;
        }
        let sent = match target {
            Target::Event(event) => signaller.event(event.as_fd(), index as u64),
            Target::Ring(ring, user_data) => signaller.ring(ring.as_fd(), (*user_data, 0), index as u64),
        };
        under_way[index] = sent.is_ok();
    }

    /// The queue's place may be another's now.
    pub(super) fn forget(&mut self, index: usize) {
        if let Some(flag) = self.under_way.get_mut(index) {
            *flag = false;
        }
    }
}
