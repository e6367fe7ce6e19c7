//! Pending copies carried out: callers, a thread that moves what nobody asked for yet, and the engine.
//!
//! ```text
//! amemcpy ─ short and free of others? ─ yes ─► copied here
//!              └ no ─► Pending ─► worker: piece after piece, 256 KiB at a time ─┐
//! csync ─ what it needs, on this thread ────────────────────────────────────────┴─► engine (run_by_cpu), else CPU
//! ```
//!
//! Whoever needs bytes moves them itself, unless somebody is at it already. What the engine does not do, the CPU does, so a
//! csync that was begun ends with the bytes in place. The engine is this thread with the workers' help, never a device: whatever it
//! ends with, it writes nothing afterwards, so that the CPU may do the same again. What addresses are is an [`AddressSpace`]'s affair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memferry_shm::fork_guard::{ForkGuard, Forked};
use memferry_shm::mapping::AccessError;
use thiserror::Error;

use super::pending::{Goal, Move, Obstacle, Pending, Step};
use crate::client::Client;
use crate::frame::Region;
use crate::queue::Queue;
use crate::transfer::copy;

/// Copies up to here are made by the caller: handing them over takes about as long.
const SHORT_BYTES: u64 = 8 << 10;
/// Bytes from which the engine may be faster than the C library.
const ENGINE_FROM: u64 = 64 << 10;
/// Bytes moved at a time: what a csync may have to wait for though it did not ask for them.
const CHUNK_BYTES: u64 = 256 << 10;
/// Pieces that may be pending.
const MOST_PIECES: usize = if cfg!(test) { 32 } else { 4096 };
/// How long a thread spins for a move of another before it sleeps: about what a wake-up costs, and a move takes.
const SPIN: Duration = Duration::from_micros(20);
/// Channels kept for threads to come.
const KEPT: usize = 8;
/// The worker's name.
const THREAD: &str = "memferry-copier";
/// Addresses end here.
const ADDRESSES: u64 = 1 << 63;

/// What a copier's addresses stand for. All addresses that a [`CopyQueue`] was given have to be known to it.
pub trait AddressSpace: Send + Sync + 'static {
    /// The bytes at `address` as part of a frame: at most `length` of them, fewer where the frame ends. `None` has the CPU
    /// move them.
    fn region(&self, address: u64, length: u64) -> Option<Region>;

    /// Copies with the calling CPU; the ranges may overlap, as with `memmove`. It must not panic, or who waits for the bytes
    /// waits for ever.
    fn copy(&self, to: u64, from: u64, length: u64);
}

/// A copier was not made.
#[derive(Debug, Error)]
pub enum CopierError {
    /// The service is in another process.
    #[error("only a service in this process copies asynchronously; take an embedded client")]
    NotEmbedded,
    /// The guard against use in a forked child could not be made.
    #[error("cannot guard a copier against forked children: {0}")]
    Guard(std::io::Error),
    /// The thread could not be started.
    #[error("cannot start the thread that copies: {0}")]
    Thread(std::io::Error),
}

/// Bytes, so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopierStatistics {
    /// That were asked for.
    pub asked: u64,
    /// That were moved.
    pub moved: u64,
    /// Of these, by the engine.
    pub by_engine: u64,
    /// That never have to be moved: later copies took their place, or their destination was given up.
    pub dropped: u64,
}

struct State {
    pending: Pending,
    statistics: CopierStatistics,
    /// Threads that wait for a change.
    sleepers: usize,
    ending: bool,
}

struct Shared<A> {
    client: Client,
    space: A,
    guard: ForkGuard,
    state: Mutex<State>,
    changed: Condvar,
    /// Moves that were settled; counted under the lock.
    settled: AtomicU64,
    queues: Mutex<Vec<Queue>>,
}

/// Asynchronous copies between addresses, in the order of their calls. Any thread may call; calls of several threads are
/// ordered as they come.
pub struct CopyQueue<A: AddressSpace> {
    shared: Arc<Shared<A>>,
    worker: Option<JoinHandle<()>>,
}

impl<A: AddressSpace> CopyQueue<A> {
    /// A queue of copies in `space`, moved by the service of an embedded client.
    ///
    /// # Errors
    /// [`CopierError`].
    pub fn new(client: &Client, space: A) -> Result<Self, CopierError> {
        if !client.is_embedded() {
            return Err(CopierError::NotEmbedded);
        }
        let pending = Pending::new(MOST_PIECES);
        let statistics = CopierStatistics::default();
        let shared = Arc::new(Shared {
            client: client.clone(),
            space,
            guard: ForkGuard::new().map_err(CopierError::Guard)?,
            state: Mutex::new(State { pending, statistics, sleepers: 0, ending: false }),
            changed: Condvar::new(),
            settled: AtomicU64::new(0),
            queues: Mutex::default(),
        });
        let works = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name(THREAD.to_owned());
        let worker = builder.spawn(move || works.work()).map_err(CopierError::Thread)?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// What the addresses stand for.
    pub fn space(&self) -> &A {
        &self.shared.space
    }

    fn check(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.shared.guard.check()?;
        match address.checked_add(length) {
            Some(end) if end <= ADDRESSES => Ok(()),
            _ => Err(AccessError::OutOfRange { offset: address, length, available: ADDRESSES }),
        }
    }

    /// Has `length` bytes at `from` copied to `to` and returns at once: the bytes are there after a csync of them, as if
    /// they had been copied now. Until then the source must not be written ([`csync_to_write`](Self::csync_to_write)).
    ///
    /// It returns later when it must: when the ranges overlap with few bytes between their beginnings; when the source is to
    /// be a copy of bytes that a pending copy is to overwrite; when too much is pending.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] for bytes beyond all addresses, [`AccessError::Forked`]. Nothing is copied.
    pub fn amemcpy(&self, to: u64, from: u64, length: u64) -> Result<(), AccessError> {
        self.check(to, length)?;
        self.check(from, length)?;
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.statistics.asked += length;
        if length <= SHORT_BYTES && state.pending.at_once(to, from, length) {
            shared.space.copy(to, from, length);
            state.statistics.moved += length;
            return Ok(());
        }
        loop {
            match state.pending.insert(to, from, length) {
                Ok(()) => break,
                Err(Obstacle::Unsettled(bytes)) => state = shared.reach(state, &Goal::Read(bytes)),
                Err(Obstacle::Overlap) => {
                    state = shared.reach(state, &Goal::Write(to..to + length));
                    state = shared.reach(state, &Goal::Read(from..from + length));
                    if state.pending.at_once(to, from, length) {
                        let begun = state.pending.begin(to, from, length);
                        drop(state);
                        shared.space.copy(to, from, length);
                        drop(shared.settle(shared.lock(), begun, 0));
                        return Ok(());
                    }
                }
            }
        }
        shared.tell(&state);
        Ok(())
    }

    fn reach(&self, address: u64, length: u64, goal: Goal) -> Result<(), AccessError> {
        self.check(address, length)?;
        drop(self.shared.reach(self.shared.lock(), &goal));
        Ok(())
    }

    /// Returns when the bytes are in place: they may be read.
    ///
    /// # Errors
    /// As [`amemcpy`](Self::amemcpy).
    pub fn csync(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.reach(address, length, Goal::Read(address..address.saturating_add(length)))
    }

    /// Returns when the bytes are in place and no copy reads them any more: they may be written.
    ///
    /// # Errors
    /// As [`amemcpy`](Self::amemcpy).
    pub fn csync_to_write(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.reach(address, length, Goal::Write(address..address.saturating_add(length)))
    }

    /// Gives bytes up: what was to be copied there is not, unless it was copied on; what reads them is moved first. When it
    /// returns, nobody touches them, and they may be freed. They hold nothing certain.
    ///
    /// # Errors
    /// As [`amemcpy`](Self::amemcpy).
    pub fn forget(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.reach(address, length, Goal::Free(address..address.saturating_add(length)))
    }

    /// Returns when everything is in place, also what other threads ask for meanwhile.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn csync_all(&self) -> Result<(), AccessError> {
        self.reach(0, 0, Goal::All)
    }

    /// What it did.
    ///
    /// # Errors
    /// [`Forked`].
    pub fn statistics(&self) -> Result<CopierStatistics, Forked> {
        self.shared.guard.check()?;
        let state = self.shared.lock();
        Ok(CopierStatistics { dropped: state.pending.dropped(), ..state.statistics })
    }
}

impl<A: AddressSpace> Drop for CopyQueue<A> {
    /// Waits until everything is in place.
    fn drop(&mut self) {
        // A forked child has not the thread.
        if self.shared.guard.check().is_ok()
            && let Some(worker) = self.worker.take()
        {
            let mut state = self.shared.lock();
            state.ending = true;
            self.shared.tell(&state);
            drop(state);
            let _ = worker.join();
        }
    }
}

impl<A: AddressSpace> Shared<A> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those that wait, if there are any: waking nobody is a system call too.
    fn tell(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
        state
    }

    /// Waits for somebody to settle a move, without sleeping and not for long; says whether somebody did.
    fn spin<'a>(&'a self, state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let seen = self.settled.load(Ordering::Relaxed);
        drop(state);
        let until = Instant::now() + SPIN;
        let settled = || self.settled.load(Ordering::Relaxed) != seen;
        while !settled() && Instant::now() < until {
            (0..32).for_each(|_| std::hint::spin_loop());
        }
        // Once more under the lock, or what is settled in between would be slept through.
        let state = self.lock();
        let settled = settled();
        (state, settled)
    }

    /// Moves on until the goal is reached.
    fn reach<'a>(&'a self, mut state: MutexGuard<'a, State>, goal: &Goal) -> MutexGuard<'a, State> {
        loop {
            state = match state.pending.step(goal, CHUNK_BYTES) {
                Step::Done => return state,
                Step::Move(begun) => self.carry_out(state, begun),
                Step::Wait => match self.spin(state) {
                    (state, true) => state,
                    (state, false) => self.sleep(state),
                },
            }
        }
    }

    /// The worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            state = match state.pending.next(CHUNK_BYTES) {
                Some(begun) => self.carry_out(state, begun),
                // Nobody else moves anything then: the queue is nobody's any more.
                None if state.ending => return,
                None => self.sleep(state),
            }
        }
    }

    fn carry_out<'a>(&'a self, state: MutexGuard<'a, State>, begun: Move) -> MutexGuard<'a, State> {
        drop(state);
        let by_engine = self.transfer(&begun);
        self.settle(self.lock(), begun, by_engine)
    }

    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        done: Move,
        by_engine: u64,
    ) -> MutexGuard<'a, State> {
        state.pending.settle(done.number);
        self.settled.fetch_add(1, Ordering::Relaxed);
        state.statistics.moved += done.length;
        state.statistics.by_engine += by_engine;
        self.tell(&state);
        state
    }

    /// Moves bytes; says how many the engine did.
    fn transfer(&self, begun: &Move) -> u64 {
        let mut done = 0;
        let mut by_engine = 0;
        while done < begun.length {
            let to = begun.to + done;
            let from = begun.from + done;
            let left = begun.length - done;
            done += match self.by_engine(to, from, left) {
                Some(moved) => {
                    by_engine += moved;
                    moved
                }
                None => {
                    self.space.copy(to, from, left);
                    left
                }
            };
        }
        by_engine
    }

    /// Has the engine copy as many bytes as lie in one frame on each side; `None` when it did not.
    fn by_engine(&self, to: u64, from: u64, length: u64) -> Option<u64> {
        if length < ENGINE_FROM {
            return None;
        }
        let source = self.space.region(from, length)?;
        let destination = self.space.region(to, length)?;
        let length = source.length().min(destination.length());
        let source = source.frame().slice(source.offset()..source.offset() + length);
        let queue = self.queue()?;
        let ended = queue.run_by_cpu(&copy(source, destination))?;
        let mut kept = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(queue);
        }
        (length > 0 && ended.is_ok_and(|done| done.bytes_done == length)).then_some(length)
    }

    fn queue(&self) -> Option<Queue> {
        let kept = self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.or_else(|| self.client.queue(2).ok())
    }
}

#[cfg(test)]
mod tests;
