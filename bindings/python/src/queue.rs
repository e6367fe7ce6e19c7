//! Queues as Python objects: transfers go in, ends come out.
//!
//! ```text
//! Queue ─ submit ─► Ticket        run ─► Done        poll, completions ─► the ends of all, each once
//! with Queue: waits for outstanding transfers at the end, cancels them first after an exception
//! ```

use std::sync::Arc;

use memferry::{EngineKind, Failure, TicketId};
use pyo3::prelude::*;

use crate::errors;
use crate::running::Running;
use crate::submission::{Next, Submission};
use crate::ticket::{Done, Ticket};
use crate::transfer::Transfer;

/// Where transfers are submitted and their ends are taken. Several threads may use one. `with` closes it.
#[pyclass(frozen, module = "memferry")]
pub struct Queue(pub(crate) Arc<Submission>);

impl Queue {
    /// Refuses the ticket of another queue.
    fn check_own(&self, py: Python<'_>, ticket: &Ticket) -> PyResult<()> {
        if Arc::ptr_eq(&self.0, &ticket.queue) {
            return Ok(());
        }
        let unknown = memferry::TransferError {
            id: TicketId::NONE,
            failure: Failure::UnknownTicket,
            bytes_done: 0,
            inherited: false,
            engine: EngineKind::None,
        };
        Err(errors::of_transfer(py, ticket.running.id(), &unknown))
    }
}

#[pymethods]
impl Queue {
    /// Maximum number of transfers that are outstanding or whose ends were not taken.
    #[getter]
    fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    /// Starts a transfer, and returns its ticket. A transfer that fails raises where its end is taken, not here.
    ///
    /// Raises ValueError for operands that do not fit each other or a closed queue, TypeError for one that is no memory,
    /// BufferError for one with gaps or that may not be written; QueueFullError, RefusedError for memory that cannot be
    /// used, NoAnswerError, ServiceLostError, ForkedError.
    fn submit(&self, py: Python<'_>, transfer: &Transfer) -> PyResult<Ticket> {
        let running = self.0.submit(py, transfer)?;
        Ok(Ticket { running, queue: Arc::clone(&self.0) })
    }

    /// Does a transfer before the call returns: on this thread if the service is in this process, while other threads run;
    /// otherwise, or if it is linked, fenced or has a deadline, by submitting it and waiting.
    ///
    /// Raises TransferError, and as `submit`.
    fn run(&self, py: Python<'_>, transfer: &Transfer) -> PyResult<Done> {
        let (running, end) = self.0.run(py, transfer)?;
        Done::of(py, &running, end)
    }

    /// Waits for a ticket of this queue, as `Ticket.wait`.
    ///
    /// Raises TransferError, TimeoutError, ForkedError; a ticket of another queue is a TransferError too.
    #[pyo3(signature = (ticket, timeout=None))]
    fn wait(&self, py: Python<'_>, ticket: &Ticket, timeout: Option<f64>) -> PyResult<Done> {
        self.check_own(py, ticket)?;
        ticket.wait(py, timeout)
    }

    /// Takes the next end, `None` when there is none at the moment.
    ///
    /// Raises TransferError for a transfer that failed; ServiceLostError, ForkedError.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Done>> {
        match self.0.next()? {
            Next::Ended(running) => taken(py, &running).map(Some),
            Next::NotYet | Next::Nothing => Ok(None),
        }
    }

    /// Iterates over the ends that were not taken, waiting for each, until no transfer is outstanding. Iterate again after
    /// an exception for the others.
    ///
    /// Raises TransferError for a transfer that failed; ServiceLostError, ForkedError.
    fn completions(&self) -> Completions {
        Completions(Arc::clone(&self.0))
    }

    /// Waits until all transfers have ended, and closes the queue. Ends can still be taken.
    ///
    /// Raises ForkedError.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, false)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Waits until all transfers have ended, and closes; after an exception they are cancelled. A child of fork has none.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if !self.0.is_forked() {
            self.0.close(py, !kind.is_none())?;
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Queue of {} transfers>", self.0.capacity())
    }
}

fn taken(py: Python<'_>, running: &Running) -> PyResult<Done> {
    // Only ended transfers are taken, so this does not wait.
    let end = running.wait(py, None)?;
    Done::of(py, running, end)
}

/// The ends of a queue's transfers.
#[pyclass(frozen, module = "memferry._memferry", name = "_Completions")]
pub struct Completions(Arc<Submission>);

#[pymethods]
impl Completions {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Done>> {
        self.0.wait_next(py)?.map(|running| taken(py, &running)).transpose()
    }
}
