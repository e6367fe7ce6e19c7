//! The service itself: executes commands of sessions, hands queue pairs to workers, and follows up what workers report.
//!
//! ```text
//! connect ─ execute(command) ─► capability table, sessions ─ worker commands ─► workers
//! attend  ◄─ notices of workers: revocations over, rules broken, memory failed
//! ```
//!
//! No socket and no client memory here but through `memferry-memory`. Whoever owns a `Service` calls
//! [`attend`](Service::process_events) when [`notifier`](Service::notifier) is readable.

mod asking;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memferry_clock::{Clock, Instant};

use crate::scheduling::SchedulingClass;
use memferry_cpu::level;
use memferry_cpu::team::CopyTeam;
use memferry_cpu::tuning;
use memferry_path::{Accepted, Capabilities, CapabilityError, ClaimedTransfer, RevocationId, immediate};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{Layout, ServiceEnd};
use memferry_shm::storage::MappedWords;
use memferry_shm::{bus_error, frame};
use memferry_transfer::{
    Confined, Failure, GrantToken, Handle, Operation, Outcome, Rights, SessionId, Span, Terms,
};
use rustix::event::EventfdFlags;

use crate::MonotonicClock;
use crate::config::ServiceConfig;
use crate::counters::{QueueCounters, ZeroedCounters};
use crate::policies::Policies;
use crate::profile;
use crate::protocol::{Answer, Command, NotifyBy, Refusal, RefusalKind, ServiceId, Violation};
use crate::ring_pool::{NoRing, RingPool, Writer};
use crate::session::{Introduced, Sessions, gone, refusal};
use crate::shared::{Notice, Opened, Shared, Target, WorkerCommand, WorkerHandle};
use crate::start_error::StartError;
use crate::worker::threads::Workers;

#[derive(Debug)]
pub enum Executed {
    /// Answered, with descriptors that go along.
    Done(Result<Answer, Refusal>, Vec<OwnedFd>),
    /// Answered by [`Service::process_events`] when this revocation is over.
    Later(RevocationId),
}

#[derive(Debug, Default)]
pub struct Events {
    /// Revocations that somebody waits for, and what is answered: they are over, or a failed channel keeps them from it.
    pub revoked: Vec<(RevocationId, Result<Answer, Refusal>)>,
    /// Sessions that were closed for breaking a rule or because their memory failed.
    pub closed: Vec<(SessionId, Violation)>,
    /// Descriptors that clients of these users sent, to be closed where that may block.
    pub unneeded: Vec<(u32, OwnedFd)>,
    /// Memory that nobody uses any more: unmapping it may take seconds.
    pub unused: Vec<Mapping>,
}

/// What is answered to a revocation that may never be over.
const WITHHELD: &str = "a channel of an engine failed and may still write to this memory: no new transfer uses it, but it stays \
                        with the service; use other memory, and start the service anew to have it back";

/// Bytes up to which a transfer of an embedded client is done while the capability table is held: less than claims cost.
const SHORT_BYTES: u64 = 16 << 10;

pub struct Service {
    id: ServiceId,
    config: ServiceConfig,
    shared: Arc<Shared>,
    workers: Workers,
    policies: Policies,
    sessions: Mutex<Sessions>,
    rings: Mutex<RingPool>,
    started: Instant,
    fences: Fences,
    zeroed: ZeroedCounters,
}

impl Service {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ServiceConfig) -> Result<Self, StartError> {
        config.check()?;
        level::forced()?;
        if let Some(thresholds) = profile::load()? {
            // They may be in use already, when engines ran before there was a profile: those stay.
            let _ = tuning::install(thresholds);
        }
        // Found out now: the sandbox forbids workers to look for caches later.
        let _ = (tuning::current(), level::Cpu::of_this_process());
        let failed = |step| move |source: std::io::Error| StartError::System { step, source };
        bus_error::install().map_err(failed("installing the memory error handler"))?;
        let handles =
            (0..config.workers).map(|_| WorkerHandle::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let handles = handles.map_err(|error| failed("eventfd")(error.into()))?;
        let for_team = handles.clone();
        // One that runs only when nothing else does would keep waiting whom it helps.
        let members = if config.worker_class == SchedulingClass::Idle { 0 } else { handles.len() };
        let team = Arc::new(CopyTeam::new(members, move |number| for_team[number].wake()));
        let shared = Shared::new(config.quotas.capabilities as usize, team);
        let shared = Arc::new(shared.map_err(|error| failed("eventfd")(error.into()))?);
        let fences = Fences::register();
        let (policies, for_workers) = Policies::new(&config.policy, handles.len());
        let workers = Workers::start(&config, &shared, handles.into_iter().zip(for_workers))?;
        let sessions = Mutex::default();
        let rings = Mutex::default();
        let started = MonotonicClock.now();
        let id = random_id().map_err(|error| failed("getrandom")(error.into()))?;
        Ok(Self {
            id,
            config,
            shared,
            workers,
            policies,
            sessions,
            rings,
            started,
            fences,
            zeroed: ZeroedCounters::default(),
        })
    }

    /// What it was started with.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// How parking flags of this process are ordered.
    pub fn fences(&self) -> Fences {
        self.fences
    }

    /// Readable when [`attend`](Self::process_events) has work.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.shared.notifier()
    }

    pub(crate) fn wake_control(&self) {
        self.shared.notify(Notice::Settled);
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rings(&self) -> MutexGuard<'_, RingPool> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn capabilities(&self) -> MutexGuard<'_, Capabilities<Mapping>> {
        self.shared.capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session for a client.
    ///
    /// # Errors
    /// [`RefusalKind::Quota`].
    pub fn connect(&self, client: Introduced) -> Result<SessionId, Refusal> {
        self.sessions().open(client, &self.config.quotas)
    }

    /// A client left, or is gone, which ends its session.
    pub fn disconnect(&self, session: SessionId) {
        self.rings().left(session);
        self.end(session);
    }

    /// Ends a session: its requests are cancelled, its queue pairs closed, its memory released once nothing moves in it.
    pub fn end(&self, session: SessionId) {
        if self.sessions().close(session).is_none() {
            return;
        }
        self.capabilities().close(session);
        self.workers.iter().for_each(|worker| worker.tell(WorkerCommand::CloseSession { session }));
        // Others may be moving bytes in what this session granted them.
        self.cancel_revoked();
        self.shared.notify(Notice::Settled);
    }

    /// Executes a command of `session`, whose descriptors were checked against it. They stay the caller's, to be closed
    /// where that may block.
    pub fn execute(&self, session: SessionId, command: Command, descriptors: &[OwnedFd]) -> Executed {
        let answer = match command {
            Command::Revoke { handle } => return self.revoke(session, handle),
            Command::OpenQueue { capacity } => match self.open_queue(session, capacity) {
                Ok((answer, descriptors)) => return Executed::Done(Ok(answer), descriptors),
                Err(refused) => Err(refused),
            },
            Command::Register { length, rights } => self.register(session, descriptors, length, rights),
            Command::Derive { handle, offset, length, rights } => self
                .capabilities()
                .derive(session, handle, (offset, length), rights)
                .map(Answer::Handle)
                .map_err(|error| refused_capability(&error)),
            Command::Grant { handle, offset, length, rights, to } => {
                let granted = self.capabilities().grant(session, handle, (offset, length), rights, to);
                granted
                    .map(|token| Answer::Handle(token.handle()))
                    .map_err(|error| refused_capability(&error))
            }
            Command::Accept { token } => self.accept(session, token),
            Command::CloseQueue { queue } => self.close_queue(session, queue),
            Command::Notify { queue, by } => match self.notify_client(session, queue, by, descriptors) {
                Ok(descriptors) => return Executed::Done(Ok(Answer::Notified), descriptors),
                Err(refused) => Err(refused),
            },
            Command::Engines => self.engines(session).map(Answer::Engines),
            Command::Status => Ok(Answer::Status(self.status(session))),
            Command::Policy { change } => self.policy(session, change.map(|change| *change)),
            Command::Identify { session } => self.identify(session),
        };
        Executed::Done(answer, Vec::new())
    }

    fn register(
        &self,
        session: SessionId,
        descriptors: &[OwnedFd],
        length: u64,
        rights: Rights,
    ) -> Result<Answer, Refusal> {
        let user = self.sessions().get(session).ok_or_else(gone)?.client.user;
        let descriptor =
            descriptors.first().ok_or_else(|| refusal(RefusalKind::Frame, "no descriptor came"))?;
        self.sessions().room_for_frame(session, length, &self.config.quotas)?;
        let mapping = frame::admit(descriptor.as_fd(), length, user)
            .map_err(|error| refusal(RefusalKind::Frame, error))?;
        self.register_mapping(session, mapping, rights)
    }

    /// Makes memory of this process a frame of `session`: embedded clients only.
    ///
    /// # Errors
    /// [`RefusalKind::Quota`], [`RefusalKind::Capability`]; [`RefusalKind::Argument`] for rights that let nobody read or write it,
    /// and for a session that is closed.
    pub fn register_mapping(
        &self,
        session: SessionId,
        mapping: Mapping,
        rights: Rights,
    ) -> Result<Answer, Refusal> {
        let bytes = mapping.length_bytes() as u64;
        let read_only = mapping.access() == Access::ReadOnly;
        let rights = if read_only { rights.difference(Rights::WRITE) } else { rights };
        if !rights.intersects(Rights::READ | Rights::WRITE) {
            return Err(refusal(RefusalKind::Argument, "a frame needs the right to be read or written"));
        }
        // Held throughout: nobody may register between the check of the quota and its use.
        let mut sessions = self.sessions();
        sessions.room_for_frame(session, bytes, &self.config.quotas)?;
        let handle = self
            .capabilities()
            .register(session, mapping, rights)
            .map_err(|error| refused_capability(&error))?;
        sessions.add_frame(session, handle, bytes);
        Ok(Answer::Handle(handle))
    }

    /// Does a transfer of `session` on the calling thread: embedded clients only. The caller has checked that
    /// [`Immediate`](memferry_path::Immediate) allows it.
    ///
    /// # Errors
    /// The [`Failure`] of admission.
    pub fn perform(
        &self,
        session: SessionId,
        operation: &Operation<Span>,
        terms: &Terms,
    ) -> Result<Outcome, Failure> {
        let done = if operation.total_bytes() <= SHORT_BYTES {
            let capabilities = self.capabilities();
            let operation = capabilities.borrowed(session, operation, memferry_cpu::LONGEST_BYTES)?;
            let whole = |confined: &Confined<'_, &Mapping>| memferry_cpu::perform_whole(confined, None);
            immediate::perform(&operation, terms.hint, whole)?
        } else {
            let claimed = ClaimedTransfer::claim(
                &mut self.capabilities(),
                session,
                operation,
                terms,
                memferry_cpu::LONGEST_BYTES,
            )?;
            let performed =
                claimed.perform(|confined| memferry_cpu::perform_whole(confined, Some(&self.shared.team)));
            let mut capabilities = self.capabilities();
            claimed.release(&mut capabilities);
            if capabilities.has_news() {
                self.shared.notify(Notice::Settled);
            }
            performed?
        };
        let done = done.ok_or(Failure::Unsupported)?;
        if done.result == Err(Failure::MemoryFault) {
            self.shared.notify(Notice::MemoryFault);
        }
        Ok(done)
    }

    fn accept(&self, session: SessionId, token: GrantToken) -> Result<Answer, Refusal> {
        let user = self.sessions().get(session).ok_or_else(gone)?.client.user;
        let accepted =
            self.capabilities().accept(session, user, token).map_err(|error| refused_capability(&error))?;
        let Accepted { handle, length, rights, grantor } = accepted;
        Ok(Answer::Accepted { handle, length, rights, grantor })
    }

    fn revoke(&self, session: SessionId, handle: Handle) -> Executed {
        // Held throughout: a revocation that is over at once must not be reported before it is known who waits for it.
        let mut sessions = self.sessions();
        let revoked = sessions.room_for_revocation(session).and_then(|()| {
            self.capabilities().revoke(session, handle).map_err(|error| refused_capability(&error))
        });
        let id = match revoked {
            Ok(id) => id,
            Err(refusal) => return Executed::Done(Err(refusal), Vec::new()),
        };
        sessions.remove_frame(session, handle);
        sessions.add_revocation(id, session);
        drop(sessions);
        self.cancel_revoked();
        self.shared.notify(Notice::Settled);
        Executed::Later(id)
    }

    /// Has workers end what revocations caught in flight.
    fn cancel_revoked(&self) {
        if self.capabilities().take_caught() {
            self.workers.iter().for_each(WorkerHandle::cancel_revoked);
        }
    }

    fn open_queue(&self, session: SessionId, capacity: u32) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let layout = Layout::new(capacity).map_err(|error| refusal(RefusalKind::Argument, error))?;
        let system = |error: &dyn std::fmt::Display| {
            let message = format!(
                "the service has no memory or descriptors for another queue ({error}); close some, or try again later"
            );
            refusal(RefusalKind::System, message)
        };
        let mut sessions = self.sessions();
        let Introduced { user, asymmetric_fences, watched, .. } =
            sessions.get(session).map(|open| open.client.clone()).ok_or_else(gone)?;
        let loads = sessions.worker_loads(self.workers.count());
        let worker = (0..loads.len()).min_by_key(|worker| loads[*worker]).unwrap_or(0);
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system(&error))?;
        let for_client = doorbell.try_clone().map_err(|error| system(&error))?;
        let queue = sessions.add_queue(session, worker, &self.config.quotas)?;
        let mut rings = self.rings();
        let ring = rings.take(user, capacity, self.config.quotas.queues).map_err(|refused| {
            sessions.remove_queue(session, queue);
            match refused {
                NoRing::Quota => refusal(RefusalKind::Quota, format!(
                    "user {user} has reached its quota of {} queues of this size, some still closing; try again",
                    self.config.quotas.queues
                )),
                NoRing::System(error) => system(&error),
            }
        })?;
        let fences = if asymmetric_fences { self.fences } else { Fences::Full };
        let memories = MappedWords::new(ring.client.1.clone()).zip(MappedWords::new(ring.service.1.clone()));
        let end = memories.and_then(|(client, own)| ServiceEnd::new(layout, client, own, fences).ok());
        let descriptors =
            ring.client.0.try_clone().and_then(|client| Ok((client, ring.service.0.try_clone()?)));
        let (Some(end), Ok((client, service))) = (end, descriptors) else {
            sessions.remove_queue(session, queue);
            rings.lend((session, queue), ring, Writer::Nobody);
            rings.give_back((session, queue));
            return Err(system(&"its memory cannot be shared"));
        };
        rings.lend((session, queue), ring, watched.map_or(Writer::Embedded, Writer::Process));
        let counters = Arc::new(QueueCounters::default());
        sessions.count(session, queue, &counters);
        let end = Box::new(end);
        let class = self.config.class_of(user);
        let opened = Opened { session, number: queue, user, class, end, doorbell, counters };
        self.workers.get(worker).tell(WorkerCommand::Open(opened));
        Ok((Answer::Queue { queue, capacity }, vec![client, service, for_client]))
    }

    fn close_queue(&self, session: SessionId, queue: u32) -> Result<Answer, Refusal> {
        let unknown = || refusal(RefusalKind::Argument, format!("queue {queue} is not open"));
        // Of an embedded client whose session has ended too.
        self.rings().closed((session, queue));
        let worker = self.sessions().remove_queue(session, queue).ok_or_else(unknown)?;
        self.workers.get(worker).tell(WorkerCommand::CloseQueue { session, number: queue });
        Ok(Answer::Closed)
    }

    /// Has a worker signal a client; gives the eventfd, when it is by one.
    fn notify_client(
        &self,
        session: SessionId,
        queue: u32,
        by: NotifyBy,
        descriptors: &[OwnedFd],
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let unknown = || refusal(RefusalKind::Argument, format!("queue {queue} is not open"));
        let mut sessions = self.sessions();
        let worker = sessions.worker_of(session, queue).ok_or_else(unknown)?;
        let (user, process) =
            sessions.get(session).map(|open| (open.client.user, open.client.process)).ok_or_else(unknown)?;
        if !self.workers.get(worker).signals() {
            let why = "this system gives the service no io_uring (see kernel.io_uring_disabled); wait or poll instead";
            return Err(refusal(RefusalKind::System, why));
        }
        let (target, given) = signal_target(by, process, descriptors)?;
        // Last: what was refused or failed has not used up the queue's only signal.
        if !sessions.notify(session, queue) {
            let why = format!("queue {queue} is signalled already; open another");
            return Err(refusal(RefusalKind::Argument, why));
        }
        self.workers.get(worker).tell(WorkerCommand::Notify { session, number: queue, user, target });
        Ok(given)
    }

    /// Follows up what workers reported.
    pub fn process_events(&self) -> Events {
        let notices = self.shared.take_notices();
        let mut events = Events::default();
        let mut damaged = false;
        for notice in notices {
            match notice {
                Notice::Settled => {}
                Notice::Violation(session, violation) => events.closed.push((session, violation)),
                Notice::MemoryFault => damaged = true,
                Notice::Unneeded(user, descriptor) => events.unneeded.push((user, descriptor)),
                Notice::QueueGone(session, queue) => {
                    self.sessions().queue_gone(session, queue);
                    self.rings().give_back((session, queue));
                }
            }
        }
        let broken: BTreeSet<_> = if damaged {
            self.capabilities().owners(Mapping::damaged).into_iter().collect()
        } else {
            BTreeSet::new()
        };
        events.closed.extend(broken.into_iter().map(|session| (session, Violation::MemoryFault)));
        events.closed.retain(|(session, _)| self.sessions().get(*session).is_some());
        for (session, _) in &events.closed {
            self.end(*session);
        }
        let ((finished, withheld), dropped) = {
            let mut capabilities = self.capabilities();
            let ended = (capabilities.take_finished(), capabilities.take_withheld());
            (ended, capabilities.take_dropped())
        };
        events.unused = self.workers.forget(dropped);
        let mut sessions = self.sessions();
        let finished = finished.into_iter().map(|id| (id, Ok(Answer::Revoked)));
        let withheld = withheld.into_iter().map(|id| (id, Err(refusal(RefusalKind::System, WITHHELD))));
        let answered = finished.chain(withheld).filter(|(id, _)| sessions.answer_revocation(*id));
        events.revoked.extend(answered);
        events
    }

    /// Stops: finishes what runs within `grace`, refuses what waits, tells every client, ends the workers.
    pub fn stop(&mut self, grace: Duration) {
        self.workers.stop(grace);
        let mut sessions = self.sessions();
        for session in sessions.ids() {
            sessions.close(session);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// What a worker signals of a client of `process`, and what is given to the client for it.
fn signal_target(
    by: NotifyBy,
    process: u32,
    descriptors: &[OwnedFd],
) -> Result<(Target, Vec<OwnedFd>), Refusal> {
    let system = |error: std::io::Error| refusal(RefusalKind::System, error);
    match by {
        NotifyBy::Event => {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let event = rustix::event::eventfd(0, flags).map_err(|error| system(error.into()))?;
            let given = event.try_clone().map_err(system)?;
            Ok((Target::Event(event), vec![given]))
        }
        // Nobody else's io_uring can come here on a system of today, and what else comes may block when it is closed.
        NotifyBy::Ring { .. } if process != std::process::id() => {
            let why =
                "only embedded clients can be signalled by their io_uring; poll an eventfd with it instead";
            Err(refusal(RefusalKind::Argument, why))
        }
        NotifyBy::Ring { user_data } => {
            let none = || refusal(RefusalKind::Argument, "no descriptor came");
            let ring = descriptors.first().ok_or_else(none)?.try_clone().map_err(system)?;
            Ok((Target::Ring(ring, user_data), Vec::new()))
        }
    }
}

/// Random enough that no two services ever have the same.
fn random_id() -> rustix::io::Result<ServiceId> {
    let mut bytes = [0; 16];
    // Requests as short as this are never cut.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(ServiceId(u128::from_le_bytes(bytes)))
}

fn refused_capability(error: &CapabilityError) -> Refusal {
    let quota = matches!(error, CapabilityError::Quota { .. });
    refusal(if quota { RefusalKind::Quota } else { RefusalKind::Capability }, error)
}
