//! The process that a client belongs to, and calls that may wait for a service in another process.
//!
//! A stopped service answers late, so such calls run without the interpreter's lock, and so does waiting for a lock that
//! another thread may hold during such a call.

use memferry::ForkGuard;
use pyo3::prelude::*;

use crate::errors;

/// The process a client belongs to, and whether its service is another one.
pub(crate) struct Home {
    guard: ForkGuard,
    is_service_elsewhere: bool,
}

impl Home {
    pub(crate) fn new(guard: ForkGuard, is_service_elsewhere: bool) -> Self {
        Self { guard, is_service_elsewhere }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.guard.check().is_err()
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        if self.is_forked() { Err(errors::forked()) } else { Ok(()) }
    }

    /// Makes a call that may ask the service, as releasing the memory of an ended transfer does. Other threads run while a
    /// service in another process is asked. The caller has the interpreter's lock.
    pub(crate) fn asking<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        if self.is_service_elsewhere { Python::attach(|py| py.detach(call)) } else { call() }
    }
}
