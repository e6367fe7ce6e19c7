//! Threads of an attendant for what may block: closing descriptors of clients, and sealing their memory.
//!
//! ```text
//! close(descriptor) ─► closing threads            pending() ◄─ those not closed yet
//! seal(memory) ─► sealing threads ─► take_sealed() ─ finished: readable when there are any
//! ```
//!
//! A client can make each of these take any time: by a socket that lingers, a file of a file system that it serves, or a thread that
//! holds the memory's inode. Such a thread is stuck for good. Nobody waits for it: the attendant goes on, and ends without it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memferry_shm::conduit::{self, ReceiveError};
use memferry_shm::frame::{Candidate, FrameRefused};
use rustix::event::EventfdFlags;

use crate::messages::ClientId;

/// Threads for each of the two kinds of jobs.
const THREADS: u32 = 4;

/// Memory to be sealed for the command `serial` of a client.
pub(super) struct Sealing {
    pub(super) client: ClientId,
    pub(super) serial: u32,
    pub(super) candidate: Candidate,
    pub(super) descriptor: OwnedFd,
}

/// A finished [`Sealing`].
pub(super) struct Sealed {
    pub(super) client: ClientId,
    pub(super) serial: u32,
    pub(super) result: Result<(), FrameRefused>,
}

/// What is to be closed.
enum ToClose {
    Descriptor(OwnedFd),
    /// A client's socket: what lies in it unread is closed with it.
    Connection(OwnedFd),
}

impl ToClose {
    /// Closes it. What waits in a connection is received and closed first: another process may still hold the socket for a moment,
    /// and its close must not be the one that waits.
    fn close(self) {
        match self {
            Self::Descriptor(descriptor) => drop(descriptor),
            Self::Connection(socket) => {
                let mut open = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).is_ok();
                while open && !conduit::is_drained(socket.as_fd()) {
                    let received = conduit::receive(socket.as_fd(), false);
                    open = !matches!(received, Err(ReceiveError::System(_) | ReceiveError::WouldBlock));
                }
            }
        }
    }
}

#[derive(Default)]
struct State {
    to_close: VecDeque<ToClose>,
    closing: usize,
    to_seal: VecDeque<Sealing>,
    sealed: Vec<Sealed>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    finished: OwnedFd,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) {
        let _ = rustix::io::write(&self.finished, &1u64.to_ne_bytes());
    }

    fn run_closing(&self) {
        let mut state = self.lock();
        loop {
            let Some(descriptor) = state.to_close.pop_front() else {
                state = self.wait(state);
                continue;
            };
            state.closing += 1;
            drop(state);
            descriptor.close();
            state = self.lock();
            state.closing -= 1;
            self.finish();
        }
    }

    fn run_sealing(&self) {
        let mut state = self.lock();
        loop {
            let Some(Sealing { client, serial, candidate, descriptor }) = state.to_seal.pop_front() else {
                state = self.wait(state);
                continue;
            };
            drop(state);
            let result = candidate.seal(descriptor.as_fd());
            state = self.lock();
            state.sealed.push(Sealed { client, serial, result });
            state.to_close.push_back(ToClose::Descriptor(descriptor));
            self.changed.notify_all();
            self.finish();
        }
    }
}

/// The jobs of one attendant.
pub(super) struct Jobs(Arc<Shared>);

impl Jobs {
    /// Starts the threads and waits until they run: a thread cannot start in a confined process.
    pub(super) fn start() -> std::io::Result<Self> {
        let finished = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), finished });
        let (running, started) = channel();
        for number in 0..2 * THREADS {
            let shared = Arc::clone(&shared);
            let name = if number % 2 == 0 { "memferry-close" } else { "memferry-seal" };
            let run = if number % 2 == 0 { Shared::run_closing } else { Shared::run_sealing };
            let running = running.clone();
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                let _ = running.send(());
                run(&shared);
            })?;
            let _ = started.recv();
        }
        Ok(Self(shared))
    }

    /// Readable when a job has finished. [`acknowledge`](Self::acknowledge) resets it.
    pub(super) fn finished(&self) -> BorrowedFd<'_> {
        self.0.finished.as_fd()
    }

    pub(super) fn acknowledge(&self) {
        let _ = rustix::io::read(&self.0.finished, &mut [0; 8]);
    }

    /// Closes a descriptor in a thread that may block there.
    pub(super) fn close(&self, descriptor: OwnedFd) {
        self.close_later(ToClose::Descriptor(descriptor));
    }

    /// Closes a client's socket, and what it has sent.
    pub(super) fn close_connection(&self, socket: OwnedFd) {
        self.close_later(ToClose::Connection(socket));
    }

    fn close_later(&self, what: ToClose) {
        self.0.lock().to_close.push_back(what);
        self.0.changed.notify_all();
    }

    /// Number of descriptors that are not closed yet.
    pub(super) fn pending(&self) -> usize {
        let state = self.0.lock();
        state.to_close.len() + state.closing
    }

    /// Seals memory. [`take_sealed`](Self::take_sealed) returns the result.
    pub(super) fn seal(&self, sealing: Sealing) {
        self.0.lock().to_seal.push_back(sealing);
        self.0.changed.notify_all();
    }

    pub(super) fn take_sealed(&self) -> Vec<Sealed> {
        std::mem::take(&mut self.0.lock().sealed)
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn wait_until(jobs: &Jobs, done: impl Fn() -> bool) {
        while !done() {
            let mut entry =
                [rustix::event::PollFd::from_borrowed_fd(jobs.finished(), rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut entry, None).unwrap();
            jobs.acknowledge();
        }
    }

    #[test]
    fn descriptors_are_closed() {
        let jobs = Jobs::start().unwrap();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        jobs.close(writer);
        // The end of the pipe: its writer is closed.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
        wait_until(&jobs, || jobs.pending() == 0);
    }

    #[test]
    fn sealing_reports_client_and_result() {
        let jobs = Jobs::start().unwrap();
        let user = rustix::process::getuid().as_raw();
        for (serial, whole) in [(1, true), (2, false)] {
            let descriptor = memferry_shm::frame::allocate_half(8192).unwrap().0;
            if !whole {
                let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&descriptor, punch, 4096, 4096).unwrap();
            }
            let candidate = Candidate::examine(descriptor.as_fd(), 8192, user).unwrap();
            jobs.seal(Sealing { client: ClientId(7), serial, candidate, descriptor });
            let sealed = std::cell::RefCell::new(Vec::new());
            wait_until(&jobs, || {
                sealed.borrow_mut().extend(jobs.take_sealed());
                !sealed.borrow().is_empty()
            });
            let sealed = sealed.into_inner();
            assert_eq!((sealed[0].client, sealed[0].serial), (ClientId(7), serial));
            assert_eq!(sealed[0].result.is_ok(), whole, "{:?}", sealed[0].result);
        }
    }
}
