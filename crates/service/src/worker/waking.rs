//! Waking clients that sleep: by their wake word, and by the descriptor they asked to be signalled with.
//!
//! ```text
//! client: raises its parked flag, looks once more ─► worker: changes the wake word, futex, and one signal ─► eventfd, io_uring
//! ```
//!
//! A signal never blocks ([`crate::signal`]). One at a time is on its way to each queue: while a client's own doing
//! holds one up, that client needs no second one. Whether there is anything to wake for is the caller's to know.

use std::os::fd::{AsFd, OwnedFd};

use crate::signal::Signaller;
use memferry_shm::queue_pair::futex;

use super::Queue;

/// Signals that may be on their way before more have to wait: many times what one user has queues.
const ENTRIES: u32 = 1024;

/// Where a client is signalled.
pub(crate) enum Target {
    /// Its eventfd, made by the service.
    Event(OwnedFd),
    /// Its io_uring, with the user data of the completion.
    Ring(OwnedFd, u64),
}

/// What wakes the clients of one worker.
pub(super) struct Waking {
    signaller: Option<Signaller>,
    /// By queue: the token of the signal that is on its way.
    under_way: Vec<Option<u64>>,
    /// Signals sent so far: a late report of one is told from that of a later one.
    sent: u32,
}

impl Waking {
    pub(super) fn new() -> Self {
        let signaller = Signaller::new(ENTRIES)
            .inspect_err(|error| tracing::debug!("no io_uring, so no client can be signalled: {error}"));
        Self { signaller: signaller.ok(), under_way: Vec::new(), sent: 0 }
    }

    /// Whether clients can be signalled.
    pub(super) fn signals(&self) -> bool {
        self.signaller.is_some()
    }

    /// Wakes the client of queue `index`, in the way its flag asks for.
    pub(super) fn wake(&mut self, index: usize, queue: &Queue, flag: u64) {
        queue.end.change_wake_word();
        futex::wake(queue.end.wake_word());
        if queue.end.wants_signal(flag) {
            self.signal(index, queue);
        }
    }

    /// Tells a client that no more will come, whether it asked for a signal or not.
    pub(super) fn wake_for_good(&mut self, index: usize, queue: &Queue) {
        queue.end.change_wake_word();
        futex::wake(queue.end.wake_word());
        self.signal(index, queue);
    }

    /// Signals the client of queue `index`, when it asked for that and no signal is on its way.
    pub(super) fn signal(&mut self, index: usize, queue: &Queue) {
        self.reap();
        let (Some(signaller), Some(target)) = (&mut self.signaller, &queue.target) else { return };
        if self.under_way.len() <= index {
            self.under_way.resize(index + 1, None);
        }
        if self.under_way[index].is_some() {
            return;
        }
        self.sent = self.sent.wrapping_add(1);
        let token = u64::from(self.sent) << 32 | index as u64;
        let sent = match target {
            Target::Event(event) => signaller.event(event.as_fd(), token),
            Target::Ring(ring, user_data) => signaller.ring(ring.as_fd(), (*user_data, 0), token),
        };
        self.under_way[index] = sent.is_ok().then_some(token);
    }

    fn reap(&mut self) {
        let (Some(signaller), under_way) = (&mut self.signaller, &mut self.under_way) else { return };
        signaller.reap(|token, _| {
            if let Some(of_queue) = under_way.get_mut(token as u32 as usize) {
                of_queue.take_if(|under_way| *under_way == token);
            }
        });
    }

    /// The queue is gone: a signal that its client holds up is called back, so that nobody can use up all there may be.
    pub(super) fn forget(&mut self, index: usize) {
        self.reap();
        if let Some(token) = self.under_way.get_mut(index).and_then(Option::take)
            && let Some(signaller) = &mut self.signaller
        {
            let _ = signaller.call_back(token);
        }
    }
}
