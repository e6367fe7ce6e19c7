//! Grants as Python objects: a token for the grantee, and the way to revoke it.

use std::sync::Arc;

use memferry::{BadNodeName, NodeName, Rights};
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

/// Names a grant to a user of another machine, as `Grant.remote_token` makes it. It is no secret: only that user of that
/// machine can use it. `str(token)` and `RemoteToken(text)` carry it there, and so does pickle.
///
/// `RemoteToken` raises ValueError for a text that is no such token.
#[pyclass(frozen, eq, hash, module = "memferry")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteToken(pub(crate) memferry::RemoteToken);

#[pymethods]
impl RemoteToken {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let wrong = |error| PyValueError::new_err(format!("{text:?}: {error}"));
        text.parse().map(Self).map_err(wrong)
    }

    /// The name of the machine that has the memory.
    #[getter]
    fn node(&self) -> String {
        self.0.node.to_string()
    }

    /// Bytes that were granted.
    #[getter]
    fn length(&self) -> u64 {
        self.0.length
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("RemoteToken('{}')", self.0)
    }

    fn __getnewargs__(&self) -> (String,) {
        (self.0.to_string(),)
    }
}

/// A name of a machine, as an argument.
pub(crate) fn node(name: &str) -> PyResult<NodeName> {
    name.parse().map_err(|error: BadNodeName| PyValueError::new_err(format!("{name:?}: {error}")))
}

/// Rights granted to another client, until they are revoked or the frame is dropped. Dropping this object changes nothing.
#[pyclass(frozen, module = "memferry")]
pub struct Grant {
    session: Arc<Session>,
    token: memferry::GrantToken,
    length: u64,
    rights: Rights,
}

impl Grant {
    /// A grant of so many bytes.
    pub(crate) fn new(
        session: Arc<Session>,
        token: memferry::GrantToken,
        (length, rights): (u64, Rights),
    ) -> Self {
        Self { session, token, length, rights }
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

    /// The token of a grant to a user of another machine, for `Client.accept_remote` there. `node` is the name of this machine in
    /// the configurations of the links. It is good until this machine's service ends.
    ///
    /// Raises ValueError for what is no node's name, and for a closed client; NoAnswerError, ServiceLostError, ForkedError.
    fn remote_token(&self, py: Python<'_>, node: &str) -> PyResult<RemoteToken> {
        let node = self::node(node)?;
        let client = self.session.client()?;
        let own = py.detach(|| client.identify(client.session())).map_err(errors::of_call)?;
        let Self { token, length, rights, .. } = *self;
        Ok(RemoteToken(memferry::RemoteToken { node, service: own.service, token, length, rights }))
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
