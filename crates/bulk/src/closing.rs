//! Closes descriptors that peers sent, on threads that no caller waits for.
//!
//! ```text
//! close_elsewhere ─► counted ─ one thread per batch closes them in sequence ─► counted off
//! wait_for_room   ─ few are pending ─► another connection may start; else an error after a short wait
//! ```
//!
//! A peer controls how long closing takes: a lingering TCP socket, for example. Each batch has its own thread, so slow
//! descriptors of one peer do not delay those of another. The total is bounded: a connection brings about 320 descriptors at
//! most before it is broken, and no connection starts while more than 256 are pending. So at most 256 are pending, plus 320 for
//! each open connection.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::error::ConnectError;
use crate::tally::Tally;

/// Pending descriptors with which a connection may still start: more than one packet brings.
const MOST: u32 = 256;
/// How long a connection waits for pending descriptors: enough for all that are not slow on purpose.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(5);

/// Received descriptors that are not closed yet.
static PENDING: Tally = Tally::new();

/// Descriptors that count as pending until each is closed, on the thread that drops the batch.
struct Batch(Vec<OwnedFd>);

impl Batch {
    fn new(descriptors: Vec<OwnedFd>) -> Self {
        let more = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        PENDING.add(more);
        Self(descriptors)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for descriptor in self.0.drain(..) {
            drop(descriptor);
            PENDING.subtract(1);
        }
    }
}

/// Closes descriptors without waiting for them.
pub(crate) fn close_elsewhere(descriptors: Vec<OwnedFd>) {
    if !descriptors.is_empty() {
        let batch = Batch::new(descriptors);
        // If no thread starts, the batch is dropped here.
        let _ = std::thread::Builder::new().name("memferry-close".to_owned()).spawn(move || drop(batch));
    }
}

/// Waits until few enough descriptors are pending for another connection: briefly, and not beyond `deadline`.
pub(crate) fn wait_for_room(deadline: Option<Instant>) -> Result<(), ConnectError> {
    let patience = Instant::now() + PATIENCE;
    let until = deadline.map_or(patience, |deadline| deadline.min(patience));
    loop {
        let pending = PENDING.get();
        if pending <= MOST {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(ConnectError::Closing { pending });
        }
        std::thread::sleep(NAP);
    }
}
