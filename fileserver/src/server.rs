//! The server: listening sockets, the threads that serve, and what they share.
//!
//! ```text
//! Listener ─ accept ─ too many? ─► turned away
//!                   └ peer's user, by the kernel's word ─► the threads by turns (`worker`)
//! Server dropped ─► no more are let in ─► every connection is closed ─► threads end
//! ```
//!
//! It decides who is let in and keeps what all threads share: the export, the pool, the counts. Requests are not its affair.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use memferry_memory::pool::{self, Buffer, Constraints, Pool, PoolError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use thiserror::Error;

use crate::export::{Export, ExportError};
use crate::options::{Options, OptionsError, Peer};
use crate::statistics::{Counters, Statistics};
use crate::worker::{self, Arrival, Inbox};

/// Files whose reads past the page cache are remembered.
const REMEMBERED: usize = 1024;
/// Counts of writes; files share them.
const WRITE_COUNTS: usize = 64;
/// How often a file is read past the page cache before it is thought to be wanted again.
const ONCE_MORE: u32 = 2;

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Its options.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Its directory.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Its pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Its rings.
    #[error(
        "cannot make an io_uring: {0}; the file server needs Linux 5.19 and kernel.io_uring_disabled = 0"
    )]
    Ring(io::Error),
    /// Its threads.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A socket.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// An address that others reach, without a key.
    #[error(
        "{address} can be reached from other machines; give a key file, or listen on a loopback address or a Unix socket"
    )]
    Exposed {
        /// The address.
        address: String,
    },
}

/// A socket that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket, and its path when it is ours to remove.
    Unix(UnixListener, Option<PathBuf>),
    /// A TCP socket.
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

    fn accept(&self) -> io::Result<Arrival> {
        let (socket, peer): Arrival = match self {
            Self::Unix(listener, _) => {
                let socket = OwnedFd::from(listener.accept()?.0);
                let uid = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
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
    /// How often files were read past the page cache.
    reads: Mutex<BTreeMap<(u64, u64), u32>>,
    /// Writes that have ended, by some of the files' bits: a count that has not changed means that the file was not written.
    writes: [AtomicU64; WRITE_COUNTS],
}

impl Shared {
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
                tracing::warn!(%error, "the pool has no memory");
                if self.pool.statistics().in_use > 0 { Ok(None) } else { Err(Errno::NOMEM) }
            }
        }
    }

    /// A buffer that nobody waits for: only while the pool has plenty.
    pub(crate) fn spare_buffer(&self) -> Option<Buffer> {
        let counts = self.pool.statistics();
        let most = counts.limit_bytes / self.pool.options().buffer_bytes as u64;
        if counts.in_use * 4 < most * 3 { self.pool.take().ok() } else { None }
    }

    /// Counts that a file may be read past the page cache; whether that was often already.
    pub(crate) fn read_again(&self, file: (u64, u64)) -> bool {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if reads.len() >= REMEMBERED && !reads.contains_key(&file) {
            reads.clear();
        }
        let times = reads.entry(file).or_default();
        *times = times.saturating_add(1);
        *times > ONCE_MORE
    }
}

struct Thread {
    arrivals: Option<Sender<Arrival>>,
    wake: Arc<OwnedFd>,
    handle: Option<JoinHandle<()>>,
}

/// A running server; it stops when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    door: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves clients of these sockets, in threads of its own.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(options: Options, listeners: Vec<Listener>) -> Result<Self, ServerError> {
        options.check()?;
        let export = Export::open(&options.directory, options.read_only, options.special_files)?;
        let pool = Pool::new(pool::Options {
            buffer_bytes: options.block_bytes + 2 * 4096,
            segment_bytes: (2 << 20).min(options.pool_bytes as usize),
            limit_bytes: options.pool_bytes.next_multiple_of(2 << 20),
            constraints: Constraints::default(),
        })?;
        let reads = Mutex::new(BTreeMap::new());
        let writes = [const { AtomicU64::new(0) }; WRITE_COUNTS];
        let shared = Arc::new(Shared { options, export, pool, counters: Counters::default(), reads, writes });
        let threads: Result<Vec<Thread>, ServerError> =
            (0..shared.options.threads).map(|index| Thread::start(index, &shared)).collect();
        let mut threads = threads?;
        let stop = Arc::new(event().map_err(ServerError::Thread)?);
        let (inside, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        for listener in &listeners {
            listener
                .set_nonblocking()
                .map_err(|source| ServerError::Listen { address: listener.address(), source })?;
        }
        let door = std::thread::Builder::new().name("9p-door".to_owned()).spawn(move || {
            keep_door(&inside, &listeners, &mut threads, &stopped);
        });
        Ok(Self { shared, stop, door: Some(door.map_err(ServerError::Thread)?) })
    }

    /// What it did.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.snapshot()
    }

    /// The pool it serves from.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
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
        let (inside, inbox) = (Arc::clone(shared), Inbox { arrivals, wake: Arc::clone(&wake) });
        let handle = std::thread::Builder::new()
            .name(format!("9p-{index}"))
            .spawn(move || worker::run(inside, inbox, &ready))
            .map_err(ServerError::Thread)?;
        let begun = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let thread = Self { arrivals: Some(sender), wake, handle: Some(handle) };
        begun.map_err(ServerError::Ring)?;
        Ok(thread)
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

/// Lets clients in until told to stop.
fn keep_door(shared: &Shared, listeners: &[Listener], threads: &mut [Thread], stop: &OwnedFd) {
    let mut turn = 0;
    loop {
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
                Ok(arrival) => {
                    turn = (turn + 1) % threads.len();
                    let_in(shared, &threads[turn], arrival);
                }
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

fn let_in(shared: &Shared, thread: &Thread, arrival: Arrival) {
    let counters = &shared.counters;
    if counters.connected.load(Ordering::Relaxed) >= shared.options.limits.clients as u64 {
        Counters::add(&counters.turned_away, 1);
        return;
    }
    Counters::add(&counters.clients, 1);
    Counters::add(&counters.connected, 1);
    if thread.arrivals.as_ref().is_none_or(|arrivals| arrivals.send(arrival).is_err()) {
        counters.connected.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    ring_bell(&thread.wake);
}
