//! The Python interface: the native part of the package `memferry`, over the client library.
//!
//! ```text
//! client.copy(array, frame) ─ operand: buffers exported, views of frames found ─► FrameRange
//!                            └ submit ─► Transfer ─ wait (without the GIL), await (eventfd) ─► Completion or exception
//! ```
//!
//! Buffers that are no frames are lent to a service inside this process; their export is held until the transfer has ended,
//! so nobody can free or resize them meanwhile (invariant P1). The package's Python files add `await` and nothing else.

#![allow(unsafe_code, reason = "buffers come from Python as pointers; each block names what it rests on")]

mod arguments;
mod client;
mod errors;
mod frame;
mod operand;
mod shared;
mod transfer;

use pyo3::prelude::*;

/// The native part of the package `memferry`.
#[pymodule]
mod _memferry {
    #[pymodule_export]
    use super::client::{Client, connect};
    #[pymodule_export]
    use super::errors::{
        ChannelFullError, ConnectError, Error, ForkedError, RefusedError, ServiceLostError, TransferError,
    };
    #[pymodule_export]
    use super::frame::{Frame, Range};
    #[pymodule_export]
    use super::transfer::{Bell, Completion, NativeTransfer};
}
