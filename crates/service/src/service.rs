//! The control side: executes commands of sessions, assigns queue pairs to workers, and processes the workers' notices.
//!
//! ```text
//! connect ─ execute(command) ─► capability table, sessions ─ worker commands ─► workers
//! process_events ◄─ notices of workers: revocations complete, rules violated, memory failed
//! ```
//!
//! It uses no socket, and accesses client memory only through `memferry-shm`. The owner of a `Service` calls
//! [`process_events`](Service::process_events) when [`notifier`](Service::notifier) is readable.

mod engine_processes;
mod queries;

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
use memferry_shm::bus_error;
use memferry_shm::frame::{self, FrameRefused};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{Layout, ServiceEnd};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{
    CacheHint, Confined, Failure, GrantToken, Handle, Operation, Outcome, Rights, SessionId, Side, Span,
    Terms,
};
use rustix::event::EventfdFlags;

use crate::MonotonicClock;
use crate::bells::Bells;
use crate::config::ServiceConfig;
use crate::counters::{Loads, QueueCounters, RefusedCounters, ZeroedCounters};
use crate::engines::{Engines, ExportRequest, FrameProposal};
use crate::overflow::OverflowUser;
use crate::policies::Policies;
use crate::profile;
use crate::protocol::{Answer, Command, Grantee, NotifyBy, Refusal, RefusalKind, ServiceId, Violation};
use crate::ring_pool::{RingPool, TakeError};
use crate::session::{Introduced, Sessions, refusal, session_closed};
use crate::shared::{Clients, NewQueue, Notice, Shared, SignalTarget, WorkerCommand, WorkerHandle};
use crate::start_error::StartError;
use crate::worker::threads::Workers;

/// Result of [`Service::execute`].
#[derive(Debug)]
pub enum Executed {
    /// The answer and its descriptors.
    Done(Result<Answer, Refusal>, Vec<OwnedFd>),
    /// [`Service::process_events`] returns the answer when this revocation is complete. For clients [here](Clients::Here) the caller has
    /// to go on with it.
    Later(RevocationId),
    /// The session waits for an engine process to allocate a frame; [`Service::allocated`] gives the answer.
    Allocates(FrameProposal),
    /// The session waits for an engine process to export a frame. The attendants pass descriptor and answer on, unless
    /// [`Service::export_state`] says that it is over before the engine has taken its event.
    Exports(ExportRequest),
    /// The session waits for an event about frames, which [`Service::take_frame_deliveries`] returns when there is one.
    Waits,
}

/// Other requests could use a capability that was to be given back.
pub(crate) struct NotGivenBack;

/// Result of [`Service::process_events`].
#[derive(Default)]
pub struct Events {
    /// Answers of pending revocations: complete, or prevented by a failed engine channel.
    pub revoked: Vec<(RevocationId, Result<Answer, Refusal>)>,
    /// Sessions closed for a violation or because their memory failed.
    pub closed: Vec<(SessionId, Violation)>,
    /// Queues that no worker uses any more.
    pub released: Vec<(SessionId, u32)>,
    /// Unused memory and queues. Unmapping may take seconds, and removing a doorbell as long as its client's watches take.
    pub to_drop: Vec<Box<dyn Send>>,
}

/// The refusal of a revocation that may never complete.
const WITHHELD: &str = "an engine channel failed and may still write to this memory: no new transfer can use it, but the service \
                        keeps it; use other memory, or restart the service to free it";

/// Up to this many bytes, a transfer of an embedded client runs with the capability table locked, which costs less than claims.
const SHORT_BYTES: u64 = 16 << 10;

/// Frames given back by embedded clients whose memory waits for a common grace period.
const MAX_GIVEN_BACK: usize = 64;
/// A frame of this length does not wait, so that 64 waiting ones hold at most 4 MiB.
const LONG_FRAME_BYTES: u64 = 64 << 10;

/// Capabilities that a revocation marks with the table locked, before others may have it.
const PART_NODES: usize = 1024;

/// A running service: its workers, sessions and capability table.
pub struct Service {
    id: ServiceId,
    config: ServiceConfig,
    clients: Clients,
    shared: Arc<Shared>,
    workers: Workers,
    policies: Policies,
    sessions: Mutex<Sessions>,
    rings: Mutex<RingPool>,
    bells: Mutex<Bells>,
    loads: Loads,
    started: Instant,
    fences: Fences,
    zeroed: ZeroedCounters,
    refused: RefusedCounters,
    overflow: OverflowUser,
    engines: Mutex<Engines>,
}

impl Service {
    /// Starts a service and its workers.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ServiceConfig, clients: Clients) -> Result<Self, StartError> {
        config.check()?;
        level::forced()?;
        if let Some(thresholds) = profile::load()? {
            // Fails if engines of this process already chose thresholds; those stay in use.
            let _ = tuning::install(thresholds);
        }
        // Determined now, because the sandbox forbids workers to read the cache sizes later.
        let _ = (tuning::current(), level::Cpu::of_this_process());
        let failed = |step| move |source: std::io::Error| StartError::System { step, source };
        bus_error::install().map_err(failed("installing the memory error handler"))?;
        let handles = WorkerHandle::all(config.workers as usize).map_err(failed("preparing a worker"))?;
        let for_team = handles.clone();
        // No copy team in the idle class: a member that the kernel does not schedule delays the copy that it shares.
        let members = if config.worker_class == SchedulingClass::Idle { 0 } else { handles.len() };
        let team = Arc::new(CopyTeam::new(members, move |number| for_team[number].wake()));
        let fences = Fences::register();
        let places = config.pinning.plan(config.workers);
        // Workers that the kernel places count as near each other.
        let complexes = places.iter().map(|place| place.map_or(usize::MAX, |place| place.complex)).collect();
        let capabilities = config.quotas.capabilities as usize;
        let shared =
            Shared::new(capabilities, (handles.clone(), complexes, fences), team, config.engines.len());
        let shared = Arc::new(shared.map_err(|error| failed("eventfd")(error.into()))?);
        let (policies, for_workers) = Policies::new(&config.policy, handles.len());
        let handles = handles.into_iter().zip(for_workers).zip(places);
        let workers = Workers::start(&config, clients, &shared, handles)?;
        let sessions = Mutex::default();
        let engines = Mutex::new(Engines::new(&config.engines));
        let rings = Mutex::default();
        let bells = Mutex::default();
        let loads = Loads::new(workers.count());
        let started = MonotonicClock.now();
        let id = random_id().map_err(|error| failed("getrandom")(error.into()))?;
        Ok(Self {
            id,
            config,
            clients,
            shared,
            workers,
            policies,
            sessions,
            rings,
            bells,
            loads,
            started,
            fences,
            zeroed: ZeroedCounters::default(),
            refused: RefusedCounters::default(),
            overflow: OverflowUser::of_this_process(),
            engines,
        })
    }

    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// The fences that order parking flags of this process.
    pub fn fences(&self) -> Fences {
        self.fences
    }

    /// The fences of a queue pair: those of this process, if membarrier may order the parking flags of its client, too.
    fn fences_with(&self, is_asymmetric: bool) -> Fences {
        if is_asymmetric { self.fences } else { Fences::Full }
    }

    /// Readable when [`process_events`](Self::process_events) has work.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.shared.notifier()
    }

    pub(crate) fn wake_control(&self) {
        self.shared.notify(Notice::Settled);
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bells(&self) -> MutexGuard<'_, Bells> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rings(&self) -> MutexGuard<'_, RingPool> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn capabilities(&self) -> MutexGuard<'_, Capabilities<Mapping>> {
        self.shared.for_control()
    }

    /// Opens a session for a client.
    ///
    /// # Errors
    /// [`RefusalKind::Quota`]; [`RefusalKind::Argument`] for a client of another process whose user has no id here.
    pub fn connect(&self, client: Introduced) -> Result<SessionId, Refusal> {
        if self.clients == Clients::Elsewhere && self.overflow.refuses(client.user) {
            return Err(refusal(RefusalKind::Argument, OverflowUser::reason(client.user)));
        }
        self.sessions().open(client, &self.config.quotas)
    }

    /// Ends the session of a client that disconnected or exited, and so reads its queues no more.
    pub fn disconnect(&self, session: SessionId) {
        self.client_left(session);
        self.end(session);
    }

    /// The client of an ended session disconnected or exited. Its user may have the memory of its queues again.
    pub fn client_left(&self, session: SessionId) {
        self.rings().client_left(session);
    }

    /// Whether the service keeps memory until [`client_left`](Self::client_left) is called for an ended session.
    pub fn waits_for_client(&self, session: SessionId) -> bool {
        self.rings().is_read(session)
    }

    /// Ends a session: cancels its requests, closes its queue pairs, and releases its memory when no transfer uses it.
    pub fn end(&self, session: SessionId) {
        if self.sessions().close(session).is_none() {
            return;
        }
        self.engine_session_ended(session);
        self.capabilities().begin_close(session, PART_NODES);
        self.shared.between_parts();
        let no_moves = self.shared.no_moves();
        self.workers.iter().for_each(|worker| worker.send(WorkerCommand::CloseSession { session }));
        drop(no_moves);
        // Other sessions may have transfers in memory that this session granted them.
        self.cancel_revoked();
        self.shared.notify(Notice::Settled);
    }

    /// Checks that a command that brings memory is within the quotas, before that is mapped.
    ///
    /// # Errors
    /// [`RefusalKind::Quota`]; [`RefusalKind::Argument`] for a closed session.
    pub fn check_room(&self, session: SessionId, command: &Command) -> Result<(), Refusal> {
        match command {
            Command::Register { length, .. } => {
                self.sessions().room_for_frame(session, *length, &self.config.quotas)
            }
            Command::OpenQueue { .. } => self.sessions().room_for_queue(session, &self.config.quotas),
            Command::OpenEngine { .. } if !self.is_engine(session) => {
                Err(refusal(RefusalKind::Argument, "this session is no engine's; attach first"))
            }
            _ => Ok(()),
        }
    }

    /// The refusal of a command whose memory was refused.
    pub fn refused_memory(command: &Command, error: &FrameRefused) -> Refusal {
        match (command, error) {
            (Command::OpenQueue { .. }, FrameRefused::System { .. }) => no_resources(error),
            _ => refusal(RefusalKind::Frame, error),
        }
    }

    /// Admits the memory that a command brings. It may block as long as the client likes: for embedded clients only.
    pub(crate) fn admit(
        &self,
        session: SessionId,
        command: &Command,
        descriptors: &[OwnedFd],
    ) -> Result<Option<Mapping>, Refusal> {
        let Some(length) = command.memory_bytes() else { return Ok(None) };
        let user = self.sessions().get(session).ok_or_else(session_closed)?.client.user;
        let descriptor = descriptors
            .first()
            .ok_or_else(|| refusal(RefusalKind::Frame, "the command has no descriptor"))?;
        self.check_room(session, command)?;
        let mapping = frame::admit(descriptor.as_fd(), length, user);
        mapping.map(Some).map_err(|error| Self::refused_memory(command, &error))
    }

    /// Executes a command of `session`. `memory` is what it [brings](Command::memory_bytes), mapped and admitted;
    /// `descriptors` are the others that it requires.
    pub fn execute(
        &self,
        session: SessionId,
        command: Command,
        memory: Option<Mapping>,
        descriptors: &[OwnedFd],
    ) -> Executed {
        let answer = match command {
            Command::Revoke { handle } => return self.revoke(session, handle),
            Command::NextFrame { done } => return self.next_frame(session, done),
            Command::Allocate { home, length } => return self.allocate(session, &home, length),
            Command::Export { handle } => return self.export(session, handle),
            Command::AcceptRemote { node, service, token, length, rights } => {
                return self.accept_remote(session, (node, service, token), length, rights);
            }
            Command::AcceptFor { node, user, token } => self.accept_for(session, (node, user), token),
            Command::AttachEngine { name, role } => self.attach_engine(session, &name, &role),
            Command::OpenEngine { workers, capacity } => {
                match self.open_engine(session, (workers, capacity), memory) {
                    Ok((answer, descriptors)) => return Executed::Done(Ok(answer), descriptors),
                    Err(refused) => Err(refused),
                }
            }
            Command::OpenQueue { capacity } => match self.open_queue(session, capacity, memory) {
                Ok((answer, descriptors)) => return Executed::Done(Ok(answer), descriptors),
                Err(refused) => Err(refused),
            },
            Command::Register { rights, .. } => {
                memory.ok_or_else(no_memory).and_then(|memory| self.register_mapping(session, memory, rights))
            }
            Command::Derive { handle, offset, length, rights } => self
                .capabilities()
                .derive(session, handle, (offset, length), rights)
                .map(Answer::Handle)
                .map_err(|error| refused_capability(&error)),
            Command::Grant { to: Grantee::User(user), .. } if self.overflow.refuses(user) => {
                Err(refusal(RefusalKind::Argument, OverflowUser::reason(user)))
            }
            Command::Grant { to: Grantee::Remote { node, .. }, .. } if !node.is_valid() => {
                engine_processes::check_node(node).map(|()| Answer::Closed)
            }
            Command::Grant { handle, offset, length, rights, to, lasts } => {
                let range = (offset, length);
                let granted = self.capabilities().grant_for(session, handle, range, rights, to, lasts);
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
            Command::Status => Ok(Answer::Status(Box::new(self.status(session)))),
            Command::Policy { change } => self.policy(session, change.map(|change| *change)),
            Command::Identify { session } => self.identify(session),
        };
        Executed::Done(answer, Vec::new())
    }

    /// Registers admitted memory, or memory of this process, as a frame of `session`.
    ///
    /// # Errors
    /// [`RefusalKind::Quota`], [`RefusalKind::Capability`]; [`RefusalKind::Argument`] for rights without read and write, and for
    /// a closed session.
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
            return Err(refusal(RefusalKind::Argument, "a frame needs the right to read or to write"));
        }
        // Locked from the quota check to its use, so that no other registration comes between.
        let mut sessions = self.sessions();
        sessions.room_for_frame(session, bytes, &self.config.quotas)?;
        let handle = self
            .capabilities()
            .register(session, mapping, rights)
            .map_err(|error| refused_capability(&error))?;
        sessions.add_frame(session, handle, bytes);
        Ok(Answer::Handle(handle))
    }

    /// Performs a short copy or fill of `session` within the caches, on the calling thread. `None`, and nothing counts as done, if
    /// it is none or anything is wrong with it: [`perform`](Self::perform) gives its outcome.
    #[inline]
    pub fn perform_short(
        &self,
        session: SessionId,
        operation: &Operation<Span>,
        hint: CacheHint,
    ) -> Option<Outcome> {
        match *operation {
            Operation::Copy { source, destination, length } if length <= SHORT_BYTES => {
                let capabilities = self.shared.for_own_thread();
                let source = capabilities.operand(session, Side::Source, source, length)?;
                let destination = capabilities.operand(session, Side::Destination, destination, length)?;
                memferry_cpu::copy_cached(&source, &destination, length, hint)
            }
            Operation::Fill { destination, length, pattern }
                if length <= SHORT_BYTES && length % pattern.length_bytes() == 0 =>
            {
                let capabilities = self.shared.for_own_thread();
                let destination = capabilities.operand(session, Side::Destination, destination, length)?;
                memferry_cpu::fill_cached(&destination, length, pattern, hint)
            }
            _ => None,
        }
    }

    /// Performs a transfer of `session` on the calling thread. For embedded clients only. The caller has checked that
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
        if let Some(done) = self.perform_short(session, operation, terms.hint) {
            return Ok(done);
        }
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
        let user = self.sessions().get(session).ok_or_else(session_closed)?.client.user;
        let accepted =
            self.capabilities().accept(session, user, token).map_err(|error| refused_capability(&error))?;
        let Accepted { handle, length, rights, grantor } = accepted;
        Ok(Answer::Accepted { handle, length, rights, grantor })
    }

    fn revoke(&self, session: SessionId, handle: Handle) -> Executed {
        // Locked until the revocation is recorded, because it may complete at once and is then reported to its caller.
        let mut sessions = self.sessions();
        let revoked = sessions.room_for_revocation(session).and_then(|()| {
            self.capabilities()
                .begin_revoke(session, handle, PART_NODES)
                .map_err(|error| refused_capability(&error))
        });
        let id = match revoked {
            Ok(id) => id,
            Err(refusal) => return Executed::Done(Err(refusal), Vec::new()),
        };
        sessions.remove_frame(session, handle);
        sessions.add_revocation(id, session);
        drop(sessions);
        self.cancel_revoked();
        if self.clients == Clients::Elsewhere {
            self.shared.notify(Notice::Settled);
        }
        Executed::Later(id)
    }

    /// Revokes a capability of an embedded client that promises that none of its own requests uses it any more.
    ///
    /// The memory leaves the service later, with that of others, because each grace period costs a system call. That of a long frame
    /// leaves before the return, which waits for one.
    ///
    /// # Errors
    /// [`NotGivenBack`] if other requests could use it: then nothing is done.
    pub(crate) fn give_back(
        &self,
        session: SessionId,
        handle: Handle,
    ) -> Result<Option<Events>, NotGivenBack> {
        let mut sessions = self.sessions();
        let mut capabilities = self.capabilities();
        if !capabilities.is_unshared(session, handle) || capabilities.revoke(session, handle).is_err() {
            return Err(NotGivenBack);
        }
        let is_many = capabilities.dropped() >= MAX_GIVEN_BACK;
        drop(capabilities);
        let bytes = sessions.remove_frame(session, handle);
        drop(sessions);
        Ok((is_many || bytes >= LONG_FRAME_BYTES).then(|| self.revocation_events()))
    }

    /// Goes on with revocations and returns those that have ended, as [`process_events`](Self::process_events) does.
    pub(crate) fn revocation_events(&self) -> Events {
        let mut events = Events::default();
        self.settle_revocations(&mut events);
        events
    }

    /// Makes workers cancel requests whose memory was revoked.
    fn cancel_revoked(&self) {
        if self.capabilities().take_caught() {
            self.workers.iter().for_each(WorkerHandle::cancel_revoked);
        }
    }

    fn open_queue(
        &self,
        session: SessionId,
        capacity: u32,
        memory: Option<Mapping>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let layout = Layout::new(capacity).map_err(|error| refusal(RefusalKind::Argument, error))?;
        let memory = memory.ok_or_else(no_memory)?;
        if memory.page_bytes() != rustix::param::page_size() {
            let why = "the memory of a queue must not consist of huge pages, whose holes cannot be prevented on every Linux";
            return Err(refusal(RefusalKind::Frame, why));
        }
        let mut sessions = self.sessions();
        let Introduced { user, asymmetric_fences, .. } =
            sessions.get(session).map(|open| open.client.clone()).ok_or_else(session_closed)?;
        let worker = self.loads.lightest();
        let counters = Arc::new(QueueCounters::at(worker, &self.loads));
        let queue = sessions.add_queue(session, &counters, &self.config.quotas)?;
        let mut rings = self.rings();
        let half = rings.take(user, capacity, self.config.quotas.queues).map_err(|refused| {
            sessions.remove_queue(session, queue);
            match refused {
                TakeError::Quota => refusal(RefusalKind::Quota, format!(
                    "user {user} has reached its quota of {} queues of this size, some still closing; try again",
                    self.config.quotas.queues
                )),
                TakeError::System(error) => no_resources(&error),
            }
        })?;
        let fences = self.fences_with(asymmetric_fences);
        let memories = MappedWords::new(memory).zip(MappedWords::new(half.mapping.clone()));
        let end = memories.and_then(|(client, own)| ServiceEnd::new(layout, client, own, fences).ok());
        let descriptor = half.descriptor.try_clone();
        let parked = self.workers.get(worker).parked_memory();
        rings.lend((session, queue), half);
        let not_opened = |sessions: &mut Sessions, rings: &mut RingPool, error: &dyn std::fmt::Display| {
            sessions.remove_queue(session, queue);
            rings.queue_closed((session, queue));
            rings.give_back((session, queue));
            no_resources(error)
        };
        let (Some(end), Ok(descriptor), Ok(parked)) = (end, descriptor, parked) else {
            return Err(not_opened(&mut sessions, &mut rings, &"its memory cannot be shared"));
        };
        // Last: dropping a bell may take as long as clients' watches on its doorbells.
        let (doorbell, bells) = match self.bells().open(user, worker, self.workers.count() > 1) {
            Ok(opened) => opened,
            Err(error) => return Err(not_opened(&mut sessions, &mut rings, &error)),
        };
        end.set_worker(worker);
        sessions.add_counters(session, queue, &counters);
        let end = Box::new(end);
        let class = self.config.class_of(user);
        let target = None;
        let opened = NewQueue { session, number: queue, user, class, end, bells, target, counters };
        self.workers.get(worker).send(WorkerCommand::Open(opened));
        Ok((Answer::Queue { queue, capacity }, vec![descriptor, doorbell, parked]))
    }

    fn close_queue(&self, session: SessionId, queue: u32) -> Result<Answer, Refusal> {
        let unknown = || refusal(RefusalKind::Argument, format!("queue {queue} is not open"));
        // Also for an embedded client whose session has ended.
        self.rings().queue_closed((session, queue));
        let counters = self.sessions().remove_queue(session, queue).ok_or_else(unknown)?;
        self.send_to_worker_of(&counters, WorkerCommand::CloseQueue { session, number: queue });
        Ok(Answer::Closed)
    }

    /// Sends a command about a queue to the worker that has it.
    fn send_to_worker_of(&self, counters: &QueueCounters, command: WorkerCommand) {
        let _no_moves = self.shared.no_moves();
        self.workers.get(counters.worker()).send(command);
    }

    /// Sets the signal of a queue. If it is an eventfd, returns it, followed for clients [elsewhere](Clients::Elsewhere) by
    /// the eventfd that the worker writes to.
    fn notify_client(
        &self,
        session: SessionId,
        queue: u32,
        by: NotifyBy,
        descriptors: &[OwnedFd],
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let unknown = || refusal(RefusalKind::Argument, format!("queue {queue} is not open"));
        let mut sessions = self.sessions();
        let counters = sessions.find_queue(session, queue).ok_or_else(unknown)?;
        if matches!(by, NotifyBy::Ring { .. })
            && self.clients == Clients::Here
            && !self.workers.iter().all(WorkerHandle::signals_rings)
        {
            let why = "this system gives the service no io_uring (see kernel.io_uring_disabled); use an eventfd, wait or poll";
            return Err(refusal(RefusalKind::System, why));
        }
        let (target, given) = signal_target(by, self.clients, descriptors)?;
        // Last, so that a refused or failed command does not use up the queue's only signal.
        if !sessions.set_notified(session, queue) {
            let why = format!("queue {queue} is signalled already; open another");
            return Err(refusal(RefusalKind::Argument, why));
        }
        self.send_to_worker_of(&counters, WorkerCommand::Notify { session, number: queue, target });
        Ok(given)
    }

    /// Processes the workers' notices.
    pub fn process_events(&self) -> Events {
        let notices = self.shared.take_notices();
        let mut events = Events::default();
        let mut damaged = false;
        for notice in notices {
            match notice {
                Notice::Settled => {}
                Notice::Violation(session, violation) => events.closed.push((session, violation)),
                Notice::MemoryFault => damaged = true,
                Notice::Discarded(signal) => events.to_drop.push(Box::new(signal)),
                Notice::Forgotten(frames) => events.to_drop.push(Box::new(frames)),
                Notice::EngineReleased(remains) => events.to_drop.push(remains),
                Notice::EngineFault(id, fault) => {
                    let session = self.faulty_engine(id, fault);
                    let violation = Violation::Engine(fault.to_string());
                    events.closed.extend(session.map(|session| (session, violation)));
                }
                Notice::QueueReleased { session, number, remains } => {
                    self.sessions().queue_released(session, number);
                    self.rings().give_back((session, number));
                    events.released.push((session, number));
                    events.to_drop.push(Box::new(remains));
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
        self.settle_revocations(&mut events);
        events
    }

    /// Goes on with revocations, and adds those that have ended.
    fn settle_revocations(&self, events: &mut Events) {
        let mut capabilities = self.capabilities();
        let is_more = capabilities.advance(PART_NODES);
        let finished = capabilities.take_finished();
        let withheld = capabilities.take_withheld();
        let freed = capabilities.take_freed();
        let dropped = capabilities.take_dropped();
        drop(capabilities);
        if is_more {
            self.shared.between_parts();
            self.shared.notify(Notice::Settled);
        }
        self.cancel_revoked();
        if finished.is_empty() && withheld.is_empty() && dropped.is_empty() && freed.is_empty() {
            return;
        }
        // Before the answers, and before the memory is given up: no worker uses what it found before.
        let retired = self.shared.view.retire();
        let must_forget = self.release_from_engines(&freed);
        let unused = self.workers.forget(freed, must_forget);
        events.to_drop.push(Box::new((retired, dropped, unused)));
        let mut sessions = self.sessions();
        let finished = finished.into_iter().map(|id| (id, Ok(Answer::Revoked)));
        let withheld = withheld.into_iter().map(|id| (id, Err(refusal(RefusalKind::System, WITHHELD))));
        let answered = finished.chain(withheld).filter(|(id, _)| sessions.answer_revocation(*id));
        events.revoked.extend(answered);
    }

    /// Stops: lets running requests finish within `grace`, refuses waiting ones, wakes every client, ends the workers.
    pub fn stop(&mut self, grace: Duration) {
        self.workers.stop(grace, &self.shared);
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

fn no_resources(error: &dyn std::fmt::Display) -> Refusal {
    let message = format!(
        "the service has no memory or descriptors for another queue ({error}); close some, or try again later"
    );
    refusal(RefusalKind::System, message)
}

fn no_memory() -> Refusal {
    refusal(RefusalKind::Frame, "the command has no memory")
}

/// The descriptor that a worker signals, and those returned.
fn signal_target(
    by: NotifyBy,
    clients: Clients,
    descriptors: &[OwnedFd],
) -> Result<(SignalTarget, Vec<OwnedFd>), Refusal> {
    let system = |error: std::io::Error| refusal(RefusalKind::System, error);
    let eventfd = || {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map_err(|error| system(error.into()))
    };
    match (by, clients) {
        (NotifyBy::Event, Clients::Here) => {
            let event = eventfd()?;
            let given = event.try_clone().map_err(system)?;
            Ok((SignalTarget::Event(event), vec![given]))
        }
        (NotifyBy::Event, Clients::Elsewhere) => {
            let event = eventfd()?;
            let relayed = event.try_clone().map_err(system)?;
            Ok((SignalTarget::Event(event), vec![eventfd()?, relayed]))
        }
        // Current Linux does not pass io_uring descriptors between processes, and closing any other descriptor may block.
        (NotifyBy::Ring { .. }, Clients::Elsewhere) => {
            let why =
                "only embedded clients can be signalled by their io_uring; poll an eventfd with it instead";
            Err(refusal(RefusalKind::Argument, why))
        }
        (NotifyBy::Ring { user_data }, Clients::Here) => {
            let none = || refusal(RefusalKind::Argument, "the command has no descriptor");
            let ring = descriptors.first().ok_or_else(none)?.try_clone().map_err(system)?;
            Ok((SignalTarget::Ring(ring, user_data), Vec::new()))
        }
    }
}

/// 128 random bits, so that no two services get the same id.
fn random_id() -> rustix::io::Result<ServiceId> {
    let mut bytes = [0; 16];
    // getrandom returns all bytes of requests as short as this.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(ServiceId(u128::from_le_bytes(bytes)))
}

pub(crate) fn refused_capability(error: &CapabilityError) -> Refusal {
    let quota = matches!(error, CapabilityError::Quota { .. });
    refusal(if quota { RefusalKind::Quota } else { RefusalKind::Capability }, error)
}

#[cfg(test)]
mod tests;
