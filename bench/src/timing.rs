//! Tools of measurements: timing of many calls, work that touches no memory, random bytes, medians.
//!
//! ```text
//! closure ─ count times ─► nanoseconds each        Work: turns of a dependent chain ◄─ calibrated in nanoseconds
//! ```
//!
//! Calls shorter than some microseconds are not timed singly: reading the clock takes 25 ns. This module does not know
//! what is measured.

use std::hint::black_box;
use std::time::Instant;

use fastrand::Rng;

use crate::BenchError;

/// Average nanoseconds of `count` calls.
///
/// # Errors
/// The first error of a call, which ends the measurement.
pub(crate) fn each_ns(
    count: usize,
    mut call: impl FnMut() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let started = Instant::now();
    for _ in 0..count {
        call()?;
    }
    Ok(since_ns(started) / count as f64)
}

pub(crate) fn since_ns(started: Instant) -> f64 {
    started.elapsed().as_nanos() as f64
}

/// The median; NaN without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Work in registers: each turn depends on the one before, and none touches memory.
pub(crate) struct Work {
    turn_ns: f64,
}

impl Work {
    /// Measures the time of a turn: the minimum of a few attempts.
    pub(crate) fn calibrated() -> Self {
        const TURNS: u64 = 200_000;
        let one = || {
            let started = Instant::now();
            Self::run(TURNS);
            since_ns(started) / TURNS as f64
        };
        Self { turn_ns: (0..7).map(|_| one()).fold(f64::INFINITY, f64::min) }
    }

    /// Turns that take `ns` nanoseconds.
    pub(crate) fn turns(&self, ns: f64) -> u64 {
        (ns / self.turn_ns) as u64
    }

    pub(crate) fn run(turns: u64) {
        let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
        for _ in 0..turns {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        black_box(state);
    }
}

/// Random bytes, equal for equal seeds.
pub(crate) fn random_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// A page-aligned buffer, as frames are.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// `length` random bytes from a page boundary on.
    pub(crate) fn random(length: usize, seed: u64) -> Self {
        let bytes = random_bytes(length + 4096, seed);
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// The bytes, writable; same length.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_nothing_is_nan() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn random_bytes_have_no_line_of_zeros() {
        let bytes = random_bytes(4099, 7);
        assert_eq!(bytes.len(), 4099);
        assert!(bytes.chunks_exact(64).all(|line| line.iter().any(|byte| *byte != 0)));
    }

    #[test]
    fn aligned_buffers_begin_at_a_page() {
        let mut buffer = Aligned::random(5000, 3);
        assert_eq!((buffer.bytes().as_ptr() as usize % 4096, buffer.bytes_mut().len()), (0, 5000));
    }

    #[test]
    fn a_failed_call_ends_the_measurement() {
        let mut calls = 0;
        let measured = each_ns(10, || {
            calls += 1;
            if calls == 3 { Err("no".into()) } else { Ok(()) }
        });
        assert!(measured.is_err());
        assert_eq!(calls, 3);
    }
}
