//! The socket of a connection: carries descriptors, and wake-ups for a peer that polls.
//!
//! ```text
//! sender ─ number, descriptor ─┐               ┌─ descriptor ─► kept until its slot is received
//!                              ├─► take_in ────┤
//! publisher ─ wake-up ─────────┘               └─ wake-up ────► consumed: the socket is no longer readable
//! ```
//!
//! Closing a socket also closes the descriptors queued in it, and the peer controls how long that takes. So sockets and received
//! descriptors are closed on other threads. The receiver checks the descriptors' contents.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memferry::{ForkGuard, Forked};
use memferry_shm::conduit::{self, ReceiveError};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use rustix::time::{ClockId, clock_gettime};

use crate::closing::close_elsewhere;
use crate::error::{ConnectError, is_shortage};
use crate::wire::{EXPORTS, ROOM_NEWS, Violation};

/// Packets received per call if the system does not report how many wait.
const UNKNOWN: u64 = 2 * EXPORTS as u64;

/// How long a call receives packets.
const BRIEFLY: Duration = Duration::from_millis(10);
/// Far more CPU time than a call on an honest peer's socket takes.
const HONEST: Duration = Duration::from_micros(50);
/// How often that is repeated for a descriptor. An honest peer has sent a few wake-ups before it.
const MOST_ROUNDS: u32 = 8;

/// Why a descriptor is missing.
#[derive(Debug)]
pub(crate) enum NoDescriptor {
    /// The other end broke the protocol.
    Broken(Violation),
    /// This process lacks a resource to receive it.
    Shortage(Errno),
}

impl From<Violation> for NoDescriptor {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

/// CPU time of this thread. Other threads add nothing to it; a machine that stands still adds nothing where the kernel accounts stolen time.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A socket, its received descriptors and wake-ups.
pub(crate) struct Socket {
    /// `None` only during drop.
    socket: Option<OwnedFd>,
    /// Descriptors by export number, in order of arrival; `None` for one that this process had no room for.
    kept: Mutex<VecDeque<Option<(u32, OwnedFd)>>>,
    /// A wake-up for room was received and not reported yet.
    room: AtomicBool,
    /// The other end has no reason to send descriptors, and Linux does not refuse them: packets are looked at first.
    examines: bool,
    /// The calls are timed, for a process that serves many users.
    is_timed: bool,
    /// CPU time in nanoseconds that calls took beyond honest ones.
    slow: AtomicU64,
    guard: ForkGuard,
}

impl Socket {
    pub(crate) fn new(socket: OwnedFd) -> std::io::Result<Self> {
        let guard = ForkGuard::new()?;
        let kept = Default::default();
        let room = Default::default();
        let slow = Default::default();
        Ok(Self { socket: Some(socket), kept, room, examines: false, is_timed: false, slow, guard })
    }

    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        self.guard.check()
    }

    /// The user of the other end, as the kernel says.
    pub(crate) fn user(&self) -> u32 {
        conduit::peer_user(self.as_fd()).unwrap_or(u32::MAX)
    }

    /// From now on calls are timed.
    pub(crate) fn time_calls(&mut self) {
        self.is_timed = true;
    }

    /// CPU time of this thread that calls on the socket took since the last time, beyond that of an honest peer: each packet wakes
    /// every epoll instance that watches the socket at either end.
    pub(crate) fn take_slow_time(&self) -> Duration {
        Duration::from_nanos(self.slow.swap(0, Ordering::Relaxed))
    }

    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        if !self.is_timed {
            return call();
        }
        let before = cpu_time();
        let done = call();
        let beyond = cpu_time().saturating_sub(before).saturating_sub(HONEST);
        if !beyond.is_zero() {
            self.slow.fetch_add(beyond.as_nanos() as u64, Ordering::Relaxed);
        }
        done
    }

    /// Ends the connection at once, in both directions.
    pub(crate) fn shut_down(&self) {
        let _ = self.timed(|| rustix::net::shutdown(self.as_fd(), Shutdown::Both));
    }

    /// Sends a packet of a handshake, with up to one descriptor.
    pub(crate) fn answer(&self, packet: &[u8], memory: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
        self.timed(|| conduit::send(self.as_fd(), packet, memory.as_slice(), false))
    }

    /// From now on no descriptor is received. Linux refuses them, from 6.16; before, packets are looked at before they are received.
    /// Fails if a packet waits already.
    pub(crate) fn refuse_descriptors(&mut self) -> Result<(), ConnectError> {
        let refused = conduit::refuse_descriptors(self.as_fd()).is_ok();
        if !conduit::is_drained(self.as_fd()) {
            return Err(ConnectError::Handshake("the process sent more than its request"));
        }
        if !refused {
            self.examine()?;
        }
        Ok(())
    }

    /// Looks for descriptors in each packet before it is received.
    pub(crate) fn examine(&mut self) -> Result<(), ConnectError> {
        // With the sender's process every packet would look as if it had some.
        let set = sockopt::set_socket_passcred(self.as_fd(), false);
        set.map_err(|source| ConnectError::System { step: "setsockopt", source: source.into() })?;
        self.examines = true;
        Ok(())
    }

    /// Sends a descriptor under the number of its export.
    pub(crate) fn send(&self, index: u32, descriptor: BorrowedFd<'_>) -> rustix::io::Result<()> {
        conduit::send(self.as_fd(), &index.to_le_bytes(), &[descriptor], false)
    }

    /// Makes the other end's descriptor readable. If its socket is full, it is readable already.
    pub(crate) fn signal(&self, news: u32) {
        let _ = self.timed(|| conduit::send(self.as_fd(), &news.to_le_bytes(), &[], false));
    }

    /// Receives the packets that wait now, as long as that takes little time. Later ones are left, so that a fast peer cannot
    /// hold the caller. Returns whether it stopped early: a peer whose socket is watched by very many epoll instances makes each
    /// packet slow to receive.
    pub(crate) fn take_in(&self) -> Result<bool, NoDescriptor> {
        self.timed(|| self.take_in_now())
    }

    fn take_in_now(&self) -> Result<bool, NoDescriptor> {
        let until = Instant::now() + BRIEFLY;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Each valid packet is one number. The first packet is received even if it is empty.
        let waiting = rustix::io::ioctl_fionread(self.as_fd()).map(|bytes| bytes / size_of::<u32>() as u64);
        for _ in 0..waiting.unwrap_or(UNKNOWN).max(1) {
            // Received, they would be descriptors of this process, and slow to close.
            if self.examines && matches!(conduit::peek(self.as_fd(), &mut []), Ok((_, true))) {
                return Err(Violation::NotRemote.into());
            }
            let mut came = Vec::new();
            let received = conduit::receive_into(self.as_fd(), false, &mut came);
            let number = received.map(|bytes| bytes.try_into().ok().map(u32::from_le_bytes));
            match (number, <[OwnedFd; 1]>::try_from(came)) {
                (Err(ReceiveError::WouldBlock | ReceiveError::Closed), _) => return Ok(false),
                (Err(ReceiveError::System(error)), _) if is_shortage(error) => {
                    return Err(NoDescriptor::Shortage(error));
                }
                (Ok(Some(index)), Ok([descriptor])) if kept.len() < EXPORTS => {
                    kept.push_back(Some((index, descriptor)));
                }
                // The buffer holds all descriptors of a packet, so a missing one is a shortage of this process.
                (Err(ReceiveError::TooManyDescriptors), Err(none))
                    if none.is_empty() && kept.len() < EXPORTS =>
                {
                    kept.push_back(None);
                }
                (Ok(Some(news)), Err(none)) if none.is_empty() => {
                    self.room.fetch_or(news == ROOM_NEWS, Ordering::Relaxed);
                }
                (_, came) => {
                    close_elsewhere(self.user(), came.map_or_else(|several| several, Vec::from));
                    return Err(Violation::NoDescriptor.into());
                }
            }
            if Instant::now() >= until {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether descriptors came that nobody has asked for.
    pub(crate) fn holds_descriptors(&self) -> bool {
        !self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether a wake-up for room was received since the last call.
    pub(crate) fn had_room(&self) -> bool {
        self.room.swap(false, Ordering::Relaxed)
    }

    /// The descriptor that was sent for an export. It is sent before the slot that announces it.
    pub(crate) fn descriptor(&self, index: u32) -> Result<OwnedFd, NoDescriptor> {
        let next = || self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let mut kept = next();
        for _ in 0..MOST_ROUNDS {
            if kept.is_some() {
                break;
            }
            let more = self.take_in()?;
            kept = next();
            if !more {
                break;
            }
        }
        match kept {
            Some(Some((named, descriptor))) if named == index => Ok(descriptor),
            Some(None) => Err(NoDescriptor::Shortage(Errno::MFILE)),
            other => {
                let others = other.flatten().into_iter().map(|(_, descriptor)| descriptor);
                close_elsewhere(self.user(), others.collect());
                Err(Violation::NoDescriptor.into())
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            None => unreachable!("only drop takes the socket"),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        let user = conduit::peer_user(socket.as_fd()).unwrap_or(u32::MAX);
        let kept = std::mem::take(self.kept.get_mut().unwrap_or_else(PoisonError::into_inner));
        let kept = kept.into_iter().flatten().map(|(_, descriptor)| descriptor);
        let all = std::iter::once(socket).chain(kept).collect();
        // A forked child holds copies, whose close ends nothing, and must not start a thread.
        if self.check_fork().is_ok() {
            close_elsewhere(user, all);
        }
    }
}
