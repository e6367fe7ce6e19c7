//! The effect of the caches' state on a copy's time (Papa 2014, "Conclusions" and "Motivations (2)").
//!
//! ```text
//! state of both buffers, size ──► Cftu::copy ──► MB/s      snoop answer time ──► the same: from when it has an effect
//! random histories of the caches, late interrupts and wake-ups ──► 400 copies each by CPU and engine ──► durations by percentile
//! ```
//!
//! The engine's independence is a result, not a premise: modified lines found by a snoop occupy the front-side bus, and the
//! engine waits for a snoop that is slower than memory. Also, the kernel's own lines use the same caches.

use memferry_path::PolicyKind;
use memferry_transfer::PriorityClass;
use serde::Deserialize;

use super::cftu::{Cftu, CftuError, Machine};
use super::chipset::{Caches, window};
use super::crossing::{Buffers, By, prepare_caches};
use super::host::PIECE;
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::rng::Rng;
use crate::table::{Series, TableError};
use crate::verdict::{Basis, Verdict};

/// The engine's throughput by the state of the buffers.
pub(super) const STATES: Runner = Runner { name: "papa-states", run: states };
pub(super) const DURATIONS: Runner = Runner { name: "papa-durations", run: durations };

pub(super) const JUDGES: [Judge; 2] = [
    Judge { claim: "papa-cache-independent", place: Place::Simulated, judge: independent },
    Judge { claim: "papa-predictability", place: Place::Simulated, judge: predictable },
];

/// Bytes of a copy when the snoop answer time varies.
const LENGTH: u64 = 256 << 10;
/// Number of copies whose durations are compared.
const COPIES: usize = 400;

/// The contents of the caches for both buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Uncached,
    /// Both buffers cached, unmodified.
    Clean,
    /// Only the source cached, modified.
    SourceModified,
    /// Both buffers cached, modified.
    BothModified,
}

/// The quantity on the x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Over {
    Size,
    SnoopAnswer,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StateSettings {
    state: State,
    over: Over,
}

fn offloaded(machine: &Machine, state: State, length: u64) -> Result<f64, CftuError> {
    let caches = machine.caches()?;
    let mut cftu = Cftu::new(machine, &caches, PolicyKind::Shared.build(), &[PriorityClass::Normal])?;
    let [source, destination] = window(0);
    prepare_caches(machine, &caches, Buffers::Cold, length);
    {
        let mut caches = caches.borrow_mut();
        match state {
            State::Uncached => 0,
            State::Clean => caches.read(source, length) + caches.read(destination, length),
            State::SourceModified => caches.write(source, length) + caches.read(destination, length),
            State::BothModified => caches.write(source, length) + caches.write(destination, length),
        };
    }
    // Brings the kernel's own lines into the caches by a copy of one line far away.
    cftu.copy([128 << 20; 2], 64)?;
    Ok(length as f64 * 1e6 / cftu.copy([0; 2], length)?.all as f64)
}

fn states(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let StateSettings { state, over } = line.settings()?;
    let point = |x: f64| -> Result<(f64, f64), RunError> {
        let (parameters, length) = match over {
            Over::Size => (line.parameters.clone(), x as u64),
            Over::SnoopAnswer => (line.parameters.with("snoop-answer", x)?, LENGTH),
        };
        let machine = Machine::new(&parameters, line.plan.seed)?;
        Ok((x, offloaded(&machine, state, length).map_err(|error| line.failed(error))?))
    };
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

const LABELS: [&str; 4] = ["in no cache", "clean", "source modified", "both modified"];

fn independent(case: &Case<'_>) -> Result<Verdict, RunError> {
    let lines = |figure| -> Result<Vec<&Series>, TableError> {
        LABELS.iter().map(|label| case.tables.line(figure, label)).collect()
    };
    let by_size = lines("papa-states")?;
    let by_answer = lines("papa-snoop")?;
    let mut finding = Finding::of(case.claim);
    let apart = |lines: &[&Series], index: usize| {
        let rates = lines.iter().map(|line| line.points[index].1);
        let ends = |(low, high): (f64, f64), rate| (low.min(rate), high.max(rate));
        let (low, high) = rates.fold((f64::INFINITY, 0.0), ends);
        high / low - 1.0
    };
    let sizes = 0..by_size[0].points.len();
    if let Some(worst) = sizes.max_by(|one, other| apart(&by_size, *one).total_cmp(&apart(&by_size, *other)))
    {
        let rates: Vec<(&str, f64)> =
            LABELS.iter().zip(&by_size).map(|(label, line)| (*label, line.points[worst].1)).collect();
        let size = by_size[0].points[worst].0 / 1024.0;
        finding
            .agrees(&format!("throughput of {size} KiB, MB/s, where it differs most of all sizes,"), &rates);
    }
    let allowed = case.claim.stated_fraction().unwrap_or(0.0);
    let answers: Vec<f64> = by_answer[0].points.iter().map(|(answer, _)| *answer).collect();
    let shows = answers.iter().enumerate().find(|(index, _)| apart(&by_answer, *index) > allowed);
    let longest = answers.last().copied().unwrap_or(0.0);
    let words = match shows {
        Some((_, answer)) => format!("with snoops answered after {answer} ns, it would not hold"),
        None => format!("it would hold with snoop answer times of up to {longest} ns"),
    };
    if let Some((_, answer)) = shows {
        finding.figure("snoop answer from which it does not hold, ns", *answer);
    }
    let [answer, memory] = ["snoop-answer", "memory-latency"].map(|name| case.parameters.get(name));
    let words = format!(
        "a snoop runs beside memory's own access and is answered after {} ns, where memory takes {} ns; {words}",
        answer?, memory?
    );
    finding.check(true, words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DurationSettings {
    by: By,
}

/// A random history before a copy: each side is read, written or unused; then other memory is used, from 1 KiB to the size of
/// all caches.
fn random_history(machine: &Machine, caches: &Caches, rng: &mut Rng, sides: [u64; 2]) {
    let mut caches = caches.borrow_mut();
    for side in sides {
        match rng.below(3) {
            0 => caches.read(side, PIECE),
            1 => caches.write(side, PIECE),
            _ => 0,
        };
    }
    // Sizes are powers of two: 1 KiB to the last level.
    let most = (machine.host.last_cache() >> 10).max(1).ilog2();
    let others = 1024u64 << rng.below(u64::from(most) + 1);
    let [read, written] = window(1).map(|first| first + (rng.below(1 << 10) << 16));
    caches.copy(read, written, others / 2);
}

fn all_durations(machine: &Machine, by: By) -> Result<Vec<u64>, CftuError> {
    let caches = machine.caches()?;
    let mut cftu = Cftu::new(machine, &caches, PolicyKind::Shared.build(), &[PriorityClass::Normal])?;
    let mut rng = Rng::new(machine.seed);
    let mut all = Vec::new();
    for _ in 0..COPIES {
        let places = [0; 2].map(|_| rng.below(256) << 16);
        let [source, destination] = window(0);
        let sides = [source + places[0], destination + places[1]];
        random_history(machine, &caches, &mut rng, sides);
        all.push(match by {
            By::Cpu => machine.copy_by_cpu(&caches, sides, PIECE),
            By::Engine => cftu.copy_with_chance(places, PIECE)?.all,
        });
    }
    all.sort_unstable();
    Ok(all)
}

fn durations(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let DurationSettings { by } = line.settings()?;
    let machine = Machine::new(line.parameters, line.plan.seed)?;
    let all = all_durations(&machine, by).map_err(|error| line.failed(error))?;
    let at =
        |percent: f64| all[((percent / 100.0 * all.len() as f64) as usize).min(all.len() - 1)] as f64 / 1e6;
    let points = line.plan.points().into_iter().map(|percent| (percent, at(percent))).collect();
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

fn predictable(case: &Case<'_>) -> Result<Verdict, RunError> {
    let at = |label, percent| case.tables.value("papa-durations", label, percent);
    let mut finding = Finding::of(case.claim);
    let mut spreads = Vec::new();
    for label in ["CPU", "engine"] {
        let [first, middle, last] = [at(label, 1.0)?, at(label, 50.0)?, at(label, 99.0)?];
        finding.figure(format!("{label}, median, us"), middle);
        finding.figure(format!("{label}, 1st to 99th percentile, us"), last - first);
        spreads.push((last - first, (last - first) / middle));
    }
    let [(cpu, of_cpu), (engine, of_engine)] = spreads[..] else {
        return Ok(finding.verdict(Place::Simulated, Basis::Predicted));
    };
    let words = format!(
        "the durations of 400 copies of 16,064 bytes after random histories, with interrupts and wake-ups that come late by chance, \
         differ by {engine:.2} us with the engine ({:.0} % of its median), {cpu:.2} us by the CPU ({:.0} %)",
        of_engine * 100.0,
        of_cpu * 100.0
    );
    finding.check(engine < cpu && of_engine < of_cpu, words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}
