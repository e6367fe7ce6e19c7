//! The daemon: a socket, signals and an event loop in front of the service.
//!
//! ```text
//! listener ─ accept ─► the user's attendant (a process) ◄─ packets ─► client
//! attendant ─ commands, admitted memory ─► Service::execute ─► answers ─► attendant
//! notifier ─► Service::process_events ─► late answers, violations       SIGTERM, SIGINT ─► Service::stop
//! ```
//!
//! One thread, which makes no system call that a client can hold without end: attendants have the clients' sockets, descriptors and
//! processes. A session ends when the client's socket hangs up or its process exits: a forked child may keep the socket open. The
//! service's workers move the bytes.

mod attendant;
mod attendants;
mod engines;
mod exports;
mod listener;
mod log_limit;
mod messages;
mod releases;
mod rests;
mod sandbox;
mod spawner;
mod supervisor;
#[cfg(test)]
mod testing;
mod unmapper;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_path::RevocationId;
use memferry_shm::conduit::{self, PeerProcess};
use memferry_shm::frame::{Candidate, FrameRefused};
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::SessionId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::pipe::PipeFlags;
use thiserror::Error;

use memferry_service::protocol::{self, Answer, Command, Envelope, Hello, Refusal, RefusalKind, Violation};
use memferry_service::{Clients, Executed, FrameProposal, Introduced, Service, ServiceConfig, StartError};

use attendants::{Attendants, Happened, NotHandedOver};
use engines::{ALLOCATION_LIMIT, Allocating};
use exports::Exporting;
use log_limit::LogLimit;
use messages::{ClientId, FromAttendant, IN_FLIGHT, ToAttendant};
use releases::Releases;
use rests::Rests;
use supervisor::Supervisor;
use unmapper::Unmapper;

pub use listener::{ListenError, Listener};

/// Serializes tests that fork or spawn with tests whose locks or sockets a child must not inherit.
#[cfg(test)]
static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());

const LISTENER: u64 = 0;
const NOTIFIER: u64 = 1;
const SIGNALS: u64 = 2;
/// Stands for an unknown user. Its attendant closes the sockets of clients that are turned away.
const NO_USER: u32 = u32::MAX;

/// Options of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonOptions {
    pub socket: PathBuf,
    /// Permission bits of the socket, which decide who may connect.
    pub mode: u32,
    pub service: ServiceConfig,
    /// Time for which running requests may continue after a stop.
    pub grace: Duration,
    /// Whether to confine the processes of the service by seccomp and Landlock.
    pub sandbox: bool,
}

/// Reason for which the daemon did not start, or ended without a signal.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The socket could not be set up.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The process could not be confined.
    #[error(transparent)]
    Sandbox(#[from] sandbox::SandboxError),
    /// The event loop failed.
    #[error("the event loop failed ({step}): {source}")]
    Loop { step: &'static str, source: io::Error },
}

/// Serves on the socket named in `options` until SIGTERM or SIGINT. Calls `ready` when clients can connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve(options: &DaemonOptions, ready: impl FnOnce()) -> Result<(), ServeError> {
    serve_on(Listener::bind(&options.socket, options.mode)?, options, ready)
}

/// Serves on `listener` until SIGTERM or SIGINT. Calls `ready` when clients can connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve_on(listener: Listener, options: &DaemonOptions, ready: impl FnOnce()) -> Result<(), ServeError> {
    // If only the panicking worker ended, its clients would wait forever. They notice when the process ends.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    raise_descriptor_limit();
    // Closing a socket then waits for nobody, whoever is the last to close it, until an attendant welcomes its client. Before
    // Linux 6.16 descriptors can come from the start.
    let _ = conduit::refuse_descriptors(listener.socket());
    let started = start(&listener, options);
    let (mut daemon, supervisor) = match started {
        Ok(started) => started,
        Err(error) => {
            listener.close();
            return Err(error);
        }
    };
    let address = listener.address();
    let workers = options.service.workers;
    tracing::info!(socket = address, workers, "ready");
    supervisor.notify(&format!("READY=1\nSTATUS=Listening on {address} with {workers} workers\n"));
    ready();
    let ended = daemon.run(&listener);
    tracing::info!("stopping");
    supervisor.notify("STOPPING=1\nSTATUS=Finishing running requests\n");
    daemon.service.stop(options.grace);
    daemon.attendants.remove_traces();
    tracing::info!("stopped");
    ended
}

/// Starts everything in the order that confinement needs: Landlock first, which processes and threads inherit (outside of it
/// the spawner would not even get the signal that ends it with the service); then the spawner, which must be forked from a process
/// without threads; then the service with its threads; the seccomp filter last.
fn start(listener: &Listener, options: &DaemonOptions) -> Result<(Daemon, Supervisor), ServeError> {
    let failed = |step| move |source: io::Error| ServeError::Loop { step, source };
    // Kept by the library; a confined process could not find it out.
    let _ = rustix::param::page_size();
    let supervisor = Supervisor::connect();
    let traces = listener.traces();
    if options.sandbox {
        sandbox::take_file_systems(options.service.module.as_deref(), traces.directory())?;
    }
    let attendants = Attendants::start(traces, options.sandbox).map_err(failed("forking"))?;
    let daemon = Daemon::new(options, listener, attendants)?;
    if options.sandbox {
        sandbox::enter(options.service.module.is_some(), supervisor.number())?;
    }
    Ok((daemon, supervisor))
}

fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// Time for engine processes to map memory that a client registers. Far above what it takes.
const MAPPING_LIMIT: Duration = Duration::from_millis(100);
/// Interval at which the daemon checks whether it can accept again.
const PAUSE: Duration = Duration::from_millis(10);

struct Connection {
    user: u32,
    process: u32,
    session: Option<SessionId>,
    /// Its session was logged: it did more than look at the service, as a query of the metrics does.
    is_logged: bool,
    /// Its command whose memory is being sealed.
    pending: Option<Pending>,
    /// It asked to be an engine. If its connection ends before it has the answer, its attendant watches its process.
    asked_for_engine: bool,
}

/// A command that waits for its memory to be mapped by engine processes, and then to be sealed.
struct Pending {
    serial: u32,
    command: Command,
    memory: Mapping,
    proposals: Vec<FrameProposal>,
}

struct Daemon {
    service: Service,
    attendants: Attendants,
    unmapper: Unmapper,
    rests: Arc<Rests>,
    epoll: OwnedFd,
    /// Readable when a signal to end has arrived. Kept open.
    _signals: OwnedFd,
    /// Whether accepting is paused, because descriptors ran out.
    paused: bool,
    connections: BTreeMap<ClientId, Connection>,
    by_session: BTreeMap<SessionId, ClientId>,
    /// Sessions that the service ended and whose process may still read their queues, with their user.
    leaving: BTreeMap<ClientId, (SessionId, u32)>,
    releases: Releases,
    /// Client and serial of the command that waits for a revocation.
    waiting: BTreeMap<RevocationId, (ClientId, u32)>,
    /// Client and serial of the commands that wait for events about frames.
    asking: BTreeMap<SessionId, (ClientId, u32)>,
    /// Clients that wait for an engine process to allocate a frame. Those that have left stay until it has answered.
    allocating: Vec<Allocating>,
    /// Clients that wait for an engine process to export a frame, likewise.
    exporting: Vec<Exporting>,
    /// Clients whose memory engine processes are to map, and until when they may.
    proposed: BTreeMap<ClientId, Instant>,
    refusal_lines: LogLimit,
    /// Lines about sessions that begin and end.
    session_lines: LogLimit,
    next: u64,
}

impl Daemon {
    fn new(
        options: &DaemonOptions,
        listener: &Listener,
        mut attendants: Attendants,
    ) -> Result<Self, ServeError> {
        let failed = |step| move |source: io::Error| ServeError::Loop { step, source };
        // A pipe: the confined process may write to it in a signal handler, but not send.
        let (signals, handler_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| failed("signals")(error.into()))?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let end = handler_end.try_clone().map_err(failed("signals"))?;
            signal_hook::low_level::pipe::register(signal, end).map_err(failed("signals"))?;
        }
        let service = Service::start(options.service.clone(), Clients::Elsewhere)?;
        let rests = Arc::new(Rests::default());
        let unmapper = Unmapper::start(rests.clone()).map_err(failed("starting the unmapping thread"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed("epoll")(e.into()))?;
        let add = |fd: std::os::fd::BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .map_err(|error| failed("epoll")(error.into()))
        };
        add(listener.socket(), LISTENER)?;
        add(service.notifier(), NOTIFIER)?;
        add(signals.as_fd(), SIGNALS)?;
        attendants.watch(&epoll).map_err(failed("starting an attendant"))?;
        Ok(Self {
            service,
            attendants,
            unmapper,
            rests,
            epoll,
            _signals: signals,
            paused: false,
            connections: BTreeMap::new(),
            by_session: BTreeMap::new(),
            leaving: BTreeMap::new(),
            releases: Releases::default(),
            waiting: BTreeMap::new(),
            asking: BTreeMap::new(),
            allocating: Vec::new(),
            exporting: Vec::new(),
            proposed: BTreeMap::new(),
            refusal_lines: LogLimit::of_refusals(),
            session_lines: LogLimit::of_sessions(),
            next: 0,
        })
    }

    /// Pauses or resumes accepting.
    fn set_paused(&mut self, listener: &Listener, paused: bool) {
        let events = if paused { EventFlags::empty() } else { EventFlags::IN };
        let data = EventData::new_u64(LISTENER);
        self.paused = epoll::modify(&self.epoll, listener.socket(), data, events).is_ok() && paused;
    }

    /// The event loop; ends at SIGTERM or SIGINT.
    fn run(&mut self, listener: &Listener) -> Result<(), ServeError> {
        let failed = |step| move |source: io::Error| ServeError::Loop { step, source };
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); 64];
            let pause = self.paused.then_some(PAUSE).into_iter().chain(self.releases.pause()).min();
            let reports =
                [self.refusal_lines.time_left(), self.session_lines.time_left()].into_iter().flatten().min();
            let engines = self.engines_time_left();
            let limit = [pause, self.attendants.time_left(), reports, engines].into_iter().flatten().min();
            let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
            let events = match epoll::wait(&self.epoll, &mut space, limit.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed("epoll_wait")(error.into())),
            };
            if self.paused {
                self.set_paused(listener, false);
            }
            self.attendants.let_go(&self.epoll);
            self.refusal_lines.report_suppressed();
            self.session_lines.report_suppressed();
            for event in events {
                match event.data.u64() {
                    LISTENER => self.accept(listener),
                    NOTIFIER => self.process_events(),
                    SIGNALS => return Ok(()),
                    attendants::SPAWNER => {
                        self.attendants.spawned(&self.epoll).map_err(failed("starting attendants"))?;
                    }
                    token if Attendants::is_process(token) => {
                        self.attendants.process_ended(&self.epoll, token);
                    }
                    token => self.receive(token),
                }
            }
            self.serve_engines();
            self.send_releases();
        }
    }

    fn accept(&mut self, listener: &Listener) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(listener.socket(), flags) {
            Ok(socket) => socket,
            // The client waits in the backlog until there are descriptors again.
            Err(Errno::MFILE | Errno::NFILE) => return self.set_paused(listener, true),
            Err(_) => return,
        };
        let PeerProcess { descriptor: process, number, user } = match conduit::peer_process(socket.as_fd()) {
            Ok(peer) => peer,
            Err(error) => {
                let reason = format!(
                    "cannot watch the client's process ({error}); is it in the service's PID namespace?"
                );
                let user = conduit::peer_user(socket.as_fd()).unwrap_or(NO_USER);
                return self.turn_away(user, socket, &reason);
            }
        };
        let refused = self.rejection(user).map_or(Ok(()), Err);
        if let Err(reason) = refused.and_then(|()| self.attendants.need(&self.epoll, user)) {
            return self.turn_away(user, socket, &reason);
        }
        let client = ClientId(self.next);
        self.next += 1;
        let adopt = ToAttendant::Adopt { client };
        if let Err(failed) = self.attendants.hand_over(user, &adopt, socket, Some(&process)) {
            // Too many descriptors are in flight to clients that do not read, which is not this user's fault.
            if !matches!(failed, NotHandedOver::Kept { error: Errno::TOOMANYREFS, .. }) {
                self.lose(user);
            }
            if let NotHandedOver::Kept { socket, .. } = failed {
                self.turn_away(user, socket, "the service cannot keep up with this user; try again later");
            }
            return;
        }
        self.attendants.add_client(user);
        self.connections.insert(
            client,
            Connection {
                user,
                process: number,
                session: None,
                is_logged: false,
                pending: None,
                asked_for_engine: false,
            },
        );
    }

    /// Refuses a client, and sends it the reason. An attendant does it: closing the socket closes the descriptors that the client
    /// has sent already.
    fn turn_away(&mut self, user: u32, socket: OwnedFd, reason: &str) {
        self.refusal_lines.refused(user, reason);
        self.service.count_turned_away();
        let farewell = protocol::encode_violation(&Violation::Unwelcome(reason.to_owned()));
        // Its own attendant if it has one, so that it delays only itself.
        let message = ToAttendant::TurnAway { farewell };
        // An attendant that has the socket and finds no further message handles it with the next one.
        let own = self.attendants.hand_over(user, &message, socket, None);
        let Err(NotHandedOver::Kept { socket, .. }) = own else { return };
        let common = self.attendants.hand_over(NO_USER, &message, socket, None);
        let Err(NotHandedOver::Kept { socket, .. }) = common else { return };
        // Both are stuck. The last way out: nothing is left to close once the socket is shut down and drained.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        if !conduit::is_drained(socket.as_fd()) {
            self.unmapper.drop_later(Box::new(socket));
        }
    }

    /// Reason for which a user may not have another connection; `None` if it may.
    fn rejection(&self, user: u32) -> Option<String> {
        let limit = self.service.config().quotas.sessions as usize;
        let connected = self.connections.values().filter(|other| other.user == user).count();
        (connected >= limit).then(|| format!("user {user} has reached its quota of {limit} sessions"))
    }

    /// Handles one message of an attendant; only one, so that no user delays the others.
    fn receive(&mut self, token: u64) {
        let Some(user) = Attendants::user_of(token) else { return };
        let (message, descriptors) = match self.attendants.receive(user) {
            Happened::Message(message, descriptors) => (message, descriptors),
            Happened::Nothing => return,
            Happened::Lost => {
                tracing::warn!(user, "the attendant ended");
                return self.lose(user);
            }
        };
        if let FromAttendant::Panicked { message } = &message {
            tracing::error!(user, reason = message, "an attendant failed");
            return self.lose(user);
        }
        if let FromAttendant::Left { client } = &message {
            return self.client_left(*client, user);
        }
        // A client that ended a moment ago, or one of another user, which only a compromised attendant would name.
        let Some(client) = message.client() else { return };
        if self.connections.get(&client).is_none_or(|connection| connection.user != user) {
            // The last close of memory frees it, which takes as long as it is large.
            return self.unmapper.drop_later(Box::new(descriptors));
        }
        match message {
            FromAttendant::Hello { versions, features, .. } => {
                if let Err(violation) = self.welcome(client, &Hello { versions, features }) {
                    self.refuse_connection(client, &violation);
                }
            }
            FromAttendant::Command { serial, command, .. } => {
                self.execute(client, serial, command, None);
            }
            FromAttendant::Memory { serial, command, .. } => {
                let mapped = self.map(client, serial, command, &descriptors);
                // Before the attendant closes it: the last close frees the memory, which takes as long as there is much of it.
                drop(descriptors);
                match mapped {
                    // Its sealing waits for engine processes.
                    Ok(_) if self.proposed.contains_key(&client) => {}
                    Ok(user) => self.send(user, &ToAttendant::Mapped { client }, &[]),
                    Err(refusal) => self.reply(client, serial, Err(refusal), (&[], None)),
                }
            }
            // Only after it was asked to seal it.
            FromAttendant::Sealed { .. } if self.proposed.contains_key(&client) => {}
            FromAttendant::Sealed { .. } => {
                if let Some(Pending { serial, command, memory, proposals }) = self.take_pending(client) {
                    self.execute(client, serial, command, Some((memory, proposals)));
                }
            }
            FromAttendant::Refused { .. } => {
                self.service.count_refusal(RefusalKind::Frame);
                if let Some(pending) = self.take_pending(client) {
                    self.service.withdraw_proposals(&pending.proposals);
                    self.unmapper.drop_unsealed(user, pending.memory);
                }
            }
            FromAttendant::NotExported { .. } => self.service.count_refusal(RefusalKind::System),
            FromAttendant::Undelivered { queue, .. } => {
                let session = self.connections.get(&client).and_then(|connection| connection.session);
                if let Some(session) = session {
                    let _ = self.service.execute(session, Command::CloseQueue { queue }, None, &[]);
                }
            }
            FromAttendant::Ended { violation: None, .. } => self.drop_connection(client),
            FromAttendant::Ended { violation: Some(violation), .. } => {
                self.refuse_connection(client, &violation);
            }
            FromAttendant::Left { .. } | FromAttendant::Panicked { .. } => {}
        }
    }

    fn take_pending(&mut self, client: ClientId) -> Option<Pending> {
        self.proposed.remove(&client);
        self.connections.get_mut(&client).and_then(|connection| connection.pending.take())
    }

    /// Maps the memory of a command. The attendant of the returned user has to seal it.
    fn map(
        &mut self,
        client: ClientId,
        serial: u32,
        command: Command,
        descriptors: &[OwnedFd],
    ) -> Result<u32, Refusal> {
        let closed = || Refusal {
            kind: RefusalKind::Argument,
            message: "the session is closed; connect again".to_owned(),
        };
        let connection = self.connections.get_mut(&client).ok_or_else(closed)?;
        let session = connection.session.ok_or_else(closed)?;
        let (Some(length), [descriptor]) = (command.memory_bytes(), descriptors) else {
            let message = "the service is out of descriptors; close some, or try again later".to_owned();
            return Err(Refusal { kind: RefusalKind::System, message });
        };
        self.service.check_room(session, &command)?;
        let user = connection.user;
        if let Some(left) = self.rests.time_left(user) {
            let seconds = left.as_secs() + 1;
            let message = format!(
                "earlier memory of user {user} took so long to map that all users waited; try again in {seconds} s, map memory less \
                 often, and punch no holes into it before it is registered"
            );
            return Err(Refusal { kind: RefusalKind::Frame, message });
        }
        let refused = |error: FrameRefused| Service::refused_memory(&command, &error);
        let candidate = Candidate::examine(descriptor.as_fd(), length, user).map_err(refused)?;
        // The service only reads what a client writes into a queue.
        let access =
            if matches!(command, Command::Register { .. }) { Access::ReadWrite } else { Access::ReadOnly };
        let memory = self.rests.timed(user, || candidate.map(descriptor.as_fd(), access)).map_err(refused)?;
        let proposals = match command {
            Command::Register { .. } => {
                self.service.propose_frame(user, length, || descriptor.try_clone().ok())
            }
            _ => Vec::new(),
        };
        if !proposals.is_empty() {
            self.proposed.insert(client, Instant::now() + MAPPING_LIMIT);
        }
        if let Some(replaced) = connection.pending.replace(Pending { serial, command, memory, proposals }) {
            // An attendant in order sends one command of a client at a time.
            self.service.withdraw_proposals(&replaced.proposals);
            self.unmapper.drop_unsealed(user, replaced.memory);
        }
        Ok(user)
    }

    fn execute(
        &mut self,
        client: ClientId,
        serial: u32,
        command: Command,
        memory: Option<(Mapping, Vec<FrameProposal>)>,
    ) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Some(session) = connection.session else { return };
        connection.asked_for_engine |= matches!(command, Command::AttachEngine { .. });
        let user = connection.user;
        let process = connection.process;
        let notified = if let Command::Notify { queue, .. } = command { Some(queue) } else { None };
        let is_revocation = matches!(command, Command::Revoke { .. });
        let changes_policy = matches!(command, Command::Policy { change: Some(_) });
        let only_looks = matches!(
            command,
            Command::Status | Command::Engines | Command::Identify { .. } | Command::Policy { change: None }
        );
        if !only_looks {
            self.log_session(client);
        }
        let (memory, proposals) = memory.unzip();
        let executed = self.service.execute(session, command, memory.clone(), &[]);
        if let (Some(memory), Some(proposals)) = (memory, proposals) {
            // Before the answer: the client's first transfer may be for an engine.
            match executed {
                Executed::Done(Ok(_), _) => self.service.frame_registered(&proposals, &memory),
                _ => self.service.withdraw_proposals(&proposals),
            }
        }
        match executed {
            Executed::Waits => {
                self.asking.insert(session, (client, serial));
            }
            Executed::Done(answer, ours) => {
                if let Err(refusal) = &answer {
                    tracing::debug!(session = session.0, user, process, reason = %refusal, "refused");
                }
                if let (true, Ok(Answer::Policy(now))) = (changes_policy, &answer) {
                    let policy = now.kind.name();
                    tracing::info!(session = session.0, user, process, policy, settings = ?now, "policy changed");
                }
                if matches!(answer, Ok(Answer::EngineAttached { .. })) && self.service.is_engine(session) {
                    self.send(user, &ToAttendant::Engine { client }, &[]);
                }
                if is_revocation {
                    return self.answer_revocation(client, serial, answer);
                }
                self.reply(client, serial, answer, (&ours, notified));
            }
            Executed::Allocates(proposal) => {
                let until = Instant::now() + ALLOCATION_LIMIT;
                self.allocating.push(Allocating { client, serial, session, proposal, until });
            }
            Executed::Exports(request) => self.begin_export(client, serial, request),
            Executed::Later(revocation) => {
                self.waiting.insert(revocation, (client, serial));
            }
        }
    }

    fn welcome(&mut self, client: ClientId, hello: &Hello) -> Result<(), Violation> {
        let version = hello.agree()?;
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        let asymmetric = self.service.fences() == memferry_shm::parking::Fences::Asymmetric;
        let ours = if asymmetric { protocol::FEATURE_ASYMMETRIC_FENCES } else { 0 };
        let features = hello.features & ours;
        let asymmetric_fences = features & protocol::FEATURE_ASYMMETRIC_FENCES != 0;
        let user = connection.user;
        let process = connection.process;
        let introduced = Introduced { user, process, asymmetric_fences };
        let session =
            self.service.connect(introduced).map_err(|refused| Violation::Unwelcome(refused.message))?;
        connection.session = Some(session);
        self.by_session.insert(session, client);
        let bytes = protocol::Welcome { version, features, session }.encode();
        self.send(user, &ToAttendant::Answer { client, bytes }, &[]);
        Ok(())
    }

    /// Logs a session with its first command that does more than look.
    fn log_session(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Connection { user, process, session: Some(session), is_logged: false, .. } = *connection else {
            return;
        };
        if self.session_lines.may_write(user) {
            tracing::info!(session = session.0, user, process, "connected");
        }
        connection.is_logged = true;
    }

    /// Answers a revocation, during which the client may have sent other commands.
    fn answer_revocation(&mut self, client: ClientId, serial: u32, body: Result<Answer, Refusal>) {
        let Some(connection) = self.connections.get(&client) else { return };
        let user = connection.user;
        if let Err(refusal) = &body {
            self.service.count_refusal(refusal.kind);
        }
        let bytes = protocol::encode(&Envelope { serial, descriptors: 0, body });
        self.send(user, &ToAttendant::Revoked { client, bytes }, &[]);
    }

    fn reply(
        &mut self,
        client: ClientId,
        serial: u32,
        body: Result<Answer, Refusal>,
        (descriptors, notified): (&[OwnedFd], Option<u32>),
    ) {
        let Some(connection) = self.connections.get(&client) else { return };
        let user = connection.user;
        if let Err(refusal) = &body {
            self.service.count_refusal(refusal.kind);
        }
        let opened = if let Ok(Answer::Queue { queue, .. }) = &body { Some(*queue) } else { None };
        // A client gets the first of the two descriptors of a signal; the attendant keeps both.
        let notified = notified.filter(|_| body == Ok(Answer::Notified));
        let count = if notified.is_some() { 1 } else { descriptors.len() as u8 };
        let bytes = protocol::encode(&Envelope { serial, descriptors: count, body });
        let message = match (opened, notified) {
            (Some(queue), _) => ToAttendant::Opened { client, serial, queue, bytes },
            (_, Some(queue)) => ToAttendant::Notified { client, serial, queue, bytes },
            _ => ToAttendant::Answer { client, bytes },
        };
        let descriptors: Vec<_> = descriptors.iter().collect();
        match self.attendants.try_send(user, &message, &descriptors) {
            Ok(()) => {}
            // Too many descriptors are in flight to clients that do not read, which is not this client's fault.
            Err(Errno::TOOMANYREFS) if !descriptors.is_empty() => {
                self.refuse_executed(client, serial, opened)
            }
            Err(error) => self.give_up(user, error),
        }
    }

    /// Undoes an opened queue, and refuses the command, because its descriptors cannot be sent. The signal of a queue stays
    /// set: setting it again is refused.
    fn refuse_executed(&mut self, client: ClientId, serial: u32, opened: Option<u32>) {
        let session = self.connections.get(&client).and_then(|connection| connection.session);
        if let (Some(session), Some(queue)) = (session, opened) {
            let _ = self.service.execute(session, Command::CloseQueue { queue }, None, &[]);
        }
        let refusal = Refusal { kind: RefusalKind::System, message: IN_FLIGHT.to_owned() };
        self.reply(client, serial, Err(refusal), (&[], None));
    }

    /// Sends a message to a user's attendant, and gives it up if it does not take it.
    fn send(&mut self, user: u32, message: &ToAttendant, descriptors: &[&OwnedFd]) {
        if let Err(error) = self.attendants.try_send(user, message, descriptors) {
            self.give_up(user, error);
        }
    }

    /// Tells attendants that keep up which queues workers have released.
    fn send_releases(&mut self) {
        while !self.releases.is_empty() {
            let Self { releases, connections, attendants, .. } = self;
            let user_of = |client| connections.get(&client).map(|connection| connection.user);
            let keeps_up = |client| user_of(client).is_some_and(|user| attendants.keeps_up(user));
            let Some((client, queues)) = releases.take(keeps_up) else { return };
            if let Some(user) = user_of(client) {
                self.send(user, &ToAttendant::Release { client, queues }, &[]);
            }
        }
    }

    /// Gives up an attendant that does not take a message.
    pub(crate) fn give_up(&mut self, user: u32, error: Errno) {
        tracing::warn!(user, "the attendant did not take a message: {error}");
        self.lose(user);
    }

    fn process_events(&mut self) {
        let events = self.service.process_events();
        for item in events.to_drop {
            self.unmapper.drop_later(item);
        }
        for (session, queue) in events.released {
            if let Some(client) = self.by_session.get(&session) {
                self.releases.add(*client, queue);
            }
        }
        for (session, violation) in events.closed {
            if let Some(client) = self.by_session.get(&session).copied() {
                self.refuse_connection(client, &violation);
            }
        }
        for (revocation, answer) in events.revoked {
            if let Some((client, serial)) = self.waiting.remove(&revocation) {
                self.answer_revocation(client, serial, answer);
            }
        }
    }

    /// Ends the connection of a client that violated the protocol, and sends it the violation.
    fn refuse_connection(&mut self, client: ClientId, violation: &Violation) {
        let Some(connection) = self.forget(client, &violation.to_string()) else { return };
        let user = connection.user;
        self.refusal_lines.violated(user, connection.process, connection.session, violation);
        if connection.session.is_some() {
            self.service.count_violation();
        } else {
            self.service.count_turned_away();
        }
        let mut watch = false;
        if let Some(session) = connection.session {
            let is_engine = self.service.is_engine(session);
            self.service.end(session);
            watch = is_engine || self.service.waits_for_client(session);
            if watch {
                self.leaving.insert(client, (session, user));
            }
        }
        if !watch {
            self.attendants.remove_client(user);
        }
        let farewell = protocol::encode_violation(violation);
        self.send(user, &ToAttendant::End { client, farewell, watch }, &[]);
    }

    /// Ends the connection of a client that is gone.
    fn drop_connection(&mut self, client: ClientId) {
        let Some(connection) = self.forget(client, "the client left") else { return };
        if let Some(session) = connection.session {
            if self.service.is_engine(session) {
                // Its attendant reports when its process has exited.
                self.service.end(session);
                self.leaving.insert(client, (session, connection.user));
                return;
            }
            self.service.disconnect(session);
        }
        if connection.asked_for_engine {
            let end = ToAttendant::End { client, farewell: Vec::new(), watch: false };
            // Its attendant may be gone, too.
            self.attendants.send(connection.user, &end, &[]);
        }
        self.attendants.remove_client(connection.user);
    }

    /// The process of a client whose session ended before has exited.
    fn client_left(&mut self, client: ClientId, user: u32) {
        if let Some((session, _)) = self.leaving.get(&client).filter(|(_, of)| *of == user) {
            self.service.client_left(*session);
            self.service.engine_exited(*session);
            self.leaving.remove(&client);
            self.attendants.remove_client(user);
        }
    }

    /// Removes a connection; its session is still open.
    fn forget(&mut self, client: ClientId, reason: &str) -> Option<Connection> {
        let mut connection = self.connections.remove(&client)?;
        self.waiting.retain(|_, (waiting, _)| *waiting != client);
        self.releases.forget(client);
        self.proposed.remove(&client);
        if let Some(pending) = connection.pending.take() {
            self.service.withdraw_proposals(&pending.proposals);
            self.unmapper.drop_unsealed(connection.user, pending.memory);
        }
        if let Some(session) = connection.session {
            self.by_session.remove(&session);
            self.asking.remove(&session);
            let Connection { user, process, .. } = connection;
            if !connection.is_logged {
                tracing::debug!(session = session.0, user, process, "looked and left");
            } else if self.session_lines.may_write(user) {
                tracing::info!(session = session.0, user, process, reason, "disconnected");
            }
        }
        Some(connection)
    }

    /// Gives up a user's attendant, and with it all connections of the user.
    fn lose(&mut self, user: u32) {
        self.attendants.give_up(&self.epoll, user);
        let of_user = |connection: &Connection| connection.user == user;
        let clients: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| of_user(connection))
            .map(|(id, _)| *id)
            .collect();
        for client in clients {
            self.drop_connection(client);
        }
        // Nobody watches their processes any more. Their sockets are closed, so they know that their sessions are over.
        let left: Vec<_> =
            self.leaving.iter().filter(|(_, (_, of))| *of == user).map(|(id, _)| *id).collect();
        for client in left {
            self.lose_watch(client, user);
        }
        if user == NO_USER
            && let Err(reason) = self.attendants.need(&self.epoll, NO_USER)
        {
            tracing::warn!(reason, "clients that are turned away cannot be told why");
        }
    }
}
