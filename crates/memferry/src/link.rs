//! The connection to the service's control side: a socket, or calls of the embedded service.
//!
//! ```text
//! call(command, descriptors) ─► Answer, descriptors        one at a time, within the time limit
//! lost() ─► whether the service is gone                    never blocks
//! ```
//!
//! Transfers do not use this link. The service is not trusted: it may be silent, answer late or wrongly, or send texts that
//! would control a terminal. `deadline` bounds each wait, `exchange` matches answers with commands and cleans texts.

mod deadline;
mod exchange;
mod turn;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memferry_service::Introduced;
use memferry_service::embedded::Embedded;
use memferry_service::protocol::{
    Answer, Command, FEATURE_ASYMMETRIC_FENCES, Hello, VERSIONS, Violation, Welcome,
};
use memferry_shm::parking::Fences;
use memferry_transfer::{Handle, SessionId};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{CallError, ConnectError};
use deadline::{Deadline, WaitError};
use exchange::{Exchange, Unsent};
use turn::Turn;

/// How a client connects to a service in another process.
///
/// ```
/// use memferry::{Client, ConnectOptions};
/// use std::time::Duration;
///
/// let options = ConnectOptions { timeout: Duration::from_millis(200), ..ConnectOptions::default() };
/// assert!(Client::connect_with("/nonexistent/memferry.sock", options).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// How long the service may take to accept the connection with its handshake, and to answer each later call. Waits for
    /// transfers have limits of their own. [`Duration::MAX`]: no limit.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    /// Five seconds: longer than a busy service takes, and short enough for a person who waits.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5) }
    }
}

pub(crate) enum Link {
    Socket {
        socket: OwnedFd,
        /// Commands are sent one at a time.
        exchange: Turn<Exchange>,
        /// Commands that give something back, and found another thread at its turn until their time was over.
        releases: Mutex<Vec<Command>>,
        lost: AtomicBool,
        timeout: Duration,
    },
    Embedded(Arc<Embedded>),
}

/// A new link with the results of the handshake.
pub(crate) struct Opened {
    pub(crate) link: Link,
    pub(crate) session: SessionId,
    pub(crate) fences: Fences,
}

/// Number of attempts to connect if the service ends the connection before it answers.
const ATTEMPTS: u32 = 3;

/// Connects. A stopping service may accept the connection and end before it answers. It has done nothing for the client then,
/// so this tries again: with a supervisor that holds the socket, the next service answers. The attempts share the time limit.
pub(crate) fn connect(path: &Path, options: ConnectOptions) -> Result<Opened, ConnectError> {
    let deadline = Deadline::after(options.timeout);
    for _ in 1..ATTEMPTS {
        match connect_once(path, &deadline) {
            Err(ConnectError::Socket { source, .. })
                if matches!(
                    source.kind(),
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
                ) => {}
            result => return result,
        }
    }
    connect_once(path, &deadline)
}

fn connect_once(path: &Path, deadline: &Deadline) -> Result<Opened, ConnectError> {
    let failed = |source: Errno| ConnectError::Socket { path: path.to_owned(), source: source.into() };
    let late = || ConnectError::TimedOut { path: path.to_owned(), after: deadline.limit() };
    let ended = |violation| ConnectError::Handshake { path: path.to_owned(), violation };
    let of_wait = |error| match error {
        WaitError::TimedOut => late(),
        WaitError::Closed => failed(Errno::CONNRESET),
        WaitError::TooLong => ended(Violation::NotHello),
        WaitError::System(error) => failed(error),
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).map_err(failed)?;
    deadline.connect(socket.as_fd(), &address).map_err(of_wait)?;
    let fences = Fences::register();
    let features = if fences == Fences::Asymmetric { FEATURE_ASYMMETRIC_FENCES } else { 0 };
    let hello = Hello { versions: VERSIONS, features };
    // Even if the send fails, the service may have written the reason why it refused the connection: read it.
    let sent = deadline.send(socket.as_fd(), &hello.encode(), &[]);
    let packet = match (deadline.receive(socket.as_fd()), sent) {
        (Ok(packet), _) => packet,
        (Err(WaitError::Closed), Err(error)) | (Err(error), _) => return Err(of_wait(error)),
    };
    let welcome = Welcome::decode(&packet.bytes).map_err(|violation| ended(violation.printable()))?;
    let agreed = welcome.features & features & FEATURE_ASYMMETRIC_FENCES != 0;
    let fences = if agreed { fences } else { Fences::Full };
    let link = Link::Socket {
        socket,
        exchange: Turn::new(Exchange::default()),
        releases: Mutex::default(),
        lost: AtomicBool::new(false),
        timeout: deadline.limit(),
    };
    Ok(Opened { link, session: welcome.session, fences })
}

pub(crate) fn embed(embedded: Arc<Embedded>) -> Result<Opened, ConnectError> {
    let fences = embedded.service().fences();
    let user = rustix::process::geteuid().as_raw();
    let asymmetric_fences = fences == Fences::Asymmetric;
    let process = std::process::id();
    let session = embedded.service().connect(Introduced { user, process, asymmetric_fences })?;
    Ok(Opened { link: Link::Embedded(embedded), session, fences })
}

impl Link {
    /// Sends a command and waits for its answer.
    pub(crate) fn call(
        &self,
        session: SessionId,
        command: Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        match self {
            Self::Embedded(embedded) => Ok(embedded.call(session, command, descriptors)?),
            Self::Socket { timeout, .. } => {
                self.exchange(&Deadline::after(*timeout), (command, &descriptors), Unsent::Dropped)
            }
        }
    }

    /// As [`call`](Self::call), but does not wait for a service that has not answered earlier commands yet. What cannot be sent in time
    /// is sent before a later command.
    pub(crate) fn release(&self, session: SessionId, command: Command) -> Result<Answer, CallError> {
        let deadline = match self {
            Self::Socket { exchange, timeout, .. } => {
                let is_late = exchange.peek(Exchange::is_late);
                Deadline::after(if is_late { Duration::ZERO } else { *timeout })
            }
            Self::Embedded(_) => return self.call(session, command, Vec::new()).map(|(answer, _)| answer),
        };
        self.exchange(&deadline, (command, &[]), Unsent::Kept).map(|(answer, _)| answer)
    }

    /// Revokes the capability of a frame that no request of this client uses any more. Does not wait where nothing depends on it.
    pub(crate) fn give_back(&self, session: SessionId, handle: Handle) -> Result<(), CallError> {
        match self {
            Self::Embedded(embedded) => Ok(embedded.give_back(session, handle)?),
            Self::Socket { .. } => self.release(session, Command::Revoke { handle }).map(drop),
        }
    }

    fn exchange(
        &self,
        deadline: &Deadline,
        (command, descriptors): (Command, &[OwnedFd]),
        unsent: Unsent,
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        let Self::Socket { socket, exchange, releases, lost, .. } = self else {
            return Err(CallError::ServiceLost);
        };
        let releases = || releases.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut exchange) = exchange.take(deadline) else {
            let error = exchange::timed_out(&command, deadline);
            if unsent == Unsent::Kept {
                releases().push(command);
            }
            return Err(error);
        };
        exchange.send_later(&mut releases());
        if lost.load(Ordering::Acquire) {
            return Err(CallError::ServiceLost);
        }
        let answered = exchange.call(socket.as_fd(), deadline, (command, descriptors), unsent);
        // The session survives what the service refused, what was not sent, and an answer that can still come.
        let usable = matches!(
            answered,
            Ok(_)
                | Err(CallError::Refused(_) | CallError::Send(_))
                | Err(CallError::TimedOut { .. } | CallError::RevocationPending { .. })
        );
        if !usable || exchange.is_overdue() {
            self.give_up();
        }
        answered
    }

    /// Ends the connection with a service that broke the protocol or owes too many answers.
    pub(crate) fn give_up(&self) {
        if let Self::Socket { socket, lost, .. } = self {
            lost.store(true, Ordering::Release);
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether the service is gone, by a poll of the socket.
    pub(crate) fn lost(&self) -> bool {
        match self {
            Self::Embedded(_) => false,
            Self::Socket { socket, lost, .. } => {
                if lost.load(Ordering::Acquire) {
                    return true;
                }
                let mut entry = [PollFd::new(socket, PollFlags::empty())];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let gone = rustix::event::poll(&mut entry, Some(&now)).is_ok()
                    && entry[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
                if gone {
                    lost.store(true, Ordering::Release);
                }
                gone
            }
        }
    }

    /// Whether the service is known to be gone, without a system call.
    pub(crate) fn known_lost(&self) -> bool {
        matches!(self, Self::Socket { lost, .. } if lost.load(Ordering::Acquire))
    }

    /// Ends the session of an embedded service. A service in another process notices the closed socket.
    pub(crate) fn close(&self, session: SessionId) {
        if let Self::Embedded(embedded) = self
            && embedded.is_of_this_process()
        {
            embedded.service().disconnect(session);
        }
    }
}
