//! A program that copies its own memory without using memferry; and one that uses up memory.
//!
//! ```text
//! random copies, moves and fills ─► the C library's, or their replacement ─► equal to a byte loop?
//! ```

use std::time::Duration;

use crate::output::{Progress, Stop, finding};
use crate::random::Random;

/// Bytes of the copied memory: more than every cache, so that long copies bypass the caches.
const BYTES: usize = 24 << 20;
/// Bytes that ballast holds at most.
const BALLAST: u64 = 512 << 20;

pub(super) fn copy(random: &mut Random, progress: &mut Progress, rounds: u64) -> Result<(), Stop> {
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
            return finding(format!(
                "byte {at} is wrong after {length} bytes were copied from {from} to {to}"
            ));
        }
        progress.add(1, length as u64);
    }
    Ok(())
}

/// Allocates memory and keeps it for a while.
pub(super) fn hold(random: &mut Random, progress: &mut Progress) -> Result<(), Stop> {
    let bytes = random.between(64 << 20, BALLAST) as usize;
    let held = vec![random.next() as u8 | 1; bytes];
    for _ in 0..random.between(2, 20) {
        progress.report();
        std::thread::sleep(Duration::from_millis(100));
    }
    match std::hint::black_box(&held).iter().all(|byte| *byte == held[0]) {
        true => Ok(()),
        false => finding("this process's memory was changed by another"),
    }
}
