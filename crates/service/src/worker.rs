//! A worker: a thread that polls its clients' rings, submits their requests to the path, and moves the bytes.
//!
//! ```text
//! turn:  commands ─ cancels ─ requests (one copy, then checks) ─ run a chunk ─ settle ─ completions ─ wake-ups
//!        of all awake queues, or with several users of the one that has used least time ([`shares`])
//!        dormant queues: a look at the next few ([`queues`])
//! idle:  help with shared copies, spin for about one wake-up's cost, then park until a doorbell or a command
//! ```
//!
//! The worker locks the capability table only to admit requests that are not plain ([`plain`]), and to settle; never while it
//! moves chunks. For a client that violates the rules, the worker closes the queues and the control side the session. The
//! path's policy decides which request gets which engine channel.

mod moving;
mod pace;
mod plain;
mod queues;
mod sampling;
mod serving;
mod shares;
pub(crate) mod threads;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant as Stopwatch};

use memferry_clock::{Clock, Instant};
use memferry_cpu::team::Activity;
use memferry_external::Lost;
use memferry_kmod::ModuleEngine;

use crate::worker_engine::WorkerEngine;
use memferry_kmod::device::ModuleMemory;
use memferry_path::{Capabilities, ChannelState, Path, QueueKey};
use memferry_shm::capability_view::Reader;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::{Fences, park};
use memferry_transfer::SessionId;
use moving::Meter;
use queues::{Queue, Queues};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use sampling::Sampler;

use crate::MonotonicClock;
use crate::engine_id::EngineId;
use crate::module::Offload;
use crate::protocol::Violation;
use crate::shared::{
    Clients, NewQueue, Notice, Remains, Shared, SignalTarget, WorkerCommand, WorkerHandle, table_waits,
};
use pace::{LOOKS, LookPace};
use serving::ClientWaker;
use shares::{REST, SLICE, SLOW, Shares};

use crate::scheduling::times_slept;

/// Time for which an idle worker spins: about the cost of a wake-up across cores.
const SPIN: Duration = Duration::from_micros(50);
/// The same while an engine process has a job: two wake-ups, of the worker and then of the client, would lengthen jobs of up to some
/// milliseconds noticeably.
const SPIN_FOR_EXTERNALS: Duration = Duration::from_millis(2);
/// Polls of the rings between reads of the clock while spinning, with one awake queue.
const POLLS_PER_CLOCK_READ: usize = 64;
/// Turns between samples of the status counters.
const TURNS_PER_SAMPLE: u32 = 64;
/// How long a stopping worker waits for engine processes to end cancelled requests.
const LAST_MOMENT: Duration = Duration::from_millis(200);
/// Looks between two pieces of another worker's copy, of 64 KiB and more.
const LOOKS_PER_PIECE: usize = 128;

/// Whether a worker spins before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spins {
    No,
    /// For [`SPIN`].
    Shortly,
    /// And for [`SPIN_FOR_EXTERNALS`] while an engine process has a job.
    ForExternals,
}

impl Spins {
    /// For the worker with this number, on a machine with so many CPUs.
    fn of(number: usize, cpus: usize) -> Self {
        match cpus.saturating_sub(number) {
            // One on the last CPU would take it from its own clients.
            0 | 1 => Self::No,
            // The engine process, the client and what it computes meanwhile need three.
            2 | 3 => Self::Shortly,
            _ => Self::ForExternals,
        }
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
    queues: Queues,
    pace: LookPace,
    spins: Spins,
    stopping: Option<Instant>,
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
    /// When it helps others with their copies again.
    helps_from: Option<Stopwatch>,
    /// `None` with a single worker, whose queues cannot move.
    meter: Option<Meter>,
    /// Queues that go to another worker when their requests have ended.
    leaving: Vec<usize>,
    sampler: Sampler,
}

impl Worker {
    /// `None` if the capability view has no room for another reader.
    pub(crate) fn new(
        number: usize,
        handle: Arc<WorkerHandle>,
        shared: Arc<Shared>,
        path: Path<WorkerEngine<ModuleEngine>>,
        offload: Option<Offload>,
        (spins, clients, chunk_bytes): (Spins, Clients, u64),
    ) -> Option<Self> {
        let queues = Queues::default();
        let pace = LookPace::default();
        let woken = Vec::new();
        let stopping = None;
        let turns = 0;
        let meter = (shared.workers.len() > 1).then(Meter::new);
        let leaving = Vec::new();
        let helps_from = None;
        let sampler = Sampler::default();
        let shares = Shares::default();
        let busy_users = Vec::new();
        let waker = ClientWaker::new(clients);
        let reader = shared.view.reader()?;
        handle.rings.store(waker.signals_rings(), Ordering::Relaxed);
        Some(Self {
            number,
            handle,
            shared,
            path,
            offload,
            queues,
            pace,
            spins,
            stopping,
            woken,
            waker,
            reader,
            shares,
            chunk_bytes,
            busy_users,
            turns,
            helps_from,
            meter,
            leaving,
            sampler,
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
                if let Some(since) = idle_since.take() {
                    self.idled(since);
                    self.shared.team.set_activity(self.number, Activity::Busy);
                }
                if self.spins != Spins::No && self.path.idle() {
                    self.glance();
                }
                continue;
            }
            if self.spins != Spins::No {
                let since = *idle_since.get_or_insert_with(|| {
                    self.idles(Activity::Looking);
                    Stopwatch::now()
                });
                match self.spin() {
                    Spun::Work => {
                        if let Some(meter) = &mut self.meter {
                            meter.idled_shortly(since);
                        }
                        // Set before the turn, in which the engine counts idle workers.
                        self.shared.team.set_activity(self.number, Activity::Busy);
                        idle_since = None;
                        continue;
                    }
                    Spun::SharedCopy if self.help() => {
                        self.idled(since);
                        idle_since = None;
                        continue;
                    }
                    Spun::SharedCopy | Spun::Nothing if since.elapsed() < self.spin_limit() => continue,
                    Spun::SharedCopy | Spun::Nothing => {}
                }
            }
            self.idles(Activity::Asleep);
            let since = idle_since.unwrap_or_else(Stopwatch::now);
            self.park();
            self.shared.team.set_activity(self.number, Activity::Busy);
            // It may have been woken to help. Its own clients come first.
            if !self.has_work(LOOKS) {
                self.help();
            }
            self.idled(since);
            idle_since = None;
        }
    }

    /// Looks for work before a turn that would find nothing: that takes longer, and the client's next request would wait for it. The
    /// time counts as idle.
    fn glance(&mut self) {
        let is_alone = self.meter.is_none();
        let since = self.meter.as_mut().and_then(Meter::samples_glance);
        if !is_alone {
            self.idles(Activity::Looking);
        }
        let found = self.spin();
        if let (Some(meter), Some(since)) = (&mut self.meter, since) {
            meter.glanced(since);
        }
        if !is_alone {
            self.shared.team.set_activity(self.number, Activity::Busy);
        }
        if let Spun::SharedCopy = found {
            self.help();
        }
    }

    fn spin_limit(&self) -> Duration {
        let is_long = self.spins == Spins::ForExternals && self.path.engine().externals_are_busy();
        if is_long { SPIN_FOR_EXTERNALS } else { SPIN }
    }

    fn idled(&mut self, since: Stopwatch) {
        if let Some(meter) = &mut self.meter {
            meter.idled(since);
        }
    }

    /// Copies pieces of shared copies until this worker has work. Returns whether it copied any.
    ///
    /// A worker that had to sleep for their memory helps nobody for a while: its own clients must not wait for pages of others.
    fn help(&mut self) -> bool {
        self.shared.team.set_activity(self.number, Activity::Busy);
        if self.refuses_help() {
            return false;
        }
        let started = Stopwatch::now();
        let slept_before = times_slept();
        let helped = self.shared.team.help(|| self.has_work(LOOKS_PER_PIECE));
        let elapsed = started.elapsed();
        self.helps_from =
            (elapsed >= SLOW && times_slept() > slept_before).then(|| started + elapsed * (REST + 1));
        helped
    }

    fn refuses_help(&self) -> bool {
        self.helps_from.is_some_and(|from| Stopwatch::now() < from)
    }

    /// Tells the team what a worker without work does, or that it does not help.
    fn idles(&self, activity: Activity) {
        let activity = if self.refuses_help() { Activity::Busy } else { activity };
        self.shared.team.set_activity(self.number, activity);
    }

    /// Whether a client or the control side has work for this worker, as far as a look at so many dormant queues shows.
    fn has_work(&self, looks: usize) -> bool {
        self.has_news(looks) || self.handle.pending.load(Ordering::Relaxed)
    }

    /// Whether a client that does not rest has requests or cancels, as far as a look at so many dormant queues shows.
    fn has_news(&self, mut looks: usize) -> bool {
        self.queues.awake_have_news(|user| self.rests(user))
            || self.queues.look(&mut looks, |user| self.rests(user)).is_some()
            || self.path.engine().externals_have_news()
    }

    /// Whether the worker serves others before this user.
    #[inline]
    fn rests(&self, user: u32) -> bool {
        self.shares.any_rests() && self.shares.rests(user)
    }

    /// Polls for work for a while. Checks less than a turn does, to notice work sooner.
    fn spin(&self) -> Spun {
        // With many awake queues a poll takes long.
        let polls = POLLS_PER_CLOCK_READ / self.queues.awake().len().clamp(1, POLLS_PER_CLOCK_READ);
        for _ in 0..polls {
            if self.has_work(LOOKS) {
                return Spun::Work;
            }
            if self.shared.team.has_work() {
                return Spun::SharedCopy;
            }
            // Looks at dormant queues are a pause, too, and a round of them should be short.
            if self.queues.dormant() == 0 {
                std::hint::spin_loop();
            }
        }
        Spun::Nothing
    }

    /// One turn; returns whether anything happened.
    fn turn(&mut self) -> bool {
        let mut worked = self.handle.pending.load(Ordering::Relaxed) && self.handle_commands();
        self.rotate();
        let timed = self.meter.as_mut().is_some_and(Meter::times_turn);
        if self.shares.are_several() && self.stopping.is_none() {
            worked |= self.serve_slice(timed);
        } else {
            // Violations take queues out of the list meanwhile.
            let mut at = 0;
            while let Some(index) = self.queues.awake().get(at).copied() {
                worked |= self.take_requests_timed(index, timed);
                at += 1;
            }
            let running = self.time_running(None, timed);
            worked |= self.advance(|path, now| path.run(now));
            self.deliver();
            self.charge_running(running);
        }
        if !self.leaving.is_empty() {
            self.hand_over_quiet();
        }
        if timed {
            self.balance();
        }
        if let Some(offload) = &self.offload {
            offload.register(self.path.engine_mut().take_wanted());
        }
        if self.path.engine().has_externals() {
            worked |= self.look_after_externals();
        }
        if !self.queues.closing().is_empty() {
            self.reap();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_SAMPLE) {
            self.sample_counters();
        }
        let shares = &mut self.shares;
        self.queues.search(self.turns, |index, queue, awake| {
            if awake { shares.rouse(queue.user, index) } else { shares.forget(queue.user, index) }
        });
        if self.queues.dormant() > 0 {
            self.pace.end_turn();
        }
        worked
    }

    /// Looks at the next dormant queues, and makes those awake that have requests or cancels.
    #[inline]
    fn rotate(&mut self) {
        if self.queues.dormant() == 0 {
            return;
        }
        let mut looks = self.pace.looks().min(self.queues.dormant());
        loop {
            let rests = |user| self.shares.any_rests() && self.shares.rests(user);
            let Some(index) = self.queues.look(&mut looks, rests) else { return };
            self.rouse(index);
        }
    }

    /// Makes a queue awake, if it is dormant.
    fn rouse(&mut self, index: usize) {
        if let Some(user) = self.queues.rouse(index, self.turns) {
            self.shares.rouse(user, index);
        }
    }

    /// Serves the user that has used least of the worker's time for a slice of it; returns whether anything happened.
    fn serve_slice(&mut self, timed: bool) -> bool {
        self.busy_users.clear();
        self.shares.wake();
        // What a device does by itself, or what is suspended, asks for nothing.
        if self.path.progresses() {
            self.busy_users.extend(self.path.running_users());
        }
        let queues = &self.queues;
        let busy_users = &self.busy_users;
        let turn = self.turns;
        let asks = |index: &usize| queues.get(*index).is_some_and(|queue| queue.asks(turn));
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
        let waits_before = table_waits();
        for index in own {
            if self.take_requests_timed(index, timed) && started.elapsed() >= SLICE {
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
        let running = self.time_running(Some(user), timed);
        self.advance(|path, now| path.run_for(now, Some(user), part_bytes));
        self.deliver();
        self.charge_running(running);
        let elapsed = started.elapsed();
        self.shares.charge(user, elapsed);
        // A preempted worker has not slept, and one that waited for the table did not wait for the client's memory.
        let waits = table_waits();
        let own = elapsed.saturating_sub(waits.time - waits_before.time);
        if own >= SLOW && times_slept() - slept_before > waits.sleeps - waits_before.sleeps {
            self.shares.rest(user, own);
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
        if self.stopping.is_some_and(|deadline| deadline.after(LAST_MOMENT) <= now) {
            self.path.engine_mut().give_up_externals();
        }
        self.path.ring_doorbell();
        if run(&mut self.path, now) {
            self.report_progress();
        }
        // The policy may have resumed suspended requests.
        worked |= self.path.progresses();
        worked | self.settle(now)
    }

    fn sample_counters(&mut self) {
        let busy = self.path.channel_states().iter().filter(|state| **state == ChannelState::Busy).count();
        self.handle.counters.busy.set(busy as u64);
        self.handle.counters.waiting.set(self.path.waiting() as u64);
        self.handle.counters.module.update(self.path.engine());
        self.count_externals();
        self.sampler.begin(&self.handle.counters.latency);
        for (class, bytes) in self.handle.counters.classes.iter().zip(self.path.moved_by_class()) {
            class.set(bytes);
        }
        let queues = &self.queues;
        self.path.report_waiting(|key, waiting| {
            if let Some(queue) = queues.get(key.0 as usize) {
                queue.counters.set_waiting(waiting);
            }
        });
    }

    /// Adds what engine processes have done to their counters.
    fn count_externals(&mut self) {
        for (id, counts) in self.path.engine_mut().take_external_counts() {
            self.shared.count_external(id, counts);
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
        let Some(session) = self.queues.get(index).map(|queue| queue.session) else { return };
        self.close(&self.queues.of_session(session));
        self.shared.notify(Notice::Violation(session, violation));
    }

    /// Closes queues and cancels their requests.
    fn close(&mut self, indices: &[usize]) {
        let mut capabilities = Self::capabilities(&self.shared);
        let mut closed = Vec::new();
        for index in indices {
            let Some((queue, awake)) = self.queues.close(*index) else { continue };
            self.path.close_queue(QueueKey(*index as u32), &mut capabilities);
            queue.end.close();
            if awake {
                self.shares.forget(queue.user, *index);
            }
            closed.push(*index);
        }
        let news = capabilities.has_news();
        drop(capabilities);
        for index in closed {
            let Some(queue) = self.queues.even_closed(index) else { continue };
            // The client can influence how long this takes, so not with the capability table locked.
            self.waker.wake_closed(queue);
        }
        if news {
            self.shared.notify(Notice::Settled);
        }
    }

    /// Handles commands of the control side; returns whether there were any.
    #[cold]
    #[inline(never)]
    fn handle_commands(&mut self) -> bool {
        let commands = self.handle.take();
        let revoked = self.handle.revoked.swap(false, Ordering::Relaxed);
        let any = revoked || !commands.is_empty();
        for command in commands {
            match command {
                WorkerCommand::Open(opened) => {
                    let NewQueue { session, number, user, class, end, bells, target, counters } = opened;
                    // Before the path gives the key of a queue that is gone to this one.
                    self.reap();
                    let key = self.path.open_queue(session, user);
                    self.path.grant_class(key, class);
                    let queue = Queue {
                        session,
                        number,
                        user,
                        end,
                        target,
                        class,
                        bell: Arc::clone(bells.at(self.number)),
                        bells,
                        scanned: queues::never_scanned(self.turns),
                        asked: self.turns,
                        counters,
                        used: 0,
                        leaving: None,
                    };
                    self.open(key, queue);
                }
                WorkerCommand::Give { session, number, to } => self.give(session, number, to),
                WorkerCommand::Notify { session, number, target } => {
                    self.set_signal(session, number, target);
                }
                WorkerCommand::CloseQueue { session, number } => {
                    if let Some((index, _)) = self.queues.find(session, number) {
                        self.close(&[index]);
                    }
                }
                WorkerCommand::CloseSession { session } => self.close(&self.queues.of_session(session)),
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
                WorkerCommand::Engine { id, engine, shortest_bytes, bell } => {
                    self.path.engine_mut().add_external(id, *engine, shortest_bytes, bell);
                    self.path.set_immediate_bytes(self.path.engine().immediate_bytes());
                }
                WorkerCommand::EngineFrames(id, frames) => {
                    let engine = self.path.engine_mut();
                    frames.iter().for_each(|(mapping, frame)| engine.external_mapped(id, mapping, *frame));
                }
                WorkerCommand::EngineLost(id, how) => self.engine_lost(id, how),
                WorkerCommand::Stop { deadline } => {
                    self.stopping = Some(deadline);
                    self.keep_leaving();
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

    /// An engine process gets no more work: what waits for one of its places can end.
    fn engine_lost(&mut self, id: EngineId, how: Lost) {
        self.path.engine_mut().external_lost(id, how);
        self.path.places_are_gone(id.group());
    }

    /// Reports faults of engine processes, and releases those that are gone. Returns whether engine channels are usable again.
    fn look_after_externals(&mut self) -> bool {
        for (id, fault) in self.path.engine_mut().take_faults() {
            self.shared.notify(Notice::EngineFault(id, fault));
        }
        let mut any = false;
        for remains in self.path.engine_mut().take_gone_externals() {
            self.shared.count_external(remains.id, remains.counts);
            if !remains.faulted.is_empty() {
                any = true;
                let mut capabilities = Self::capabilities(&self.shared);
                for channel in &remains.faulted {
                    self.path.channel_was_reset(*channel, &mut capabilities);
                }
            }
            self.path.set_immediate_bytes(self.path.engine().immediate_bytes());
            self.shared.notify(Notice::EngineReleased(Box::new(remains)));
        }
        any
    }

    /// Sets the signal of a queue. Signals at once if completions arrived since the client raised its flag, or if the queue
    /// is closed.
    fn set_signal(&mut self, session: SessionId, number: u32, target: SignalTarget) {
        let Some((index, closed)) = self.queues.find(session, number) else {
            return self.shared.notify(Notice::Discarded(target));
        };
        let Some(queue) = self.queues.even_closed(index) else { return };
        queue.target = Some(target);
        if closed || queue.end.wants_signal(queue.end.client_flag()) {
            self.waker.signal(queue);
        }
    }

    /// Passes memory that no transfer of this worker uses to the registrar, or to the control side: unmapping may take long.
    fn unpin(&self, frames: Vec<Mapping>, memory: Vec<ModuleMemory>) {
        match &self.offload {
            Some(offload) => offload.release(frames, memory),
            None => self.shared.notify(Notice::Forgotten(frames)),
        }
    }

    fn open(&mut self, key: QueueKey, queue: Queue) {
        self.shares.open(queue.user);
        self.shares.rouse(queue.user, key.0 as usize);
        self.queues.open(key, queue);
    }

    /// Gives up a queue. The control side may reuse its memory, and has the rest dropped where nobody waits for it.
    fn release(&mut self, queue: Queue) {
        let Queue { session, number, user, end, target, bells, counters, .. } = queue;
        self.shares.close(user);
        counters.close();
        let remains = Box::new(Remains { _end: end, _bells: bells, _target: target });
        self.shared.notify(Notice::QueueReleased { session, number, remains });
    }

    /// Releases closed queues that have no running requests.
    fn reap(&mut self) {
        let sampler = &mut self.sampler;
        let gone = self.queues.take_gone(|key| {
            let is_gone = self.path.queue_gone(key);
            if is_gone {
                sampler.forget(key);
            }
            is_gone
        });
        gone.into_iter().for_each(|queue| self.release(queue));
        self.handle.counters.queues.set(self.queues.count() as u64);
    }

    /// Sleeps until a doorbell or a command, unless one arrived meanwhile.
    fn park(&mut self) {
        self.reap();
        self.sample_counters();
        self.queues.publish_all_consumed();
        // Deadlines of waiting requests pass although no event arrives. So does the deadline of a stop while requests are
        // suspended.
        let wake = self.path.next_wake().into_iter().chain(self.stopping).min();
        let limit = wake.map(|wake| {
            let left = wake.picoseconds().saturating_sub(MonotonicClock.now().picoseconds());
            Duration::from_nanos(u64::try_from(left / 1000).unwrap_or(u64::MAX).saturating_add(1))
        });
        let rest = self.shares.wake().map(|end| end.saturating_duration_since(Stopwatch::now()));
        let limit = limit.into_iter().chain(rest).min();
        // Engine processes rely on the barrier that covers all clients.
        let has_externals = self.path.engine().has_externals();
        let fences = if has_externals { Fences::Asymmetric } else { self.queues.fences() };
        let slept = park(
            |value| {
                self.handle.parked.set(value);
                self.path.engine().set_externals_parked(value);
            },
            fences,
            || self.handle.pending.load(Ordering::Acquire) || self.has_news(usize::MAX),
            || self.sleep(limit),
        );
        if slept {
            self.handle.counters.parks.add(1);
            // A doorbell may have rung for any dormant queue.
            self.pace.look_at_all();
        }
    }

    /// Waits for a doorbell, a command, or the module, whose completions the next turn takes.
    fn sleep(&self, limit: Option<Duration>) {
        let bells = || self.queues.bells().chain(self.path.engine().external_bells()).map(AsFd::as_fd);
        let module = self.offload.iter().map(AsFd::as_fd);
        let all = [self.handle.wake.as_fd()].into_iter().chain(bells()).chain(module);
        let mut entries: Vec<_> = all.map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)).collect();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        if poll(&mut entries, limit.as_ref()).is_err() {
            return;
        }
        let mut is_readable = entries.iter().map(|entry| !entry.revents().is_empty());
        if is_readable.next() == Some(true) {
            let _ = rustix::io::read(&self.handle.wake, &mut [0u8; 8]);
        }
        let rung = self
            .queues
            .bells()
            .chain(self.path.engine().external_bells())
            .zip(is_readable)
            .filter(|(_, is_readable)| *is_readable);
        rung.for_each(|(bell, _)| bell.take());
    }

    /// Last action: refuses requests that have arrived, then wakes every client for the last time.
    fn finish(mut self) {
        let queues = self.queues.all();
        for index in &queues {
            let capacity = self.queues.get(*index).map_or(0, |queue| queue.end.capacity() as usize);
            // At most one full ring, so that a client that keeps submitting cannot delay the end.
            for _ in 0..capacity.div_ceil(serving::BATCH) {
                self.take_requests(*index);
                self.settle(MonotonicClock.now());
                self.deliver();
            }
        }
        self.close(&queues);
        for queue in self.queues.take_gone(|_| true) {
            self.release(queue);
        }
        for command in self.handle.take() {
            if let WorkerCommand::Notify { target, .. } = command {
                self.shared.notify(Notice::Discarded(target));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Spins;

    #[test]
    fn a_worker_spins_where_others_have_a_cpu() {
        let of = |cpus| [0, 1, 2].map(|number| Spins::of(number, cpus));
        assert_eq!(of(1), [Spins::No; 3]);
        assert_eq!(of(2), [Spins::Shortly, Spins::No, Spins::No]);
        assert_eq!(of(4), [Spins::ForExternals, Spins::Shortly, Spins::Shortly]);
        assert_eq!(of(16), [Spins::ForExternals; 3]);
    }
}
