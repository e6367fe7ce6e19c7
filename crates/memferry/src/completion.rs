//! Tickets, and the results of the transfers that they name.
//!
//! ```text
//! Ticket<T> ─ wait ─┬─► Ok(Done<T>)         success; `output` is the operation's value
//!                   └─► Err(TransferError)  the failure, and the bytes done before
//! TicketId            the same name without the type, for programs that keep tickets of several types
//! ```

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use memferry_transfer::{EngineKind, Failure};

/// No request has this tag.
pub(crate) const NO_TAG: u64 = u64::MAX;

/// Names one submitted transfer of one queue; unique in this process.
///
/// ```
/// use memferry::{Client, nop};
///
/// let mut queue = Client::embedded()?.queue(4)?;
/// let ticket = queue.submit(nop())?;
/// let number = ticket.id().tag(); // for a program that keeps numbers
/// assert_eq!(queue.ticket(number), ticket.id());
/// queue.wait(ticket)?;
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TicketId {
    /// The queue's identity, which no other queue of this process has.
    pub(crate) queue: u64,
    pub(crate) tag: u64,
}

impl TicketId {
    /// An id that names no transfer.
    pub const NONE: Self = Self { queue: u64::MAX, tag: NO_TAG };

    /// A number that identifies the ticket among those of its queue, for bindings to other languages.
    /// [`Queue::ticket`](crate::Queue::ticket) turns it back into an id.
    pub const fn tag(self) -> u64 {
        self.tag
    }
}

/// Names a submitted transfer whose output is a `T`. Its completion has to be taken from the queue with a wait or a poll.
///
/// ```
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
#[must_use = "wait for the ticket to learn whether the transfer succeeded"]
pub struct Ticket<T = ()> {
    id: TicketId,
    output: PhantomData<fn() -> T>,
}

impl<T> Ticket<T> {
    #[inline]
    pub(crate) fn of(id: TicketId) -> Self {
        Self { id, output: PhantomData }
    }

    /// The same name without the output type.
    #[inline]
    pub fn id(self) -> TicketId {
        self.id
    }

    /// The same ticket with the output as a number, as [`Transfer::untyped`](crate::Transfer::untyped).
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

/// The result of a successful transfer.
///
/// ```
/// use memferry::{Client, EngineKind, crc32c};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let done = client.queue(4)?.run(crc32c(&frame))?;
/// assert_eq!((done.bytes_done, done.engine), (4096, EngineKind::Cpu));
/// let crc: u32 = done.output;
/// # let _ = crc;
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done<T = ()> {
    /// The transfer, as its ticket names it.
    pub id: TicketId,
    /// Bytes visited; for a transfer in a loop, the sum over all rounds.
    pub bytes_done: u64,
    /// The value that the operation computed.
    pub output: T,
    /// The kind of engine that did the transfer.
    pub engine: EngineKind,
}

/// The result of a transfer that failed or whose outcome is unknown.
///
/// ```
/// use memferry::{Client, Failure, Pattern, RunError, fill};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let Err(RunError::Transfer(error)) = client.queue(4)?.run(fill(frame.slice(..5), Pattern::Word(1))) else {
///     panic!("5 bytes are no whole words")
/// };
/// assert_eq!((error.failure, error.bytes_done), (Failure::FillLength { pattern_bytes: 4 }, 0));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferError {
    /// The transfer, as its ticket names it; [`TicketId::NONE`] if the failure belongs to no transfer.
    pub id: TicketId,
    /// Why the transfer failed.
    pub failure: Failure,
    /// Bytes visited before the failure, in the order of the operation. An engine process that failed may have visited more.
    pub bytes_done: u64,
    /// Whether the failure is that of an earlier transfer that this one was linked to.
    pub inherited: bool,
    /// The kind of engine that had the transfer; [`EngineKind::None`] if none started it.
    pub engine: EngineKind,
}

impl TransferError {
    /// A failure in which no engine took part as far as the client knows.
    pub(crate) fn without_engine(id: TicketId, failure: Failure) -> Self {
        Self { id, failure, bytes_done: 0, inherited: false, engine: EngineKind::None }
    }

    /// Whether the engine has stopped touching the memory of the transfer. False if the outcome is unknown
    /// ([`Failure::ServiceLost`], [`Failure::UnknownTicket`], [`Failure::Forked`]), and if the engine channel failed
    /// ([`Failure::ChannelFaulted`]): late writes may then arrive at any time. Arenas do not reuse such memory. A program must not
    /// use other such memory before [`Frame::revoke`](crate::Frame::revoke) of it has succeeded.
    pub fn is_settled(&self) -> bool {
        is_settled(self.failure, self.engine)
    }
}

fn is_settled(failure: Failure, engine: EngineKind) -> bool {
    match failure {
        Failure::ServiceLost | Failure::UnknownTicket | Failure::Forked => false,
        // Without an engine the transfer was refused, because all channels had failed before.
        Failure::ChannelFaulted => engine == EngineKind::None,
        _ => true,
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.inherited {
            f.write_str("a transfer that this one is linked to failed: ")?;
        }
        self.failure.fmt(f)?;
        match self.bytes_done {
            0 => Ok(()),
            bytes => write!(f, " (after {bytes} bytes)"),
        }
    }
}

impl std::error::Error for TransferError {}

/// The outcome of a transfer, kept by the queue until it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) id: TicketId,
    /// The output as a number, or the failure.
    pub(crate) outcome: Result<u64, Failure>,
    pub(crate) inherited: bool,
    pub(crate) bytes_done: u64,
    pub(crate) engine: EngineKind,
    /// Bytes of the whole transfer.
    pub(crate) length: u64,
}

impl Completion {
    /// A success of the CPU engine that did all bytes and computed no value.
    #[inline]
    pub(crate) fn plain_success(id: TicketId, length: u64) -> Self {
        let engine = EngineKind::Cpu;
        Self { id, outcome: Ok(0), inherited: false, bytes_done: length, engine, length }
    }

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

/// The output types of transfers: `()` for moves, `u32` for CRCs, `Option<u64>` for the offset of a difference, `u64` for
/// rounds of a loop and untyped transfers.
///
/// ```
/// use memferry::{Client, Output, Queue, Transfer, compare, crc32c};
///
/// fn output_of<T: Output>(queue: &mut Queue, transfer: Transfer<T>) -> Result<T, memferry::Error> {
///     Ok(queue.run(transfer)?.output)
/// }
///
/// let client = Client::embedded()?;
/// let frame = client.frame(8192).alloc()?;
/// let mut queue = client.queue(4)?;
/// assert_eq!(output_of(&mut queue, compare(frame.slice(..4096), frame.slice(4096..)))?, None);
/// let crc: u32 = output_of(&mut queue, crc32c(&frame))?;
/// # let _ = crc;
/// # Ok::<(), memferry::Error>(())
/// ```
pub trait Output: sealed::Output + Copy + fmt::Debug + Send + 'static {}

impl Output for () {}
impl Output for u32 {}
impl Output for u64 {}
impl Output for Option<u64> {}

mod sealed {
    pub trait Output: Sized {
        /// Converts the number in a completion of a transfer of `length` bytes.
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
    fn unknown_outcomes_are_not_settled() {
        for unknown in [Failure::ServiceLost, Failure::UnknownTicket, Failure::Forked] {
            assert!(!error(unknown, EngineKind::None).is_settled());
        }
        assert!(!error(Failure::ChannelFaulted, EngineKind::Module).is_settled());
        assert!(error(Failure::ChannelFaulted, EngineKind::None).is_settled(), "no engine had the transfer");
        assert!(error(Failure::Cancelled, EngineKind::Cpu).is_settled());
    }

    #[test]
    fn an_offset_at_the_end_means_no_difference() {
        let of = |value, length| <Option<u64> as sealed::Output>::of(value, length);
        assert_eq!([of(0, 0), of(9, 9), of(0, 9), of(8, 9)], [None, None, Some(0), Some(8)]);
    }

    #[test]
    fn messages_name_the_link_and_the_bytes() {
        let plain = TransferError::without_engine(TicketId::NONE, Failure::Cancelled);
        assert_eq!(plain.to_string(), "cancelled");
        let inherited = TransferError { inherited: true, ..plain };
        assert_eq!(inherited.to_string(), "a transfer that this one is linked to failed: cancelled");
        let partly = TransferError { bytes_done: 64, ..plain };
        assert_eq!(partly.to_string(), "cancelled (after 64 bytes)");
    }
}
