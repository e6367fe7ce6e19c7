//! Requests done at once on the calling thread: the rule that allows it, and the function that does it.
//!
//! ```text
//! request ─ Immediate::allows ─ admission: borrowed or claimed ─ perform ─► outcome
//!                │ no              │ refused                       │ the engine does not do this one
//!                └─────────────────┴───────────────────────────────┴─► reservation, order and placement
//! ```
//!
//! A worker's [`Path`](crate::Path) and a client in the process of its service both ask [`Immediate`]. Each fills it in with
//! what it knows of the queue. A short request only [borrows](Capabilities::borrowed) its memory, because the capability table
//! stays locked until it is over. A long one [claims](ClaimedTransfer) it, so that the table is free while bytes move.

use memferry_clock::Instant;
use memferry_transfer::{
    CacheHint, Confined, Failure, Memory, Operation, Operations, PriorityClass, Region, SessionId, Span,
    Terms,
};

use crate::capability::{Admitted, Capabilities};

/// What the caller knows of the queue that a request would be done for at once.
#[derive(Clone, Copy, Debug)]
pub struct Immediate {
    /// Longest operation done at once, bytes visited.
    pub longest_bytes: u64,
    /// Kinds of operations that are never done at once.
    pub except: Operations,
    /// The highest class the queue may use.
    pub class: PriorityClass,
    /// A fenced request would have to wait: earlier requests of the queue run, or the caller does not know.
    pub fence_waits: bool,
    /// The present. `None` when the caller does not keep deadlines.
    pub now: Option<Instant>,
}

impl Immediate {
    /// A client in the process of its service, on its own thread: no channel is used, so no policy or class applies.
    /// Fences and deadlines are kept by workers only.
    pub const OWN_THREAD: Self = Self {
        longest_bytes: u64::MAX,
        except: Operations::empty(),
        class: PriorityClass::High,
        fence_waits: true,
        now: None,
    };

    /// Whether a request may be done at once.
    #[inline]
    pub fn allows(&self, operation: &Operation<Span>, terms: &Terms) -> bool {
        let in_time = match (terms.deadline, self.now) {
            (None, _) => true,
            (Some(deadline), Some(now)) => deadline > now,
            (Some(_), None) => false,
        };
        let may_start = !terms.linked && (!terms.fenced || !self.fence_waits);
        may_start
            && in_time
            && terms.class <= self.class
            && operation.total_bytes() <= self.longest_bytes
            && !self.except.intersects(operation.kind())
    }
}

/// Has `engine` do an operation over resolved memory. Admission checked the same bounds; should the two ever disagree, nothing
/// moves.
///
/// # Errors
/// [`Failure::OutOfBounds`].
#[inline]
pub fn perform<M, T>(
    operation: &Operation<Region<M>>,
    hint: CacheHint,
    engine: impl FnOnce(&Confined<'_, M>) -> T,
) -> Result<T, Failure> {
    match Confined::new(operation, hint) {
        Ok(confined) => Ok(engine(&confined)),
        Err(error) => Err(Failure::OutOfBounds { side: error.side, available: 0 }),
    }
}

/// An admitted transfer that is done without the table: its memory stays until [`release`](Self::release).
#[must_use = "its claims have to be released"]
pub struct ClaimedTransfer<M>(Admitted<M>);

impl<M: Memory> ClaimedTransfer<M> {
    /// Checks an operation and claims its memory.
    ///
    /// # Errors
    /// The [`Failure`] of admission.
    pub fn claim(
        capabilities: &mut Capabilities<M>,
        session: SessionId,
        operation: &Operation<Span>,
        terms: &Terms,
        longest_bytes: u64,
    ) -> Result<Self, Failure> {
        let resolved = capabilities.resolve(session, operation, longest_bytes)?;
        Ok(Self(capabilities.claim(session, resolved, *terms)))
    }

    /// Has `engine` do the operation.
    ///
    /// # Errors
    /// As [`perform`].
    pub fn perform<T>(&self, engine: impl FnOnce(&Confined<'_, M>) -> T) -> Result<T, Failure> {
        perform(self.0.operation(), self.0.terms().hint, engine)
    }

    /// Ends the claims, which lets revocations of the memory finish.
    pub fn release(self, capabilities: &mut Capabilities<M>) {
        let (_, claims) = self.0.into_parts();
        capabilities.release(claims);
    }
}

#[cfg(test)]
mod tests;
