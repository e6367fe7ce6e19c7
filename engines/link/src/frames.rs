//! Frames that name memory of other nodes.
//!
//! ```text
//! attach(node, token, user) ─► an address that nothing else has ─► requests name it ─► find
//! unmapping ─► gone: the peer is informed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry::NodeName;
use memferry_engine::{FrameWatcher, Handle, Mapping, Remote};

/// The first address: nothing of a process lies there.
const FIRST: usize = 1 << 48;
/// Between two frames, so that a mistake in one does not name the other.
const GAP: usize = 1 << 16;

/// The frames. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct RemoteFrames(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// The nodes that the link knows.
    peers: BTreeSet<NodeName>,
    next: usize,
    frames: BTreeMap<usize, Remote>,
    gone: Vec<usize>,
}

impl RemoteFrames {
    /// Frames of these nodes; of others there are none.
    pub(crate) fn new(peers: BTreeSet<NodeName>) -> Self {
        Self(Arc::new(Mutex::new(Known { peers, ..Known::default() })))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a frame names, by its address.
    pub(crate) fn find(&self, address: usize) -> Option<Remote> {
        self.known().frames.get(&address).copied()
    }

    /// Frames of each node.
    pub(crate) fn counts(&self) -> BTreeMap<NodeName, u64> {
        let mut counts = BTreeMap::new();
        for remote in self.known().frames.values() {
            *counts.entry(remote.node).or_default() += 1;
        }
        counts
    }

    /// Addresses of frames that ended since the last call.
    pub(crate) fn take_gone(&self) -> Vec<usize> {
        std::mem::take(&mut self.known().gone)
    }
}

impl FrameWatcher for RemoteFrames {
    fn mapped(&mut self, _: Handle, _: &Mapping) {}

    fn unmapping(&mut self, _: Handle, memory: &Mapping) {
        if memory.is_elsewhere() {
            let address = memory.pointer().addr();
            let mut known = self.known();
            if known.frames.remove(&address).is_some() {
                known.gone.push(address);
            }
        }
    }

    fn attach(&mut self, _: Handle, remote: &Remote) -> Option<usize> {
        let mut known = self.known();
        if !known.peers.contains(&remote.node) {
            return None;
        }
        let address = known.next.max(FIRST);
        let length = usize::try_from(remote.length).ok()?;
        known.next = address.checked_add(length)?.checked_add(GAP)?;
        known.frames.insert(address, *remote);
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use memferry::{GrantToken, ServiceId};

    use super::*;

    #[test]
    fn frames_are_of_known_nodes_and_do_not_touch() {
        let [alpha, beta] = ["alpha", "beta"].map(|name| name.parse::<NodeName>().unwrap());
        let mut frames = RemoteFrames::new(BTreeSet::from([alpha]));
        let token = GrantToken::from_raw(1 << 32);
        let remote = |node, length| Remote { node, service: ServiceId(1), token, user: 7, length };
        let mut attach = |node, length| frames.attach(Handle::new(0, 1), &remote(node, length));
        assert_eq!(attach(beta, 4096), None, "the link does not know it");
        let one = attach(alpha, 1 << 20).unwrap();
        let other = attach(alpha, 1).unwrap();
        assert!(other > one + (1 << 20));
        assert_eq!(attach(alpha, u64::MAX), None, "there are no such addresses");
        assert_eq!(frames.find(other), Some(remote(alpha, 1)));
        assert_eq!(frames.counts(), BTreeMap::from([(alpha, 2)]));
        frames.unmapping(Handle::new(0, 1), &Mapping::elsewhere(one, 1 << 20).unwrap());
        assert_eq!((frames.find(one), frames.take_gone()), (None, vec![one]));
    }
}
