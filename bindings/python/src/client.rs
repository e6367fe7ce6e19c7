//! The client as a Python object: memory, grants, and queues.
//!
//! ```text
//! connect(path?) ─► Client ┬ frame, accept ─► Frame
//!                          ├ grant ─► Grant
//!                          └ queue ─► Queue
//! with Client: waits for outstanding transfers at the end, cancels them first after an exception
//! ```

use std::sync::Arc;
use std::time::Duration;

use memferry::{ConnectOptions, ForkGuard, Grantee, SessionId};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::arguments::{self, Number};
use crate::errors;
use crate::frame::{Frame, Region};
use crate::grant::{self, Grant, GrantToken, RemoteToken};
use crate::queue::Queue;
use crate::session::Session;
use crate::submission::Submission;

/// A session with a service; `connect` opens one, and `with` closes it. When the last of the client's queues and tickets is
/// dropped, that waits for running transfers, a minute at most.
#[pyclass(frozen, module = "memferry")]
pub struct Client {
    session: Arc<Session>,
}

/// Opens a session with the service that listens on `path`, or without a path with the one inside this process. The service
/// has `timeout` seconds to answer this and each later call, `None` for no limit.
///
/// Raises ConnectError, NoAnswerError; ValueError for a negative timeout; OSError.
#[pyfunction]
#[pyo3(signature = (path=None, *, timeout=5.0))]
pub(crate) fn connect(
    py: Python<'_>,
    path: Option<std::path::PathBuf>,
    timeout: Option<f64>,
) -> PyResult<Client> {
    let timeout = timeout.map_or(Ok(Duration::MAX), arguments::seconds)?;
    let guard = ForkGuard::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
    // A service that is stopped in a debugger, or starts, answers late: other threads go on meanwhile.
    let client = py.detach(|| match path {
        Some(path) => memferry::Client::connect_with(path, ConnectOptions { timeout }),
        None => memferry::Client::embedded(),
    });
    let client = client.map_err(errors::of_connect)?;
    Ok(Client { session: Arc::new(Session::new(guard, client)) })
}

#[pymethods]
impl Client {
    /// The session's public name, an integer to which others grant.
    #[getter]
    fn session(&self) -> PyResult<u64> {
        Ok(self.session.client()?.session().0)
    }

    /// Whether the service is in this process.
    #[getter]
    fn embedded(&self) -> PyResult<bool> {
        Ok(self.session.client()?.is_embedded())
    }

    /// Allocates at least `length` bytes, in whole pages, zeroed: with `huge` in huge pages of the machine's pool, with
    /// `node` on that NUMA node. With `home`, the name of an engine process: exactly `length` bytes of memory that only this
    /// engine reaches, not mapped here, and lost when its process ends.
    ///
    /// Raises RefusedError for a quota, a length of 0, or where the machine or the engine has no such memory; NoAnswerError,
    /// ServiceLostError, ForkedError; ValueError for a negative length, or a closed client.
    #[pyo3(signature = (length, *, huge=false, node=None, home=None))]
    fn frame(
        &self,
        py: Python<'_>,
        length: Number<u64>,
        huge: bool,
        node: Option<Number<u32>>,
        home: Option<&str>,
    ) -> PyResult<Frame> {
        let mut builder = self.session.client()?.frame(length.0);
        if huge {
            builder = builder.huge();
        }
        if let Some(Number(node)) = node {
            builder = builder.node(node);
        }
        if let Some(engine) = home {
            builder = builder.home(engine);
        }
        let frame = py.detach(|| builder.alloc()).map_err(errors::of_frame)?;
        Ok(Frame::new(Arc::clone(&self.session), frame))
    }

    /// Opens a queue for up to `capacity` transfers, a power of two from 2 to 4096.
    ///
    /// Raises RefusedError for another capacity or a quota, NoAnswerError, ServiceLostError, ForkedError; ValueError for a
    /// closed client.
    #[pyo3(signature = (capacity=Number(64)), text_signature = "($self, capacity=64)")]
    fn queue(&self, py: Python<'_>, capacity: Number<u32>) -> PyResult<Queue> {
        Submission::open(py, Arc::clone(&self.session), capacity.0).map(Queue)
    }

    /// Grants rights on a frame or a region to one session, or to every session of a user (a user id); with `node`, to that user of
    /// another machine, which the links call so (`Grant.remote_token` gives the token then). `rights` are letters
    /// of "rwgd": to read, to write, to grant, and, for another machine, to be used in place by the link where its administrator allows
    /// that. With `lasts`, in seconds, the grant gives access for so long; a transfer that runs then is not
    /// interrupted, so revoke the grant before the memory is reused. The clock stops while the machine is suspended.
    ///
    /// Raises RefusedError where the client lacks these rights, NoAnswerError, ServiceLostError, ForkedError; ValueError
    /// for other memory, other letters, more or fewer than one grantee, what is no node's name, or a closed client.
    #[pyo3(signature = (memory, rights="r", *, session=None, user=None, node=None, lasts=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn grant(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        rights: &str,
        session: Option<Number<u64>>,
        user: Option<Number<u32>>,
        node: Option<&str>,
        lasts: Option<f64>,
    ) -> PyResult<Grant> {
        let region = match (memory.cast::<Frame>(), memory.cast::<Region>()) {
            (Ok(frame), _) => memferry::Region::from(&*frame.get().frame),
            (_, Ok(region)) => region.get().region.clone(),
            _ => return Err(PyValueError::new_err("only a frame or a region of one can be granted")),
        };
        let to = match (session, user, node) {
            (Some(session), None, None) => Grantee::Session(SessionId(session.0)),
            (None, Some(user), None) => Grantee::User(user.0),
            (None, Some(user), Some(node)) => Grantee::Remote { node: grant::node(node)?, user: user.0 },
            _ => {
                let message = "name the grantee: session=..., user=..., or user=... and node=...";
                return Err(PyValueError::new_err(message));
            }
        };
        let client = self.session.client()?;
        let rights = arguments::rights(rights)?;
        let lasts = lasts.map(arguments::seconds).transpose()?;
        let granted_part = (region.length(), rights);
        let granted = py.detach(|| match lasts {
            None => client.grant(region, rights, to),
            Some(lasts) => client.grant_for(region, rights, to, lasts),
        });
        let token = granted.map(|grant| grant.token());
        Ok(Grant::new(Arc::clone(&self.session), token.map_err(errors::of_call)?, granted_part))
    }

    /// Accepts a grant, and returns its frame. That has no buffer in this process: the service moves bytes there.
    ///
    /// Raises RefusedError where the token names no grant to this client; NoAnswerError, ServiceLostError, ForkedError;
    /// ValueError for a closed client.
    fn accept(&self, py: Python<'_>, token: &GrantToken) -> PyResult<Frame> {
        let client = self.session.client()?;
        let token = token.0;
        let frame = py.detach(|| client.accept(token)).map_err(errors::of_call)?;
        Ok(Frame::new(Arc::clone(&self.session), frame))
    }

    /// Accepts a grant that another machine made to this user, through the link of this one (memferry-link(1)), and returns its frame.
    /// That machine is not asked yet: it checks each transfer, which raises TransferError if it does not allow it or cannot be reached.
    ///
    /// Raises RefusedError where this machine has no link, the user may not use it, or the link does not know the other machine;
    /// NoAnswerError, ServiceLostError, ForkedError; ValueError for a closed client.
    fn accept_remote(&self, py: Python<'_>, token: &RemoteToken) -> PyResult<Frame> {
        let client = self.session.client()?;
        let token = token.0;
        let frame = py.detach(|| client.accept_remote(token)).map_err(errors::of_call)?;
        Ok(Frame::new(Arc::clone(&self.session), frame))
    }

    /// Revokes the rights that were granted under a token, as `Grant.revoke`.
    ///
    /// Raises RefusedError where nothing is granted any more, NoAnswerError while a transfer still uses the memory;
    /// ServiceLostError, ForkedError; ValueError for a closed client.
    fn revoke(&self, py: Python<'_>, token: &GrantToken) -> PyResult<()> {
        grant::revoke(py, &self.session, token.0)
    }

    /// Waits until all transfers have ended, and closes the client with all queues. Frames stay until their last object is
    /// dropped.
    ///
    /// Raises ForkedError.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.session.finish(py, false)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Waits until all transfers have ended; after an exception they are cancelled. In a child of fork there are none.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        // A child leaves the block too, often by an exception that has to come through.
        if !self.session.home.is_forked() {
            self.session.finish(py, !kind.is_none())?;
        }
        Ok(false)
    }
}
