//! What follows the capability table for readers that do not lock it.
//!
//! ```text
//! register, derive, accept ─► appeared        revoke, close ─► died
//! ```
//!
//! A mirror only repeats: the table decides, and a request that a mirror does not know is checked against the table. Grants are not
//! reported, because they give no access, and neither is what expires, because only the table looks at a clock.

use memferry_transfer::{Handle, Rights, SessionId};

/// Repeats which handles give access to what.
pub trait Mirror<M> {
    /// From now on `handle` gives its session access to a range of `memory`.
    fn appeared(&mut self, handle: Handle, session: SessionId, memory: &M, range: (u64, u64), rights: Rights);

    /// No request may begin with the handle of this index any more. The index may be one that never appeared.
    fn died(&mut self, index: u32);
}
