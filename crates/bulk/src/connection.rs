//! Connecting two processes: a socket by which they meet, and what they agree on there.
//!
//! ```text
//! Listener::accept ─┐                          ┌─ Sender ─► messages ─► Receiver
//!                   ├─ hello, memory of mine ──┤
//! connect ──────────┘  check and map yours     └─ Receiver ◄─ messages ◄─ Sender
//! ```
//!
//! Each end writes its own memory and maps the other's read-only; what came is admitted like a frame, so that it cannot be
//! cut short later. Which process spoke is the kernel's word, and whose session it named the service's: who names another's
//! is refused. Afterwards the socket carries descriptors and wake-ups only, and tells when the other process is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memferry::{CallError, Client, Identity, ServiceId, SessionId};
use memferry_shm::bus_error;
use memferry_shm::conduit::{self, ReceiveError};
use memferry_shm::frame;
use memferry_shm::parking::Fences;
use memferry_shm::storage::MappedWords;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::closing::{close_elsewhere, wait_for_room};
use crate::error::ConnectError;
use crate::peer::Peer;
use crate::receiver::{Receiver, map};
use crate::sender::Sender;
use crate::socket::{NoDescriptor, Socket, is_shortage};
use crate::wire::{MEMORY_BYTES, Violation};

const MAGIC: [u8; 8] = *b"MFERBLK2";
const HELLO_BYTES: usize = 56;
const ASYMMETRIC: u64 = 1;
/// Connections that may be silent at a time before others are let in.
const MOST_SILENT: usize = 16;

/// What a connection's messages may be, and how long it may take to come about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of the longest message that is received; the other end is told. Lent frames may be longer.
    pub longest: u64,
    /// How long the other process may take to shake hands.
    pub handshake: Duration,
}

impl Default for Options {
    /// 64 MiB, 5 seconds.
    fn default() -> Self {
        Self { longest: 64 << 20, handshake: Duration::from_secs(5) }
    }
}

/// What an end says of itself: magic, features, its service, its session, its longest message, its memory's bytes;
/// little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hello {
    asymmetric: bool,
    service: ServiceId,
    session: SessionId,
    longest: u64,
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u64::from(self.asymmetric).to_le_bytes());
        bytes.extend(self.service.0.to_le_bytes());
        for word in [self.session.0, self.longest, MEMORY_BYTES] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
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

/// Where others connect. The socket's file goes with it.
pub struct Listener {
    socket: Socket,
    path: PathBuf,
    silent: Mutex<Silent>,
    /// A thread's turn to accept is over.
    turn: Condvar,
}

/// Who connected and has said nothing yet.
#[derive(Default)]
struct Silent {
    /// Until when each may be, where there is an end to that. One thread at a time has them, without a lock: it may wait for long.
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

fn failed(step: &'static str) -> impl Fn(Errno) -> ConnectError {
    move |source| ConnectError::System { step, source: source.into() }
}

/// A socket with the guard it needs.
fn guarded(socket: OwnedFd) -> Result<Socket, ConnectError> {
    Socket::new(socket).map_err(|source| ConnectError::System { step: "fork guard", source })
}

/// A socket for a path, which tells who sends what.
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
    /// Listens on `path`, where nothing may be yet. Who may connect is for the permissions of its directory to say.
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

    /// Waits for a process that connects, at most for `limit`, and shakes hands with it. Of several the first is taken that
    /// says something; one that does not in the time that `options` give it is turned away. Threads that accept at a time take
    /// turns.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::TimedOut`] when nobody came, or another thread had the turn. The listener goes on.
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
            if silent.len() < MOST_SILENT {
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
                    // It has gone again, or another process took it.
                    Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                    Err(error) => return Err(failed(error)),
                },
                None => {
                    let now = Instant::now();
                    if let Some(index) =
                        silent.iter().position(|(_, until)| until.is_some_and(|until| until <= now))
                    {
                        drop(silent.remove(index));
                        return Err(ConnectError::Handshake("it said nothing in time"));
                    }
                    if deadline.is_some_and(|deadline| deadline <= now) {
                        return Err(ConnectError::TimedOut);
                    }
                }
            }
        }
    }
}

/// When so much time is over; never, where that is out of reach.
fn after(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time)
}

fn readable(socket: &Socket) -> PollFd<'_> {
    PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)
}

/// Waits until one of these is ready, or the time has come, or a signal did.
fn poll_until(entries: &mut [PollFd<'_>], until: Option<Instant>) -> rustix::io::Result<()> {
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
        // In a forked child it is the parent's.
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
    wait_for_room(None)?;
    let path = path.as_ref();
    let failed = |source: Errno| ConnectError::Socket { path: path.to_owned(), source: source.into() };
    let (socket, address) = seqpacket(path, SocketFlags::empty())?;
    // Where as many wait already as may, it waits to be let in.
    let patience = options.handshake.clamp(Duration::from_micros(1), Duration::from_secs(1 << 30));
    sockopt::set_socket_timeout(socket.as_fd(), sockopt::Timeout::Send, Some(patience)).map_err(failed)?;
    let connected = rustix::io::retry_on_intr(|| rustix::net::connect(socket.as_fd(), &address));
    connected.map_err(failed)?;
    shake_hands(socket, client, options)
}

/// Connects with whoever holds the other end of a Unix socket of sequenced packets, as of a `socketpair`.
///
/// # Errors
/// [`ConnectError`].
pub fn over(socket: OwnedFd, client: &Client, options: Options) -> Result<(Sender, Receiver), ConnectError> {
    let socket = guarded(socket)?;
    wait_for_room(None)?;
    sockopt::set_socket_passcred(socket.as_fd(), true).map_err(failed("setsockopt"))?;
    shake_hands(socket, client, options)
}

/// Agrees with the other end.
fn shake_hands(
    socket: Socket,
    client: &Client,
    options: Options,
) -> Result<(Sender, Receiver), ConnectError> {
    let fences = Fences::register();
    let identity = client.identify(client.session())?;
    let hello = Hello {
        asymmetric: fences == Fences::Asymmetric,
        service: identity.service,
        session: client.session(),
        longest: options.longest,
    };
    let (descriptor, own) = frame::allocate_sealed(MEMORY_BYTES, false)?;
    conduit::send(socket.as_fd(), &hello.encode(), &[descriptor.as_fd()], false)
        .map_err(failed("sendmsg"))?;
    let (theirs, memory, process) = receive_hello(&socket, after(options.handshake))?;
    let user = conduit::peer_user(socket.as_fd()).map_err(failed("getsockopt"))?;
    let mapped = map(&memory, MEMORY_BYTES, user).map_err(|error| {
        close_elsewhere(vec![memory]);
        no_memory("mmap", error)
    })?;
    // The other process's memory may fail under this one's CPU.
    bus_error::install().map_err(|source| ConnectError::System { step: "sigaction", source })?;
    for mapping in [&own, &mapped] {
        mapping.do_not_fork().map_err(|source| ConnectError::System { step: "madvise", source })?;
    }
    let session = peers_session(client, &identity, &theirs, process)?;
    let watched = process.filter(|process| *process != std::process::id());
    let watched = watched.and_then(|process| Pid::from_raw(process.cast_signed()));
    let watched = watched.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
    let agreed = if hello.asymmetric && theirs.asymmetric { fences } else { Fences::Full };
    let words = MappedWords::new(own).zip(MappedWords::new(mapped));
    let words = words.ok_or(ConnectError::Handshake("its memory is not aligned"))?;
    let peer = Arc::new(Peer::new(words, agreed, (socket, watched), user));
    let sender = Sender::new(Arc::clone(&peer), client.clone(), session, theirs.longest);
    Ok((sender, Receiver::new(peer, client.clone(), session, options.longest)))
}

/// The other end's session, when both are clients of one service: what it says of that has to be so, since frames are granted to
/// that session, and what it granted is taken for the other process's. The kernel says which process spoke.
///
/// A process that the service knows by another number than itself is in a PID namespace of its own, where processes cannot be
/// told apart by the service's numbers: there nothing is lent by capability.
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
        // As when it was killed after it had spoken.
        Err(CallError::Refused(_)) => Err(ConnectError::Handshake("the service has no session of it")),
        Err(error) => Err(error.into()),
    }
}

fn no_memory(step: &'static str, error: NoDescriptor) -> ConnectError {
    match error {
        NoDescriptor::Broken(violation) => violation.into(),
        NoDescriptor::Shortage(error) => ConnectError::Shortage { step, source: error.into() },
    }
}

/// What the other end says first, its memory, and its process where the kernel can tell.
fn receive_hello(
    socket: &Socket,
    until: Option<Instant>,
) -> Result<(Hello, OwnedFd, Option<u32>), ConnectError> {
    let mut came = Vec::new();
    let (bytes, process) = loop {
        match conduit::receive_introduced(socket.as_fd(), false, &mut came) {
            Ok(packet) => break packet,
            Err(ReceiveError::WouldBlock) => {}
            // There is room for all that a packet can carry: what is missing this process could not take.
            Err(ReceiveError::TooManyDescriptors) if came.is_empty() => {
                return Err(no_memory("recvmsg", NoDescriptor::Shortage(Errno::MFILE)));
            }
            Err(ReceiveError::System(error)) if is_shortage(error) => {
                return Err(no_memory("recvmsg", NoDescriptor::Shortage(error)));
            }
            Err(_) => {
                close_elsewhere(came);
                return Err(ConnectError::Handshake("it closed the connection or sent no packet"));
            }
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            return Err(ConnectError::Handshake("it said nothing in time"));
        }
        poll_until(&mut [readable(socket)], until).map_err(failed("poll"))?;
    };
    let hello = Hello::decode(&bytes);
    match (hello, <[OwnedFd; 1]>::try_from(came)) {
        (Some(hello), Ok([memory])) => Ok((hello, memory, process)),
        (_, descriptors) => {
            close_elsewhere(descriptors.map_or_else(|all| all, Vec::from));
            Err(ConnectError::Handshake("it speaks another protocol, or another version of this one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_though_another_thread_accepts() {
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
            assert!(!other.is_finished(), "it was the other one's turn");
            // Whose turn it is next has who is waiting, and what was connected meanwhile.
            let last = scope.spawn(|| accept(Duration::from_secs(20)));
            let connected = || connect(&path, &client, Options::default()).unwrap();
            let _ends = [connected(), connected()];
            let ended = [other.join().unwrap(), last.join().unwrap()];
            assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        });
    }

    #[test]
    fn a_greeting_is_read_as_it_was_written_and_nothing_else_is() {
        let service = ServiceId(77 << 64 | 5);
        let hello = Hello { asymmetric: true, service, session: SessionId(1 << 40), longest: 12 };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for wrong in [&bytes[1..], &[&bytes[..], &[0; 8]].concat()[..], &[0; HELLO_BYTES]] {
            assert_eq!(Hello::decode(wrong), None);
        }
    }
}
