//! Tickets and ends as Python objects, and the bell by which event loops await them.
//!
//! ```text
//! Queue.submit ─► Ticket ┬ wait ─────────────────────────────────────────► Done, or TransferError
//!                        └ await ─► memferry._waiting ─ _signal(bell) ─► wait
//! ```

use std::sync::Arc;
use std::task::Waker;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::errors;
use crate::running::{End, Eventfd, Running, Waiter};
use crate::submission::Submission;

/// What an event loop watches: an eventfd, which all transfers that it awaits write to when they end.
#[pyclass(frozen, module = "memferry._memferry", name = "_Bell")]
pub struct Bell(Arc<Eventfd>);

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let eventfd = Eventfd::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self(Arc::new(eventfd)))
    }

    fn fileno(&self) -> i32 {
        self.0.number()
    }

    /// Makes it unreadable until it is rung again.
    fn silence(&self) {
        self.0.clear();
    }
}

/// A submitted transfer: wait for it, or await it. Dropping a ticket lets the transfer go on; its end stays with the queue.
#[pyclass(frozen, generic, module = "memferry")]
pub struct Ticket {
    pub(crate) running: Arc<Running>,
    /// Its drop waits for running transfers, so it is kept until the last ticket is dropped too.
    pub(crate) queue: Arc<Submission>,
}

#[pymethods]
impl Ticket {
    /// The number of the transfer, which no other of this process has; `Done.id` and `TransferError.id` have it too.
    #[getter]
    fn id(&self) -> u64 {
        self.running.id()
    }

    /// Waits until the transfer has ended, at most `timeout` seconds, while other threads run. It may be called again: the
    /// ticket keeps the end.
    ///
    /// Raises TransferError if it failed; TimeoutError, after which it goes on; ForkedError; ValueError for a negative
    /// timeout.
    #[pyo3(signature = (timeout=None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Done> {
        let limit = timeout.map(seconds).transpose()?;
        let end = self.running.wait(py, limit)?;
        self.running.take();
        Done::of(py, &self.running, end)
    }

    /// Whether the transfer has ended.
    ///
    /// Raises ForkedError.
    fn done(&self) -> PyResult<bool> {
        let home = self.running.home();
        home.check()?;
        Ok(self.running.is_over() || home.asking(|| self.running.poll().is_some()))
    }

    /// Requests that the transfer end early; `wait` says how it ended.
    ///
    /// Raises ForkedError.
    fn cancel(&self) -> PyResult<()> {
        let home = self.running.home();
        home.check()?;
        home.asking(|| self.running.cancel());
        Ok(())
    }

    /// Cancels a transfer whose end nobody waits for any more, so that its queue does not keep the end.
    fn _abandon(&self) -> PyResult<()> {
        self.running.take();
        self.cancel()
    }

    /// Whether the transfer has ended; else the bell is rung when it has.
    fn _signal(&self, bell: &Bell) -> PyResult<bool> {
        let home = self.running.home();
        home.check()?;
        let waiter = Waiter::Bell(Arc::as_ptr(&bell.0).addr());
        let waker = Waker::from(Arc::clone(&bell.0));
        let look = || self.running.poll_for(waiter, &waker).is_some();
        Ok(self.running.is_over() || home.asking(look))
    }

    /// The wait as a coroutine, for `asyncio.create_task` and task groups, which take no other object that can be awaited.
    /// Cancelling the task cancels the transfer.
    ///
    /// Raises TransferError if it failed; ForkedError.
    fn until_done<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("memferry._waiting")?.call_method1("until_done", (slf,))
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::until_done(slf)?.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Ticket {}>", self.running.id())
    }
}

/// The end of a transfer that succeeded.
#[pyclass(frozen, generic, module = "memferry", get_all)]
pub struct Done {
    /// The number of the transfer, as `Ticket.id`.
    id: u64,
    /// Bytes that the transfer visited.
    bytes_done: u64,
    /// The CRC, the offset of the first difference (`None` when there is none), or `None` of what moves bytes.
    output: Option<u64>,
    /// What moved the bytes: "CPU", "kernel module" (a DMA engine, or the kernel's own copy), "engine process" (a GPU, DSA, I/OAT,
    /// or another machine), "simulated engine" (a model in virtual time), or "no engine" when the transfer ended before it reached one.
    engine: String,
}

impl Done {
    pub(crate) fn of(py: Python<'_>, running: &Running, end: End) -> PyResult<Self> {
        let id = running.id();
        match end {
            Ok(memferry::Done { bytes_done, output, engine, .. }) => {
                let output = running.output().of(output);
                Ok(Self { id, bytes_done, output, engine: engine.to_string() })
            }
            Err(error) => Err(errors::of_transfer(py, id, &error)),
        }
    }
}

#[pymethods]
impl Done {
    fn __repr__(&self) -> String {
        let output = self.output.map_or("None".to_owned(), |output| output.to_string());
        format!("<memferry.Done: {} bytes, output {output}, {}>", self.bytes_done, self.engine)
    }
}
