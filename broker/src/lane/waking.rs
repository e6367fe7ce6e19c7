//! Waking clients that sleep: by their wake word, and by the descriptor they asked to be signalled with.
//!
//! ```text
//! client: raises its parked flag, looks once more ─► lane: changes the wake word, futex, and one signal ─► eventfd, io_uring
//! ```
//!
//! A signal never blocks ([`memferry_memory::signal`]). One at a time is on its way to each queue: while a client's own doing
//! holds one up, that client needs no second one. A client whose signal took long, since so many watch its eventfd, has the next ones
//! sent by another thread. Whether there is anything to wake for is the caller's to know.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_memory::queue_pair::futex;
use memferry_memory::signal::Signaller;

use super::Queue;
use crate::MonotonicClock;

/// Signals that may be on their way before more have to wait: many times what one user has channels.
const ENTRIES: u32 = 1024;
/// A signal that takes longer has the next ones sent elsewhere: a hundred times what one takes.
const LONG_NANOSECONDS: u64 = 100_000;
/// So many of them, before the lane tries again: it may have been kept from running meanwhile.
const ELSEWHERE: u32 = 100;

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
    signals: Vec<Signals>,
    /// Signals sent so far: a late report of one is told from that of a later one.
    sent: u32,
}

/// Those of one queue.
#[derive(Clone, Copy, Default)]
struct Signals {
    /// The token of the one that is on its way.
    under_way: Option<u64>,
    /// So many of the next ones are sent by another thread.
    elsewhere: u32,
}

impl Waking {
    pub(super) fn new() -> Self {
        let signaller = Signaller::new(ENTRIES)
            .inspect_err(|error| tracing::debug!("no io_uring, so no client can be signalled: {error}"));
        Self { signaller: signaller.ok(), signals: Vec::new(), sent: 0 }
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
        if self.signals.len() <= index {
            self.signals.resize(index + 1, Signals::default());
        }
        let signals = &mut self.signals[index];
        if signals.under_way.is_some() {
            return;
        }
        self.sent = self.sent.wrapping_add(1);
        let token = u64::from(self.sent) << 32 | index as u64;
        let sent = match target {
            Target::Event(event) => {
                let begin = MonotonicClock.now();
                let sent = signaller.event(event.as_fd(), signals.elsewhere > 0, token);
                signals.elsewhere =
                    if took_long(begin) { ELSEWHERE } else { signals.elsewhere.saturating_sub(1) };
                sent
            }
            Target::Ring(ring, user_data) => signaller.ring(ring.as_fd(), (*user_data, 0), token),
        };
        signals.under_way = sent.is_ok().then_some(token);
    }

    fn reap(&mut self) {
        let (Some(signaller), signals) = (&mut self.signaller, &mut self.signals) else { return };
        signaller.reap(|token, _| {
            if let Some(of_queue) = signals.get_mut(token as u32 as usize) {
                of_queue.under_way.take_if(|under_way| *under_way == token);
            }
        });
    }

    /// The queue is gone: a signal that its client holds up is called back, so that nobody can use up all there may be.
    pub(super) fn forget(&mut self, index: usize) {
        self.reap();
        let signals = self.signals.get_mut(index).map(std::mem::take);
        if let Some(token) = signals.and_then(|signals| signals.under_way)
            && let Some(signaller) = &mut self.signaller
        {
            let _ = signaller.call_back(token);
        }
    }
}

fn took_long(begin: Instant) -> bool {
    MonotonicClock.now() > begin.after(Duration::from_nanos(LONG_NANOSECONDS))
}
