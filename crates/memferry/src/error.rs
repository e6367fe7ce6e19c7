//! What can go wrong, one enum per operation. Failures of transfers come in completions, not here.

use std::io;
use std::path::PathBuf;

use memferry_service::StartError;
use memferry_service::protocol::{Refusal, RefusalKind, Violation};
use memferry_shm::fork_guard::Forked;
use memferry_shm::frame::AllocateError;
use memferry_shm::mapping::AccessError;
use thiserror::Error;

use crate::{
    AmemcpyError, BufferError, CopierError, CopyError, Frame, SubmitError, TransferError, WaitError,
};

/// A client could not be opened.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nobody listens there, or this user may not connect.
    #[error("cannot connect to the service at {}: {source}; is `memferry serve` running?", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Service and client do not agree.
    #[error("the service at {} ended the handshake: {violation}", path.display())]
    Handshake {
        /// Where.
        path: PathBuf,
        /// Why.
        violation: Violation,
    },
    /// The embedded service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The embedded service would not open a session.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The guard against use in a forked child could not be made.
    #[error("cannot set up the client: {0}")]
    Setup(io::Error),
}

/// A call to the control side failed.
#[derive(Debug, Error)]
pub enum CallError {
    /// The service would not do it; the client goes on.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The service ended the session.
    #[error("the service ended this session: {0}")]
    Ended(Violation),
    /// The service is gone; connect again.
    #[error("the service was lost; connect again")]
    ServiceLost,
    /// Memory of an arena is not granted itself.
    #[error("this is memory of an arena; derive a frame of it, keep that, and grant it")]
    PartOfArena,
    /// The command could not be sent; the client goes on.
    #[error("cannot send the command to the service: {0}")]
    Send(io::Error),
    /// The service answered something else than was asked.
    #[error("the service broke the protocol: {0}")]
    Protocol(&'static str),
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl CallError {
    /// Whether a revocation was refused because the capability was revoked before: that one waited too, so nothing touches the
    /// memory. Any other refusal promises nothing: a failed channel may still write there.
    pub fn is_revoked_before(&self) -> bool {
        matches!(self, Self::Refused(Refusal { kind: RefusalKind::Capability, .. }))
    }
}

impl From<Forked> for FrameError {
    fn from(forked: Forked) -> Self {
        Self::Call(forked.into())
    }
}

/// A frame could not be made.
#[derive(Debug, Error)]
pub enum FrameError {
    /// Memory could not be had.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The service would not take it.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Memory of this process can be registered only with an embedded service; the memory is given back.
    #[error("only an embedded client may register memory of its own process; allocate a frame instead")]
    NotEmbedded(Vec<u8>),
    /// Memory that its owner keeps can be lent only to an embedded service.
    #[error("only an embedded client may be lent memory of its own process; allocate a frame instead")]
    LentToService,
    /// The guard against use in a forked child could not be made.
    #[error("cannot guard an arena against forked children: {0}")]
    Guard(io::Error),
}

/// Memory was not given back; the frame is.
#[derive(Debug, Error)]
pub enum TakeBackError {
    /// Somebody else holds it too.
    #[error("{0:?} is held by a clone, a range or an unfinished transfer too; drop these first")]
    Shared(Frame),
    /// It was not made of memory of this process.
    #[error("{0:?} was not made of memory of this process")]
    NotOwned(Frame),
    /// The service could not be told.
    #[error("the service did not let go of {1:?}: {0}")]
    Call(CallError, Frame),
}

/// A queue could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The service would not.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The memory it sent could not be used.
    #[error("cannot map the queue: {0}")]
    Map(io::Error),
}

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
    /// Describing a transfer.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Submitting one.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// Waiting for one.
    #[error(transparent)]
    Wait(#[from] WaitError),
}
