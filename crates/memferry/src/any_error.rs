//! One enum over all errors of this crate.

use memferry_shm::mapping::AccessError;
use thiserror::Error;

use crate::arena::{BufferError, CopyError};
use crate::completion::TransferError;
use crate::copier::{AmemcpyError, CopierError};
use crate::error::{CallError, ConnectError, FrameError, OpenError};
use crate::frame::{ExportError, TakeBackError};
use crate::queue::{BatchError, RunError, SubmitError};

/// Any error of this crate, for programs that report errors and do not handle them one by one.
///
/// ```
/// use memferry::{Client, ConnectError, Error};
///
/// fn first_page() -> Result<memferry::Frame, Error> {
///     Ok(Client::embedded()?.frame(4096).alloc()?)
/// }
///
/// assert_eq!(first_page()?.length(), 4096);
/// let missing = Client::connect("/nonexistent/socket").map_err(Error::from);
/// assert!(matches!(missing, Err(Error::Connect(ConnectError::Socket { .. }))));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum Error {
    /// Opening a client failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Creating a frame or an arena failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A call to the service failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Opening a queue failed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Taking memory back from a frame failed.
    #[error(transparent)]
    TakeBack(#[from] TakeBackError),
    /// Exporting the memory of a frame failed.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Allocating a buffer in an arena failed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Copying between slices of an arena failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Creating a copier failed.
    #[error(transparent)]
    Copier(#[from] CopierError),
    /// A copier refused a copy.
    #[error(transparent)]
    Amemcpy(#[from] AmemcpyError),
    /// Reading or writing the bytes of a frame failed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A transfer was not submitted.
    #[error(transparent)]
    Submit(SubmitError<u64>),
    /// A batch of transfers was not submitted, or only in part.
    #[error(transparent)]
    Batch(Box<BatchError<u64>>),
    /// A submitted transfer failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl<T> From<SubmitError<T>> for Error {
    fn from(error: SubmitError<T>) -> Self {
        Self::Submit(error.untyped())
    }
}

impl<T> From<Box<BatchError<T>>> for Error {
    fn from(error: Box<BatchError<T>>) -> Self {
        Self::Batch(Box::new(error.untyped()))
    }
}

impl<T> From<RunError<T>> for Error {
    fn from(error: RunError<T>) -> Self {
        match error {
            RunError::Submit(error) => error.into(),
            RunError::Transfer(error) => error.into(),
        }
    }
}
