//! Frames that name memory of other nodes.
//!
//! ```text
//! attach(node, token, user) ─► an address that nothing else has ─► requests name it ─► find
//! unmapping ─► gone: the peer is told
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    frames: BTreeMap<usize, Remote>,
    gone: Vec<usize>,
}

impl RemoteFrames {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a frame names, by its address.
    pub(crate) fn find(&self, address: usize) -> Option<Remote> {
        self.known().frames.get(&address).copied()
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
        known.frames.insert(address, *remote);
        Some(address)
    }
}
