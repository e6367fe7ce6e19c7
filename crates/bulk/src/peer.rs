//! The shared state of a connection's sender and receiver: both memories, sleep and wake-up, and liveness of the peer.
//!
//! ```text
//! publish ─ peer parked? ─ asleep: change a wake word of ours, futex ─► the peer wakes
//!                        └ polling: one packet for each time it armed ─► its descriptor is readable
//! wait(ready) ─ spin for about a wake-up's cost ─ park: set flag, check again, futex on the peer's wake word
//!                      └ every 100 ms and every 64th slot sent: socket hung up? process gone? ─► lost
//! ```
//!
//! The sender and the receiver may be on two threads. The caller's `ready` decides what a wait waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memferry::{Forked, NodeName, SessionId};
use memferry_shm::parking::{Fences, Spin, park, wanted};
use memferry_shm::queue_pair::futex;
use memferry_shm::storage::{MappedWords, RingStorage};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::socket::Socket;
use crate::wire::{ASLEEP, POLLING};

/// The longest a wait spins before it sleeps: about what a wake-up across cores costs.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// How often a sleeper checks that the peer still lives.
const LIVENESS: Duration = Duration::from_millis(100);
/// Checks of `ready` before a wait reads the clock.
const SHORT_SPIN: u32 = 64;

/// A user of another node, as the link of that node names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RemoteUser {
    /// The node, as the configuration of this node's link names it.
    pub node: NodeName,
    /// The user's number there.
    pub user: u32,
}

/// `NODE:USER`.
impl std::fmt::Display for RemoteUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.node, self.user)
    }
}

/// Whom frames are granted to, and whose grants are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Nobody: the two ends have different services.
    Nothing,
    Session(SessionId),
    Remote(RemoteUser),
}

/// Why a wait ended before `ready`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unready {
    TimedOut,
    Lost,
    Forked(Forked),
}

/// When a wait ends that begins now; `None` if it has no limit.
pub(crate) fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// The words a wait sleeps on.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    /// In our memory: the flag that says that this side sleeps.
    pub(crate) parked: usize,
    /// In the peer's memory: the word it changes to wake us.
    pub(crate) wake: usize,
}

/// The words and the packet that wake the peer.
#[derive(Clone, Copy)]
pub(crate) struct Wake {
    /// In its memory: the flag that says that it sleeps or polls.
    pub(crate) parked: usize,
    /// In our memory: the word to change.
    pub(crate) wake: usize,
    /// The number sent to its descriptor.
    pub(crate) news: u32,
}

/// Both memories, and the peer.
pub(crate) struct Peer {
    pub(crate) own: MappedWords,
    pub(crate) theirs: MappedWords,
    pub(crate) fences: Fences,
    pub(crate) socket: Socket,
    /// The peer's process, if it is known and is not this one.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) user: u32,
    /// Who is at the end of the channel if the peer is the link of this node.
    pub(crate) remote: Option<RemoteUser>,
    lost: AtomicBool,
    /// How often the descriptor was armed, by either end of ours.
    armed: AtomicU64,
    /// The flags answered last: the peer's receiver's, its sender's.
    answered: [AtomicU64; 2],
}

impl Peer {
    pub(crate) fn new(
        memories: (MappedWords, MappedWords),
        fences: Fences,
        (socket, process): (Socket, Option<OwnedFd>),
        user: u32,
    ) -> Self {
        let (own, theirs) = memories;
        let lost = Default::default();
        let armed = Default::default();
        let answered = Default::default();
        Self { own, theirs, fences, socket, process, user, remote: None, lost, armed, answered }
    }

    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        self.socket.check_fork()
    }

    /// Wakes the peer's end that sleeps or polls with this flag set.
    pub(crate) fn wake(&self, what: Wake) {
        let flag = wanted(self.theirs.word(what.parked), self.fences);
        if flag == 0 {
            return;
        }
        if flag & POLLING != 0 {
            let answered = &self.answered[usize::from(what.news == crate::wire::ROOM_NEWS)];
            if answered.swap(flag, Ordering::Relaxed) != flag {
                self.socket.signal(what.news);
            }
            return;
        }
        let word = self.own.word(what.wake);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        futex::wake(word);
    }

    /// Makes the descriptor readable at the next event of this flag. The caller must check for the event once more afterwards.
    pub(crate) fn arm(&self, parked: usize) {
        let times = self.armed.fetch_add(1, Ordering::Relaxed);
        self.own.word(parked).store(times << 2 | POLLING, Ordering::Relaxed);
        self.fences.heavy();
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer is known to be gone. Makes no system call.
    pub(crate) fn known_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether the peer is gone: it hung up or its process has ended.
    pub(crate) fn lost(&self) -> bool {
        if self.known_lost() {
            return true;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let asked = |fd: BorrowedFd<'_>, wanted| {
            let mut entry = [PollFd::from_borrowed_fd(fd, wanted)];
            rustix::event::poll(&mut entry, Some(&now)).map(|_| entry[0].revents())
        };
        // A peer that shuts down one direction leaves the socket readable for good.
        let hung_up = asked(self.socket.as_fd(), PollFlags::RDHUP)
            .is_ok_and(|events| events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP));
        // A forked child of the peer may keep its socket open.
        let ended = self.process.as_ref().is_some_and(|process| {
            asked(process.as_fd(), PollFlags::IN).is_ok_and(|events| events.contains(PollFlags::IN))
        });
        if hung_up || ended {
            self.lost.store(true, Ordering::Release);
        }
        hung_up || ended
    }

    /// Waits until `ready`; without a deadline, indefinitely.
    pub(crate) fn wait(
        &self,
        sleep: Sleep,
        spin: &mut Spin,
        deadline: Option<Instant>,
        ready: impl Fn() -> bool,
    ) -> Result<(), Unready> {
        self.check_fork().map_err(Unready::Forked)?;
        for _ in 0..SHORT_SPIN {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let until = Instant::now() + spin.time();
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        while Instant::now() < until {
            for _ in 0..32 {
                if ready() {
                    spin.record_success();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        spin.record_failure();
        loop {
            let word = self.theirs.word(sleep.wake);
            let expected = word.load(Ordering::Acquire);
            if ready() {
                return Ok(());
            }
            // Data that the peer wrote before its end counts.
            if self.lost() {
                return if ready() { Ok(()) } else { Err(Unready::Lost) };
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Unready::TimedOut);
            }
            let limit = left.map_or(LIVENESS, |left| left.min(LIVENESS));
            let flag = self.own.word(sleep.parked);
            let set = |value| flag.store(value * ASLEEP, Ordering::Relaxed);
            park(set, self.fences, &ready, || futex::wait(word, expected, limit));
        }
    }
}
