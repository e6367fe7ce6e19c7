//! Revocations, which wait for requests in flight and for failed channels, because both keep memory in the table.
//!
//! ```text
//! revoke, close ──► whole trees give no access ─┬─ nothing in flight: nodes are gone ──────────────► finished
//!                                               └─ otherwise wait for the root ──► release ──► gone ──► finished
//!                                                     └─ only failed channels left ──► withheld, reported once
//! ```
//!
//! Trees are walked in parts, so that a caller that shares the table is not kept from it by a tree of a million nodes:
//!
//! ```text
//! begin_revoke, begin_close ─► marking ─ advance(nodes) ─ advance(nodes) ─► all marked        revoke, close: all of it in one call
//!                                each node: mark, its children, settle
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
    /// Its trees are not marked completely.
    marking: bool,
}

/// A walk through the trees of a revocation, which goes on where it stopped although the table changes meanwhile.
pub(super) struct Marking {
    id: RevocationId,
    by: SessionId,
    next: NextRoot,
    /// From the present root down: nodes whose children are being visited, and the first child index that was not.
    path: Vec<(Handle, u32)>,
}

/// Where a walk continues after a tree.
enum NextRoot {
    None,
    One(Handle),
    /// The nodes that the session holds, from this index on.
    Held(u32),
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
        self.begin_revoke(session, handle, usize::MAX)
    }

    /// Begins to revoke as [`revoke`](Self::revoke) does, and visits about `nodes` nodes at once, at first the capability itself. The
    /// others are left to [`advance`](Self::advance).
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke).
    pub fn begin_revoke(
        &mut self,
        session: SessionId,
        handle: Handle,
        nodes: usize,
    ) -> Result<RevocationId, CapabilityError> {
        if self.table.get(handle).is_none_or(|node| node.session != session) {
            return Err(CapabilityError::Unknown(handle));
        }
        Ok(self.begin(session, NextRoot::One(handle), nodes))
    }

    /// Revokes all capabilities of a session, as [`revoke`](Self::revoke).
    pub fn close(&mut self, session: SessionId) -> RevocationId {
        self.begin_close(session, usize::MAX)
    }

    /// Begins to revoke all capabilities of a session, as [`begin_revoke`](Self::begin_revoke). It must get no further ones but below
    /// those that it has.
    pub fn begin_close(&mut self, session: SessionId, nodes: usize) -> RevocationId {
        self.begin(session, NextRoot::Held(0), nodes)
    }

    /// Revokes all memory for which `lost` returns true, because it is gone, and returns who registered it as what. Visits about `nodes`
    /// nodes at once, or one of each tree. Holders keep tombstones. The caller goes on as after [`begin_revoke`](Self::begin_revoke).
    pub fn revoke_lost(&mut self, lost: impl Fn(&M) -> bool, nodes: usize) -> Vec<(SessionId, Handle)> {
        let roots =
            self.roots.iter().filter_map(|index| Some((self.table.at(*index)?, self.table.handle(*index)?)));
        let lost = roots.filter(|(node, _)| node.memory().is_some_and(&lost));
        let lost: Vec<_> = lost.map(|(node, handle)| (node.session, handle)).collect();
        // At least one of each tree, so that none gives access any more.
        let each = (nodes / lost.len().max(1)).max(1);
        for (_, handle) in &lost {
            // No session has this id, so each holder keeps its tombstone.
            self.begin(SessionId(u64::MAX), NextRoot::One(*handle), each);
        }
        lost
    }

    fn begin(&mut self, by: SessionId, next: NextRoot, nodes: usize) -> RevocationId {
        let id = RevocationId(self.next_revocation);
        self.next_revocation += 1;
        let roots = Vec::new();
        self.revocations.insert(id, Revocation { roots, remaining: 0, withheld: false, marking: true });
        self.walk(Marking { id, by, next, path: Vec::new() }, nodes);
        id
    }

    /// Goes on with a revocation that has begun, for about `nodes` nodes. Returns whether there is more to go on with.
    pub fn advance(&mut self, nodes: usize) -> bool {
        if let Some(marking) = self.markings.pop_front() {
            self.walk(marking, nodes);
        }
        !self.markings.is_empty()
    }

    fn walk(&mut self, mut marking: Marking, nodes: usize) {
        for _ in 0..nodes {
            if !self.step(&mut marking) {
                return self.marked(marking.id);
            }
        }
        // Behind the others, so that a short revocation does not wait for a long one.
        self.markings.push_back(marking);
    }

    /// Whether no request can be using a capability but requests of its own session that have no claims: nothing is in flight on it, and
    /// nothing was ever derived or granted from it.
    pub fn is_unshared(&self, session: SessionId, handle: Handle) -> bool {
        let node = self.table.get(handle).filter(|node| node.session == session && !node.revoked);
        node.is_some_and(|node| node.in_flight == 0 && !node.shared)
    }

    /// Memory that [`take_dropped`](Self::take_dropped) would return.
    pub fn dropped(&self) -> usize {
        self.freed.len() + self.dropped.len()
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
        !self.finished.is_empty() || !self.withheld.is_empty() || self.dropped() > 0
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
            let is_open = |one: &&mut Revocation| !one.withheld && !one.marking;
            let Some(revocation) = self.revocations.get_mut(&id).filter(is_open) else { continue };
            let is_root = |index: &&u32| table.at(**index).is_some_and(|node| node.waiters.contains(&id));
            if revocation.roots.iter().filter(is_root).all(|root| table.is_withheld_below(*root)) {
                revocation.withheld = true;
                self.withheld.push(id);
            }
        }
    }

    /// Visits the next node of a walk; false at its end.
    fn step(&mut self, marking: &mut Marking) -> bool {
        let Some((handle, from)) = marking.path.last_mut() else {
            let Some(root) = self.next_root(marking) else { return false };
            self.add_root(marking.id, root);
            self.mark(root, marking);
            return true;
        };
        // It is gone if its last child was.
        let child = self.table.get(*handle).and_then(|node| node.children.range(*from..).next().copied());
        match child {
            Some(child) => {
                // No index is that large: the table could not hold it.
                *from = child.saturating_add(1);
                self.mark(child, marking);
            }
            None => {
                let index = handle.index();
                let is_there = self.table.get(*handle).is_some();
                marking.path.pop();
                if is_there {
                    self.settle(index);
                }
            }
        }
        true
    }

    fn next_root(&self, marking: &mut Marking) -> Option<u32> {
        match marking.next {
            NextRoot::None => None,
            NextRoot::One(handle) => {
                marking.next = NextRoot::None;
                self.table.get(handle).map(|_| handle.index())
            }
            NextRoot::Held(from) => {
                let root = self.held.get(&marking.by)?.range(from..).next().copied()?;
                marking.next = root.checked_add(1).map_or(NextRoot::None, NextRoot::Held);
                Some(root)
            }
        }
    }

    /// Makes a revocation wait for a node.
    fn add_root(&mut self, id: RevocationId, root: u32) {
        self.forget_reported(root);
        let (Some(node), Some(revocation)) = (self.table.at_mut(root), self.revocations.get_mut(&id)) else {
            return;
        };
        node.waiters.push(id);
        revocation.roots.push(root);
        revocation.remaining += 1;
    }

    /// Marks a node, and visits its children next unless an earlier revocation does.
    fn mark(&mut self, index: u32, marking: &mut Marking) {
        let handle = self.table.handle(index);
        let (Some(node), Some(handle)) = (self.table.at_mut(index), handle) else { return };
        node.forgotten |= node.session == marking.by || node.grantee.is_some();
        let was_revoked = std::mem::replace(&mut node.revoked, true);
        let is_leaf = node.children.is_empty();
        if node.root == index {
            self.roots.remove(&index);
        }
        self.caught |= !was_revoked && node.in_flight > 0;
        if let Some(mirror) = self.mirror.as_mut().filter(|_| !was_revoked) {
            mirror.died(index);
        }
        if was_revoked || is_leaf {
            self.settle(index);
        } else {
            marking.path.push((handle, 0));
        }
    }

    /// A revocation has marked all that it revokes.
    fn marked(&mut self, id: RevocationId) {
        if let Some(revocation) = self.revocations.get_mut(&id) {
            revocation.marking = false;
            if revocation.remaining == 0 {
                self.revocations.remove(&id);
                self.finished.push(id);
            }
        }
        self.find_withheld();
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

    /// Drops the memory of a revoked node once nothing is in flight on it, and if it is a root, nothing is below it. Removes the node once
    /// nothing is below it, then does the same for its ancestors.
    fn settle(&mut self, index: u32) {
        let mut next = Some(index);
        while let Some(index) = next {
            let idle = |node: &&mut Node<M>| node.revoked && node.in_flight == 0;
            let Some(node) = self.table.at_mut(index).filter(idle) else { break };
            let is_root = node.parent.is_none();
            if is_root && !node.children.is_empty() {
                break;
            }
            let left = if is_root { &mut self.freed } else { &mut self.dropped };
            left.extend(node.kept.take());
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
        if revocation.marking {
            // Usually the root that was added last.
            if let Some(last) = revocation.roots.last()
                && self.table.at(*last).is_none_or(|node| !node.waiters.contains(&id))
            {
                revocation.roots.pop();
            }
        } else if revocation.remaining == 0 {
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
