//! The errors of connections and messages, one enum per operation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use memferry::{AccessError, CallError, Failure, Forked, OpenError, SubmitReason};
use memferry_shm::frame::AllocateError;
use rustix::io::Errno;
use thiserror::Error;

use crate::wire::Violation;

/// Whether a system call failed for lack of a resource of this process or machine, rather than by a fault of the peer.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN)
}

/// Why two processes were not connected.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The socket could not be made, bound or connected.
    #[error("cannot use the socket {}: {source}; does the other process listen there?", path.display())]
    Socket { path: PathBuf, source: io::Error },
    /// A system call on a connected socket failed.
    #[error("cannot connect the two processes ({step}): {source}")]
    System { step: &'static str, source: io::Error },
    /// This end's memory could not be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The service did not identify a session.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No valid handshake came in time.
    #[error("the handshake failed: {0}")]
    Handshake(&'static str),
    /// No process connected in time.
    #[error("no process connected in time")]
    TimedOut,
    /// This process lacks the resources to map the other's memory. The other process is not at fault.
    #[error(
        "this process cannot map the other's memory ({step}): {source}; release descriptors or memory and connect again"
    )]
    Shortage { step: &'static str, source: io::Error },
    /// Too many received descriptors are not closed yet; a peer may have sent some that close slowly on purpose. Restrict the
    /// socket's directory to trusted users.
    #[error("{pending} descriptors from other processes are not closed yet; connect again later")]
    Closing { pending: u32 },
    /// The other process holds the memory that it sent, so that it could not be sealed and mapped in time.
    #[error("the other process holds the memory that it sent: it could not be admitted within {limit:?}")]
    Held { limit: Duration },
    /// Earlier memory of this user still holds threads of this process. The user's processes are refused until it is released.
    #[error(
        "user {user} holds memory that {stuck} threads of this process are admitting; end the processes that hold it"
    )]
    Holding { user: u32, stuck: u32 },
    /// The other process sent memory that is not safe to map, or made a false statement.
    #[error("the other process broke the handshake: {0}")]
    Violation(#[from] Violation),
    /// The name of a channel is not one.
    #[error("{0:?} is no name of a channel: 1 to 32 letters, digits, dots, hyphens and underscores")]
    Name(String),
    /// More users may connect than a link can be asked for.
    #[error("{given} users are to be let in; a channel takes up to {most}")]
    Users {
        given: usize,
        /// The most that are possible.
        most: usize,
    },
    /// The link of this node does not connect the two.
    #[error(transparent)]
    Link(#[from] LinkRefusal),
    /// Nobody of the other node answered in time.
    #[error(
        "{user} does not listen as {name:?}, or does not let this user in, or its node is slow: nobody answered in time"
    )]
    Unanswered { user: crate::RemoteUser, name: String },
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why the link of this node does not connect a process to another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LinkRefusal {
    /// The link does not know the node.
    #[error("the link of this node does not know that node; name it below [peers] in link.toml")]
    UnknownNode,
    /// The two nodes are not connected now.
    #[error("the link of this node has no connection to that node; memferry-link status says why")]
    NotConnected,
    /// This user, or the two nodes, have as many channels as they may have.
    #[error("this user, or the two nodes, have as many channels as they may have; close others first")]
    TooMany,
    /// The other node did not open the channel, or its connection broke.
    #[error("the other node refused the channel, or the connection to it broke; try again")]
    Broken,
    /// The link takes no request of this user now: too many are under way, or it lacks descriptors, memory or threads.
    #[error("the link of this node is busy with other requests, or lacks memory or descriptors; try again")]
    Busy,
}

impl ConnectError {
    /// Whether this process or its service lacks something, and the other process did nothing wrong.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::Shortage { .. } | Self::Allocate(_) | Self::Call(_) => true,
            Self::System { source, .. } => Errno::from_io_error(source).is_some_and(is_shortage),
            _ => false,
        }
    }
}

impl LinkRefusal {
    pub(crate) const ALL: [Self; 5] =
        [Self::UnknownNode, Self::NotConnected, Self::TooMany, Self::Broken, Self::Busy];
}

/// Why a message was not sent.
#[derive(Debug, Error)]
pub enum SendError {
    /// The message is longer than this connection allows.
    #[error(
        "the message has {length} bytes and this connection takes up to {longest}; send it in parts or lend a frame"
    )]
    TooLong { length: u64, longest: u64 },
    /// The region ends before it begins.
    #[error("the slice {start}..{end} ends before it begins")]
    Inverted { start: u64, end: u64 },
    /// The range exceeds its frame.
    #[error("{length} bytes at offset {offset} exceed the frame's {available} bytes")]
    OutOfRange {
        offset: u64,
        length: u64,
        /// Bytes of the frame.
        available: u64,
    },
    /// The other end made no room in time. A message that was sent in part is dropped there.
    #[error("the other end made no room in time; receive its messages faster or wait longer")]
    TimedOut,
    /// The other end takes no more messages.
    #[error("the other end takes no more messages")]
    Closed,
    /// The other process is gone.
    #[error("the other process is gone; connect again")]
    PeerLost,
    /// The other end broke the protocol; the connection is unusable.
    #[error("the other end broke the protocol: {0}")]
    Broken(Violation),
    /// The two processes have different services, so neither can accept the other's grants.
    #[error(
        "the two processes have different services (an embedded service belongs to one process); lend the frame mapped"
    )]
    OtherService,
    /// The other process is on another node, where the memory cannot be mapped.
    #[error("the other process is on another node and cannot map memory of this one; use lend")]
    OtherNode,
    /// The frame belongs to another client, so this one cannot grant it.
    #[error("the frame does not belong to this sender's client; lend it mapped")]
    ForeignFrame,
    /// The grant was refused.
    #[error(transparent)]
    Grant(#[from] CallError),
    /// The channel has ended, and the other end may still use a grant, because it could not be revoked yet. The next call tries again.
    #[error("the channel has ended, and a grant could not be revoked yet ({0}); call again")]
    Unrevoked(CallError),
    /// The descriptor could not be sent.
    #[error("cannot send a descriptor to the other process: {0}")]
    Descriptor(io::Error),
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why no message was received.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// No message came in time.
    #[error("no message came in time")]
    TimedOut,
    /// The other end sends no more; all its messages were received.
    #[error("the other end sends no more messages")]
    Closed,
    /// The other process is gone; all its messages were received.
    #[error("the other process is gone; connect again")]
    PeerLost,
    /// The other end broke the protocol; the connection is unusable.
    #[error("the other end broke the protocol: {0}")]
    Broken(Violation),
    /// A message lends a frame whose grant cannot be accepted, for example a revoked one, or one that the link of the other node could
    /// not check. The connection remains usable.
    #[error("message of kind {kind} lends a frame that cannot be accepted: {source}")]
    Refused { kind: u32, source: CallError },
    /// A message lends a frame that this process lacks the resources to map. The connection remains usable. The next message
    /// that lends the frame tries again; if its descriptor was lost, the other end must forget the frame first.
    #[error(
        "message of kind {kind} lends a frame that cannot be mapped: {source}; release descriptors or memory"
    )]
    Shortage { kind: u32, source: io::Error },
    /// The other process holds memory that it sent, so that it could not be sealed and mapped within [`Options::admission`], or
    /// eight threads of this process are stuck in memory of its user already. The connection is unusable.
    ///
    /// [`Options::admission`]: crate::Options::admission
    #[error(
        "the other process holds memory that it sent: it could not be admitted within {limit:?}; the connection has ended"
    )]
    Held { limit: Duration },
    /// The other end's memory failed under a message; the connection is unusable.
    #[error("the other process's memory failed while a message was read; connect again")]
    MemoryFault,
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a mapped range was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// The bytes are outside the lent range, or the range is not mapped.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The memory failed; the bytes read are invalid.
    #[error("the other process's memory failed while it was read")]
    MemoryFault,
}

/// Why a lent range was not pulled.
#[derive(Debug, Error)]
pub enum PullReason {
    /// The range is mapped here; the engine needs a grant.
    #[error("the range was lent mapped; copy it with this process's CPU")]
    Mapped,
    /// The destination is too short.
    #[error(
        "the lent range has {lent} bytes and the destination {available}; pull to a range at least as long"
    )]
    Length {
        lent: u64,
        /// Bytes of the destination.
        available: u64,
    },
    /// The queue to the engine could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The transfer was not submitted.
    #[error(transparent)]
    Submit(#[from] SubmitReason),
}

/// Why the oldest pull did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FinishError {
    #[error("no pull is in progress")]
    Nothing,
    /// The pull did not end in time; it continues.
    #[error("the range was not pulled in time; the pull continues")]
    TimedOut,
    /// The engine failed: a revoked grant, or a process or service that ended. The destination may be partly written.
    #[error("message of kind {kind} was not pulled: {failure}")]
    Failed { kind: u32, failure: Failure },
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}
