//! Closes descriptors that peers sent, on threads that no caller waits for.
//!
//! ```text
//! close_elsewhere ─► counted, for its user ─┬─ few threads of the user: a new one closes them in sequence ─► counted off
//!                                           └─ else they wait for one of these threads
//! wait_for_room   ─ few are pending ─► another connection may start; else an error after a short wait
//! ```
//!
//! A peer controls how long closing takes: a lingering TCP socket, for example. So slow descriptors of one user delay those of the
//! same user only, and hold a few threads. The total is bounded: a connection brings about 320 descriptors at most before it is
//! broken, and no connection starts while more than 256 are pending. A process that serves many users, as a link does, asks for the
//! pending descriptors of one user instead, and refuses that user.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::error::ConnectError;
use crate::tally::{ByUser, Tally};

/// Pending descriptors with which a connection may still start: more than one packet brings.
const MOST: u32 = 256;
/// Pending descriptors of a user with which a link still takes requests of that user.
const MOST_OF_USER: u32 = 64;
/// Threads that close descriptors of one user.
const THREADS: usize = 4;
/// How long a connection waits for pending descriptors: enough for all that are not slow on purpose.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(5);
/// Attempts to lock the piles. A forked child may have inherited the lock held; then each batch gets a thread.
const ATTEMPTS: usize = 100;

/// Received descriptors that are not closed yet.
static PENDING: Tally = Tally::new();
static OF_USER: ByUser = ByUser::new();
static PILES: Mutex<Piles> = Mutex::new(Piles { process: 0, of: BTreeMap::new() });

/// What waits for the threads of each user, in this process.
struct Piles {
    process: u32,
    of: BTreeMap<u32, Pile>,
}

#[derive(Default)]
struct Pile {
    threads: usize,
    waiting: VecDeque<Batch>,
}

/// Descriptors that count as pending until each is closed, on the thread that drops the batch.
struct Batch {
    user: u32,
    descriptors: Vec<OwnedFd>,
}

impl Batch {
    fn new(user: u32, descriptors: Vec<OwnedFd>) -> Self {
        let more = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        PENDING.add(more);
        OF_USER.add(user, more);
        Self { user, descriptors }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for descriptor in self.descriptors.drain(..) {
            drop(descriptor);
            PENDING.subtract(1);
            OF_USER.subtract(self.user, 1);
        }
    }
}

/// Closes descriptors that a process of `user` sent, without waiting for them.
pub(crate) fn close_elsewhere(user: u32, descriptors: Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    let batch = Batch::new(user, descriptors);
    let (batch, counted) = match piles() {
        Some(mut piles) => {
            let pile = piles.of.entry(user).or_default();
            if pile.threads >= THREADS {
                return pile.waiting.push_back(batch);
            }
            pile.threads += 1;
            (batch, true)
        }
        None => (batch, false),
    };
    let close = move || {
        drop(batch);
        while let Some(next) = if counted { next(user) } else { None } {
            drop(next);
        }
    };
    // If no thread starts, the batch is dropped here.
    if std::thread::Builder::new().name("memferry-close".to_owned()).spawn(close).is_err() && counted {
        while let Some(next) = next(user) {
            drop(next);
        }
    }
}

/// The next batch of a user; `None` if there is none, and the thread is counted off.
fn next(user: u32) -> Option<Batch> {
    let mut piles = PILES.lock().unwrap_or_else(PoisonError::into_inner);
    let pile = piles.of.get_mut(&user)?;
    let next = pile.waiting.pop_front();
    if next.is_none() {
        pile.threads -= 1;
        if pile.threads == 0 {
            piles.of.remove(&user);
        }
    }
    next
}

/// The piles of this process.
fn piles() -> Option<MutexGuard<'static, Piles>> {
    let mut piles = (0..ATTEMPTS).find_map(|_| match PILES.try_lock() {
        Ok(piles) => Some(piles),
        Err(TryLockError::Poisoned(piles)) => Some(piles.into_inner()),
        Err(TryLockError::WouldBlock) => {
            std::thread::yield_now();
            None
        }
    })?;
    let process = std::process::id();
    if piles.process != process {
        // Those of the parent: its threads close them, and copies need not be closed.
        std::mem::forget(std::mem::take(&mut piles.of));
        piles.process = process;
    }
    Some(piles)
}

/// Whether so few descriptors of `user` are pending that another request of that user may be taken.
pub(crate) fn check_room(user: u32) -> Result<(), ConnectError> {
    let pending = OF_USER.get(user);
    if pending <= MOST_OF_USER { Ok(()) } else { Err(ConnectError::Closing { pending }) }
}

/// Waits until few enough descriptors are pending for another connection: briefly, and not beyond `deadline`.
pub(crate) fn wait_for_room(deadline: Option<Instant>) -> Result<(), ConnectError> {
    let patience = Instant::now() + PATIENCE;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    loop {
        let pending = PENDING.get();
        if pending <= MOST {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(ConnectError::Closing { pending });
        }
        std::thread::sleep(NAP);
    }
}

#[cfg(test)]
pub(crate) fn threads_of(user: u32) -> usize {
    PILES.lock().unwrap_or_else(PoisonError::into_inner).of.get(&user).map_or(0, |pile| pile.threads)
}
