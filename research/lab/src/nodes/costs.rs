//! What the link's thread does to the bytes of an answer, measured on this machine: `memferry-lab link-costs`.
//!
//! ```text
//! staging frame ── copied into a zeroed payload ── appended to the message ── appended to the key of UCX
//! ```
//!
//! These are the steps of `Owner::poll`, `Node::serve` and `Node::send` in `engines/link`, over plain memory. What UCX and the kernel do
//! is not in it.

use std::hint::black_box;
use std::time::Instant;

/// Bytes of an answer, and slots that the sources go round, as in the link.
const CHUNK: usize = 256 << 10;
const SLOTS: usize = 32;
/// Rounds, of which the median counts.
const ROUNDS: usize = 41;

/// Nanoseconds of one answer of 256 KiB, medians: first while the allocator gives the buffers back to the kernel, so that each has to be
/// populated again, then while it keeps them. glibc keeps blocks as large as the largest one that was freed before.
pub fn measure() -> [u64; 2] {
    let staging = vec![0xA5_u8; CHUNK * SLOTS];
    let fresh = median(&staging);
    drop(black_box(vec![0_u8; CHUNK * SLOTS]));
    [fresh, median(&staging)]
}

/// The median of rounds of one answer for each slot.
#[expect(clippy::slow_vector_initialization, reason = "the link resizes, too")]
fn median(staging: &[u8]) -> u64 {
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for slot in staging.chunks_exact(CHUNK) {
            let mut payload = Vec::new();
            payload.resize(CHUNK, 0);
            payload.copy_from_slice(slot);
            let mut message = Vec::with_capacity(8 + CHUNK);
            message.extend_from_slice(&[0; 8]);
            message.extend_from_slice(black_box(&payload));
            let mut keyed = Vec::with_capacity(16 + message.len());
            keyed.extend_from_slice(&[0; 16]);
            keyed.extend_from_slice(black_box(&message));
            black_box(keyed);
        }
        rounds.push(began.elapsed().as_nanos() as u64 / SLOTS as u64);
    }
    rounds.sort_unstable();
    rounds[ROUNDS / 2]
}
