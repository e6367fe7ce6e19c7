//! The daemon: a socket, signals and an event loop in front of the service.
//!
//! ```text
//! listener ─ accept ─► Connection ─ handshake ─► session ─ commands ─► Service::execute ─► replies
//! pidfd, hang-up ─► disconnect        notifier ─► Service::process_events ─► late replies, violations
//! SIGTERM, SIGINT ─► Service::stop, remove the socket (an inherited one stays)
//! ```
//!
//! One thread, which never waits for a client. A session ends when the client's socket hangs up or its process exits: a
//! forked child may keep the socket open. The service's workers move the bytes.

mod closer;
mod connection;
mod listener;
mod sandbox;
mod supervisor;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use memferry_path::RevocationId;
use memferry_shm::conduit;
use memferry_transfer::SessionId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::SocketFlags;
use thiserror::Error;

use closer::Closer;
use connection::{Connection, Received};
use memferry_service::ServiceConfig;
use memferry_service::protocol::{self, Answer, Envelope, Violation};
use memferry_service::{Executed, Service, StartError};
use supervisor::Supervisor;

pub use listener::{ListenError, Listener};

/// Serializes tests that fork or spawn with tests whose locks or sockets a child must not inherit.
#[cfg(test)]
static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());

const LISTENER: u64 = 0;
const NOTIFIER: u64 = 1;
const SIGNALS: u64 = 2;
/// Stands for an unknown user, and for memory without one.
const NO_USER: u32 = u32::MAX;
/// Tokens of connections begin here, two each: socket (even) and process (odd).
const FIRST_CONNECTION: u64 = 4;

/// Options of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonOptions {
    pub socket: PathBuf,
    /// Permission bits of the socket, which decide who may connect.
    pub mode: u32,
    pub service: ServiceConfig,
    /// Time for which running requests may continue after a stop.
    pub grace: Duration,
    /// Whether to install the seccomp filter.
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
    /// The seccomp filter could not be installed.
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
    let supervisor = Supervisor::connect();
    let mut daemon = match Daemon::new(options, &listener) {
        Ok(daemon) => daemon,
        Err(error) => {
            listener.close();
            return Err(error);
        }
    };
    if options.sandbox
        && let Err(error) = sandbox::enter(options.service.module.is_some())
    {
        listener.close();
        return Err(error.into());
    }
    let address = listener.address();
    let workers = options.service.workers;
    tracing::info!(socket = address, workers, "ready");
    supervisor.notify(&format!("READY=1\nSTATUS=Listening on {address} with {workers} workers\n"));
    ready();
    let ended = daemon.run(&listener);
    tracing::info!("stopping");
    supervisor.notify("STOPPING=1\nSTATUS=Finishing running requests\n");
    daemon.service.stop(options.grace);
    listener.close();
    tracing::info!("stopped");
    ended
}

fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// Interval at which the daemon checks whether it can resume paused or muted connections.
const PAUSE_NANOSECONDS: i64 = 10_000_000;
/// Sent to a client for which the process has no descriptor.
const OUT_OF_DESCRIPTORS: &str = "the service is out of descriptors; try again later";
/// Number of closing threads. Closes of other users are delayed only while this many users block one thread each.
const CLOSING_THREADS: u32 = 8;
/// Maximum number of pending closes per user. Above it, new connections of the user are refused and present ones muted.
const USER_PENDING_LIMIT: usize = 256;
/// Share (1/n) of the descriptor limit allowed for pending closes. Above it, no connection is accepted, so that present clients
/// keep the rest. At a limit of 1,024, a single user whose closes block stays below it.
const PENDING_SHARE: u64 = 2;

struct Daemon {
    service: Service,
    /// Closes descriptors of clients, since that may block.
    closer: Closer,
    /// Unmaps unused memory. Separate, so that no client can delay it.
    unmapper: Closer,
    epoll: OwnedFd,
    signals: UnixStream,
    /// A reserved descriptor, closed when descriptors run out to accept and refuse a client instead of spinning.
    spare: Option<OwnedFd>,
    /// Whether accepting is paused, without a spare descriptor or with too many pending closes.
    paused: bool,
    /// Maximum number of pending closes of all users.
    pending_limit: usize,
    /// Connections that are not read until more of their users' closes are done.
    muted: BTreeSet<u64>,
    connections: BTreeMap<u64, Connection>,
    by_session: BTreeMap<SessionId, u64>,
    /// Connection and serial of the command that waits for a revocation.
    waiting: BTreeMap<RevocationId, (u64, u32)>,
    next: u64,
}

impl Daemon {
    fn new(options: &DaemonOptions, listener: &Listener) -> Result<Self, ServeError> {
        let failed = |step| move |source: io::Error| ServeError::Loop { step, source };
        let (signals, handler_end) = UnixStream::pair().map_err(failed("signals"))?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let end = handler_end.try_clone().map_err(failed("signals"))?;
            signal_hook::low_level::pipe::register(signal, end).map_err(failed("signals"))?;
        }
        let service = Service::start(options.service.clone())?;
        let closer = Closer::start(CLOSING_THREADS).map_err(failed("starting the closing threads"))?;
        let unmapper = Closer::start(1).map_err(failed("starting the closing threads"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed("epoll")(e.into()))?;
        let add = |fd: std::os::fd::BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .map_err(|error| failed("epoll")(error.into()))
        };
        add(listener.socket(), LISTENER)?;
        add(service.notifier(), NOTIFIER)?;
        add(signals.as_fd(), SIGNALS)?;
        let connections = Default::default();
        let by_session = Default::default();
        let waiting = Default::default();
        let muted = Default::default();
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let pending_limit =
            descriptors.map_or(usize::MAX, |all| usize::try_from(all / PENDING_SHARE).unwrap_or(usize::MAX));
        let mut daemon = Self {
            service,
            closer,
            unmapper,
            epoll,
            signals,
            spare: None,
            paused: false,
            pending_limit,
            muted,
            connections,
            by_session,
            waiting,
            next: FIRST_CONNECTION,
        };
        daemon.keep_spare();
        Ok(daemon)
    }

    /// Whether a client can be accepted or refused: there is a spare descriptor, and pending closes are within the limit.
    fn may_accept(&mut self) -> bool {
        self.closer.all_pending() <= self.pending_limit && self.keep_spare()
    }

    /// Reserves the spare descriptor; whether there is one.
    fn keep_spare(&mut self) -> bool {
        if self.spare.is_none() {
            self.spare = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
        }
        self.spare.is_some()
    }

    /// Pauses or resumes accepting.
    fn set_paused(&mut self, listener: &Listener, paused: bool) {
        let events = if paused { EventFlags::empty() } else { EventFlags::IN };
        let data = EventData::new_u64(LISTENER);
        self.paused = epoll::modify(&self.epoll, listener.socket(), data, events).is_ok() && paused;
    }

    /// The event loop; ends at SIGTERM or SIGINT.
    fn run(&mut self, listener: &Listener) -> Result<(), ServeError> {
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); 64];
            let waits = self.paused || !self.muted.is_empty();
            let limit = waits.then_some(Timespec { tv_sec: 0, tv_nsec: PAUSE_NANOSECONDS });
            let events = match epoll::wait(&self.epoll, &mut space, limit.as_ref()) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(ServeError::Loop { step: "epoll_wait", source: error.into() }),
            };
            if self.paused && self.may_accept() {
                self.set_paused(listener, false);
            }
            self.unmute();
            for event in events {
                match event.data.u64() {
                    LISTENER => self.accept(listener),
                    NOTIFIER => self.process_events(),
                    SIGNALS => return Ok(()),
                    // A muted connection reports only hang-ups. Its unread messages are closed with the socket.
                    token if self.muted.contains(&token) => self.drop_connection(token, "the socket hung up"),
                    token if token % 2 == 1 => self.drop_connection(token - 1, "the process exited"),
                    token => self.receive(token),
                }
            }
        }
    }

    fn accept(&mut self, listener: &Listener) {
        if !self.may_accept() {
            // Without a spare descriptor the client could be neither accepted nor refused.
            return self.set_paused(listener, true);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(listener.socket(), flags) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                self.spare = None;
                if let Ok(socket) = rustix::net::accept_with(listener.socket(), flags) {
                    self.reject(user_of(&socket), socket, OUT_OF_DESCRIPTORS);
                }
                return;
            }
            Err(_) => return,
        };
        let connection = match Connection::new(socket) {
            Ok(connection) => connection,
            Err((socket, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
                return self.reject(user_of(&socket), socket, OUT_OF_DESCRIPTORS);
            }
            Err((socket, error)) => {
                let reason = format!(
                    "cannot watch the client's process ({error}); is it in the service's PID namespace?"
                );
                return self.reject(user_of(&socket), socket, &reason);
            }
        };
        if let Some(reason) = self.rejection(connection.user()) {
            return self.reject(connection.user(), connection.into_socket(), &reason);
        }
        let token = self.next;
        self.next += 2;
        let data = EventData::new_u64;
        let socket_added = epoll::add(&self.epoll, connection.socket(), data(token), EventFlags::IN);
        let process_added = epoll::add(&self.epoll, connection.process(), data(token + 1), EventFlags::IN);
        if socket_added.is_ok() && process_added.is_ok() {
            self.connections.insert(token, connection);
        } else {
            let reason = "the service cannot watch another connection; try again later";
            self.reject(connection.user(), connection.into_socket(), reason);
        }
    }

    /// Refuses a client, and sends it the reason.
    fn reject(&self, user: u32, socket: OwnedFd, reason: &str) {
        let user_known = (user != NO_USER).then_some(user);
        tracing::warn!(user = user_known, reason, "refused");
        let farewell = protocol::encode_violation(&Violation::Unwelcome(reason.to_owned()));
        let _ = conduit::send(socket.as_fd(), &farewell, &[], false);
        // Leaves no pending close if possible, so that repeated connections do not add up while closes are blocked.
        let shut = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).is_ok();
        if !(shut && conduit::is_drained(socket.as_fd())) {
            self.closer.close(user, socket);
        }
    }

    /// Reason for which a user may not have another connection; `None` if it may.
    fn rejection(&self, user: u32) -> Option<String> {
        let limit = self.service.config().quotas.sessions as usize;
        if self.connections.values().filter(|other| other.user() == user).count() >= limit {
            return Some(format!("user {user} has reached its quota of {limit} sessions"));
        }
        let pending = self.closer.pending(user);
        let busy = format!("{pending} descriptors of user {user} are still being closed; try again later");
        (pending > USER_PENDING_LIMIT).then_some(busy)
    }

    /// Reads one message of a connection; only one, so that no connection delays the others.
    fn receive(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let user = connection.user();
        let mut descriptors = Vec::new();
        let received = connection.receive(&mut descriptors);
        match received {
            Ok(Received::Nothing) => {}
            Ok(Received::Gone) => self.drop_connection(token, "the socket hung up"),
            Ok(Received::Hello(hello)) => {
                if let Err(violation) = self.welcome(token, &hello) {
                    self.refuse_connection(token, &violation);
                }
            }
            Ok(Received::Command(session, serial, command)) => {
                let process = connection.process_id();
                match self.service.execute(session, command, &descriptors) {
                    Executed::Done(answer, ours) => {
                        if let Err(refusal) = &answer {
                            tracing::debug!(session = session.0, user, process, reason = %refusal, "refused");
                        }
                        self.reply(token, serial, answer, &ours);
                    }
                    Executed::Later(revocation) => {
                        self.waiting.insert(revocation, (token, serial));
                    }
                }
            }
            Err(violation) => self.refuse_connection(token, &violation),
        }
        let had_descriptors = !descriptors.is_empty();
        descriptors.into_iter().for_each(|descriptor| self.closer.close(user, descriptor));
        // Otherwise descriptors could pile up behind a blocked close until the process has none left.
        if had_descriptors && self.closer.pending(user) > USER_PENDING_LIMIT && self.set_reading(token, false)
        {
            self.muted.insert(token);
        }
    }

    /// Starts or stops reading a connection; false if there is none.
    fn set_reading(&self, token: u64, reading: bool) -> bool {
        let events = if reading { EventFlags::IN } else { EventFlags::empty() };
        let data = EventData::new_u64(token);
        let connection = self.connections.get(&token);
        connection
            .is_some_and(|connection| epoll::modify(&self.epoll, connection.socket(), data, events).is_ok())
    }

    /// Reads muted connections again if enough of their users' closes are done.
    fn unmute(&mut self) {
        let mut muted = std::mem::take(&mut self.muted);
        muted.retain(|token| {
            let user = self.connections.get(token).map(Connection::user);
            let closed = user.is_some_and(|user| self.closer.pending(user) <= USER_PENDING_LIMIT / 2);
            user.is_some() && !(closed && self.set_reading(*token, true))
        });
        self.muted = muted;
    }

    fn welcome(&mut self, token: u64, hello: &protocol::Hello) -> Result<(), Violation> {
        let version = hello.agree()?;
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let asymmetric = self.service.fences() == memferry_shm::parking::Fences::Asymmetric;
        let ours = if asymmetric { protocol::FEATURE_ASYMMETRIC_FENCES } else { 0 };
        let features = hello.features & ours;
        let both = features & protocol::FEATURE_ASYMMETRIC_FENCES != 0;
        let session = self
            .service
            .connect(connection.introduced(both))
            .map_err(|refused| Violation::Unwelcome(refused.message))?;
        self.by_session.insert(session, token);
        let user = connection.user();
        let process = connection.process_id();
        tracing::info!(session = session.0, user, process, "connected");
        connection.welcome(protocol::Welcome { version, features, session })
    }

    fn reply(
        &mut self,
        token: u64,
        serial: u32,
        body: Result<Answer, protocol::Refusal>,
        descriptors: &[OwnedFd],
    ) {
        let Some(connection) = self.connections.get(&token) else { return };
        let count = descriptors.len() as u8;
        let opened = if let Ok(Answer::Queue { queue, .. }) = &body { Some(*queue) } else { None };
        let bytes = protocol::encode(&Envelope { serial, descriptors: count, body });
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        match conduit::send(connection.socket(), &bytes, &descriptors, false) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => self.refuse_connection(token, &Violation::NotReading),
            // Too many descriptors are in flight to clients that do not read, which is not this client's fault.
            Err(rustix::io::Errno::TOOMANYREFS) if count > 0 => self.refuse_executed(token, serial, opened),
            // The peer is gone or the answer cannot be sent: the session is out of sequence and must end.
            Err(error) => {
                let reason = format!("cannot send the answer: {error}");
                let left = matches!(error, rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET);
                self.end_connection(token, &reason, left);
            }
        }
    }

    /// Undoes an opened queue, and refuses the command, because its descriptors cannot be sent. The signal of a queue stays
    /// set: setting it again is refused.
    fn refuse_executed(&mut self, token: u64, serial: u32, opened: Option<u32>) {
        let session = self.connections.get(&token).and_then(Connection::session);
        if let (Some(session), Some(queue)) = (session, opened) {
            let _ = self.service.execute(session, protocol::Command::CloseQueue { queue }, &[]);
        }
        let message = "too many descriptors of the service are in flight to clients; try again later";
        let kind = protocol::RefusalKind::System;
        let message = message.to_owned();
        self.reply(token, serial, Err(protocol::Refusal { kind, message }), &[]);
    }

    fn process_events(&mut self) {
        let events = self.service.process_events();
        for (user, descriptor) in events.to_close {
            self.closer.close(user, descriptor);
        }
        if !events.to_unmap.is_empty() {
            self.unmapper.close(NO_USER, events.to_unmap);
        }
        for (session, violation) in events.closed {
            if let Some(token) = self.by_session.get(&session).copied() {
                self.refuse_connection(token, &violation);
            }
        }
        for (revocation, answer) in events.revoked {
            if let Some((token, serial)) = self.waiting.remove(&revocation) {
                self.reply(token, serial, answer, &[]);
            }
        }
    }

    /// Ends the connection of a client that violated the protocol, and sends it the violation.
    fn refuse_connection(&mut self, token: u64, violation: &Violation) {
        if let Some(connection) = self.connections.get(&token) {
            tracing::warn!(
                session = connection.session().map(|session| session.0),
                user = connection.user(),
                process = connection.process_id(),
                reason = %violation,
                "violation"
            );
            connection.send_violation(violation);
        }
        self.end_connection(token, "violation", false);
    }

    /// Ends the connection of a client that is gone.
    fn drop_connection(&mut self, token: u64, reason: &str) {
        self.end_connection(token, reason, true);
    }

    fn end_connection(&mut self, token: u64, reason: &str, left: bool) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, connection.socket());
        let _ = epoll::delete(&self.epoll, connection.process());
        self.waiting.retain(|_, (waiting, _)| *waiting != token);
        if let Some(session) = connection.session() {
            self.by_session.remove(&session);
            if left {
                self.service.disconnect(session)
            } else {
                self.service.end(session)
            }
            let user = connection.user();
            let process = connection.process_id();
            tracing::info!(session = session.0, user, process, reason, "disconnected");
        }
        self.closer.close(connection.user(), connection);
    }
}

/// The user at the other end of a connection.
fn user_of(socket: &OwnedFd) -> u32 {
    conduit::peer_user(socket.as_fd()).unwrap_or(NO_USER)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.signals.shutdown(std::net::Shutdown::Both);
    }
}
