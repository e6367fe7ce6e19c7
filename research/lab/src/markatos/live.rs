//! The comparison of table 1 on the machine at hand: memferry's ring against a system call that starts the same transfer.
//!
//! ```text
//! 1,000 starts to alternating addresses ──┬─► submit to the ring of an embedded service; completions outside of the time
//!                                         └─► process_vm_readv of as many bytes within this process
//! ```
//!
//! A short measurement for one reported row; `./x bench initiation` measures with care. The system call also moves its 64
//! bytes before it returns, which is the least a call can do that starts a transfer; the figure is no bound.

use std::io::IoSliceMut;
use std::time::Instant;

use memferry::{Client, Transfer};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::claims::Place;
use crate::experiments::{Case, Judge, RunError};
use crate::verdict::{Basis, Figures, Status, Verdict};

/// Starts of one round, as in 4.3.
const STARTS: u64 = 1000;
/// Starts before completions are taken.
const BURST: u64 = 50;
/// Transfers that move nothing, before a burst.
const WAKING: usize = 50;
/// Rounds; the middle one counts.
const ROUNDS: usize = 9;
/// Bytes of a transfer.
const BYTES: u64 = 64;
/// Addresses that starts alternate between.
const PLACES: u64 = 16;

/// What decides the claim here.
pub const JUDGE: Judge = Judge { claim: "markatos-order-of-magnitude", place: Place::Live, judge: reported };

fn reported(case: &Case<'_>) -> Result<Verdict, RunError> {
    let not_run = Verdict::not_run(case.claim, Place::Live);
    Ok(match measured() {
        Ok([ring, call]) => Verdict {
            status: Status::Reported,
            basis: Some(Basis::Measured),
            figures: Figures::Named(
                [("ring", ring), ("system call", call), ("ratio", call / ring)]
                    .map(|(name, value)| (name.to_owned(), (value * 1e3).round() / 1e3))
                    .into(),
            ),
            unit: Some("ns".to_owned()),
            why: "mean of 1,000 starts to alternating addresses, the middle of nine rounds, on a machine that does other \
                  things; the call also moves the 64 bytes"
                .to_owned(),
            ..not_run
        },
        Err(error) => Verdict { why: format!("the machine at hand could not be measured: {error}"), ..not_run },
    })
}

/// Nanoseconds of a start by the ring and by the system call.
fn measured() -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let client = Client::embedded()?;
    let frames = [client.allocate(BYTES * PLACES)?, client.allocate(BYTES * PLACES)?];
    let mut queue = client.queue(64)?;
    let mut rounds = [Vec::new(), Vec::new()];
    let source = vec![7u8; (BYTES * PLACES) as usize];
    let mut destination = vec![0u8; source.len()];
    for _ in 0..ROUNDS {
        let mut spent = 0;
        for burst in 0..STARTS / BURST {
            // A lane that had nothing to do sleeps, and waking it is a system call.
            for _ in 0..WAKING {
                let ticket = queue.submit(Transfer::nop())?;
                queue.wait(ticket, None)?;
            }
            let started = Instant::now();
            for start in 0..BURST {
                let at = (burst * BURST + start) % PLACES * BYTES;
                let [from, to] = [&frames[0], &frames[1]].map(|frame| frame.range(at, BYTES));
                queue.submit(Transfer::copy(&from, &to)?)?;
            }
            spent += started.elapsed().as_nanos();
            while queue.outstanding() > 0 {
                queue.poll();
            }
        }
        rounds[0].push(spent as f64 / STARTS as f64);
        let started = Instant::now();
        for start in 0..STARTS {
            let at = (start % PLACES * BYTES) as usize;
            let from = RemoteIoVec { base: source.as_ptr() as usize + at, len: BYTES as usize };
            let to = &mut destination[at..at + BYTES as usize];
            process_vm_readv(Pid::this(), &mut [IoSliceMut::new(to)], &[from])?;
        }
        rounds[1].push(started.elapsed().as_nanos() as f64 / STARTS as f64);
    }
    Ok(rounds.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }))
}
