//! Waiting: for a transfer, for any, for a part of one.
//!
//! ```text
//! poll a little ─► spin for about a wake-up's cost ─► park: flag, last look, futex ─► the worker changes the wake word
//! ```
//!
//! A sleeper looks every now and then whether the service still lives. Nothing here submits or cancels.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry_shm::parking::park;
use memferry_shm::queue_pair::{ClientEnd, futex};
use memferry_shm::storage::MappedWords;

use super::{Queue, Ticket, WaitError};
use crate::Completion;

/// The longest a wait spins before it sleeps: about what a wake-up across cores costs.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// Looks before a wait for a part sleeps.
const SPINS_FOR_RANGE: u32 = 4096;
/// Polls before a wait looks at the clock.
const SHORT_SPIN: u32 = 64;
/// How often a sleeper looks whether the service still lives.
pub(crate) const LIVENESS: Duration = Duration::from_millis(100);

/// What ended the wait for a part of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The bytes are in place; the transfer goes on.
    Moved,
    /// The transfer has ended. Its completion, still to be taken, says how far it came.
    Ended,
}

impl Queue {
    /// Waits until the transfer is done, at most for `limit`. Completions of others stay for [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&mut self, ticket: Ticket, limit: Option<Duration>) -> Result<Completion, WaitError> {
        self.session.check_fork().map_err(WaitError::Forked)?;
        if let Some(index) = self.finished.iter().position(|completion| completion.ticket == ticket) {
            return self.finished.remove(index).ok_or(WaitError::UnknownTicket);
        }
        if !self.is_outstanding(ticket) {
            return Err(WaitError::UnknownTicket);
        }
        self.publish();
        // An awake worker answers a small request before it is worth looking at the clock.
        for _ in 0..SHORT_SPIN {
            if let Some(completion) = self.poll_ring() {
                if completion.ticket == ticket {
                    return Ok(completion);
                }
                self.finished.push_back(completion);
            }
        }
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if let Some(index) = self.finished.iter().position(|completion| completion.ticket == ticket) {
                return self.finished.remove(index).ok_or(WaitError::UnknownTicket);
            }
            let completion = self.next_from_ring(deadline)?;
            if completion.ticket == ticket {
                return Ok(completion);
            }
            self.finished.push_back(completion);
        }
    }

    /// Waits for any completion, at most for `limit`.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`], [`WaitError::UnknownTicket`] when nothing is outstanding, [`WaitError::Forked`].
    pub fn wait_any(&mut self, limit: Option<Duration>) -> Result<Completion, WaitError> {
        self.session.check_fork().map_err(WaitError::Forked)?;
        if let Some(completion) = self.finished.pop_front() {
            return Ok(completion);
        }
        if self.outstanding() == 0 {
            return Err(WaitError::UnknownTicket);
        }
        self.next_from_ring(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    /// How far a transfer has come, when the service has said so: bytes of its destination that are in place, counted from
    /// the last byte down when `true` goes along. It does so between chunks of copies and fills that take long; for 2-D
    /// moves, segment lists and what only reads never.
    pub fn watermark(&self, ticket: Ticket) -> Option<(u64, bool)> {
        if self.session.check_fork().is_err() || !self.is_outstanding(ticket) {
            return None;
        }
        self.end.progress(ticket.tag)
    }

    /// Waits until `bytes` of the transfer's destination, counted from its first, are in place, at most for `limit`: often
    /// long before the transfer ends. Where the service does not say how far it is, that is when the transfer ends.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_range(
        &mut self,
        ticket: Ticket,
        bytes: Range<u64>,
        limit: Option<Duration>,
    ) -> Result<Arrival, WaitError> {
        self.session.check_fork().map_err(WaitError::Forked)?;
        self.publish();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut spun = 0;
        loop {
            if self.finished.iter().any(|completion| completion.ticket == ticket) {
                return Ok(Arrival::Ended);
            }
            if !self.is_outstanding(ticket) {
                return Err(WaitError::UnknownTicket);
            }
            if self.arrived(ticket, &bytes) {
                return Ok(Arrival::Moved);
            }
            if let Some(completion) = self.poll_ring() {
                self.finished.push_back(completion);
                continue;
            }
            spun += 1;
            if spun < SPINS_FOR_RANGE {
                std::hint::spin_loop();
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut);
            }
            let parked = ClientEnd::<MappedWords>::parked_for_progress();
            let limit = left.map_or(LIVENESS, |left| left.min(LIVENESS));
            self.sleep(limit, parked, || self.arrived(ticket, &bytes));
            if self.session.link.lost()
                && let Some(completion) = self.give_up()
            {
                self.finished.push_back(completion);
            }
        }
    }

    /// Whether bytes of a transfer are in place by the service's word.
    fn arrived(&self, ticket: Ticket, bytes: &Range<u64>) -> bool {
        let length = self.slots[self.slot_of(ticket.tag)].length;
        match self.end.progress(ticket.tag) {
            Some((done, false)) => bytes.end <= done,
            Some((done, true)) => bytes.end <= length && bytes.start >= length.saturating_sub(done),
            None => false,
        }
    }

    /// Spins, then sleeps, until the ring gives a completion.
    fn next_from_ring(&mut self, deadline: Option<Instant>) -> Result<Completion, WaitError> {
        self.publish();
        if let Some(completion) = self.spin_for_completion(deadline) {
            return Ok(completion);
        }
        loop {
            if let Some(completion) = self.poll_ring() {
                return Ok(completion);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut);
            }
            let parked = ClientEnd::<MappedWords>::parked_for_completions();
            self.sleep(left.map_or(LIVENESS, |left| left.min(LIVENESS)), parked, || false);
            if !self.end.ready()
                && self.session.link.lost()
                && let Some(completion) = self.give_up()
            {
                return Ok(completion);
            }
        }
    }

    /// Spins while that has been worth it.
    fn spin_for_completion(&mut self, deadline: Option<Instant>) -> Option<Completion> {
        // An awake worker answers a small request before it is worth looking at the clock.
        for _ in 0..SHORT_SPIN {
            if let Some(completion) = self.poll_ring() {
                return Some(completion);
            }
        }
        let until = Instant::now() + self.spin.time();
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        loop {
            for _ in 0..32 {
                if let Some(completion) = self.poll_ring() {
                    self.spin.was_worth_it();
                    return Some(completion);
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                self.spin.was_in_vain();
                return None;
            }
        }
    }

    /// Sleeps until the service wakes this client, unless there is news, or `arrived`.
    fn sleep(&self, limit: Duration, parked: u64, arrived: impl Fn() -> bool) {
        let word = self.end.wake_word();
        let expected = word.load(Ordering::Acquire);
        park(
            |value| self.end.parked().store(value * parked, Ordering::Relaxed),
            self.end.fences(),
            || self.end.ready() || self.end.closed() || arrived(),
            || futex::wait(word, expected, limit),
        );
    }
}
