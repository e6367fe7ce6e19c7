//! A thread that serves: one ring, and the connections that were given to it.
//!
//! ```text
//! Server ─ new connection ─► inbox, wake ─┐
//!                                         ├─► wait ─► what has ended ─► its connection ─► more for the ring
//! what files and sockets have done ───────┘        └► what waits for buffers, who has stalled, who is gone
//! ```
//!
//! It sleeps until something happens; only while a client is in the middle of something, or a request waits for a buffer that
//! another thread may give back, does it look by itself. Metadata is asked for as requests come, and blocks the thread for as
//! long as the file system takes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use memferry_memory::uring::{Done, Ring};

use crate::connection::{Connection, Tools};
use crate::handover::Pipes;
use crate::options::Peer;
use crate::server::Shared;
use crate::statistics::Counters;

/// The token of the wake-up; no connection's number is so high.
const WAKE: u64 = u64::MAX;
/// Submissions between two waits.
const ENTRIES: u32 = 512;
/// How long a request that waits for a buffer waits until somebody looks.
const HUNGRY: Duration = Duration::from_millis(5);
/// How often a client in the middle of something is looked at.
const WATCHED: Duration = Duration::from_secs(1);

/// Who connected.
pub(crate) type Arrival = (OwnedFd, Peer);

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
}

/// Serves until the inbox ends. Tells `ready` when it can, or why it cannot.
pub(crate) fn run(shared: Arc<Shared>, inbox: Inbox, ready: &Sender<io::Result<()>>) {
    let ring = match Ring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let pipes = Pipes::new(shared.options.block_bytes);
    let tools = Tools { ring, pipes, shared };
    let mut worker = Worker { tools, inbox, connections: BTreeMap::new(), next: 0 };
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
            for done in done.drain(..) {
                if done.token == WAKE {
                    if !self.welcome()? {
                        return Ok(());
                    }
                } else {
                    self.hand_on(done);
                }
            }
            self.look_round();
        }
    }

    fn watch_inbox(&mut self) -> io::Result<()> {
        self.tools.ring.poll(Arc::clone(&self.inbox.wake), libc::POLLIN as u32, WAKE)
    }

    fn patience(&self) -> Option<Duration> {
        let mut connections = self.connections.values();
        if connections.clone().any(|connection| !connection.starved.is_empty()) {
            return Some(HUNGRY);
        }
        connections.any(Connection::is_busy).then_some(WATCHED)
    }

    /// Takes in who has come; whether there will be more.
    fn welcome(&mut self) -> io::Result<bool> {
        let _ = rustix::io::read(&self.inbox.wake, &mut [0_u8; 8]);
        loop {
            match self.inbox.arrivals.try_recv() {
                Ok((socket, peer)) => {
                    let index = self.next;
                    self.next = self.next.wrapping_add(1) & (u32::MAX >> 1);
                    let shared = Arc::clone(&self.tools.shared);
                    let mut connection = Connection::new(index, socket, peer, shared);
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
        let counters = &self.tools.shared.counters;
        for (index, connection) in &mut self.connections {
            if connection.has_stalled(stall) {
                Counters::add(&counters.stalled, 1);
                tracing::warn!(client = index, "client cut off: it stopped in the middle of something");
                connection.close();
            }
        }
        for connection in self.connections.values_mut().filter(|connection| !connection.starved.is_empty()) {
            connection.feed(&mut self.tools);
        }
        let before = self.connections.len();
        self.connections.retain(|_, connection| !connection.is_gone());
        let gone = (before - self.connections.len()) as u64;
        self.tools.shared.counters.connected.fetch_sub(gone, Ordering::Relaxed);
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
        self.tools.shared.counters.connected.fetch_sub(self.connections.len() as u64, Ordering::Relaxed);
    }
}
