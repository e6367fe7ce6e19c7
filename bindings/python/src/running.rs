//! Transfers under way: waited for without the interpreter's lock, and signalled to event loops by an eventfd.
//!
//! ```text
//! wait ─► Running::poll, waker unparks this thread ─┐      _signal(bell) ─► waker writes to its eventfd ─┐
//!            │                                      └─► Waiters, all woken by the Alarm of the Pending ◄─┘
//!            └ ended: the hold is released ─► End, kept here and for its queue
//! alarm, end ─► Reports ─► its queue looks at this transfer, and at no other
//! ```
//!
//! Wakers need no interpreter. A thread that holds a lock here never waits for the interpreter's lock; a thread that may wait
//! for such a lock while a service elsewhere is asked does not hold the interpreter's (`Home::asking`).

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, ThreadId};
use std::time::{Duration, Instant};

use memferry::Pending;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use rustix::event::EventfdFlags;

use crate::home::Home;
use crate::operand::Hold;

/// The longest a wait goes without a look whether the program was interrupted.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// How a transfer ended.
pub(crate) type End = Result<memferry::Done<u64>, memferry::TransferError>;

fn is_settled(end: &End) -> bool {
    end.as_ref().err().is_none_or(memferry::TransferError::is_settled)
}

/// The number of the next transfer of this process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// How the number of a transfer's end is to be read.
#[derive(Clone, Copy)]
pub(crate) enum Output {
    Nothing,
    Crc,
    /// The offset of a difference between operands of so many bytes, or their length when there is none.
    Difference(u64),
}

impl Output {
    pub(crate) fn of(self, value: u64) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Crc => Some(value),
            Self::Difference(length) => (value < length).then_some(value),
        }
    }
}

/// One entry for each waiting party, however often it looks.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Waiter {
    Thread(ThreadId),
    /// The address of a bell, which its waker keeps.
    Bell(usize),
    /// The transfer that has this one before it.
    Transfer,
}

/// The parties to be woken.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<Vec<(Waiter, Waker)>>);

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Vec<(Waiter, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waiter: Waiter, waker: &Waker) {
        let mut all = self.lock();
        all.retain(|(other, _)| *other != waiter);
        all.push((waiter, waker.clone()));
    }

    fn remove(&self, waiter: Waiter) {
        self.lock().retain(|(other, _)| *other != waiter);
    }

    pub(crate) fn wake_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Sleeps a slice, at most until `until`, unless `look` finds something or this is woken. Gives what `look` found, before
    /// or after.
    pub(crate) fn sleep<T>(&self, until: Option<Instant>, look: impl Fn() -> Option<T>) -> Option<T> {
        let thread = std::thread::current();
        let waiter = Waiter::Thread(thread.id());
        // Before the look, so that nothing is missed in between.
        self.add(waiter, &Waker::from(Arc::new(Unpark(thread))));
        let mut found = look();
        if found.is_none() {
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
            std::thread::park_timeout(left.min(SLICE));
            found = look();
        }
        self.remove(waiter);
        found
    }
}

/// What the transfers of a queue report to it.
#[derive(Default)]
pub(crate) struct Reports {
    /// Woken when any transfer has ended.
    pub(crate) waiters: Waiters,
    /// Transfers at which a look is worth while, each once.
    rung: Mutex<Vec<u64>>,
    /// Transfers that the queue keeps, less those whose ends were taken.
    outstanding: AtomicUsize,
}

impl Reports {
    fn rung(&self) -> MutexGuard<'_, Vec<u64>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a look at any transfer is worth while.
    pub(crate) fn has_rung(&self) -> bool {
        !self.rung().is_empty()
    }

    /// Takes the transfers at which a look is worth while, in the order in which they were made.
    pub(crate) fn take_rung(&self) -> Vec<u64> {
        let mut rung = std::mem::take(&mut *self.rung());
        rung.sort_unstable();
        rung
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An eventfd to be written to.
pub(crate) struct Eventfd(OwnedFd);

impl Eventfd {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Self)
    }

    pub(crate) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub(crate) fn clear(&self) {
        // An error means that there is nothing to read.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl Wake for Eventfd {
    fn wake(self: Arc<Self>) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The one waker of a transfer's future: it wakes all who wait for the transfer, and for its queue.
struct Alarm {
    id: u64,
    /// Whether a look at the transfer is worth while.
    rung: AtomicBool,
    waiters: Waiters,
    queue: Arc<Reports>,
}

impl Alarm {
    fn new(queue: Arc<Reports>) -> Arc<Self> {
        let rung = AtomicBool::new(false);
        Arc::new(Self { id: next_id(), rung, waiters: Waiters::default(), queue })
    }

    /// Reports to the queue, and wakes all who wait.
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.queue.rung().push(self.id);
        }
        self.waiters.wake_all();
        self.queue.waiters.wake_all();
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// Progress of a transfer: its queue counts one that it keeps until it is over and its end was taken.
const KEPT: u8 = 1;
const OVER: u8 = 1 << 1;
const TAKEN: u8 = 1 << 2;
const ALL: u8 = KEPT | OVER | TAKEN;

struct State {
    /// Both are taken when the transfer ends.
    pending: Option<Pending<u64>>,
    hold: Option<Hold>,
}

/// A transfer and what it holds. Its queue keeps it until it has ended, even if no ticket is left.
pub(crate) struct Running {
    output: Output,
    home: Arc<Home>,
    state: Mutex<State>,
    /// Set when nothing is held any more.
    end: OnceLock<End>,
    /// [`KEPT`], [`OVER`], and [`TAKEN`] when the program was given the end.
    progress: AtomicU8,
    /// Another transfer that has to end before this one counts as ended.
    before: Option<Arc<Running>>,
    alarm: Arc<Alarm>,
}

impl Running {
    pub(crate) fn new(
        home: Arc<Home>,
        queue: Arc<Reports>,
        output: Output,
        pending: Pending<u64>,
        hold: Option<Hold>,
        before: Option<Arc<Self>>,
    ) -> Self {
        Self {
            output,
            home,
            state: Mutex::new(State { pending: Some(pending), hold }),
            end: OnceLock::new(),
            progress: AtomicU8::new(0),
            before,
            alarm: Alarm::new(queue),
        }
    }

    /// A transfer that was done on the calling thread.
    pub(crate) fn ended(home: Arc<Home>, queue: Arc<Reports>, output: Output, end: End) -> Self {
        Self {
            output,
            home,
            state: Mutex::new(State { pending: None, hold: None }),
            end: OnceLock::from(end),
            progress: AtomicU8::new(OVER),
            before: None,
            alarm: Alarm::new(queue),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.alarm.id
    }

    pub(crate) fn output(&self) -> Output {
        self.output
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end, once something has found it.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.get().copied()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Records a step of its progress; whether it was new.
    fn record(&self, step: u8) -> bool {
        let before = self.progress.fetch_or(step, Ordering::AcqRel);
        if before != ALL && before | step == ALL {
            self.alarm.queue.outstanding.fetch_sub(1, Ordering::AcqRel);
        }
        before & step == 0
    }

    /// Its queue keeps it, and looks at it next.
    pub(crate) fn keep(&self) {
        self.alarm.queue.outstanding.fetch_add(1, Ordering::AcqRel);
        self.record(KEPT);
        self.alarm.ring();
    }

    /// Marks the end as given to the program; whether it was not before.
    pub(crate) fn take(&self) -> bool {
        self.record(TAKEN)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.progress.load(Ordering::Acquire) & TAKEN != 0
    }

    /// Looks for the end if the alarm has rung since the last look.
    pub(crate) fn poll_if_rung(&self) {
        if self.alarm.rung.swap(false, Ordering::AcqRel) {
            self.poll();
        }
    }

    /// The end, if it has come; then all who wait are woken.
    pub(crate) fn poll(&self) -> Option<End> {
        if self.is_over() {
            return self.end();
        }
        let waker = Waker::from(Arc::clone(&self.alarm));
        let before = match &self.before {
            Some(before) => before.poll_for(Waiter::Transfer, &waker)?.err(),
            None => None,
        };
        let mut state = self.lock();
        // Without one, another thread is releasing the hold, and wakes those who wait after that.
        let pending = state.pending.as_mut()?;
        let Poll::Ready(own) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        let pending = state.pending.take();
        let hold = state.hold.take();
        drop(state);
        // The last of a queue closes it, which is a message; the hold ends exports, which takes the interpreter's lock.
        drop(pending);
        if let Some(hold) = hold {
            // The memory is settled by the transfer's own end, not by that of the one before it.
            hold.release(is_settled(&own));
        }
        let end = *self.end.get_or_init(|| before.map_or(own, Err));
        self.record(OVER);
        // A future that was polled to its end wakes nothing by itself.
        self.alarm.ring();
        Some(end)
    }

    /// The end, if it has come; else `waker` is woken then.
    pub(crate) fn poll_for(&self, waiter: Waiter, waker: &Waker) -> Option<End> {
        // Before the look, so that no end comes in between.
        self.alarm.waiters.add(waiter, waker);
        let end = self.poll();
        if end.is_some() {
            self.alarm.waiters.remove(waiter);
        }
        end
    }

    /// Asks that it end early. One that has ended cannot.
    pub(crate) fn cancel(&self) {
        if let Some(before) = &self.before {
            before.cancel();
        }
        if let Some(pending) = &self.lock().pending {
            let _ = pending.cancel();
        }
    }

    fn wait_slice(&self, until: Option<Instant>) -> Option<End> {
        self.alarm.waiters.sleep(until, || self.poll())
    }

    /// Waits until it has ended; the interpreter runs other threads meanwhile.
    pub(crate) fn wait(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<End> {
        self.home.check()?;
        if let Some(end) = self.end() {
            return Ok(end);
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if let Some(end) = py.detach(|| self.wait_slice(until)) {
                return Ok(end);
            }
            py.check_signals()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(PyTimeoutError::new_err("the transfer was not done in time; it goes on"));
            }
        }
    }

    /// Waits until it has ended, and cancels it when it has not at `until`. Without the interpreter's lock.
    pub(crate) fn wait_or_cancel(&self, until: Instant) {
        while self.wait_slice(Some(until)).is_none() {
            if Instant::now() >= until {
                return self.cancel();
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // In a forked child there are no workers and nothing to give back, and a lock may be held by a thread of the parent.
        if self.home.is_forked() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((state.pending.take(), state.hold.take()));
        }
    }
}
