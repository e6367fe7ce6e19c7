//! What can go wrong between a client and its service, one enum per operation. Failures of transfers are in `completion`.

use std::io;
use std::path::PathBuf;

use memferry_service::StartError;
use memferry_service::protocol::{Refusal, RefusalKind, Violation};
use memferry_shm::fork_guard::Forked;
use memferry_shm::frame::AllocateError;
use thiserror::Error;

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
    /// Memory of an arena is not granted or revoked itself.
    #[error("this is memory of an arena; derive a frame of it, keep that, and grant or revoke it")]
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
    /// The answer is none to what was asked.
    pub(crate) const UNEXPECTED: Self = Self::Protocol("it answered something else");

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
