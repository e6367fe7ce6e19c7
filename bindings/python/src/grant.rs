//! Grants as Python objects: a token for the grantee, and the way to revoke it.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::session::Session;

/// Names a grant. It is no secret: only the grantee can accept it. `str(token)` and `GrantToken(text)` carry it from
/// process to process, and so does pickle.
///
/// `GrantToken` raises ValueError for a text that is no token.
#[pyclass(frozen, eq, hash, module = "memferry")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrantToken(pub(crate) memferry::GrantToken);

#[pymethods]
impl GrantToken {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let wrong = |_| PyValueError::new_err(format!("{text:?} is no grant's token"));
        text.parse().map(Self).map_err(wrong)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("GrantToken('{}')", self.0)
    }

    fn __getnewargs__(&self) -> (String,) {
        (self.0.to_string(),)
    }
}

/// Rights granted to another client, until they are revoked or the frame is dropped. Dropping this object changes nothing.
#[pyclass(frozen, module = "memferry")]
pub struct Grant {
    session: Arc<Session>,
    token: memferry::GrantToken,
}

impl Grant {
    pub(crate) fn new(session: Arc<Session>, token: memferry::GrantToken) -> Self {
        Self { session, token }
    }
}

/// Revokes what was granted under a token.
pub(crate) fn revoke(py: Python<'_>, session: &Session, token: memferry::GrantToken) -> PyResult<()> {
    let client = session.client()?;
    py.detach(|| client.revoke(token)).map_err(errors::of_call)
}

#[pymethods]
impl Grant {
    /// The token for the grantee's `Client.accept`.
    #[getter]
    fn token(&self) -> GrantToken {
        GrantToken(self.token)
    }

    /// Revokes the rights of the grantee and of everyone it passed them to. Running transfers that use the memory on their
    /// behalf are cancelled; this returns when they have ended.
    ///
    /// Raises RefusedError where nothing is granted any more, NoAnswerError while a transfer still uses the memory;
    /// ServiceLostError, ForkedError; ValueError for a closed client.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        revoke(py, &self.session, self.token)
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Grant {}>", self.token)
    }
}
