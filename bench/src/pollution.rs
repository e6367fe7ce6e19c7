//! Group `pollution`: what a copy costs a program with a working set in this core's caches.
//!
//! ```text
//! round, for each size, the copiers in random order:
//!   walk the victim three times, the worker kept awake ─ copy between uncached places ─ walk it once, timed
//! slowdown = that walk over the one after no copy
//! ```
//!
//! This is part `copies`; part `pieces` walks after many short copies. The victim is 768 KiB of lines linked in random
//! order, on one huge page: it fits the second-level cache. The copy itself is not timed. While the worker copies, it is awake
//! and this thread polls; rounds count only if the CPUs are two cores, because two threads of one core share these
//! caches.
//! caches in question.

mod pieces;

use std::hint::black_box;
use std::time::Instant;

use fastrand::Rng;
use memferry::{Client, copy, nop};
use memferry_charts::Line;
use memferry_cpu::slices;
use memferry_transfer::CacheHint;

use crate::BenchError;
use crate::children::WORKER;
use crate::engine::arena::{Arena, Field, Pages, Slots};
use crate::engine::field_bytes;
use crate::engine::sides::{doubling, size_name};
use crate::pair::{Pair, poll_for};
use crate::placement::{Pinned, pin_threads, placed};
use crate::plots::{self, spread};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{median, since_ns};

const ROUNDS: usize = 101;
const VICTIM: usize = 768 << 10;
/// A huge page, because smaller memory would not get one.
const VICTIM_ROOM: usize = 2 << 20;
const LINE: usize = 64;
const WARMING: usize = 3;
/// Parts of a warming walk.
const WALK_PARTS: usize = 4;
/// Smallest and largest copy.
const SIZES: [usize; 2] = [64 << 10, 4 << 20];

/// Copiers and their maximum slowdown; the first copies nothing.
const COPIERS: [(&str, Copier, Target); 6] = [
    ("nothing", |_, _, _| Ok(()), Target::None),
    ("glibc", glibc, Target::None),
    ("memferry, auto", auto, Target::None),
    ("memferry, stream", stream, Target::AtMost(1.15)),
    ("memferry, by the worker", offloaded, Target::AtMost(1.05)),
    ("nobody, polling for as long as the worker took", linger, Target::None),
];
const WORKER_COPIES: usize = 4;
const LINGERS: usize = 5;

/// Copies `bytes` at a place; arguments are memory, place and bytes.
type Copier = fn(&mut Memory, usize, usize) -> Result<(), BenchError>;

/// Memory for copies by this thread and by the worker, and the worker's last time for this size.
struct Memory {
    field: Field,
    pair: Pair,
    worker_ns: f64,
}

#[inline(never)]
fn glibc(memory: &mut Memory, at: usize, bytes: usize) -> Result<(), BenchError> {
    let (destination, source) = memory.field.both();
    destination[at..at + bytes].copy_from_slice(&source[at..at + bytes]);
    Ok(())
}

fn hinted(memory: &mut Memory, at: usize, bytes: usize, hint: CacheHint) -> Result<(), BenchError> {
    let (destination, source) = memory.field.both();
    Ok(slices::copy(&mut destination[at..at + bytes], &source[at..at + bytes], hint)?)
}

fn auto(memory: &mut Memory, at: usize, bytes: usize) -> Result<(), BenchError> {
    hinted(memory, at, bytes, CacheHint::Auto)
}

fn stream(memory: &mut Memory, at: usize, bytes: usize) -> Result<(), BenchError> {
    hinted(memory, at, bytes, CacheHint::Stream)
}

fn offloaded(memory: &mut Memory, at: usize, bytes: usize) -> Result<(), BenchError> {
    let pair = &mut memory.pair;
    let at = at as u64;
    let bytes = bytes as u64;
    let started = Instant::now();
    let transfer = copy(pair.source.slice(at..at + bytes), pair.destination.slice(at..at + bytes));
    let ticket = pair.queue.submit(transfer)?;
    poll_for(&mut pair.queue, ticket)?;
    memory.worker_ns = since_ns(started);
    Ok(())
}

/// Costs of the elapsed time alone: others use the caches meanwhile, on this machine and on its host.
fn linger(memory: &mut Memory, _: usize, _: usize) -> Result<(), BenchError> {
    let started = Instant::now();
    while since_ns(started) < memory.worker_ns {
        black_box(memory.pair.queue.poll());
        std::hint::spin_loop();
    }
    Ok(())
}

/// Lines that each hold the index of the next, in a single ring.
struct Victim(Arena);

impl Victim {
    fn new(rng: &mut Rng) -> Result<Self, BenchError> {
        let mut arena = Arena::new(VICTIM_ROOM, Pages::Huge, 0x71c)?;
        let mut order: Vec<_> = (0..(VICTIM / LINE) as u32).collect();
        rng.shuffle(&mut order);
        for (index, line) in order.iter().enumerate() {
            let next = order[(index + 1) % order.len()];
            let at = *line as usize * LINE;
            arena.bytes_mut()[at..at + 4].copy_from_slice(&next.to_ne_bytes());
        }
        Ok(Self(arena))
    }

    /// Walks `lines` lines from a line on; returns the next.
    fn walk(&self, mut line: usize, lines: usize) -> usize {
        let bytes = &self.0.bytes()[..VICTIM];
        for _ in 0..lines {
            let next = &bytes[line * LINE..][..4];
            line = next.try_into().map_or(0, u32::from_ne_bytes) as usize;
        }
        line
    }

    /// Walks until the victim is cached. In between the worker gets work that touches almost nothing: it
    /// would fall asleep before the walk ends, and waking it disturbs this core.
    fn warm(&self, pair: &mut Pair) -> Result<(), BenchError> {
        let mut line = 0;
        for _ in 0..WARMING * WALK_PARTS {
            let ticket = pair.queue.submit(nop())?;
            poll_for(&mut pair.queue, ticket)?;
            line = black_box(self.walk(line, VICTIM / LINE / WALK_PARTS));
        }
        Ok(())
    }
}

/// A size, and the times of the walks after each copier, by round.
struct Size {
    bytes: usize,
    slots: Slots,
    worker_ns: f64,
    walks: [Vec<f64>; COPIERS.len()],
}

impl Size {
    /// Measures one round, if the CPUs stay two cores during it.
    fn round(&mut self, memory: &mut Memory, victim: &Victim, rng: &mut Rng) -> Result<(), BenchError> {
        if let Some((_, walks)) = placed(|| self.walks(memory, victim, rng))? {
            self.walks.iter_mut().zip(walks).for_each(|(all, walk)| all.push(walk));
        }
        Ok(())
    }

    /// Time of the walk after each copier, ns.
    fn walks(
        &mut self,
        memory: &mut Memory,
        victim: &Victim,
        rng: &mut Rng,
    ) -> Result<[f64; COPIERS.len()], BenchError> {
        let mut walks = [0.0; COPIERS.len()];
        memory.worker_ns = self.worker_ns;
        let mut order: Vec<_> = (0..COPIERS.len()).collect();
        rng.shuffle(&mut order);
        for which in order {
            let place = self.slots.next();
            victim.warm(&mut memory.pair)?;
            COPIERS[which].1(memory, place, self.bytes)?;
            let started = Instant::now();
            black_box(victim.walk(0, VICTIM / LINE));
            walks[which] = since_ns(started);
        }
        self.worker_ns = memory.worker_ns;
        Ok(walks)
    }

    /// Ratios of the walks after a copier to those after another, by round.
    fn slowdowns(&self, copier: usize, base: usize) -> Vec<f64> {
        self.walks[copier].iter().zip(&self.walks[base]).map(|(after, none)| after / none).collect()
    }
}

/// The size where a copier costs most, relative to another.
fn most(sizes: &[Size], copier: usize, base: usize) -> Option<&Size> {
    let cost = |size: &Size| median(&size.slowdowns(copier, base));
    let measured = sizes.iter().filter(|size| !size.walks[0].is_empty());
    measured.max_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// The row of the size where a copier costs most.
fn row(run: &Run, sizes: &[Size], [copier, base]: [usize; 2], how: &str, target: Target) -> Option<Row> {
    let size = most(sizes, copier, base)?;
    let name = COPIERS[copier].0;
    run.say(&format!("slowdown after a copy by {name}{how}: most at {}", size_name(size.bytes)));
    let title = format!("slowdown after a copy of 64 KiB to 4 MiB by {name}{how}: the most");
    Some(Row::new(title, "ratio", target, &size.slowdowns(copier, base)))
}

fn report(run: &Run, sizes: &[Size]) -> Result<Vec<Row>, BenchError> {
    let undisturbed: Vec<_> = sizes.iter().flat_map(|size| &size.walks[0]).map(|ns| ns / 1000.0).collect();
    let mut rows = vec![Row::new("walk over 768 KiB, undisturbed", "us", Target::None, &undisturbed)];
    let mut lines = Vec::new();
    for (copier, (name, _, target)) in COPIERS.into_iter().enumerate().skip(1) {
        let measured = sizes.iter().filter(|size| !size.walks[0].is_empty());
        let points = measured.map(|size| (size.bytes as f64, spread(&size.slowdowns(copier, 0))));
        lines.push(Line { label: name.to_owned(), points: points.collect() });
        rows.extend(row(run, sizes, [copier, 0], "", target));
    }
    rows.extend(row(run, sizes, [WORKER_COPIES, LINGERS], ", against polling for as long", Target::None));
    let title = "a walk over 768 KiB after a copy, against after none";
    run.picture("pollution", || plots::sweep(title, "slowdown, ratio", &lines))?;
    Ok(rows)
}

/// A part: its name and function.
type Part = (&'static str, fn(&Run) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 2] = [("copies", copies), ("pieces", pieces::measure)];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.map(|(name, _)| name))?;
    let mut rows = Vec::new();
    for (_, part) in PARTS.iter().filter(|(name, _)| run.wants(name)) {
        rows.extend(part(run)?);
    }
    Ok(rows)
}

fn copies(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.part("memory", 1);
    let length = field_bytes(run);
    let client = Client::embedded()?;
    pin_threads(std::process::id(), WORKER, 1)?;
    let _pinned = Pinned::to(0)?;
    let pair = Pair::new(client, length as u64)?;
    let mut memory = Memory { field: Field::new(length, Pages::Huge)?, pair, worker_ns: 0.0 };
    let mut rng = Rng::with_seed(0xca5e);
    let victim = Victim::new(&mut rng)?;
    let rounds = run.part("pollution", ROUNDS);
    let size = |bytes| Size {
        bytes,
        slots: Slots::new(length, bytes, &mut rng),
        worker_ns: 0.0,
        walks: Default::default(),
    };
    let mut sizes: Vec<_> = doubling(SIZES[0], SIZES[1]).map(size).collect();
    for _ in 0..rounds {
        for size in &mut sizes {
            size.round(&mut memory, &victim, &mut rng)?;
        }
        run.round_done();
    }
    report(run, &sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_line_once() {
        let victim = Victim::new(&mut Rng::with_seed(3)).unwrap();
        assert_eq!(victim.walk(0, VICTIM / LINE), 0);
        assert_ne!(victim.walk(0, VICTIM / LINE / 2), 0);
        let next = |line: usize| {
            u32::from_ne_bytes(victim.0.bytes()[line * LINE..][..4].try_into().unwrap()) as usize
        };
        let mut seen = vec![false; VICTIM / LINE];
        let mut line = 0;
        for _ in 0..seen.len() {
            assert!(!std::mem::replace(&mut seen[line], true));
            line = next(line);
        }
        assert!(line == 0 && !(0..1000).all(|line| next(line) == line + 1));
    }

    #[test]
    fn the_highest_median_is_reported() {
        let size = |bytes, after: [f64; 3]| {
            let mut walks: [Vec<f64>; COPIERS.len()] = Default::default();
            walks[0] = vec![10.0; 3];
            walks[1] = after.to_vec();
            Size { bytes, slots: Slots::new(4096, 64, &mut Rng::with_seed(1)), worker_ns: 0.0, walks }
        };
        let sizes = [size(1, [11.0, 12.0, 90.0]), size(2, [13.0, 13.0, 13.0])];
        assert_eq!(most(&sizes, 1, 0).map(|size| size.bytes), Some(2));
        assert_eq!(sizes[0].slowdowns(1, 0), [1.1, 1.2, 9.0]);
    }
}
