//! Exceptions: what goes wrong in the client library, as classes.
//!
//! ```text
//! ConnectError, FrameError, CallError, SubmitReason, Failure ─► Error ─┬ ConnectError, RefusedError, ServiceLostError
//!                                                                      └ ForkedError, ChannelFullError, TransferError
//! lengths and shapes ─► ValueError      read-only or strided memory ─► BufferError      a limit passed ─► TimeoutError
//! ```

use memferry::{
    CallError, Failure, FrameError, ImageError, OpenError, SubmitReason, TransferError as Described,
};
use pyo3::PyErr;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(memferry, Error, PyException, "What memferry can say is wrong.");
pyo3::create_exception!(memferry, ConnectError, Error, "No service there, or it would not open a session.");
pyo3::create_exception!(
    memferry,
    RefusedError,
    Error,
    "The service would not do it: a quota, a right, its machine."
);
pyo3::create_exception!(memferry, ServiceLostError, Error, "The service is gone; connect again.");
pyo3::create_exception!(
    memferry,
    ForkedError,
    Error,
    "The client belongs to the process this one was forked from."
);
pyo3::create_exception!(
    memferry,
    ChannelFullError,
    Error,
    "As many transfers are outstanding as the client may have."
);
pyo3::create_exception!(
    memferry,
    TransferError,
    Error,
    "A transfer did not do all it asked for. `kind` names the failure, `bytes_done` says how far it came."
);

pub(crate) fn of_connect(error: memferry::ConnectError) -> PyErr {
    ConnectError::new_err(error.to_string())
}

pub(crate) fn forked() -> PyErr {
    ForkedError::new_err(memferry::Forked.to_string())
}

pub(crate) fn of_call(error: CallError) -> PyErr {
    let message = error.to_string();
    match error {
        CallError::Refused(_) | CallError::PartOfArena => RefusedError::new_err(message),
        CallError::Ended(_) | CallError::ServiceLost => ServiceLostError::new_err(message),
        CallError::Send(_) | CallError::Protocol(_) => Error::new_err(message),
        CallError::Forked(_) => ForkedError::new_err(message),
    }
}

pub(crate) fn of_frame(error: FrameError) -> PyErr {
    match error {
        FrameError::Call(error) => of_call(error),
        other => RefusedError::new_err(other.to_string()),
    }
}

pub(crate) fn of_open(error: OpenError) -> PyErr {
    match error {
        OpenError::Call(error) => of_call(error),
        other => Error::new_err(other.to_string()),
    }
}

pub(crate) fn of_description(error: Described) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn of_image(error: ImageError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn of_submit(reason: SubmitReason) -> PyErr {
    let message = reason.to_string();
    match reason {
        SubmitReason::Full { .. } => ChannelFullError::new_err(message),
        SubmitReason::ServiceLost => ServiceLostError::new_err(message),
        SubmitReason::Forked(_) => ForkedError::new_err(message),
        SubmitReason::ForeignFrame | SubmitReason::Shape(_) | SubmitReason::Loop => {
            PyValueError::new_err(message)
        }
    }
}

/// The failure of a transfer, with its kind and how far it came.
pub(crate) fn of_failure(py: Python<'_>, failure: Failure, bytes_done: u64) -> PyErr {
    let error = TransferError::new_err(failure.to_string());
    let kind = format!("{failure:?}");
    let kind = kind.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
    let value = error.value(py);
    match value.setattr("kind", kind).and_then(|()| value.setattr("bytes_done", bytes_done)) {
        Ok(()) => error,
        Err(other) => other,
    }
}
