//! Connects two processes: they exchange greetings and memory over a socket.
//!
//! ```text
//! Listener::accept ─┐                          ┌─ Sender ─► messages ─► Receiver
//!                   ├─ hello, memory of mine ──┤
//! connect ──────────┘  check and map yours     └─ Receiver ◄─ messages ◄─ Sender
//! ```
//!
//! Each end writes its own memory and maps the other's read-only. Received memory is admitted like a frame, so that it cannot
//! shrink later. The kernel tells which process sent the greeting and the service which process has the session; a mismatch is
//! refused. Afterwards the socket carries only descriptors and wake-ups, and shows when the other process is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memferry::{CallError, Client, Identity, ServiceId, SessionId};
use memferry_shm::bus_error;
use memferry_shm::conduit::{self, ReceiveError};
use memferry_shm::frame;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::Fences;
use memferry_shm::storage::MappedWords;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::admission::{self, Admitter, MOST_LEFT};
use crate::closing::{close_elsewhere, wait_for_room};
use crate::error::{ConnectError, is_shortage};
use crate::peer::{Peer, Reach, RemoteUser};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::socket::{NoDescriptor, Socket};
use crate::wire::{MEMORY_BYTES, Violation};

const MAGIC: [u8; 8] = *b"MFERBLK3";
pub(crate) const HELLO_BYTES: usize = 56;
const ASYMMETRIC: u64 = 1;
/// Accepted connections without a greeting at which the listener stops accepting more.
const MAX_SILENT: usize = 16;

/// Limits of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of the longest message to receive; the other end learns it. Lent frames may be longer.
    pub longest: u64,
    /// How long the other process may take for the handshake, and hold the memory that it sends with it.
    pub handshake: Duration,
    /// How long the other process may hold the memory of a frame that it lends mapped, before the connection ends with
    /// [`ReceiveError::Held`](crate::ReceiveError::Held).
    pub admission: Duration,
}

impl Default for Options {
    /// 64 MiB, 5 seconds, 5 seconds.
    fn default() -> Self {
        let patience = Duration::from_secs(5);
        Self { longest: 64 << 20, handshake: patience, admission: patience }
    }
}

/// An end's greeting, little-endian: magic, features, service, session, longest message, bytes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    asymmetric: bool,
    service: ServiceId,
    session: SessionId,
    pub(crate) longest: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u64::from(self.asymmetric).to_le_bytes());
        bytes.extend(self.service.0.to_le_bytes());
        for word in [self.session.0, self.longest, MEMORY_BYTES] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let words = bytes.as_chunks::<8>().0;
        let [magic, features, low, high, session, longest, memory] = *words else { return None };
        let whole = u64::from_le_bytes;
        let good = bytes.len() == HELLO_BYTES && magic == MAGIC && whole(memory) == MEMORY_BYTES;
        good.then_some(Self {
            asymmetric: whole(features) & ASYMMETRIC != 0,
            service: ServiceId(u128::from(whole(low)) | u128::from(whole(high)) << 64),
            session: SessionId(whole(session)),
            longest: whole(longest),
        })
    }
}

/// A socket that other processes connect to. Dropping it removes the socket's file.
pub struct Listener {
    socket: Socket,
    path: PathBuf,
    silent: Mutex<Silent>,
    /// Signalled when a thread's turn to accept ends.
    turn: Condvar,
}

/// Connections without a greeting yet.
#[derive(Default)]
struct Silent {
    /// Each with its deadline. One thread at a time takes them out, since it may wait for long and must not hold the lock.
    sockets: Vec<(Socket, Option<Instant>)>,
    taken: bool,
}

/// A thread's turn to accept.
struct Turn<'a> {
    of: &'a Listener,
    silent: Vec<(Socket, Option<Instant>)>,
}

impl<'a> Turn<'a> {
    /// Waits until no other thread accepts.
    fn wait(of: &'a Listener, deadline: Option<Instant>) -> Result<Self, ConnectError> {
        let mut silent = of.silent.lock().unwrap_or_else(PoisonError::into_inner);
        while silent.taken {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            silent = match left {
                None => of.turn.wait(silent).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err(ConnectError::TimedOut),
                Some(left) => of.turn.wait_timeout(silent, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        silent.taken = true;
        Ok(Self { of, silent: std::mem::take(&mut silent.sockets) })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut silent = self.of.silent.lock().unwrap_or_else(PoisonError::into_inner);
        *silent = Silent { sockets: std::mem::take(&mut self.silent), taken: false };
        self.of.turn.notify_one();
    }
}

pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> ConnectError {
    move |source| ConnectError::System { step, source: source.into() }
}

/// A socket with its fork guard.
pub(crate) fn guarded(socket: OwnedFd) -> Result<Socket, ConnectError> {
    Socket::new(socket).map_err(|source| ConnectError::System { step: "fork guard", source })
}

/// A socket and the address of `path`. The kernel adds the sender's process to each packet.
fn seqpacket(path: &Path, flags: SocketFlags) -> Result<(Socket, SocketAddrUnix), ConnectError> {
    let failed = |source: Errno| ConnectError::Socket { path: path.to_owned(), source: source.into() };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let family = AddressFamily::UNIX;
    let kind = SocketType::SEQPACKET;
    let socket =
        rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | flags, None).map_err(failed)?;
    sockopt::set_socket_passcred(&socket, true).map_err(failed)?;
    Ok((guarded(socket)?, address))
}

impl Listener {
    /// Listens on `path`, which must not exist. The permissions of its directory decide who may connect.
    ///
    /// # Errors
    /// [`ConnectError::Socket`].
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        let path = path.as_ref();
        let failed = |source: Errno| ConnectError::Socket { path: path.to_owned(), source: source.into() };
        let (socket, address) = seqpacket(path, SocketFlags::NONBLOCK)?;
        rustix::net::bind(socket.as_fd(), &address).map_err(failed)?;
        let silent = Default::default();
        let turn = Default::default();
        let listener = Self { socket, path: path.to_owned(), silent, turn };
        rustix::net::listen(listener.socket.as_fd(), 16).map_err(failed)?;
        Ok(listener)
    }

    /// Waits up to `limit` for a process to connect and shakes hands with it. Of several, the first to send a greeting is
    /// accepted; one that sends none within the time of `options` is disconnected. Concurrent calls take turns.
    ///
    /// The process that is accepted can hold this call for the time of `options` beyond `limit`: accept on a thread of its own.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::TimedOut`] if no process connected or another thread had the turn. The listener stays usable.
    pub fn accept(
        &self,
        client: &Client,
        options: Options,
        limit: Option<Duration>,
    ) -> Result<(Sender, Receiver), ConnectError> {
        self.socket.check_fork()?;
        let deadline = limit.and_then(after);
        wait_for_room(deadline)?;
        shake_hands(self.first_to_speak(options, deadline)?, client, options)
    }

    fn first_to_speak(&self, options: Options, deadline: Option<Instant>) -> Result<Socket, ConnectError> {
        let failed = |source: Errno| ConnectError::Socket { path: self.path.clone(), source: source.into() };
        let mut turn = Turn::wait(self, deadline)?;
        let silent = &mut turn.silent;
        loop {
            let mut entries: Vec<_> = silent.iter().map(|(socket, _)| readable(socket)).collect();
            if silent.len() < MAX_SILENT {
                entries.push(readable(&self.socket));
            }
            let patience = silent.iter().filter_map(|(_, until)| *until).chain(deadline).min();
            poll_until(&mut entries, patience).map_err(failed)?;
            let ready = entries.iter().position(|entry| !entry.revents().is_empty());
            drop(entries);
            match ready {
                Some(index) if index < silent.len() => return Ok(silent.remove(index).0),
                Some(_) => match rustix::net::accept_with(self.socket.as_fd(), SocketFlags::CLOEXEC) {
                    Ok(socket) => silent.push((guarded(socket)?, after(options.handshake))),
                    // The connection is gone, or another process accepted it.
                    Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                    Err(error) => return Err(failed(error)),
                },
                None => {
                    let now = Instant::now();
                    if let Some(index) =
                        silent.iter().position(|(_, until)| until.is_some_and(|until| until <= now))
                    {
                        drop(silent.remove(index));
                        return Err(ConnectError::Handshake("the other process sent no greeting in time"));
                    }
                    if deadline.is_some_and(|deadline| deadline <= now) {
                        return Err(ConnectError::TimedOut);
                    }
                }
            }
        }
    }
}

/// The instant after `time`; `None` if it is not representable.
pub(crate) fn after(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time)
}

pub(crate) fn readable(socket: &Socket) -> PollFd<'_> {
    PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)
}

/// Waits for an entry to be ready, the time, or a signal.
pub(crate) fn poll_until(entries: &mut [PollFd<'_>], until: Option<Instant>) -> rustix::io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let limit =
        left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    match rustix::event::poll(entries, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child must not remove its parent's file.
        if self.socket.check_fork().is_ok() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({})", self.path.display())
    }
}

/// Connects to the process that listens on `path`.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(
    path: impl AsRef<Path>,
    client: &Client,
    options: Options,
) -> Result<(Sender, Receiver), ConnectError> {
    shake_hands(connected(path.as_ref(), options.handshake)?, client, options)
}

/// A socket that is connected to the process that listens on `path`.
pub(crate) fn connected(path: &Path, patience: Duration) -> Result<Socket, ConnectError> {
    wait_for_room(None)?;
    let failed = |source: Errno| ConnectError::Socket { path: path.to_owned(), source: source.into() };
    let (socket, address) = seqpacket(path, SocketFlags::empty())?;
    // The connect call waits while the listener's backlog is full.
    let patience = patience.clamp(Duration::from_micros(1), Duration::from_secs(1 << 30));
    sockopt::set_socket_timeout(socket.as_fd(), sockopt::Timeout::Send, Some(patience)).map_err(failed)?;
    let connected = rustix::io::retry_on_intr(|| rustix::net::connect(socket.as_fd(), &address));
    connected.map_err(failed)?;
    Ok(socket)
}

/// Connects over a Unix socket of sequenced packets, for example one end of a `socketpair`.
///
/// # Errors
/// [`ConnectError`].
pub fn over(socket: OwnedFd, client: &Client, options: Options) -> Result<(Sender, Receiver), ConnectError> {
    let socket = guarded(socket)?;
    wait_for_room(None)?;
    sockopt::set_socket_passcred(socket.as_fd(), true).map_err(failed("setsockopt"))?;
    shake_hands(socket, client, options)
}

/// Exchanges greetings and memory with the other end.
fn shake_hands(
    socket: Socket,
    client: &Client,
    options: Options,
) -> Result<(Sender, Receiver), ConnectError> {
    let own = Own::prepare(client, options.longest)?;
    own.send(&socket, &own.hello.encode())?;
    let until = after(options.handshake);
    let theirs = receive_hello(&socket, until)?;
    let longest = theirs.hello.longest;
    let (peer, session) = own.meet(client, socket, theirs, (until, options.handshake))?;
    let reach = session.map_or(Reach::Nothing, Reach::Session);
    let sender = Sender::new(Arc::clone(&peer), client.clone(), reach, longest);
    Ok((sender, Receiver::new(peer, client.clone(), reach, (options.longest, options.admission))))
}

/// What this end brings to a handshake.
pub(crate) struct Own {
    fences: Fences,
    identity: Identity,
    pub(crate) hello: Hello,
    descriptor: OwnedFd,
    memory: Mapping,
}

/// What the other end brings.
pub(crate) struct Theirs {
    pub(crate) hello: Hello,
    pub(crate) memory: OwnedFd,
    /// Its process where the kernel can tell.
    pub(crate) process: Option<u32>,
    /// Who is behind it if it is the link of this node.
    pub(crate) remote: Option<RemoteUser>,
}

impl Own {
    pub(crate) fn prepare(client: &Client, longest: u64) -> Result<Self, ConnectError> {
        let fences = Fences::register();
        let session = client.session();
        let identity = client.identify(session)?;
        let asymmetric = fences == Fences::Asymmetric;
        let hello = Hello { asymmetric, service: identity.service, session, longest };
        let (descriptor, memory) = frame::allocate_sealed(MEMORY_BYTES, false)?;
        Ok(Self { fences, identity, hello, descriptor, memory })
    }

    /// Sends a greeting with the memory.
    pub(crate) fn send(&self, socket: &Socket, greeting: &[u8]) -> Result<(), ConnectError> {
        conduit::send(socket.as_fd(), greeting, &[self.descriptor.as_fd()], false).map_err(failed("sendmsg"))
    }

    /// The greeting, and another descriptor of the memory, to be sent after [`meet`](Self::meet).
    pub(crate) fn copy(&self) -> Result<(Hello, OwnedFd), ConnectError> {
        let copied = self.descriptor.try_clone();
        let descriptor = copied.map_err(|source| ConnectError::System { step: "dup", source })?;
        Ok((self.hello, descriptor))
    }

    /// Admits and maps what the other end brings. Returns its session, too, if both are clients of one service.
    pub(crate) fn meet(
        self,
        client: &Client,
        socket: Socket,
        theirs: Theirs,
        limit: (Option<Instant>, Duration),
    ) -> Result<(Arc<Peer>, Option<SessionId>), ConnectError> {
        Ok(self.admit(client, &socket, theirs, limit)?.over(socket))
    }

    /// As [`meet`](Self::meet), for one that still has something to say on the socket.
    pub(crate) fn admit(
        self,
        client: &Client,
        socket: &Socket,
        theirs: Theirs,
        (until, limit): (Option<Instant>, Duration),
    ) -> Result<Met, ConnectError> {
        let Theirs { hello, memory, process, remote } = theirs;
        let user = match conduit::peer_user(socket.as_fd()) {
            Ok(user) => user,
            Err(error) => {
                close_elsewhere(socket.user(), vec![memory]);
                return Err(failed("getsockopt")(error));
            }
        };
        let mapped = admit(memory, user, (until, limit))?;
        // The other process's memory may fail while this CPU reads it.
        bus_error::install().map_err(|source| ConnectError::System { step: "sigaction", source })?;
        for mapping in [&self.memory, &mapped] {
            mapping.do_not_fork().map_err(|source| ConnectError::System { step: "madvise", source })?;
        }
        let session = peers_session(client, &self.identity, &hello, process)?;
        let watched = process.filter(|process| *process != std::process::id());
        let watched = watched.and_then(|process| Pid::from_raw(process.cast_signed()));
        let watched = watched.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        let both = self.hello.asymmetric && hello.asymmetric;
        let agreed = if both { self.fences } else { Fences::Full };
        let words = MappedWords::new(self.memory).zip(MappedWords::new(mapped));
        let words = words.ok_or(ConnectError::Handshake("its memory is not aligned"))?;
        Ok(Met { words, agreed, watched, user, remote, session })
    }
}

/// What two ends have of each other, but for the socket.
pub(crate) struct Met {
    words: (MappedWords, MappedWords),
    agreed: Fences,
    watched: Option<OwnedFd>,
    user: u32,
    remote: Option<RemoteUser>,
    session: Option<SessionId>,
}

impl Met {
    /// The connection, and the session of its other end if both are clients of one service.
    pub(crate) fn over(self, socket: Socket) -> (Arc<Peer>, Option<SessionId>) {
        let mut peer = Peer::new(self.words, self.agreed, (socket, self.watched), self.user);
        peer.remote = self.remote;
        (Arc::new(peer), self.session)
    }
}

/// Admits the other end's memory. The other process can delay that, but not beyond `until`.
fn admit(
    memory: OwnedFd,
    user: u32,
    (until, limit): (Option<Instant>, Duration),
) -> Result<Mapping, ConnectError> {
    let stuck = admission::stuck(user);
    if stuck >= MOST_LEFT {
        close_elsewhere(user, vec![memory]);
        return Err(ConnectError::Holding { user, stuck });
    }
    let mut admitter = Admitter::new(user);
    let answer = match admitter.begin(memory, MEMORY_BYTES) {
        Ok(()) => admitter.wait(until).ok_or(ConnectError::Held { limit })?,
        Err(refused) => Err(refused),
    };
    answer.map_err(|refused| {
        close_elsewhere(user, refused.memory.into_iter().collect());
        no_memory("mmap", refused.why)
    })
}

/// The other end's session if both are clients of one service. It must belong to the process that the kernel names as the
/// greeting's sender, because frames are granted to that session and its grants are accepted.
///
/// A process that the service knows by another id is in another PID namespace, where the service's ids identify no process:
/// there nothing is lent by a grant.
fn peers_session(
    client: &Client,
    own: &Identity,
    theirs: &Hello,
    process: Option<u32>,
) -> Result<Option<SessionId>, ConnectError> {
    let comparable = process.filter(|_| own.process == std::process::id() && own.service == theirs.service);
    let Some(process) = comparable else { return Ok(None) };
    let session = theirs.session;
    match client.identify(session) {
        Ok(identity) if identity.process == process => Ok(Some(session)),
        Ok(_) => Err(Violation::Session { session, process }.into()),
        // For example, the process was killed after its greeting.
        Err(CallError::Refused(_)) => {
            Err(ConnectError::Handshake("the service has no session of the other process"))
        }
        Err(error) => Err(error.into()),
    }
}

fn no_memory(step: &'static str, error: NoDescriptor) -> ConnectError {
    match error {
        NoDescriptor::Broken(violation) => violation.into(),
        NoDescriptor::Shortage(error) => ConnectError::Shortage { step, source: error.into() },
    }
}

/// Receives the other end's greeting and memory, and its process where the kernel can tell.
fn receive_hello(socket: &Socket, until: Option<Instant>) -> Result<Theirs, ConnectError> {
    let (bytes, came, process) = receive_packet(socket, Room::Any, until)?;
    theirs(socket, Hello::decode(&bytes), came, process)
}

/// What the other end brings, if that is a greeting and one descriptor.
pub(crate) fn theirs(
    socket: &Socket,
    hello: Option<Hello>,
    came: Vec<OwnedFd>,
    process: Option<u32>,
) -> Result<Theirs, ConnectError> {
    match (hello, <[OwnedFd; 1]>::try_from(came)) {
        (Some(hello), Ok([memory])) => Ok(Theirs { hello, memory, process, remote: None }),
        (_, descriptors) => {
            close_elsewhere(socket.user(), descriptors.map_or_else(|all| all, Vec::from));
            Err(ConnectError::Handshake("the other process uses another protocol or another version"))
        }
    }
}

/// How many descriptors of a packet are received. Linux closes the others, on the thread that receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    Any,
    One,
}

/// A packet of a handshake, its descriptors, and its sender.
pub(crate) type Packet = (Vec<u8>, Vec<OwnedFd>, Option<u32>);

/// Receives a packet of a handshake, its descriptors, and the process that sent it where the kernel can tell.
pub(crate) fn receive_packet(
    socket: &Socket,
    room: Room,
    until: Option<Instant>,
) -> Result<Packet, ConnectError> {
    let mut came = Vec::new();
    loop {
        let received = match room {
            Room::Any => conduit::receive_introduced(socket.as_fd(), false, &mut came),
            Room::One => conduit::receive_with_one(socket.as_fd(), &mut came),
        };
        match received {
            Ok((bytes, process)) => return Ok((bytes, came, process)),
            Err(ReceiveError::WouldBlock) => {}
            // The buffer holds all descriptors of a packet, so a missing one is a shortage of this process.
            Err(ReceiveError::TooManyDescriptors) if came.is_empty() => {
                return Err(no_memory("recvmsg", NoDescriptor::Shortage(Errno::MFILE)));
            }
            Err(ReceiveError::System(error)) if is_shortage(error) => {
                return Err(no_memory("recvmsg", NoDescriptor::Shortage(error)));
            }
            Err(_) => {
                close_elsewhere(socket.user(), came);
                return Err(ConnectError::Handshake(
                    "the other process closed the connection or sent no packet",
                ));
            }
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            return Err(ConnectError::Handshake("the other process sent no greeting in time"));
        }
        poll_until(&mut [readable(socket)], until).map_err(failed("poll"))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_during_anothers_turn() {
        let path = std::env::temp_dir().join(format!("memferry-turns-{}.sock", std::process::id()));
        let listener = Listener::bind(&path).unwrap();
        let client = Client::embedded().unwrap();
        let accept = |limit| listener.accept(&client, Options::default(), Some(limit)).map(drop);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| accept(Duration::from_secs(20)));
            while !listener.silent.lock().unwrap().taken {
                std::thread::yield_now();
            }
            let ended = accept(Duration::from_millis(20));
            assert!(matches!(ended, Err(ConnectError::TimedOut)), "{ended:?}");
            assert!(!other.is_finished(), "the other thread had the turn");
            // The waiting thread gets the next turn and the connections accepted so far.
            let last = scope.spawn(|| accept(Duration::from_secs(20)));
            let connected = || connect(&path, &client, Options::default()).unwrap();
            let _ends = [connected(), connected()];
            let ended = [other.join().unwrap(), last.join().unwrap()];
            assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        });
    }

    #[test]
    fn greetings_round_trip_and_others_fail() {
        let service = ServiceId(77 << 64 | 5);
        let hello = Hello { asymmetric: true, service, session: SessionId(1 << 40), longest: 12 };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for wrong in [&bytes[1..], &[&bytes[..], &[0; 8]].concat()[..], &[0; HELLO_BYTES]] {
            assert_eq!(Hello::decode(wrong), None);
        }
    }
}
