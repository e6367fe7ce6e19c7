//! How much of a copy is hidden behind computing: (compute + copy - both) / the shorter of the two.
//!
//! ```text
//! round, for each size, 10 times: compute alone ─ submit, poll until done ─ submit, compute, poll until done
//! ```
//!
//! Computing uses registers only and is calibrated to take about as long as the copy, the hardest case: a longer computation
//! could hide more. The client polls after computing. "Parked" means that the worker sleeps when the
//! transfer is submitted, so the wake-up is part of the copy; beforehand the client computes, untimed, until the worker sleeps.
//! Group `overlap` also sweeps the sizes with the worker awake, for a plot.

use memferry::{Client, copy};
use memferry_charts::Line;

use crate::BenchError;
use crate::children::Service;
use crate::engine::sides::doubling;
use crate::pair::{Pair, poll_for};
use crate::placement::{Class, Pinned, placed};
use crate::plots::{self, spread};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{Work, each_ns, median};

const ROUNDS: usize = 41;
/// Blocks measured in each round.
const BLOCKS: usize = 10;
/// After this much idle time a worker surely sleeps, ns.
const UNTIL_PARKED_NS: f64 = 1e6;

/// A row: bytes, name, copies timed together, whether the worker sleeps first, and the required percentage.
struct Case {
    bytes: u64,
    name: &'static str,
    block: usize,
    parked: bool,
    target: f64,
}

const CASES: [Case; 4] = [
    Case { bytes: 16 << 10, name: "16 KiB, worker awake", block: 20, parked: false, target: 90.0 },
    Case { bytes: 64 << 10, name: "64 KiB, worker awake", block: 8, parked: false, target: 95.0 },
    Case { bytes: 4 << 20, name: "4 MiB, worker awake", block: 1, parked: false, target: 98.0 },
    Case { bytes: 4 << 20, name: "4 MiB, worker parked", block: 1, parked: true, target: 80.0 },
];

/// Rounds of the sweep, its smallest and largest size, and bytes per timed block of short copies.
const SWEEP_ROUNDS: usize = 9;
const SWEEP: [usize; 2] = [4 << 10, 64 << 20];
const SWEEP_BLOCK: usize = 512 << 10;

/// Hidden share of the shorter one, in per cent.
fn overlap_percent(compute: f64, copy: f64, both: f64) -> f64 {
    100.0 * (compute + copy - both) / compute.min(copy)
}

struct Sides {
    pair: Pair,
    work: Work,
}

impl Sides {
    /// Nanoseconds of a transfer with `turns` of work before polling.
    fn transfer_ns(&mut self, case: &Case, turns: u64) -> Result<f64, BenchError> {
        let (source, destination) = self.pair.ranges(case.bytes);
        if case.parked {
            Work::run(self.work.turns(UNTIL_PARKED_NS));
        } else {
            self.pair.wake()?;
        }
        let queue = &mut self.pair.queue;
        each_ns(case.block, || {
            let ticket = queue.submit(copy(&source, &destination))?;
            Work::run(turns);
            poll_for(queue, ticket)
        })
    }

    /// Compute alone, copy alone, both, ns: medians of interleaved blocks, so that disturbances of the machine
    /// affect all three alike. The two that copy alternate in order. The computing time is recalibrated each time.
    fn round(&mut self, case: &Case) -> Result<[f64; 3], BenchError> {
        let tries = (0..5).map(|_| self.transfer_ns(case, 0)).collect::<Result<Vec<_>, _>>()?;
        let turns = self.work.turns(median(&tries));
        let mut times: [Vec<f64>; 3] = Default::default();
        for block in 0..BLOCKS {
            let compute = each_ns(case.block, || {
                Work::run(turns);
                Ok(())
            })?;
            let mut copies = [0.0; 2];
            for which in [block % 2, 1 - block % 2] {
                copies[which] = self.transfer_ns(case, if which == 0 { 0 } else { turns })?;
            }
            let [copy, both] = copies;
            times.iter_mut().zip([compute, copy, both]).for_each(|(times, time)| times.push(time));
        }
        Ok(times.map(|times| median(&times)))
    }
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("overlap", ROUNDS);
    let service = Service::start(run)?;
    let _pinned = Pinned::to(0)?;
    let pair = Pair::new(Client::connect(service.socket())?, CASES[2].bytes)?;
    let mut sides = Sides { pair, work: Work::calibrated() };
    let mut hidden = [const { Vec::new() }; CASES.len()];
    let mut across = 0;
    let mut copies = [const { Vec::new() }; CASES.len()];
    for _ in 0..rounds {
        for (index, case) in CASES.iter().enumerate() {
            let Some((class, [compute, copy, both])) = placed(|| sides.round(case))? else { continue };
            hidden[index].push(overlap_percent(compute, copy, both));
            copies[index].push(copy / 1000.0);
            across += usize::from(class == Class::Across);
        }
        run.round_done();
    }
    let all = hidden.iter().map(Vec::len).sum::<usize>();
    run.say(&format!("overlap: {} rounds in one core complex, {across} across", all - across));
    let mut rows = Vec::new();
    for (index, case) in CASES.iter().enumerate() {
        rows.push(Row::new(format!("copy alone, {}", case.name), "us", Target::None, &copies[index]));
        let title = format!("overlap with computing, {}", case.name);
        rows.push(Row::new(title, "%", Target::AtLeast(case.target), &hidden[index]));
    }
    Ok(rows)
}

/// Sweeps the sizes and draws the hidden share.
fn sweep(run: &Run) -> Result<(), BenchError> {
    let rounds = run.part("sweep", SWEEP_ROUNDS);
    let service = Service::start(run)?;
    let _pinned = Pinned::to(0)?;
    let pair = Pair::new(Client::connect(service.socket())?, SWEEP[1] as u64)?;
    let mut sides = Sides { pair, work: Work::calibrated() };
    let mut hidden: Vec<_> = doubling(SWEEP[0], SWEEP[1]).map(|bytes| (bytes, Vec::new())).collect();
    for _ in 0..rounds {
        for (bytes, hidden) in &mut hidden {
            let block = (SWEEP_BLOCK / *bytes).clamp(1, 50);
            let case = Case { bytes: *bytes as u64, name: "", block, parked: false, target: 0.0 };
            if let Some((_, [compute, copy, both])) = placed(|| sides.round(&case))? {
                hidden.push(overlap_percent(compute, copy, both));
            }
        }
        run.round_done();
    }
    let measured = hidden.iter().filter(|(_, hidden)| !hidden.is_empty());
    let points = measured.map(|(bytes, hidden)| (*bytes as f64, spread(hidden))).collect();
    let line = Line { label: "through the service".to_owned(), points };
    let title = "copy hidden behind as much computing, worker awake";
    run.picture("overlap", || plots::sweep(title, "% of the copy", &[line]))
}

/// Measures the group: the part, and the sweep if plots are drawn.
pub(crate) fn group(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rows = measure(run, Class::Same)?;
    if run.draws() {
        sweep(run)?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_overlap_is_100_per_cent() {
        assert_eq!(overlap_percent(10.0, 8.0, 10.0), 100.0);
        assert_eq!(overlap_percent(8.0, 10.0, 10.0), 100.0);
    }

    #[test]
    fn no_overlap_is_0_per_cent() {
        assert_eq!(overlap_percent(10.0, 8.0, 18.0), 0.0);
        assert_eq!(overlap_percent(10.0, 10.0, 15.0), 50.0);
    }
}
