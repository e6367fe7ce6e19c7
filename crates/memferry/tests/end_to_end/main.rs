//! An embedded client from submission to completion, held against the byte oracle.
//!
//! ```text
//! served     random operations of all kinds     moves  images     ends     cancel, deadline, revocation, dropped frames
//! rings      staging, capacity, tickets, waits, threads      grants   between two sessions of one service
//! arenas     buffers, collections, what keeps their memory     owned   memory the program had before
//! copier     asynchronous copies of owned memory
//! failures   none is overlooked, and what cannot be is given back
//! terms      links, fences, loops, batches, parts     signals  eventfd, io_uring     futures  with and without a runtime
//! ```
//!
//! The services here move small chunks on few queues, so that transfers take many turns and wait for each other.

mod arenas;
mod copier;
mod ends;
mod failures;
mod futures;
mod grants;
mod moves;
mod owned;
mod rings;
mod served;
mod shared;
mod signals;
mod terms;

use std::time::Duration;

use memferry::{Client, ServiceConfig};
use shared::*;

/// Long enough for a service on a busy machine; a test that comes to its end waits for less.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client of a service of its own: one worker, three queues, 64 bytes at a time.
fn client() -> Client {
    let config =
        ServiceConfig { workers: 1, channels_per_worker: 3, chunk_bytes: 64, ..ServiceConfig::default() };
    Client::embedded_with(config).expect("an embedded service")
}

/// Waits until it is so.
fn until(mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}
