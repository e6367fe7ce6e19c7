//! The Engine contract: what moves bytes, and how the path hands it work (after Tock's TRD 3).
//!
//! ```text
//! Descriptor ──post──► Ticket        or Refused { descriptor, reason }
//! ring_doorbell        starts what was posted
//! poll(now)            makes progress where the engine needs a CPU, and collects completions
//! cancel(ticket)       asks; the completion that follows says how it ended
//! ```
//!
//! There are no callbacks. A [`Region`] keeps its memory alive and is checked when made, and a [`Descriptor`] is checked
//! against its regions, so an engine that stays inside them touches nothing else. An engine reports a ticket's completion
//! only when it can no longer touch that memory, or says that it may: [`Failure::ChannelFaulted`](crate::Failure::ChannelFaulted).

use alloc::vec::Vec;

use memferry_clock::Instant;
use thiserror::Error;

use crate::completion::{EngineKind, Outcome};
use crate::operation::{Operation, Operations, Reach};
use crate::request::CacheHint;
use crate::side::Side;

/// Memory as an engine addresses it: cheap to clone, alive while a clone is.
pub trait Memory: Clone {
    /// Bytes it covers.
    fn length(&self) -> u64;
}

impl<M: Memory> Memory for &M {
    fn length(&self) -> u64 {
        (**self).length()
    }
}

/// A checked range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region<M> {
    memory: M,
    offset: u64,
    length: u64,
}

impl<M: Memory> Region<M> {
    /// The `length` bytes at `offset` of `memory`, or `None` when they are not all inside.
    pub fn new(memory: M, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= memory.length()).then_some(Self { memory, offset, length })
    }
}

impl<M> Region<M> {
    /// The memory it is part of.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Its first byte within the memory.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }
}

/// One engine channel's work: an operation whose every byte lies in its regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor<M> {
    channel: u32,
    operation: Operation<Region<M>>,
    hint: CacheHint,
}

/// A descriptor's operation would leave a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the operation leaves its {side} region")]
pub struct LeavesRegion {
    /// Which operand.
    pub side: Side,
}

/// An operation, borrowed, whose every byte lies in its regions.
#[derive(Clone, Copy, Debug)]
pub struct Confined<'a, M> {
    operation: &'a Operation<Region<M>>,
    hint: CacheHint,
}

impl<'a, M> Confined<'a, M> {
    /// The operation, checked.
    ///
    /// # Errors
    /// As [`Descriptor::new`].
    #[inline]
    pub fn new(operation: &'a Operation<Region<M>>, hint: CacheHint) -> Result<Self, LeavesRegion> {
        check(operation)?;
        Ok(Self { operation, hint })
    }

    /// What is to be done.
    pub const fn operation(&self) -> &'a Operation<Region<M>> {
        self.operation
    }

    /// What is wished for the caches.
    pub const fn hint(&self) -> CacheHint {
        self.hint
    }
}

/// Whether every byte of the operation lies in its regions.
#[inline]
fn check<M>(operation: &Operation<Region<M>>) -> Result<(), LeavesRegion> {
    operation.visit(|side, region, reach| {
        let end = match reach {
            Reach::Bytes(length) => Some(length),
            Reach::Walk(plane, count) => match plane.extent(&count) {
                Ok(Some(extent)) => Some(extent.first + extent.length),
                Ok(None) => Some(0),
                Err(_) => None,
            },
        };
        if end.is_some_and(|end| end <= region.length) { Ok(()) } else { Err(LeavesRegion { side }) }
    })
}

impl<M> Descriptor<M> {
    /// Work for engine channel `channel`.
    ///
    /// # Errors
    /// [`LeavesRegion`] when the operation is not confined to its regions.
    pub fn new(channel: u32, operation: Operation<Region<M>>) -> Result<Self, LeavesRegion> {
        check(&operation)?;
        Ok(Self { channel, operation, hint: CacheHint::Auto })
    }

    /// The same work with a wish for the caches.
    pub fn with_hint(mut self, hint: CacheHint) -> Self {
        self.hint = hint;
        self
    }

    /// The engine channel it is for.
    pub const fn channel(&self) -> u32 {
        self.channel
    }

    /// What is to be done.
    pub const fn operation(&self) -> &Operation<Region<M>> {
        &self.operation
    }

    /// What is wished for the caches.
    pub const fn hint(&self) -> CacheHint {
        self.hint
    }
}

/// What an engine can do, announced once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineCapabilities {
    /// What moves the bytes of operations that are done at once; of others each [`EngineCompletion`] says it.
    pub kind: EngineKind,
    /// Channels that may hold one descriptor each.
    pub channels: u32,
    /// Longest transfer, bytes visited on the destination side.
    pub longest_bytes: u64,
    /// Cancel and deadline are honoured after at most this many bytes of a copy, or what takes as long; `None`: only between
    /// descriptors.
    pub preemption_bytes: Option<u64>,
    /// Whether copies within overlapping memory behave as `memmove`.
    pub overlapping_copy: bool,
    /// Whether pixels of 2-D operations have to lie on multiples of their size, as the engine addresses them; others are
    /// refused as unsupported.
    pub aligned_pixels: bool,
    /// The kinds of operations performed.
    pub operations: Operations,
    /// Operations that visit no more bytes than this are done at once by [`Engine::perform`]; 0: none.
    pub immediate_bytes: u64,
}

/// A descriptor in an engine: channel and the serial of the post.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Ticket {
    /// The engine channel.
    pub channel: u32,
    /// Counts this channel's posts, so that a late report for an earlier one is recognised.
    pub serial: u32,
}

/// Why an engine would not take a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RefusalReason {
    /// No such channel.
    #[error("engine channel {0} does not exist")]
    NoSuchChannel(u32),
    /// The channel holds a descriptor already.
    #[error("engine channel {0} is busy")]
    Busy(u32),
    /// The engine does not perform the operation on this memory.
    #[error("the engine does not perform this operation")]
    Unsupported,
}

/// A refused descriptor, given back.
#[derive(Debug)]
pub struct Refused<D> {
    /// What was posted.
    pub descriptor: D,
    /// Why not.
    pub reason: RefusalReason,
}

/// The end of a descriptor, as an engine reports it. The engine no longer touches the descriptor's memory, unless its channel faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineCompletion {
    /// What `post` returned.
    pub ticket: Ticket,
    /// How the descriptor ended. A failure is one of `Cancelled`, `MemoryFault`, `ChannelFaulted`, `EngineTimedOut`,
    /// `RequestDropped`, `EngineReset`. After `ChannelFaulted` the channel may still touch the memory, and nobody does the
    /// descriptor again. The engine kind is in each outcome because an engine may be made of several.
    pub outcome: Outcome,
}

/// How far a transfer has come: the part of its destination that is final, visible to whoever reads this with acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermark {
    /// Bytes visited, in the operation's order.
    pub bytes: u64,
    /// The order is from the last byte down, as when the destination overlaps the source from above.
    pub downward: bool,
}

/// What moves bytes.
pub trait Engine {
    /// How it addresses memory.
    type Memory: Memory;

    /// What it can do; never changes.
    fn capabilities(&self) -> EngineCapabilities;

    /// Writes `descriptor` into its channel. It may not start before the doorbell.
    ///
    /// # Errors
    /// [`Refused`] with the descriptor.
    fn post(
        &mut self,
        descriptor: Descriptor<Self::Memory>,
    ) -> Result<Ticket, Refused<Descriptor<Self::Memory>>>;

    /// Starts what was posted.
    fn ring_doorbell(&mut self);

    /// Makes progress and appends what ended. Returns whether there is more to do without waiting.
    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool;

    /// Does a short operation on the calling thread, now; `None` when this engine does not do that, or not with this one.
    /// No channel is used, so it does not matter what they hold.
    fn perform(&mut self, _operation: &Confined<'_, &Self::Memory>) -> Option<Outcome> {
        None
    }

    /// How far a descriptor has come; `None` when the engine cannot tell before the end.
    fn watermark(&self, _ticket: Ticket) -> Option<Watermark> {
        None
    }

    /// Bytes done of a descriptor so far, in the operation's order, as far as the engine knows before the end. They are what
    /// policies charge: bytes visited, however many operands were touched for each.
    fn bytes_done(&self, _ticket: Ticket) -> u64 {
        0
    }

    /// How much of a channel's work goes on from here: so many times what it is preempted after, in each poll; 0 suspends
    /// it. 1 when nothing was said. An engine that works by itself between polls tells only 0 from the rest.
    fn set_turns(&mut self, _channel: u32, _turns: u32) {}

    /// Whether a suspended channel has come to rest: not a byte of it moves until it may go on. An engine that cannot
    /// suspend says no while the channel holds a descriptor.
    fn is_at_rest(&self, channel: u32) -> bool;

    /// Whether all that it holds goes on without [`poll`](Self::poll): a device works by itself, and something else than the
    /// time tells that it has news. An engine that is polled on a thread of its own says no.
    fn works_alone(&self) -> bool {
        false
    }

    /// Asks that `ticket` end early; unknown tickets are ignored. A completion follows in any case, without a doorbell
    /// too when the descriptor was posted but not started.
    fn cancel(&mut self, ticket: Ticket);

    /// When `poll` has to be called again although nobody calls, `None` when it need not.
    fn next_wake(&self) -> Option<Instant>;
}
