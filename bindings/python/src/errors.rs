//! Exceptions: the errors of the client library, as classes.
//!
//! ```text
//! ConnectError, FrameError, CallError, SubmitReason, Failure ─► Error ─┬ ConnectError, RefusedError, ServiceLostError, NoAnswerError
//!                                                                      └ ForkedError, QueueFullError, TransferError
//! lengths and shapes ─► ValueError      read-only or strided memory ─► BufferError      a timeout ─► TimeoutError
//! ```

use memferry::{CallError, FrameError, OpenError, SubmitReason};
use pyo3::PyErr;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(memferry, Error, PyException, "The base of memferry's exceptions.");
pyo3::create_exception!(memferry, ConnectError, Error, "No service there, or it opened no session.");
pyo3::create_exception!(
    memferry,
    RefusedError,
    Error,
    "The service refused a call: by a quota, a right, or for lack of the machine's resources."
);
pyo3::create_exception!(memferry, ServiceLostError, Error, "The service is gone; connect again.");
pyo3::create_exception!(
    memferry,
    NoAnswerError,
    Error,
    "The service did not answer within the time limit of `connect`; the session stays usable."
);
pyo3::create_exception!(
    memferry,
    ForkedError,
    Error,
    "The client belongs to the process this one was forked from."
);
pyo3::create_exception!(
    memferry,
    QueueFullError,
    Error,
    "The ends of as many transfers as the queue's capacity are outstanding or not yet taken."
);
pyo3::create_exception!(
    memferry,
    TransferError,
    Error,
    "A transfer failed. `failure` names the reason, `bytes_done` are the bytes visited before, `id` is its ticket's."
);

pub(crate) fn of_connect(error: memferry::ConnectError) -> PyErr {
    let message = error.to_string();
    match error {
        memferry::ConnectError::TimedOut { .. } => NoAnswerError::new_err(message),
        _ => ConnectError::new_err(message),
    }
}

pub(crate) fn forked() -> PyErr {
    ForkedError::new_err(memferry::Forked.to_string())
}

pub(crate) fn of_call(error: CallError) -> PyErr {
    let message = error.to_string();
    match error {
        CallError::Refused(_) | CallError::PartOfArena => RefusedError::new_err(message),
        CallError::Ended(_) | CallError::ServiceLost => ServiceLostError::new_err(message),
        CallError::TimedOut { .. } | CallError::RevocationPending { .. } => NoAnswerError::new_err(message),
        CallError::Send(_) | CallError::Protocol(_) => Error::new_err(message),
        CallError::Forked(_) => ForkedError::new_err(message),
    }
}

pub(crate) fn of_frame(error: FrameError) -> PyErr {
    match error {
        FrameError::Call(error) => of_call(error),
        FrameError::Memory(_) => Error::new_err(error.to_string()),
        other => RefusedError::new_err(other.to_string()),
    }
}

pub(crate) fn of_open(error: OpenError) -> PyErr {
    match error {
        OpenError::Call(error) => of_call(error),
        other => Error::new_err(other.to_string()),
    }
}

pub(crate) fn of_submit(reason: SubmitReason) -> PyErr {
    let message = reason.to_string();
    match reason {
        SubmitReason::Full { .. } => QueueFullError::new_err(message),
        SubmitReason::ServiceLost => ServiceLostError::new_err(message),
        SubmitReason::Forked(_) => ForkedError::new_err(message),
        SubmitReason::ForeignFrame | SubmitReason::Invalid(_) | SubmitReason::Loop => {
            PyValueError::new_err(message)
        }
    }
}

/// A failed transfer; `id` is its ticket's.
pub(crate) fn of_transfer(py: Python<'_>, id: u64, failed: &memferry::TransferError) -> PyErr {
    let error = TransferError::new_err(failed.to_string());
    let shown = format!("{:?}", failed.failure);
    let failure = shown.split([' ', '(', '{']).next().unwrap_or_default();
    let value = error.value(py);
    let set = value
        .setattr("failure", failure)
        .and_then(|()| value.setattr("bytes_done", failed.bytes_done))
        .and_then(|()| value.setattr("id", id));
    match set {
        Ok(()) => error,
        Err(other) => other,
    }
}
