//! What the stages know about one request: where it came from, and what is left of it when it is over.
//!
//! ```text
//! Origin: queue, user, tag ─► carried by every stage ─► Retired: what is given back, and the outcome ─► QueueCompletion
//! ```
//!
//! Shared types only; the stages use this module, and it uses none of them but `capability`, whose claims a request holds.

use memferry_transfer::{Completion, Failure, Outcome};

use crate::capability::Claims;

/// One client queue, as the path knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueKey(pub u32);

/// A completion on its way to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueCompletion {
    /// The queue it belongs to.
    pub queue: QueueKey,
    /// What the queue's ring is to hold.
    pub completion: Completion,
    /// The client saw the progress of this request before, so its progress entry has to be cleared.
    pub watermarked: bool,
}

/// Where a request came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) queue: QueueKey,
    pub(crate) user: u32,
    pub(crate) tag: u64,
    /// The next request of the queue depends on this one.
    pub(crate) linked: bool,
    /// It is repeated in a loop.
    pub(crate) member: bool,
}

/// A request that is over, with everything it still holds.
pub(crate) struct Retired {
    pub(crate) origin: Origin,
    pub(crate) claims: Claims,
    /// The channel that failed under the request and may still touch its memory: the claims are quarantined, not released.
    pub(crate) quarantine: Option<u32>,
    /// Places that the request still takes in the waiting quota of its user.
    pub(crate) places: usize,
    pub(crate) outcome: Outcome,
    /// The failure is that of a request it was linked to.
    pub(crate) inherited: bool,
    pub(crate) watermarked: bool,
}

impl Retired {
    /// A request that no engine had.
    pub(crate) fn refused(origin: Origin, claims: Claims, failure: Failure) -> Self {
        Self {
            origin,
            claims,
            quarantine: None,
            places: 0,
            outcome: Outcome::refused(failure),
            inherited: false,
            watermarked: false,
        }
    }
}
