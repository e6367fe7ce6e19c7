//! State shared by the control side and the workers: capability table, commands to workers, notices from workers.
//!
//! ```text
//! control ─ WorkerHandle::send(WorkerCommand) ─► worker
//! control ◄──────── Shared::notify(Notice) ───── worker        Shared also has the capability table and the copy team
//! ```
//!
//! The capability table has a lock. Beside it is a view that workers read without the lock, for plain requests.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant as Stopwatch};

use memferry_clock::Instant;
use memferry_cpu::team::CopyTeam;
use memferry_external::{ExternalEngine, Fault, Lost};
use memferry_kmod::device::ModuleMemory;
use memferry_path::{Capabilities, Mirror, Policy};
use memferry_shm::capability_view::View;
use memferry_shm::frame;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ParkedWord, ServiceEnd};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Handle, PriorityClass, Rights, SessionId};

use rustix::event::EventfdFlags;

use crate::MonotonicClock;
use crate::balancing::Balancing;
use crate::bells::{Bell, QueueBells};
use crate::counters::{ExternalCounters, QueueCounters, WorkerCounters};
use crate::engine_id::EngineId;
use crate::protocol::Violation;
use crate::scheduling::times_slept;
use crate::worker_engine::{DeviceCounts, EngineFrames, ExternalRemains, NewFrames};

/// Where the clients of a service run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clients {
    /// In the service's own process: workers write to their eventfds and io_urings.
    Here,
    /// In other processes. They are hostile: an eventfd's owner can make each write to it take long, so another process
    /// passes signals on to it.
    Elsewhere,
}

/// Time for which a worker lets others have the capability table first: longer than a wake-up takes, and no more, because a flood of
/// commands must not stop it.
const YIELDING: Duration = Duration::from_micros(100);
/// Part of it in which it spins, for a waiting thread that wakes on another CPU.
const SPINNING: Duration = Duration::from_micros(20);
/// How long it sleeps then, for one that needs this CPU. It does not call sched_yield(2), which may give up the rest of a slice each
/// time, to threads of any nice value.
const PAUSE: Duration = Duration::from_micros(20);

/// How long a thread has waited for the capability table, or for others to have it, and how often it slept meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableWaits {
    pub(crate) time: Duration,
    pub(crate) sleeps: u64,
}

thread_local! {
    static TABLE_WAITS: Cell<TableWaits> = const { Cell::new(TableWaits { time: Duration::ZERO, sleeps: 0 }) };
}

/// Those of this thread so far.
pub(crate) fn table_waits() -> TableWaits {
    TABLE_WAITS.get()
}

/// Waits, and counts that.
fn counted<T>(wait: impl FnOnce() -> T) -> T {
    let since = Stopwatch::now();
    let slept_before = times_slept();
    let result = wait();
    let TableWaits { time, sleeps } = TABLE_WAITS.get();
    let sleeps = sleeps + times_slept().saturating_sub(slept_before);
    TABLE_WAITS.set(TableWaits { time: time + since.elapsed(), sleeps });
    result
}

/// State that the control side shares with all workers.
pub(crate) struct Shared {
    capabilities: Mutex<Capabilities<Mapping>>,
    /// What the table says of handles, without its lock.
    pub(crate) view: Arc<View>,
    /// Threads that wait for the table now.
    waiting: AtomicU32,
    notices: Mutex<Vec<Notice>>,
    notifier: OwnedFd,
    /// All workers, by number.
    pub(crate) workers: Vec<Arc<WorkerHandle>>,
    moves: Mutex<()>,
    pub(crate) balancing: Mutex<Balancing>,
    /// The team of workers that copy long transfers together.
    pub(crate) team: Arc<CopyTeam>,
    /// Work of each configured engine process.
    pub(crate) externals: Vec<ExternalCounters>,
}

impl Shared {
    /// Creates an empty table with at most `capabilities` entries per session, for workers and the core complex of each.
    pub(crate) fn new(
        capabilities: usize,
        (workers, complexes, fences): (Vec<Arc<WorkerHandle>>, Vec<usize>, Fences),
        team: Arc<CopyTeam>,
        engines: usize,
    ) -> rustix::io::Result<Self> {
        let notifier = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let view = Arc::new(View::new(workers.len(), fences));
        let capabilities = Capabilities::new(capabilities).with_mirror(Mirrored(Arc::clone(&view)));
        let capabilities = Mutex::new(capabilities.with_clock(MonotonicClock));
        let waiting = AtomicU32::new(0);
        let notices = Mutex::default();
        let moves = Mutex::default();
        let balancing = Mutex::new(Balancing::new(complexes));
        let externals = (0..engines).map(|_| ExternalCounters::default()).collect();
        Ok(Self {
            capabilities,
            view,
            waiting,
            notices,
            notifier,
            workers,
            moves,
            balancing,
            team,
            externals,
        })
    }

    /// While the guard lives, each queue stays at its worker. Commands about a queue are sent under it: then they come to the worker
    /// that has the queue, after the command that brought it.
    pub(crate) fn no_moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The capability table, for the control side.
    pub(crate) fn for_control(&self) -> MutexGuard<'_, Capabilities<Mapping>> {
        self.wait()
    }

    /// Between two long uses of the capability table by one thread: lets threads that wait for it have it. A lock that is taken again
    /// at once is seldom given to others.
    pub(crate) fn between_parts(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.let_others_go_first();
        }
    }

    /// The capability table, for a client in this process that moves a few bytes on its own thread.
    ///
    /// Counts as waiting only if another thread holds the table.
    #[inline]
    pub(crate) fn for_own_thread(&self) -> MutexGuard<'_, Capabilities<Mapping>> {
        match self.capabilities.try_lock() {
            Ok(capabilities) => capabilities,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(),
        }
    }

    fn wait(&self) -> MutexGuard<'_, Capabilities<Mapping>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let capabilities = self.capabilities.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        capabilities
    }

    /// The capability table, for a worker. Lets threads that wait go first: a worker that has work locks the table again as soon as
    /// it has released it, long before another thread has woken up.
    #[inline]
    pub(crate) fn for_worker(&self) -> MutexGuard<'_, Capabilities<Mapping>> {
        self.between_parts();
        match self.capabilities.try_lock() {
            Ok(capabilities) => capabilities,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => counted(|| self.wait()),
        }
    }

    #[cold]
    fn let_others_go_first(&self) {
        counted(|| {
            let since = Stopwatch::now();
            while self.waiting.load(Ordering::Relaxed) > 0 && since.elapsed() < YIELDING {
                if since.elapsed() < SPINNING { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
            }
        });
    }

    /// Readable when a notice waits.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Adds what an engine process has done for a worker.
    pub(crate) fn count_external(&self, id: EngineId, more: DeviceCounts) {
        if let Some(counters) = self.externals.get(id.index) {
            counters.add(more);
        }
    }

    /// Takes all notices and empties the notifier.
    pub(crate) fn take_notices(&self) -> Vec<Notice> {
        let _ = rustix::io::read(&self.notifier, &mut [0u8; 8]);
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn notify(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        let _ = rustix::io::write(&self.notifier, &1u64.to_ne_bytes());
    }
}

/// Passes on what the capability table says to the view.
struct Mirrored(Arc<View>);

impl Mirror<Mapping> for Mirrored {
    fn appeared(
        &mut self,
        handle: Handle,
        session: SessionId,
        memory: &Mapping,
        range: (u64, u64),
        rights: Rights,
    ) {
        self.0.publish(handle, session, memory, range, rights);
    }

    fn died(&mut self, index: u32) {
        self.0.kill(index);
    }
}

/// A worker's report to the control side.
pub enum Notice {
    /// Revocations may be complete and memory may be released.
    Settled,
    /// A client violated the rules of its ring.
    Violation(SessionId, Violation),
    /// Access to some client's memory failed.
    MemoryFault,
    /// A worker has released a queue.
    QueueReleased { session: SessionId, number: u32, remains: Box<Remains> },
    /// A signal of a queue that is gone.
    Discarded(SignalTarget),
    /// Frames that a worker has forgotten, to be unmapped.
    Forgotten(Vec<Mapping>),
    /// An engine process broke a rule.
    EngineFault(EngineId, Fault),
    /// A worker has released an engine process.
    EngineReleased(Box<ExternalRemains>),
}

/// What is left of a released queue, for a thread that may wait.
pub struct Remains {
    pub(crate) _end: Box<ServiceEnd<MappedWords>>,
    pub(crate) _bells: QueueBells,
    pub(crate) _target: Option<SignalTarget>,
}

/// A command of the control side to a worker.
pub(crate) enum WorkerCommand {
    /// Serve a queue that is new, or comes from another worker.
    Open(NewQueue),
    /// Let another worker have a queue, once nothing of it is outstanding.
    Give {
        session: SessionId,
        number: u32,
        to: usize,
    },
    /// Signal the client by `target` whenever it is woken.
    Notify {
        session: SessionId,
        number: u32,
        target: SignalTarget,
    },
    CloseQueue {
        session: SessionId,
        number: u32,
    },
    /// Close all queues of a session.
    CloseSession {
        session: SessionId,
    },
    Policy(Box<dyn Policy>),
    /// Memory is registered with the Linux module, as the engine requested.
    Registered(Mapping, ModuleMemory),
    /// Frames that no transfer uses any more.
    Forget(Vec<Mapping>),
    /// Use an engine process for transfers of at least so many bytes. The bell rings for its completions.
    Engine {
        id: EngineId,
        engine: Box<ExternalEngine>,
        shortest_bytes: u64,
        bell: Arc<Bell>,
    },
    /// Frames that an engine process has mapped.
    EngineFrames(EngineId, EngineFrames),
    /// An engine process was cut off, or has exited.
    EngineLost(EngineId, Lost),
    /// Refuse new and waiting requests, cancel those still running at `deadline`, and end.
    Stop {
        deadline: Instant,
    },
}

/// The descriptor by which a client is signalled.
pub enum SignalTarget {
    /// An eventfd that the service created and no hostile client has.
    Event(OwnedFd),
    /// An embedded client's io_uring, and the user data of the completion.
    Ring(OwnedFd, u64),
}

/// A queue pair for a worker that does not have it yet.
pub(crate) struct NewQueue {
    pub(crate) session: SessionId,
    pub(crate) number: u32,
    pub(crate) user: u32,
    /// The highest class that its requests may have.
    pub(crate) class: PriorityClass,
    pub(crate) end: Box<ServiceEnd<MappedWords>>,
    pub(crate) bells: QueueBells,
    /// The client's signal, if set.
    pub(crate) target: Option<SignalTarget>,
    pub(crate) counters: Arc<QueueCounters>,
}

/// The memory of the workers' parked words, which clients can only read.
struct ParkedMemory {
    descriptor: OwnedFd,
    words: MappedWords,
}

impl ParkedMemory {
    fn new() -> std::io::Result<Self> {
        let bytes = ParkedWord::<MappedWords>::BYTES as u64;
        let (descriptor, mapping) =
            frame::allocate_sealed_named("memferry-workers", bytes, false).map_err(std::io::Error::other)?;
        let words = MappedWords::new(mapping).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(Self { descriptor, words })
    }
}

/// The control side's end of a worker.
pub(crate) struct WorkerHandle {
    commands: Mutex<Vec<WorkerCommand>>,
    pub(crate) pending: AtomicBool,
    /// Set to cancel requests that use revoked memory. A flag, so that many revocations cost one pass per turn.
    pub(crate) revoked: AtomicBool,
    pub(crate) wake: OwnedFd,
    /// Tells the clients whether the worker sleeps.
    pub(crate) parked: ParkedWord<MappedWords>,
    parked_memory: Arc<ParkedMemory>,
    /// Whether the worker can post to io_urings.
    pub(crate) rings: AtomicBool,
    pub(crate) counters: WorkerCounters,
}

impl WorkerHandle {
    /// The handles of all workers of a service.
    pub(crate) fn all(count: usize) -> std::io::Result<Vec<Arc<Self>>> {
        let parked_memory = Arc::new(ParkedMemory::new()?);
        (0..count).map(|number| Self::new(number, &parked_memory).map(Arc::new)).collect()
    }

    fn new(number: usize, parked_memory: &Arc<ParkedMemory>) -> std::io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let parked_memory = Arc::clone(parked_memory);
        let parked = ParkedWord::new(parked_memory.words.clone(), number).map_err(std::io::Error::other)?;
        let commands = Default::default();
        let counters = Default::default();
        let pending = Default::default();
        let revoked = Default::default();
        let rings = Default::default();
        Ok(Self { commands, pending, revoked, wake, parked, parked_memory, rings, counters })
    }

    /// A descriptor of the memory of the workers' parked words, for a client.
    pub(crate) fn parked_memory(&self) -> std::io::Result<OwnedFd> {
        self.parked_memory.descriptor.try_clone()
    }

    /// Whether the worker can signal clients by their io_urings.
    pub(crate) fn signals_rings(&self) -> bool {
        self.rings.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&self, command: WorkerCommand) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes the worker cancel requests that use revoked memory.
    pub(crate) fn cancel_revoked(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        self.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the worker, also without a command.
    pub(crate) fn wake(&self) {
        // The write cannot block: the worker resets the counter.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes the pending commands.
    pub(crate) fn take(&self) -> Vec<WorkerCommand> {
        if !self.pending.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl NewFrames for WorkerHandle {
    /// Takes them ahead of the other commands.
    fn take_known(&self, knows: &dyn Fn(EngineId) -> bool) -> Vec<(EngineId, EngineFrames)> {
        if !self.pending.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken =
            |command: &mut WorkerCommand| matches!(command, WorkerCommand::EngineFrames(id, _) if knows(*id));
        let taken = commands.extract_if(.., is_taken).filter_map(|command| match command {
            WorkerCommand::EngineFrames(id, frames) => Some((id, frames)),
            _ => None,
        });
        taken.collect()
    }
}

#[cfg(test)]
mod tests;
