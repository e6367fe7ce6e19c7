//! The slots of the capability table: generations, parents and children. What they mean is the parent module's.

use std::collections::BTreeSet;

use memferry_transfer::{Handle, Rights, SessionId};

use super::{Grantee, RevocationId};

pub(super) struct Node<M> {
    pub(super) session: SessionId,
    /// Until it is revoked and nothing is in flight on it.
    pub(super) kept: Option<M>,
    /// It gives no access, nor does anything below it; the slot stays until nothing is in flight there and its holder need not be
    /// told.
    pub(super) revoked: bool,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) rights: Rights,
    pub(super) parent: Option<u32>,
    /// The registered memory it is a part of, by the index of its node. That one stays as long as anything is below it.
    pub(super) root: u32,
    pub(super) children: BTreeSet<u32>,
    pub(super) grantee: Option<Grantee>,
    pub(super) in_flight: u32,
    /// So many of these are over, but a failed channel may still touch the memory.
    pub(super) quarantined: u32,
    /// Its holder gave it up, so no tombstone is kept.
    pub(super) forgotten: bool,
    /// Revocations that began with it, while it is not gone.
    pub(super) waiters: Vec<RevocationId>,
}

impl<M> Node<M> {
    pub(super) fn new(
        session: SessionId,
        memory: M,
        (offset, length): (u64, u64),
        rights: Rights,
        parent: Option<u32>,
        grantee: Option<Grantee>,
    ) -> Self {
        Self {
            session,
            kept: Some(memory),
            revoked: false,
            offset,
            length,
            rights,
            parent,
            root: 0,
            children: BTreeSet::new(),
            grantee,
            in_flight: 0,
            quarantined: 0,
            forgotten: false,
            waiters: Vec::new(),
        }
    }

    /// Whether nothing is in flight on it but what failed channels keep.
    pub(super) fn is_withheld(&self) -> bool {
        self.in_flight > 0 && self.in_flight == self.quarantined
    }

    /// The memory it gives access to, `None` once it was revoked.
    pub(super) fn memory(&self) -> Option<&M> {
        self.kept.as_ref().filter(|_| !self.revoked)
    }
}

struct Slot<M> {
    generation: u32,
    node: Option<Node<M>>,
    /// Who held it last, so that a stale handle can be told from a foreign one.
    last_session: Option<SessionId>,
}

pub(super) struct Table<M> {
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
}

impl<M> Table<M> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// The node a handle names in its generation.
    #[inline]
    pub(super) fn get(&self, handle: Handle) -> Option<&Node<M>> {
        let slot = self.slots.get(handle.index() as usize)?;
        if slot.generation == handle.generation() { slot.node.as_ref() } else { None }
    }

    /// Whether `handle` named something `session` held that is gone.
    pub(super) fn was(&self, handle: Handle, session: SessionId) -> bool {
        let slot = self.slots.get(handle.index() as usize);
        slot.is_some_and(|slot| handle.generation() < slot.generation && slot.last_session == Some(session))
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> Option<&Node<M>> {
        self.slots.get(index as usize)?.node.as_ref()
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Node<M>> {
        self.slots.get_mut(index as usize)?.node.as_mut()
    }

    /// Changes a node's count of requests in flight; returns the new count.
    #[inline]
    pub(super) fn count_in_flight(&mut self, index: u32, change: i32) -> u32 {
        self.at_mut(index).map_or(0, |node| {
            node.in_flight = node.in_flight.saturating_add_signed(change);
            node.in_flight
        })
    }

    pub(super) fn insert(&mut self, mut node: Node<M>) -> Handle {
        let parent = node.parent;
        let root = parent.and_then(|parent| self.at(parent)).map(|parent| parent.root);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 1, node: None, last_session: None });
            self.slots.len() as u32 - 1
        });
        node.root = root.unwrap_or(index);
        let slot = &mut self.slots[index as usize];
        slot.last_session = Some(node.session);
        slot.node = Some(node);
        let handle = Handle::new(index, slot.generation);
        if let Some(parent) = parent.and_then(|parent| self.at_mut(parent)) {
            parent.children.insert(index);
        }
        handle
    }

    /// Takes a node without children out of the tree; returns its parent.
    pub(super) fn detach(&mut self, index: u32) -> Option<u32> {
        let parent = self.at_mut(index)?.parent.take()?;
        if let Some(above) = self.at_mut(parent) {
            above.children.remove(&index);
        }
        Some(parent)
    }

    /// Frees the slot of a node that was detached. A slot whose generations are used up is retired.
    pub(super) fn remove(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if slot.node.take().is_none() {
            return;
        }
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(index);
        }
    }

    /// Whether all that is in flight on a node and below it is kept by failed channels.
    pub(super) fn is_withheld_below(&self, root: u32) -> bool {
        let mut open = vec![root];
        while let Some(node) = open.pop().and_then(|index| self.at(index)) {
            if node.in_flight > 0 && !node.is_withheld() {
                return false;
            }
            open.extend(&node.children);
        }
        true
    }
}
