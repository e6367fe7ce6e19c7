//! Transfers under way: waiting for them without the interpreter's lock, and being told by an eventfd.
//!
//! ```text
//! Transfer.wait ─► Running::poll, waker unparks this thread         Transfer._signal(fd) ─► waker writes to the eventfd
//!                     └ ended: the hold is let go ─► Completion, or TransferError
//! ```
//!
//! Whoever wakes needs no interpreter. What holds a lock here never waits for the interpreter's.

use std::future::Future;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use memferry::{EngineKind, ForkGuard, Pending};
use pyo3::exceptions::{PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::errors;
use crate::operand::Hold;

/// The longest a wait goes without a look whether the program was interrupted.
const SLICE: Duration = Duration::from_millis(50);

struct State {
    pending: Option<Pending>,
    ended: Option<memferry::Completion>,
    hold: Option<Hold>,
    /// Somebody waits, or will: his waker stays.
    awaited: bool,
}

/// A transfer and what it holds; the client keeps it until it has ended, though nobody else does.
pub(crate) struct Running {
    guard: Arc<ForkGuard>,
    state: Mutex<State>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An eventfd to be written to.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Running {
    pub(crate) fn new(guard: Arc<ForkGuard>, pending: Pending, hold: Hold) -> Self {
        let state = State { pending: Some(pending), ended: None, hold: Some(hold), awaited: false };
        Self { guard, state: Mutex::new(state) }
    }

    /// One that was done before anybody could wait.
    pub(crate) fn ended(guard: Arc<ForkGuard>, completion: memferry::Completion) -> Self {
        let state = State { pending: None, ended: Some(completion), hold: None, awaited: false };
        Self { guard, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end, if it has come; else `waker` is woken then.
    fn poll(&self, waker: &Waker) -> Option<memferry::Completion> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return state.ended;
        }
        if let Some(pending) = state.pending.as_mut()
            && let Poll::Ready(completion) = Pin::new(pending).poll(&mut Context::from_waker(waker))
        {
            state.ended = Some(completion);
            state.pending = None;
            let hold = state.hold.take();
            drop(state);
            // Ends exports, which takes the interpreter's lock: not while this one's is held.
            if let Some(hold) = hold {
                hold.ended();
            }
            return Some(completion);
        }
        None
    }

    /// Whether it has ended; nobody's waker is taken away.
    pub(crate) fn is_over(&self) -> bool {
        let awaited = {
            let state = self.lock();
            if state.ended.is_some() {
                return true;
            }
            state.awaited
        };
        !awaited && self.poll(Waker::noop()).is_some()
    }

    /// Asks that it end early; one that has ended cannot.
    pub(crate) fn cancel(&self) {
        if let Some(pending) = &self.lock().pending {
            let _ = pending.cancel();
        }
    }

    /// Waits until it has ended, at most until `until`, and then for a slice only.
    fn wait_slice(&self, until: Option<Instant>) -> Option<memferry::Completion> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        if let Some(completion) = self.poll(&waker) {
            return Some(completion);
        }
        let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
        std::thread::park_timeout(left.min(SLICE));
        self.poll(&waker)
    }

    /// Waits until it has ended; the interpreter goes on meanwhile.
    pub(crate) fn wait(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<memferry::Completion> {
        if self.guard.check().is_err() {
            return Err(errors::forked());
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.lock().awaited = true;
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
}

impl Drop for Running {
    fn drop(&mut self) {
        // In a forked child there are neither lanes nor anything to give back, and locks may be held for ever.
        if self.guard.check().is_err() {
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

/// A transfer under way. Letting go of it lets it go on; its memory is held until it has ended.
#[pyclass(frozen, module = "memferry", name = "Transfer")]
pub struct NativeTransfer {
    pub(crate) running: Arc<Running>,
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
        self.running.guard.check().map_err(|_| errors::forked())?;
        Ok(self.running.poll(Waker::noop()).is_some())
    }

    /// Asks that it end early. How it ended, `wait` tells.
    fn cancel(&self) -> PyResult<()> {
        self.running.guard.check().map_err(|_| errors::forked())?;
        self.running.cancel();
        Ok(())
    }

    /// Whether it has ended; else something is written to the eventfd when it has.
    fn _signal(&self, descriptor: i32) -> PyResult<bool> {
        self.running.guard.check().map_err(|_| errors::forked())?;
        if descriptor < 0 {
            return Err(PyValueError::new_err("no descriptor"));
        }
        // SAFETY: not -1, and only duplicated, which tells a closed one.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let own = rustix::io::fcntl_dupfd_cloexec(borrowed, 0)
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        self.running.lock().awaited = true;
        Ok(self.running.poll(&Waker::from(Arc::new(Bell(own)))).is_some())
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("memferry._waiting")?;
        waiting.call_method1("until_done", (slf,))?.call_method0("__await__")
    }
}

/// The end of a transfer that did all it asked for.
#[pyclass(frozen, module = "memferry", get_all)]
pub struct Completion {
    /// Bytes visited.
    bytes_done: u64,
    /// What was found: the CRC, or the offset of the first difference (the length when there is none).
    value: u64,
    /// What moved them: "CPU lane", or "no engine".
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
