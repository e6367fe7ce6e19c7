//! A program of the core and a transfer of the device that use memory at the same time.
//!
//! ```text
//! program: a line, some cycles of computing, the next line ─┐
//!                                                           ├──► Dram: banks, rows, data buses ──► both wait for each other
//! device: bursts of a copy ─────────────────────────────────┘
//! time of both together ◄── lines during the transfer, lines afterwards ──► compared with copying first
//! ```
//!
//! The thesis argues that a program goes on while the device copies (1.1, 5.4), and does not measure what that costs. The program
//! here reads memory in order and never finds a line in a cache, so it asks for more of memory than others. Reads and writes
//! of the device go before or after its reads as they arrive, since the controller has one queue of commands; a difference in
//! priority between the core and the device is not modelled, nor are the program's writes.

use memferry_clock::Instant;
use memferry_models::Dram;
use serde::Deserialize;

use super::beside::{Beside, Reader};
use super::board;
use super::bulk::{Bulk, Caching, Mode};
use super::machine::{self, MEMORY, Machine, MachineError};
use super::transfer::burst_copy;
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::parameters::{Parameters, ParametersError};
use crate::rng::Rng;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

/// What program and transfer lose beside each other, by the program's cycles for each line.
pub(super) const CONTENTION: Runner = Runner { name: "contention", run: contention };
/// The time of a transfer and a program together, by the transfer's size.
pub(super) const TOGETHER: Runner = Runner { name: "together", run: together };

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "wicki-parallel", place: Place::Simulated, judge: parallel }];

/// Bytes of the transfer where the program varies.
const BYTES: u32 = 1 << 20;
/// Placements of the frames over which figures are averaged, and the pages in which each may begin.
const PLACEMENTS: u64 = 4;
const PAGES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// Picoseconds in which a transfer starts after the program.
const STARTS_WITHIN: u64 = 3_900_000;

/// A transfer beside a program: picoseconds of the transfer, and lines in a picosecond that the program gets; and the same of each
/// when the other does not run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Both {
    transfer: f64,
    transfer_alone: f64,
    rate: f64,
    rate_alone: f64,
}

/// Means over placements of a copy of `bytes` bytes and a program that computes for so many cycles on each line.
fn beside(parameters: &Parameters, bytes: u32, cycles: f64, seed: u64) -> Result<Both, MachineError> {
    let depth = machine::fifo_depth(parameters)?;
    let mut sum = [0.0; 4];
    for placement in 0..PLACEMENTS {
        let mut draw = Rng::of_neighbour(seed.wrapping_mul(1 << 16) + placement);
        let room = u64::from(bytes) + PAGES * PAGE_BYTES;
        let mut frame = |place: u64| MEMORY + place * room + draw.below(PAGES) * PAGE_BYTES;
        let [from, to] = [frame(0), frame(1)];
        let [page, pause] = [draw.below(PAGES), draw.below(STARTS_WITHIN)];
        let config = burst_copy(bytes, from, to).map_err(|_| MachineError::Standstill)?;
        let start = [machine::Start { config, pause: 0 }];
        let mut quiet = Machine::new(parameters, depth)?;
        quiet.wait(pause);
        let alone = quiet.run(&start)?;
        let mut machine = Machine::new(parameters, depth)?;
        machine.let_read(reader(parameters, cycles, page)?);
        machine.wait(pause);
        let lines = machine.lines_read();
        let began = machine.elapsed();
        let transfer = machine.run(&start)?;
        let taken = |ends: &[u128]| ends.first().copied().unwrap_or(1).max(1) as f64;
        let passed = (machine.elapsed() - began) as f64;
        let rate = (machine.lines_read() - lines) as f64 / passed;
        let rate_alone =
            lines_alone(parameters, cycles, page, machine.elapsed())? as f64 / machine.elapsed() as f64;
        let each = [taken(&transfer), taken(&alone), rate, rate_alone];
        sum.iter_mut().zip(each).for_each(|(sum, one)| *sum += one / PLACEMENTS as f64);
    }
    let [transfer, transfer_alone, rate, rate_alone] = sum;
    Ok(Both { transfer, transfer_alone, rate, rate_alone })
}

/// A program that computes for so many cycles on each line and begins `page` pages into its memory.
fn reader(parameters: &Parameters, cycles: f64, page: u64) -> Result<Reader, ParametersError> {
    Reader::new(parameters, &machine::memory_timing(parameters)?, cycles, page * PAGE_BYTES)
}

/// Lines that the program gets in so many picoseconds when it has memory for itself.
fn lines_alone(
    parameters: &Parameters,
    cycles: f64,
    page: u64,
    picoseconds: u128,
) -> Result<u64, ParametersError> {
    let memory = Dram::new(machine::memory_timing(parameters)?, machine::folded());
    let mut memory = Beside::new(memory);
    memory.let_read(reader(parameters, cycles, page)?);
    Ok(memory.lines_until(Instant::from_picoseconds(picoseconds)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Loser {
    Program,
    Transfer,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContentionSettings {
    loser: Loser,
}

fn contention(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let ContentionSettings { loser } = line.settings()?;
    let point = |x: f64| -> Result<(f64, f64), RunError> {
        let both = beside(line.parameters, BYTES, x, line.plan.seed).map_err(|error| line.failed(error))?;
        let longer = match loser {
            Loser::Program => both.rate_alone / both.rate,
            Loser::Transfer => both.transfer / both.transfer_alone,
        };
        Ok((x, 100.0 * (longer - 1.0)))
    };
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// How the transfer is made beside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// The core copies, then runs the program.
    CopiedFirst,
    Offloaded,
    /// As if program and transfer did not wait for each other.
    WithoutContention,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TogetherSettings {
    way: Way,
}

/// Picoseconds of both. The program's work is what it does alone while the device works alone.
fn both_done(line: &Line<'_>, way: Way, bytes: u32) -> Result<f64, RunError> {
    let failed = |error: &dyn ToString| line.failed(error.to_string());
    let cycles = line.parameters.get("program-cycles")?;
    let both = beside(line.parameters, bytes, cycles, line.plan.seed).map_err(|error| failed(&error))?;
    let work = both.rate_alone * both.transfer_alone;
    let board = board(line.parameters, line.plan.seed)?;
    let length = u64::from(bytes);
    if way == Way::CopiedFirst {
        let copy = Bulk { mode: Mode::Premapped, caching: Caching::Cached, alternating: true };
        let copied = board.transfer(&copy, length).map_err(|error| failed(&error))?;
        return Ok(copied + both.transfer_alone);
    }
    // The steps of driver and client take the core from the program.
    let called = board.offload(length).map_err(|error| failed(&error))?.busy as f64;
    let [transfer, rate] = match way {
        Way::WithoutContention => [both.transfer_alone, both.rate_alone],
        Way::Offloaded | Way::CopiedFirst => [both.transfer, both.rate],
    };
    let left = (work - rate * transfer).max(0.0);
    Ok(called + transfer + left / both.rate_alone)
}

fn together(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let TogetherSettings { way } = line.settings()?;
    let point = |x: f64| Ok((x, both_done(line, way, x as u32)? / 1e6));
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, RunError>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// The size from which the thesis offloads (4.3.2), in bytes.
const OFFLOADED_FROM: f64 = 524_288.0;

fn parallel(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label: &str| case.tables.line("wicki-together", label);
    let [first, offloaded, free] =
        [line("copied by the core first")?, line("offloaded")?, line("offloaded, without contention")?];
    let mut finding = Finding::of(case.claim);
    for (((bytes, first), (_, offloaded)), (_, free)) in
        first.points.iter().zip(&offloaded.points).zip(&free.points)
    {
        let kib = bytes / 1024.0;
        finding.figure(format!("{kib} KiB, copied first, us"), *first);
        finding.figure(format!("{kib} KiB, offloaded, us"), *offloaded);
        let words = format!(
            "a program and {kib} KiB take {offloaded:.0} us offloaded, {first:.0} with the copy first, and would take {free:.0} \
             without contention"
        );
        finding.check(*bytes < OFFLOADED_FROM || offloaded < first, words);
    }
    for (label, of) in [("the program", "program"), ("the transfer", "transfer")] {
        let line = case.tables.line("wicki-contention", label)?;
        finding.figure(format!("{of} that reads all the time, longer by %"), line.points[0].1);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wicki::PAPER;

    fn parameters() -> Parameters {
        Parameters::parse(PAPER.parameters).expect("checked")
    }

    #[test]
    fn a_program_alone_reads_as_the_caches_say() {
        let parameters = parameters();
        let alone = lines_alone(&parameters, 1.0, 0, 1_000_000_000).expect("listed");
        let board = board(&parameters, 1).expect("listed");
        let mut caches = crate::machine::cache::Hierarchy::new(&board.host.processor, 1).expect("fits");
        let expected = 1e9 / (caches.read(MEMORY, 1 << 20) as f64 / f64::from((1 << 20) / 32));
        let ratio = alone as f64 / expected;
        assert!((0.8..1.3).contains(&ratio), "{alone} lines, {expected} by the model of the caches");
    }

    #[test]
    fn both_wait_for_each_other_unless_the_program_computes() {
        let parameters = parameters();
        let of = |cycles| beside(&parameters, 1 << 18, cycles, 1).expect("runs");
        let [reads, computes] = [of(1.0), of(100_000.0)];
        assert!(reads.rate < 0.99 * reads.rate_alone, "{reads:?}");
        assert!(reads.transfer > 1.01 * reads.transfer_alone, "{reads:?}");
        assert!(computes.transfer < 1.02 * computes.transfer_alone, "{computes:?}");
    }
}
