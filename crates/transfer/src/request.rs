//! What a client may ask for: an operation over memory named by capability, and the terms on which it is served.
//!
//! ```text
//! Request { what: Operation<Span> or Repeat, terms } ─► ring slot ─► the service
//! ```
//!
//! A client writes [`Span`]s (handle and offset); admission turns them into [`Region`](crate::Region)s an engine may
//! touch. Terms say when a request may start (links, fences), how long it may take, who goes first, and what becomes of
//! the caches. What operations do is in [`operation`](crate::operation).

use memferry_clock::Instant;

use crate::geometry::{Copy2d, Fill2d};
use crate::handle::Handle;
use crate::operation::{Operation, Pattern};

/// A place in a frame, named by capability: `offset` bytes after the first byte the capability covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The capability.
    pub handle: Handle,
    /// Bytes from the start of the capability's range.
    pub offset: u64,
}

impl Span {
    /// The place `offset` bytes into what `handle` covers.
    pub const fn new(handle: Handle, offset: u64) -> Self {
        Self { handle, offset }
    }
}

/// What the service does with a request that finds every engine channel it may use busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenBusy {
    /// Completes it at once with [`Failure::ChannelsBusy`](crate::Failure::ChannelsBusy), as the thesis's driver does
    /// (Wicki 2014, 3.4).
    Refuse,
    /// Keeps it on a waiting list, bounded by a quota.
    #[default]
    Wait,
}

/// What is to become of the CPU caches. A wish: an engine that cannot tell ignores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheHint {
    /// The engine decides.
    #[default]
    Auto,
    /// The destination will be read soon: leave it in the caches.
    Keep,
    /// Neither side will be read soon: leave the caches alone.
    Stream,
}

/// Who goes first where requests wait for an engine channel. A session may use the classes it was granted.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    /// After all others.
    Low,
    /// What everyone has.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl PriorityClass {
    /// Its place where something is kept for each class: low, normal, high.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl core::fmt::Display for PriorityClass {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        })
    }
}

/// How a request is to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// What to do when all channels are busy.
    pub when_busy: WhenBusy,
    /// When it is given up, checked between chunks; the clock is `CLOCK_MONOTONIC`.
    pub deadline: Option<Instant>,
    /// Wish for the caches.
    pub hint: CacheHint,
    /// Its class.
    pub class: PriorityClass,
    /// The next request of this channel starts when this one has succeeded, and fails as this one did if it fails.
    pub linked: bool,
    /// It starts when every earlier request of this channel has ended, however.
    pub fenced: bool,
}

impl Terms {
    /// What a request has that sets none: the defaults, as a constant.
    pub const PLAIN: Self = Self {
        when_busy: WhenBusy::Wait,
        deadline: None,
        hint: CacheHint::Auto,
        class: PriorityClass::Normal,
        linked: false,
        fenced: false,
    };
}

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// A transfer.
    Transfer(Operation<Span>),
    /// The linked requests that follow, again and again: `rounds` times, or until stopped when 0. All complete when the
    /// loop ends, this one with the rounds that were whole.
    Repeat {
        /// How often; 0 is until stopped.
        rounds: u32,
    },
}

/// A transfer and the terms on which it is to be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is to be done.
    pub task: Task,
    /// On which terms.
    pub terms: Terms,
}

impl Request {
    /// A request that waits for a channel and has no deadline.
    pub fn new(operation: Operation<Span>) -> Self {
        Self { task: Task::Transfer(operation), terms: Terms::default() }
    }

    /// Begins a loop over the linked requests that follow.
    pub fn repeat(rounds: u32) -> Self {
        Self { task: Task::Repeat { rounds }, terms: Terms::default() }.linked()
    }

    /// Copies `length` bytes (overlap allowed).
    pub fn copy(source: Span, destination: Span, length: u64) -> Self {
        Self::new(Operation::Copy { source, destination, length })
    }

    /// Fills `length` bytes with a repeated pattern.
    pub fn fill(destination: Span, length: u64, pattern: Pattern) -> Self {
        Self::new(Operation::Fill { destination, length, pattern })
    }

    /// `mem_copy_2d` of Wicki 2014, listing 4. The spans' offsets are added to the walks' starts.
    pub fn copy_2d(source: Span, destination: Span, shape: Copy2d) -> Self {
        Self::new(Operation::Copy2d { source, destination, shape })
    }

    /// `mem_fill_2d` of Wicki 2014, listing 4.
    pub fn fill_2d(destination: Span, shape: Fill2d) -> Self {
        Self::new(Operation::Fill2d { destination, shape })
    }

    /// The transfer, `None` when it begins a loop.
    pub fn operation(&self) -> Option<&Operation<Span>> {
        match &self.task {
            Task::Transfer(operation) => Some(operation),
            Task::Repeat { .. } => None,
        }
    }

    /// The same request, refused instead of queued when all engine channels are busy.
    pub fn refuse_when_busy(mut self) -> Self {
        self.terms.when_busy = WhenBusy::Refuse;
        self
    }

    /// The same request, given up at `deadline`.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.terms.deadline = Some(deadline);
        self
    }

    /// The same request; the next one of the channel starts when it has succeeded.
    pub fn linked(mut self) -> Self {
        self.terms.linked = true;
        self
    }

    /// The same request, started when all earlier ones of the channel have ended.
    pub fn fenced(mut self) -> Self {
        self.terms.fenced = true;
        self
    }
}
