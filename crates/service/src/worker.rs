//! A worker: a thread that polls its clients' rings, submits their requests to the path, and moves the bytes.
//!
//! ```text
//! turn:  commands ─ cancels ─ requests (one copy, then checks) ─ run a chunk of each ─ settle ─ completions ─ wake-ups
//!        of all queues, or with several users of the one that has used least time ([`shares`])
//! idle:  help with shared copies, spin for about one wake-up's cost, then park until a doorbell or a command
//! ```
//!
//! The worker locks the capability table only to admit requests that are not plain ([`plain`]), and to settle; never while it
//! moves chunks. For a client that violates the rules, the worker closes the queues and the control side the session. The
//! path's policy decides which request gets which engine channel.

mod plain;
mod serving;
mod shares;
pub(crate) mod threads;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant as Stopwatch};

use memferry_clock::{Clock, Instant};
use memferry_cpu::team::Activity;
use memferry_kmod::ModuleEngine;

use crate::worker_engine::WorkerEngine;
use memferry_kmod::device::ModuleMemory;
use memferry_path::{Capabilities, ChannelState, Path, QueueKey};
use memferry_shm::capability_view::Reader;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::{Fences, park};
use memferry_shm::queue_pair::ServiceEnd;
use memferry_shm::storage::MappedWords;
use memferry_transfer::SessionId;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use crate::MonotonicClock;
use crate::counters::QueueCounters;
use crate::module::Offload;
use crate::protocol::Violation;
use crate::shared::{Clients, NewQueue, Notice, Remains, Shared, SignalTarget, WorkerCommand, WorkerHandle};
use serving::ClientWaker;
use shares::{SLICE, SLOW, Shares};

use crate::scheduling::times_slept;

/// Time for which an idle worker spins: about the cost of a wake-up across cores.
const SPIN: Duration = Duration::from_micros(50);
/// Polls of the rings between reads of the clock while spinning.
const POLLS_PER_CLOCK_READ: u32 = 64;
/// Turns between samples of the status counters.
const TURNS_PER_SAMPLE: u32 = 64;
/// Epoll tokens of the worker's wake-up descriptor and of the Linux module's. Those of queues begin at 0.
const WAKE: u64 = u64::MAX;
const MODULE: u64 = u64::MAX - 1;

struct Queue {
    session: SessionId,
    number: u32,
    user: u32,
    end: Box<ServiceEnd<MappedWords>>,
    /// The client's signal, if set.
    target: Option<SignalTarget>,
    /// Readable when the doorbell rings. Never read.
    doorbell: OwnedFd,
    /// Closed: takes no requests and gets no completions. Released when its requests have ended.
    closed: bool,
    /// The turn of the last scan for cancels.
    scanned: u32,
    counters: Arc<QueueCounters>,
}

impl Queue {
    /// Whether its client has requests or cancels that may be taken in this turn.
    fn asks(&self, turn: u32) -> bool {
        let cancels = || self.end.cancels_pending() && serving::may_scan(turn, self.scanned);
        !self.closed && (self.end.ready() || cancels())
    }
}

/// Result of spinning in an idle worker.
enum Spun {
    /// A client or the control side has work.
    Work,
    /// Another worker shares a copy.
    SharedCopy,
    Nothing,
}

pub(crate) struct Worker {
    /// Its index in the copy team.
    number: usize,
    handle: Arc<WorkerHandle>,
    shared: Arc<Shared>,
    path: Path<WorkerEngine<ModuleEngine>>,
    /// The Linux module beside the CPU, if used.
    offload: Option<Offload>,
    /// Indexed by queue key.
    queues: Vec<Option<Queue>>,
    epoll: OwnedFd,
    spins: bool,
    stopping: Option<Instant>,
    /// Number of closed queues that are not released yet.
    closing: usize,
    /// Queues that get completions in this turn. A field only to reuse its allocation.
    woken: Vec<QueueKey>,
    waker: ClientWaker,
    /// For plain requests, which need no lock of the capability table.
    reader: Reader,
    shares: Shares,
    chunk_bytes: u64,
    /// Users with running requests. A field only to reuse its allocation.
    busy_users: Vec<u32>,
    turns: u32,
}

impl Worker {
    pub(crate) fn new(
        number: usize,
        handle: Arc<WorkerHandle>,
        shared: Arc<Shared>,
        path: Path<WorkerEngine<ModuleEngine>>,
        offload: Option<Offload>,
        (spins, clients, chunk_bytes): (bool, Clients, u64),
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &handle.wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        if let Some(offload) = &offload {
            // Level-triggered: the next turn takes the module's completions.
            epoll::add(&epoll, offload, epoll::EventData::new_u64(MODULE), epoll::EventFlags::IN)?;
        }
        let queues = Vec::new();
        let woken = Vec::new();
        let stopping = None;
        let closing = 0;
        let turns = 0;
        let shares = Shares::default();
        let busy_users = Vec::new();
        let waker = ClientWaker::new(clients);
        let reader = shared.view.reader().ok_or(rustix::io::Errno::NOMEM)?;
        handle.rings.store(waker.signals_rings(), Ordering::Relaxed);
        Ok(Self {
            number,
            handle,
            shared,
            path,
            offload,
            queues,
            epoll,
            spins,
            stopping,
            closing,
            woken,
            waker,
            reader,
            shares,
            chunk_bytes,
            busy_users,
            turns,
        })
    }

    /// Serves until `WorkerCommand::Stop`.
    pub(crate) fn run(mut self) {
        let mut idle_since: Option<Stopwatch> = None;
        loop {
            let worked = self.turn();
            if let Some(deadline) = self.stopping
                && self.path.idle()
                && (!worked || deadline <= MonotonicClock.now())
            {
                return self.finish();
            }
            if worked {
                if idle_since.take().is_some() {
                    self.shared.team.set_activity(self.number, Activity::Busy);
                }
                continue;
            }
            if self.spins {
                let since = *idle_since.get_or_insert_with(|| {
                    self.shared.team.set_activity(self.number, Activity::Looking);
                    Stopwatch::now()
                });
                match self.spin() {
                    Spun::Work => {
                        // Set before the turn, in which the engine counts idle workers.
                        self.shared.team.set_activity(self.number, Activity::Busy);
                        idle_since = None;
                        continue;
                    }
                    Spun::SharedCopy if self.help() => {
                        idle_since = None;
                        continue;
                    }
                    Spun::SharedCopy | Spun::Nothing if since.elapsed() < SPIN => continue,
                    Spun::SharedCopy | Spun::Nothing => {}
                }
            }
            self.shared.team.set_activity(self.number, Activity::Asleep);
            self.park();
            self.shared.team.set_activity(self.number, Activity::Busy);
            // It may have been woken to help. Its own clients come first.
            if !self.has_work() {
                self.help();
            }
            idle_since = None;
        }
    }

    /// Copies pieces of shared copies until this worker has work. Returns whether it copied any.
    fn help(&self) -> bool {
        self.shared.team.set_activity(self.number, Activity::Busy);
        self.shared.team.help(|| self.has_work())
    }

    /// Whether a client or the control side has work for this worker.
    fn has_work(&self) -> bool {
        self.has_news() || self.handle.pending.load(Ordering::Relaxed)
    }

    /// Whether a client that does not rest has requests or cancels.
    fn has_news(&self) -> bool {
        let mut queues = self.queues.iter().flatten().filter(|queue| !queue.closed);
        let rests = |queue: &Queue| self.shares.any_rests() && self.shares.rests(queue.user);
        queues.any(|queue| queue.end.has_news() && !rests(queue))
    }

    /// Polls for work for a while. Checks less than a turn does, to notice work sooner.
    fn spin(&self) -> Spun {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if self.has_work() {
                return Spun::Work;
            }
            if self.shared.team.has_work() {
                return Spun::SharedCopy;
            }
            std::hint::spin_loop();
        }
        Spun::Nothing
    }

    /// One turn; returns whether anything happened.
    fn turn(&mut self) -> bool {
        let mut worked = self.handle_commands();
        if self.shares.are_several() && self.stopping.is_none() {
            worked |= self.serve_slice();
        } else {
            for index in 0..self.queues.len() {
                worked |= self.take_requests(index);
            }
            worked |= self.advance(|path, now| path.run(now));
            self.deliver();
        }
        if let Some(offload) = &self.offload {
            offload.register(self.path.engine_mut().take_wanted());
        }
        if self.closing > 0 {
            self.reap();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_SAMPLE) {
            self.sample_counters();
        }
        worked
    }

    /// Serves the user that has used least of the worker's time for a slice of it; returns whether anything happened.
    fn serve_slice(&mut self) -> bool {
        self.busy_users.clear();
        self.shares.wake();
        // What a device does by itself, or what is suspended, asks for nothing.
        if self.path.progresses() {
            self.busy_users.extend(self.path.running_users());
        }
        let queues = &self.queues;
        let busy_users = &self.busy_users;
        let turn = self.turns;
        let asks = |index: &usize| queues[*index].as_ref().is_some_and(|queue| queue.asks(turn));
        let picked = self
            .shares
            .pick(|share| busy_users.contains(&share.user) || share.queues().iter().any(asks))
            .map(|share| (share.user, share.part_bytes, share.rotate()));
        let Some((user, part_bytes, own)) = picked else {
            // Nobody has work but users that rest. A device may have completed some, and requests may wait for a time or for an engine
            // channel.
            let rests = self.shares.any_rests() && !self.path.paces();
            let worked =
                self.advance(|path, now| if rests { path.run_for(now, None, 0) } else { path.run(now) });
            self.deliver();
            if !rests {
                return worked;
            }
            // Transfers of those that rest are no work.
            return self.path.ends_any()
                || self.path.progresses() && self.path.running_users().any(|user| !self.shares.rests(user));
        };
        let started = Stopwatch::now();
        let slept_before = times_slept();
        let waits_before = self.shared.worker_waits();
        for index in own {
            if self.take_requests(index) && started.elapsed() >= SLICE {
                break;
            }
        }
        let taken = started.elapsed();
        if self.path.paces() {
            self.shares.charge(user, taken);
            self.advance(|path, now| path.run(now));
            self.deliver();
            return true;
        }
        self.advance(|path, now| path.run_for(now, Some(user), part_bytes));
        self.deliver();
        let elapsed = started.elapsed();
        self.shares.charge(user, elapsed);
        // A preempted worker has not slept, and one that waited for the table did not wait for the client's memory.
        if elapsed >= SLOW && self.shared.worker_waits() == waits_before && times_slept() > slept_before {
            self.shares.rest(user, elapsed);
        }
        if self.busy_users.contains(&user) {
            self.shares.adapt(user, elapsed.saturating_sub(taken), self.chunk_bytes);
        }
        true
    }

    /// Lets requests make progress by `run`, and settles those that ended; returns whether anything happened.
    fn advance(&mut self, run: impl FnOnce(&mut Path<WorkerEngine<ModuleEngine>>, Instant) -> bool) -> bool {
        if self.path.idle() && !self.path.must_settle() {
            return false;
        }
        let mut worked = self.path.progresses();
        let timed = self.path.needs_time() || self.stopping.is_some();
        let now = if timed { MonotonicClock.now() } else { Instant::ORIGIN };
        if self.stopping.is_some_and(|deadline| deadline <= now) {
            self.path.cancel_all(&mut Self::capabilities(&self.shared));
        }
        self.path.ring_doorbell();
        if run(&mut self.path, now) {
            self.report_progress();
        }
        // The policy may have resumed suspended requests.
        worked |= self.path.progresses();
        worked | self.settle(now)
    }

    fn sample_counters(&self) {
        let busy = self.path.channel_states().iter().filter(|state| **state == ChannelState::Busy).count();
        self.handle.counters.busy.set(busy as u64);
        self.handle.counters.waiting.set(self.path.waiting() as u64);
        self.handle.counters.module.update(self.path.engine());
        for (class, bytes) in self.handle.counters.classes.iter().zip(self.path.moved_by_class()) {
            class.set(bytes);
        }
        for (key, queue) in (0..).zip(&self.queues) {
            if let Some(queue) = queue {
                queue.counters.set_waiting(self.path.waiting_of(QueueKey(key)));
            }
        }
    }

    fn capabilities(shared: &Shared) -> MutexGuard<'_, Capabilities<Mapping>> {
        shared.for_worker()
    }

    /// Completes finished requests and starts waiting ones; returns whether any started.
    fn settle(&mut self, now: Instant) -> bool {
        if !self.path.must_settle() {
            return false;
        }
        let mut capabilities = Self::capabilities(&self.shared);
        let started = self.path.settle(now, &mut capabilities);
        let news = capabilities.has_news();
        drop(capabilities);
        if news {
            self.shared.notify(Notice::Settled);
        }
        started
    }

    /// Closes the queues of a session that violated a rule, and notifies the control side.
    fn close_violator(&mut self, index: usize, violation: Violation) {
        let Some(session) = self.queues[index].as_ref().map(|queue| queue.session) else { return };
        self.close_where(|queue| queue.session == session);
        self.shared.notify(Notice::Violation(session, violation));
    }

    /// Closes the selected queues and cancels their requests.
    fn close_where(&mut self, selected: impl Fn(&Queue) -> bool) {
        let mut capabilities = Self::capabilities(&self.shared);
        let mut closed = Vec::new();
        for (index, slot) in self.queues.iter_mut().enumerate() {
            let Some(queue) = slot.as_mut().filter(|queue| !queue.closed && selected(queue)) else {
                continue;
            };
            self.path.close_queue(QueueKey(index as u32), &mut capabilities);
            queue.closed = true;
            queue.end.close();
            closed.push(index);
        }
        let news = capabilities.has_news();
        drop(capabilities);
        self.closing += closed.len();
        for index in closed {
            let Some(queue) = &self.queues[index] else { continue };
            // The client can influence how long this takes, so not with the capability table locked.
            self.waker.wake_closed(queue);
            // The client may keep the doorbell open, which must not wake this worker for a closed queue.
            let _ = epoll::delete(&self.epoll, &queue.doorbell);
        }
        if news {
            self.shared.notify(Notice::Settled);
        }
    }

    /// Handles commands of the control side; returns whether there were any.
    fn handle_commands(&mut self) -> bool {
        if !self.handle.pending.load(Ordering::Relaxed) {
            return false;
        }
        let commands = self.handle.take();
        let revoked = self.handle.revoked.swap(false, Ordering::Relaxed);
        let any = revoked || !commands.is_empty();
        for command in commands {
            match command {
                WorkerCommand::Open(opened) => {
                    let NewQueue { session, number, user, class, end, doorbell, counters } = opened;
                    let key = self.path.open_queue(session, user);
                    self.path.grant_class(key, class);
                    let target = None;
                    let closed = false;
                    let scanned = serving::never_scanned(self.turns);
                    let queue =
                        Queue { session, number, user, end, target, doorbell, closed, scanned, counters };
                    self.open(key, queue);
                }
                WorkerCommand::Notify { session, number, target } => {
                    self.set_signal(session, number, target);
                }
                WorkerCommand::CloseQueue { session, number } => {
                    self.close_where(|queue| queue.session == session && queue.number == number);
                }
                WorkerCommand::CloseSession { session } => self.close_where(|queue| queue.session == session),
                WorkerCommand::Policy(policy) => self.path.set_policy(policy),
                WorkerCommand::Registered(mapping, memory) => {
                    if let Some(late) = self.path.engine_mut().registered(&mapping, memory) {
                        self.unpin(vec![mapping], vec![late]);
                    }
                }
                WorkerCommand::Forget(frames) => {
                    let engine = self.path.engine_mut();
                    let memory = frames.iter().filter_map(|frame| engine.forget(frame)).collect();
                    self.unpin(frames, memory);
                }
                WorkerCommand::Stop { deadline } => {
                    self.stopping = Some(deadline);
                    let mut capabilities = Self::capabilities(&self.shared);
                    self.path.stop(&mut capabilities);
                }
            }
        }
        if revoked {
            self.path.cancel_revoked(&mut Self::capabilities(&self.shared));
        }
        if any {
            self.reap();
            if Self::capabilities(&self.shared).has_news() {
                self.shared.notify(Notice::Settled);
            }
        }
        any
    }

    /// Sets the signal of a queue. Signals at once if completions arrived since the client raised its flag, or if the queue
    /// is closed.
    fn set_signal(&mut self, session: SessionId, number: u32, target: SignalTarget) {
        let matches = |queue: &Option<Queue>| {
            queue.as_ref().is_some_and(|queue| queue.session == session && queue.number == number)
        };
        let index = self.queues.iter().position(matches);
        let Some(queue) = index.and_then(|index| self.queues[index].as_mut()) else {
            return self.shared.notify(Notice::Discarded(target));
        };
        queue.target = Some(target);
        if queue.closed || queue.end.wants_signal(queue.end.client_flag()) {
            self.waker.signal(queue);
        }
    }

    /// Passes memory that no transfer of this worker uses to the registrar.
    fn unpin(&self, frames: Vec<Mapping>, memory: Vec<ModuleMemory>) {
        if let Some(offload) = &self.offload {
            offload.release(frames, memory);
        }
    }

    fn open(&mut self, key: QueueKey, queue: Queue) {
        let index = key.0 as usize;
        let session = queue.session;
        let number = queue.number;
        // Edge-triggered: every ring is an event, and nothing has to be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(key.0));
        let added = epoll::add(&self.epoll, &queue.doorbell, data, flags);
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, || None);
        }
        self.release(index);
        self.shares.add(queue.user, index);
        self.queues[index] = Some(queue);
        if added.is_err() {
            // Without its doorbell the queue cannot wake the worker, so the client finds it closed.
            self.close_where(|queue| queue.session == session && queue.number == number);
        }
    }

    /// Gives up a queue. The control side may reuse its memory, and has the rest dropped where nobody waits for it.
    fn release(&mut self, index: usize) {
        let Some(queue) = self.queues[index].take() else { return };
        self.closing -= usize::from(queue.closed);
        let Queue { session, number, user, end, target, doorbell, counters, .. } = queue;
        self.shares.remove(user, index);
        counters.close();
        let remains = Box::new(Remains { _end: end, _doorbell: doorbell, _target: target });
        self.shared.notify(Notice::QueueReleased { session, number, remains });
    }

    /// Releases closed queues that have no running requests.
    fn reap(&mut self) {
        for index in 0..self.queues.len() {
            let closed = self.queues[index].as_ref().is_some_and(|queue| queue.closed);
            if closed && self.path.queue_gone(QueueKey(index as u32)) {
                self.release(index);
            }
        }
        let open = self.queues.iter().flatten().count();
        self.handle.counters.queues.set(open as u64);
    }

    /// Sleeps until a doorbell or a command, unless one arrived meanwhile.
    fn park(&mut self) {
        self.reap();
        self.sample_counters();
        for queue in self.queues.iter_mut().flatten() {
            queue.end.publish_all_consumed();
        }
        // Deadlines of waiting requests pass although no event arrives. So does the deadline of a stop while requests are
        // suspended.
        let wake = self.path.next_wake().into_iter().chain(self.stopping).min();
        let limit = wake.map(|wake| {
            let left = wake.picoseconds().saturating_sub(MonotonicClock.now().picoseconds());
            Duration::from_nanos(u64::try_from(left / 1000).unwrap_or(u64::MAX).saturating_add(1))
        });
        let rest = self.shares.wake().map(|end| end.saturating_duration_since(Stopwatch::now()));
        let limit = limit.into_iter().chain(rest).min();
        let live = || self.queues.iter().flatten().filter(|queue| !queue.closed);
        let all_full = live().all(|queue| queue.end.fences() == Fences::Full);
        let fences = if all_full { Fences::Full } else { Fences::Asymmetric };
        let slept = park(
            |value| live().for_each(|queue| queue.end.set_parked(value)),
            fences,
            || self.handle.pending.load(Ordering::Acquire) || self.has_news(),
            || self.sleep(limit),
        );
        if slept {
            self.handle.counters.parks.add(1);
        }
    }

    fn sleep(&self, limit: Option<Duration>) {
        let mut space = [std::mem::MaybeUninit::uninit(); 16];
        let limit = limit.and_then(|limit| rustix::event::Timespec::try_from(limit).ok());
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, limit.as_ref()) else { return };
        if events.iter().any(|event| event.data.u64() == WAKE) {
            let _ = rustix::io::read(&self.handle.wake, &mut [0u8; 8]);
        }
    }

    /// Last action: refuses requests that have arrived, then wakes every client for the last time.
    fn finish(mut self) {
        for index in 0..self.queues.len() {
            let capacity = self.queues[index].as_ref().map_or(0, |queue| queue.end.capacity() as usize);
            // At most one full ring, so that a client that keeps submitting cannot delay the end.
            for _ in 0..capacity.div_ceil(serving::BATCH) {
                self.take_requests(index);
                self.settle(MonotonicClock.now());
                self.deliver();
            }
        }
        self.close_where(|_| true);
        for index in 0..self.queues.len() {
            self.release(index);
        }
        for command in self.handle.take() {
            if let WorkerCommand::Notify { target, .. } = command {
                self.shared.notify(Notice::Discarded(target));
            }
        }
    }
}
