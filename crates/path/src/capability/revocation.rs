//! Revocations, which wait for requests in flight and for failed channels, because both keep memory in the table.
//!
//! ```text
//! revoke, close ──► whole trees give no access ─┬─ nothing in flight: nodes are gone ──────────────► finished
//!                                               └─ otherwise wait for the root ──► release ──► gone ──► finished
//!                                                     └─ only failed channels left ──► withheld, reported once
//! ```
//!
//! A revoked node is gone when nothing is in flight on it and all nodes below it are gone; a revocation finishes when its roots are
//! gone. So each node is marked once and removed once, however many revocations include it. The caller cancels running requests and
//! reports revocations.

use std::collections::BTreeSet;

use memferry_transfer::{Handle, Memory, SessionId};

use super::{Capabilities, CapabilityError, Claims, Node, RevocationId};

pub(super) struct Revocation {
    /// The nodes that the caller revoked, without those below.
    roots: Vec<u32>,
    /// How many of them are not gone yet.
    remaining: usize,
    /// Reported as delayed by failed channels only.
    withheld: bool,
}

impl<M: Memory> Capabilities<M> {
    /// Revokes a capability of `session` and everything derived from it. From now on no request is admitted on them; the caller
    /// cancels those in flight ([`uses_revoked`](Self::uses_revoked)).
    ///
    /// The revocation has finished when [`take_finished`](Self::take_finished) returns it.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`]. Revoking a tombstone forgets it.
    pub fn revoke(&mut self, session: SessionId, handle: Handle) -> Result<RevocationId, CapabilityError> {
        if self.table.get(handle).is_none_or(|node| node.session != session) {
            return Err(CapabilityError::Unknown(handle));
        }
        Ok(self.revoke_trees(&[handle.index()], session))
    }

    /// Revokes all capabilities of a session, as [`revoke`](Self::revoke).
    pub fn close(&mut self, session: SessionId) -> RevocationId {
        let held: Vec<u32> = self.held.get(&session).into_iter().flatten().copied().collect();
        self.revoke_trees(&held, session)
    }

    /// Whether a request in flight was revoked since the last call.
    pub fn take_caught(&mut self) -> bool {
        std::mem::take(&mut self.caught)
    }

    /// Revocations that ended since the last call, the earliest first. One that was [withheld](Self::take_withheld) is left out if
    /// the same capability was revoked again; the later revocation is returned instead.
    pub fn take_finished(&mut self) -> Vec<RevocationId> {
        let mut finished = std::mem::take(&mut self.finished);
        finished.sort_unstable();
        finished
    }

    /// Revocations that now wait only for failed channels, each returned once. They end when the channels are reset, which may
    /// never happen.
    pub fn take_withheld(&mut self) -> Vec<RevocationId> {
        std::mem::take(&mut self.withheld)
    }

    /// Whether [`take_finished`](Self::take_finished), [`take_withheld`](Self::take_withheld) or
    /// [`take_dropped`](Self::take_dropped) would return something.
    pub fn has_news(&self) -> bool {
        !self.finished.is_empty() || !self.withheld.is_empty() || !self.dropped.is_empty()
    }

    /// Ends a request's claims.
    pub fn release(&mut self, claims: Claims) {
        let mut awaited = false;
        for index in claims.0 {
            awaited |= self.table.at(index).is_some_and(|node| node.revoked);
            if self.table.count_in_flight(index, -1) == 0 {
                self.settle(index);
            }
        }
        if awaited {
            self.find_withheld();
        }
    }

    /// Keeps the claims of a request that has ended, because a failed channel may still touch its memory.
    pub(crate) fn quarantine(&mut self, claims: &Claims) {
        self.count_quarantined(claims, 1);
        self.find_withheld();
    }

    /// Ends quarantined claims after the channel was reset.
    pub(crate) fn release_quarantined(&mut self, claims: Claims) {
        self.count_quarantined(&claims, -1);
        self.release(claims);
    }

    fn count_quarantined(&mut self, claims: &Claims, change: i32) {
        for index in &claims.0 {
            let Some(node) = self.table.at_mut(*index) else { continue };
            node.quarantined = node.quarantined.saturating_add_signed(change);
            if node.quarantined > 0 {
                self.quarantined.insert(*index);
            } else {
                self.quarantined.remove(index);
            }
        }
    }

    /// Finds revocations that wait only for failed channels.
    fn find_withheld(&mut self) {
        let table = &self.table;
        let upwards = |index: &u32| {
            std::iter::successors(table.at(*index), |node| node.parent.and_then(|parent| table.at(parent)))
        };
        let waiting: BTreeSet<RevocationId> =
            self.quarantined.iter().flat_map(upwards).flat_map(|node| node.waiters.iter().copied()).collect();
        for id in waiting {
            let Some(revocation) = self.revocations.get_mut(&id).filter(|one| !one.withheld) else {
                continue;
            };
            let is_root = |index: &&u32| table.at(**index).is_some_and(|node| node.waiters.contains(&id));
            if revocation.roots.iter().filter(is_root).all(|root| table.is_withheld_below(*root)) {
                revocation.withheld = true;
                self.withheld.push(id);
            }
        }
    }

    /// Marks whole trees revoked and removes nodes that nothing uses.
    fn revoke_trees(&mut self, roots: &[u32], by: SessionId) -> RevocationId {
        let id = RevocationId(self.next_revocation);
        self.next_revocation += 1;
        for root in roots {
            self.forget_reported(*root);
            if let Some(node) = self.table.at_mut(*root) {
                node.waiters.push(id);
            }
        }
        let remaining = roots.len();
        let roots = roots.to_vec();
        let mut open = roots.clone();
        let mut marked = Vec::new();
        self.revocations.insert(id, Revocation { roots, remaining, withheld: false });
        while let Some(index) = open.pop() {
            let Some(node) = self.table.at_mut(index) else { continue };
            node.forgotten |= node.session == by || node.grantee.is_some();
            marked.push(index);
            // Everything below a node revoked earlier is revoked too.
            if !std::mem::replace(&mut node.revoked, true) {
                self.caught |= node.in_flight > 0;
                open.extend(&node.children);
            }
        }
        for index in marked.into_iter().rev() {
            self.settle(index);
        }
        if remaining == 0 {
            self.revocations.remove(&id);
            self.finished.push(id);
        }
        self.find_withheld();
        id
    }

    /// Forgets a revocation of this node alone that was reported as withheld: nothing waits for it any more, and a client that
    /// revokes repeatedly could accumulate them.
    fn forget_reported(&mut self, index: u32) {
        let Some(node) = self.table.at_mut(index) else { return };
        let revocations = &mut self.revocations;
        let unreported = &self.withheld;
        node.waiters.retain(|id| {
            let replaced = revocations.get(id).is_some_and(|one| one.withheld && one.roots.len() == 1);
            if replaced && !unreported.contains(id) {
                revocations.remove(id);
                return false;
            }
            true
        });
    }

    /// Drops the memory of a revoked node once nothing is in flight on it, removes the node once nothing is below it, then does the
    /// same for its ancestors.
    fn settle(&mut self, index: u32) {
        let mut next = Some(index);
        while let Some(index) = next {
            let idle = |node: &&mut Node<M>| node.revoked && node.in_flight == 0;
            let Some(node) = self.table.at_mut(index).filter(idle) else { break };
            self.dropped.extend(node.kept.take());
            if !node.children.is_empty() {
                break;
            }
            let session = node.session;
            let forgotten = node.forgotten;
            let waiters = std::mem::take(&mut node.waiters);
            next = self.table.detach(index);
            waiters.into_iter().for_each(|id| self.root_gone(id));
            if forgotten {
                self.table.remove(index);
                self.forget_handle(session, index);
            }
        }
    }

    fn root_gone(&mut self, id: RevocationId) {
        let Some(revocation) = self.revocations.get_mut(&id) else { return };
        revocation.remaining -= 1;
        if revocation.remaining == 0 {
            self.revocations.remove(&id);
            self.finished.push(id);
        }
    }

    fn forget_handle(&mut self, session: SessionId, index: u32) {
        let Some(held) = self.held.get_mut(&session) else { return };
        held.remove(&index);
        if held.is_empty() {
            self.held.remove(&session);
        }
    }
}

/// Memory that a failed channel may still write to is never freed, even when the service ends.
impl<M> Drop for Capabilities<M> {
    fn drop(&mut self) {
        for index in &self.quarantined {
            std::mem::forget(self.table.at_mut(*index).and_then(|node| node.kept.take()));
        }
    }
}
