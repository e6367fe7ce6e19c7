//! What comes back: tickets, and how the transfers they name have ended.
//!
//! ```text
//! Ticket<T> ─ wait ─┬─► Ok(Done<T>)         all was done; `output` is what was found
//!                   └─► Err(TransferError)  why not, and how far it came
//! TicketId            the same name without the type, for programs that keep tickets of several kinds
//! ```

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use memferry_transfer::{EngineKind, Failure};

/// No request has this tag.
pub(crate) const NO_TAG: u64 = u64::MAX;

/// Names one submitted transfer of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TicketId {
    /// The queue's identity, which no other queue of this process has.
    pub(crate) queue: u64,
    pub(crate) tag: u64,
}

impl TicketId {
    /// A name that no queue gives.
    pub const NONE: Self = Self { queue: u64::MAX, tag: NO_TAG };

    /// What tells it from the queue's other tickets, for programs in other languages to keep; see
    /// [`Queue::ticket`](crate::Queue::ticket).
    pub const fn tag(self) -> u64 {
        self.tag
    }
}

/// A submitted transfer that finds a `T`. Its end has to be taken from the queue: by waiting for it, by polling, or with all
/// others.
///
/// ```
/// # #![deny(unused_must_use)]
/// use memferry::{Client, Ticket, compare};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// frame.write(100, &[1])?;
/// let mut queue = client.queue(4)?;
/// let ticket: Ticket<Option<u64>> = queue.submit(compare(frame.slice(..2048), frame.slice(2048..)))?;
/// assert_eq!(queue.wait(ticket)?.output, Some(100));
/// # Ok::<(), memferry::Error>(())
/// ```
#[must_use = "the end of a transfer is learned by waiting for its ticket"]
pub struct Ticket<T = ()> {
    id: TicketId,
    output: PhantomData<fn() -> T>,
}

impl<T> Ticket<T> {
    #[inline]
    pub(crate) fn of(id: TicketId) -> Self {
        Self { id, output: PhantomData }
    }

    /// Its name.
    #[inline]
    pub fn id(self) -> TicketId {
        self.id
    }

    /// The same ticket, for whatever it finds as a number, as [`Transfer::untyped`](crate::Transfer::untyped).
    pub fn untyped(self) -> Ticket<u64> {
        Ticket::of(self.id)
    }
}

impl From<TicketId> for Ticket<u64> {
    fn from(id: TicketId) -> Self {
        Self::of(id)
    }
}

impl<T> From<Ticket<T>> for TicketId {
    fn from(ticket: Ticket<T>) -> Self {
        ticket.id
    }
}

impl<T> Clone for Ticket<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ticket<T> {}

impl<T> PartialEq for Ticket<T> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<T> Eq for Ticket<T> {}

impl<T> Hash for Ticket<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}.{})", self.id.queue, self.id.tag)
    }
}

/// A transfer did all that it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done<T = ()> {
    /// Names it, as its ticket does.
    pub id: TicketId,
    /// Bytes visited; those of a transfer in a loop in all rounds.
    pub bytes_done: u64,
    /// What was found.
    pub output: T,
    /// What moved the bytes.
    pub engine: EngineKind,
}

/// A transfer did not do all that it was asked for, or nobody can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferError {
    /// Names the transfer, as its ticket does; [`TicketId::NONE`] where the failure is of no transfer.
    pub id: TicketId,
    /// Why not.
    pub failure: Failure,
    /// Bytes visited before, in the operation's order.
    pub bytes_done: u64,
    /// The failure is that of an earlier transfer this one was linked to.
    pub inherited: bool,
    /// What moved the bytes; [`EngineKind::None`] where no engine began.
    pub engine: EngineKind,
}

impl TransferError {
    /// A failure without any engine, as far as this client can learn.
    pub(crate) fn without_engine(id: TicketId, failure: Failure) -> Self {
        Self { id, failure, bytes_done: 0, inherited: false, engine: EngineKind::None }
    }

    /// Whether nobody touches the memory of the transfer any more. It is not so when the end could not be learned
    /// ([`Failure::ServiceLost`], [`Failure::UnknownTicket`], [`Failure::Forked`]), nor when the engine channel that had the
    /// transfer failed ([`Failure::ChannelFaulted`]): what that still writes, it may write at any time. Memory of an arena is
    /// given to nobody else then; what a program keeps for itself or has granted it has to leave alone, until
    /// [`Frame::revoke`](crate::Frame::revoke) of it has succeeded.
    pub fn is_settled(&self) -> bool {
        is_settled(self.failure, self.engine)
    }
}

fn is_settled(failure: Failure, engine: EngineKind) -> bool {
    match failure {
        Failure::ServiceLost | Failure::UnknownTicket | Failure::Forked => false,
        // Without an engine it was refused: all channels had failed before.
        Failure::ChannelFaulted => engine == EngineKind::None,
        _ => true,
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.inherited {
            f.write_str("the transfer was linked to one that failed: ")?;
        }
        self.failure.fmt(f)?;
        match self.bytes_done {
            0 => Ok(()),
            bytes => write!(f, " ({bytes} bytes were done before)"),
        }
    }
}

impl std::error::Error for TransferError {}

/// The end of a transfer as the queue keeps it until it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) id: TicketId,
    /// What was found, as a number, unless it failed.
    pub(crate) outcome: Result<u64, Failure>,
    pub(crate) inherited: bool,
    pub(crate) bytes_done: u64,
    pub(crate) engine: EngineKind,
    /// Bytes that the whole transfer visits.
    pub(crate) length: u64,
}

impl Completion {
    pub(crate) fn without_engine(id: TicketId, failure: Failure) -> Self {
        let engine = EngineKind::None;
        Self { id, outcome: Err(failure), inherited: false, bytes_done: 0, engine, length: 0 }
    }

    #[inline]
    pub(crate) fn into_result<T: Output>(self) -> Result<Done<T>, TransferError> {
        let Self { id, outcome, inherited, bytes_done, engine, length } = self;
        match outcome {
            Ok(value) => Ok(Done { id, bytes_done, output: T::of(value, length), engine }),
            Err(failure) => Err(TransferError { id, failure, bytes_done, inherited, engine }),
        }
    }

    /// As [`TransferError::is_settled`].
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.outcome.err().is_none_or(|failure| is_settled(failure, self.engine))
    }
}

/// What transfers find: nothing, a number, a CRC, or the offset of a difference.
pub trait Output: sealed::Output + Copy + fmt::Debug + Send + 'static {}

impl Output for () {}
impl Output for u32 {}
impl Output for u64 {}
impl Output for Option<u64> {}

mod sealed {
    pub trait Output: Sized {
        /// What a completion's number says, of a transfer of `length` bytes.
        fn of(value: u64, length: u64) -> Self;
    }

    impl Output for () {
        fn of(_: u64, _: u64) -> Self {}
    }

    impl Output for u32 {
        fn of(value: u64, _: u64) -> Self {
            value as Self
        }
    }

    impl Output for u64 {
        fn of(value: u64, _: u64) -> Self {
            value
        }
    }

    impl Output for Option<u64> {
        fn of(value: u64, length: u64) -> Self {
            (value < length).then_some(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(failure: Failure, engine: EngineKind) -> TransferError {
        TransferError { engine, ..TransferError::without_engine(TicketId::NONE, failure) }
    }

    #[test]
    fn only_a_known_end_is_settled() {
        for unknown in [Failure::ServiceLost, Failure::UnknownTicket, Failure::Forked] {
            assert!(!error(unknown, EngineKind::None).is_settled());
        }
        assert!(!error(Failure::ChannelFaulted, EngineKind::Module).is_settled());
        assert!(error(Failure::ChannelFaulted, EngineKind::None).is_settled(), "no engine had it");
        assert!(error(Failure::Cancelled, EngineKind::Cpu).is_settled());
    }

    #[test]
    fn a_comparison_finds_nothing_at_its_end() {
        let of = |value, length| <Option<u64> as sealed::Output>::of(value, length);
        assert_eq!([of(0, 0), of(9, 9), of(0, 9), of(8, 9)], [None, None, Some(0), Some(8)]);
    }

    #[test]
    fn messages_name_the_link_and_the_bytes() {
        let plain = TransferError::without_engine(TicketId::NONE, Failure::Cancelled);
        assert_eq!(plain.to_string(), "cancelled");
        let inherited = TransferError { inherited: true, ..plain };
        assert_eq!(inherited.to_string(), "the transfer was linked to one that failed: cancelled");
        let partly = TransferError { bytes_done: 64, ..plain };
        assert_eq!(partly.to_string(), "cancelled (64 bytes were done before)");
    }
}
