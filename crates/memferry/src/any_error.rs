//! Any error of this crate, for programs that only report.

use memferry_shm::mapping::AccessError;
use thiserror::Error;

use crate::arena::{BufferError, CopyError};
use crate::completion::TransferError;
use crate::copier::{AmemcpyError, CopierError};
use crate::error::{CallError, ConnectError, FrameError, OpenError};
use crate::frame::TakeBackError;
use crate::queue::{BatchError, RunError, SubmitError};

/// Any of them, for programs that only report.
#[derive(Debug, Error)]
pub enum Error {
    /// Opening a client.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Making a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A call to the control side.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Opening a queue.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Taking memory back.
    #[error(transparent)]
    TakeBack(#[from] TakeBackError),
    /// Allocating in an arena.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Copying between slices of an arena.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Making a copier.
    #[error(transparent)]
    Copier(#[from] CopierError),
    /// Copying with it.
    #[error(transparent)]
    Amemcpy(#[from] AmemcpyError),
    /// Reading or writing a frame.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Submitting a transfer.
    #[error(transparent)]
    Submit(SubmitError<u64>),
    /// Submitting several.
    #[error(transparent)]
    Batch(Box<BatchError<u64>>),
    /// A transfer that failed.
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
