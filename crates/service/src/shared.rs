//! What the control side and the workers share: the capability table, notices one way, commands the other way.
//!
//! ```text
//! control ─ WorkerHandle::tell(WorkerCommand) ─► worker
//! control ◄──────── Shared::notify(Notice) ───── worker        Shared also has the capability table and the copy team
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memferry_clock::Instant;
use memferry_cpu::team::CopyTeam;
use memferry_kmod::device::ModuleMemory;
use memferry_path::{Capabilities, Policy};
use memferry_shm::mapping::Mapping;
use memferry_shm::queue_pair::ServiceEnd;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{PriorityClass, SessionId};
use rustix::event::EventfdFlags;

use crate::counters::{QueueCounters, WorkerCounters};
use crate::protocol::Violation;

/// What workers and control share.
pub(crate) struct Shared {
    pub(crate) capabilities: Mutex<Capabilities<Mapping>>,
    notices: Mutex<Vec<Notice>>,
    notifier: OwnedFd,
    /// The workers, which copy together what is long.
    pub(crate) team: Arc<CopyTeam>,
}

impl Shared {
    /// An empty table in which a session may hold `capabilities`.
    pub(crate) fn new(capabilities: usize, team: Arc<CopyTeam>) -> rustix::io::Result<Self> {
        let notifier = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let capabilities = Mutex::new(Capabilities::new(capabilities));
        Ok(Self { capabilities, notices: Mutex::default(), notifier, team })
    }

    /// Readable when a notice waits.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
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

/// What a worker reports to the control side.
#[derive(Debug)]
pub enum Notice {
    /// Revocations may be over, memory may be dropped.
    Settled,
    /// A client broke a rule of its ring.
    Violation(SessionId, Violation),
    /// Some client's memory failed.
    MemoryFault,
    /// A worker is done with a session's queue pair.
    QueueGone(SessionId, u32),
    /// A descriptor that a client of that user sent is not needed any more.
    Unneeded(u32, OwnedFd),
}

/// What the control side tells a worker.
pub(crate) enum WorkerCommand {
    /// Serve a new queue pair.
    Open(Opened),
    /// Signal a client, from now on, when it is woken.
    Notify {
        session: SessionId,
        number: u32,
        user: u32,
        target: Target,
    },
    CloseQueue {
        session: SessionId,
        number: u32,
    },
    /// Stop serving all of a session's.
    CloseSession {
        session: SessionId,
    },
    /// Another policy takes over.
    Policy(Box<dyn Policy>),
    /// Memory that the engine wanted is registered with the Linux module.
    Registered(Mapping, ModuleMemory),
    /// Frames that nobody uses any more.
    Forget(Vec<Mapping>),
    /// Finish what runs until `deadline`, refuse the rest, and end.
    Stop {
        deadline: Instant,
    },
}

/// Where a client is signalled.
pub(crate) enum Target {
    /// Its eventfd, made by the service.
    Event(OwnedFd),
    /// Its io_uring, with the user data of the completion.
    Ring(OwnedFd, u64),
}

/// A new queue pair.
pub(crate) struct Opened {
    pub(crate) session: SessionId,
    pub(crate) number: u32,
    pub(crate) user: u32,
    /// The highest class of its requests.
    pub(crate) class: PriorityClass,
    pub(crate) end: Box<ServiceEnd<MappedWords>>,
    pub(crate) doorbell: OwnedFd,
    pub(crate) counters: Arc<QueueCounters>,
}

/// The control side's end of a worker.
pub(crate) struct WorkerHandle {
    commands: Mutex<Vec<WorkerCommand>>,
    pub(crate) pending: AtomicBool,
    /// Requests that use revoked memory are to end: told often, done once in a turn.
    pub(crate) revoked: AtomicBool,
    pub(crate) wake: OwnedFd,
    pub(crate) signals: AtomicBool,
    pub(crate) counters: WorkerCounters,
}

impl WorkerHandle {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let commands = Default::default();
        let counters = Default::default();
        let pending = Default::default();
        let revoked = Default::default();
        let signals = Default::default();
        Ok(Self { commands, pending, revoked, wake, signals, counters })
    }

    /// Whether the worker can signal clients by descriptors.
    pub(crate) fn signals(&self) -> bool {
        self.signals.load(Ordering::Relaxed)
    }

    pub(crate) fn tell(&self, command: WorkerCommand) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Has it end requests that use revoked memory.
    pub(crate) fn cancel_revoked(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        self.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the worker, whether there is something for it or not.
    pub(crate) fn wake(&self) {
        // The counter cannot be near its end: the worker empties it.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes the commands, when some are pending.
    pub(crate) fn take(&self) -> Vec<WorkerCommand> {
        if !self.pending.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
