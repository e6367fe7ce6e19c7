//! Submitting to one work queue, and finding out what became of it.
//!
//! ```text
//! submit        a free slot ──► record cleared ──► descriptor ──► portal
//! submit_batch  slots, and a list in memory ────► batch descriptor ──► portal
//! poll          written records ──► Completion    Done, Failed: the slot is free    Faulted: resume or release it
//! ```
//!
//! A slot is a completion record and what the driver knows of its request. Entries of the work queue are counted, because a dedicated one
//! cannot say that it is full (3.3.2). A batch takes one entry, a slot of its own, and one of the lists.

use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation};
use memferry_dsa_registers::record::{self, Record, Status};
use memferry_dsa_registers::{descriptor, record as records};
use thiserror::Error;

use crate::device::Stopped;
use crate::memory::DmaMemory;
use crate::outcome::{Checked, Failure, Fault, Outcome, Value, check};
use crate::portal::{Portal, Refused};
use crate::request::{Limits, Request, RequestError};

/// Most lists of batches that a queue can have.
const MAX_LISTS: u16 = 64;

/// Memory and bounds of a queue. All addresses are the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Completion records: 32 bytes for each slot, aligned to 32.
    pub records: u64,
    /// Lists of batches: `lists` times `list_length` descriptors of 64 bytes, aligned to 64.
    pub list: u64,
    /// Batches that may be outstanding, at most 64. Zero: no batches.
    pub lists: u16,
    /// Requests that a batch may have.
    pub list_length: u16,
    /// Descriptors that may be outstanding: the entries of a dedicated work queue, or this client's share of a shared one.
    pub entries: u16,
    /// How often a descriptor is submitted to a shared work queue that is full, before [`SubmitError::Busy`].
    pub attempts: u32,
}

/// Why a queue cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    #[error("the completion records at {address:#x} are not aligned to 32 bytes")]
    RecordsMisaligned { address: u64 },
    #[error("the lists at {address:#x} are not aligned to 64 bytes")]
    ListMisaligned { address: u64 },
    #[error("{bytes} bytes at {address:#x} leave the address space")]
    LeavesAddressSpace { address: u64, bytes: u64 },
    #[error("{lists} lists; {MAX_LISTS} is the limit")]
    TooManyLists { lists: u16 },
    #[error("lists of {length} descriptors; the work queue takes batches of 1 to {limit}")]
    ListTooLong { length: u16, limit: u32 },
    #[error("no attempts, no entries or no slots: at least one of each is needed")]
    Nothing,
}

/// Why something was not submitted. The device knows nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The request of this place in the batch, or the only one, breaks a rule.
    #[error("request {index}: {error}")]
    Request { index: usize, error: RequestError },
    /// Every slot has a request.
    #[error("all {slots} slots are in use: poll for completions")]
    NoSlot { slots: usize },
    /// As many descriptors are outstanding as the work queue holds.
    #[error("all {entries} entries of the work queue are in use: poll for completions")]
    NoEntry { entries: u16 },
    #[error("all {lists} lists of batches are in use: poll for completions, or submit one by one")]
    NoList { lists: u16 },
    /// A batch that the work queue does not take.
    #[error("a batch of {length} requests; it takes {smallest} to {largest}: submit them one by one")]
    BatchLength { length: usize, smallest: usize, largest: usize },
    #[error("this portal takes no batches: submit one by one")]
    NoBatches,
    /// The shared work queue stayed full.
    #[error("the work queue was full {attempts} times: let the CPU do it, or try later")]
    Busy { attempts: u32 },
    /// See [`Refused::Closed`].
    #[error("the work queue takes no descriptors any more")]
    Closed,
}

/// Why a request was not resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ResumeError {
    #[error("the ticket is of no request that waits at a page fault")]
    NotFaulted,
    /// The rest was not submitted; the request waits as before.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// Names a request from its submission to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ticket {
    slot: u16,
    serial: u32,
}

impl Ticket {
    /// The slot, less than the number of slots; no two requests have it at the same time.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A request that ended, or that waits at a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub ticket: Ticket,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum State {
    #[default]
    Free,
    Single,
    /// Submitted in the batch of this slot, at this place.
    Member {
        batch: u16,
        index: u16,
    },
    /// The batch descriptor of a list.
    Batch {
        list: u16,
        count: u16,
    },
    Faulted {
        reversed: bool,
    },
    /// Ended without a record.
    Ended(Failure),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    serial: u32,
    request: Request,
    /// Bytes that earlier descriptors of the request have done.
    done: u32,
}

const EMPTY: Slot = Slot { state: State::Free, serial: 0, request: Request::new(Operation::Nop), done: 0 };

/// A client's side of a work queue, with up to `SLOTS` requests.
#[derive(Debug)]
pub struct Queue<P, M, const SLOTS: usize> {
    portal: P,
    memory: M,
    limits: Limits,
    config: QueueConfig,
    slots: [Slot; SLOTS],
    /// Lists in use, a bit each.
    lists: u64,
    /// Descriptors that the device has, batches as one.
    entries: u16,
    /// Where the next poll and the next search for a free slot begin.
    next_poll: usize,
    next_free: usize,
    free: usize,
}

impl<P: Portal, M: DmaMemory, const SLOTS: usize> Queue<P, M, SLOTS> {
    /// Makes a queue over a work queue that takes what `limits` says.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn new(portal: P, memory: M, limits: Limits, config: QueueConfig) -> Result<Self, QueueError> {
        validate(&config, &limits, SLOTS)?;
        Ok(Self {
            portal,
            memory,
            limits,
            config,
            slots: [EMPTY; SLOTS],
            lists: 0,
            entries: 0,
            next_poll: 0,
            next_free: 0,
            free: SLOTS,
        })
    }

    /// What the work queue accepts.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The way to the device, for whoever made it.
    pub const fn portal_mut(&mut self) -> &mut P {
        &mut self.portal
    }

    /// Slots without a request.
    pub const fn free_slots(&self) -> usize {
        self.free
    }

    /// Descriptors that the device may be working on, batches as one. While there are any, their memory must not be reused.
    pub const fn outstanding(&self) -> u16 {
        self.entries
    }

    /// Whether no slot has a request.
    pub const fn is_idle(&self) -> bool {
        self.free == SLOTS
    }

    /// Submits a request by itself.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&mut self, request: &Request) -> Result<Ticket, SubmitError> {
        request.validate(&self.limits, false).map_err(|error| SubmitError::Request { index: 0, error })?;
        let index = self.take_slot(request, State::Single)?;
        let descriptor = self.descriptor(index);
        if let Err(error) = self.send(&descriptor) {
            self.free(index);
            return Err(error);
        }
        Ok(self.ticket(index))
    }

    /// Submits requests as one batch, and writes their tickets to `tickets`, which has room for as many. The device may execute them in
    /// any order; fences order them.
    ///
    /// # Errors
    /// [`SubmitError`]; none of them was submitted then.
    ///
    /// # Panics
    /// If `tickets` is shorter than `requests`.
    pub fn submit_batch(&mut self, requests: &[Request], tickets: &mut [Ticket]) -> Result<(), SubmitError> {
        assert!(requests.len() <= tickets.len(), "a ticket for each request");
        let list = self.check_batch(requests)?;
        let count = requests.len() as u16;
        let batch = self.take_slot(&EMPTY.request, State::Batch { list, count })?;
        let address = self.list_address(list);
        for ((request, ticket), index) in requests.iter().zip(tickets.iter_mut()).zip(0_u16..) {
            let state = State::Member { batch: batch as u16, index };
            // There are slots enough: `check_batch` has counted them.
            let slot = self.take_slot(request, state)?;
            *ticket = self.ticket(slot);
            let descriptor = self.descriptor(slot);
            let place = address + descriptor::BYTES * u64::from(index);
            for (to, word) in (place..).step_by(8).zip(descriptor.words) {
                self.memory.write(to, word);
            }
        }
        self.lists |= 1 << list;
        let operation = Operation::Batch { list: address, count: count.into() };
        let descriptor = Descriptor::new(&operation, Flags::new()).with_record(self.record_address(batch));
        if let Err(error) = self.send(&descriptor) {
            self.lists &= !(1 << list);
            tickets[..requests.len()].iter().for_each(|ticket| self.free(ticket.slot()));
            self.free(batch);
            return Err(error);
        }
        Ok(())
    }

    /// Checks a batch; the list that it can have.
    fn check_batch(&self, requests: &[Request]) -> Result<u16, SubmitError> {
        if !self.portal.takes_batches() {
            return Err(SubmitError::NoBatches);
        }
        let smallest = if self.limits.batch_of_one { 1 } else { 2 };
        let largest = usize::from(self.config.list_length);
        if !(smallest..=largest).contains(&requests.len()) || self.config.lists == 0 {
            return Err(SubmitError::BatchLength { length: requests.len(), smallest, largest });
        }
        for (index, request) in requests.iter().enumerate() {
            request.validate(&self.limits, true).map_err(|error| SubmitError::Request { index, error })?;
        }
        if requests.len() >= self.free {
            return Err(SubmitError::NoSlot { slots: SLOTS });
        }
        let list = self.lists.trailing_ones() as u16;
        if list < self.config.lists {
            Ok(list)
        } else {
            Err(SubmitError::NoList { lists: self.config.lists })
        }
    }

    /// Submits the rest of a request that waits at a page fault. It keeps its ticket.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub fn resume(&mut self, ticket: Ticket) -> Result<(), ResumeError> {
        let index = self.faulted(ticket).ok_or(ResumeError::NotFaulted)?;
        let before = self.slots[index].state;
        // Outside its batch, a fence has no meaning.
        self.slots[index].request.fence = false;
        self.slots[index].state = State::Single;
        self.clear_record(index);
        let descriptor = self.descriptor(index);
        self.send(&descriptor).inspect_err(|_| self.slots[index].state = before)?;
        Ok(())
    }

    /// Ends a request that waits at a page fault: what remains of it, for the CPU. `None` if the ticket is of no such request.
    pub fn release(&mut self, ticket: Ticket) -> Option<Operation> {
        let index = self.faulted(ticket)?;
        let rest = self.slots[index].request.operation;
        self.free(index);
        Some(rest)
    }

    fn faulted(&self, ticket: Ticket) -> Option<usize> {
        let slot = self.slots.get(ticket.slot())?;
        let waits = slot.serial == ticket.serial && matches!(slot.state, State::Faulted { .. });
        waits.then_some(ticket.slot())
    }

    /// The next request that ended or came to a page fault. `None`: none has since the last call that returned `None`.
    pub fn poll(&mut self) -> Option<Completion> {
        loop {
            let mut has_ended_batch = false;
            for _ in 0..SLOTS {
                let index = self.next_poll;
                self.next_poll = (index + 1) % SLOTS;
                let is_batch = matches!(self.slots[index].state, State::Batch { .. });
                if let Some(outcome) = self.poll_slot(index) {
                    return Some(outcome);
                }
                has_ended_batch |= is_batch && matches!(self.slots[index].state, State::Free);
            }
            // Its members have ended with it, also those that were looked at before.
            if !has_ended_batch {
                return None;
            }
        }
    }

    /// As [`poll`](Self::poll), for one request.
    pub fn poll_ticket(&mut self, ticket: Ticket) -> Option<Completion> {
        let slot = self.slots.get(ticket.slot()).filter(|slot| slot.serial == ticket.serial)?;
        if let State::Member { batch, .. } = slot.state
            // Another request may have the slot of a batch that is over.
            && matches!(self.slots[usize::from(batch)].state, State::Batch { .. })
        {
            // It may have ended with its batch, without a record.
            self.poll_slot(batch.into());
        }
        self.poll_slot(ticket.slot())
    }

    fn poll_slot(&mut self, index: usize) -> Option<Completion> {
        match self.slots[index].state {
            State::Free | State::Faulted { .. } => None,
            State::Ended(failure) => Some(self.end(index, Outcome::Failed(failure))),
            State::Batch { list, count } => {
                let record = self.copy_record(index)?;
                self.end_batch(index, list, count, &record);
                None
            }
            State::Single => {
                let record = self.copy_record(index)?;
                self.entries = self.entries.saturating_sub(1);
                Some(self.settle(index, record))
            }
            State::Member { .. } => {
                let record = self.copy_record(index)?;
                Some(self.settle(index, record))
            }
        }
    }

    /// Copies a record once, if it was written.
    fn copy_record(&mut self, index: usize) -> Option<Record> {
        let address = self.record_address(index);
        let head = self.memory.read(address);
        // A status of zero: the device has not written it.
        if record::Head::from_bits(head).status() == 0 {
            return None;
        }
        let words = [head, self.memory.read(address + 8), self.memory.read(address + 16), 0];
        Some(Record::from_words(words))
    }

    /// Acts on the record of a request.
    fn settle(&mut self, index: usize, record: Record) -> Completion {
        let slot = &mut self.slots[index];
        match check(record, &slot.request.operation, &self.limits) {
            Checked::Done(Value::Difference(at)) => {
                let at = at.saturating_add(slot.done);
                self.end(index, Outcome::Done(Value::Difference(at)))
            }
            Checked::Done(value) => self.end(index, Outcome::Done(value)),
            Checked::Failed(failure) => self.end(index, Outcome::Failed(failure)),
            Checked::Faulted { rest, address, write, reversed } => {
                let step = slot.request.operation.transfer_bytes() - rest.transfer_bytes();
                slot.done = slot.done.saturating_add(step);
                slot.request.operation = rest;
                slot.state = State::Faulted { reversed };
                let fault = Fault { address, write, bytes_done: slot.done, reversed };
                Completion { ticket: self.ticket(index), outcome: Outcome::Faulted(fault) }
            }
        }
    }

    fn end(&mut self, index: usize, outcome: Outcome) -> Completion {
        let ticket = self.ticket(index);
        self.free(index);
        Completion { ticket, outcome }
    }

    /// The batch is over: members without a record get none any more.
    fn end_batch(&mut self, batch: usize, list: u16, count: u16, record: &Record) {
        let executed = match Status::from_code(record.head.status()) {
            Some(Status::Success) => Ok(count),
            // Descriptors that were processed, the first ones (8.3.2).
            Some(Status::BatchFailed | Status::BatchPageFault) if record.head.completed() <= count.into() => {
                Ok(record.head.completed() as u16)
            }
            Some(status @ (Status::ReadError | Status::WriteError | Status::TranslationError)) => {
                Err(Failure::Device(status))
            }
            Some(status) if is_rejection(status) => Err(Failure::Rejected(status)),
            _ => Err(Failure::Nonsense(*record)),
        };
        for index in 0..SLOTS {
            let State::Member { batch: of, index: place } = self.slots[index].state else { continue };
            // A record that came after the last look at this slot is for the next poll.
            if usize::from(of) != batch || self.copy_record(index).is_some() {
                continue;
            }
            let failure = match executed {
                Ok(executed) if place >= executed => Failure::NotExecuted,
                Ok(_) => Failure::NoRecord,
                Err(failure) => failure,
            };
            self.slots[index].state = State::Ended(failure);
        }
        self.lists &= !(1 << list);
        self.entries = self.entries.saturating_sub(1);
        self.free(batch);
    }

    /// The device was stopped: requests whose records are not written end with [`Failure::Stopped`] at the next polls.
    pub fn stopped(&mut self, _stopped: &Stopped) {
        for index in 0..SLOTS {
            let has_record = self.copy_record(index).is_some();
            match self.slots[index].state {
                State::Batch { .. } if !has_record => {
                    self.slots[index].state = State::Free;
                    self.free += 1;
                }
                State::Single | State::Member { .. } if !has_record => {
                    self.slots[index].state = State::Ended(Failure::Stopped);
                }
                _ => {}
            }
        }
        self.entries = self.count_entries();
        self.lists = self.count_lists();
    }

    /// Slots whose descriptors the device has.
    fn count_entries(&self) -> u16 {
        let has = |slot: &&Slot| matches!(slot.state, State::Single | State::Batch { .. });
        self.slots.iter().filter(has).count() as u16
    }

    fn count_lists(&self) -> u64 {
        self.slots.iter().fold(0, |lists, slot| match slot.state {
            State::Batch { list, .. } => lists | 1 << list,
            _ => lists,
        })
    }

    /// Takes the queue apart.
    ///
    /// # Errors
    /// The queue itself while a slot has a request: poll, or stop the device.
    pub fn close(self) -> Result<(P, M), Self> {
        if self.is_idle() { Ok((self.portal, self.memory)) } else { Err(self) }
    }

    /// Submits a descriptor, several times if the shared work queue is full.
    fn send(&mut self, descriptor: &Descriptor) -> Result<(), SubmitError> {
        if self.entries >= self.config.entries {
            return Err(SubmitError::NoEntry { entries: self.config.entries });
        }
        for _ in 0..self.config.attempts {
            match self.portal.submit(descriptor) {
                Ok(()) => {
                    self.entries += 1;
                    return Ok(());
                }
                Err(Refused::Closed) => return Err(SubmitError::Closed),
                Err(Refused::Busy) => core::hint::spin_loop(),
            }
        }
        Err(SubmitError::Busy { attempts: self.config.attempts })
    }

    fn take_slot(&mut self, request: &Request, state: State) -> Result<usize, SubmitError> {
        for _ in 0..SLOTS {
            let index = self.next_free;
            self.next_free = (index + 1) % SLOTS;
            let slot = &mut self.slots[index];
            if slot.state == State::Free {
                *slot = Slot { state, serial: slot.serial.wrapping_add(1), request: *request, done: 0 };
                self.free -= 1;
                self.clear_record(index);
                return Ok(index);
            }
        }
        Err(SubmitError::NoSlot { slots: SLOTS })
    }

    fn free(&mut self, index: usize) {
        if self.slots[index].state != State::Free {
            self.slots[index].state = State::Free;
            self.free += 1;
        }
    }

    fn ticket(&self, index: usize) -> Ticket {
        Ticket { slot: index as u16, serial: self.slots[index].serial }
    }

    fn clear_record(&mut self, index: usize) {
        let address = self.record_address(index);
        (0..records::WORDS as u64).for_each(|word| self.memory.write(address + 8 * word, 0));
    }

    const fn record_address(&self, index: usize) -> u64 {
        self.config.records + record::BYTES * index as u64
    }

    const fn list_address(&self, list: u16) -> u64 {
        self.config.list + descriptor::BYTES * list as u64 * self.config.list_length as u64
    }

    fn descriptor(&self, index: usize) -> Descriptor {
        let request = &self.slots[index].request;
        let flags = request.flags(&self.limits);
        let plain = Descriptor::new(&request.operation, flags).with_record(self.record_address(index));
        match request.interrupt {
            Some(handle) => plain.with_interrupt(handle),
            None => plain,
        }
    }
}

/// Whether a batch with this status was not executed at all.
const fn is_rejection(status: Status) -> bool {
    !status.is_success() && !status.is_fault() && !status.is_software_error()
}

fn validate(config: &QueueConfig, limits: &Limits, slots: usize) -> Result<(), QueueError> {
    if config.attempts == 0 || config.entries == 0 || slots == 0 || slots > usize::from(u16::MAX) {
        return Err(QueueError::Nothing);
    }
    if !config.records.is_multiple_of(record::BYTES) {
        return Err(QueueError::RecordsMisaligned { address: config.records });
    }
    let inside = |address: u64, bytes: u64| match address.checked_add(bytes) {
        Some(_) => Ok(()),
        None => Err(QueueError::LeavesAddressSpace { address, bytes }),
    };
    inside(config.records, record::BYTES * slots as u64)?;
    if config.lists == 0 {
        return Ok(());
    }
    if config.lists > MAX_LISTS {
        return Err(QueueError::TooManyLists { lists: config.lists });
    }
    if config.list_length == 0 || u32::from(config.list_length) > limits.largest_batch {
        return Err(QueueError::ListTooLong { length: config.list_length, limit: limits.largest_batch });
    }
    if !config.list.is_multiple_of(descriptor::BYTES) {
        return Err(QueueError::ListMisaligned { address: config.list });
    }
    inside(config.list, descriptor::BYTES * u64::from(config.lists) * u64::from(config.list_length))
}
