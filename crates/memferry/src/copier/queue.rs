//! Does pending copies: in callers that need the bytes, and in a thread that moves the rest.
//!
//! ```text
//! amemcpy ─ short, and conflicts with no pending copy? ─ yes ─► copied here
//!              └ no ─► Pending ─► worker: piece after piece, 256 KiB at a time ─┐
//! csync ─ the bytes it needs, on this thread ───────────────────────────────────┴─► engine (run_by_cpu), else CPU
//! ```
//!
//! A caller that needs bytes moves them itself, unless another thread is moving them. If the engine fails, the CPU copies, so a
//! csync always succeeds. The engine is this thread with the help of workers, never a device. It writes nothing after it has
//! returned, so the CPU may repeat the copy. An [`AddressSpace`] defines what addresses mean.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memferry_shm::fork_guard::{ForkGuard, Forked};
use memferry_shm::mapping::AccessError;
use memferry_shm::parking::Spin;
use rustix::thread::sched_getaffinity;
use thiserror::Error;

use super::pending::{Goal, Move, Obstacle, Pending, Step};
use crate::client::Client;
use crate::frame::Region;
use crate::queue::Queue;
use crate::transfer::copy;

/// Copies up to this length are done by the caller: the hand-over would take about as long.
const SHORT_BYTES: u64 = 8 << 10;
/// Length from which the engine may be faster than the C library.
const ENGINE_MIN_BYTES: u64 = 64 << 10;
/// Maximum bytes of a move. A csync may have to wait for a move of other bytes.
const CHUNK_BYTES: u64 = 256 << 10;
/// Maximum number of pending pieces.
const MAX_PIECES: usize = if cfg!(test) { 32 } else { 4096 };
/// Time a thread spins for another thread's move before it sleeps: about the cost of a wake-up, or of a move.
const SPIN: Duration = Duration::from_micros(20);
/// Maximum time the worker spins for the next copy before it sleeps. A thread that was woken late starts late: on virtual CPUs a
/// wake-up may take as long as copying a mebibyte, or a multiple.
const WORKER_SPIN: Duration = Duration::from_micros(150);
/// The shortest such time worth a look at the clock.
const MIN_WORKER_SPIN: Duration = Duration::from_micros(1);
/// Maximum number of idle queues kept for reuse.
const MAX_IDLE_QUEUES: usize = 8;
/// The name of the worker thread.
const THREAD: &str = "memferry-copier";
/// The exclusive end of all addresses.
const ADDRESSES: u64 = 1 << 63;

/// Maps the addresses of a [`CopyQueue`] to memory. It must know every address passed to the queue.
///
/// ```
/// use std::sync::Mutex;
///
/// use memferry::{AddressSpace, Client, CopyQueue, Region};
///
/// /// Memory that no engine reaches.
/// struct Bytes(Mutex<Vec<u8>>);
///
/// impl AddressSpace for Bytes {
///     fn region(&self, _address: u64, _length: u64) -> Option<Region> {
///         None
///     }
///
///     fn copy(&self, to: u64, from: u64, length: u64) {
///         self.0.lock().unwrap().copy_within(from as usize..(from + length) as usize, to as usize);
///     }
/// }
///
/// let space = Bytes(Mutex::new(b"copy....".to_vec()));
/// let queue = CopyQueue::new(&Client::embedded()?, space)?;
/// queue.amemcpy(4, 0, 4)?;
/// queue.csync(4, 4)?;
/// assert_eq!(*queue.space().0.lock().unwrap(), b"copycopy");
/// # Ok::<(), memferry::Error>(())
/// ```
pub trait AddressSpace: Send + Sync + 'static {
    /// The bytes at `address` as part of a frame: `length` bytes, or fewer if the frame ends before. With `None`, the CPU
    /// copies them.
    fn region(&self, address: u64, length: u64) -> Option<Region>;

    /// Copies with the calling CPU; the ranges may overlap, as with `memmove`. Must not panic: threads that wait for the bytes
    /// would wait forever.
    fn copy(&self, to: u64, from: u64, length: u64);
}

/// Why [`CopyQueue::new`] or [`Copier::new`](crate::Copier::new) failed.
///
/// ```
/// use memferry::{Client, Copier, CopierError};
///
/// fn copier(client: &Client) -> Option<Copier> {
///     match Copier::new(client) {
///         Ok(copier) => Some(copier),
///         Err(CopierError::NotEmbedded) => None, // copy with the CPU instead
///         Err(error) => panic!("{error}"),
///     }
/// }
/// assert!(copier(&Client::embedded()?).is_some());
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum CopierError {
    /// The service is in another process.
    #[error("only an embedded service copies asynchronously; use an embedded client")]
    NotEmbedded,
    /// The guard against use in a forked child could not be created.
    #[error("cannot set up the copier's fork guard: {0}")]
    Guard(std::io::Error),
    /// The worker thread could not be started.
    #[error("cannot start the copier's thread: {0}")]
    Thread(std::io::Error),
}

/// Byte counts of a copier since it was created.
///
/// ```
/// use memferry::{Client, Copier};
///
/// let copier = Copier::new(&Client::embedded()?)?;
/// let buffer = copier.adopt(vec![0; 1 << 20])?;
/// copier.amemcpy(&buffer.range(0, 4096), &buffer.range(8192, 4096))?;
/// copier.csync_all()?;
/// let statistics = copier.statistics().map_err(memferry::CallError::from)?;
/// assert_eq!((statistics.asked, statistics.moved), (4096, 4096));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopierStatistics {
    /// Bytes of all requested copies.
    pub asked: u64,
    /// Bytes moved so far.
    pub moved: u64,
    /// The part of the moved bytes that the engine moved.
    pub by_engine: u64,
    /// Bytes that need not be moved: later copies replaced them, or their destination was discarded.
    pub dropped: u64,
}

struct State {
    pending: Pending,
    statistics: CopierStatistics,
    /// Number of threads that sleep until a change.
    sleepers: usize,
    ending: bool,
}

struct Shared<A> {
    client: Client,
    space: A,
    guard: ForkGuard,
    state: Mutex<State>,
    changed: Condvar,
    /// Number of settled moves; changed under the lock.
    settled: AtomicU64,
    /// Number of insertions, and of requests to end; changed under the lock.
    news: AtomicU64,
    idle_queues: Mutex<Vec<Queue>>,
}

/// Asynchronous copies between addresses, in the order of the calls. Any thread may call; the queue orders calls of several
/// threads as they arrive.
///
/// ```
/// # use std::sync::Mutex;
/// #
/// # use memferry::{AddressSpace, Client, CopyQueue, Region};
/// #
/// # /// Memory that no engine reaches.
/// # struct Bytes(Mutex<Vec<u8>>);
/// #
/// # impl AddressSpace for Bytes {
/// #     fn region(&self, _address: u64, _length: u64) -> Option<Region> {
/// #         None
/// #     }
/// #
/// #     fn copy(&self, to: u64, from: u64, length: u64) {
/// #         self.0.lock().unwrap().copy_within(from as usize..(from + length) as usize, to as usize);
/// #     }
/// # }
/// # let client = Client::embedded()?;
/// // An `AddressSpace` over the bytes of a vector, as in the example there.
/// let queue = CopyQueue::new(&client, Bytes(Mutex::new(vec![7; 16])))?;
/// queue.amemcpy(8, 0, 8)?; // returns at once
/// queue.csync_to_write(0, 8)?; // now the source may be written
/// assert_eq!(queue.statistics().map_err(memferry::CallError::from)?.asked, 8);
/// # Ok::<(), memferry::Error>(())
/// ```
pub struct CopyQueue<A: AddressSpace> {
    shared: Arc<Shared<A>>,
    worker: Option<JoinHandle<()>>,
}

impl<A: AddressSpace> CopyQueue<A> {
    /// Creates a queue of copies in `space` that uses the service of an embedded client.
    ///
    /// # Errors
    /// [`CopierError`]: the client is not embedded, or the fork guard or the thread cannot be created.
    pub fn new(client: &Client, space: A) -> Result<Self, CopierError> {
        if !client.is_embedded() {
            return Err(CopierError::NotEmbedded);
        }
        let pending = Pending::new(MAX_PIECES);
        let statistics = CopierStatistics::default();
        let shared = Arc::new(Shared {
            client: client.clone(),
            space,
            guard: ForkGuard::new().map_err(CopierError::Guard)?,
            state: Mutex::new(State { pending, statistics, sleepers: 0, ending: false }),
            changed: Condvar::new(),
            settled: AtomicU64::new(0),
            news: AtomicU64::new(0),
            idle_queues: Mutex::default(),
        });
        let of_worker = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name(THREAD.to_owned());
        let worker = builder.spawn(move || of_worker.run_worker()).map_err(CopierError::Thread)?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// The address space that the queue was created with.
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

    /// Copies `length` bytes at `from` to `to` asynchronously and returns at once. After a csync of them the bytes are as if
    /// they had been copied now. Until then, call [`csync_to_write`](Self::csync_to_write) before a write to the source.
    ///
    /// It waits for other copies first if the ranges overlap and begin less than 4 KiB apart, if the source is a pending copy
    /// of bytes that another pending copy will overwrite, or if too many copies are pending.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] if a range ends above 2^63; [`AccessError::Forked`]. Then nothing is copied.
    pub fn amemcpy(&self, to: u64, from: u64, length: u64) -> Result<(), AccessError> {
        self.check(to, length)?;
        self.check(from, length)?;
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.statistics.asked += length;
        if length <= SHORT_BYTES && state.pending.admit_immediate(to, from, length) {
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
                    if state.pending.admit_immediate(to, from, length) {
                        let chunk = state.pending.begin(to, from, length);
                        drop(state);
                        shared.space.copy(to, from, length);
                        drop(shared.settle(shared.lock(), chunk, 0));
                        return Ok(());
                    }
                }
            }
        }
        shared.announce(&state);
        Ok(())
    }

    fn reach(&self, address: u64, length: u64, goal: Goal) -> Result<(), AccessError> {
        self.check(address, length)?;
        drop(self.shared.reach(self.shared.lock(), &goal));
        Ok(())
    }

    /// Returns when all copies into the bytes are done, so that they may be read.
    ///
    /// # Errors
    /// As [`amemcpy`](Self::amemcpy).
    pub fn csync(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.reach(address, length, Goal::Read(address..address.saturating_add(length)))
    }

    /// Returns when all copies into the bytes and from them are done, so that they may be written.
    ///
    /// # Errors
    /// As [`amemcpy`](Self::amemcpy).
    pub fn csync_to_write(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.reach(address, length, Goal::Write(address..address.saturating_add(length)))
    }

    /// Discards the contents of the bytes: cancels copies into them, and completes copies from them first. When it returns, no
    /// copy touches the bytes and they may be freed. Their contents are unspecified.
    ///
    /// # Errors
    /// As [`amemcpy`](Self::amemcpy).
    pub fn forget(&self, address: u64, length: u64) -> Result<(), AccessError> {
        self.reach(address, length, Goal::Free(address..address.saturating_add(length)))
    }

    /// Returns when all copies are done, including those that other threads request during the wait.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn csync_all(&self) -> Result<(), AccessError> {
        self.reach(0, 0, Goal::All)
    }

    /// Byte counts since the queue was created.
    ///
    /// # Errors
    /// [`Forked`] in a forked child.
    pub fn statistics(&self) -> Result<CopierStatistics, Forked> {
        self.shared.guard.check()?;
        let state = self.shared.lock();
        Ok(CopierStatistics { dropped: state.pending.dropped(), ..state.statistics })
    }
}

impl<A: AddressSpace> Drop for CopyQueue<A> {
    /// Waits until all copies are done.
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if self.shared.guard.check().is_err() {
            // A forked child does not have the thread. Its name may be that of another thread there, which a drop would detach.
            std::mem::forget(worker);
        } else {
            let mut state = self.shared.lock();
            state.ending = true;
            self.shared.announce(&state);
            drop(state);
            let _ = worker.join();
        }
    }
}

impl<A: AddressSpace> Shared<A> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes sleeping threads if there are any, to save the system call otherwise.
    fn wake_sleepers(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Tells the worker that there is something to do, whether it spins or sleeps.
    fn announce(&self, state: &State) {
        self.news.fetch_add(1, Ordering::Relaxed);
        self.wake_sleepers(state);
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
        state
    }

    /// Spins for at most `limit` until `count` changes, which happens under the lock. Returns whether it did.
    fn spin<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        count: &AtomicU64,
        limit: Duration,
    ) -> (MutexGuard<'a, State>, bool) {
        let seen = count.load(Ordering::Relaxed);
        drop(state);
        let deadline = Instant::now() + limit;
        let changed = || count.load(Ordering::Relaxed) != seen;
        while !changed() && Instant::now() < deadline {
            (0..32).for_each(|_| std::hint::spin_loop());
        }
        // Checked again under the lock: a change in between must not be slept through.
        let state = self.lock();
        let changed = changed();
        (state, changed)
    }

    /// Moves bytes or waits until the goal is reached.
    fn reach<'a>(&'a self, mut state: MutexGuard<'a, State>, goal: &Goal) -> MutexGuard<'a, State> {
        loop {
            state = match state.pending.step(goal, CHUNK_BYTES) {
                Step::Done => return state,
                Step::Move(chunk) => self.execute(state, chunk),
                Step::Wait => match self.spin(state, &self.settled, SPIN) {
                    (state, true) => state,
                    (state, false) => self.sleep(state),
                },
            }
        }
    }

    /// The worker thread: moves pieces until the queue is dropped.
    fn run_worker(&self) {
        let mut spin = Spin::new(WORKER_SPIN);
        let mut state = self.lock();
        loop {
            state = match state.pending.next(CHUNK_BYTES) {
                Some(chunk) => self.execute(state, chunk),
                // No other thread can be moving bytes: the queue is being dropped.
                None if state.ending => return,
                None => self.await_news(state, &mut spin),
            }
        }
    }

    /// Waits until there is something to do: spins where another CPU can run the caller, as long as that pays, then sleeps.
    fn await_news<'a>(&'a self, state: MutexGuard<'a, State>, spin: &mut Spin) -> MutexGuard<'a, State> {
        let limit = spin.time();
        if limit < MIN_WORKER_SPIN || !state.pending.is_empty() || !has_several_cpus() {
            return self.sleep(state);
        }
        match self.spin(state, &self.news, limit) {
            (state, true) => {
                spin.record_success();
                state
            }
            (state, false) => {
                spin.record_failure();
                self.sleep(state)
            }
        }
    }

    fn execute<'a>(&'a self, state: MutexGuard<'a, State>, chunk: Move) -> MutexGuard<'a, State> {
        drop(state);
        let by_engine = self.transfer(&chunk);
        self.settle(self.lock(), chunk, by_engine)
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
        self.wake_sleepers(&state);
        state
    }

    /// Moves the bytes of a chunk. Returns how many of them the engine moved.
    fn transfer(&self, chunk: &Move) -> u64 {
        let mut done = 0;
        let mut by_engine = 0;
        while done < chunk.length {
            let to = chunk.to + done;
            let from = chunk.from + done;
            let left = chunk.length - done;
            done += match self.copy_by_engine(to, from, left) {
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

    /// Copies as many bytes as lie in one frame on each side by the engine. `None` if it did not copy them.
    fn copy_by_engine(&self, to: u64, from: u64, length: u64) -> Option<u64> {
        if length < ENGINE_MIN_BYTES {
            return None;
        }
        let source = self.space.region(from, length)?;
        let destination = self.space.region(to, length)?;
        let length = source.length().min(destination.length());
        let source = source.frame().slice(source.offset()..source.offset() + length);
        let queue = self.take_queue()?;
        let result = queue.run_by_cpu(&copy(source, destination))?;
        let mut idle = self.idle_queues.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_QUEUES {
            idle.push(queue);
        }
        (length > 0 && result.is_ok_and(|done| done.bytes_done == length)).then_some(length)
    }

    fn take_queue(&self) -> Option<Queue> {
        let idle = self.idle_queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.or_else(|| self.client.queue(2).ok())
    }
}

/// Whether this thread may run on more than one CPU. On one, a spinning thread keeps the caller from its next copy.
fn has_several_cpus() -> bool {
    sched_getaffinity(None).is_ok_and(|cpus| cpus.count() > 1)
}

#[cfg(test)]
mod tests;
