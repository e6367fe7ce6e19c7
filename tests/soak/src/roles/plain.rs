//! A program that knows nothing of memferry and copies its own memory; and one that holds memory, so that
//! others have less.
//!
//! ```text
//! random copies, moves and fills ─► the C library's, or what stands in for it ─► the same, byte by byte in a loop?
//! ```

use std::time::Duration;

use crate::random::Random;
use crate::saying::{Stop, Teller, finding};

/// Bytes of the memory that is copied in: beyond every cache, so that long copies go past these.
const BYTES: usize = 24 << 20;
/// Bytes that ballast holds at most.
const BALLAST: u64 = 512 << 20;

pub(super) fn copy(random: &mut Random, teller: &mut Teller, rounds: u64) -> Result<(), Stop> {
    let mut memory = memferry_conformance::noise(BYTES, random.next());
    let mut model = memory.clone();
    for _ in 0..rounds.min(300) {
        let most = if random.once_in(4) { BYTES / 2 } else { 1 << 20 };
        let length = random.below(most as u64) as usize;
        let mut place = || random.below((BYTES - length) as u64 + 1) as usize;
        let from = place();
        let to = place();
        let byte = random.next() as u8;
        if random.once_in(4) {
            let byte = if random.once_in(2) { 0 } else { byte };
            memory[to..to + length].fill(byte);
            (to..to + length).for_each(|at| model[at] = std::hint::black_box(byte));
        } else if from < to {
            memory.copy_within(from..from + length, to);
            (0..length).rev().for_each(|at| model[to + at] = std::hint::black_box(model[from + at]));
        } else {
            memory.copy_within(from..from + length, to);
            (0..length).for_each(|at| model[to + at] = std::hint::black_box(model[from + at]));
        }
        if let Some(at) = (0..BYTES).find(|at| memory[*at] != model[*at]) {
            return finding(format!("byte {at} is another after {length} bytes went from {from} to {to}"));
        }
        teller.did(1, length as u64);
    }
    Ok(())
}

/// Holds memory for a while.
pub(super) fn hold(random: &mut Random, teller: &mut Teller) -> Result<(), Stop> {
    let bytes = random.between(64 << 20, BALLAST) as usize;
    let held = vec![random.next() as u8 | 1; bytes];
    for _ in 0..random.between(2, 20) {
        teller.say();
        std::thread::sleep(Duration::from_millis(100));
    }
    match std::hint::black_box(&held).iter().all(|byte| *byte == held[0]) {
        true => Ok(()),
        false => finding("memory that nobody else has changed"),
    }
}
