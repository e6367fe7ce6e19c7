//! The daemon: a socket, signals and an event loop in front of the service.
//!
//! ```text
//! listener ─ accept ─► Connection ─ handshake ─► session ─ commands ─► Service::execute ─► replies
//! pidfd, hang-up ─► disconnect        notifier ─► Service::attend ─► late replies, farewells
//! SIGTERM, SIGINT ─► Service::stop, remove the socket
//! ```
//!
//! One thread; nothing in it waits for a client. A client is gone when its socket hangs up or its process ends, whichever
//! comes first: a forked child may hold the socket open. Moving bytes is the lanes'.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memferry_memory::conduit;
use memferry_path::RevocationId;
use memferry_transfer::SessionId;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::closer::Closer;
use crate::config::ServiceConfig;
use crate::protocol::{self, Answer, Envelope, Violation};
use crate::sandbox;
use crate::service::{Executed, Service, StartError};
use connection::{Connection, Heard};

const LISTENER: u64 = 0;
const NOTIFIER: u64 = 1;
const SIGNALS: u64 = 2;
/// The user under which sockets of unknown clients are closed.
const NOBODY: u32 = u32::MAX;
/// Connections have two tokens each from here: socket (even) and process (odd).
const FIRST_CONNECTION: u64 = 4;

/// How the daemon is run.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Where it listens.
    pub socket: PathBuf,
    /// Permission bits of the socket: who may connect.
    pub mode: u32,
    /// The service.
    pub service: ServiceConfig,
    /// How long running requests may go on when it stops.
    pub grace: Duration,
    /// Whether to confine the process once started.
    pub sandbox: bool,
}

/// Why the daemon ended other than by a signal.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Another service listens there.
    #[error("a service is already listening on {}; stop it or choose another --socket", .0.display())]
    AlreadyRunning(PathBuf),
    /// The socket could not be made.
    #[error("cannot listen on {} ({step}): {source}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It could not be confined.
    #[error(transparent)]
    Sandbox(#[from] sandbox::SandboxError),
    /// The event loop failed.
    #[error("the event loop failed ({step}): {source}")]
    Loop {
        /// What was tried.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Serves until SIGTERM or SIGINT; `ready` is called once clients may connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve(options: &DaemonOptions, ready: impl FnOnce()) -> Result<(), ServeError> {
    // A lane that panics would leave its clients waiting for ever; the end of the process tells them.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    raise_descriptor_limit();
    let listener = listen(&options.socket, options.mode)?;
    let bound = identity(&options.socket);
    let mut daemon = Daemon::new(options, listener)?;
    if options.sandbox {
        sandbox::enter()?;
    }
    tracing::info!(socket = %options.socket.display(), lanes = options.service.lanes, "ready");
    ready();
    let ended = daemon.run();
    tracing::info!("stopping");
    daemon.service.stop(options.grace);
    // What lies there now may be a newer service's.
    if bound.is_some() && identity(&options.socket) == bound {
        let _ = std::fs::remove_file(&options.socket);
    }
    ended
}

/// Which file a path names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// Binds the socket; a stale one, which nobody listens on, is replaced.
fn listen(path: &Path, mode: u32) -> Result<OwnedFd, ServeError> {
    let failed = |step| move |source: io::Error| ServeError::Socket { path: path.to_owned(), step, source };
    let address = SocketAddrUnix::new(path).map_err(|error| failed("address")(error.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    if let Ok(about) = std::fs::symlink_metadata(path) {
        // A connection to what is no socket is refused just as one to a stale socket is.
        if !std::os::unix::fs::FileTypeExt::is_socket(&about.file_type()) {
            return Err(failed("bind")(io::ErrorKind::AlreadyExists.into()));
        }
        let probe = socket().map_err(|error| failed("socket")(error.into()))?;
        match rustix::net::connect(&probe, &address) {
            Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed("unlink"))?,
            Ok(()) | Err(_) => return Err(ServeError::AlreadyRunning(path.to_owned())),
        }
    }
    let listener = socket().map_err(|error| failed("socket")(error.into()))?;
    rustix::net::bind(&listener, &address).map_err(|error| failed("bind")(error.into()))?;
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, permissions).map_err(failed("chmod"))?;
    rustix::net::listen(&listener, 128).map_err(|error| failed("listen")(error.into()))?;
    Ok(listener)
}

/// Unclosed things of a user above which it is turned away.
const MOST_UNCLOSED: usize = 256;

struct Daemon {
    service: Service,
    /// Where descriptors of clients are closed: never in this thread.
    closer: Closer,
    listener: OwnedFd,
    epoll: OwnedFd,
    signals: UnixStream,
    /// Given up for a moment when descriptors run out, to turn a client away instead of spinning.
    spare: Option<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    by_session: BTreeMap<SessionId, u64>,
    /// Who waits for a revocation, with the serial of the command.
    waiting: BTreeMap<RevocationId, (u64, u32)>,
    next: u64,
}

impl Daemon {
    fn new(options: &DaemonOptions, listener: OwnedFd) -> Result<Self, ServeError> {
        let failed = |step| move |source: io::Error| ServeError::Loop { step, source };
        let (signals, handler_end) = UnixStream::pair().map_err(failed("signals"))?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            let end = handler_end.try_clone().map_err(failed("signals"))?;
            signal_hook::low_level::pipe::register(signal, end).map_err(failed("signals"))?;
        }
        let service = Service::start(options.service)?;
        let closer = Closer::start().map_err(failed("starting the closing threads"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed("epoll")(e.into()))?;
        let add = |fd: std::os::fd::BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .map_err(|error| failed("epoll")(error.into()))
        };
        add(listener.as_fd(), LISTENER)?;
        add(service.notifier(), NOTIFIER)?;
        add(signals.as_fd(), SIGNALS)?;
        let (connections, by_session, waiting) = Default::default();
        let mut daemon = Self {
            service,
            closer,
            listener,
            epoll,
            signals,
            spare: None,
            connections,
            by_session,
            waiting,
            next: FIRST_CONNECTION,
        };
        daemon.keep_spare();
        Ok(daemon)
    }

    fn keep_spare(&mut self) {
        self.spare = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
    }

    /// Serves until a signal.
    fn run(&mut self) -> Result<(), ServeError> {
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); 64];
            let events = match epoll::wait(&self.epoll, &mut space, None) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(ServeError::Loop { step: "epoll_wait", source: error.into() }),
            };
            for event in events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    NOTIFIER => self.attend(),
                    SIGNALS => return Ok(()),
                    token if token % 2 == 1 => self.drop_connection(token - 1),
                    token => self.hear(token),
                }
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                tracing::warn!("out of descriptors: a client was turned away");
                self.spare = None;
                if let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
                    self.closer.close(NOBODY, socket);
                }
                return self.keep_spare();
            }
            Err(_) => return,
        };
        let connection = match Connection::new(socket) {
            Ok(connection) => connection,
            Err(socket) => return self.closer.close(NOBODY, socket),
        };
        if let Some(reason) = self.turned_away(connection.user()) {
            connection.farewell(&Violation::Unwelcome(reason));
            return self.closer.close(connection.user(), connection);
        }
        let token = self.next;
        self.next += 2;
        let data = EventData::new_u64;
        let socket_added = epoll::add(&self.epoll, connection.socket(), data(token), EventFlags::IN);
        let process_added = epoll::add(&self.epoll, connection.process(), data(token + 1), EventFlags::IN);
        if socket_added.is_ok() && process_added.is_ok() {
            self.connections.insert(token, connection);
        } else {
            self.closer.close(connection.user(), connection);
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
    fn hear(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let (user, mut descriptors) = (connection.user(), Vec::new());
        let heard = connection.hear(&mut descriptors);
        match heard {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Gone) => self.drop_connection(token),
            Ok(Heard::Hello(hello)) => {
                if let Err(violation) = self.welcome(token, &hello) {
                    self.refuse_connection(token, &violation);
                }
            }
            Ok(Heard::Command(session, serial, command)) => {
                match self.service.execute(session, command, &descriptors) {
                    Executed::Done(answer, ours) => self.reply(token, serial, answer, &ours),
                    Executed::Later(revocation) => {
                        self.waiting.insert(revocation, (token, serial));
                    }
                }
            }
            Err(violation) => self.refuse_connection(token, &violation),
        }
        if !descriptors.is_empty() {
            self.closer.close(user, descriptors);
        }
    }

    fn welcome(&mut self, token: u64, hello: &protocol::Hello) -> Result<(), Violation> {
        let version = hello.agree()?;
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let asymmetric = self.service.fences() == memferry_memory::parking::Fences::Asymmetric;
        let ours = if asymmetric { protocol::FEATURE_ASYMMETRIC_FENCES } else { 0 };
        let features = hello.features & ours;
        let both = features & protocol::FEATURE_ASYMMETRIC_FENCES != 0;
        let session = self
            .service
            .connect(connection.user(), connection.process_id(), both)
            .map_err(|refused| Violation::Unwelcome(refused.message))?;
        self.by_session.insert(session, token);
        tracing::info!(%session, user = connection.user(), process = connection.process_id(), "connected");
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
        let bytes = protocol::encode(&Envelope { serial, descriptors: count, body });
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        match conduit::send(connection.socket(), &bytes, &descriptors, false) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => self.refuse_connection(token, &Violation::NotReading),
            // The peer is gone, or the machine cannot carry the answer: the session cannot go on in step.
            Err(error) => {
                tracing::warn!(user = connection.user(), "cannot answer: {error}");
                self.drop_connection(token);
            }
        }
    }

    fn attend(&mut self) {
        let attended = self.service.attend();
        for (session, violation) in attended.closed {
            if let Some(token) = self.by_session.get(&session).copied() {
                self.refuse_connection(token, &violation);
            }
        }
        for (revocation, _) in attended.revoked {
            if let Some((token, serial)) = self.waiting.remove(&revocation) {
                self.reply(token, serial, Ok(Answer::Revoked), &[]);
            }
        }
    }

    /// Ends a connection that broke a rule, telling it which.
    fn refuse_connection(&mut self, token: u64, violation: &Violation) {
        if let Some(connection) = self.connections.get(&token) {
            tracing::warn!(
                user = connection.user(),
                process = connection.process_id(),
                "closed: {violation}"
            );
            connection.farewell(violation);
        }
        self.drop_connection(token);
    }

    fn drop_connection(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, connection.socket());
        let _ = epoll::delete(&self.epoll, connection.process());
        self.waiting.retain(|_, (waiting, _)| *waiting != token);
        if let Some(session) = connection.session() {
            self.by_session.remove(&session);
            self.service.disconnect(session);
            tracing::info!(%session, "disconnected");
        }
        self.closer.close(connection.user(), connection);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.signals.shutdown(std::net::Shutdown::Both);
    }
}
