//! Closing what other processes sent, where nobody waits for it.
//!
//! ```text
//! close_elsewhere ─► counted ─ a thread for each lot ─ closed, one after the other ─► counted off
//! wait_for_room   ─ few are not closed yet ─► another connection may begin; else refused, after a moment
//! ```
//!
//! What a peer sends may take as long to close as the peer likes: a TCP socket that lingers, for instance. A lot has a thread
//! of its own, so that what somebody sent to be slow keeps the sockets of nobody else open. What can be waiting is bounded all
//! the same: a connection brings some 320 descriptors at most before it is broken, and while more than 256 are not closed yet
//! no other begins. So the bound is these 256, and 320 for each connection that is open.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::ConnectError;

/// Descriptors that may be waiting when a connection begins: more than one packet brings.
const MOST: u32 = 256;
/// How long a connection waits for others' descriptors to be closed: those that are not slow by intention are by then.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(5);

/// Descriptors of a process that are not closed yet, in the low half, and which process it is. A forked child has those of its
/// parent's lots too, and nobody there who closes them: it counts from nothing.
static PENDING: AtomicU64 = AtomicU64::new(0);

fn of_this_process(counted: u64) -> u32 {
    if (counted >> 32) as u32 == std::process::id() { counted as u32 } else { 0 }
}

fn count(change: impl Fn(u32) -> u32) {
    let mut counted = PENDING.load(Ordering::Relaxed);
    loop {
        let next = u64::from(std::process::id()) << 32 | u64::from(change(of_this_process(counted)));
        match PENDING.compare_exchange_weak(counted, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => counted = now,
        }
    }
}

/// Descriptors that are counted until each is closed, wherever this is dropped.
struct Lot(Vec<OwnedFd>);

impl Lot {
    fn new(descriptors: Vec<OwnedFd>) -> Self {
        let more = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        count(|pending| pending.saturating_add(more));
        Self(descriptors)
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        for descriptor in self.0.drain(..) {
            drop(descriptor);
            count(|pending| pending.saturating_sub(1));
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
        let pending = of_this_process(PENDING.load(Ordering::Relaxed));
        if pending <= MOST {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(ConnectError::Closing { pending });
        }
        std::thread::sleep(NAP);
    }
}
