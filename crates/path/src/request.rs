//! The types that all stages share: a request's origin, its end, and its completion.
//!
//! ```text
//! Origin: queue, user, tag ─► carried by every stage ─► Retired: claims and places to release, outcome ─► QueueCompletion
//! ```
//!
//! The stages use this module. It uses only `capability`, for the claims that a request holds.

use memferry_transfer::{Completion, Failure, Outcome};

use crate::capability::Claims;

/// Names an open queue of a path. The path reuses the key once the queue is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueKey(pub u32);

/// A completion, and the queue it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueCompletion {
    pub queue: QueueKey,
    /// To be written into the queue's ring.
    pub completion: Completion,
    /// The request's progress was reported to the client, so its progress entry must be cleared.
    pub watermarked: bool,
}

/// The queue, user and tag of a request, and its part in an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) queue: QueueKey,
    pub(crate) user: u32,
    pub(crate) tag: u64,
    /// The next request of the queue depends on this one.
    pub(crate) linked: bool,
    /// It is a member of a loop.
    pub(crate) member: bool,
}

/// An ended request, with everything it still holds.
pub(crate) struct Retired {
    pub(crate) origin: Origin,
    pub(crate) claims: Claims,
    /// The channel that failed under the request. It may still touch the memory, so the claims are quarantined, not released.
    pub(crate) quarantine: Option<u32>,
    /// Places it still takes in its user's quota of waiting requests.
    pub(crate) places: usize,
    pub(crate) outcome: Outcome,
    /// The failure is that of another request, to which this one was linked.
    pub(crate) inherited: bool,
    pub(crate) watermarked: bool,
}

impl Retired {
    /// A request that failed before it reached an engine.
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
