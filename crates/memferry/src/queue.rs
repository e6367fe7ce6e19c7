//! A queue: a private ring to a worker, where starting a transfer is a few stores.
//!
//! ```text
//! submit ─ stage, publish ─► ring ─► worker      a doorbell is rung only when the worker sleeps
//! poll, wait ◄─ completions ◄─────── worker      wait spins for about a wake-up's cost, then sleeps
//! cancel, stop ─ a word the worker looks at between chunks
//! ```
//!
//! Requests start in the order they were submitted and may complete in any. When the service is lost, each outstanding
//! ticket gets one completion with [`Failure::ServiceLost`]. A slot lets go of its frames with the completion; where that does not say
//! that nobody touches them any more ([`TransferError::is_settled`]), memory of an arena is abandoned, so that nobody else gets it.

mod batch;
mod notify;
#[cfg(test)]
pub(crate) mod played;
mod waiting;

pub use batch::{BatchError, RunError};
pub use notify::Armed;
pub(crate) use waiting::LIVENESS;
pub use waiting::{Arrival, Completions, Progress};

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memferry_service::protocol::Command;
use memferry_shm::fork_guard::Forked;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Spin;
use memferry_shm::queue_pair::{ClientEnd, Layout, Sleeper};
use memferry_shm::storage::MappedWords;
use memferry_transfer::wire;
use memferry_transfer::{Failure, Operation, Outcome};
use thiserror::Error;

use crate::completion::{Completion, Done, NO_TAG, Ticket, TicketId, TransferError};
use crate::error::{CallError, OpenError};
use crate::frame::Frame;
use crate::link::Link;
use crate::session::Session;
use crate::transfer::{Description, Held, InvalidTransfer, Transfer};

/// Empty polls between looks at the clock, whether to look if the service still lives: so few that a program that polls for every
/// picture it shows learns of that within seconds.
const POLLS_PER_GLANCE: u32 = 64;
/// The same where they follow each other so fast that the clock, half a microsecond on some machines, would be felt.
const MOST_POLLS_PER_GLANCE: u32 = 512;

/// Why a transfer was not submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SubmitReason {
    /// The queue holds as many requests as it can.
    #[error("the queue holds {capacity} requests already; take completions first")]
    Full {
        /// Its capacity.
        capacity: u32,
    },
    /// It contradicts itself.
    #[error(transparent)]
    Invalid(InvalidTransfer),
    /// A frame belongs to another client object.
    #[error("a frame of this transfer belongs to another client")]
    ForeignFrame,
    /// A loop ends when what it repeats has ended, which has to be submitted first.
    #[error("a loop cannot be run alone; submit it with the transfers it repeats")]
    Loop,
    /// The service is gone.
    #[error("the service was lost; connect again")]
    ServiceLost,
    /// This is a forked child.
    #[error(transparent)]
    Forked(Forked),
}

/// A transfer that was not submitted, given back.
///
/// ```
/// # #![deny(unused_must_use)]
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
    /// Why not.
    pub reason: SubmitReason,
    /// What was to be submitted.
    pub transfer: Box<Transfer<T>>,
}

impl<T> SubmitError<T> {
    #[cold]
    pub(crate) fn new(reason: SubmitReason, transfer: Transfer<T>) -> Self {
        Self { reason, transfer: Box::new(transfer) }
    }

    /// The same error, with the transfer as [`Transfer::untyped`] gives it.
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
    /// The outstanding request's tag; its low bits are the slot's index. [`NO_TAG`] when there is none.
    tag: u64,
    held: Held,
    /// Bytes the whole of it visits.
    length: u64,
}

impl Slot {
    /// Nobody will learn when the service, or an engine that failed, stops touching the frames of this request. Which of them
    /// are written is not known here.
    fn abandon(&self) {
        self.held.iter().for_each(Frame::abandon);
    }
}

/// The identity of the queue that is opened next.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(0);

/// A private queue pair with a worker of the service: transfers are submitted here, and how they ended is learned here. It belongs
/// to one thread at a time.
///
/// ```
/// # #![deny(unused_must_use)]
/// use memferry::{Client, copy};
/// use std::time::Duration;
///
/// let client = Client::embedded()?;
/// let (source, destination) = (client.frame(1 << 20).alloc()?, client.frame(1 << 20).alloc()?);
/// let mut queue = client.queue(64)?;
/// let ticket = queue.submit(copy(&source, &destination))?;
/// if queue.wait_for(ticket, Duration::from_millis(5))?.is_none() {
///     println!("not yet; it goes on");
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
    /// Its name in commands, which is its own in this session only.
    number: u32,
    /// Its name in tickets, which no other queue of this process has.
    identity: u64,
    end: ClientEnd<MappedWords>,
    doorbell: OwnedFd,
    slots: Vec<Slot>,
    free: Vec<u32>,
    lap: u64,
    /// Kept for its allocation.
    list: Vec<u64>,
    staged: bool,
    /// The last one staged is linked to the next, or a loop that the next is a member of.
    binds_next: bool,
    /// Taken from the ring while waiting for another.
    finished: VecDeque<Completion>,
    empty_polls: u32,
    /// Empty polls after which the clock is looked at.
    glance_after: u32,
    /// When a poll looked last whether the service still lives.
    looked: Instant,
    spin: Spin,
    /// The service wrote a completion that no request belongs to.
    broken: bool,
    lost: bool,
    /// The client asked to be signalled.
    armed: bool,
}

impl Queue {
    pub(crate) fn open(
        session: Arc<Session>,
        number: u32,
        capacity: u32,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, OpenError> {
        let protocol = |what| OpenError::Call(CallError::Protocol(what));
        let Ok([client, service, doorbell]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            return Err(protocol("a queue needs three descriptors"));
        };
        let layout = Layout::new(capacity).map_err(|_| protocol("it opened another capacity"))?;
        let map = |fd: &OwnedFd, words: usize, access| {
            let size = rustix::fs::fstat(fd).map_err(std::io::Error::from)?.st_size as u64;
            if size < words as u64 * 8 {
                return Err(std::io::Error::other("the queue's memory is too small"));
            }
            let mapping = Mapping::shared(fd.as_fd(), words * 8, access, 4096)?;
            mapping.do_not_fork()?;
            MappedWords::new(mapping)
                .ok_or_else(|| std::io::Error::other("the queue's memory is not aligned"))
        };
        let own = map(&client, layout.client_words(), Access::ReadWrite).map_err(OpenError::Map)?;
        let peer = map(&service, layout.service_words(), Access::ReadOnly).map_err(OpenError::Map)?;
        let end = ClientEnd::new(layout, own, peer, session.fences)
            .map_err(|_| protocol("the queue's memory is too small"))?;
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
            finished: VecDeque::new(),
            empty_polls: 0,
            glance_after: POLLS_PER_GLANCE,
            looked: Instant::now(),
            spin: Spin::new(waiting::SPIN),
            broken: false,
            lost: false,
            armed: false,
        })
    }

    /// This queue's name for the transfer of that [tag](TicketId::tag). A tag that the queue never gave makes a name that it does
    /// not know.
    pub const fn ticket(&self, tag: u64) -> TicketId {
        TicketId { queue: self.identity, tag }
    }

    /// Requests that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.end.capacity()
    }

    /// Requests submitted whose completions were not taken from the ring yet.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Hands a transfer to the service. Where that is in this process, a short one is done at once instead: on this thread it
    /// takes less than handing it over would.
    ///
    /// # Errors
    /// [`SubmitError`] with the transfer.
    #[inline]
    pub fn submit<T>(&mut self, mut transfer: Transfer<T>) -> Result<Ticket<T>, SubmitError<T>> {
        match self.submit_description(&mut transfer.description) {
            Ok(id) => Ok(Ticket::of(id)),
            Err(reason) => Err(SubmitError::new(reason, transfer)),
        }
    }

    /// Writes a transfer without starting it; [`publish`](Self::publish) starts all staged ones at once.
    ///
    /// # Errors
    /// [`SubmitError`] with the transfer.
    #[inline]
    pub fn stage<T>(&mut self, mut transfer: Transfer<T>) -> Result<Ticket<T>, SubmitError<T>> {
        match self.stage_description(&mut transfer.description) {
            Ok(id) => Ok(Ticket::of(id)),
            Err(reason) => Err(SubmitError::new(reason, transfer)),
        }
    }

    fn submit_description(&mut self, transfer: &mut Description) -> Result<TicketId, SubmitReason> {
        if matches!(self.session.link, Link::Embedded(_))
            && let Some(id) = self.submit_here(transfer)
        {
            return Ok(id);
        }
        let id = self.stage_description(transfer)?;
        self.publish();
        Ok(id)
    }

    /// Stages a transfer; once it is staged, its slot has its frames.
    fn stage_description(&mut self, transfer: &mut Description) -> Result<TicketId, SubmitReason> {
        let tag = self.try_stage(transfer)?;
        let index = self.slot_of(tag);
        let slot = &mut self.slots[index];
        slot.tag = tag;
        slot.length = transfer.request.operation().map_or(0, Operation::total_bytes);
        if !transfer.held.is_empty() {
            slot.held = std::mem::take(&mut transfer.held);
        }
        self.staged = true;
        Ok(self.ticket(tag))
    }

    /// Whether the transfer makes sense, and this process and these frames belong to the session.
    fn may_submit(&self, transfer: &Description) -> Result<(), SubmitReason> {
        self.session.check_fork().map_err(SubmitReason::Forked)?;
        if let Some(invalid) = transfer.invalid {
            return Err(SubmitReason::Invalid(invalid));
        }
        match transfer.held.iter().all(|frame| frame.is_of(&self.session)) {
            true => Ok(()),
            false => Err(SubmitReason::ForeignFrame),
        }
    }

    fn try_stage(&mut self, transfer: &Description) -> Result<u64, SubmitReason> {
        self.may_submit(transfer)?;
        if self.lost || self.end.closed() || self.session.link.known_lost() {
            return Err(SubmitReason::ServiceLost);
        }
        let full = SubmitReason::Full { capacity: self.end.capacity() };
        let index = *self.free.last().ok_or(full)?;
        let tag = self.lap * u64::from(self.end.capacity()) + u64::from(index);
        self.end.presume_consumed(self.end.capacity() - self.free.len() as u32);
        let mut slot = [0; wire::SUBMISSION_WORDS];
        self.list.clear();
        wire::encode_request(tag, &transfer.request, &mut slot, &mut self.list)
            .map_err(|shape| SubmitReason::Invalid(InvalidTransfer::Walk(shape)))?;
        if !self.list.is_empty() {
            wire::place_list(&mut slot, self.end.stage_list(&self.list).map_err(|_| full)?);
        }
        self.end.stage(&slot).map_err(|_| full)?;
        self.free.pop();
        self.lap = self.lap.wrapping_add(1);
        self.binds_next = transfer.request.terms.linked || transfer.request.operation().is_none();
        Ok(tag)
    }

    /// Starts what was staged.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.staged) && self.session.check_fork().is_ok() && self.end.publish() {
            self.ring_doorbell();
        }
    }

    fn ring_doorbell(&self) {
        // A full counter is rung already.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Asks that the loop that `ticket`, of [`repeat`](crate::repeat), began end when its present round is whole.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub fn stop(&mut self, ticket: impl Into<TicketId>) -> Result<(), TransferError> {
        let id = ticket.into();
        self.check_outstanding(id)?;
        if self.end.stop(id.tag) {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Asks that a transfer end early. Its completion comes in any case and says how it ended.
    ///
    /// # Errors
    /// [`Failure::UnknownTicket`] when it has ended and this queue knows, [`Failure::Forked`].
    pub fn cancel(&mut self, ticket: impl Into<TicketId>) -> Result<(), TransferError> {
        let id = ticket.into();
        self.check_outstanding(id)?;
        if self.end.cancel(id.tag) {
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

    /// The capacity is a power of two.
    fn slot_of(&self, tag: u64) -> usize {
        (tag & u64::from(self.end.capacity() - 1)) as usize
    }

    /// What everything of its client shares.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Whether [`poll`](Self::poll) is worth while: there is a completion, or the service is gone.
    pub(crate) fn has_news(&mut self) -> bool {
        !self.finished.is_empty() || self.end.ready() || self.end.closed() || self.session.link.lost()
    }

    /// What a thread sleeps on that waits for this queue.
    pub(crate) fn sleeper(&self) -> Sleeper<MappedWords> {
        self.end.sleeper()
    }

    /// How the next transfer ended, if one has. The loss of the service shows after a tenth of a second and 512 polls that find
    /// nothing, at the latest.
    #[inline]
    pub fn poll(&mut self) -> Option<Result<Done<u64>, TransferError>> {
        self.poll_completion().map(Completion::into_result)
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        self.finished.pop_front().or_else(|| self.poll_ring())
    }

    #[inline]
    fn poll_ring(&mut self) -> Option<Completion> {
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
        self.empty_polls = self.empty_polls.saturating_add(1);
        let glance = self.empty_polls >= self.glance_after && self.outstanding() > 0;
        let lost = self.session.link.known_lost() || glance && self.look_for_loss();
        if self.broken || self.end.closed() || lost {
            return self.give_up();
        }
        None
    }

    /// Whether the service is gone, asked no more often than a sleeper does.
    #[cold]
    fn look_for_loss(&mut self) -> bool {
        self.empty_polls = 0;
        if self.looked.elapsed() < LIVENESS {
            self.glance_after = (2 * self.glance_after).min(MOST_POLLS_PER_GLANCE);
            return false;
        }
        (self.looked, self.glance_after) = (Instant::now(), POLLS_PER_GLANCE);
        self.session.link.lost()
    }

    /// Takes a completion from the ring. One that no request belongs to means that the service broke the protocol.
    #[inline]
    fn take(&mut self) -> Option<Completion> {
        let slot = self.end.pop()?;
        let tag = wire::tag_of_completion(&slot);
        let index = self.slot_of(tag);
        let entry = &mut self.slots[index];
        let decoded =
            if entry.tag == tag && tag != NO_TAG { wire::decode_completion(&slot).ok() } else { None };
        let Some(completion) = decoded else {
            self.broken = true;
            return None;
        };
        let Outcome { result, bytes_done, value, engine } = completion.outcome;
        let completion = Completion {
            id: TicketId { queue: self.identity, tag },
            outcome: result.map(|()| value),
            inherited: completion.inherited,
            bytes_done,
            engine,
            length: entry.length,
        };
        entry.tag = NO_TAG;
        if !entry.held.is_empty() {
            if !completion.is_settled() {
                entry.abandon();
            }
            entry.held.clear();
        }
        self.free.push(index as u32);
        Some(completion)
    }

    /// The service is gone: what it still wrote counts, every other outstanding request ends as lost.
    fn give_up(&mut self) -> Option<Completion> {
        while let Some(completion) = self.take() {
            self.finished.push_back(completion);
        }
        self.lost = true;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let tag = std::mem::replace(&mut slot.tag, NO_TAG);
            if tag != NO_TAG {
                slot.abandon();
                slot.held.clear();
                self.free.push(index as u32);
                let id = TicketId { queue: self.identity, tag };
                self.finished.push_back(Completion::without_engine(id, Failure::ServiceLost));
            }
        }
        self.finished.pop_front()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Answered before transfers have stopped: what they touch may not be used again until they have.
        self.slots.iter().filter(|slot| slot.tag != NO_TAG).for_each(Slot::abandon);
        // A lost service forgot it already, and in a forked child it is the parent's.
        let _ = self.session.call(Command::CloseQueue { queue: self.number }, Vec::new());
    }
}

#[cfg(test)]
mod tests;
