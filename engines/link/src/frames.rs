//! Frames that name memory of other nodes.
//!
//! ```text
//! attach(node, token, user) ─► an address that nothing else has ─► requests name it ─► find
//! unmapping ─► gone: the peer is informed
//! ```
//!
//! A token names a grant within one run of its service: after the next start the same token may name other memory. So a frame belongs to the
//! run that its node had when the frame was accepted, or, if the node was not known then, when it was first reached.

use std::collections::BTreeMap;
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
    next: usize,
    frames: BTreeMap<usize, Place>,
    /// The last known run of each node's service.
    runs: BTreeMap<NodeName, u64>,
    gone: Vec<usize>,
}

/// What a frame names, and in which run of that node's service.
#[derive(Clone, Copy)]
struct Place {
    remote: Remote,
    run: Option<u64>,
}

impl RemoteFrames {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a frame names, by its address.
    pub(crate) fn find(&self, address: usize) -> Option<Remote> {
        self.known().frames.get(&address).map(|place| place.remote)
    }

    /// Whether a frame named memory of an earlier run of its node's service.
    pub(crate) fn is_outlived(&self, address: usize) -> bool {
        let known = self.known();
        let Some(Place { remote, run: Some(run) }) = known.frames.get(&address) else { return false };
        known.runs.get(&remote.node).is_some_and(|now| now != run)
    }

    /// A node is connected, whose service has this run.
    pub(crate) fn reached(&self, node: NodeName, run: u64) {
        let mut known = self.known();
        known.runs.insert(node, run);
        for place in known.frames.values_mut().filter(|place| place.remote.node == node) {
            place.run.get_or_insert(run);
        }
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
        let address = known.next.max(FIRST);
        let length = usize::try_from(remote.length).ok()?;
        known.next = address.checked_add(length)?.checked_add(GAP)?;
        let run = known.runs.get(&remote.node).copied();
        known.frames.insert(address, Place { remote: *remote, run });
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use memferry::GrantToken;

    use super::*;

    #[test]
    fn a_frame_belongs_to_one_run_of_its_nodes_service() {
        let mut frames = RemoteFrames::default();
        let [alpha, beta] = ["alpha", "beta"].map(|name| name.parse::<NodeName>().unwrap());
        let remote = |node| Remote { node, token: GrantToken::from_raw(1 << 32), user: 7, length: 4096 };
        let mut attach = |node| frames.attach(Handle::new(0, 1), &remote(node)).unwrap();
        let [early, other] = [alpha, beta].map(&mut attach);
        let shared = frames.clone();
        shared.reached(alpha, 1);
        let late = frames.attach(Handle::new(0, 1), &remote(alpha)).unwrap();
        assert!([early, other, late].iter().all(|frame| !shared.is_outlived(*frame)));
        // The connection broke, and the service is still the same.
        shared.reached(alpha, 1);
        assert!(!shared.is_outlived(early) && !shared.is_outlived(late));
        shared.reached(alpha, 2);
        assert!(shared.is_outlived(early) && shared.is_outlived(late) && !shared.is_outlived(other));
        let next = frames.attach(Handle::new(0, 1), &remote(alpha)).unwrap();
        assert!(!shared.is_outlived(next) && shared.is_outlived(early));
        shared.reached(beta, 2);
        assert!(!shared.is_outlived(other));
    }
}
