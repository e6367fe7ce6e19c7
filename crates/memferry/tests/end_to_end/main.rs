//! An embedded client from submission to completion, held against the byte oracle.
//!
//! ```text
//! served     random operations of all kinds     moves  images     ends     cancel, deadline, revocation, dropped frames
//! rings      staging, capacity, tickets, waits, threads      grants   between two sessions of one service
//! arenas     buffers, collections, what keeps their memory     owned   memory the program had before
//! copier     asynchronous copies of owned memory
//! terms      links, fences, loops, batches, parts     signals  eventfd, io_uring     futures  with and without a runtime
//! ```
//!
//! The services here move small chunks on few queues, so that transfers take many turns and wait for each other.

mod arenas;
mod copier;
mod ends;
mod futures;
mod grants;
mod moves;
mod owned;
mod rings;
mod served;
mod signals;
mod terms;

use std::time::Duration;

use memferry::{
    Client, Color24, Completion, Count2d, Fill2d, Frame, PixelSize, Plane, ServiceConfig, Transfer,
};

const FRAME_BYTES: u64 = 4096;
/// Long enough for a service on a busy machine; a test that comes to its end waits for less.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// A client of a service of its own: one worker, three queues, 64 bytes at a time.
fn client() -> Client {
    let config =
        ServiceConfig { workers: 1, channels_per_worker: 3, chunk_bytes: 64, ..ServiceConfig::default() };
    Client::embedded_with(config).expect("an embedded service")
}

fn frame(client: &Client) -> Frame {
    client.allocate(FRAME_BYTES).expect("a frame")
}

fn contents(frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; frame.length() as usize];
    frame.read(0, &mut bytes).expect("the frame's own bytes");
    bytes
}

/// Waits until it is so.
fn until(mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE.expect("a limit"), "it does not come");
        std::thread::yield_now();
    }
}

/// A transfer that ends only when it is told to: 2^38 times the frame's first byte.
fn endless(frame: &Frame) -> Transfer {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = Color24::new(0xee).expect("24 bits");
    Transfer::fill_2d(&frame.all(), Fill2d { count, destination, color })
}

fn outcome(completion: Completion) -> Result<u64, memferry::Failure> {
    completion.outcome.map(|()| completion.bytes_done)
}
