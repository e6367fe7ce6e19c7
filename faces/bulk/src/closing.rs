//! Closing what other processes sent, where nobody waits for it.
//!
//! ```text
//! close_elsewhere ─► counted ─ a thread for each lot ─ closed, one after the other ─► counted off
//! wait_for_room   ─ few are not closed yet ─► another connection may begin; else refused, after a moment
//! ```
//!
//! What a peer sends may take as long to close as the peer likes: a TCP socket that lingers, for instance. A lot has a thread
//! of its own, so that what somebody sent to be slow keeps the sockets of nobody else open. What can be waiting is bounded all
//! the same: a connection brings a few hundred descriptors at most before it is broken, and while many are not closed yet no
//! other begins.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::ConnectError;

/// Descriptors that may be waiting when a connection begins: more than one packet brings.
const MOST: usize = 256;
/// How long a connection waits for others' descriptors to be closed: those that are not slow by intention are by then.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const NAP: Duration = Duration::from_millis(5);

/// Descriptors of this process that are not closed yet. A forked child has them too, and nobody there who closes them.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Descriptors that are counted until each is closed, wherever this is dropped.
struct Lot(Vec<OwnedFd>);

impl Lot {
    fn new(descriptors: Vec<OwnedFd>) -> Self {
        PENDING.fetch_add(descriptors.len(), Ordering::Relaxed);
        Self(descriptors)
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        for descriptor in self.0.drain(..) {
            drop(descriptor);
            PENDING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Closes what may take as long to close as a peer likes.
pub(crate) fn close_elsewhere(descriptors: Vec<OwnedFd>) {
    if !descriptors.is_empty() {
        let lot = Lot::new(descriptors);
        // Without a thread it is closed here.
        let _ = std::thread::Builder::new().name("memferry-close".to_owned()).spawn(move || drop(lot));
    }
}

/// Waits for a moment, and not beyond `deadline`, until few enough descriptors are waiting that another connection may begin.
pub(crate) fn wait_for_room(deadline: Option<Instant>) -> Result<(), ConnectError> {
    let patience = Instant::now() + PATIENCE;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    loop {
        let pending = PENDING.load(Ordering::Relaxed);
        if pending <= MOST {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(ConnectError::Closing { pending });
        }
        std::thread::sleep(NAP);
    }
}
