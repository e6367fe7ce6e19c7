//! The server: listening sockets, the threads that serve, and what they share.
//!
//! ```text
//! Listener ─ accept ─ too many? ─► turned away
//!                   └ peer's user, by the kernel's word ─► the threads by turns (`worker`)
//! Server dropped ─► no more are let in ─► every connection is closed ─► threads end
//! ```
//!
//! It decides who is let in and keeps what all threads share: the export, the pool, the counts. Requests are not its affair.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use memferry_pool::{Buffer, Pool, PoolError};
use memferry_shm::conduit;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use thiserror::Error;

use crate::export::{Export, ExportError};
use crate::options::{Options, OptionsError, Peer};
use crate::statistics::{Counters, Statistics};
use crate::worker::{self, Inbox};

/// Counts of writes; files share them.
const WRITE_COUNTS: usize = 64;

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(
        "cannot make an io_uring: {0}; the file server needs Linux 5.19 and kernel.io_uring_disabled = 0"
    )]
    Ring(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    /// An address that others reach, without a key.
    #[error(
        "{address} can be reached from other machines; give a key file, or listen on a loopback address or a Unix socket"
    )]
    Exposed { address: String },
}

/// A socket that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket, and its path when it is ours to remove.
    Unix(UnixListener, Option<PathBuf>),
    Tcp(TcpListener),
}

impl Listener {
    /// A Unix socket that all users may connect to; what is at its path and answers nobody is replaced.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub fn unix(path: &Path) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address: path.display().to_string(), source };
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket
            && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(Self::Unix(listener, Some(path.to_owned())))
    }

    /// A TCP socket at `HOST:PORT`; one that other machines reach only when that is `allowed`.
    ///
    /// # Errors
    /// [`ServerError::Listen`], [`ServerError::Exposed`].
    pub fn tcp(address: &str, allowed: bool) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address: address.to_owned(), source };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let local = addresses.iter().all(|address| match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        });
        if !local && !allowed {
            return Err(ServerError::Exposed { address: address.to_owned() });
        }
        Ok(Self::Tcp(TcpListener::bind(&addresses[..]).map_err(failed)?))
    }

    /// Where it is, for people: `unix:PATH` or `tcp:ADDRESS`.
    pub fn address(&self) -> String {
        match self {
            Self::Unix(listener, path) => {
                let own = || listener.local_addr().ok().and_then(|own| own.as_pathname().map(Path::to_owned));
                format!("unix:{}", path.clone().or_else(own).unwrap_or_default().display())
            }
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "tcp:".to_owned(), |address| format!("tcp:{address}"))
            }
        }
    }

    fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener, _) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> io::Result<(OwnedFd, Peer)> {
        let (socket, peer): (OwnedFd, Peer) = match self {
            Self::Unix(listener, _) => {
                let socket = OwnedFd::from(listener.accept()?.0);
                let uid = conduit::peer_user(socket.as_fd())?;
                (socket, Peer::User(uid))
            }
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                // A machine that is gone without a word is found out.
                rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
                (socket.into(), Peer::Remote)
            }
        };
        rustix::fs::fcntl_setfl(&socket, rustix::fs::fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        Ok((socket, peer))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) export: Export,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    /// Writes that have ended, by some of the files' bits: a count that has not changed means that the file was not written.
    writes: [AtomicU64; WRITE_COUNTS],
    started: Instant,
    /// The second, from the start on, in which a line about a client was last written to the log.
    logged: AtomicU64,
}

impl Shared {
    fn new(options: Options) -> Result<Self, ServerError> {
        options.check()?;
        let export = Export::open(&options.directory, options.read_only, options.special_files)?;
        let pool = Pool::new(options.pool())?;
        let writes = [const { AtomicU64::new(0) }; WRITE_COUNTS];
        let counters = Default::default();
        let logged = Default::default();
        Ok(Self { options, export, pool, counters, writes, started: Instant::now(), logged })
    }

    /// Whether what clients cause is to be logged now: one line a second, or they would fill the log. All of it is
    /// counted.
    pub(crate) fn may_log(&self) -> bool {
        let second = self.started.elapsed().as_secs() + 1;
        self.logged.swap(second, Ordering::Relaxed) != second
    }

    /// A count that changes with every write of this server to a file, at the latest when it ends.
    pub(crate) fn writes(&self, file: (u64, u64)) -> &AtomicU64 {
        &self.writes[(file.0 ^ file.1) as usize % WRITE_COUNTS]
    }

    /// A buffer for a request; `None` when one is to be waited for, an error when none will ever come back.
    pub(crate) fn buffer(&self) -> Result<Option<Buffer>, Errno> {
        match self.pool.take() {
            Ok(buffer) => Ok(Some(buffer)),
            Err(PoolError::Exhausted { .. }) => Ok(None),
            Err(error) => {
                if self.may_log() {
                    tracing::warn!(%error, "the pool has no memory");
                }
                if self.pool.statistics().in_use > 0 { Ok(None) } else { Err(Errno::NOMEM) }
            }
        }
    }

    /// A buffer that nobody waits for: only while the pool has plenty.
    pub(crate) fn spare_buffer(&self) -> Option<Buffer> {
        let counts = self.pool.statistics();
        let most = self.pool.options().buffers_within(counts.limit_bytes);
        if (counts.in_use + 1) * 4 <= most * 3 { self.pool.take().ok() } else { None }
    }
}

pub(crate) struct Arrival {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) connected: Connected,
}

/// A client is counted as connected while this lives, whatever becomes of the thread that serves it.
pub(crate) struct Connected(Arc<Shared>);

impl Connected {
    fn new(shared: &Arc<Shared>) -> Self {
        Counters::add(&shared.counters.connected, 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.counters.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Thread {
    arrivals: Option<Sender<Arrival>>,
    wake: Arc<OwnedFd>,
    handle: Option<JoinHandle<()>>,
}

/// A running server; it stops when it is dropped. Its descriptor is readable once it [is over](Server::is_over).
pub struct Server {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    over: Arc<OwnedFd>,
    door: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves clients of these sockets, in threads of its own.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(options: Options, listeners: Vec<Listener>) -> Result<Self, ServerError> {
        let shared = Arc::new(Shared::new(options)?);
        let threads: Result<VecDeque<Thread>, ServerError> =
            (0..shared.options.threads).map(|index| Thread::start(index, &shared)).collect();
        Self::open(shared, listeners, threads?)
    }

    fn open(
        shared: Arc<Shared>,
        listeners: Vec<Listener>,
        mut threads: VecDeque<Thread>,
    ) -> Result<Self, ServerError> {
        let bell = || event().map(Arc::new).map_err(ServerError::Thread);
        let stop = bell()?;
        let over = bell()?;
        let inside = Arc::clone(&shared);
        let stopped = Arc::clone(&stop);
        let ended = Arc::clone(&over);
        for listener in &listeners {
            listener
                .set_nonblocking()
                .map_err(|source| ServerError::Listen { address: listener.address(), source })?;
        }
        let door = std::thread::Builder::new().name("9p-door".to_owned()).spawn(move || {
            keep_door(&inside, &listeners, &mut threads, &stopped);
            ring_bell(&ended);
        });
        Ok(Self { shared, stop, over, door: Some(door.map_err(ServerError::Thread)?) })
    }

    /// Whether it lets nobody in any more: a client came, and every serving thread had ended. The log says why each did.
    pub fn is_over(&self) -> bool {
        let mut entries = [PollFd::new(&self.over, PollFlags::IN)];
        rustix::event::poll(&mut entries, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    pub fn statistics(&self) -> Statistics {
        self.shared.counters.snapshot()
    }

    /// The pool it serves from.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        ring_bell(&self.stop);
        if let Some(door) = self.door.take() {
            let _ = door.join();
        }
    }
}

impl Thread {
    fn start(index: usize, shared: &Arc<Shared>) -> Result<Self, ServerError> {
        let wake = Arc::new(event().map_err(ServerError::Thread)?);
        let (sender, arrivals) = channel();
        let (ready, started) = channel();
        let inside = Arc::clone(shared);
        let inbox = Inbox { arrivals, wake: Arc::clone(&wake) };
        let handle = std::thread::Builder::new()
            .name(format!("9p-{index}"))
            .spawn(move || worker::run(inside, inbox, &ready))
            .map_err(ServerError::Thread)?;
        let begun = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let thread = Self { arrivals: Some(sender), wake, handle: Some(handle) };
        begun.map_err(ServerError::Ring)?;
        Ok(thread)
    }

    /// Hands it a client, who is given back when it serves no more.
    fn serve(&self, arrival: Arrival) -> Result<(), Arrival> {
        let Some(arrivals) = &self.arrivals else { return Err(arrival) };
        arrivals.send(arrival).map_err(|refused| refused.0)?;
        ring_bell(&self.wake);
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.arrivals = None;
        ring_bell(&self.wake);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ring_bell(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Lets clients in until told to stop, or nobody is left to serve them.
fn keep_door(shared: &Arc<Shared>, listeners: &[Listener], threads: &mut VecDeque<Thread>, stop: &OwnedFd) {
    while !threads.is_empty() {
        let mut entries = vec![PollFd::new(stop, PollFlags::IN)];
        entries.extend(
            listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.descriptor(), PollFlags::IN)),
        );
        match rustix::event::poll(&mut entries, None) {
            Ok(_) if entries[0].revents().is_empty() => {}
            Err(Errno::INTR) => continue,
            _ => return,
        }
        for listener in listeners {
            match listener.accept() {
                Ok(client) => let_in(shared, threads, client),
                Err(error) if is_nobody(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot let a client in");
                    // Most often there are no descriptors left, and the socket stays readable.
                    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                    let _ = rustix::event::poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&pause));
                }
            }
        }
    }
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

/// Hands a client to the thread whose turn it is; one that serves no more has no further turn.
fn let_in(shared: &Arc<Shared>, threads: &mut VecDeque<Thread>, (socket, peer): (OwnedFd, Peer)) {
    let counters = &shared.counters;
    if counters.connected.load(Ordering::Relaxed) >= shared.options.limits.clients as u64 {
        Counters::add(&counters.turned_away, 1);
        return;
    }
    Counters::add(&counters.clients, 1);
    let mut arrival = Arrival { socket, peer, connected: Connected::new(shared) };
    while let Some(thread) = threads.pop_front() {
        match thread.serve(arrival) {
            Ok(()) => return threads.push_back(thread),
            Err(refused) => arrival = refused,
        }
        tracing::error!(left = threads.len(), "a serving thread has ended; without any nobody is let in");
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(Options::new(env!("CARGO_MANIFEST_DIR"))).unwrap())
    }

    /// A thread's place at the door, and its inbox.
    fn thread() -> (Thread, std::sync::mpsc::Receiver<Arrival>) {
        let (sender, arrivals) = channel();
        let wake = Arc::new(event().unwrap());
        (Thread { arrivals: Some(sender), wake, handle: None }, arrivals)
    }

    #[test]
    fn clients_of_a_thread_that_ended_go_to_the_others_and_are_not_counted_for_ever() {
        let shared = shared();
        let connected = || shared.counters.snapshot().connected;
        let (places, mut inboxes): (Vec<_>, Vec<_>) = (0..3).map(|_| thread()).unzip();
        let mut threads = VecDeque::from(places);
        let come = |threads: &mut _| {
            let (socket, _) = UnixStream::pair().unwrap();
            let_in(&shared, threads, (socket.into(), Peer::Remote));
        };
        (0..3).for_each(|_| come(&mut threads));
        assert_eq!((connected(), inboxes[1].try_iter().count()), (3, 1));
        assert_eq!(connected(), 2, "one was dropped");
        // With a client in its inbox that it never took out.
        inboxes.remove(0);
        assert_eq!(connected(), 1);
        (0..4).for_each(|_| come(&mut threads));
        assert_eq!((threads.len(), connected()), (2, 5));
        assert_eq!(inboxes.iter().map(|inbox| inbox.try_iter().count()).sum::<usize>(), 5);
        inboxes.clear();
        come(&mut threads);
        assert_eq!((threads.len(), connected()), (0, 0), "the door closes");
    }

    #[test]
    fn it_is_over_when_a_client_finds_no_thread_left() {
        let path = std::env::temp_dir().join(format!("memferry-9p-over-{}", std::process::id()));
        let (place, inbox) = thread();
        let server =
            Server::open(shared(), vec![Listener::unix(&path).unwrap()], VecDeque::from([place])).unwrap();
        let come = || drop(UnixStream::connect(&path));
        come();
        assert_eq!(inbox.recv().map(|_| server.is_over()), Ok(false));
        drop(inbox);
        come();
        rustix::event::poll(&mut [PollFd::new(&server, PollFlags::IN)], None).unwrap();
        assert!(server.is_over());
    }

    #[test]
    fn clients_do_not_fill_the_log() {
        let shared = shared();
        let lines = (0..100_000).filter(|_| shared.may_log()).count() as u64;
        assert!((1..=shared.started.elapsed().as_secs() + 1).contains(&lines), "{lines}");
    }
}
