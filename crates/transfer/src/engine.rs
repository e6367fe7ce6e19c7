//! The engine contract: how the path gives work to what moves bytes (after Tock's TRD 3).
//!
//! ```text
//! Descriptor ──post──► Ticket        or Refused { descriptor, reason }
//! ring_doorbell        starts posted descriptors
//! poll(now)            makes progress if the engine needs a CPU, and collects completions
//! cancel(ticket)       asks for an early end; the completion says how it ended
//! ```
//!
//! There are no callbacks. A [`Region`] keeps its memory alive and is checked when made; a [`Descriptor`] is checked against its
//! regions, so an engine that stays inside them touches nothing else. An engine reports a completion only when it can no longer
//! touch the memory, or reports [`Failure::ChannelFaulted`](crate::Failure::ChannelFaulted), which says that it may.

use alloc::vec::Vec;

use memferry_clock::Instant;
use thiserror::Error;

use crate::completion::{EngineKind, Outcome};
use crate::operation::{Operation, Operations, Reach};
use crate::request::CacheHint;
use crate::side::Side;

/// Memory as an engine addresses it. A clone is cheap and keeps the memory alive.
pub trait Memory: Clone {
    /// Length in bytes. A [`Region`] is checked against it once, when it is made.
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
    /// The `length` bytes at `offset` of `memory`, or `None` if some lie outside it.
    pub fn new(memory: M, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= memory.length()).then_some(Self { memory, offset, length })
    }
}

impl<M> Region<M> {
    /// The memory that the range is part of.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Offset of the first byte within the memory.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the range in bytes.
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

/// An operation would leave one of its regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the operation leaves its {side} region")]
pub struct LeavesRegion {
    /// The side of the operand.
    pub side: Side,
}

/// A borrowed operation whose every byte lies in its regions.
#[derive(Clone, Copy, Debug)]
pub struct Confined<'a, M> {
    operation: &'a Operation<Region<M>>,
    hint: CacheHint,
}

impl<'a, M> Confined<'a, M> {
    /// Checks the operation.
    ///
    /// # Errors
    /// As [`Descriptor::new`].
    #[inline]
    pub fn new(operation: &'a Operation<Region<M>>, hint: CacheHint) -> Result<Self, LeavesRegion> {
        check(operation)?;
        Ok(Self { operation, hint })
    }

    /// The operation over checked regions.
    pub const fn operation(&self) -> &'a Operation<Region<M>> {
        self.operation
    }

    /// How the operation should treat the CPU caches.
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
    /// Work for engine channel `channel`, after a check of the operation.
    ///
    /// # Errors
    /// [`LeavesRegion`] if the operation touches a byte outside its regions.
    pub fn new(channel: u32, operation: Operation<Region<M>>) -> Result<Self, LeavesRegion> {
        check(&operation)?;
        Ok(Self { channel, operation, hint: CacheHint::Auto })
    }

    /// The same work with another cache hint.
    pub fn with_hint(mut self, hint: CacheHint) -> Self {
        self.hint = hint;
        self
    }

    /// The engine channel that the work is for.
    pub const fn channel(&self) -> u32 {
        self.channel
    }

    /// The operation over checked regions.
    pub const fn operation(&self) -> &Operation<Region<M>> {
        &self.operation
    }

    /// How the operation should treat the CPU caches.
    pub const fn hint(&self) -> CacheHint {
        self.hint
    }
}

/// An engine's capabilities, announced once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineCapabilities {
    /// The engine kind of operations done at once. For others, each [`EngineCompletion`] says it.
    pub kind: EngineKind,
    /// Number of channels, each for one descriptor.
    pub channels: u32,
    /// Longest transfer, bytes visited on the destination side.
    pub longest_bytes: u64,
    /// Cancels and deadlines take effect after at most this many bytes of a copy, or other work that takes as long. `None`: only
    /// between descriptors.
    pub preemption_bytes: Option<u64>,
    /// Whether copies within overlapping memory behave as `memmove`.
    pub overlapping_copy: bool,
    /// Whether pixels of 2-D operations must lie on multiples of their size in the engine's addresses. Others are refused as
    /// unsupported.
    pub aligned_pixels: bool,
    /// The kinds of operations performed.
    pub operations: Operations,
    /// [`Engine::perform`] does operations of at most this many bytes at once; 0 for none.
    pub immediate_bytes: u64,
}

/// Segments or sources that an operation which [`Engine::perform`] does may have.
pub const IMMEDIATE_OPERANDS: usize = 8;

/// Names a posted descriptor by its channel and serial.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Ticket {
    /// The engine channel that holds the descriptor.
    pub channel: u32,
    /// Counts the channel's posts, so that a late report of an earlier descriptor is recognised.
    pub serial: u32,
}

/// Why an engine refused a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RefusalReason {
    /// The channel does not exist.
    #[error("engine channel {0} does not exist")]
    NoSuchChannel(u32),
    /// The channel holds a descriptor already.
    #[error("engine channel {0} is busy")]
    Busy(u32),
    /// The engine does not perform the operation on this memory.
    #[error("the engine does not perform this operation")]
    Unsupported,
}

/// A refused descriptor, returned to the caller.
#[derive(Debug)]
pub struct Refused<D> {
    /// The descriptor that was posted, unchanged.
    pub descriptor: D,
    /// Why the engine refused it.
    pub reason: RefusalReason,
}

/// An engine's report that a descriptor ended. The engine no longer touches its memory, unless the channel faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineCompletion {
    /// The ticket that `post` returned.
    pub ticket: Ticket,
    /// How the descriptor ended. A failure is one of `Cancelled`, `MemoryFault`, `ChannelFaulted`, `EngineTimedOut`,
    /// `RequestDropped`, `EngineReset`. After `ChannelFaulted` the channel may still touch the memory, so the descriptor is not
    /// retried. Each outcome names the engine kind because an engine may combine several.
    pub outcome: Outcome,
}

/// Progress of a transfer: the part of its destination that is final, and visible to a reader that loads this with acquire order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermark {
    /// Bytes visited, in the operation's order.
    pub bytes: u64,
    /// Bytes are visited from the last one down, as when the destination overlaps the source from above.
    pub downward: bool,
}

/// The places that an engine has for some of its operations, fewer than it has channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Names these places. Operations with the same name share them.
    pub group: u64,
    /// How many operations may be posted at a time.
    pub most: u32,
}

/// Moves bytes: each channel carries out one posted descriptor at a time.
pub trait Engine {
    /// Memory as this engine addresses it.
    type Memory: Memory;

    /// The engine's capabilities, which never change.
    fn capabilities(&self) -> EngineCapabilities;

    /// Writes `descriptor` into its channel. It must not start before the doorbell.
    ///
    /// # Errors
    /// [`Refused`] with the descriptor.
    fn post(
        &mut self,
        descriptor: Descriptor<Self::Memory>,
    ) -> Result<Ticket, Refused<Descriptor<Self::Memory>>>;

    /// The places of which the operation needs one besides a channel, if any. A caller may post more operations than there are places:
    /// each of the others keeps its channel until a place is free.
    fn places(&mut self, _operation: &Operation<Region<Self::Memory>>) -> Option<Places> {
        None
    }

    /// Starts all descriptors posted since the last doorbell.
    fn ring_doorbell(&mut self);

    /// Makes progress and appends completions. Returns whether there is more to do without waiting.
    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool;

    /// As [`poll`](Self::poll), but for one channel only or for none, and by about `bytes`. Engines that work on their own make progress
    /// on all.
    fn advance(
        &mut self,
        now: Instant,
        _channel: Option<u32>,
        _bytes: u64,
        completions: &mut Vec<EngineCompletion>,
    ) -> bool {
        self.poll(now, completions)
    }

    /// Does a short operation now, on the calling thread. `None` if this engine does not, in general or for this operation.
    /// No channel is used, so busy channels do not matter.
    fn perform(&mut self, _operation: &Confined<'_, &Self::Memory>) -> Option<Outcome> {
        None
    }

    /// A descriptor's progress; `None` if the engine does not know it before the end.
    fn watermark(&self, _ticket: Ticket) -> Option<Watermark> {
        None
    }

    /// Bytes of a descriptor visited so far, as far as the engine knows before the end. Policies charge these, independent of how
    /// many operands are touched for each byte.
    fn bytes_done(&self, _ticket: Ticket) -> u64 {
        0
    }

    /// Whether every channel has moved its turns, so that they may be set anew. An engine whose polls move the turns of one channel only
    /// returns `false` in between.
    fn round_is_over(&self) -> bool {
        true
    }

    /// Sets how much of a channel's work each round does from now on, in multiples of the preemption granularity. A round is one poll
    /// unless [`round_is_over`](Self::round_is_over) says otherwise. The default is 1; 0 suspends the channel. An engine that works on its own between polls only distinguishes 0 from other values.
    fn set_turns(&mut self, _channel: u32, _turns: u32) {}

    /// Whether a suspended channel is at rest: no byte moves until it is resumed. An engine that cannot suspend returns `false`
    /// while the channel holds a descriptor.
    fn is_at_rest(&self, channel: u32) -> bool;

    /// Whether all posted work proceeds without [`poll`](Self::poll), as on a device that signals its completions. An engine that
    /// must be polled returns `false`.
    fn works_alone(&self) -> bool {
        false
    }

    /// Asks that `ticket` end early; unknown tickets are ignored. A completion follows in any case, even without a doorbell if
    /// the descriptor was posted but not started.
    fn cancel(&mut self, ticket: Ticket);

    /// The latest time of the next `poll`; `None` if the engine needs none.
    fn next_wake(&self) -> Option<Instant>;
}
