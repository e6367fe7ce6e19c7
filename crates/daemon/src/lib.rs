//! The daemon: a socket, signals and an event loop in front of the service.
//!
//! ```text
//! listener ─ accept ─► Connection ─ handshake ─► session ─ commands ─► Service::execute ─► replies
//! pidfd, hang-up ─► disconnect        notifier ─► Service::process_events ─► late replies, farewells
//! SIGTERM, SIGINT ─► Service::stop, remove the socket (one handed over by a supervisor stays)
//! ```
//!
//! One thread; nothing in it waits for a client. A client is gone when its socket hangs up or its process ends, whichever
//! comes first: a forked child may hold the socket open. Moving bytes is the workers'.

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

/// Held by tests that fork or spawn, and by those whose locks or sockets a child must not keep alive.
#[cfg(test)]
static FORKING: std::sync::Mutex<()> = std::sync::Mutex::new(());

const LISTENER: u64 = 0;
const NOTIFIER: u64 = 1;
const SIGNALS: u64 = 2;
/// The user of what is nobody's.
const NOBODY: u32 = u32::MAX;
/// Connections have two tokens each from here: socket (even) and process (odd).
const FIRST_CONNECTION: u64 = 4;

/// How the daemon is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonOptions {
    pub socket: PathBuf,
    /// Permission bits of the socket: who may connect.
    pub mode: u32,
    pub service: ServiceConfig,
    /// How long running requests may go on when it stops.
    pub grace: Duration,
    /// Whether to confine the process once started.
    pub sandbox: bool,
}

/// Why the daemon ended other than by a signal.
#[derive(Debug, Error)]
pub enum ServeError {
    /// There is no socket to listen on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It could not be confined.
    #[error(transparent)]
    Sandbox(#[from] sandbox::SandboxError),
    /// The event loop failed.
    #[error("the event loop failed ({step}): {source}")]
    Loop { step: &'static str, source: io::Error },
}

/// Serves until SIGTERM or SIGINT on the socket that `options` name; `ready` is called once clients may connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve(options: &DaemonOptions, ready: impl FnOnce()) -> Result<(), ServeError> {
    serve_on(Listener::bind(&options.socket, options.mode)?, options, ready)
}

/// Serves until SIGTERM or SIGINT on `listener`; `ready` is called once clients may connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve_on(listener: Listener, options: &DaemonOptions, ready: impl FnOnce()) -> Result<(), ServeError> {
    // A worker that panics would leave its clients waiting for ever; the end of the process tells them.
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
    supervisor.tell(&format!("READY=1\nSTATUS=Listening on {address} with {workers} workers\n"));
    ready();
    let ended = daemon.run(&listener);
    tracing::info!("stopping");
    supervisor.tell("STOPPING=1\nSTATUS=Finishing what runs\n");
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

/// How often a service that leaves somebody waiting looks whether it still has to.
const PAUSE_NANOSECONDS: i64 = 10_000_000;
/// What a client is told that is one too many for the process.
const OUT_OF_DESCRIPTORS: &str = "the service is out of descriptors; try again later";
/// Users who may hold a thread up before others wait for their things to be closed.
const CLOSING_THREADS: u32 = 8;
/// Unclosed things of a user above which it is turned away, and not listened to.
const MOST_UNCLOSED: usize = 256;
/// Of all descriptors that there may be, such a part for what is not closed yet: above that nobody is let in, so that those who are
/// have the others. With 1,024 of them, one user whose things cannot be closed stays below it.
const UNCLOSED_PART: u64 = 2;

struct Daemon {
    service: Service,
    /// Where descriptors of clients are closed: never in this thread.
    closer: Closer,
    /// Where memory is unmapped that nobody uses any more: behind nothing that a client can hold up.
    unmapper: Closer,
    epoll: OwnedFd,
    signals: UnixStream,
    /// Given up for a moment when descriptors run out, to turn a client away instead of spinning.
    spare: Option<OwnedFd>,
    /// Nobody is let in for want of a spare, or because too much is unclosed.
    paused: bool,
    /// How much that is.
    most_unclosed: usize,
    /// Connections that are not listened to until more of what their users sent is closed.
    deaf: BTreeSet<u64>,
    connections: BTreeMap<u64, Connection>,
    by_session: BTreeMap<SessionId, u64>,
    /// Who waits for a revocation, with the serial of the command.
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
        let deaf = Default::default();
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most_unclosed =
            descriptors.map_or(usize::MAX, |all| usize::try_from(all / UNCLOSED_PART).unwrap_or(usize::MAX));
        let mut daemon = Self {
            service,
            closer,
            unmapper,
            epoll,
            signals,
            spare: None,
            paused: false,
            most_unclosed,
            deaf,
            connections,
            by_session,
            waiting,
            next: FIRST_CONNECTION,
        };
        daemon.keep_spare();
        Ok(daemon)
    }

    /// Whether who comes could be let in or turned away: a descriptor is kept for that, and not too many are unclosed.
    fn may_accept(&mut self) -> bool {
        self.closer.all_pending() <= self.most_unclosed && self.keep_spare()
    }

    /// Whether a descriptor is kept to turn a client away with.
    fn keep_spare(&mut self) -> bool {
        if self.spare.is_none() {
            self.spare = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
        }
        self.spare.is_some()
    }

    /// Leaves those who come waiting, or not any more.
    fn pause(&mut self, listener: &Listener, paused: bool) {
        let events = if paused { EventFlags::empty() } else { EventFlags::IN };
        let data = EventData::new_u64(LISTENER);
        self.paused = epoll::modify(&self.epoll, listener.socket(), data, events).is_ok() && paused;
    }

    /// Serves until a signal.
    fn run(&mut self, listener: &Listener) -> Result<(), ServeError> {
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); 64];
            let waits = self.paused || !self.deaf.is_empty();
            let limit = waits.then_some(Timespec { tv_sec: 0, tv_nsec: PAUSE_NANOSECONDS });
            let events = match epoll::wait(&self.epoll, &mut space, limit.as_ref()) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(ServeError::Loop { step: "epoll_wait", source: error.into() }),
            };
            if self.paused && self.may_accept() {
                self.pause(listener, false);
            }
            self.listen_again();
            for event in events {
                match event.data.u64() {
                    LISTENER => self.accept(listener),
                    NOTIFIER => self.process_events(),
                    SIGNALS => return Ok(()),
                    // Nothing else comes of one that is not listened to; what it sent is closed with its socket.
                    token if self.deaf.contains(&token) => self.drop_connection(token, "it hung up"),
                    token if token % 2 == 1 => self.drop_connection(token - 1, "its process ended"),
                    token => self.receive(token),
                }
            }
        }
    }

    fn accept(&mut self, listener: &Listener) {
        if !self.may_accept() {
            // What others sent is not closed yet; without a spare, who comes could neither be let in nor told.
            return self.pause(listener, true);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(listener.socket(), flags) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                self.spare = None;
                if let Ok(socket) = rustix::net::accept_with(listener.socket(), flags) {
                    self.turn_away(user_of(&socket), socket, OUT_OF_DESCRIPTORS);
                }
                return;
            }
            Err(_) => return,
        };
        let connection = match Connection::new(socket) {
            Ok(connection) => connection,
            Err((socket, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
                return self.turn_away(user_of(&socket), socket, OUT_OF_DESCRIPTORS);
            }
            Err((socket, error)) => {
                let reason =
                    format!("its process cannot be watched ({error}); is it in the service's PID namespace?");
                return self.turn_away(user_of(&socket), socket, &reason);
            }
        };
        if let Some(reason) = self.turned_away(connection.user()) {
            return self.turn_away(connection.user(), connection.into_socket(), &reason);
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
            self.turn_away(connection.user(), connection.into_socket(), reason);
        }
    }

    /// Tells a client why it may not come in.
    fn turn_away(&self, user: u32, socket: OwnedFd, reason: &str) {
        let user_known = (user != NOBODY).then_some(user);
        tracing::warn!(user = user_known, reason, "refused");
        let farewell = protocol::encode_violation(&Violation::Unwelcome(reason.to_owned()));
        let _ = conduit::send(socket.as_fd(), &farewell, &[], false);
        // Of those who come again and again nothing may be left, also while their other things cannot be closed.
        let shut = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).is_ok();
        if !(shut && conduit::is_drained(socket.as_fd())) {
            self.closer.close(user, socket);
        }
    }

    /// Why a user may not have another connection, `None` when it may.
    fn turned_away(&self, user: u32) -> Option<String> {
        let limit = self.service.config().quotas.sessions as usize;
        if self.connections.values().filter(|other| other.user() == user).count() >= limit {
            return Some(format!("user {user} has reached its quota of {limit} sessions"));
        }
        let unclosed = self.closer.pending(user);
        let busy = format!("{unclosed} things user {user} sent are still being closed; try again later");
        (unclosed > MOST_UNCLOSED).then_some(busy)
    }

    /// Reads one message of a connection: one at a time, so that none keeps the others waiting.
    fn receive(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let user = connection.user();
        let mut descriptors = Vec::new();
        let received = connection.receive(&mut descriptors);
        match received {
            Ok(Received::Nothing) => {}
            Ok(Received::Gone) => self.drop_connection(token, "it hung up"),
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
        let came = !descriptors.is_empty();
        descriptors.into_iter().for_each(|descriptor| self.closer.close(user, descriptor));
        // What it sends could otherwise pile up behind one that cannot be closed, until there are no descriptors for anybody.
        if came && self.closer.pending(user) > MOST_UNCLOSED && self.listen(token, false) {
            self.deaf.insert(token);
        }
    }

    /// Listens to a connection, or not; false when there is none.
    fn listen(&self, token: u64, listens: bool) -> bool {
        let events = if listens { EventFlags::IN } else { EventFlags::empty() };
        let data = EventData::new_u64(token);
        let connection = self.connections.get(&token);
        connection
            .is_some_and(|connection| epoll::modify(&self.epoll, connection.socket(), data, events).is_ok())
    }

    /// Listens again to those of whom enough is closed.
    fn listen_again(&mut self) {
        let mut deaf = std::mem::take(&mut self.deaf);
        deaf.retain(|token| {
            let user = self.connections.get(token).map(Connection::user);
            let closed = user.is_some_and(|user| self.closer.pending(user) <= MOST_UNCLOSED / 2);
            user.is_some() && !(closed && self.listen(*token, true))
        });
        self.deaf = deaf;
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
            // Too many descriptors are on their way to clients that do not read: that is no fault of this one.
            Err(rustix::io::Errno::TOOMANYREFS) if count > 0 => self.take_back(token, serial, opened),
            // The peer is gone, or the machine cannot carry the answer: the session cannot go on in step.
            Err(error) => {
                let reason = format!("it cannot be answered: {error}");
                let left = matches!(error, rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET);
                self.end_connection(token, &reason, left);
            }
        }
    }

    /// Refuses what was done, as its descriptors cannot be sent. A queue's signal is used up all the same: the client is told so when
    /// it asks again.
    fn take_back(&mut self, token: u64, serial: u32, opened: Option<u32>) {
        let session = self.connections.get(&token).and_then(Connection::session);
        if let (Some(session), Some(queue)) = (session, opened) {
            let _ = self.service.execute(session, protocol::Command::CloseQueue { queue }, &[]);
        }
        let message = "too many descriptors of the service's are on their way to clients; try again later";
        let kind = protocol::RefusalKind::System;
        let message = message.to_owned();
        self.reply(token, serial, Err(protocol::Refusal { kind, message }), &[]);
    }

    fn process_events(&mut self) {
        let events = self.service.process_events();
        for (user, descriptor) in events.unneeded {
            self.closer.close(user, descriptor);
        }
        if !events.unused.is_empty() {
            self.unmapper.close(NOBODY, events.unused);
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

    /// Ends a connection that broke a rule, telling it which.
    fn refuse_connection(&mut self, token: u64, violation: &Violation) {
        if let Some(connection) = self.connections.get(&token) {
            tracing::warn!(
                session = connection.session().map(|session| session.0),
                user = connection.user(),
                process = connection.process_id(),
                reason = %violation,
                "violation"
            );
            connection.farewell(violation);
        }
        self.end_connection(token, "a broken rule", false);
    }

    /// Drops a connection whose client is gone.
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

/// Who made a connection.
fn user_of(socket: &OwnedFd) -> u32 {
    conduit::peer_user(socket.as_fd()).unwrap_or(NOBODY)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.signals.shutdown(std::net::Shutdown::Both);
    }
}
