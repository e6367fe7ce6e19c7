//! One channel's bandwidth and the CPU's, for buffers in the caches and not, and the crossing (Papa 2014, "One Channel
//! Bandwidth").
//!
//! ```text
//! hot    the CPU has just copied between the same buffers      cold   other lines fill the caches
//! sizes ──► Machine::copy_by_cpu, Cftu::copy ──► GB/s    factors ──► the size from which the engine is faster, KiB
//! ```
//!
//! Hot and cold are our reading of the two slides. The crossing by arithmetic needs only four rates: of the engine, of the CPU
//! within the last cache and from memory, and the fixed time of an offload.
//!
//! Set and XOR, which the slides leave for later, are measured in the same way on an engine that has them (descriptors of I/OAT since
//! version 3.2); the 5000X of the slides has not.

use memferry_path::PolicyKind;
use memferry_transfer::PriorityClass;
use serde::Deserialize;

use super::cftu::{Cftu, CftuError, Machine, Took, Work};
use super::chipset::{Caches, window};
use super::host::PIECE;
use crate::claims::{Claim, Place};
use crate::judging::Finding;
use crate::paper::{Case, Fit, Judge, Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

pub(super) const BANDWIDTH: Runner = Runner { name: "papa-bandwidth", run: bandwidth };
/// The size from which the engine is faster than the CPU, by the size of level 2.
pub(super) const CROSSING: Runner = Runner { name: "papa-crossing", run: crossing };

pub(super) const JUDGES: [Judge; 4] = [
    Judge { claim: "papa-hot-crossover", place: Place::Simulated, judge: hot },
    Judge { claim: "papa-cold-crossover", place: Place::Simulated, judge: cold },
    Judge { claim: "papa-set-xor", place: Place::Simulated, judge: set_and_xor },
    Judge { claim: "papa-cpu-time", place: Place::Simulated, judge: cpu_time },
];

/// The cold crossing follows the latency of the engine's reads.
pub(super) const FITS: [Fit; 1] =
    [Fit { parameter: "read-latency", claim: "papa-cold-crossover", gap: cold_gap }];

const KIB: f64 = 1024.0;
/// Longest size searched for a crossing.
const LONGEST: u64 = 16 << 20;
const STEP: u64 = 64;
/// Number of the window whose lines fill the caches before a cold copy.
const OTHERS: usize = 1;

/// The contents of the caches before a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Buffers {
    /// Both buffers, as far as they fit in the caches.
    Hot,
    /// Other memory, half of it modified.
    Cold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum By {
    Cpu,
    Engine,
}

/// Brings the caches into the state before a copy at the start of the first window.
pub(super) fn prepare_caches(machine: &Machine, caches: &Caches, buffers: Buffers, length: u64) {
    let mut caches = caches.borrow_mut();
    match buffers {
        Buffers::Hot => {
            let [source, destination] = window(0);
            // Twice, so that the caches are as in a series of such copies.
            for _ in 0..2 {
                caches.copy(source, destination, length);
            }
        }
        Buffers::Cold => {
            let [source, destination] = window(OTHERS);
            caches.copy(source, destination, machine.host.last_cache());
        }
    }
}

/// Picoseconds of one copy by the CPU.
pub(super) fn by_cpu(machine: &Machine, buffers: Buffers, length: u64) -> Result<u64, CftuError> {
    let caches = machine.caches()?;
    prepare_caches(machine, &caches, buffers, length);
    Ok(machine.copy_by_cpu(&caches, window(0), length))
}

/// Picoseconds of one copy by the engine.
pub(super) fn by_engine(machine: &Machine, buffers: Buffers, length: u64) -> Result<u64, CftuError> {
    Ok(worked_by_engine(machine, Work::Copy, buffers, length)?.all)
}

/// One piece of work by the engine.
fn worked_by_engine(machine: &Machine, work: Work, buffers: Buffers, length: u64) -> Result<Took, CftuError> {
    let caches = machine.caches()?;
    let mut cftu = Cftu::new(machine, &caches, PolicyKind::Shared.build(), &[PriorityClass::Normal])?;
    cftu.copy([0; 2], 1)?;
    prepare_caches(machine, &caches, buffers, length);
    cftu.work(work, [0; 2], length)
}

/// The same by the CPU.
fn worked_by_cpu(machine: &Machine, work: Work, buffers: Buffers, length: u64) -> Result<u64, CftuError> {
    let caches = machine.caches()?;
    prepare_caches(machine, &caches, buffers, length);
    Ok(machine.work_by_cpu(&caches, work, window(0), length))
}

/// The value of the y axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Gives {
    /// GB/s of what is written.
    #[default]
    Rate,
    /// Microseconds of the CPU.
    CpuTime,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BandwidthSettings {
    by: By,
    buffers: Buffers,
    #[serde(default = "a_copy")]
    work: Work,
    #[serde(default)]
    gives: Gives,
}

const fn a_copy() -> Work {
    Work::Copy
}

fn bandwidth(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let BandwidthSettings { by, buffers, work, gives } = line.settings()?;
    let machine = Machine::new(line.parameters, line.plan.seed)?;
    let point = |x: f64| -> Result<(f64, f64), RunError> {
        let length = x as u64;
        let took = match by {
            By::Cpu => worked_by_cpu(&machine, work, buffers, length).map(|all| Took { all, cpu: all }),
            By::Engine => worked_by_engine(&machine, work, buffers, length),
        };
        let took = took.map_err(|error| line.failed(error))?;
        Ok(match gives {
            Gives::Rate => (x, x * 1e3 / took.all as f64),
            Gives::CpuTime => (x, took.cpu as f64 / 1e6),
        })
    };
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, RunError>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CrossingSettings {
    buffers: Buffers,
    /// Factor on the CPU's time for an offload.
    #[serde(default = "one")]
    set_up: u64,
    /// Whether the crossing is computed from rates instead of searched.
    #[serde(default)]
    by_arithmetic: bool,
}

const fn one() -> u64 {
    1
}

fn crossing(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let CrossingSettings { buffers, set_up, by_arithmetic } = line.settings()?;
    // A size of the cache without a crossing has no point, and the judges say so.
    let point = |x: f64| -> Result<Option<(f64, f64)>, RunError> {
        let mut machine = Machine::new(&line.parameters.with("l2-size", x)?, line.plan.seed)?;
        let host = &mut machine.host;
        for cost in [&mut host.submit, &mut host.interrupt, &mut host.wake] {
            *cost *= set_up;
        }
        let found =
            if by_arithmetic { crossing_by_arithmetic(&machine, buffers) } else { found(&machine, buffers) };
        let found = found.map_err(|error| line.failed(error))?;
        Ok(found.map(|bytes| (x, bytes / KIB)))
    };
    let points: Vec<Option<(f64, f64)>> =
        line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points: points.into_iter().flatten().collect() }])
}

/// How much shorter the engine's copy of the slide's size is than the CPU's, as a fraction: zero where the crossing is there.
fn cold_gap(claim: &Claim, parameters: &Parameters) -> Result<f64, RunError> {
    let failed = |message: String| RunError::Fit { parameter: FITS[0].parameter.to_owned(), message };
    let length = claim.expect.ok_or_else(|| failed(format!("{} expects no size", claim.id)))? as u64;
    let machine = Machine::new(parameters, 1)?;
    let times = by_engine(&machine, Buffers::Cold, length)
        .and_then(|engine| Ok([engine, by_cpu(&machine, Buffers::Cold, length)?]));
    let [engine, cpu] = times.map_err(|error| failed(error.to_string()))?;
    Ok(1.0 - engine as f64 / cpu as f64)
}

/// The size in bytes from which a copy by the engine is faster.
pub(super) fn found(machine: &Machine, buffers: Buffers) -> Result<Option<f64>, CftuError> {
    let wins = |length| -> Result<bool, CftuError> {
        Ok(by_engine(machine, buffers, length)? < by_cpu(machine, buffers, length)?)
    };
    let mut below = 0;
    let mut above = 4096;
    while !wins(above)? {
        (below, above) = (above, above * 2);
        if above > LONGEST {
            return Ok(None);
        }
    }
    while above - below > STEP.max(above / 128) {
        let middle = (below + above) / 2;
        if wins(middle)? { above = middle } else { below = middle }
    }
    Ok(Some(above as f64))
}

/// The same size by arithmetic. Cold: the fixed time of an offload, divided by the CPU's additional time for a byte. Hot:
/// likewise, but each byte beyond half the last cache evicts others of its set, so that all lines miss after one way's worth
/// of bytes.
fn crossing_by_arithmetic(machine: &Machine, buffers: Buffers) -> Result<Option<f64>, CftuError> {
    let short = 4096;
    let long = 1 << 20;
    let short_time = by_engine(machine, buffers, short)?;
    let long_time = by_engine(machine, buffers, long)?;
    let moved = (long_time - short_time) as f64 / (long - short) as f64;
    let started = short_time as f64 - moved * short as f64 - machine.host.call as f64;
    let far = by_cpu(machine, Buffers::Cold, long)? as f64 / long as f64;
    if buffers == Buffers::Cold {
        return Ok((far > moved).then(|| started / (far - moved)));
    }
    let fits = machine.host.last_cache() / 2;
    let near = by_cpu(machine, Buffers::Hot, fits)? as f64 / fits as f64;
    let share = (started / fits as f64 + moved - near) / (far - near);
    Ok((far > moved).then(|| fits as f64 + share * machine.host.last_way() as f64))
}

const CROSSINGS: &str = "papa-crossing";

/// The common part of both crossings: figure, the slide's sizes, and how they move.
fn judge_crossing(case: &Case<'_>, buffers: &str, basis: Basis) -> Result<Verdict, RunError> {
    let figure = format!("papa-{buffers}");
    let cpu = case.tables.line(&figure, "CPU")?;
    let engine = case.tables.line(&figure, "engine")?;
    let l2 = case.parameters.get("l2-size")?;
    let at = |label: &str, l2: f64| -> Result<Option<f64>, RunError> {
        Ok(case.tables.line(CROSSINGS, &format!("{buffers}{label}"))?.at(l2))
    };
    let mut finding = Finding::of(case.claim);
    let crossing = at("", l2)?;
    finding
        .number_if_any(crossing.map(|kib| kib * KIB), "up to 16 MiB the engine is never faster than the CPU");
    let faster = cpu.points.iter().zip(&engine.points).find(|((_, cpu), (_, engine))| engine > cpu);
    let first = faster.map_or(0.0, |((size, _), _)| size / KIB);
    finding.figure("first size of the figure at which the engine is faster, KiB", first);
    finding.figure("engine, longest, GB/s", engine.last());
    finding.figure("CPU, longest, GB/s", cpu.last());
    let computed = at(", by arithmetic", l2)?;
    let moves = [
        ("half the L2", at("", l2 / 2.0)?, at(", by arithmetic", l2 / 2.0)?),
        ("twice the set-up", at(", set-up doubled", l2)?, at(", set-up doubled, by arithmetic", l2)?),
    ];
    for (what, moved, expected) in moves {
        let (Some((moved, expected)), Some((crossing, computed))) =
            (moved.zip(expected), crossing.zip(computed))
        else {
            finding.check(false, format!("the figure has no crossing with {what}"));
            continue;
        };
        finding.figure(format!("with {what}, KiB"), moved);
        let ratio = moved / crossing;
        let arithmetic = expected / computed;
        let words = format!(
            "with {what} the crossing moves by a factor of {ratio:.2}, by arithmetic {arithmetic:.2}"
        );
        finding.check((ratio / arithmetic - 1.0).abs() < 0.05, words);
    }
    Ok(finding.verdict(Place::Simulated, basis))
}

fn hot(case: &Case<'_>) -> Result<Verdict, RunError> {
    judge_crossing(case, "hot", Basis::Predicted)
}

fn cold(case: &Case<'_>) -> Result<Verdict, RunError> {
    judge_crossing(case, "cold", Basis::Calibrated)
}

fn set_and_xor(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    for work in ["set", "XOR of four"] {
        let line = |by: &str| case.tables.line("papa-set-xor", &format!("{work}, {by}"));
        let [cpu, engine] = [line("CPU")?, line("engine")?];
        let mut pairs = cpu.points.iter().zip(&engine.points);
        let first = pairs.find(|((_, cpu), (_, engine))| engine > cpu).map(|((size, _), _)| size / KIB);
        finding.figure(format!("{work}, CPU, longest, GB/s"), cpu.last());
        finding.figure(format!("{work}, engine, longest, GB/s"), engine.last());
        if let Some(first) = first {
            finding.figure(format!("{work}, first size at which the engine is faster, KiB"), first);
        }
        let words = match first {
            Some(first) => format!("{work}: of the sizes tried the engine is faster from {first} KiB on"),
            None => format!("{work}: the engine is faster at no size"),
        };
        finding.check(first.is_some() && engine.last() > cpu.last(), words);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn cpu_time(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |by: &str| case.tables.line("papa-cpu-time", by);
    let [cpu, engine] = [line("CPU")?, line("engine")?];
    let mut finding = Finding::of(case.claim);
    for ((bytes, cpu), (_, engine)) in cpu.points.iter().zip(&engine.points) {
        finding.figure(format!("{bytes} bytes, by the CPU, us"), *cpu);
        finding.figure(format!("{bytes} bytes, offloaded, us of the CPU"), *engine);
        if *bytes >= PIECE as f64 {
            let words =
                format!("{bytes} bytes take {engine:.2} us of the CPU offloaded, {cpu:.2} by the CPU");
            finding.check(engine < cpu, words);
        }
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papa::PAPER;

    #[test]
    fn an_xor_reads_more_than_a_set() {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let machine = Machine::new(&parameters, 1).expect("listed");
        let length = 1 << 20;
        let engine = |work| worked_by_engine(&machine, work, Buffers::Cold, length).expect("runs").all;
        let cpu = |work| worked_by_cpu(&machine, work, Buffers::Cold, length).expect("runs");
        assert!(engine(Work::Set) < engine(Work::Copy) && engine(Work::Copy) < engine(Work::Xor));
        assert!(cpu(Work::Set) < cpu(Work::Copy) && cpu(Work::Copy) < cpu(Work::Xor));
        assert_eq!(cpu(Work::Copy), by_cpu(&machine, Buffers::Cold, length).expect("runs"));
    }
}
