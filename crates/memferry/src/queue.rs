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
//! that nobody touches them any more ([`Completion::is_settled`]), memory of an arena is abandoned, so that nobody else gets it.

mod batch;
mod notify;
#[cfg(test)]
pub(crate) mod played;
mod waiting;

pub use batch::BatchError;
pub use notify::Armed;
pub use waiting::Arrival;
pub(crate) use waiting::LIVENESS;

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
use memferry_transfer::wire::{self, SlotError};
use memferry_transfer::{Failure, Operation, Outcome};
use thiserror::Error;

use crate::Completion;
use crate::client::Session;
use crate::error::{CallError, OpenError};
use crate::frame::Frame;
use crate::transfer::{Held, Transfer};

/// Empty polls between looks at the clock, whether to look if the service still lives: so few that a program that polls for every
/// picture it shows learns of that within seconds.
const POLLS_PER_GLANCE: u32 = 64;
/// The same where they follow each other so fast that the clock, half a microsecond on some machines, would be felt.
const MOST_POLLS_PER_GLANCE: u32 = 512;

/// Names one submitted transfer of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket {
    /// The queue's identity.
    queue: u64,
    tag: u64,
}

impl Ticket {
    /// A ticket that no queue gives.
    pub const NONE: Self = Self { queue: u64::MAX, tag: NO_TAG };

    /// What tells it from the queue's other tickets, for programs in other languages to keep; see [`Queue::ticket`].
    pub const fn tag(self) -> u64 {
        self.tag
    }
}

/// Why a transfer was not submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SubmitReason {
    /// The queue holds as many requests as it can.
    #[error("the queue holds {capacity} requests already; take completions first")]
    Full {
        /// Its capacity.
        capacity: u32,
    },
    /// A frame belongs to another client object.
    #[error("a frame of this transfer belongs to another client")]
    ForeignFrame,
    /// Offset and start of a 2-D walk do not fit 64 bits.
    #[error(transparent)]
    Shape(SlotError),
    /// A loop ends when what it repeats has ended, which has to be submitted first.
    #[error("a loop cannot be performed alone; submit it with the transfers it repeats")]
    Loop,
    /// The service is gone.
    #[error("the service was lost; connect again")]
    ServiceLost,
    /// This is a forked child.
    #[error(transparent)]
    Forked(Forked),
}

/// A transfer that was not submitted, given back.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct SubmitError {
    /// Why not.
    pub reason: SubmitReason,
    /// What was to be submitted.
    pub transfer: Box<Transfer>,
}

/// Why waiting ended without a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WaitError {
    /// The time was up; the transfer goes on.
    #[error("the transfer was not done in time; it goes on")]
    TimedOut,
    /// The ticket is none of this queue's outstanding ones.
    #[error("the ticket is not outstanding on this queue")]
    UnknownTicket,
    /// This is a forked child.
    #[error(transparent)]
    Forked(Forked),
}

struct Slot {
    /// The outstanding request's tag; its low bits are the slot's index. [`NO_TAG`] when there is none.
    tag: u64,
    held: Held,
    /// Bytes the whole of it visits.
    length: u64,
}

/// No request has this tag.
const NO_TAG: u64 = u64::MAX;

impl Slot {
    /// Nobody will learn when the service, or an engine that failed, stops touching the frames of this request. Which of them
    /// are written is not known here.
    fn abandon(&self) {
        self.held.iter().for_each(Frame::abandon);
    }
}

/// The identity of the queue that is opened next.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(0);

/// A private queue pair with a worker of the service.
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

    /// This queue's ticket of that tag. A tag that the queue never gave makes a ticket that it does not know.
    pub const fn ticket(&self, tag: u64) -> Ticket {
        Ticket { queue: self.identity, tag }
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
    pub fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        if let Some(ticket) = self.submit_here(&transfer) {
            return Ok(ticket);
        }
        let ticket = self.stage(transfer)?;
        self.publish();
        Ok(ticket)
    }

    /// Writes a transfer without starting it; [`publish`](Self::publish) starts all staged ones at once.
    ///
    /// # Errors
    /// [`SubmitError`] with the transfer.
    pub fn stage(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        match self.try_stage(&transfer) {
            Ok(tag) => {
                let index = self.slot_of(tag);
                let slot = &mut self.slots[index];
                slot.tag = tag;
                slot.length = transfer.request.operation().map_or(0, Operation::total_bytes);
                if !transfer.held.is_empty() {
                    slot.held = transfer.held;
                }
                self.staged = true;
                Ok(Ticket { queue: self.identity, tag })
            }
            Err(reason) => Err(SubmitError { reason, transfer: Box::new(transfer) }),
        }
    }

    /// Whether this process and these frames belong to the session.
    fn may_submit(&self, transfer: &Transfer) -> Result<(), SubmitReason> {
        self.session.check_fork().map_err(SubmitReason::Forked)?;
        match transfer.held.iter().all(|frame| frame.is_of(&self.session)) {
            true => Ok(()),
            false => Err(SubmitReason::ForeignFrame),
        }
    }

    fn try_stage(&mut self, transfer: &Transfer) -> Result<u64, SubmitReason> {
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
            .map_err(SubmitReason::Shape)?;
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

    /// Asks that the loop that `ticket`, of [`Transfer::repeat`], began end when its present round is whole.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub fn stop(&mut self, ticket: Ticket) -> Result<(), WaitError> {
        self.session.check_fork().map_err(WaitError::Forked)?;
        if !self.is_outstanding(ticket) {
            return Err(WaitError::UnknownTicket);
        }
        if self.end.stop(ticket.tag) {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Asks that a transfer end early. Its completion comes in any case and says how it ended.
    ///
    /// # Errors
    /// [`WaitError::UnknownTicket`] when it has ended and this queue knows, [`WaitError::Forked`].
    pub fn cancel(&mut self, ticket: Ticket) -> Result<(), WaitError> {
        self.session.check_fork().map_err(WaitError::Forked)?;
        if !self.is_outstanding(ticket) {
            return Err(WaitError::UnknownTicket);
        }
        if self.end.cancel(ticket.tag) {
            self.ring_doorbell();
        }
        Ok(())
    }

    fn is_outstanding(&self, ticket: Ticket) -> bool {
        let known = ticket.queue == self.identity && ticket.tag != NO_TAG;
        known && self.slots[self.slot_of(ticket.tag)].tag == ticket.tag
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

    /// The next completion, if one is there. The loss of the service shows after a tenth of a second and
    /// 512 polls that find nothing, at the latest.
    pub fn poll(&mut self) -> Option<Completion> {
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
        let ticket = Ticket { queue: self.identity, tag };
        let inherited = completion.inherited;
        let Outcome { result: outcome, bytes_done, value, engine } = completion.outcome;
        let completion = Completion { ticket, outcome, inherited, bytes_done, value, engine };
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
                let ticket = Ticket { queue: self.identity, tag };
                self.finished.push_back(Completion::without_engine(ticket, Failure::ServiceLost));
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
