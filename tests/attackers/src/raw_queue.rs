//! A queue of a client that may write anything into its ring. Queues are opened only here, because how they are opened belongs to the
//! protocol.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use memferry_service::protocol::{Answer, Command};
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, Layout, ParkedWord};
use memferry_shm::storage::{MappedWords, RingStorage};
use memferry_transfer::Request;
use memferry_transfer::wire::{self, SubmissionSlot};

use crate::Failed;
use crate::connection::Connection;

/// Word of the client's memory that counts its cancels; the cancel words follow from [`CANCEL_WORDS`] on.
pub(crate) const CANCEL_GENERATION: usize = 32;
pub(crate) const CANCEL_WORDS: usize = 48;

pub(crate) struct RawQueue {
    pub(crate) number: u32,
    pub(crate) end: ClientEnd<MappedWords>,
    /// The client's memory, mapped again.
    pub(crate) scribble: MappedWords,
    pub(crate) doorbell: OwnedFd,
    outstanding: u32,
    /// Counts submissions: the next tag.
    submitted: u32,
}

impl RawQueue {
    pub(crate) fn open(connection: &mut Connection, capacity: u32) -> Result<Self, Failed> {
        Self::open_with(connection, capacity, |_| Ok(()))
    }

    /// As [`open`](Self::open). `prepare` gets the client's memory as early as the protocol gives it to a client: an attack on that
    /// memory begins there.
    pub(crate) fn open_with(
        connection: &mut Connection,
        capacity: u32,
        prepare: impl FnOnce(&OwnedFd) -> Result<(), Failed>,
    ) -> Result<Self, Failed> {
        let layout = Layout::new(capacity)?;
        let (memory, mapping) = frame::allocate_half(layout.client_bytes())?;
        let unaligned = || "a queue's memory is not aligned";
        let own = MappedWords::new(mapping).ok_or_else(unaligned)?;
        let scribble = own.clone();
        // The service seals the memory when it admits it, so an attack on it begins now.
        prepare(&memory)?;
        let (answer, descriptors) = connection.call(Command::OpenQueue { capacity }, &[memory.as_fd()])?;
        let Answer::Queue { queue: number, .. } = answer else {
            return Err(format!("a strange answer to an open: {answer:?}").into());
        };
        let [service, doorbell, parked] =
            <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| "a queue without its descriptors")?;
        let peer = Mapping::shared(service.as_fd(), layout.service_words() * 8, Access::ReadOnly, 4096)?;
        let peer = MappedWords::new(peer).ok_or_else(unaligned)?;
        let parked =
            Mapping::shared(parked.as_fd(), ParkedWord::<MappedWords>::BYTES, Access::ReadOnly, 4096)?;
        let parked = MappedWords::new(parked).ok_or_else(unaligned)?;
        let end = ClientEnd::new(layout, own, peer, parked, Fences::Full)?;
        Ok(Self { number, end, scribble, doorbell, outstanding: 0, submitted: 0 })
    }

    /// Opens `count` queues, or as many as the service allows, but at least one.
    pub(crate) fn open_many(
        connection: &mut Connection,
        count: usize,
        capacity: u32,
    ) -> Result<Vec<Self>, Failed> {
        let mut queues = vec![Self::open(connection, capacity)?];
        while queues.len() < count
            && let Ok(queue) = Self::open(connection, capacity)
        {
            queues.push(queue);
        }
        Ok(queues)
    }

    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Tags of the outstanding requests, if the service completes them in order.
    pub(crate) fn tags(&self) -> std::ops::Range<u32> {
        self.submitted.saturating_sub(self.outstanding)..self.submitted
    }

    /// Takes all completions, and frees as many slots.
    pub(crate) fn collect(&mut self) -> Result<(), Failed> {
        while self.end.pop().is_some() {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        if self.end.closed() { Err("the service closed the queue".into()) } else { Ok(()) }
    }

    /// Takes all completions, and submits `slots` in turn until the queue is full. Returns the number of submissions.
    pub(crate) fn refill(&mut self, slots: &[SubmissionSlot]) -> Result<u32, Failed> {
        self.collect()?;
        let mut added = 0;
        while self.outstanding < self.end.capacity() {
            let mut slot = slots[self.submitted as usize % slots.len()];
            slot[0] = wire::with_tag(slot[0], self.submitted);
            if self.end.stage(&slot).is_err() {
                break;
            }
            self.submitted = self.submitted.wrapping_add(1);
            self.outstanding += 1;
            added += 1;
        }
        if added > 0 && self.end.publish() {
            self.ring();
        }
        Ok(added)
    }

    /// Writes a list at the start of the list area, which any number of requests may then name.
    pub(crate) fn write_list(&mut self, list: &[u64]) -> Result<u64, Failed> {
        self.end.stage_list(list).map_err(|_| "the list does not fit".into())
    }

    /// Raises the flag of a sleeping client.
    pub(crate) fn raise(&self, flag: u64) {
        self.end.parked().store(flag, Ordering::Release);
    }

    pub(crate) fn store(&self, word: usize, value: u64) {
        self.scribble.word(word).store(value, Ordering::Release);
    }
}

/// Encodes a request, and its list.
pub(crate) fn encoded(request: &Request) -> Result<(SubmissionSlot, Vec<u64>), Failed> {
    let mut list = Vec::new();
    Ok((wire::encode_request(0, request, &mut list)?, list))
}

/// Encodes a request without a list.
pub(crate) fn slot(request: &Request) -> Result<SubmissionSlot, Failed> {
    encoded(request).map(|(slot, _)| slot)
}
