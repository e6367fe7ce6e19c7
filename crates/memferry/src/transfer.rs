//! Transfers as a client describes them: a request together with the frames it keeps alive.
//!
//! ```text
//! copy, fill, scatter_gather, ... of regions ─► Transfer ─ terms ─► Queue::submit, Queue::run
//! ```
//!
//! Describing never fails. What can be judged without the service (lengths, counts) is judged here and reported when the transfer
//! is submitted; rights and bounds are the service's to check.

mod operations;

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
use memferry_transfer::{CacheHint, MAX_SEGMENTS, MAX_SOURCES, PriorityClass, Request, Side};
use smallvec::SmallVec;
use thiserror::Error;

use crate::frame::Frame;

/// Why a transfer cannot be: its description contradicts itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InvalidTransfer {
    /// The destination is shorter than the source.
    #[error("{source_bytes} bytes do not fit the destination's {destination_bytes}")]
    TooShort {
        /// Bytes of the source.
        source_bytes: u64,
        /// Bytes of the destination.
        destination_bytes: u64,
    },
    /// Regions, or all segments of two lists, have to be equally long and are not.
    #[error("{one_bytes} bytes on one side and {other_bytes} on the other; they have to be equal")]
    Unequal {
        /// Bytes of the first.
        one_bytes: u64,
        /// Bytes of the other.
        other_bytes: u64,
    },
    /// More segments than one request may name.
    #[error("{count} segments in the {side}; there may be up to {MAX_SEGMENTS}, split it")]
    Segments {
        /// In which list.
        side: Side,
        /// How many.
        count: usize,
    },
    /// More sources than one request may name, or none.
    #[error("{count} sources in one transfer; there may be 1 to {MAX_SOURCES}, split it")]
    Sources {
        /// How many.
        count: usize,
    },
    /// A slice ends before it begins.
    #[error("the {side} is the slice {start}..{end}, which ends before it begins")]
    Inverted {
        /// Which operand.
        side: Side,
        /// Its first byte.
        start: u64,
        /// The byte after its last; the frame's length where no other end was given.
        end: u64,
    },
    /// Offset and start of a 2-D walk do not fit 64 bits.
    #[error(transparent)]
    Walk(SlotError),
}

/// What a transfer keeps alive until its completion was taken.
pub(crate) type Held = SmallVec<[Frame; 2]>;

/// A transfer without the type of what it finds.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) request: Request,
    pub(crate) held: Held,
    /// The first thing that is wrong with it.
    pub(crate) invalid: Option<InvalidTransfer>,
}

/// What is to be moved, on which terms, and what is found (`T`): nothing for moves, `u32` for CRCs, `Option<u64>` for
/// comparisons, `u64` for loops. Holds its frames until its completion was taken.
///
/// ```
/// # #![deny(unused_must_use)]
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
    #[inline]
    fn new(request: Request, held: Held, invalid: Option<InvalidTransfer>) -> Self {
        Self { description: Description { request, held, invalid }, output: PhantomData }
    }

    /// The same transfer, whatever it finds as a number: for batches of several kinds. A comparison finds the length when there
    /// is no difference; a move finds 0.
    pub fn untyped(self) -> Transfer<u64> {
        Transfer { description: self.description, output: PhantomData }
    }

    /// The same transfer; the next one of the queue starts when it has succeeded, and fails as it did if it fails.
    pub fn linked(mut self) -> Self {
        self.description.request.terms.linked = true;
        self
    }

    /// The same transfer, started when everything submitted to the queue before it has ended.
    pub fn fenced(mut self) -> Self {
        self.description.request.terms.fenced = true;
        self
    }

    /// The same transfer with a wish for the CPU caches.
    pub fn with_hint(mut self, hint: CacheHint) -> Self {
        self.description.request.terms.hint = hint;
        self
    }

    /// The same transfer in a class: who goes first when transfers wait for an engine channel.
    pub fn with_class(mut self, class: PriorityClass) -> Self {
        self.description.request.terms.class = class;
        self
    }

    /// The same transfer, refused instead of queued when all engine channels are busy.
    pub fn refuse_when_busy(mut self) -> Self {
        self.description.request = self.description.request.refuse_when_busy();
        self
    }

    /// The same transfer, given up at `deadline`.
    pub fn with_deadline(self, deadline: Instant) -> Self {
        self.within(deadline.saturating_duration_since(Instant::now()))
    }

    /// The same transfer, given up `limit` from now.
    pub fn within(mut self, limit: Duration) -> Self {
        self.description.request.terms.deadline = Some(MonotonicClock.now().after(limit));
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
        let Description { request, held, invalid } = &self.description;
        let mut shown = f.debug_struct("Transfer");
        shown.field("request", request).field("frames", held);
        if let Some(invalid) = invalid {
            shown.field("invalid", invalid);
        }
        shown.finish()
    }
}

#[cfg(test)]
impl Transfer {
    /// A transfer that a test makes of a request; it keeps nothing alive.
    pub(crate) fn of(request: Request) -> Self {
        Self::new(request, Held::new(), None)
    }
}
