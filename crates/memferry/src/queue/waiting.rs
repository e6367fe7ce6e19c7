//! Waits: for one transfer, for any transfer, for part of a transfer's bytes.
//!
//! ```text
//! short poll ─► spin for about the cost of a wake-up ─► park: raise the flag, check again, futex ─► woken by the wake word
//! ```
//!
//! A sleeping wait checks every [`LIVENESS`] that the service still runs. A wait publishes staged transfers and cancels nothing.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry_shm::parking::park;
use memferry_shm::queue_pair::{ClientEnd, futex};
use memferry_shm::storage::MappedWords;
use memferry_transfer::Failure;

use super::{Queue, wire_tag};
use crate::completion::{Completion, Done, Output, Ticket, TicketId, TransferError};

/// The maximum spin before a wait sleeps: about the cost of a wake-up across cores.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// Spins before a wait for part of a transfer sleeps.
const SPINS_FOR_RANGE: u32 = 4096;
/// Polls before a wait reads the clock.
const SHORT_SPIN: u32 = 64;
/// Interval at which a sleeping wait checks that the service still runs.
pub(crate) const LIVENESS: Duration = Duration::from_millis(100);

/// The state of a transfer when a wait for part of its bytes succeeds. The bytes are in place.
///
/// ```
/// use memferry::{Arrival, Client, copy};
///
/// let client = Client::embedded()?;
/// let source = client.frame(8 << 20).alloc()?;
/// let destination = client.frame(8 << 20).alloc()?;
/// let mut queue = client.queue(4)?;
/// let ticket = queue.submit(copy(&source, &destination))?;
/// let arrival = queue.wait_range(ticket, 0..4096)?; // the first page is in place
/// if arrival == Arrival::Moved {
///     println!("the rest is still being copied");
/// }
/// queue.wait(ticket)?;
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The transfer is still running.
    Moved,
    /// The transfer has ended. Its completion has not been taken.
    Ended,
}

/// The progress of a running transfer.
///
/// ```
/// use memferry::{Client, copy};
///
/// let client = Client::embedded()?;
/// let source = client.frame(8 << 20).alloc()?;
/// let destination = client.frame(8 << 20).alloc()?;
/// let mut queue = client.queue(4)?;
/// let ticket = queue.submit(copy(&source, &destination))?;
/// if let Some(progress) = queue.progress(ticket) {
///     println!("{} bytes are in place", progress.bytes);
/// }
/// queue.wait(ticket)?;
/// assert_eq!(queue.progress(ticket), None, "it has ended");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Number of bytes in place in the destination.
    pub bytes: u64,
    /// Whether they are counted downward from the destination's last byte. Copies to a higher overlapping address run this way.
    pub downward: bool,
}

/// An iterator that waits for and takes all completions of a queue; made by [`Queue::completions`].
///
/// ```
/// use memferry::{Client, nop};
///
/// let mut queue = Client::embedded()?.queue(8)?;
/// let tickets = queue.submit_batch([nop(), nop(), nop()])?;
/// let mut open: Vec<_> = tickets.into_iter().map(|ticket| ticket.id()).collect();
/// for done in queue.completions() {
///     let id = done?.id;
///     open.retain(|ticket| *ticket != id);
/// }
/// assert!(open.is_empty() && queue.outstanding() == 0);
/// # Ok::<(), memferry::Error>(())
/// ```
#[must_use = "completions are taken while this is iterated"]
pub struct Completions<'a> {
    queue: &'a mut Queue,
    over: bool,
}

impl Iterator for Completions<'_> {
    type Item = Result<Done<u64>, TransferError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let ended = self.queue.wait_any().transpose();
        // In a forked child every wait fails, so stop at the first failure.
        self.over = matches!(ended, None | Some(Err(TransferError { failure: Failure::Forked, .. })));
        ended
    }
}

impl std::iter::FusedIterator for Completions<'_> {}

impl Queue {
    /// Waits until the transfer has ended and takes its completion. Completions of other transfers stay in the queue.
    ///
    /// # Errors
    /// The failure of the transfer; [`Failure::UnknownTicket`] if it is not outstanding in this queue.
    pub fn wait<T: Output>(&mut self, ticket: Ticket<T>) -> Result<Done<T>, TransferError> {
        self.wait_completion(ticket.id()).into_result()
    }

    /// Waits at most `limit` for the end of the transfer. `None` if it is still running.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_for<T: Output>(
        &mut self,
        ticket: Ticket<T>,
        limit: Duration,
    ) -> Result<Option<Done<T>>, TransferError> {
        let ended = self.wait_limited(ticket.id(), Some(limit));
        ended.map(Completion::into_result).transpose()
    }

    /// Waits until any transfer has ended and takes its completion. `None` if none is outstanding.
    ///
    /// # Errors
    /// The failure of the transfer, which the error's [`id`](TransferError::id) names.
    pub fn wait_any(&mut self) -> Result<Option<Done<u64>>, TransferError> {
        self.wait_any_limited(None).map(Completion::into_result).transpose()
    }

    /// Waits at most `limit` for the end of any transfer. `None` if none has ended or none is
    /// [outstanding](Self::outstanding).
    ///
    /// # Errors
    /// As [`wait_any`](Self::wait_any).
    pub fn wait_any_for(&mut self, limit: Duration) -> Result<Option<Done<u64>>, TransferError> {
        self.wait_any_limited(Some(limit)).map(Completion::into_result).transpose()
    }

    /// Waits for and takes completions until no transfer is outstanding.
    ///
    /// ```
    /// use memferry::{Client, zero};
    ///
    /// let client = Client::embedded()?;
    /// let frame = client.frame(1 << 20).alloc()?;
    /// let mut queue = client.queue(16)?;
    /// let tickets = queue.submit_batch((0..16).map(|page| zero(frame.slice(page << 16..(page + 1) << 16))))?;
    /// let mut bytes = 0;
    /// for done in queue.completions() {
    ///     bytes += done?.bytes_done;
    /// }
    /// assert_eq!((tickets.len(), bytes), (16, 1 << 20));
    /// # Ok::<(), memferry::Error>(())
    /// ```
    pub fn completions(&mut self) -> Completions<'_> {
        Completions { queue: self, over: false }
    }

    pub(super) fn wait_completion(&mut self, id: TicketId) -> Completion {
        loop {
            // Without a limit the wait always returns a completion.
            if let Some(completion) = self.wait_limited(id, None) {
                return completion;
            }
        }
    }

    fn wait_limited(&mut self, id: TicketId, limit: Option<Duration>) -> Option<Completion> {
        if let Err(failure) = self.check_process() {
            return Some(Completion::without_engine(id, failure));
        }
        if let Some(completion) = self.finished.remove(id) {
            return Some(completion);
        }
        if !self.is_outstanding(id) {
            return Some(Completion::without_engine(id, Failure::UnknownTicket));
        }
        self.publish();
        // An awake worker completes a small request before a clock read pays off.
        for _ in 0..SHORT_SPIN {
            if let Some(completion) = self.poll_ring() {
                if completion.id == id {
                    return Some(completion);
                }
                self.finished.push(completion);
            }
        }
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if let Some(completion) = self.finished.remove(id) {
                return Some(completion);
            }
            let completion = self.next_from_ring(deadline)?;
            if completion.id == id {
                return Some(completion);
            }
            self.finished.push(completion);
        }
    }

    fn wait_any_limited(&mut self, limit: Option<Duration>) -> Option<Completion> {
        if let Err(failure) = self.check_process() {
            return Some(Completion::without_engine(TicketId::NONE, failure));
        }
        if let Some(completion) = self.finished.pop() {
            return Some(completion);
        }
        if self.outstanding() == 0 {
            return None;
        }
        self.next_from_ring(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    /// The progress of an outstanding transfer, if the service has reported it. It reports long copies and fills between
    /// chunks; it does not report 2-D moves, segment lists and operations that only read.
    pub fn progress(&self, ticket: impl Into<TicketId>) -> Option<Progress> {
        let id = ticket.into();
        if self.check_outstanding(id).is_err() {
            return None;
        }
        let (bytes, downward) = self.end.progress(wire_tag(id.tag))?;
        Some(Progress { bytes, downward })
    }

    /// Waits until `bytes`, counted from the start of the destination, are in place, often long before the transfer ends. If
    /// the service does not report [`progress`](Self::progress), this waits for the end of the transfer. It does not take the
    /// completion.
    ///
    /// # Errors
    /// The failure of the transfer, even if it failed after these bytes; [`Failure::UnknownTicket`].
    pub fn wait_range(
        &mut self,
        ticket: impl Into<TicketId>,
        bytes: Range<u64>,
    ) -> Result<Arrival, TransferError> {
        let id = ticket.into();
        loop {
            // Without a limit the wait returns when the bytes are in place or the transfer has ended.
            if let Some(arrival) = self.wait_range_limited(id, &bytes, None)? {
                return Ok(arrival);
            }
        }
    }

    /// As [`wait_range`](Self::wait_range), for at most `limit`. `None` if the bytes are not in place by then.
    ///
    /// # Errors
    /// As [`wait_range`](Self::wait_range).
    pub fn wait_range_for(
        &mut self,
        ticket: impl Into<TicketId>,
        bytes: Range<u64>,
        limit: Duration,
    ) -> Result<Option<Arrival>, TransferError> {
        self.wait_range_limited(ticket.into(), &bytes, Some(limit))
    }

    fn wait_range_limited(
        &mut self,
        id: TicketId,
        bytes: &Range<u64>,
        limit: Option<Duration>,
    ) -> Result<Option<Arrival>, TransferError> {
        self.check_process().map_err(|failure| TransferError::without_engine(id, failure))?;
        self.publish();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut spun = 0;
        loop {
            if let Some(completion) = self.finished.get(id) {
                return completion.into_result::<u64>().map(|_| Some(Arrival::Ended));
            }
            self.check_outstanding(id)?;
            if self.arrived(id, bytes) {
                return Ok(Some(Arrival::Moved));
            }
            if let Some(completion) = self.poll_ring() {
                self.finished.push(completion);
                continue;
            }
            spun += 1;
            if spun < SPINS_FOR_RANGE {
                std::hint::spin_loop();
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let parked = ClientEnd::<MappedWords>::parked_for_progress();
            let limit = left.map_or(LIVENESS, |left| left.min(LIVENESS));
            self.sleep(limit, parked, || self.arrived(id, bytes));
            if self.session.link.lost()
                && let Some(completion) = self.fail_outstanding()
            {
                self.finished.push(completion);
            }
        }
    }

    /// Whether the reported progress of a transfer includes `bytes`.
    fn arrived(&self, id: TicketId, bytes: &Range<u64>) -> bool {
        let length = self.slots[self.slot_of(id.tag)].length;
        match self.end.progress(wire_tag(id.tag)) {
            Some((done, false)) => bytes.end <= done,
            Some((done, true)) => bytes.end <= length && bytes.start >= length.saturating_sub(done),
            None => false,
        }
    }

    /// Spins, then sleeps, until the ring has a completion or the deadline passes.
    fn next_from_ring(&mut self, deadline: Option<Instant>) -> Option<Completion> {
        self.publish();
        if let Some(completion) = self.spin_for_completion(deadline) {
            return Some(completion);
        }
        loop {
            if let Some(completion) = self.poll_ring() {
                return Some(completion);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            let parked = ClientEnd::<MappedWords>::parked_for_completions();
            self.sleep(left.map_or(LIVENESS, |left| left.min(LIVENESS)), parked, || false);
            if !self.end.ready()
                && self.session.link.lost()
                && let Some(completion) = self.fail_outstanding()
            {
                return Some(completion);
            }
        }
    }

    /// Spins for a time that adapts to whether earlier spins succeeded.
    fn spin_for_completion(&mut self, deadline: Option<Instant>) -> Option<Completion> {
        // An awake worker completes a small request before a clock read pays off.
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
                    self.spin.record_success();
                    return Some(completion);
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                self.spin.record_failure();
                return None;
            }
        }
    }

    /// Sleeps for at most `limit` until the service wakes this client. Returns at once if a completion is there, the queue is
    /// closed, or `arrived` is true.
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
