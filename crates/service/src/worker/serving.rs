//! One turn of a worker for its clients: takes requests out of rings, writes completions and progress into them, and wakes
//! sleeping clients.
//!
//! ```text
//! slot, copied once ─ decode ─┬─ short: done at once ─► completion
//!                             └─ path ─ ... ─► completions, wake-ups
//! client: raises its parked flag, looks once more ─► worker: changes the wake word, futex, and one signal ─► eventfd, io_uring
//! ```
//!
//! What a client writes is checked here or in the path; the parent module reports a broken rule to the control side. The work for
//! one client in a turn, under the lock that all workers share, is bounded: requests, the lists they name, and looks for cancels.
//! A signal never blocks ([`crate::signal`]). Each queue has at most one on its way: while a client's own doing delays it, that
//! client needs no second one.

use std::os::fd::AsFd;

use memferry_clock::{Clock, Instant};
use memferry_kmod::ModuleEngine;
use memferry_path::{Capabilities, Path, QueueCompletion, QueueKey, Reservation};
use memferry_shm::mapping::Mapping;
use memferry_shm::queue_pair::{LIST_WORDS, ServiceEnd, futex};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Completion, Failure, Request, Task, Terms, wire};

use super::{Queue, Worker};
use crate::MonotonicClock;
use crate::protocol::Violation;
use crate::shared::{Notice, Target};
use crate::signal::Signaller;
use crate::worker_engine::WorkerEngine;

/// Requests taken from one queue before the next is looked at.
pub(super) const BATCH: usize = 32;
/// Signals that may be on their way before more have to wait: many times what one user has queues.
const ENTRIES: u32 = 1024;
/// Turns from one look for a queue's cancels to the next: a client may tell of new ones in every turn.
const TURNS_PER_LOOK: u32 = 16;

/// Whether it is time again, in this turn, to look for cancels.
const fn may_look(turn: u32, looked: u32) -> bool {
    turn.wrapping_sub(looked) >= TURNS_PER_LOOK
}

/// When a queue that is opened in this turn was looked at: so long ago that its first cancel is seen at once.
pub(super) const fn never_looked(turn: u32) -> u32 {
    turn.wrapping_sub(TURNS_PER_LOOK)
}

impl Worker {
    /// Takes what one client asks for.
    pub(super) fn take_requests(&mut self, index: usize) -> bool {
        self.take_cancels(index);
        let Some(queue) = self.queues[index].as_mut().filter(|queue| !queue.dead) else { return false };
        if !queue.end.ready() {
            return false;
        }
        let key = QueueKey(index as u32);
        let mut capabilities = Self::capabilities(&self.shared);
        let mut batch = Batch::default();
        let mut violation = None;
        let mut slot = [0; wire::SUBMISSION_WORDS];
        while !batch.is_full() {
            if batch.taken > 0 {
                queue.end.look_ahead(batch.taken == 1);
            }
            if !queue.end.pop_into(&mut slot) {
                break;
            }
            batch.taken += 1;
            let stopping = self.stopping.is_some();
            let mut taking =
                Taking { key, path: &mut self.path, queue, capabilities: &mut capabilities, stopping };
            if let Err(broken) = taking.take(&slot, &mut batch) {
                violation = Some(broken);
                break;
            }
            if batch.taken == 1 && batch.done == 1 {
                // Who waits for a single answer is not kept waiting for what may follow.
                queue.end.tell_consumed();
                let flag = queue.end.publish_for();
                if flag != 0 {
                    // How long that takes is in part the client's doing: never with the lock that all workers share.
                    drop(capabilities);
                    self.waking.wake(index, queue, flag);
                    capabilities = Self::capabilities(&self.shared);
                }
            }
        }
        drop(capabilities);
        // First that there is room, then what made it: a client that has its completion may submit at once.
        queue.end.tell_consumed();
        let flag = if batch.done > 0 { queue.end.publish_for() } else { 0 };
        if flag != 0 {
            self.waking.wake(index, queue, flag);
        }
        queue.counters.took(batch.taken as u64);
        queue.counters.completed(batch.done, batch.failed, batch.bytes);
        let counters = &self.handle.counters;
        counters.requests.add(batch.taken as u64);
        counters.failures.add(batch.failed);
        counters.bytes.add(batch.bytes);
        if batch.memory_failed {
            self.shared.notify(Notice::MemoryFault);
        }
        if let Some(violation) = violation {
            self.violate(index, violation);
        }
        true
    }

    /// Ends early what one client wants to end so.
    #[inline]
    fn take_cancels(&mut self, index: usize) {
        let Some(queue) = self.queues[index].as_mut().filter(|queue| !queue.dead) else { return };
        if !queue.end.cancels_pending() || !may_look(self.turns, queue.looked) {
            return;
        }
        queue.looked = self.turns;
        queue.end.cancels_changed();
        let key = QueueKey(index as u32);
        let mut capabilities = Self::capabilities(&self.shared);
        self.path.cancel_where(key, |tag| queue.end.cancel_requested(tag), &mut capabilities);
        self.path.stop_loops(key, |tag| queue.end.stop_requested(tag));
    }

    /// Reports to clients how far their long requests have come.
    pub(super) fn report_progress(&mut self) {
        let queues = &self.queues;
        let waking = &mut self.waking;
        self.path.report_progress(|key, tag, watermark| {
            let Some(queue) = queues.get(key.0 as usize).and_then(Option::as_ref) else { return };
            if !queue.dead && queue.end.tell_progress(tag, watermark.bytes, watermark.downward) {
                waking.wake(key.0 as usize, queue, 0);
            }
        });
    }

    /// Writes completions into rings and wakes who sleeps.
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
            let Some(queue) = self.queues.get_mut(key.0 as usize).and_then(Option::as_mut) else { continue };
            queue.counters.completed(1, failed, outcome.bytes_done);
            if watermarked {
                queue.end.clear_progress(completion.tag);
            }
            if queue.end.stage(&wire::encode_completion(&completion)).is_err() {
                // Room was reserved, so this cannot be. Were it so, the session's end would tell; a lost completion would not.
                overruns.push(key.0 as usize);
            }
            if self.woken.last() != Some(&key) {
                self.woken.push(key);
            }
        }
        for key in &self.woken {
            let Some(queue) = self.queues.get_mut(key.0 as usize).and_then(Option::as_mut) else { continue };
            let flag = queue.end.publish_for();
            if flag != 0 {
                self.waking.wake(key.0 as usize, queue, flag);
            }
        }
        self.handle.counters.failures.add(failures);
        self.handle.counters.bytes.add(bytes);
        for index in overruns {
            if self.queues[index].as_ref().is_some_and(|queue| !queue.dead) {
                self.violate(index, Violation::RingCounts);
            }
        }
    }
}

/// What was taken from a queue in one turn.
#[derive(Default)]
struct Batch {
    taken: usize,
    /// Words of the lists they name.
    listed: usize,
    /// Of these, done at once, how many of them failed, and their bytes.
    done: u64,
    failed: u64,
    bytes: u64,
    memory_failed: bool,
}

impl Batch {
    /// Whether others come first now. Lists of a client that keeps to the rules are never longer than the area they lie in; one
    /// that does not may name the same list in every request.
    const fn is_full(&self) -> bool {
        self.taken == BATCH || self.listed > LIST_WORDS
    }
}

/// A queue whose requests are being taken, and what they are checked against.
struct Taking<'a> {
    key: QueueKey,
    path: &'a mut Path<WorkerEngine<ModuleEngine>>,
    queue: &'a mut Queue,
    capabilities: &'a mut Capabilities<Mapping>,
    stopping: bool,
}

impl Taking<'_> {
    /// Takes one request: does it at once, or hands it to the path.
    #[inline]
    fn take(&mut self, slot: &wire::SubmissionSlot, batch: &mut Batch) -> Result<(), Violation> {
        let end = &mut self.queue.end;
        let tag = wire::tag_of(slot);
        let cancelled = end.cancels_asked() && end.cancel_requested(tag);
        let may_start = !self.stopping && !cancelled;
        let room = end.known_completion_room();
        // Most requests are plain, and need no look at terms that nobody set.
        let decoded = match wire::decode_plain(slot).filter(|_| may_start) {
            Some(operation) => Ok(Request { task: Task::Transfer(operation), terms: Terms::PLAIN }),
            None => wire::decode_request(slot, |first, words| {
                batch.listed += words;
                end.fetch_list(first, words)
            }),
        };
        let performed = match &decoded {
            Ok(Request { task: Task::Transfer(operation), terms }) if may_start => {
                self.path.try_at_once(self.key, room, operation, terms, self.capabilities)
            }
            _ => None,
        };
        if let Some(outcome) = performed {
            batch.done += 1;
            batch.bytes += outcome.bytes_done;
            batch.failed += u64::from(outcome.result.is_err());
            batch.memory_failed |= outcome.result == Err(Failure::MemoryFault);
            let completion = Completion { tag, inherited: false, outcome };
            return end.stage(&wire::encode_completion(&completion)).map_err(|_| Violation::RingCounts);
        }
        let reservation = reserve(self.path, self.key, end)?;
        let failure = match decoded {
            _ if self.stopping => Failure::ServiceStopping,
            _ if cancelled => Failure::Cancelled,
            Err(error) => Failure::Malformed(error),
            Ok(request) => {
                let now = request.terms.deadline.map_or(Instant::ORIGIN, |_| MonotonicClock.now());
                self.path.submit(now, reservation, tag, &request, self.capabilities);
                if self.queue.end.cancels_asked() && self.queue.end.stop_requested(tag) {
                    self.path.stop_loops(self.key, |candidate| candidate == tag);
                }
                return Ok(());
            }
        };
        self.path.refuse(reservation, tag, wire::is_linked(slot), failure);
        Ok(())
    }
}

/// Makes room for one completion, looking at the client's count only when the known room is used up.
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

#[cfg(test)]
mod tests;
