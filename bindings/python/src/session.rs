//! What the Python objects of one client share: the session with its service, its frames, and its queues until they close.
//!
//! ```text
//! Client, Frame, Queue ─► Session ┬ service: the client that `connect` opened
//!                                 └ local: a client of the service in this process, for memory that is no frame
//! finish ─ each open queue: waits, closes ─► the clients are dropped
//! ```
//!
//! Dropping a client is a message to its service, so it is done without the interpreter's lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memferry::{Client, ForkGuard};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::home::Home;
use crate::registry::FrameRegistry;

/// A queue, as its session closes it.
pub(crate) trait OpenQueue: Send + Sync {
    /// Asks that all transfers end early.
    fn cancel_all(&self);

    /// Waits until a running transfer that was lent memory has ended, if there is one.
    fn wait_for_borrower(&self, py: Python<'_>) -> PyResult<bool>;

    /// Waits until all transfers have ended, and closes.
    fn finish(&self, py: Python<'_>) -> PyResult<()>;
}

struct Clients {
    service: Client,
    /// Where the service is in another process: opened with the first memory that is no frame.
    local: Option<Client>,
}

/// What a client's objects share.
pub(crate) struct Session {
    pub(crate) home: Arc<Home>,
    pub(crate) frames: FrameRegistry,
    clients: Mutex<Option<Clients>>,
    queues: Mutex<Vec<Weak<dyn OpenQueue>>>,
}

fn closed() -> PyErr {
    PyValueError::new_err("the client is closed")
}

impl Session {
    pub(crate) fn new(guard: ForkGuard, service: Client) -> Self {
        let home = Arc::new(Home::new(guard, !service.is_embedded()));
        let clients = Mutex::new(Some(Clients { service, local: None }));
        Self { home, frames: FrameRegistry::default(), clients, queues: Mutex::default() }
    }

    fn clients(&self) -> PyResult<MutexGuard<'_, Option<Clients>>> {
        self.home.check()?;
        Ok(self.clients.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The client of the service.
    pub(crate) fn client(&self) -> PyResult<Client> {
        Ok(self.clients()?.as_ref().ok_or_else(closed)?.service.clone())
    }

    /// A client of the service in this process.
    pub(crate) fn local_client(&self) -> PyResult<Client> {
        let mut clients = self.clients()?;
        let Clients { service, local } = clients.as_mut().ok_or_else(closed)?;
        if service.is_embedded() {
            return Ok(service.clone());
        }
        let client = match local {
            Some(client) => client.clone(),
            None => Client::embedded().map_err(errors::of_connect)?,
        };
        Ok(local.insert(client).clone())
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Weak<dyn OpenQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `queue` closed with the client.
    pub(crate) fn add(&self, queue: Weak<dyn OpenQueue>) {
        let mut queues = self.queues();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// Waits until a running transfer of any queue that was lent memory has ended, if there is one.
    pub(crate) fn wait_for_borrower(&self, py: Python<'_>) -> PyResult<bool> {
        let queues: Vec<_> = self.queues().iter().filter_map(Weak::upgrade).collect();
        for queue in &queues {
            if queue.wait_for_borrower(py)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until all transfers have ended, and closes.
    pub(crate) fn finish(&self, py: Python<'_>, cancel: bool) -> PyResult<()> {
        self.home.check()?;
        let queues: Vec<_> = self.queues().iter().filter_map(Weak::upgrade).collect();
        if cancel {
            self.home.asking(|| queues.iter().for_each(|queue| queue.cancel_all()));
        }
        for queue in &queues {
            queue.finish(py)?;
        }
        let clients = self.clients()?.take();
        py.detach(|| drop(clients));
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let clients = self.clients.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.home.is_forked() {
            std::mem::forget(clients);
            return;
        }
        Python::attach(|py| py.detach(|| drop(clients)));
    }
}
