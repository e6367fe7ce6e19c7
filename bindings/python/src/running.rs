//! Transfers under way: waited for without the interpreter's lock, and signalled to event loops by an eventfd.
//!
//! ```text
//! wait ─► Running::poll, waker unparks this thread ─┐      _signal(bell) ─► waker writes to its eventfd ─┐
//!            │                                      └─► Waiters, all woken by the Alarm of the Pending ◄─┘
//!            └ ended: the hold is released ─► End, kept here and for its queue
//! ```
//!
//! Wakers need no interpreter. A thread that holds a lock here never waits for the interpreter's lock; a thread that may wait
//! for such a lock while a service elsewhere is asked does not hold the interpreter's (`Home::asking`).

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Whether a look at the transfer is worth while.
    rung: AtomicBool,
    waiters: Waiters,
    queue: Arc<Waiters>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.waiters.wake_all();
        self.queue.wake_all();
    }
}

struct State {
    /// What has not ended yet, in order. A picture of wide pixels is moved in several passes; all others are one.
    pending: VecDeque<Pending<u64>>,
    /// The end of the passes before these.
    before: Option<End>,
    /// Nothing that has ended touches the memory any more.
    is_settled: bool,
    hold: Option<Hold>,
}

impl State {
    fn new(pending: VecDeque<Pending<u64>>, hold: Option<Hold>) -> Mutex<Self> {
        Mutex::new(Self { pending, before: None, is_settled: true, hold })
    }
}

/// The end of two passes, one after the other.
pub(crate) fn joined(before: Option<End>, end: End) -> End {
    match (before, end) {
        (None, end) => end,
        (Some(Err(error)), _) => Err(error),
        (Some(Ok(before)), Ok(done)) => {
            Ok(memferry::Done { bytes_done: before.bytes_done + done.bytes_done, ..done })
        }
        (Some(Ok(before)), Err(error)) => {
            let bytes_done = before.bytes_done + error.bytes_done;
            Err(memferry::TransferError { bytes_done, ..error })
        }
    }
}

/// A transfer and what it holds. Its queue keeps it until it has ended, even if no ticket is left.
pub(crate) struct Running {
    id: u64,
    output: Output,
    home: Arc<Home>,
    /// Places of the queue that it takes until it has ended.
    places: usize,
    /// Whether memory was lent to its service for it.
    was_lent: bool,
    state: Mutex<State>,
    /// Set when nothing is held any more.
    end: OnceLock<End>,
    /// Whether the program was given the end.
    taken: AtomicBool,
    /// Another transfer that has to end before this one counts as ended.
    before: Option<Arc<Running>>,
    alarm: Arc<Alarm>,
}

impl Running {
    pub(crate) fn new(
        home: Arc<Home>,
        queue: Arc<Waiters>,
        output: Output,
        pending: VecDeque<Pending<u64>>,
        hold: Option<Hold>,
        before: Option<Arc<Self>>,
    ) -> Self {
        let alarm = Arc::new(Alarm { rung: AtomicBool::new(true), waiters: Waiters::default(), queue });
        Self {
            id: next_id(),
            output,
            home,
            places: pending.len(),
            was_lent: hold.as_ref().is_some_and(Hold::has_lent),
            state: State::new(pending, hold),
            end: OnceLock::new(),
            taken: AtomicBool::new(false),
            before,
            alarm,
        }
    }

    /// A transfer that was done on the calling thread.
    pub(crate) fn ended(home: Arc<Home>, queue: Arc<Waiters>, output: Output, end: End) -> Self {
        let alarm = Arc::new(Alarm { rung: AtomicBool::new(false), waiters: Waiters::default(), queue });
        Self {
            id: next_id(),
            output,
            home,
            places: 1,
            was_lent: false,
            state: State::new(VecDeque::new(), None),
            end: OnceLock::from(end),
            taken: AtomicBool::new(false),
            before: None,
            alarm,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn output(&self) -> Output {
        self.output
    }

    /// Places of the queue that it takes until its end was taken.
    pub(crate) fn places(&self) -> usize {
        if self.is_over() { 1 } else { self.places }
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

    /// Whether memory that was lent for it may still count against a quota.
    pub(crate) fn borrows(&self) -> bool {
        self.was_lent && !self.is_over()
    }

    /// Marks the end as given to the program; whether it was not before.
    pub(crate) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
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
        let mut spent = Vec::new();
        loop {
            // Without one, another thread is releasing the hold, and wakes those who wait after that.
            let pending = state.pending.front_mut()?;
            let Poll::Ready(end) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) else {
                return None;
            };
            state.is_settled &= is_settled(&end);
            state.before = Some(joined(state.before.take(), end));
            spent.extend(state.pending.pop_front());
            if state.pending.is_empty() {
                break;
            }
        }
        let own = state.before.take()?;
        let is_settled = state.is_settled;
        let hold = state.hold.take();
        drop(state);
        // The last of a queue closes it, which is a message; the hold ends exports, which takes the interpreter's lock.
        drop(spent);
        if let Some(hold) = hold {
            // The memory is settled by the transfer's own end, not by that of the one before it.
            hold.release(is_settled);
        }
        let end = *self.end.get_or_init(|| before.map_or(own, Err));
        // A future that was polled to its end wakes nothing by itself.
        self.alarm.waiters.wake_all();
        self.alarm.queue.wake_all();
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
        for pending in &self.lock().pending {
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
            std::mem::forget((std::mem::take(&mut state.pending), state.hold.take()));
        }
    }
}
