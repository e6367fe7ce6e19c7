//! The server: listening sockets, serving threads, and their start and stop.
//!
//! ```text
//! Listener ─ accept ─ too many clients, or of its user? ─► refused
//!                   └ peer's user, from the kernel ─► one of the threads, round-robin (`worker`)
//! Server dropped ─► stop accepting ─► close every connection ─► threads end
//! ```
//!
//! It accepts clients and opens what all threads share (`shared`). It handles no requests.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use memferry_pool::{Pool, PoolError};
use memferry_shm::conduit;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use thiserror::Error;

use crate::accounts::Holder;
use crate::closing::close_elsewhere;
use crate::export::{Export, ExportError};
use crate::options::{Options, OptionsError, Peer};
use crate::shared::{Arrival, Connected, Shared};
use crate::statistics::{Counters, Statistics};
use crate::worker::{self, Inbox};

/// Why a server cannot start.
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
    /// An address that other machines reach, without a key.
    #[error(
        "{address} can be reached from other machines; give a key file, or listen on a loopback address or a Unix socket"
    )]
    Exposed { address: String },
}

/// A socket that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket, and its path if this server must remove it.
    Unix(UnixListener, Option<PathBuf>),
    Tcp(TcpListener),
}

impl Listener {
    /// A Unix socket that all users may connect to; replaces a socket at the path that nobody listens on.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub fn unix(path: &Path) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address: path.display().to_string(), source };
        let occupied = |why| failed(io::Error::new(io::ErrorKind::AddrInUse, why));
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(occupied("something that is no socket lies there"));
            }
            match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed)?
                }
                // Whether anybody listens is not known.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(failed(error)),
                Ok(_) | Err(_) => {
                    return Err(occupied(
                        "another program listens there already; stop it or choose another path",
                    ));
                }
            }
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Linux before 6.16 cannot refuse descriptors; clients' messages are examined then.
        let _ = conduit::refuse_descriptors(listener.as_fd());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(Self::Unix(listener, Some(path.to_owned())))
    }

    /// A TCP socket at `HOST:PORT`; other than loopback addresses must be `allowed`.
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

    /// Its address for messages: `unix:PATH` or `tcp:ADDRESS`.
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

    fn accept(&self) -> io::Result<Caller> {
        let (socket, peer, examined): (OwnedFd, Peer, bool) = match self {
            Self::Unix(listener, _) => {
                let socket = OwnedFd::from(listener.accept()?.0);
                let uid = conduit::peer_user(socket.as_fd())?;
                let examined = !conduit::refuses_descriptors(socket.as_fd());
                (socket, Peer::User(uid), examined)
            }
            Self::Tcp(listener) => {
                let (socket, address) = listener.accept()?;
                socket.set_nodelay(true)?;
                // Keepalive detects machines that vanished.
                rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
                (socket.into(), Peer::Remote(address.ip()), false)
            }
        };
        rustix::fs::fcntl_setfl(&socket, rustix::fs::fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        Ok(Caller { socket, peer, examined })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A client that connected and is not counted yet.
struct Caller {
    socket: OwnedFd,
    peer: Peer,
    /// Whether its messages may carry descriptors.
    examined: bool,
}

/// Checks the options, and opens the export and the pool.
fn open_shared(options: Options) -> Result<Shared, ServerError> {
    options.check()?;
    let export = Export::open(&options.directory, options.read_only, options.special_files)?;
    let pool = Pool::new(options.pool())?;
    Ok(Shared::new(options, export, pool))
}

struct Thread {
    arrivals: Option<Sender<Arrival>>,
    wake: Arc<OwnedFd>,
    handle: Option<JoinHandle<()>>,
}

/// A running server; dropping it stops it. Its descriptor becomes readable once it [is over](Server::is_over).
pub struct Server {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    over: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves clients of these sockets, in its own threads.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(options: Options, listeners: Vec<Listener>) -> Result<Self, ServerError> {
        let shared = Arc::new(open_shared(options)?);
        let threads: Result<VecDeque<Thread>, ServerError> =
            (0..shared.options.threads).map(|index| Thread::start(index, &shared)).collect();
        Self::open(shared, listeners, threads?)
    }

    fn open(
        shared: Arc<Shared>,
        listeners: Vec<Listener>,
        mut threads: VecDeque<Thread>,
    ) -> Result<Self, ServerError> {
        let new_event = || event().map(Arc::new).map_err(ServerError::Thread);
        let stop = new_event()?;
        let over = new_event()?;
        let inside = Arc::clone(&shared);
        let stopped = Arc::clone(&stop);
        let ended = Arc::clone(&over);
        for listener in &listeners {
            listener
                .set_nonblocking()
                .map_err(|source| ServerError::Listen { address: listener.address(), source })?;
        }
        let acceptor = std::thread::Builder::new().name("9p-accept".to_owned()).spawn(move || {
            accept_clients(&inside, &listeners, &mut threads, &stopped);
            signal(&ended);
        });
        Ok(Self { shared, stop, over, acceptor: Some(acceptor.map_err(ServerError::Thread)?) })
    }

    /// Whether it accepts no more clients, because all serving threads have ended. The log has their reasons.
    pub fn is_over(&self) -> bool {
        let mut entries = [PollFd::new(&self.over, PollFlags::IN)];
        rustix::event::poll(&mut entries, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    pub fn statistics(&self) -> Statistics {
        self.shared.counters.snapshot()
    }

    /// The pool of buffers.
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
        signal(&self.stop);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
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
        let outcome = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let thread = Self { arrivals: Some(sender), wake, handle: Some(handle) };
        outcome.map_err(ServerError::Ring)?;
        Ok(thread)
    }

    /// Passes a client to this thread; returns it if the thread has ended.
    fn serve(&self, arrival: Arrival) -> Result<(), Arrival> {
        let Some(arrivals) = &self.arrivals else { return Err(arrival) };
        arrivals.send(arrival).map_err(|refused| refused.0)?;
        signal(&self.wake);
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.arrivals = None;
        signal(&self.wake);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Accepts clients until stopped or no serving thread is left.
fn accept_clients(
    shared: &Arc<Shared>,
    listeners: &[Listener],
    threads: &mut VecDeque<Thread>,
    stop: &OwnedFd,
) {
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
                Ok(client) => assign(shared, threads, client),
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client");
                    // Usually the process is out of descriptors, and the socket stays readable.
                    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                    let _ = rustix::event::poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&pause));
                }
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

/// Closes the connection of a client that is not served.
fn turn_away(Caller { socket, examined, .. }: Caller) {
    if examined {
        close_elsewhere(socket, None);
    }
}

/// Passes a client to the next thread; drops threads that have ended.
fn assign(shared: &Arc<Shared>, threads: &mut VecDeque<Thread>, caller: Caller) {
    let counters = &shared.counters;
    let limits = &shared.options.limits;
    if counters.connected.load(Ordering::Relaxed) >= limits.clients as u64 {
        Counters::add(&counters.turned_away, 1);
        return turn_away(caller);
    }
    let holder = Holder::of(&caller.peer, &shared.options.access);
    let Some(connected) = Connected::new(shared, holder) else {
        Counters::add(&counters.turned_away_by_user, 1);
        if shared.may_log() {
            let most = limits.clients_per_user;
            tracing::warn!(
                "client refused: {holder} has {most} connections already; close some, or raise --max-clients-per-user"
            );
        }
        return turn_away(caller);
    };
    Counters::add(&counters.clients, 1);
    let Caller { socket, peer, examined } = caller;
    let mut arrival = Arrival { socket, peer, examined, connected };
    while let Some(thread) = threads.pop_front() {
        match thread.serve(arrival) {
            Ok(()) => return threads.push_back(thread),
            Err(refused) => arrival = refused,
        }
        tracing::error!(
            left = threads.len(),
            "a serving thread has ended; with none left no client is accepted"
        );
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn shared() -> Arc<Shared> {
        Arc::new(open_shared(Options::new(env!("CARGO_MANIFEST_DIR"))).unwrap())
    }

    /// A thread without a serving loop, and its inbox.
    fn thread() -> (Thread, std::sync::mpsc::Receiver<Arrival>) {
        let (sender, arrivals) = channel();
        let wake = Arc::new(event().unwrap());
        (Thread { arrivals: Some(sender), wake, handle: None }, arrivals)
    }

    #[test]
    fn an_occupied_path_is_refused_a_stale_socket_replaced() {
        let directory = std::env::temp_dir().join(format!("memferry-9p-path-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("s");
        let refused = |path: &Path| Listener::unix(path).unwrap_err().to_string();
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::unix(&path).unwrap();
        assert!(refused(&path).contains("another program listens there"));
        UnixStream::connect(&path).unwrap();
        drop(first);
        std::fs::write(&path, b"kept").unwrap();
        for plain in [&path, &directory] {
            assert!(refused(plain).contains("no socket lies there"));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn clients_of_ended_threads_move_to_others() {
        let shared = shared();
        let connected = || shared.counters.snapshot().connected;
        let (places, mut inboxes): (Vec<_>, Vec<_>) = (0..3).map(|_| thread()).unzip();
        let mut threads = VecDeque::from(places);
        let connect = |threads: &mut _| {
            let (socket, _) = UnixStream::pair().unwrap();
            let peer = Peer::Remote(std::net::Ipv4Addr::LOCALHOST.into());
            assign(&shared, threads, Caller { socket: socket.into(), peer, examined: false });
        };
        (0..3).for_each(|_| connect(&mut threads));
        assert_eq!((connected(), inboxes[1].try_iter().count()), (3, 1));
        assert_eq!(connected(), 2, "one was dropped");
        // Dropped with a client still in its inbox.
        inboxes.remove(0);
        assert_eq!(connected(), 1);
        (0..4).for_each(|_| connect(&mut threads));
        assert_eq!((threads.len(), connected()), (2, 5));
        assert_eq!(inboxes.iter().map(|inbox| inbox.try_iter().count()).sum::<usize>(), 5);
        inboxes.clear();
        connect(&mut threads);
        assert_eq!((threads.len(), connected()), (0, 0), "no more are accepted");
    }

    #[test]
    fn a_server_without_threads_is_over() {
        let path = std::env::temp_dir().join(format!("memferry-9p-over-{}", std::process::id()));
        let (place, inbox) = thread();
        let server =
            Server::open(shared(), vec![Listener::unix(&path).unwrap()], VecDeque::from([place])).unwrap();
        let connect = || drop(UnixStream::connect(&path));
        connect();
        assert_eq!(inbox.recv().map(|_| server.is_over()), Ok(false));
        drop(inbox);
        connect();
        rustix::event::poll(&mut [PollFd::new(&server, PollFlags::IN)], None).unwrap();
        assert!(server.is_over());
    }
}
