//! The queue: a private pair of rings shared with one worker. Submitting a transfer takes a few stores.
//!
//! ```text
//! submit ─ stage, publish ─► ring ─► worker      the doorbell rings only if the worker sleeps
//! poll, wait ◄─ completions ◄─────── worker      wait spins for about the cost of a wake-up, then sleeps
//! cancel, stop ─► a word that the worker reads between chunks
//! ```
//!
//! Requests start in the order of submission and complete in any order. If the service is lost, each outstanding ticket gets
//! one completion with [`Failure::ServiceLost`]. A slot releases its frames when its completion is taken. If an engine may still
//! touch them ([`TransferError::is_settled`] is false), the slot abandons memory of arenas, so that it is not reused.

mod batch;
mod finished;
mod notify;
mod plain;
mod waiting;

pub use batch::{BatchError, RunError};
pub use notify::Armed;
pub(crate) use waiting::LIVENESS;
pub use waiting::{Arrival, Completions, Progress};

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memferry_service::protocol::Command;
use memferry_shm::fork_guard::Forked;
use memferry_shm::frame;
use memferry_shm::line::Line;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Spin;
use memferry_shm::queue_pair::{ClientEnd, Layout, Sleeper};
use memferry_shm::storage::MappedWords;
use memferry_transfer::wire;
use memferry_transfer::{EngineKind, Failure, Operation, Outcome, Request};
use thiserror::Error;

use crate::completion::{Completion, Done, NO_TAG, Ticket, TicketId, TransferError};
use crate::error::{CallError, OpenError};
use crate::frame::Frame;
use crate::link::Link;
use crate::session::Session;
use crate::transfer::{Description, Held, InvalidTransfer, Transfer};
use finished::Finished;
use plain::Polled;

/// Empty polls before a poll reads the clock, to see whether a liveness check of the service is due. Small enough that a program
/// that polls once per video frame notices a lost service within seconds.
const POLLS_PER_CLOCK_READ: u32 = 64;
/// The upper limit of that number for fast polling, where a clock read (0.5 µs on some machines) would cost too much.
const MAX_POLLS_PER_CLOCK_READ: u32 = 512;

/// Why a transfer was not submitted.
///
/// ```
/// use memferry::{Client, SubmitReason, nop};
///
/// let mut queue = Client::embedded()?.queue(2)?;
/// let tickets = [queue.submit(nop())?, queue.submit(nop())?];
/// let full = queue.submit(nop()).unwrap_err();
/// assert_eq!(full.reason, SubmitReason::Full { capacity: 2 });
/// for ticket in tickets {
///     queue.wait(ticket)?;
/// }
/// let ticket = queue.submit(*full.transfer)?;
/// queue.wait(ticket)?;
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SubmitReason {
    /// The queue is full: with requests, or with long lists of requests that the service has not taken yet. It holds lists of one request
    /// with 1024 pieces on both sides, or of five with a capacity of 32 or more. Take completions first.
    #[error("the queue is full, of {capacity} requests or of long lists; take completions first")]
    Full {
        /// The queue's capacity in requests.
        capacity: u32,
    },
    /// The description of the transfer contradicts itself.
    #[error(transparent)]
    Invalid(InvalidTransfer),
    /// A frame belongs to another client. Clones of a client count as the same client.
    #[error("a frame of this transfer belongs to another client; submit it to a queue of that client")]
    ForeignFrame,
    /// A loop cannot be run alone, because it repeats the transfers submitted after it.
    #[error("a loop cannot be run alone; submit it with the transfers it repeats")]
    Loop,
    /// The service ended or was killed. Connect again.
    #[error("the service was lost; connect again")]
    ServiceLost,
    /// This process is a forked child of the one that opened the queue.
    #[error(transparent)]
    Forked(Forked),
}

/// A transfer was not submitted. Contains the transfer.
///
/// ```
/// use memferry::{Client, InvalidTransfer, SubmitReason, copy};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let refused = client.queue(4)?.submit(copy(&frame, frame.slice(..100))).unwrap_err();
/// let too_short = InvalidTransfer::TooShort { source_bytes: 4096, destination_bytes: 100 };
/// assert_eq!(refused.reason, SubmitReason::Invalid(too_short));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Error)]
#[error("{reason}")]
pub struct SubmitError<T = ()> {
    /// Why the transfer was not submitted.
    pub reason: SubmitReason,
    /// The transfer that was not submitted, unchanged.
    pub transfer: Box<Transfer<T>>,
}

impl<T> SubmitError<T> {
    #[cold]
    pub(crate) fn new(reason: SubmitReason, transfer: Transfer<T>) -> Self {
        Self { reason, transfer: Box::new(transfer) }
    }

    /// The same error with an [untyped](Transfer::untyped) transfer.
    pub fn untyped(self) -> SubmitError<u64> {
        SubmitError::new(self.reason, self.transfer.untyped())
    }
}

impl<T> std::fmt::Debug for SubmitError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reason, transfer } = self;
        f.debug_struct("SubmitError").field("reason", reason).field("transfer", transfer).finish()
    }
}

struct Slot {
    /// The tag of the outstanding request, whose low bits are the slot's index; [`NO_TAG`] if the slot is free.
    tag: u64,
    held: Held,
    /// Bytes that the whole request visits.
    length: u64,
}

impl Slot {
    /// Abandons the frames of the request, because the time at which the service or a failed engine stops touching them is
    /// unknown. This includes frames that are only read: the slot does not know which are written.
    fn abandon(&self) {
        self.held.iter().for_each(Frame::abandon);
    }
}

/// The part of a tag that crosses to the service and back. It names one outstanding request; a ticket is never reused.
#[inline]
pub(crate) const fn wire_tag(tag: u64) -> u32 {
    tag as u32
}

/// The identity of the next queue.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(0);

/// A private queue pair with a worker of the service. It takes transfers and delivers their completions. It belongs to one
/// thread at a time.
///
/// ```
/// use memferry::{Client, copy};
/// use std::time::Duration;
///
/// let client = Client::embedded()?;
/// let (source, destination) = (client.frame(1 << 20).alloc()?, client.frame(1 << 20).alloc()?);
/// let mut queue = client.queue(64)?;
/// let ticket = queue.submit(copy(&source, &destination))?;
/// if queue.wait_for(ticket, Duration::from_millis(5))?.is_none() {
///     println!("still running");
/// }
/// for page in 0..4 {
///     let page = page * 4096..(page + 1) * 4096;
///     let _ = queue.submit(copy(source.slice(page.clone()), destination.slice(page)))?;
/// }
/// for done in queue.completions() {
///     done?;
/// }
/// # Ok::<(), memferry::Error>(())
/// ```
pub struct Queue {
    session: Arc<Session>,
    /// Names the queue in commands; unique in this session.
    number: u32,
    /// Names the queue in tickets; unique in this process.
    identity: u64,
    end: ClientEnd<MappedWords>,
    doorbell: OwnedFd,
    slots: Vec<Slot>,
    free: Vec<u32>,
    lap: u64,
    /// Buffer for the encoding of a list; kept to save allocations.
    list: Vec<u64>,
    staged: bool,
    /// The last staged transfer is linked to the next one, or is a loop that contains it.
    binds_next: bool,
    /// Completions taken from the ring during a wait for another one.
    finished: Finished,
    empty_polls: u32,
    /// The first line that the transfer of the last [`submit`](Self::submit) writes, if that is a short copy. A poll without success
    /// asks for it, so that it arrives with the completion, not after it.
    awaited: Option<Line>,
    /// Number of empty polls after which the clock is read.
    polls_per_clock_read: u32,
    /// Time of the last liveness check by a poll.
    checked: Instant,
    spin: Spin,
    /// The service wrote a completion that matches no request.
    broken: bool,
    lost: bool,
    /// The program has asked for a signal.
    armed: bool,
}

impl Queue {
    pub(crate) fn open(
        session: Arc<Session>,
        number: u32,
        (layout, own): (Layout, Mapping),
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, OpenError> {
        let capacity = layout.capacity();
        let protocol = |what| OpenError::Call(CallError::Protocol(what));
        let Ok([service, doorbell, parked]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            return Err(protocol(
                "its answer does not match the command: a queue comes with three descriptors",
            ));
        };
        // A service that sent other memory could end this process by truncating it, so the connection ends here.
        frame::check_sealed(service.as_fd(), layout.service_words() * 8)
            .inspect_err(|_| session.link.give_up())
            .map_err(OpenError::Memory)?;
        let unaligned = || OpenError::Map(std::io::Error::other("the queue's memory is not aligned"));
        let own = MappedWords::new(own).ok_or_else(unaligned)?;
        let map = |fd: &OwnedFd, words: usize, access| {
            let mapping = Mapping::shared(fd.as_fd(), words * 8, access, 4096)?;
            mapping.do_not_fork()?;
            MappedWords::new(mapping)
                .ok_or_else(|| std::io::Error::other("the queue's memory is not aligned"))
        };
        let peer = map(&service, layout.service_words(), Access::ReadOnly).map_err(OpenError::Map)?;
        let workers = session.parked_words(&parked)?;
        let end = ClientEnd::new(layout, own, peer, workers, session.fences).map_err(|_| {
            protocol("its answer does not match the command: the queue's memory is too small")
        })?;
        let slots = (0..capacity).map(|_| Slot { tag: NO_TAG, held: Held::new(), length: 0 }).collect();
        Ok(Self {
            session,
            number,
            identity: NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed),
            end,
            doorbell,
            slots,
            free: (0..capacity).rev().collect(),
            lap: 0,
            list: Vec::new(),
            staged: false,
            binds_next: false,
            finished: Finished::new(),
            empty_polls: 0,
            awaited: None,
            polls_per_clock_read: POLLS_PER_CLOCK_READ,
            checked: Instant::now(),
            spin: Spin::new(waiting::SPIN),
            broken: false,
            lost: false,
            armed: false,
        })
    }

    /// The id of this queue's transfer with that [tag](TicketId::tag). If the queue never gave the tag, calls with the id fail
    /// with [`Failure::UnknownTicket`].
    pub const fn ticket(&self, tag: u64) -> TicketId {
        TicketId { queue: self.identity, tag }
    }

    /// The maximum number of outstanding requests.
    pub fn capacity(&self) -> u32 {
        self.end.capacity()
    }

    /// The number of submitted requests whose completions were not yet taken from the ring.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Submits a transfer to the service. With an embedded service, this thread does a short transfer at once, which takes less
    /// time than the hand-over.
    ///
    /// # Errors
    /// [`SubmitError`], which contains the transfer.
    // Inlined, so that a transfer made for the call is never in memory.
    #[inline(always)]
    pub fn submit<T>(&mut self, transfer: Transfer<T>) -> Result<Ticket<T>, SubmitError<T>> {
        if matches!(self.session.link, Link::Embedded(_)) {
            return self.submit_embedded(transfer);
        }
        match self.stage_plain::<true>(transfer.description) {
            Ok(tag) => Ok(Ticket::of(self.ticket(tag))),
            Err(description) => {
                let ticket = self.stage_any(Transfer::of_description(description))?;
                self.publish();
                Ok(ticket)
            }
        }
    }

    /// Writes a transfer to the ring without starting it. [`publish`](Self::publish) starts all staged transfers at once.
    ///
    /// # Errors
    /// [`SubmitError`], which contains the transfer.
    // As for `submit`.
    #[inline(always)]
    pub fn stage<T>(&mut self, transfer: Transfer<T>) -> Result<Ticket<T>, SubmitError<T>> {
        match self.stage_plain::<false>(transfer.description) {
            Ok(tag) => Ok(Ticket::of(self.ticket(tag))),
            Err(description) => self.stage_any(Transfer::of_description(description)),
        }
    }

    /// Does a short transfer on this thread, or submits it.
    #[inline(never)]
    fn submit_embedded<T>(&mut self, transfer: Transfer<T>) -> Result<Ticket<T>, SubmitError<T>> {
        if let Some(id) = self.submit_inline(&transfer.description) {
            return Ok(Ticket::of(id));
        }
        let ticket = self.stage(transfer)?;
        self.publish();
        Ok(ticket)
    }

    /// What [`stage`](Self::stage) does if the transfer has no short slot, or may have to be refused.
    #[inline(never)]
    fn stage_any<T>(&mut self, mut transfer: Transfer<T>) -> Result<Ticket<T>, SubmitError<T>> {
        match self.stage_description(&mut transfer.description) {
            Ok(id) => Ok(Ticket::of(id)),
            Err(reason) => Err(SubmitError::new(reason, transfer)),
        }
    }

    /// Stages a transfer and moves its frames to its slot.
    fn stage_description(&mut self, transfer: &mut Description) -> Result<TicketId, SubmitReason> {
        self.check_submit(transfer)?;
        if self.is_known_lost() {
            return Err(SubmitReason::ServiceLost);
        }
        let full = SubmitReason::Full { capacity: self.end.capacity() };
        let tag = self.next_tag().ok_or(full)?;
        self.presume_consumed();
        let request = transfer.work.request();
        match wire::encode_short(wire_tag(tag), &request) {
            Some(slot) => self.end.stage_short(slot).map_err(|_| full)?,
            None => self.stage_long(tag, &request, full)?,
        }
        let operation = request.operation();
        self.binds_next = request.terms.linked || operation.is_none();
        let length = operation.map_or(0, Operation::total_bytes);
        let index = self.record_staged(tag, length);
        self.slots[index].held = std::mem::take(&mut transfer.held);
        Ok(self.ticket(tag))
    }

    /// Checks that the transfer is valid, and that this process and the frames belong to the session.
    fn check_submit(&self, transfer: &Description) -> Result<(), SubmitReason> {
        self.session.check_fork().map_err(SubmitReason::Forked)?;
        if let Some(invalid) = &transfer.invalid {
            return Err(SubmitReason::Invalid(**invalid));
        }
        match transfer.held.iter().all(|frame| frame.is_of(&self.session)) {
            true => Ok(()),
            false => Err(SubmitReason::ForeignFrame),
        }
    }

    /// Whether the service is known to be lost. Reads the ring's memory, which a forked child does not have.
    #[inline]
    fn is_known_lost(&self) -> bool {
        self.lost || self.end.closed() || self.session.link.known_lost()
    }

    /// The tag of the next request; `None` if every slot is in use.
    #[inline]
    fn next_tag(&self) -> Option<u64> {
        let index = *self.free.last()?;
        Some(self.lap * u64::from(self.end.capacity()) + u64::from(index))
    }

    /// Infers from the outstanding requests which submission slots are free.
    #[inline]
    fn presume_consumed(&mut self) {
        self.end.presume_consumed(self.end.capacity() - self.free.len() as u32);
    }

    /// Notes that the request with `tag`, the next one, is staged. Returns the index of its slot, which holds no frames yet.
    #[inline(always)]
    fn record_staged(&mut self, tag: u64, length: u64) -> usize {
        self.free.pop();
        self.lap = self.lap.wrapping_add(1);
        self.staged = true;
        let index = self.slot_of(tag);
        let slot = &mut self.slots[index];
        slot.tag = tag;
        slot.length = length;
        index
    }

    /// Stages a transfer that has no short slot.
    fn stage_long(&mut self, tag: u64, request: &Request, full: SubmitReason) -> Result<(), SubmitReason> {
        self.list.clear();
        let mut slot = wire::encode_long(wire_tag(tag), request, &mut self.list)
            .map_err(|shape| SubmitReason::Invalid(InvalidTransfer::Walk(shape)))?;
        if !self.list.is_empty() {
            wire::place_list(&mut slot, self.end.stage_list(&self.list).map_err(|_| full)?);
        }
        self.end.stage(&slot).map_err(|_| full)
    }

    /// Starts all staged transfers.
    #[inline]
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.staged) && self.session.check_fork().is_ok() && self.end.publish() {
            self.ring_doorbell();
        }
    }

    #[cold]
    fn ring_doorbell(&self) {
        // The write fails only if the counter is full; then the doorbell has rung already.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Asks the loop of a [`repeat`](crate::repeat) ticket to end after its current round.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub fn stop(&mut self, ticket: impl Into<TicketId>) -> Result<(), TransferError> {
        let id = ticket.into();
        self.check_outstanding(id)?;
        if self.end.stop(wire_tag(id.tag)) {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Asks a transfer to end early. Its completion arrives in any case and says how the transfer ended.
    ///
    /// # Errors
    /// [`Failure::UnknownTicket`] if the ticket's completion was taken from the ring before, or the ticket belongs to another
    /// queue; [`Failure::Forked`].
    pub fn cancel(&mut self, ticket: impl Into<TicketId>) -> Result<(), TransferError> {
        let id = ticket.into();
        self.check_outstanding(id)?;
        if self.end.cancel(wire_tag(id.tag)) {
            self.ring_doorbell();
        }
        Ok(())
    }

    fn check_outstanding(&self, id: TicketId) -> Result<(), TransferError> {
        let known = self.check_process().and_then(|()| match self.is_outstanding(id) {
            true => Ok(()),
            false => Err(Failure::UnknownTicket),
        });
        known.map_err(|failure| TransferError::without_engine(id, failure))
    }

    fn check_process(&self) -> Result<(), Failure> {
        self.session.check_fork().map_err(|_| Failure::Forked)
    }

    fn is_outstanding(&self, id: TicketId) -> bool {
        let known = id.queue == self.identity && id.tag != NO_TAG;
        known && self.slots[self.slot_of(id.tag)].tag == id.tag
    }

    /// The index of a tag's slot: the low bits of the tag, since the capacity is a power of two.
    #[inline]
    fn slot_of(&self, tag: u64) -> usize {
        (tag & u64::from(self.end.capacity() - 1)) as usize
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Whether [`poll`](Self::poll) would return something: a completion is there, or the service is lost.
    pub(crate) fn has_news(&mut self) -> bool {
        !self.finished.is_empty() || self.end.ready() || self.end.closed() || self.session.link.lost()
    }

    /// The words on which a thread sleeps to wait for this queue.
    pub(crate) fn sleeper(&self) -> Sleeper<MappedWords> {
        self.end.sleeper()
    }

    /// Takes the next completion, if there is one: [`Done`], or the error of a failed transfer. If the service is lost, polls
    /// report this after at most 100 ms and 512 empty polls.
    // Called, it would pass its result through memory.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Result<Done<u64>, TransferError>> {
        if self.finished.is_empty() {
            match self.poll_plain() {
                Polled::Nothing => return None,
                Polled::Success { tag, length } => {
                    let id = self.ticket(tag);
                    return Some(Ok(Done { id, bytes_done: length, output: 0, engine: EngineKind::Cpu }));
                }
                Polled::Other => {}
            }
        }
        self.poll_any()
    }

    #[inline(never)]
    fn poll_any(&mut self) -> Option<Result<Done<u64>, TransferError>> {
        self.poll_completion().map(Completion::into_result)
    }

    #[inline]
    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        if self.finished.is_empty() { self.poll_ring() } else { self.finished.pop() }
    }

    #[inline]
    fn poll_ring(&mut self) -> Option<Completion> {
        match self.poll_plain() {
            Polled::Nothing => None,
            Polled::Success { tag, length } => Some(Completion::plain_success(self.ticket(tag), length)),
            Polled::Other => self.poll_ring_any(),
        }
    }

    /// As [`poll_ring`](Self::poll_ring), for what [`poll_plain`](Self::poll_plain) leaves.
    #[inline(never)]
    fn poll_ring_any(&mut self) -> Option<Completion> {
        if self.lost || self.session.check_fork().is_err() {
            return None;
        }
        if self.armed {
            self.disarm();
        }
        if let Some(completion) = self.take() {
            self.empty_polls = 0;
            return Some(completion);
        }
        self.found_nothing()
    }

    /// After a poll without a completion: fails what is outstanding if the service is lost.
    fn found_nothing(&mut self) -> Option<Completion> {
        self.empty_polls = self.empty_polls.saturating_add(1);
        let clock_due = self.empty_polls >= self.polls_per_clock_read && self.outstanding() > 0;
        let lost = self.session.link.known_lost() || clock_due && self.check_lost();
        if self.broken || self.end.closed() || lost {
            return self.fail_outstanding();
        }
        None
    }

    /// Whether the service is lost. Checks at most once per [`LIVENESS`], like a sleeping wait.
    #[cold]
    fn check_lost(&mut self) -> bool {
        self.empty_polls = 0;
        if self.checked.elapsed() < LIVENESS {
            self.polls_per_clock_read = (2 * self.polls_per_clock_read).min(MAX_POLLS_PER_CLOCK_READ);
            return false;
        }
        self.checked = Instant::now();
        self.polls_per_clock_read = POLLS_PER_CLOCK_READ;
        self.session.link.lost()
    }

    /// Takes a completion from the ring. If it matches no request, the service broke the protocol.
    fn take(&mut self) -> Option<Completion> {
        let header = self.end.peek_header()?;
        self.end.take_peeked();
        let name = wire::tag_of_completion(header);
        let index = self.slot_of(name.into());
        let Slot { tag, length, .. } = self.slots[index];
        if wire_tag(tag) != name || tag == NO_TAG {
            self.broken = true;
            return None;
        }
        let completion = self.decode(header, self.ticket(tag), length)?;
        let entry = &mut self.slots[index];
        entry.tag = NO_TAG;
        if !completion.is_settled() {
            entry.abandon();
        }
        entry.held.clear();
        self.free.push(index as u32);
        Some(completion)
    }

    /// The completion whose header was taken from the ring.
    fn decode(&mut self, header: u64, id: TicketId, length: u64) -> Option<Completion> {
        let Ok(decoded) = wire::decode_completion(&self.end.whole(header), length) else {
            self.broken = true;
            return None;
        };
        let Outcome { result, bytes_done, value, engine } = decoded.outcome;
        let outcome = result.map(|()| value);
        Some(Completion { id, outcome, inherited: decoded.inherited, bytes_done, engine, length })
    }

    /// Completes all outstanding requests after the loss of the service: with the completions that it still wrote, the others
    /// with [`Failure::ServiceLost`].
    fn fail_outstanding(&mut self) -> Option<Completion> {
        while let Some(completion) = self.take() {
            self.finished.push(completion);
        }
        self.lost = true;
        // Else a transfer would be staged after these without a look at the service, and never end.
        self.staged = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let tag = std::mem::replace(&mut slot.tag, NO_TAG);
            if tag != NO_TAG {
                slot.abandon();
                slot.held.clear();
                self.free.push(index as u32);
                let id = TicketId { queue: self.identity, tag };
                self.finished.push(Completion::without_engine(id, Failure::ServiceLost));
            }
        }
        self.finished.pop()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The service answers before running transfers have stopped, so their memory must not be reused yet.
        self.slots.iter().filter(|slot| slot.tag != NO_TAG).for_each(Slot::abandon);
        // Errors are expected: a lost service has no queue to close, and in a forked child the queue belongs to the parent.
        let _ = self.session.release(Command::CloseQueue { queue: self.number });
    }
}

#[cfg(test)]
pub(crate) mod tests;
