//! The control thread's side of attendants: one for each connected user, and one for connections that are turned away.
//!
//! ```text
//! adopt(user, socket) ─► the user's attendant, started if there is none ─► Adopt
//! send(user, message) ─► its channel; never waits: a full channel means that the attendant is stuck, and it is given up
//! ```
//!
//! An attendant that is given up is killed. If it is stuck in the kernel it lives on without a channel, and counts: a user has a few
//! of them at most.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use memferry_shm::conduit;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::Signal;
use serde::Serialize;

use crate::NO_USER;
use crate::listener::Traces;
use crate::messages::{self, FromAttendant, Received, ToAttendant};
use crate::spawner::Spawner;

/// Attendants of one user: the one that serves, and those that were given up and have not ended.
const MAX_PER_USER: usize = 3;
/// Attendants of all users. Each is a process of its own.
const MAX_ATTENDANTS: usize = 4096;
/// Time for which an attendant without clients is kept: a user's next program often follows soon.
const KEPT: Duration = Duration::from_secs(5);
/// An attendant with fewer unread bytes in its channel keeps up. Linux counts about a thousand for a short message and has room for
/// 200,000.
const FEW_UNREAD_BYTES: u32 = 16 << 10;

/// Tokens of epoll: the spawner, then users and processes of attendants.
pub(crate) const SPAWNER: u64 = 3;
const USER: u64 = 1 << 32;
const PROCESS: u64 = 1 << 33;

/// An event of [`Attendants`].
pub(crate) enum Happened {
    Message(FromAttendant, Vec<OwnedFd>),
    Nothing,
    /// The attendant of this user ended, or failed; it is given up.
    Lost,
}

struct Attendant {
    channel: OwnedFd,
    /// Clients that it serves or watches.
    clients: usize,
    idle_since: Option<Instant>,
    /// Number of the request for it.
    request: u64,
    /// Its process, once the spawner has answered.
    process: Option<u64>,
}

pub(crate) struct Attendants {
    spawner: Spawner,
    by_user: BTreeMap<u32, Attendant>,
    /// Living processes: their user and pidfd. Also of attendants that were given up.
    processes: BTreeMap<u64, (u32, OwnedFd)>,
    /// Requests that the spawner has not answered yet, in their order: user and number.
    coming: VecDeque<(u32, u64)>,
    next_request: u64,
}

/// A socket that an attendant did not take over.
pub(crate) enum NotHandedOver {
    /// The message could not be sent.
    Kept { socket: OwnedFd, error: rustix::io::Errno },
    /// The attendant has the socket, but cannot be told to handle it.
    Half,
}

/// Why a user gets no attendant.
pub(crate) type NoAttendant = String;

impl Attendants {
    /// Starts the spawner. Call it before this process has threads.
    ///
    /// # Errors
    /// Those of fork.
    pub(crate) fn start(traces: Traces, confined: bool) -> std::io::Result<Self> {
        Ok(Self {
            spawner: Spawner::start(traces, confined)?,
            by_user: BTreeMap::new(),
            processes: BTreeMap::new(),
            coming: VecDeque::new(),
            next_request: 0,
        })
    }

    /// Has the files of the listening socket removed.
    pub(crate) fn remove_traces(&self) {
        self.spawner.remove_traces();
    }

    /// Adds the spawner to `epoll`, and starts the attendant of connections that are turned away.
    ///
    /// # Errors
    /// Those of epoll, and of starting an attendant.
    pub(crate) fn watch(&mut self, epoll: &OwnedFd) -> std::io::Result<()> {
        epoll::add(epoll, self.spawner.socket(), EventData::new_u64(SPAWNER), EventFlags::IN)?;
        self.need(epoll, NO_USER).map_err(std::io::Error::other)
    }

    /// Makes sure that `user` has an attendant.
    ///
    /// # Errors
    /// The reason why it has none.
    pub(crate) fn need(&mut self, epoll: &OwnedFd, user: u32) -> Result<(), NoAttendant> {
        if self.by_user.contains_key(&user) {
            return Ok(());
        }
        let coming = self.coming.iter().filter(|(of, _)| *of == user).count();
        let living = self.processes.values().filter(|(of, _)| *of == user).count() + coming;
        if living >= MAX_PER_USER {
            return Err(format!(
                "{living} processes that serve user {user} are stuck in what its clients sent; try again later"
            ));
        }
        if self.processes.len() + self.coming.len() >= MAX_ATTENDANTS {
            return Err(format!("{MAX_ATTENDANTS} users are connected; try again later"));
        }
        let failed =
            |error: &dyn std::fmt::Display| format!("cannot serve another user ({error}); try again later");
        let channel = self.spawner.spawn(user).map_err(|error| failed(&error))?;
        self.next_request += 1;
        let request = self.next_request;
        self.coming.push_back((user, request));
        let token = EventData::new_u64(USER | u64::from(user));
        epoll::add(epoll, &channel, token, EventFlags::IN).map_err(|error| failed(&error))?;
        // Its first client may not come.
        let idle_since = (user != NO_USER).then(Instant::now);
        let attendant = Attendant { channel, clients: 0, idle_since, request, process: None };
        self.by_user.insert(user, attendant);
        Ok(())
    }

    /// Sends a message to a user's attendant. Returns false if that fails: then it is given up.
    pub(crate) fn send(&self, user: u32, message: &impl Serialize, descriptors: &[&OwnedFd]) -> bool {
        self.try_send(user, message, descriptors).is_ok()
    }

    /// Whether the user's attendant has read most of its messages, so that others find room after one more.
    pub(crate) fn keeps_up(&self, user: u32) -> bool {
        let unread =
            self.by_user.get(&user).map(|attendant| conduit::unread_bytes(attendant.channel.as_fd()));
        unread.is_some_and(|unread| unread.is_ok_and(|bytes| bytes <= FEW_UNREAD_BYTES))
    }

    /// Passes a client's socket on with a message. Closing the last copy of it may block, if the client has sent descriptors that
    /// linger. So the attendant handles it only after the copy here is closed.
    ///
    /// # Errors
    /// [`NotHandedOver`].
    pub(crate) fn hand_over(
        &self,
        user: u32,
        message: &ToAttendant,
        socket: OwnedFd,
        process: Option<&OwnedFd>,
    ) -> Result<(), NotHandedOver> {
        let descriptors: Vec<_> = std::iter::once(&socket).chain(process).collect();
        if let Err(error) = self.try_send(user, message, &descriptors) {
            return Err(NotHandedOver::Kept { socket, error });
        }
        drop(socket);
        if self.send(user, &ToAttendant::HandedOver, &[]) { Ok(()) } else { Err(NotHandedOver::Half) }
    }

    /// As [`send`](Self::send), with the reason.
    ///
    /// # Errors
    /// `PIPE` if the user has no attendant; `TOOMANYREFS` if too many descriptors are in flight, which is not its fault; `AGAIN` if the
    /// message finds no room; others of [`messages::send`].
    pub(crate) fn try_send(
        &self,
        user: u32,
        message: &impl Serialize,
        descriptors: &[&OwnedFd],
    ) -> rustix::io::Result<()> {
        let attendant = self.by_user.get(&user).ok_or(rustix::io::Errno::PIPE)?;
        messages::send(attendant.channel.as_fd(), message, descriptors, false)
    }

    /// One more client is served or watched by the user's attendant.
    pub(crate) fn add_client(&mut self, user: u32) {
        if let Some(attendant) = self.by_user.get_mut(&user) {
            attendant.clients += 1;
            attendant.idle_since = None;
        }
    }

    /// A client is gone for good.
    pub(crate) fn remove_client(&mut self, user: u32) {
        if let Some(attendant) = self.by_user.get_mut(&user) {
            attendant.clients = attendant.clients.saturating_sub(1);
            if attendant.clients == 0 && user != NO_USER {
                attendant.idle_since = Some(Instant::now());
            }
        }
    }

    /// The user of a token of a channel.
    pub(crate) fn user_of(token: u64) -> Option<u32> {
        (token & USER != 0).then_some(token as u32)
    }

    /// Whether the token is that of an attendant's process.
    pub(crate) fn is_process(token: u64) -> bool {
        token & PROCESS != 0
    }

    /// One message of a user's attendant.
    pub(crate) fn receive(&mut self, user: u32) -> Happened {
        let Some(attendant) = self.by_user.get(&user) else { return Happened::Nothing };
        match messages::receive(attendant.channel.as_fd()) {
            Received::Message(message, descriptors) => Happened::Message(message, descriptors),
            Received::Nothing => Happened::Nothing,
            Received::Lost => Happened::Lost,
        }
    }

    /// Gives up an attendant: closes its channel and kills it.
    pub(crate) fn give_up(&mut self, epoll: &OwnedFd, user: u32) {
        let Some(attendant) = self.by_user.remove(&user) else { return };
        let _ = epoll::delete(epoll, &attendant.channel);
        if let Some((_, process)) = attendant.process.and_then(|token| self.processes.get(&token)) {
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// An answer of the spawner.
    ///
    /// # Errors
    /// The spawner is gone.
    pub(crate) fn spawned(&mut self, epoll: &OwnedFd) -> std::io::Result<()> {
        let Some(spawned) = self.spawner.receive().map_err(std::io::Error::other)? else { return Ok(()) };
        // It answers in the order of the requests.
        let Some((user, request)) = self.coming.pop_front().filter(|(user, _)| *user == spawned.user) else {
            return Err(std::io::Error::other("the spawner answers out of order"));
        };
        // Without a process its channel has no other end, and ends by itself.
        let Some(process) = spawned.process else { return Ok(()) };
        let token = PROCESS | request;
        epoll::add(epoll, &process, EventData::new_u64(token), EventFlags::IN)?;
        self.processes.insert(token, (user, process));
        match self.by_user.get_mut(&user).filter(|attendant| attendant.request == request) {
            Some(attendant) => attendant.process = Some(token),
            // It was given up before it had started.
            None => {
                if let Some((_, process)) = self.processes.get(&token) {
                    let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
                }
            }
        }
        Ok(())
    }

    /// The process of an attendant has ended.
    pub(crate) fn process_ended(&mut self, epoll: &OwnedFd, token: u64) {
        if let Some((_, process)) = self.processes.remove(&token) {
            let _ = epoll::delete(epoll, &process);
        }
    }

    /// Time until an idle attendant is not kept any more.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let since = self.by_user.values().filter_map(|attendant| attendant.idle_since).min()?;
        Some((since + KEPT).saturating_duration_since(Instant::now()))
    }

    /// Lets go attendants that have been idle for long. They end by themselves.
    pub(crate) fn let_go(&mut self, epoll: &OwnedFd) {
        let now = Instant::now();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= KEPT;
        let over: Vec<u32> = self
            .by_user
            .iter()
            .filter(|(_, attendant)| attendant.idle_since.is_some_and(is_over))
            .map(|(user, _)| *user)
            .collect();
        for user in over {
            if let Some(attendant) = self.by_user.remove(&user) {
                let _ = epoll::delete(epoll, &attendant.channel);
            }
        }
    }
}

#[cfg(test)]
mod tests;
