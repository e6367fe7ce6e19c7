//! Descriptions of transfers: a request and the frames that it keeps alive.
//!
//! ```text
//! copy, fill, scatter_gather, ... of regions ─► Transfer ─ terms ─► Queue::submit, Queue::run
//! ```
//!
//! Creating a description never fails. Lengths and counts are checked here, and errors are reported on submission. The service
//! checks rights and bounds.

mod operations;
mod work;

pub use operations::{
    compare, copy, copy_2d, copy_crc32c, crc32c, dual_copy, fill, fill_2d, nop, repeat, scatter_gather, xor,
    zero,
};

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use memferry_clock::Clock;
use memferry_service::MonotonicClock;
use memferry_transfer::wire::SlotError;
use memferry_transfer::{CacheHint, MAX_SEGMENTS, MAX_SOURCES, PriorityClass, Request, Side, WhenBusy};
use smallvec::SmallVec;
use thiserror::Error;

use crate::frame::Frame;
pub(crate) use work::Work;

/// The description of a transfer contradicts itself.
///
/// ```
/// use memferry::{Client, InvalidTransfer, SubmitReason, copy};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let refused = client.queue(2)?.submit(copy(&frame, frame.slice(..100))).unwrap_err();
/// let expected = InvalidTransfer::TooShort { source_bytes: 4096, destination_bytes: 100 };
/// assert_eq!(refused.reason, SubmitReason::Invalid(expected));
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InvalidTransfer {
    /// The destination is shorter than the source.
    #[error("the source's {source_bytes} bytes do not fit into the destination's {destination_bytes} bytes")]
    TooShort {
        /// Length of the source in bytes.
        source_bytes: u64,
        /// Length of the destination in bytes.
        destination_bytes: u64,
    },
    /// Two regions, or the sums of two lists, must have the same length and differ.
    #[error("{one_bytes} bytes on one side and {other_bytes} on the other; the lengths must be equal")]
    Unequal {
        /// Length of the first region or list in bytes.
        one_bytes: u64,
        /// Length of the other region or list in bytes.
        other_bytes: u64,
    },
    /// A list has more than 1024 segments.
    #[error("{count} segments in the {side}, at most {MAX_SEGMENTS} are allowed; split the transfer")]
    Segments {
        /// The list that is too long.
        side: Side,
        /// The number of its segments.
        count: usize,
    },
    /// The number of sources is not in 1 to 64.
    #[error("{count} sources in one transfer, 1 to {MAX_SOURCES} are allowed; split the transfer")]
    Sources {
        /// The number of sources.
        count: usize,
    },
    /// A slice ends before it begins.
    #[error("the {side} is the slice {start}..{end}, which ends before it begins")]
    Inverted {
        /// The operand that is the slice.
        side: Side,
        /// The slice's first byte.
        start: u64,
        /// The byte after the slice's last; for an open end, the length of the frame.
        end: u64,
    },
    /// The sum of region offset and start of a 2-D walk does not fit into 64 bits.
    #[error(transparent)]
    Walk(SlotError),
}

/// The frames that a transfer keeps alive until its completion is taken.
pub(crate) type Held = SmallVec<[Frame; 2]>;

/// A transfer without its output type.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) work: Work,
    pub(crate) held: Held,
    /// The first error in the description.
    pub(crate) invalid: Option<Box<InvalidTransfer>>,
}

/// Describes an operation on regions and its terms. The output `T` is `()` for moves, `u32` for CRCs, `Option<u64>` for
/// comparisons and `u64` for loops. A transfer keeps its frames alive until its completion is taken.
///
/// ```
/// use memferry::{CacheHint, Client, copy};
/// use std::time::Duration;
///
/// let client = Client::embedded()?;
/// let source = client.frame(4096).alloc()?;
/// let destination = client.frame(4096).alloc()?;
/// let transfer = copy(&source, &destination).with_hint(CacheHint::Stream).within(Duration::from_secs(5));
/// client.queue(4)?.run(transfer)?;
/// # Ok::<(), memferry::Error>(())
/// ```
#[must_use = "a transfer does nothing until it is submitted"]
pub struct Transfer<T = ()> {
    pub(crate) description: Description,
    output: PhantomData<fn() -> T>,
}

impl<T> Transfer<T> {
    #[inline(always)]
    fn new(request: Request, held: Held, invalid: Option<InvalidTransfer>) -> Self {
        Self {
            description: Description { work: Work::of(request), held, invalid: invalid.map(Box::new) },
            output: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) const fn of_description(description: Description) -> Self {
        Self { description, output: PhantomData }
    }

    /// Changes the output to a number, for batches of several types. A comparison gives the offset of the difference, or the
    /// length if there is none; a move gives 0.
    pub fn untyped(self) -> Transfer<u64> {
        Transfer { description: self.description, output: PhantomData }
    }

    /// Links the next transfer of the queue to this one: it starts when this one has succeeded, and fails with this one's
    /// failure otherwise.
    pub fn linked(mut self) -> Self {
        self.description.work.change_terms(|terms| terms.linked = true);
        self
    }

    /// Delays the start until all transfers submitted to the queue before have ended.
    pub fn fenced(mut self) -> Self {
        self.description.work.change_terms(|terms| terms.fenced = true);
        self
    }

    /// Sets a hint for the use of the CPU caches.
    pub fn with_hint(mut self, hint: CacheHint) -> Self {
        self.description.work.change_terms(|terms| terms.hint = hint);
        self
    }

    /// Sets the priority class, which orders transfers that wait for an engine channel.
    pub fn with_class(mut self, class: PriorityClass) -> Self {
        self.description.work.change_terms(|terms| terms.class = class);
        self
    }

    /// Makes the transfer fail with [`Failure::ChannelsBusy`](crate::Failure::ChannelsBusy) instead of waiting when all engine
    /// channels are busy.
    pub fn refuse_when_busy(mut self) -> Self {
        self.description.work.change_terms(|terms| terms.when_busy = WhenBusy::Refuse);
        self
    }

    /// Sets the time at which the transfer fails with [`Failure::DeadlineExceeded`](crate::Failure::DeadlineExceeded) if it has
    /// not ended.
    pub fn with_deadline(self, deadline: Instant) -> Self {
        self.within(deadline.saturating_duration_since(Instant::now()))
    }

    /// Sets the deadline to `limit` from now, as [`with_deadline`](Self::with_deadline).
    pub fn within(mut self, limit: Duration) -> Self {
        let deadline = MonotonicClock.now().after(limit);
        self.description.work.change_terms(|terms| terms.deadline = Some(deadline));
        self
    }
}

impl<T> Clone for Transfer<T> {
    fn clone(&self) -> Self {
        Self { description: self.description.clone(), output: PhantomData }
    }
}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { work, held, invalid } = &self.description;
        let mut shown = f.debug_struct("Transfer");
        shown.field("request", work.request().as_ref()).field("frames", held);
        if let Some(invalid) = invalid {
            shown.field("invalid", invalid);
        }
        shown.finish()
    }
}

#[cfg(test)]
impl Transfer {
    /// A transfer made from a request by a test; it keeps no frames alive.
    pub(crate) fn of(request: Request) -> Self {
        Self::new(request, Held::new(), None)
    }
}
