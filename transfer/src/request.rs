//! What a client may ask for: operations over named memory, and how they are to be served.
//!
//! [`Operation`] is generic over how memory is named: a client writes [`Span`]s (handle and offset), admission
//! turns them into [`Region`](crate::Region)s an engine may touch. The operations are those of Wicki 2014,
//! listings 1 and 4 (`mem_copy`, `mem_fill`, `mem_copy_2d`, `mem_fill_2d`), with lengths and offsets of one's own.

use memferry_clock::Instant;

use crate::geometry::{Copy2d, Fill2d};
use crate::handle::Handle;

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

/// The value a fill repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// One byte, as `memset` and `mem_fill` of Wicki 2014, listing 1.
    Byte(u8),
    /// Two bytes, little-endian.
    Half(u16),
    /// A 24-bit colour in four bytes, little-endian, the upper eight bits zero (Wicki 2014, 2.3.2.2).
    Color(crate::geometry::Color24),
    /// Four bytes, little-endian.
    Word(u32),
}

impl Pattern {
    /// Bytes after which the pattern repeats: 1, 2 or 4.
    pub const fn length_bytes(self) -> u64 {
        match self {
            Self::Byte(_) => 1,
            Self::Half(_) => 2,
            Self::Color(_) | Self::Word(_) => 4,
        }
    }

    /// The pattern repeated to four bytes, as they lie in memory from an address where the pattern begins.
    pub const fn word_bytes(self) -> [u8; 4] {
        match self {
            Self::Byte(value) => [value; 4],
            Self::Half(value) => {
                let [low, high] = value.to_le_bytes();
                [low, high, low, high]
            }
            Self::Color(color) => color.value().to_le_bytes(),
            Self::Word(value) => value.to_le_bytes(),
        }
    }
}

/// One transfer over memory named as `R`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<R> {
    /// Moves nothing; completes. Measures the path.
    Nop,
    /// Copies `length` bytes; the ranges may overlap, as with `memmove`.
    Copy {
        /// Where bytes are read.
        source: R,
        /// Where they go.
        destination: R,
        /// How many.
        length: u64,
    },
    /// Repeats `pattern` over `length` bytes, a multiple of the pattern's length.
    Fill {
        /// Where the first byte goes.
        destination: R,
        /// How many bytes.
        length: u64,
        /// What is repeated.
        pattern: Pattern,
    },
    /// Moves pixels one by one in the order of Wicki 2014, listing 3.
    Copy2d {
        /// The frame that is read; the shape's starts count from here.
        source: R,
        /// The frame that is written.
        destination: R,
        /// Counts, walks and the transparent colour.
        shape: Copy2d,
    },
    /// Writes one colour to pixels in the order of Wicki 2014, listing 3.
    Fill2d {
        /// The frame that is written.
        destination: R,
        /// Counts, walk and colour.
        shape: Fill2d,
    },
}

impl<R> Operation<R> {
    /// The operation's name, for messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::Copy2d { .. } => "copy_2d",
            Self::Fill2d { .. } => "fill_2d",
        }
    }

    /// Bytes of destination memory the whole operation visits, saturating.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Nop => 0,
            Self::Copy { length, .. } | Self::Fill { length, .. } => *length,
            Self::Copy2d { shape, .. } => shape.count.total_bytes(),
            Self::Fill2d { shape, .. } => shape.count.total_bytes(),
        }
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

/// A transfer and the terms on which it is to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is to be moved.
    pub operation: Operation<Span>,
    /// What to do when all channels are busy.
    pub when_busy: WhenBusy,
    /// When it is given up, checked between chunks; the clock is `CLOCK_MONOTONIC`.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A request that waits for a channel and has no deadline.
    pub const fn new(operation: Operation<Span>) -> Self {
        Self { operation, when_busy: WhenBusy::Wait, deadline: None }
    }

    /// Copies `length` bytes (overlap allowed).
    pub const fn copy(source: Span, destination: Span, length: u64) -> Self {
        Self::new(Operation::Copy { source, destination, length })
    }

    /// Fills `length` bytes with a repeated pattern.
    pub const fn fill(destination: Span, length: u64, pattern: Pattern) -> Self {
        Self::new(Operation::Fill { destination, length, pattern })
    }

    /// `mem_copy_2d` of Wicki 2014, listing 4. The spans' offsets are added to the walks' starts.
    pub const fn copy_2d(source: Span, destination: Span, shape: Copy2d) -> Self {
        Self::new(Operation::Copy2d { source, destination, shape })
    }

    /// `mem_fill_2d` of Wicki 2014, listing 4.
    pub const fn fill_2d(destination: Span, shape: Fill2d) -> Self {
        Self::new(Operation::Fill2d { destination, shape })
    }

    /// The same request, refused instead of queued when all channels are busy.
    pub const fn refuse_when_busy(mut self) -> Self {
        self.when_busy = WhenBusy::Refuse;
        self
    }

    /// The same request, given up at `deadline`.
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }
}
