//! Tests of an embedded client from submission to completion.
//!
//! ```text
//! served     random operations, compared with an oracle     moves    images     ends    cancel, deadline, revocation, drops
//! rings      staging, capacity, tickets, waits, threads     grants   between two sessions of one service
//! arenas     buffers and collections                        owned    memfds and vectors of the program
//! copier     asynchronous copies of owned memory            failures each failed transfer is an `Err`
//! terms      links, fences, loops, batches, partial waits   signals  eventfd, io_uring
//! futures    with and without a runtime
//! ```
//!
//! The services here move small chunks on few engine channels, so that transfers take many turns and wait for each other.

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

/// Timeout that ends a failing test; longer than a passing one takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client of a new service: one worker, three engine channels, chunks of 64 bytes.
fn client() -> Client {
    let config =
        ServiceConfig { workers: 1, channels_per_worker: 3, chunk_bytes: 64, ..ServiceConfig::default() };
    Client::embedded_with(config).expect("an embedded service")
}

/// Waits until a condition is met.
fn until(mut condition: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "the condition is not met in time");
        std::thread::yield_now();
    }
}
