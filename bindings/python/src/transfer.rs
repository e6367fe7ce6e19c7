//! Transfers under way: waiting for them without the interpreter's lock, and being told by an eventfd.
//!
//! ```text
//! Transfer.wait ─► Running::poll, waker unparks this thread ─┐    Transfer._signal(bell) ─► waker writes to its eventfd ─┐
//!                     │                                      └─► Waiters, all woken by the one waker of the Pending ◄─┘
//!                     └ ended: the hold is let go ─► Completion, or TransferError
//! ```
//!
//! Whoever wakes needs no interpreter. What holds a lock here never waits for the interpreter's; whoever may wait for such a lock
//! while a service elsewhere is asked has not the interpreter's (`Home::asking`).

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, ThreadId};
use std::time::{Duration, Instant};

use memferry::{EngineKind, Pending};
use pyo3::exceptions::{PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use rustix::event::EventfdFlags;

use crate::errors;
use crate::operand::Hold;
use crate::shared::{Home, Shared};

/// The longest a wait goes without a look whether the program was interrupted.
const SLICE: Duration = Duration::from_millis(50);

struct State {
    /// Neither, when it has ended or is about to.
    pending: Option<Pending>,
    hold: Option<Hold>,
}

/// A transfer and what it holds; the client keeps it until it has ended, though nobody else does.
pub(crate) struct Running {
    home: Arc<Home>,
    state: Mutex<State>,
    /// Set when nothing is held any more.
    ended: OnceLock<memferry::Completion>,
    /// What has to end too before this has.
    before: Option<Arc<Running>>,
    waiters: Arc<Waiters>,
}

/// Who waits; once for each, however often he looks.
#[derive(Clone, Copy, PartialEq)]
enum Waiter {
    Thread(ThreadId),
    /// The address of a bell, which its waker keeps.
    Bell(usize),
    /// The transfer that has this one before it.
    Transfer,
}

/// Those to be woken at the end. The future knows one waker, so it is theirs, and nobody takes away another's.
#[derive(Default)]
struct Waiters(Mutex<Vec<(Waiter, Waker)>>);

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

    fn wake_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An eventfd to be written to.
struct Eventfd(OwnedFd);

impl Wake for Eventfd {
    fn wake(self: Arc<Self>) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Running {
    pub(crate) fn new(
        home: Arc<Home>,
        pending: Pending,
        hold: Option<Hold>,
        before: Option<Arc<Self>>,
    ) -> Self {
        let state = Mutex::new(State { pending: Some(pending), hold });
        Self { home, state, ended: OnceLock::new(), before, waiters: Arc::default() }
    }

    /// One that was done before anybody could wait.
    fn ended(home: Arc<Home>, completion: memferry::Completion) -> Self {
        let state = Mutex::new(State { pending: None, hold: None });
        Self { home, state, ended: OnceLock::from(completion), before: None, waiters: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end, if it has come. Who waits is woken then.
    pub(crate) fn poll(&self) -> Option<memferry::Completion> {
        if self.is_over() {
            return self.ended.get().copied();
        }
        let waker = Waker::from(Arc::clone(&self.waiters));
        let before = match &self.before {
            Some(before) => before.poll_for(Waiter::Transfer, &waker)?.outcome,
            None => Ok(()),
        };
        let mut state = self.lock();
        // Where there is none, another thread lets go of what was held, and wakes those who wait when it has.
        let pending = state.pending.as_mut()?;
        let Poll::Ready(mut completion) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        // What is known of the memory is known by its own end, not by that of another before it.
        let own = completion;
        completion.outcome = before.and(completion.outcome);
        let pending = state.pending.take();
        let hold = state.hold.take();
        drop(state);
        // The last of a queue closes it, which is a message; the hold ends exports, which takes the interpreter's lock.
        drop(pending);
        if let Some(hold) = hold {
            hold.ended(&own);
        }
        let completion = *self.ended.get_or_init(|| completion);
        // The future, which was polled here to its end, wakes nobody.
        self.waiters.wake_all();
        Some(completion)
    }

    /// The end, if it has come; else `waker` is woken then.
    fn poll_for(&self, waiter: Waiter, waker: &Waker) -> Option<memferry::Completion> {
        // Before the look, so that no end comes in between.
        self.waiters.add(waiter, waker);
        let ended = self.poll();
        if ended.is_some() {
            self.waiters.remove(waiter);
        }
        ended
    }

    /// Whether somebody has seen its end.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Asks that it end early; one that has ended cannot.
    pub(crate) fn cancel(&self) {
        if let Some(before) = &self.before {
            before.cancel();
        }
        if let Some(pending) = &self.lock().pending {
            let _ = pending.cancel();
        }
    }

    /// Waits until it has ended, at most until `until`, and then for a slice only.
    fn wait_slice(&self, until: Option<Instant>) -> Option<memferry::Completion> {
        let thread = std::thread::current();
        let waiter = Waiter::Thread(thread.id());
        if let Some(completion) = self.poll_for(waiter, &Waker::from(Arc::new(Unpark(thread)))) {
            return Some(completion);
        }
        let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
        std::thread::park_timeout(left.min(SLICE));
        self.waiters.remove(waiter);
        self.poll()
    }

    /// Waits until it has ended; the interpreter goes on meanwhile.
    pub(crate) fn wait(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<memferry::Completion> {
        self.home.check()?;
        if let Some(completion) = self.ended.get() {
            return Ok(*completion);
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if let Some(completion) = py.detach(|| self.wait_slice(until)) {
                return Ok(completion);
            }
            py.check_signals()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(PyTimeoutError::new_err("the transfer was not done in time; it goes on"));
            }
        }
    }

    /// Waits until it has ended, and cancels it when it has not at `until`. Without the interpreter's lock.
    pub(crate) fn outlast(&self, until: Instant) {
        while self.wait_slice(Some(until)).is_none() {
            if Instant::now() >= until {
                return self.cancel();
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // In a forked child there are neither workers nor anything to give back, and locks may be held for ever.
        if self.home.is_forked() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((state.pending.take(), state.hold.take()));
        }
    }
}

/// A number of seconds.
pub(crate) fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number)
        .map_err(|error| PyValueError::new_err(format!("{number} is no number of seconds: {error}")))
}

/// What an event loop watches: an eventfd, which all transfers that it awaits write to when they end.
#[pyclass(frozen, module = "memferry._memferry", name = "_Bell")]
pub struct Bell(Arc<Eventfd>);

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let made = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Self(Arc::new(Eventfd(made.map_err(|error| PyOSError::new_err(error.to_string()))?))))
    }

    fn fileno(&self) -> i32 {
        self.0.0.as_raw_fd()
    }

    /// Makes it unreadable until it is rung again.
    fn silence(&self) {
        // Silent already, when there is nothing to read.
        let _ = rustix::io::read(&self.0.0, &mut [0_u8; 8]);
    }
}

/// A transfer under way. Letting go of it lets it go on; its memory is held until it has ended.
#[pyclass(frozen, module = "memferry", name = "Transfer")]
pub struct NativeTransfer {
    running: Arc<Running>,
    /// Who waits for what runs when the last of its objects goes.
    _client: Option<Arc<Shared>>,
}

impl NativeTransfer {
    pub(crate) fn of(running: Arc<Running>, client: Arc<Shared>) -> Self {
        Self { running, _client: Some(client) }
    }

    /// One that was done before anybody could wait.
    pub(crate) fn ended(home: Arc<Home>, completion: memferry::Completion) -> Self {
        Self { running: Arc::new(Running::ended(home, completion)), _client: None }
    }
}

#[pymethods]
impl NativeTransfer {
    /// Waits until it has ended, at most `timeout` seconds. Other threads run meanwhile.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Completion> {
        let limit = timeout.map(seconds).transpose()?;
        Completion::of(py, self.running.wait(py, limit)?)
    }

    /// Whether it has ended.
    fn done(&self) -> PyResult<bool> {
        self.running.home.check()?;
        Ok(self.running.is_over() || self.running.home.asking(|| self.running.poll().is_some()))
    }

    /// Asks that it end early. How it ended, `wait` tells.
    fn cancel(&self) -> PyResult<()> {
        self.running.home.check()?;
        self.running.home.asking(|| self.running.cancel());
        Ok(())
    }

    /// Whether it has ended; else the bell is rung when it has.
    fn _signal(&self, bell: &Bell) -> PyResult<bool> {
        self.running.home.check()?;
        let waiter = Waiter::Bell(Arc::as_ptr(&bell.0).addr());
        let waker = Waker::from(Arc::clone(&bell.0));
        let look = || self.running.poll_for(waiter, &waker).is_some();
        Ok(self.running.is_over() || self.running.home.asking(look))
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("memferry._waiting")?;
        waiting.call_method1("until_done", (slf,))?.call_method0("__await__")
    }
}

/// The end of a transfer that did all it asked for.
#[pyclass(frozen, module = "memferry", get_all)]
pub struct Completion {
    bytes_done: u64,
    /// What was found: the CRC, or the offset of the first difference (the length when there is none).
    value: u64,
    /// What moved them: "CPU", "kernel module" (a DMA engine, or the kernel's own copy), "simulated engine" (a model in
    /// virtual time), or "no engine" for what ended before it reached one.
    engine: String,
}

impl Completion {
    fn of(py: Python<'_>, completion: memferry::Completion) -> PyResult<Self> {
        let memferry::Completion { outcome, bytes_done, value, engine, .. } = completion;
        match outcome {
            Ok(()) => Ok(Self { bytes_done, value, engine: EngineKind::to_string(&engine) }),
            Err(failure) => Err(errors::of_failure(py, failure, bytes_done)),
        }
    }
}

#[pymethods]
impl Completion {
    fn __repr__(&self) -> String {
        format!("<memferry.Completion: {} bytes, value {}, {}>", self.bytes_done, self.value, self.engine)
    }
}
