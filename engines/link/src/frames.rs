//! Frames that name memory of other nodes.
//!
//! ```text
//! attach(node, token, user) ─► an address that nothing else has ─► requests name it ─► find
//! unmapping ─► gone: the peer is informed
//! attach(this node, a secret) ─► the window, by which the link uses its own node's memory in place
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry::{NodeName, ServiceId};
use memferry_engine::{FrameWatcher, Handle, Mapping, Remote};

/// The first address: nothing of a process lies there.
const FIRST: usize = 1 << 48;
/// Between two frames, so that a mistake in one does not name the other.
const GAP: usize = 1 << 16;

/// The frames. Clones share them.
#[derive(Clone)]
pub(crate) struct RemoteFrames(Arc<Mutex<Known>>);

struct Known {
    /// The nodes that the link knows.
    peers: BTreeSet<NodeName>,
    /// What names the window: this node, and a number that only this process knows.
    own: (NodeName, ServiceId),
    window: Option<usize>,
    /// Where frames begin again when the addresses are used up: behind the window, which stays.
    first: usize,
    next: usize,
    frames: BTreeMap<usize, Remote>,
    /// Addresses in use and their lengths: those of frames, and those of ended ones until [`RemoteFrames::free`].
    taken: BTreeMap<usize, usize>,
    gone: Vec<usize>,
}

impl Known {
    /// An address for so many bytes, as far behind the last one as it can be.
    fn place(&self, length: usize) -> Option<usize> {
        self.gap(self.next, length).or_else(|| self.gap(self.first, length))
    }

    /// The first address from there on with so many bytes behind it.
    fn gap(&self, from: usize, length: usize) -> Option<usize> {
        let mut at = from;
        for (begin, taken) in self.taken.range(from..) {
            if end_of(at, length)? <= *begin {
                break;
            }
            at = end_of(*begin, *taken)?;
        }
        end_of(at, length).map(|_| at)
    }
}

/// The first address that a frame behind this one can have.
fn end_of(address: usize, length: usize) -> Option<usize> {
    address.checked_add(length)?.checked_add(GAP)
}

impl RemoteFrames {
    /// Frames of these nodes; of others there are none. The window has a name of its own.
    pub(crate) fn new(peers: BTreeSet<NodeName>, own: (NodeName, ServiceId)) -> Self {
        Self(Arc::new(Mutex::new(Known {
            peers,
            own,
            window: None,
            first: FIRST,
            next: FIRST,
            frames: BTreeMap::new(),
            taken: BTreeMap::new(),
            gone: Vec::new(),
        })))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a frame names, by its address.
    pub(crate) fn find(&self, address: usize) -> Option<Remote> {
        self.known().frames.get(&address).copied()
    }

    /// The address of the window, if there is one.
    pub(crate) fn window(&self) -> Option<usize> {
        self.known().window
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

    /// Lets another frame have the address of one that ended. While something `is_named` by it, that would reach the other frame's memory:
    /// then the address is gone again in the next call.
    pub(crate) fn free(&self, address: usize, is_named: bool) {
        let mut known = self.known();
        if is_named {
            known.gone.push(address);
        } else {
            known.taken.remove(&address);
        }
    }
}

impl FrameWatcher for RemoteFrames {
    fn mapped(&self, _: Handle, _: &Mapping) {}

    fn unmapping(&self, _: Handle, memory: &Mapping) {
        if memory.is_elsewhere() {
            let address = memory.pointer().addr();
            let mut known = self.known();
            if known.frames.remove(&address).is_some() {
                known.gone.push(address);
            }
        }
    }

    fn attach(&self, _: Handle, remote: &Remote) -> Option<usize> {
        let mut known = self.known();
        let is_window = known.window.is_none() && (remote.node, remote.service) == known.own;
        if !is_window && !known.peers.contains(&remote.node) {
            return None;
        }
        let length = usize::try_from(remote.length).ok()?;
        let address = known.place(length)?;
        known.next = end_of(address, length)?;
        if is_window {
            known.window = Some(address);
            known.first = known.next;
        } else {
            known.frames.insert(address, *remote);
            known.taken.insert(address, length);
        }
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use memferry::{GrantToken, ServiceId};

    use super::*;

    #[test]
    fn frames_are_of_known_nodes_and_do_not_touch() {
        let [alpha, beta, own] = ["alpha", "beta", "own"].map(|name| name.parse::<NodeName>().unwrap());
        let frames = RemoteFrames::new(BTreeSet::from([alpha]), (own, ServiceId(2)));
        let token = GrantToken::from_raw(1 << 32);
        let remote = |node, length| Remote { node, service: ServiceId(1), token, user: 7, length };
        let attach = |node, length| frames.attach(Handle::new(0, 1), &remote(node, length));
        assert_eq!(attach(beta, 4096), None, "the link does not know it");
        let one = attach(alpha, 1 << 20).unwrap();
        let other = attach(alpha, 1).unwrap();
        assert!(other > one + (1 << 20));
        assert_eq!(attach(alpha, u64::MAX), None, "there are no such addresses");
        assert_eq!(frames.find(other), Some(remote(alpha, 1)));
        assert_eq!(frames.counts(), BTreeMap::from([(alpha, 2)]));
        frames.unmapping(Handle::new(0, 1), &Mapping::elsewhere(one, 1 << 20).unwrap());
        assert_eq!((frames.find(one), frames.take_gone()), (None, vec![one]));
        // The window is named by who knows the secret, once, and is no frame of another node.
        let attach = |service| {
            let remote = Remote { service: ServiceId(service), ..remote(own, 4096) };
            frames.attach(Handle::new(0, 1), &remote)
        };
        assert_eq!(attach(1), None);
        let window = attach(2).unwrap();
        assert_eq!(attach(2), None, "there is one");
        assert_eq!((frames.window(), frames.find(window)), (Some(window), None));
    }

    #[test]
    fn addresses_are_not_used_up() {
        let [alpha, own] = ["alpha", "own"].map(|name| name.parse::<NodeName>().unwrap());
        let frames = RemoteFrames::new(BTreeSet::from([alpha]), (own, ServiceId(2)));
        let token = GrantToken::from_raw(1 << 32);
        let remote = |length| Remote { node: alpha, service: ServiceId(1), token, user: 7, length };
        let handle = Handle::new(0, 1);
        let window = frames.attach(handle, &Remote { node: own, service: ServiceId(2), ..remote(1 << 20) });
        let window = window.unwrap();
        let lasting = frames.attach(handle, &remote(1 << 30)).unwrap();
        let mut last = lasting;
        for round in 0..40 {
            // Sixteen of these are all addresses that there are.
            let length = 1_usize << 60;
            let address = frames.attach(handle, &remote(length as u64)).unwrap();
            let are_apart = |begin: usize, length: usize, other: usize, bytes: usize| {
                begin + length < other || other + bytes < begin
            };
            assert!(are_apart(address, length, window, 1 << 20), "round {round}");
            assert!(are_apart(address, length, lasting, 1 << 30), "round {round}");
            assert_ne!(address, last, "one that has just ended");
            last = address;
            frames.unmapping(handle, &Mapping::elsewhere(address, length).unwrap());
            assert_eq!(frames.take_gone(), [address]);
            frames.free(address, false);
        }
        assert_eq!(frames.counts(), BTreeMap::from([(alpha, 1)]));
        // As long as a peer may know an ended one by its address, no other frame has that.
        let all = (1_u64 << 63) + (1 << 62);
        let address = frames.attach(handle, &remote(all)).unwrap();
        frames.unmapping(handle, &Mapping::elsewhere(address, all as usize).unwrap());
        for is_named in [true, true, false] {
            assert_eq!(frames.attach(handle, &remote(all)), None);
            assert_eq!(frames.take_gone(), [address]);
            frames.free(address, is_named);
        }
        assert_eq!((frames.attach(handle, &remote(all)), frames.take_gone()), (Some(address), vec![]));
    }
}
