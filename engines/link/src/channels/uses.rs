//! What uses a connection for channels, so that the connection can be given up at a moment when nothing does.
//!
//! ```text
//! a word of the peer, a request, a channel ─ begin ─► Use ─ dropped ─► none left ─ give_up ─► begin: no more
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of a connection that was given up.
const GIVEN_UP: usize = usize::MAX;

/// The uses of one connection. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Uses(Arc<AtomicUsize>);

/// Its end is the end of a use.
pub(super) struct Use(Uses);

impl Uses {
    /// Begins a use; `None` if the connection was given up.
    pub(super) fn begin(&self) -> Option<Use> {
        let more = |count: usize| if count == GIVEN_UP { None } else { Some(count + 1) };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Use(self.clone()))
    }

    /// Gives the connection up, if nothing uses it. Returns whether it is.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(0, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
