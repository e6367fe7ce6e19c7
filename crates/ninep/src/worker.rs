//! A serving thread: one ring and its connections.
//!
//! ```text
//! Server ─ new connection ─► inbox, wake ─┐
//!                                         ├─► wait ─► completion ─► its connection ─► new operations
//! completed file and socket operations ───┘        └► buffers for waiting requests, stalled clients, closed connections
//! ```
//!
//! It sleeps until a completion arrives. It uses a timeout only if a client may stall or has not
//! attached, blocks read ahead may become too old, or a request waits for a buffer that another thread may
//! return. Metadata requests are handled inline and block the thread while the file system works.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use memferry_pool::uring::{Done, Ring};

use crate::connection::{Connection, Tools};
use crate::handover::Pipes;
use crate::shared::{Arrival, Shared};
use crate::statistics::Counters;

/// Token of the wake-up; connection numbers never reach it.
const WAKE: u64 = u64::MAX;
/// Ring entries: submissions between two waits.
const ENTRIES: u32 = 512;
/// Retry interval while a request waits for a buffer.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of checks for stalled clients and old blocks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A thread's end of the inbox; a disconnected sender means stop.
pub(crate) struct Inbox {
    pub(crate) arrivals: Receiver<Arrival>,
    pub(crate) wake: Arc<OwnedFd>,
}

struct Worker {
    tools: Tools,
    inbox: Inbox,
    connections: BTreeMap<u32, Connection>,
    next: u32,
    /// Last check for old blocks.
    checked: Instant,
}

/// Serves until the inbox ends. Reports to `ready` that it serves, or why it cannot.
pub(crate) fn run(shared: Arc<Shared>, inbox: Inbox, ready: &Sender<io::Result<()>>) {
    let ring = match Ring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let pipes = Pipes::new(shared.options.block_bytes);
    let tools = Tools { ring, pipes, shared, awaiting_buffer: VecDeque::new() };
    let connections = BTreeMap::new();
    let checked = Instant::now();
    let mut worker = Worker { tools, inbox, connections, next: 0, checked };
    let _ = ready.send(Ok(()));
    if let Err(error) = worker.serve() {
        tracing::error!(%error, "a serving thread stopped");
    }
    worker.end();
}

impl Worker {
    fn serve(&mut self) -> io::Result<()> {
        let mut done = Vec::new();
        self.watch_inbox()?;
        loop {
            self.tools.ring.wait(self.timeout(), &mut done)?;
            // Handle all, also before stopping: a connection is not gone before all its operations have completed.
            let mut open = Ok(true);
            for done in done.drain(..) {
                match done.token {
                    WAKE => open = self.accept(),
                    _ => self.dispatch(done),
                }
            }
            if !open? {
                return Ok(());
            }
            self.check_connections();
        }
    }

    fn watch_inbox(&mut self) -> io::Result<()> {
        self.tools.ring.poll(Arc::clone(&self.inbox.wake), libc::POLLIN as u32, WAKE)
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.tools.awaiting_buffer.is_empty() {
            return Some(RETRY_INTERVAL);
        }
        let needs_checks =
            |connection: &Connection| connection.stall_since().is_some() || connection.has_aheads();
        self.connections.values().any(needs_checks).then_some(CHECK_INTERVAL)
    }

    /// Accepts new connections; returns whether more may come.
    fn accept(&mut self) -> io::Result<bool> {
        let _ = rustix::io::read(&self.inbox.wake, &mut [0_u8; 8]);
        loop {
            match self.inbox.arrivals.try_recv() {
                Ok(arrival) => {
                    let index = self.next;
                    self.next = self.next.wrapping_add(1) & (u32::MAX >> 1);
                    let shared = Arc::clone(&self.tools.shared);
                    let mut connection = Connection::new(index, arrival, shared);
                    connection.advance(&mut self.tools);
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

    fn dispatch(&mut self, done: Done) {
        let index = (done.token >> 32) as u32;
        if let Some(connection) = self.connections.get_mut(&index) {
            connection.complete(&mut self.tools, done);
        }
    }

    fn check_connections(&mut self) {
        let stall = self.tools.shared.options.limits.stall;
        let shared = &self.tools.shared;
        for (index, connection) in &mut self.connections {
            if connection.stall_since().is_some_and(|since| since.elapsed() > stall) {
                Counters::add(&shared.counters.stalled, 1);
                if shared.may_log() {
                    tracing::warn!(
                        client = index,
                        "client disconnected: it stalled, or did not attach in time"
                    );
                }
                connection.close();
            }
        }
        if self.checked.elapsed() >= CHECK_INTERVAL {
            self.checked = Instant::now();
            self.connections.values_mut().for_each(Connection::drop_old_aheads);
        }
        self.feed();
        self.remove_gone();
    }

    fn remove_gone(&mut self) {
        let gone = self.connections.extract_if(.., |_, connection| connection.is_gone());
        gone.for_each(|(_, connection)| connection.finish());
    }

    /// Gives buffers to waiting requests, in order, except those of clients that must leave what is free to others.
    fn feed(&mut self) {
        let mut passed = BTreeSet::new();
        let mut at = 0;
        while let Some(index) = self.tools.awaiting_buffer.get(at).copied() {
            let Some(connection) = self.connections.get_mut(&index) else {
                self.tools.awaiting_buffer.remove(at);
                continue;
            };
            if passed.contains(&index) || !connection.may_take(&self.tools.shared) {
                passed.insert(index);
                at += 1;
                continue;
            }
            let Some(buffer) = self.tools.shared.buffer().transpose() else { return };
            self.tools.awaiting_buffer.remove(at);
            connection.feed(&mut self.tools, buffer);
        }
    }

    /// Closes every connection and waits for operations in flight.
    fn end(&mut self) {
        self.connections.values_mut().for_each(Connection::close);
        let mut done = Vec::new();
        while self.connections.values().any(|connection| !connection.is_gone()) {
            if self.tools.ring.wait(Some(CHECK_INTERVAL), &mut done).is_err() {
                break;
            }
            done.drain(..).for_each(|done| self.dispatch(done));
        }
        self.remove_gone();
    }
}
