//! What can go wrong, one enum per operation.

use std::io;
use std::path::PathBuf;

use memferry::{AccessError, CallError, Failure, Forked, OpenError, SubmitReason};
use memferry_shm::frame::AllocateError;
use thiserror::Error;

use crate::receiver::LentFrame;
use crate::wire::Violation;

/// Two processes were not connected.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The socket could not be made, bound or connected.
    #[error("cannot use the socket {}: {source}; does the other process listen there?", path.display())]
    Socket { path: PathBuf, source: io::Error },
    /// A system call on a connected socket failed.
    #[error("cannot connect the two processes ({step}): {source}")]
    System { step: &'static str, source: io::Error },
    /// The memory of this end could not be had.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The service could not be asked who it is.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Nothing that is understood came in time.
    #[error("the other process does not shake hands: {0}")]
    Handshake(&'static str),
    /// Nobody came in time.
    #[error("nobody connected in time")]
    TimedOut,
    /// This process has not what it takes to map the other's memory. The other one is not to blame.
    #[error(
        "this process cannot take the other's memory ({step}): {source}; close something and connect again"
    )]
    Shortage { step: &'static str, source: io::Error },
    /// Too many descriptors that other processes sent are not closed yet: some of them were made to be slow to close. Who may
    /// connect is a matter of the socket's directory.
    #[error("{pending} descriptors that other processes sent are not closed yet; connect again later")]
    Closing { pending: u32 },
    /// The other process sent memory that is not safe to map, or said what is not so.
    #[error("the other process broke the handshake: {0}")]
    Violation(#[from] Violation),
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A message was not sent.
#[derive(Debug, Error)]
pub enum SendError {
    /// It is longer than messages of this connection may be.
    #[error(
        "a message of {length} bytes; this connection takes up to {longest}, send it in parts or lent a frame"
    )]
    TooLong { length: u64, longest: u64 },
    /// The range leaves its frame.
    #[error("{length} bytes at {offset} leave the frame's {available}")]
    OutOfRange {
        offset: u64,
        length: u64,
        /// Bytes of the frame.
        available: u64,
    },
    /// There was no room in time: the other end is behind. A message of several pieces that was begun is dropped there.
    #[error("the other end did not make room in time; it is behind")]
    TimedOut,
    /// The other end takes no more messages.
    #[error("the other end takes no more messages")]
    Closed,
    /// The other process is gone.
    #[error("the other process is gone; connect again")]
    PeerLost,
    /// The other end broke the protocol; the connection is of no use any more.
    #[error("the other end broke the protocol: {0}")]
    Broken(Violation),
    /// The two processes have different services, so neither can accept what the other grants.
    #[error(
        "the two processes have different services (an embedded one is the process's own); lent the frame mapped"
    )]
    OtherService,
    /// The frame is another client's, so this one cannot grant it.
    #[error("the frame belongs to another client than the one this sender was opened with; lent it mapped")]
    ForeignFrame,
    /// The grant was refused.
    #[error(transparent)]
    Grant(#[from] CallError),
    /// The descriptor could not be sent.
    #[error("cannot send a descriptor to the other process: {0}")]
    Descriptor(io::Error),
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

#[derive(Debug, Error)]
pub enum ReceiveError {
    /// None came in time.
    #[error("no message came in time")]
    TimedOut,
    /// The other end will send no more, and all it sent was received.
    #[error("the other end sends no more messages")]
    Closed,
    /// The other process is gone, and all it sent was received.
    #[error("the other process is gone; connect again")]
    PeerLost,
    /// The other end broke the protocol; the connection is of no use any more.
    #[error("the other end broke the protocol: {0}")]
    Broken(Violation),
    /// A frame was lent whose grant cannot be taken up, as when it was revoked; the connection goes on.
    #[error("message of kind {kind} lends a frame that cannot be had: {source}")]
    Refused { kind: u32, source: CallError },
    /// A frame was lent mapped and this process has not what it takes to map it; the connection goes on. It is tried again
    /// with the next lent of it; without its descriptor the other end has to forget the frame first.
    #[error("message of kind {kind} lends a frame that this process cannot map: {source}; close something")]
    Shortage { kind: u32, source: io::Error },
    /// Memory that the other process wrote a message to has failed; the connection is of no use any more.
    #[error("the other process's memory failed while a message was read; connect again")]
    MemoryFault,
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A range that was lent mapped was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// Outside the lent, or the lent is no mapped memory.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The memory failed; what was read is worth nothing.
    #[error("the other process's memory failed while it was read")]
    MemoryFault,
}

/// Why an lent range was not pulled.
#[derive(Debug, Error)]
pub enum PullReason {
    /// It is mapped here, and no capability the engine could use.
    #[error("the range was lent mapped; copy it with this process's CPU")]
    Mapped,
    /// The destination has not its length.
    #[error("{lent} bytes were lent and the destination has {available}; pull them to a range as long")]
    Length {
        lent: u64,
        /// Bytes of the destination.
        available: u64,
    },
    /// The channel to the engine could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The transfer was not submitted.
    #[error(transparent)]
    Submit(#[from] SubmitReason),
}

/// A range was not pulled; the lent is given back.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct PullError {
    pub reason: PullReason,
    pub lent: LentFrame,
}

/// The oldest pull has not ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FinishError {
    #[error("nothing is being pulled")]
    Nothing,
    /// It was not done in time; it goes on.
    #[error("the range was not there in time; it is still being pulled")]
    TimedOut,
    /// The engine could not do it: revoked, a process or the service gone. The destination holds any of old and new bytes.
    #[error("message of kind {kind} was not pulled: {failure}")]
    Failed { kind: u32, failure: Failure },
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}
