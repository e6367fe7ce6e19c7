//! The Python interface: the native part of the package `memferry`, over the client library.
//!
//! ```text
//! copy(array, frame) ─► Transfer ─ Queue.submit ─ operand: buffers exported, views of frames found ─► regions
//!                                                └ submission ─► Ticket ─ wait (without the GIL), await (eventfd) ─► Done
//! ```
//!
//! Buffers that are no frames are lent to a service inside this process; their export is held until the transfer has ended,
//! so they are not freed or resized meanwhile (invariant P1). The package's Python files add only `await`.

#![allow(unsafe_code, reason = "buffers come from Python as pointers; each block names what it rests on")]

mod arguments;
mod client;
mod errors;
mod export;
mod frame;
mod grant;
mod home;
mod operand;
mod picture;
mod queue;
mod registry;
mod running;
mod session;
mod submission;
mod ticket;
mod transfer;

use pyo3::prelude::*;

/// The native part of the package `memferry`.
#[pymodule]
mod _memferry {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pymodule_export]
    use super::client::{Client, connect};
    #[pymodule_export]
    use super::errors::{
        ConnectError, Error, ForkedError, NoAnswerError, QueueFullError, RefusedError, ServiceLostError,
        TransferError,
    };
    #[pymodule_export]
    use super::export::Exported;
    #[pymodule_export]
    use super::frame::{Frame, Region};
    #[pymodule_export]
    use super::grant::{Grant, GrantToken, RemoteToken};
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::ticket::{Bell, Done, Ticket};
    #[pymodule_export]
    use super::transfer::{
        Transfer, compare, copy, copy_crc32c, crc32c, dual_copy, fill, nop, overlay, scatter_gather, turn,
        xor, zero,
    };
}
