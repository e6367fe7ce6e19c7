//! A worker: a thread that polls its clients' rings, takes their requests down the path and moves the bytes itself.
//!
//! ```text
//! turn:  commands ─ cancels ─ requests (one copy, then checks) ─ run a chunk of each ─ settle ─ completions ─ wake-ups
//! idle:  help whoever shares a copy, spin for about one wake-up's cost, then park until a doorbell or a command
//! ```
//!
//! The worker holds the capability table only while it admits a batch, in which it does the short requests at once, or
//! settles; never while it moves chunks. A client that breaks a rule loses its queue here and its session at the control
//! side. Who serves whom is the path's policy.

mod serving;
pub(crate) mod threads;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Stopwatch};

use memferry_clock::{Clock, Instant};
use memferry_cpu::team::Activity;
use memferry_kmod::ModuleEngine;

use crate::worker_engine::WorkerEngine;
use memferry_kmod::device::ModuleMemory;
use memferry_path::{Capabilities, ChannelState, Path, QueueKey};
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
use crate::shared::{Notice, Opened, Shared, Target, WorkerCommand, WorkerHandle};
use serving::Waking;

/// How long an idle worker spins: about what a wake-up across cores costs.
const SPIN: Duration = Duration::from_micros(50);
/// Looks at the rings between looks at the clock while spinning.
const LOOKS: u32 = 64;
/// Turns between looks at what is busy, for whoever wants to know.
const TURNS_PER_COUNT: u32 = 64;
/// Epoll tokens of the worker's own wake-up descriptor, and of the Linux module's; queues have theirs from 0.
const WAKE: u64 = u64::MAX;
const MODULE: u64 = u64::MAX - 1;

struct Queue {
    session: SessionId,
    number: u32,
    user: u32,
    end: Box<ServiceEnd<MappedWords>>,
    /// Where the client is signalled, when it asked for that.
    target: Option<Target>,
    /// Kept open so that the client's writes reach the worker's epoll. It is never read: the client shares its file
    /// description and could make a read block.
    doorbell: OwnedFd,
    /// Closed: nothing is taken or delivered any more.
    dead: bool,
    /// In which turn cancels were looked for last.
    looked: u32,
    counters: Arc<QueueCounters>,
}

/// What an idle worker sees.
enum Seen {
    /// Somebody asks for something.
    News,
    /// Another one shares a copy.
    Sharing,
    Nothing,
}

pub(crate) struct Worker {
    /// Its number in the team of workers.
    number: usize,
    handle: Arc<WorkerHandle>,
    shared: Arc<Shared>,
    path: Path<WorkerEngine<ModuleEngine>>,
    /// Where there is a Linux module beside the CPU.
    offload: Option<Offload>,
    /// Indexed by queue key.
    queues: Vec<Option<Queue>>,
    epoll: OwnedFd,
    spins: bool,
    stopping: Option<Instant>,
    /// Closed queues that are not let go of yet.
    dying: usize,
    /// Queues that get completions in this turn; kept for its allocation.
    woken: Vec<QueueKey>,
    waking: Waking,
    turns: u32,
}

impl Worker {
    pub(crate) fn new(
        number: usize,
        handle: Arc<WorkerHandle>,
        shared: Arc<Shared>,
        path: Path<WorkerEngine<ModuleEngine>>,
        offload: Option<Offload>,
        spins: bool,
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &handle.wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        if let Some(offload) = &offload {
            // Level-triggered: what the module ended is taken in the next turn.
            epoll::add(&epoll, offload, epoll::EventData::new_u64(MODULE), epoll::EventFlags::IN)?;
        }
        let queues = Vec::new();
        let woken = Vec::new();
        let stopping = None;
        let dying = 0;
        let turns = 0;
        let waking = Waking::new();
        handle.signals.store(waking.signals(), Ordering::Relaxed);
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
            dying,
            woken,
            waking,
            turns,
        })
    }

    /// Serves until told to stop.
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
                match self.look_out() {
                    Seen::News => {
                        // Not among the idle any more, before the engine counts those.
                        self.shared.team.set_activity(self.number, Activity::Busy);
                        idle_since = None;
                        continue;
                    }
                    Seen::Sharing if self.help() => {
                        idle_since = None;
                        continue;
                    }
                    Seen::Sharing | Seen::Nothing if since.elapsed() < SPIN => continue,
                    Seen::Sharing | Seen::Nothing => {}
                }
            }
            self.shared.team.set_activity(self.number, Activity::Asleep);
            self.park();
            self.shared.team.set_activity(self.number, Activity::Busy);
            // Perhaps it was woken to share. Its own clients come first.
            if !self.has_news() {
                self.help();
            }
            idle_since = None;
        }
    }

    /// Copies pieces of what others share, until somebody asks for something.
    fn help(&self) -> bool {
        self.shared.team.set_activity(self.number, Activity::Busy);
        self.shared.team.help(|| self.has_news())
    }

    /// Whether somebody asks for something.
    fn has_news(&self) -> bool {
        let mut queues = self.queues.iter().flatten().filter(|queue| !queue.dead);
        queues.any(|queue| queue.end.has_news()) || self.handle.pending.load(Ordering::Relaxed)
    }

    /// Looks for news for a while: less than a turn looks at, so that it is seen sooner.
    fn look_out(&self) -> Seen {
        for _ in 0..LOOKS {
            if self.has_news() {
                return Seen::News;
            }
            if self.shared.team.has_work() {
                return Seen::Sharing;
            }
            std::hint::spin_loop();
        }
        Seen::Nothing
    }

    /// One round of everything; returns whether anything happened.
    fn turn(&mut self) -> bool {
        let mut worked = self.handle_commands();
        for index in 0..self.queues.len() {
            worked |= self.take_requests(index);
        }
        if !self.path.idle() || self.path.must_settle() {
            worked |= self.path.progresses();
            let timed = self.path.needs_time() || self.stopping.is_some();
            let now = if timed { MonotonicClock.now() } else { Instant::ORIGIN };
            if self.stopping.is_some_and(|deadline| deadline <= now) {
                self.path.cancel_all(&mut Self::capabilities(&self.shared));
            }
            self.path.ring_doorbell();
            if self.path.run(now) {
                self.report_progress();
            }
            // What was suspended may go on since the policy was asked.
            worked |= self.path.progresses();
            worked |= self.settle(now);
        }
        self.deliver();
        if let Some(offload) = &self.offload {
            offload.register(self.path.engine_mut().take_wanted());
        }
        if self.dying > 0 {
            self.reap();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_COUNT) {
            self.count_busy();
        }
        worked
    }

    fn count_busy(&self) {
        let busy = self.path.channel_states().iter().filter(|state| **state == ChannelState::Busy).count();
        self.handle.counters.busy.set(busy as u64);
        self.handle.counters.waiting.set(self.path.waiting() as u64);
        self.handle.counters.module.look(self.path.engine());
        for (class, bytes) in self.handle.counters.classes.iter().zip(self.path.moved_by_class()) {
            class.set(bytes);
        }
        for (key, queue) in (0..).zip(&self.queues) {
            if let Some(queue) = queue {
                queue.counters.wait(self.path.waiting_of(QueueKey(key)));
            }
        }
    }

    fn capabilities(shared: &Shared) -> MutexGuard<'_, Capabilities<Mapping>> {
        shared.capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes what finished and starts what waits; returns whether something started.
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

    /// A client broke a rule: its queue is closed and the control side told.
    fn violate(&mut self, index: usize, violation: Violation) {
        let Some(session) = self.queues[index].as_ref().map(|queue| queue.session) else { return };
        self.close_where(|queue| queue.session == session);
        self.shared.notify(Notice::Violation(session, violation));
    }

    /// Stops listening to queues; what runs for them is cancelled.
    fn close_where(&mut self, named: impl Fn(&Queue) -> bool) {
        let mut capabilities = Self::capabilities(&self.shared);
        let mut closed = Vec::new();
        for (index, slot) in self.queues.iter_mut().enumerate() {
            let Some(queue) = slot.as_mut().filter(|queue| !queue.dead && named(queue)) else { continue };
            self.path.close_queue(QueueKey(index as u32), &mut capabilities);
            queue.dead = true;
            queue.end.close();
            closed.push(index);
        }
        let news = capabilities.has_news();
        drop(capabilities);
        self.dying += closed.len();
        for index in closed {
            let Some(queue) = &self.queues[index] else { continue };
            // How long that takes is in part the client's doing: never with the lock that all workers share.
            self.waking.wake_for_good(index, queue);
            // The client may keep the doorbell open: it must not wake this worker for a queue that is gone.
            let _ = epoll::delete(&self.epoll, &queue.doorbell);
        }
        if news {
            self.shared.notify(Notice::Settled);
        }
    }

    /// Does what the control side told; returns whether there was anything.
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
                    let Opened { session, number, user, class, end, doorbell, counters } = opened;
                    let key = self.path.open_queue(session, user);
                    self.path.grant_class(key, class);
                    let target = None;
                    let dead = false;
                    let looked = serving::never_looked(self.turns);
                    let queue =
                        Queue { session, number, user, end, target, doorbell, dead, looked, counters };
                    self.open(key, queue);
                }
                WorkerCommand::Notify { session, number, user, target } => {
                    self.take_target(session, number, user, target);
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
                    let gone = frames.iter().filter_map(|frame| engine.forget(frame)).collect();
                    self.unpin(frames, gone);
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

    /// From now on a client is signalled; at once, when what it wants to hear of came since it was told so, or its queue is
    /// closed.
    fn take_target(&mut self, session: SessionId, number: u32, user: u32, target: Target) {
        let meant = |queue: &Option<Queue>| {
            queue.as_ref().is_some_and(|queue| queue.session == session && queue.number == number)
        };
        let index = self.queues.iter().position(meant);
        let Some((index, queue)) = index.and_then(|index| Some((index, self.queues[index].as_mut()?))) else {
            return self.unneeded(user, target);
        };
        queue.target = Some(target);
        if queue.dead || queue.end.wants_signal(queue.end.client_flag()) {
            self.waking.signal(index, queue);
        }
    }

    /// What no transfer of this worker uses any more.
    fn unpin(&self, frames: Vec<Mapping>, memory: Vec<ModuleMemory>) {
        if let Some(offload) = &self.offload {
            offload.let_go(frames, memory);
        }
    }

    /// What a client sent is closed where that may block.
    fn unneeded(&self, user: u32, target: Target) {
        if let Target::Ring(ring, _) = target {
            self.shared.notify(Notice::Unneeded(user, ring));
        }
    }

    fn open(&mut self, key: QueueKey, queue: Queue) {
        let index = key.0 as usize;
        let session = queue.session;
        let number = queue.number;
        // Edge-triggered: every write to the doorbell is an event, and nothing has to be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(key.0));
        let added = epoll::add(&self.epoll, &queue.doorbell, data, flags);
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, || None);
        }
        self.let_go(index);
        self.queues[index] = Some(queue);
        if added.is_err() {
            // Without its doorbell the queue could never wake the worker: the client learns at once.
            self.close_where(|queue| queue.session == session && queue.number == number);
        }
    }

    /// Unmaps a closed queue and tells the control side, which may use its memory again.
    fn let_go(&mut self, index: usize) {
        let Some(mut queue) = self.queues[index].take() else { return };
        self.dying -= usize::from(queue.dead);
        let session = queue.session;
        let number = queue.number;
        queue.counters.gone();
        self.waking.forget(index);
        let user = queue.user;
        if let Some(target) = queue.target.take() {
            self.unneeded(user, target);
        }
        drop(queue);
        self.shared.notify(Notice::QueueGone(session, number));
    }

    /// Lets go of closed queues with nothing running.
    fn reap(&mut self) {
        for index in 0..self.queues.len() {
            let dead = self.queues[index].as_ref().is_some_and(|queue| queue.dead);
            if dead && self.path.queue_gone(QueueKey(index as u32)) {
                self.let_go(index);
            }
        }
        let open = self.queues.iter().flatten().count();
        self.handle.counters.queues.set(open as u64);
    }

    /// Sleeps until a doorbell or a command, unless something arrived meanwhile.
    fn park(&mut self) {
        self.reap();
        self.count_busy();
        for queue in self.queues.iter_mut().flatten() {
            queue.end.tell_all_consumed();
        }
        // Requests may wait for a channel that only another client's end can free; their deadlines still count. A stop has
        // its own end, whatever is suspended.
        let wake = self.path.next_wake().into_iter().chain(self.stopping).min();
        let limit = wake.map(|wake| {
            let left = wake.picoseconds().saturating_sub(MonotonicClock.now().picoseconds());
            Duration::from_nanos(u64::try_from(left / 1000).unwrap_or(u64::MAX).saturating_add(1))
        });
        let live = || self.queues.iter().flatten().filter(|queue| !queue.dead);
        let all_full = live().all(|queue| queue.end.fences() == Fences::Full);
        let fences = if all_full { Fences::Full } else { Fences::Asymmetric };
        let slept = park(
            |value| live().for_each(|queue| queue.end.set_parked(value)),
            fences,
            || self.handle.pending.load(Ordering::Acquire) || live().any(|queue| queue.end.has_news()),
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

    /// The last sweep: what arrived until now is refused, then every client is told that no more will come.
    fn finish(mut self) {
        for index in 0..self.queues.len() {
            let capacity = self.queues[index].as_ref().map_or(0, |queue| queue.end.capacity() as usize);
            // A full ring's worth: a client that goes on asking does not keep the service from ending.
            for _ in 0..capacity.div_ceil(serving::BATCH) {
                self.take_requests(index);
                self.settle(MonotonicClock.now());
                self.deliver();
            }
        }
        self.close_where(|_| true);
        for index in 0..self.queues.len() {
            self.let_go(index);
        }
        for command in self.handle.take() {
            if let WorkerCommand::Notify { user, target, .. } = command {
                self.unneeded(user, target);
            }
        }
    }
}
