//! Revocations: what they wait for, and how requests in flight and failed channels keep memory in the table.
//!
//! ```text
//! revoke, close ──► whole trees give no access ──► nothing in flight? let go of
//!                                                  otherwise awaited ──► release ──► finished
//!                                                                └── only failed channels left ──► withheld, told once
//! ```
//!
//! Who is told what is the caller's; so is cancelling what runs.

use memferry_transfer::{Handle, Memory, SessionId};

use super::table::Node;
use super::{Capabilities, CapabilityError, Claims, RevocationId};

pub(super) struct Revocation {
    id: RevocationId,
    /// Nodes of it that are still in flight.
    awaited: Vec<u32>,
    /// It was told that failed channels keep it from its end.
    withheld: bool,
}

impl<M: Memory> Capabilities<M> {
    /// Takes a capability of `session` and everything derived from it away. No request is admitted on them from here on;
    /// those in flight are the caller's to cancel ([`uses_revoked`](Self::uses_revoked)).
    ///
    /// The revocation is over when [`take_finished`](Self::take_finished) names it.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`]. Revoking a tombstone forgets it.
    pub fn revoke(&mut self, session: SessionId, handle: Handle) -> Result<RevocationId, CapabilityError> {
        if self.table.get(handle).is_none_or(|node| node.session != session) {
            return Err(CapabilityError::Unknown(handle));
        }
        Ok(self.revoke_trees(&[handle.index()], session))
    }

    /// Takes all capabilities of a session away, as [`revoke`](Self::revoke).
    pub fn close(&mut self, session: SessionId) -> RevocationId {
        let held: Vec<u32> = self.held.get(&session).into_iter().flatten().copied().collect();
        self.revoke_trees(&held, session)
    }

    /// Whether a revocation that [`take_finished`](Self::take_finished) has not named yet is over: nothing waits for it.
    pub fn is_over(&self, revocation: RevocationId) -> bool {
        self.finished.contains(&revocation)
    }

    /// Revocations that ended since this was last called. One that was [withheld](Self::take_withheld) is not among them when
    /// the same was revoked again afterwards: that one is.
    pub fn take_finished(&mut self) -> Vec<RevocationId> {
        std::mem::take(&mut self.finished)
    }

    /// Revocations that since this was last called came to wait for failed channels alone, each once: they are over when
    /// these were reset, which may be never.
    pub fn take_withheld(&mut self) -> Vec<RevocationId> {
        std::mem::take(&mut self.withheld)
    }

    /// Whether [`take_finished`](Self::take_finished), [`take_withheld`](Self::take_withheld) or
    /// [`take_dropped`](Self::take_dropped) has something.
    pub fn has_news(&self) -> bool {
        !self.finished.is_empty() || !self.withheld.is_empty() || !self.dropped.is_empty()
    }

    /// Ends a request's claims.
    pub fn release(&mut self, claims: Claims) {
        for index in claims.0 {
            if self.table.count_in_flight(index, -1) == 0 {
                self.settled(index);
            }
        }
        self.find_withheld();
    }

    /// Keeps the claims of a request that is over, since a failed channel may still touch its memory.
    pub(crate) fn quarantine(&mut self, claims: &Claims) {
        self.count_quarantined(claims, 1);
        self.find_withheld();
    }

    /// Ends claims that were quarantined: the channel was reset.
    pub(crate) fn release_quarantined(&mut self, claims: Claims) {
        self.count_quarantined(&claims, -1);
        self.release(claims);
    }

    fn count_quarantined(&mut self, claims: &Claims, change: i32) {
        for index in &claims.0 {
            if let Some(node) = self.table.at_mut(*index) {
                node.quarantined = node.quarantined.saturating_add_signed(change);
                self.quarantined = self.quarantined.saturating_add_signed(change);
            }
        }
    }

    /// Looks for revocations that wait for failed channels alone.
    fn find_withheld(&mut self) {
        if self.quarantined == 0 {
            return;
        }
        let table = &self.table;
        let is_withheld = |index: &u32| table.at(*index).is_some_and(Node::is_withheld);
        for revocation in self.revocations.iter_mut().filter(|revocation| !revocation.withheld) {
            if revocation.awaited.iter().all(is_withheld) {
                revocation.withheld = true;
                self.withheld.push(revocation.id);
            }
        }
    }

    /// Marks whole trees revoked and frees what nothing uses.
    fn revoke_trees(&mut self, roots: &[u32], by: SessionId) -> RevocationId {
        let id = RevocationId(self.next_revocation);
        self.next_revocation += 1;
        let mut awaited = Vec::new();
        for index in self.table.subtrees(roots) {
            let Some(node) = self.table.at_mut(index) else { continue };
            node.forgotten |= node.session == by || node.offered_to.is_some();
            node.revoked = true;
            if node.in_flight > 0 {
                awaited.push(index);
            } else {
                self.settled(index);
            }
        }
        if awaited.is_empty() {
            self.finished.push(id);
        } else {
            self.replace_told(&awaited);
            self.revocations.push(Revocation { id, awaited, withheld: false });
            self.find_withheld();
        }
        id
    }

    /// Forgets revocations of the same nodes that were told to be withheld: nobody waits for them any more, and a client that
    /// revokes again and again could pile them up.
    fn replace_told(&mut self, awaited: &[u32]) {
        let untold = &self.withheld;
        self.revocations.retain(|earlier| {
            !earlier.withheld || earlier.awaited != awaited || untold.contains(&earlier.id)
        });
    }

    /// A node has nothing in flight (any more): if it is revoked, it lets go of its memory, revocations need not wait
    /// for it, and a node nobody needs to hear of is freed.
    fn settled(&mut self, index: u32) {
        let Some(node) = self.table.at_mut(index).filter(|node| node.revoked) else { return };
        let (session, forgotten) = (node.session, node.forgotten);
        self.dropped.extend(node.kept.take());
        for revocation in &mut self.revocations {
            revocation.awaited.retain(|awaited| *awaited != index);
        }
        let over = self.revocations.extract_if(.., |revocation| revocation.awaited.is_empty());
        self.finished.extend(over.map(|revocation| revocation.id));
        if forgotten {
            self.table.remove(index);
            if let Some(held) = self.held.get_mut(&session) {
                held.remove(&index);
                if held.is_empty() {
                    self.held.remove(&session);
                }
            }
        }
    }
}
