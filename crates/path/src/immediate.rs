//! What is done at once, on the calling thread: the one rule for it, and the function that does it.
//!
//! ```text
//! request ─ may it? ─ its memory resolves ─ engine performs it ─► Outcome, and nothing else is looked at
//!            │ no         │ no: refused         │ the engine does not do that at once
//!            └────────────┼─────────────────────┴─► None: the request goes through reservation, order and placement
//!                         └─► Outcome
//! ```
//!
//! [`Path::perform`](crate::Path::perform) asks for the requests of a ring, with what the path knows of the queue. The service asks for
//! a client in its own process, on that client's thread. A transfer of a client's own thread may be long, so
//! [`Immediate::claim`] splits it in two: its memory is claimed, and the table is free while the bytes move.

use memferry_clock::Instant;
use memferry_transfer::{
    Confined, Failure, Memory, Operation, Outcome, PriorityClass, Region, SessionId, Span, Terms,
};

use crate::capability::{Admitted, Capabilities};

/// Who asks for an operation at once, and what stands in its way.
#[derive(Clone, Copy, Debug)]
pub struct Immediate {
    /// The session whose capabilities are used.
    pub session: SessionId,
    /// The highest class its requests may use.
    pub class: PriorityClass,
    /// Requests of the same queue that were started and have not ended: a fence waits for them.
    pub active: u32,
    /// Earlier requests of the same queue wait for a channel, or are held by its order.
    pub held_back: bool,
    /// The policy paces requests, so all of them go through channels.
    pub paced: bool,
    /// The present, which matters to requests with a deadline.
    pub now: Instant,
    /// Longest operation that is done at once, bytes visited.
    pub immediate_bytes: u64,
    /// Longest operation of the engine, bytes visited.
    pub longest_bytes: u64,
}

impl Immediate {
    /// A client in the process of its service, on its own thread: there is no queue, and no policy is asked.
    pub const fn on_own_thread(session: SessionId, longest_bytes: u64) -> Self {
        Self {
            session,
            class: PriorityClass::High,
            active: 0,
            held_back: false,
            paced: false,
            now: Instant::ORIGIN,
            immediate_bytes: u64::MAX,
            longest_bytes,
        }
    }

    /// Whether an operation on these terms may be done at once.
    #[inline]
    pub fn may(&self, operation: &Operation<Span>, terms: &Terms) -> bool {
        !terms.linked
            && (!terms.fenced || self.active == 0)
            && terms.deadline.is_none_or(|deadline| deadline > self.now)
            && terms.class <= self.class
            && !self.held_back
            && !self.paced
            && operation.total_bytes() <= self.immediate_bytes
    }

    /// Does an operation while the table is held, when it [may](Self::may) be done at once and `engine` does it. An operation
    /// that admission refuses is over at once too.
    #[inline]
    pub fn perform<M: Memory>(
        &self,
        operation: &Operation<Span>,
        terms: &Terms,
        capabilities: &Capabilities<M>,
        engine: impl FnOnce(&Confined<'_, &M>) -> Option<Outcome>,
    ) -> Option<Outcome> {
        if !self.may(operation, terms) {
            return None;
        }
        match capabilities.borrowed(self.session, operation, self.longest_bytes) {
            Ok(operation) => perform_on(&operation, terms, engine),
            Err(failure) => Some(Outcome::refused(failure)),
        }
    }

    /// Claims the memory of an operation that [may](Self::may) be done at once, so that it can be done without the table.
    ///
    /// # Errors
    /// The [`Failure`] of admission; [`Failure::Unsupported`] for terms that only a queue can keep.
    pub fn claim<M: Memory>(
        &self,
        operation: &Operation<Span>,
        terms: &Terms,
        capabilities: &mut Capabilities<M>,
    ) -> Result<ClaimedTransfer<M>, Failure> {
        if !self.may(operation, terms) {
            return Err(Failure::Unsupported);
        }
        let resolved = capabilities.resolve(self.session, operation, self.longest_bytes)?;
        Ok(ClaimedTransfer(capabilities.claim(self.session, resolved, *terms)))
    }
}

/// Hands an operation over resolved memory to an engine.
#[inline]
fn perform_on<M>(
    operation: &Operation<Region<M>>,
    terms: &Terms,
    engine: impl FnOnce(&Confined<'_, M>) -> Option<Outcome>,
) -> Option<Outcome> {
    match Confined::new(operation, terms.hint) {
        Ok(confined) => engine(&confined),
        // Admission checked the same bounds; should the two ever disagree, nothing moves.
        Err(error) => Some(Outcome::refused(Failure::OutOfBounds { side: error.side, available: 0 })),
    }
}

/// A transfer whose memory stays until [`release`](Self::release).
#[must_use = "its claims have to be released"]
pub struct ClaimedTransfer<M>(Admitted<M>);

impl<M> ClaimedTransfer<M> {
    /// Does the operation, `None` when `engine` does not perform it.
    pub fn perform(&self, engine: impl FnOnce(&Confined<'_, M>) -> Option<Outcome>) -> Option<Outcome> {
        perform_on(self.0.operation(), self.0.terms(), engine)
    }
}

impl<M: Memory> ClaimedTransfer<M> {
    /// Gives the memory back.
    pub fn release(self, capabilities: &mut Capabilities<M>) {
        let (_, claims) = self.0.into_parts();
        capabilities.release(claims);
    }
}
