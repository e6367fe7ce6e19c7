//! A thread that serves: one ring, and the connections that were given to it.
//!
//! ```text
//! Server ─ new connection ─► inbox, wake ─┐
//!                                         ├─► wait ─► what has ended ─► its connection ─► more for the ring
//! what files and sockets have done ───────┘        └► what waits for buffers, who has stalled, who is gone
//! ```
//!
//! It sleeps until something happens. By itself it looks only while a client is in the middle of something or has not
//! attached, blocks were read ahead that may become too old, or a request waits for a buffer that another thread may
//! give back. Metadata is asked for as requests come, and blocks the thread for as long as the file system takes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use memferry_pool::uring::{Done, Ring};

use crate::connection::{Connection, Tools};
use crate::handover::Pipes;
use crate::server::{Arrival, Shared};
use crate::statistics::Counters;

/// The token of the wake-up; no connection's number is so high.
const WAKE: u64 = u64::MAX;
/// Submissions between two waits.
const ENTRIES: u32 = 512;
/// How long a request that waits for a buffer waits until somebody looks.
const HUNGRY: Duration = Duration::from_millis(5);
/// How often a client in the middle of something is looked at.
const WATCHED: Duration = Duration::from_secs(1);

/// A thread's end of the inbox: connections come, an end means to stop.
pub(crate) struct Inbox {
    pub(crate) arrivals: Receiver<Arrival>,
    pub(crate) wake: Arc<OwnedFd>,
}

struct Worker {
    tools: Tools,
    inbox: Inbox,
    connections: BTreeMap<u32, Connection>,
    next: u32,
    /// When blocks that were read ahead were last looked at.
    looked: Instant,
}

/// Serves until the inbox ends. Tells `ready` when it can, or why it cannot.
pub(crate) fn run(shared: Arc<Shared>, inbox: Inbox, ready: &Sender<io::Result<()>>) {
    let ring = match Ring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let pipes = Pipes::new(shared.options.block_bytes);
    let tools = Tools { ring, pipes, shared, hungry: VecDeque::new() };
    let connections = BTreeMap::new();
    let looked = Instant::now();
    let mut worker = Worker { tools, inbox, connections, next: 0, looked };
    let _ = ready.send(Ok(()));
    if let Err(error) = worker.serve() {
        tracing::error!(%error, "a serving thread ends");
    }
    worker.end();
}

impl Worker {
    fn serve(&mut self) -> io::Result<()> {
        let mut done = Vec::new();
        self.watch_inbox()?;
        loop {
            self.tools.ring.wait(self.patience(), &mut done)?;
            // All of them, the last time too: a connection is not gone before it has heard of everything it began.
            let mut welcomed = Ok(true);
            for done in done.drain(..) {
                match done.token {
                    WAKE => welcomed = self.welcome(),
                    _ => self.hand_on(done),
                }
            }
            if !welcomed? {
                return Ok(());
            }
            self.look_round();
        }
    }

    fn watch_inbox(&mut self) -> io::Result<()> {
        self.tools.ring.poll(Arc::clone(&self.inbox.wake), libc::POLLIN as u32, WAKE)
    }

    fn patience(&self) -> Option<Duration> {
        if !self.tools.hungry.is_empty() {
            return Some(HUNGRY);
        }
        let is_watched =
            |connection: &Connection| connection.owes_since().is_some() || connection.has_aheads();
        self.connections.values().any(is_watched).then_some(WATCHED)
    }

    /// Takes in who has come; whether there will be more.
    fn welcome(&mut self) -> io::Result<bool> {
        let _ = rustix::io::read(&self.inbox.wake, &mut [0_u8; 8]);
        loop {
            match self.inbox.arrivals.try_recv() {
                Ok(arrival) => {
                    let index = self.next;
                    self.next = self.next.wrapping_add(1) & (u32::MAX >> 1);
                    let shared = Arc::clone(&self.tools.shared);
                    let mut connection = Connection::new(index, arrival, shared);
                    connection.go_on(&mut self.tools);
                    self.connections.insert(index, connection);
                }
                Err(TryRecvError::Empty) => {
                    self.watch_inbox()?;
                    return Ok(true);
                }
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn hand_on(&mut self, done: Done) {
        let index = (done.token >> 32) as u32;
        if let Some(connection) = self.connections.get_mut(&index) {
            connection.ended(&mut self.tools, done);
        }
    }

    fn look_round(&mut self) {
        let stall = self.tools.shared.options.limits.stall;
        let shared = &self.tools.shared;
        for (index, connection) in &mut self.connections {
            if connection.owes_since().is_some_and(|since| since.elapsed() > stall) {
                Counters::add(&shared.counters.stalled, 1);
                if shared.may_log() {
                    tracing::warn!(
                        client = index,
                        "client cut off: it stopped in the middle of something, or did not attach"
                    );
                }
                connection.close();
            }
        }
        if self.looked.elapsed() >= WATCHED {
            self.looked = Instant::now();
            self.connections.values_mut().for_each(Connection::forget_old_aheads);
        }
        self.feed();
        self.connections.retain(|_, connection| !connection.is_gone());
    }

    /// Gives buffers to those who wait for one, first come first served.
    fn feed(&mut self) {
        while let Some(index) = self.tools.hungry.front().copied() {
            let Some(buffer) = self.tools.shared.buffer().transpose() else { return };
            self.tools.hungry.pop_front();
            if let Some(connection) = self.connections.get_mut(&index) {
                connection.feed(&mut self.tools, buffer);
            }
        }
    }

    /// Ends every connection and waits for what is under way.
    fn end(&mut self) {
        self.connections.values_mut().for_each(Connection::close);
        let mut done = Vec::new();
        while self.connections.values().any(|connection| !connection.is_gone()) {
            if self.tools.ring.wait(Some(WATCHED), &mut done).is_err() {
                break;
            }
            done.drain(..).for_each(|done| self.hand_on(done));
        }
    }
}
