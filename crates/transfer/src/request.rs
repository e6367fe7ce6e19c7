//! Requests: an operation over memory named by capability, and the terms on which it is served.
//!
//! ```text
//! Request { task: Operation<Span> or Repeat, terms } ─► ring slot ─► the service
//! ```
//!
//! A client writes [`Span`]s (handle and offset); admission turns them into [`Region`](crate::Region)s that an engine may touch.
//! Terms set when a request may start (links, fences), its deadline, its priority class, and its cache hint. The module
//! [`operation`](crate::operation) has the operations.

use memferry_clock::Instant;

use crate::geometry::{Copy2d, Fill2d};
use crate::handle::Handle;
use crate::operation::{Operation, Pattern};

/// A place in a frame: `offset` bytes after the first byte that the capability covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The capability that covers the place.
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

/// What the service does with a request when every engine channel it may use is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenBusy {
    /// Completes it at once with [`Failure::ChannelsBusy`](crate::Failure::ChannelsBusy), as the thesis's driver does (Wicki
    /// 2014, 3.4).
    Refuse,
    /// Keeps it on a waiting list that a quota bounds.
    #[default]
    Wait,
}

/// How a transfer should treat the CPU caches. Engines that cannot control the caches ignore it.
///
/// ```
/// use memferry_transfer::CacheHint;
///
/// assert_eq!(CacheHint::default(), CacheHint::Auto);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheHint {
    /// The engine decides for each transfer.
    #[default]
    Auto,
    /// The destination will be read soon: keep it in the caches.
    Keep,
    /// Neither side will be read soon: bypass the caches.
    Stream,
}

/// The order in which waiting requests get engine channels. A session may use the classes granted to it.
///
/// The numbers are those in messages, which send positions. The header of a request has codes of its own ([`crate::wire`]).
///
/// ```
/// use memferry_transfer::PriorityClass;
///
/// assert!(PriorityClass::Low < PriorityClass::Normal && PriorityClass::Normal < PriorityClass::High);
/// let mut bytes_by_class = [0; 3];
/// bytes_by_class[PriorityClass::High.index()] += 4096;
/// assert_eq!(bytes_by_class, [0, 0, 4096]);
/// ```
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum PriorityClass {
    /// Starts after waiting requests of all other classes.
    Low = 0,
    /// The default, granted to every session.
    #[default]
    Normal = 1,
    /// Starts before waiting requests of all other classes.
    High = 2,
}

impl PriorityClass {
    /// Index into an array with an element for each class: low, normal, high.
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

/// The terms on which a request is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// What to do when all channels are busy.
    pub when_busy: WhenBusy,
    /// When the request is ended, checked between chunks; the clock is `CLOCK_MONOTONIC`.
    pub deadline: Option<Instant>,
    /// How to treat the caches.
    pub hint: CacheHint,
    /// Priority class, which must be granted to the session.
    pub class: PriorityClass,
    /// The next request of this queue starts when this one has succeeded, and fails as this one did if it fails.
    pub linked: bool,
    /// This request starts when every earlier request of this queue has ended, successfully or not.
    pub fenced: bool,
}

impl Terms {
    /// The defaults, as a constant.
    pub const PLAIN: Self = Self {
        when_busy: WhenBusy::Wait,
        deadline: None,
        hint: CacheHint::Auto,
        class: PriorityClass::Normal,
        linked: false,
        fenced: false,
    };
}

/// The work of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// One operation over the client's memory.
    Transfer(Operation<Span>),
    /// Repeats the linked requests that follow, `rounds` times, or until stopped if 0. All complete when the loop ends, this one
    /// with the number of complete rounds.
    Repeat {
        /// Number of rounds; 0 means until stopped.
        rounds: u32,
    },
}

/// A transfer or a loop, and the terms on which it is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The transfer, or the start of a loop.
    pub task: Task,
    /// When and how the request is served.
    pub terms: Terms,
}

impl Request {
    /// A transfer with the default terms: it waits for a channel and has no deadline.
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

    /// The transfer's operation; `None` for the start of a loop.
    pub fn operation(&self) -> Option<&Operation<Span>> {
        match &self.task {
            Task::Transfer(operation) => Some(operation),
            Task::Repeat { .. } => None,
        }
    }

    /// Refuses the request, instead of queueing it, when all engine channels are busy.
    pub fn refuse_when_busy(mut self) -> Self {
        self.terms.when_busy = WhenBusy::Refuse;
        self
    }

    /// Ends the request at `deadline`.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.terms.deadline = Some(deadline);
        self
    }

    /// Starts the next request of the queue when this one has succeeded.
    pub fn linked(mut self) -> Self {
        self.terms.linked = true;
        self
    }

    /// Starts the request when all earlier ones of the queue have ended.
    pub fn fenced(mut self) -> Self {
        self.terms.fenced = true;
        self
    }
}
