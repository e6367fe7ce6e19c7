//! Part `pieces`: a walk over the victim after short copies from a large source, by the kernel, this core or a worker
//! (Papa 2014, "Cache Pollution").
//!
//! ```text
//! round, the ways in random order: warm the victim ─ 16 pieces of 16,064 bytes ─ walk the victim once, timed
//! ```
//!
//! Pieces cycle through a source of 32 MiB and go to the same place. `read()` of a file in the page cache is the
//! kernel's copy. The worker is another process's, because an embedded client makes such short copies itself.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use fastrand::Rng;
use memferry::{Client, Transfer, copy, nop};
use memferry_cpu::slices;
use memferry_transfer::CacheHint;

use super::{LINE, VICTIM, Victim};
use crate::BenchError;
use crate::children::Service;
use crate::engine::arena::{Arena, Pages};
use crate::pair::{Pair, poll_for};
use crate::placement::{Pinned, placed};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{random_bytes, since_ns};

const ROUNDS: usize = 101;
const PIECE: usize = 16_064;
/// Pieces before a timed walk.
const PIECES: usize = 16;
const SOURCE: usize = 32 << 20;

/// Sources and destination, and the offset of the next piece.
struct Sides {
    file: File,
    source: Arena,
    destination: Vec<u8>,
    pair: Pair,
    at: usize,
}

/// Copies the piece at an offset.
type Way = fn(&mut Sides, usize) -> Result<(), BenchError>;

const WAYS: [(&str, Way); 7] = [
    ("none", |_, _| Ok(())),
    ("read()", |sides, at| Ok(sides.file.read_exact_at(&mut sides.destination, at as u64)?)),
    ("libc", |sides, at| {
        sides.destination.copy_from_slice(&sides.source.bytes()[at..at + PIECE]);
        Ok(())
    }),
    ("memferry, stream", |sides, at| {
        let source = &sides.source.bytes()[at..at + PIECE];
        Ok(slices::copy(&mut sides.destination, source, CacheHint::Stream)?)
    }),
    ("the worker moving nothing", |sides, _| by_worker(sides, nop())),
    ("the worker", |sides, at| offloaded(sides, at, CacheHint::Auto)),
    ("the worker, stream", |sides, at| offloaded(sides, at, CacheHint::Stream)),
];
const READ: usize = 1;
const WORKER: usize = 5;

fn offloaded(sides: &mut Sides, at: usize, hint: CacheHint) -> Result<(), BenchError> {
    let source = sides.pair.source.slice(at as u64..at as u64 + PIECE as u64);
    let destination = sides.pair.destination.slice(..PIECE as u64);
    by_worker(sides, copy(&source, &destination).with_hint(hint))
}

/// Polls for completion: a sleeping thread would leave the caches to others.
fn by_worker(sides: &mut Sides, transfer: Transfer) -> Result<(), BenchError> {
    let ticket = sides.pair.queue.submit(transfer)?;
    poll_for(&mut sides.pair.queue, ticket)
}

impl Sides {
    fn new(run: &Run, service: &Service) -> Result<Self, BenchError> {
        let pair = Pair::new(Client::connect(service.socket())?, SOURCE as u64)?;
        let path = run.directory().join("pieces");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.write_all(&random_bytes(SOURCE, 1))?;
        let source = Arena::new(SOURCE, Pages::Huge, 2)?;
        Ok(Self { file, source, destination: random_bytes(PIECE, 3), pair, at: 0 })
    }

    /// Nanoseconds of the walk after each way.
    fn round(&mut self, victim: &Victim, rng: &mut Rng) -> Result<[f64; WAYS.len()], BenchError> {
        let mut walks = [0.0; WAYS.len()];
        let mut order: Vec<_> = (0..WAYS.len()).collect();
        rng.shuffle(&mut order);
        for which in order {
            victim.warm(&mut self.pair)?;
            for _ in 0..PIECES {
                self.at = (self.at + PIECE) % (SOURCE - PIECE);
                WAYS[which].1(self, self.at)?;
                black_box(&self.destination);
            }
            let started = Instant::now();
            black_box(victim.walk(0, VICTIM / LINE));
            walks[which] = since_ns(started);
        }
        Ok(walks)
    }
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("pieces", ROUNDS);
    let service = Service::start(run)?;
    let _pinned = Pinned::to(0)?;
    let mut sides = Sides::new(run, &service)?;
    let mut rng = Rng::with_seed(0x16064);
    let victim = Victim::new(&mut rng)?;
    let mut walks = Vec::new();
    for _ in 0..rounds {
        walks.extend(placed(|| sides.round(&victim, &mut rng))?.map(|(_, walks)| walks));
        run.round_done();
    }
    let us = |way: usize| walks.iter().map(|walks| walks[way] / 1e3).collect::<Vec<_>>();
    let name = |way: &str| format!("walk over 768 KiB after 16 pieces of 16,064 B by {way}");
    let row = |(way, (by, _)): (usize, &(&str, Way))| Row::new(name(by), "us", Target::None, &us(way));
    let mut rows: Vec<Row> = WAYS.iter().enumerate().map(row).collect();
    let ratios: Vec<f64> = walks.iter().map(|walks| walks[READ] / walks[WORKER]).collect();
    rows.push(Row::new(
        "that walk after read(), against after the worker",
        "ratio",
        Target::AtLeast(1.0),
        &ratios,
    ));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_ways_have_the_right_indexes() {
        assert_eq!([READ, WORKER].map(|way| WAYS[way].0), ["read()", "the worker"]);
    }
}
