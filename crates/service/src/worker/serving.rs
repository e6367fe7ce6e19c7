//! A worker's turn with its clients: takes requests from rings, writes completions and progress into them, and wakes
//! sleeping clients.
//!
//! ```text
//! slot, copied once ─┬─ plain ([`super::plain`]), until one is not ─► completion
//!                    └─ decode ─┬─ short: performed at once ───────► completion
//!                               └─ path ─ ... ─► completions, wake-ups
//! ```
//!
//! A sleeping client is woken by its wake word, and by its signal if it set one:
//!
//! ```text
//! client: raises its parked flag, polls once more ─► worker: changes the wake word, futex, and one signal ─► eventfd, io_uring
//! ```
//!
//! A signal never blocks: the eventfd is one that only the service and its processes have, and an embedded client's io_uring is
//! signalled by [`crate::signal`]. All input from clients is checked here or in the path; the parent module reports violations to the
//! control side. The work for one client per turn with the capability table locked is limited: number of requests, length
//! of their lists, and scans for cancels.

use std::os::fd::AsFd;
use std::sync::MutexGuard;

use memferry_clock::{Clock, Instant};
use memferry_kmod::ModuleEngine;
use memferry_path::{Capabilities, Path, QueueCompletion, QueueKey, Reservation};
use memferry_shm::mapping::Mapping;
use memferry_shm::queue_pair::{ServiceEnd, futex};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Completion, Failure, Operation, Outcome, Request, Task, wire};

use super::Worker;
use super::queues::{Queue, may_scan};
use super::sampling::Sampler;
use crate::MonotonicClock;
use crate::protocol::Violation;
use crate::shared::{Clients, Notice, Shared, SignalTarget};
use crate::signal::Signaller;
use crate::worker_engine::WorkerEngine;

/// Maximum number of requests taken from one queue before the next queue.
pub(super) const BATCH: usize = 32;
/// A batch ends with the request that makes it move so many bytes: others wait for it, and so do revocations.
const BATCH_BYTES: u64 = 64 << 10;
/// A batch ends with the request whose list makes so many words, which take about a slice: reading and checking them takes longer than
/// moving the bytes. A hostile client can name the same list in every request.
const BATCH_LISTED: usize = 4096;
/// Submission entries of the signaller.
const ENTRIES: u32 = 64;

impl Worker {
    /// Takes a batch of requests from one queue.
    pub(super) fn take_requests(&mut self, index: usize) -> bool {
        let turn = self.turns;
        let Some(queue) = self.queues.get_mut(index) else { return false };
        if queue.end.cancels_pending() && may_scan(turn, queue.scanned) {
            self.take_cancels(index);
        }
        let Some(queue) = self.queues.get_mut(index) else { return false };
        if !queue.end.ready() || queue.leaving.is_some() {
            return false;
        }
        queue.asked = turn;
        let mut batch = Batch::default();
        let taken = match self.take_plain(index, &mut batch) {
            Ok(Some(slot)) => {
                // The others may have to wait for the capability table.
                if batch.done > 1 {
                    self.publish_done(index);
                }
                self.take_others(index, slot, &mut batch)
            }
            taken => taken.map(drop),
        };
        self.path.end_batch();
        let Some(queue) = self.queues.get_mut(index) else { return false };
        // Room in the ring before completions, because a client that has its completion may submit at once.
        queue.end.publish_consumed();
        let flag = if batch.done > 0 { queue.end.publish_for() } else { 0 };
        if flag != 0 {
            self.waker.wake(queue, flag);
        }
        queue.counters.add_taken(batch.taken as u64);
        queue.counters.completed(batch.done, batch.failed, batch.bytes);
        let counters = &self.handle.counters;
        counters.requests.add(batch.taken as u64);
        counters.failures.add(batch.failed);
        counters.bytes.add(batch.bytes);
        if batch.memory_failed {
            self.shared.notify(Notice::MemoryFault);
        }
        if let Err(violation) = taken {
            self.close_violator(index, violation);
        }
        true
    }

    /// Gives the completions so far to the client. The count of taken requests stays: it would free the list of the request in hand,
    /// which is not read yet.
    fn publish_done(&mut self, index: usize) {
        let Some(queue) = self.queues.get_mut(index) else { return };
        let flag = queue.end.publish_for();
        if flag != 0 {
            self.waker.wake(queue, flag);
        }
    }

    /// Takes a request whose first part was taken from the ring, and those after it, with the capability table locked.
    #[inline(never)]
    fn take_others(
        &mut self,
        index: usize,
        first: wire::ShortSlot,
        batch: &mut Batch,
    ) -> Result<(), Violation> {
        let Some(queue) = self.queues.get_mut(index) else { return Ok(()) };
        let key = QueueKey(index as u32);
        let stopping = self.stopping.is_some();
        let mut table = Table { shared: &self.shared, locked: None };
        let mut next = Some(first);
        while let Some(slot) = next {
            let mut intake = Intake {
                key,
                path: &mut self.path,
                queue,
                table: &mut table,
                sampler: &mut self.sampler,
                stopping,
            };
            intake.take(&slot, batch)?;
            if batch.is_first_done() {
                let flag = publish_early(queue);
                if flag != 0 {
                    // The client can influence how long this takes, so not with the capability table locked.
                    table.unlock();
                    self.waker.wake(queue, flag);
                }
            }
            next = batch.next(queue);
        }
        Ok(())
    }

    /// Cancels requests and stops loops as the client requested.
    #[cold]
    #[inline(never)]
    fn take_cancels(&mut self, index: usize) {
        let Some(queue) = self.queues.get_mut(index) else { return };
        queue.scanned = self.turns;
        queue.asked = self.turns;
        queue.end.cancels_changed();
        let key = QueueKey(index as u32);
        let mut capabilities = Self::capabilities(&self.shared);
        self.path.cancel_where(key, |tag| queue.end.cancel_requested(tag as u32), &mut capabilities);
        self.path.stop_loops(key, |tag| queue.end.stop_requested(tag as u32));
    }

    /// Writes the progress of long requests into rings.
    pub(super) fn report_progress(&mut self) {
        let queues = &self.queues;
        let waker = &mut self.waker;
        self.path.report_progress(|key, tag, watermark| {
            let Some(queue) = queues.get(key.0 as usize) else { return };
            if queue.end.publish_progress(tag as u32, watermark.bytes, watermark.downward) {
                waker.wake(queue, 0);
            }
        });
    }

    /// Writes completions into rings and wakes sleeping clients.
    pub(super) fn deliver(&mut self) {
        if !self.path.has_completions() {
            return;
        }
        let mut failures = 0;
        let mut bytes = 0;
        let mut overruns = Vec::new();
        self.woken.clear();
        for QueueCompletion { queue: key, completion, watermarked } in self.path.take_completions() {
            let outcome = completion.outcome;
            let failed = u64::from(outcome.result.is_err());
            bytes += outcome.bytes_done;
            failures += failed;
            if outcome.result == Err(Failure::MemoryFault) {
                self.shared.notify(Notice::MemoryFault);
            }
            if self.sampler.is_running() {
                self.sampler.ended(key, completion.tag, failed == 0, &self.handle.counters.latency);
            }
            let Some(queue) = self.queues.get_mut(key.0 as usize) else { continue };
            queue.counters.completed(1, failed, outcome.bytes_done);
            if watermarked {
                queue.end.clear_progress(completion.tag as u32);
            }
            if queue.end.stage(&wire::encode_completion(&completion)).is_err() {
                // Cannot happen, because room was reserved. If it did, ending the session is better than losing a completion.
                overruns.push(key.0 as usize);
            }
            if self.woken.last() != Some(&key) {
                self.woken.push(key);
            }
        }
        for key in &self.woken {
            let Some(queue) = self.queues.get_mut(key.0 as usize) else { continue };
            let flag = queue.end.publish_for();
            if flag != 0 {
                self.waker.wake(queue, flag);
            }
        }
        self.handle.counters.failures.add(failures);
        self.handle.counters.bytes.add(bytes);
        for index in overruns {
            self.close_violator(index, Violation::RingCounts);
        }
    }
}

/// Requests taken from a queue in one turn.
#[derive(Default)]
pub(super) struct Batch {
    taken: usize,
    /// Words of the lists that they name.
    listed: usize,
    /// Requests performed at once, how many of these failed, and their bytes.
    done: u64,
    failed: u64,
    bytes: u64,
    memory_failed: bool,
}

impl Batch {
    /// Whether the batch has reached one of its limits.
    const fn is_full(&self) -> bool {
        self.taken == BATCH || self.listed >= BATCH_LISTED || self.bytes >= BATCH_BYTES
    }

    /// Takes the first part of a queue's next request, if there is one and the batch has room.
    // Called, it would pass the slot through memory.
    #[inline(always)]
    pub(super) fn next(&mut self, queue: &mut Queue) -> Option<wire::ShortSlot> {
        if self.is_full() {
            return None;
        }
        if self.taken > 0 {
            queue.end.look_ahead(self.taken == 1);
        }
        let slot = queue.end.pop_first()?;
        self.taken += 1;
        Some(slot)
    }

    /// Whether the request taken last is its first.
    #[inline]
    pub(super) const fn is_first(&self) -> bool {
        self.taken == 1
    }

    /// Whether its only request so far was done at once. A client that waits for this one completion does not wait for the rest.
    #[inline]
    const fn is_first_done(&self) -> bool {
        self.taken == 1 && self.done == 1
    }

    /// Counts a request that was done at once.
    #[inline]
    fn count(&mut self, outcome: &Outcome) {
        self.count_plain(outcome.bytes_done, outcome.result == Err(Failure::MemoryFault));
        self.failed += u64::from(outcome.result.is_err_and(|failure| failure != Failure::MemoryFault));
    }

    /// Counts a plain request, which fails only if its memory does.
    #[inline]
    pub(super) fn count_plain(&mut self, bytes: u64, memory_failed: bool) {
        self.done += 1;
        self.bytes += bytes;
        self.failed += u64::from(memory_failed);
        self.memory_failed |= memory_failed;
    }
}

/// The capability table, locked from its first use on.
struct Table<'a> {
    shared: &'a Shared,
    locked: Option<MutexGuard<'a, Capabilities<Mapping>>>,
}

impl Table<'_> {
    #[inline]
    fn lock(&mut self) -> &mut Capabilities<Mapping> {
        self.locked.get_or_insert_with(|| self.shared.for_worker())
    }

    #[inline]
    fn unlock(&mut self) {
        self.locked = None;
    }
}

/// A queue whose requests are being taken, and the state needed to admit them.
struct Intake<'a, 's> {
    key: QueueKey,
    path: &'a mut Path<WorkerEngine<ModuleEngine>>,
    queue: &'a mut Queue,
    table: &'a mut Table<'s>,
    sampler: &'a mut Sampler,
    stopping: bool,
}

impl Intake<'_, '_> {
    /// Takes one request: performs it at once, or submits it to the path.
    #[inline]
    fn take(&mut self, slot: &wire::ShortSlot, batch: &mut Batch) -> Result<(), Violation> {
        let end = &mut self.queue.end;
        let name = wire::tag_of(slot[0]);
        let tag = u64::from(name);
        let cancelled = end.cancels_asked() && end.cancel_requested(name);
        let may_start = !self.stopping && !cancelled;
        let room = completion_room(self.path, self.key, end)?;
        let mut full = None;
        let decoded = wire::decode_request(&end.whole(slot), |first, words| {
            // Most of the cost of a request with a long list is reading it.
            full = self.path.full_for(self.key);
            if full.is_some() {
                return None;
            }
            batch.listed += words;
            // Other workers wait for the table, and reading a long list takes longer than checking it.
            self.table.unlock();
            end.fetch_list(first, words)
        });
        let performed = match &decoded {
            Ok(Request { task: Task::Transfer(operation), terms }) if may_start => {
                self.path.try_at_once(self.key, room, operation, terms, self.table.lock())
            }
            _ => None,
        };
        if let Some(outcome) = performed {
            batch.count(&outcome);
            let bytes = decoded.as_ref().ok().and_then(Request::operation).map(Operation::total_bytes);
            let is_whole = outcome.result.is_ok() && outcome.value == 0 && bytes == Some(outcome.bytes_done);
            let staged = if is_whole {
                end.stage_short(wire::encode_success(name, outcome.engine))
            } else {
                end.stage(&wire::encode_completion(&Completion { tag, inherited: false, outcome }))
            };
            return staged.map_err(|_| Violation::RingCounts);
        }
        let reservation = reserve(self.path, self.key, end)?;
        let failure = match decoded {
            _ if self.stopping => Failure::ServiceStopping,
            _ if cancelled => Failure::Cancelled,
            Err(error) => full.unwrap_or(Failure::Malformed(error)),
            Ok(request) => {
                let now = request.terms.deadline.map_or(Instant::ORIGIN, |_| MonotonicClock.now());
                if self.sampler.is_due() && request.operation().is_some() {
                    self.sampler.start(self.key, tag);
                }
                self.path.submit(now, reservation, tag, &request, self.table.lock());
                if self.queue.end.cancels_asked() && self.queue.end.stop_requested(name) {
                    self.path.stop_loops(self.key, |candidate| candidate == tag);
                }
                return Ok(());
            }
        };
        self.path.refuse(reservation, tag, wire::is_linked(slot[0]), failure);
        Ok(())
    }
}

/// Completions that the queue has room for. Reads the client's count only when the known room is used up.
#[inline]
fn completion_room(
    path: &mut Path<WorkerEngine<ModuleEngine>>,
    key: QueueKey,
    end: &mut ServiceEnd<MappedWords>,
) -> Result<u32, Violation> {
    let known = end.known_completion_room();
    if path.outstanding(key) < known {
        return Ok(known);
    }
    end.completion_room().map_err(|_| Violation::RingCounts)
}

/// Reserves room for one completion. Reads the client's count only when the known room is used up.
fn reserve(
    path: &mut Path<WorkerEngine<ModuleEngine>>,
    key: QueueKey,
    end: &mut ServiceEnd<MappedWords>,
) -> Result<Reservation, Violation> {
    if let Some(reservation) = path.reserve(key, end.known_completion_room()) {
        return Ok(reservation);
    }
    let room = end.completion_room().map_err(|_| Violation::RingCounts)?;
    path.reserve(key, room).ok_or(Violation::Overrun)
}

/// Gives the completions so far of a batch to the client, with the room in the ring before them. Returns the client's flag. Every request
/// popped so far must have been read whole, with its list.
#[inline]
pub(super) fn publish_early(queue: &mut Queue) -> u64 {
    queue.end.publish_consumed();
    queue.end.publish_for()
}

/// Wakes the clients of one worker.
pub(super) struct ClientWaker {
    signaller: Option<Signaller>,
}

impl ClientWaker {
    pub(super) fn new(clients: Clients) -> Self {
        let signaller = (clients == Clients::Here).then(|| Signaller::new(ENTRIES));
        Self { signaller: signaller.and_then(Result::ok) }
    }

    /// Whether io_urings can be signalled.
    pub(super) fn signals_rings(&self) -> bool {
        self.signaller.is_some()
    }

    /// Wakes the client of a queue as its flag requests.
    pub(super) fn wake(&mut self, queue: &Queue, flag: u64) {
        queue.end.change_wake_word();
        futex::wake(queue.end.wake_word());
        if queue.end.wants_signal(flag) {
            self.signal(queue);
        }
    }

    /// Wakes a client for the last time, regardless of its flag.
    pub(super) fn wake_closed(&mut self, queue: &Queue) {
        queue.end.change_wake_word();
        futex::wake(queue.end.wake_word());
        self.signal(queue);
    }

    /// Signals the client of a queue if it set a signal.
    pub(super) fn signal(&mut self, queue: &Queue) {
        match (&queue.target, &mut self.signaller) {
            (Some(SignalTarget::Event(event)), _) => {
                // It cannot block. When the counter is full, its reader has been woken.
                let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            }
            (Some(SignalTarget::Ring(ring, user_data)), Some(signaller)) => {
                signaller.post(ring.as_fd(), *user_data);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
