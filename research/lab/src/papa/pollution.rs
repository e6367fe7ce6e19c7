//! Victims in the caches during copies of 16,064 bytes (Papa 2014, "Cache Pollution").
//!
//! ```text
//! victim, to warm up ─► alone ─► with a copy at the slides' cadence, by CPU or engine ─► increase of its own time, %
//! ```
//!
//! Only the victim's own time counts, without the time of the copies. Sources cycle through a file of 32 MiB in the page cache;
//! the destination is one buffer, as with `read`.

use memferry_path::PolicyKind;
use memferry_transfer::PriorityClass;
use serde::Deserialize;

use super::cftu::{Cftu, CftuError, Machine};
use super::chipset::window;
use super::crossing::{Buffers, By, prepare_caches};
use super::host::PIECE;
use super::victims::{Core, VICTIMS, Victim};
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

/// The cost of copies to a victim.
pub(super) const POLLUTION: Runner = Runner { name: "papa-pollution", run: pollution };

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "papa-pollution", place: Place::Simulated, judge: polluted }];

/// Bytes of the source file.
const FILE: u64 = 32 << 20;
/// Smallest effect that counts as measurable, percent: smaller ones are below the variation between two runs of a program. Of the
/// victims, the one in the middle must have it, and none may lose. Set before the cadence of the slides was first run.
pub(super) const MEASURABLE: f64 = 1.0;

const FIGURE: &str = "papa-pollution";

/// The increase of the victim's own time; the line `also` has the same including the CPU's time for the copies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    by: By,
    /// The name of the second line.
    #[serde(rename = "also")]
    _also: String,
}

fn pollution(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let machine = Machine::new(line.parameters, line.plan.seed)?;
    let every = (line.parameters.get("copy-every")? * 1e6) as u64;
    let mut lines: Vec<Series> =
        line.series.labels().map(|label| Series { label: label.to_owned(), points: Vec::new() }).collect();
    for x in line.plan.points() {
        let victim = victim_at(x).ok_or_else(|| line.failed("victims are numbered from 1 to 6"))?;
        let rises = rises(&machine, victim, settings.by, every).map_err(|error| line.failed(error))?;
        lines.iter_mut().zip(rises).for_each(|(line, rise)| line.points.push((x, rise)));
    }
    Ok(lines)
}

/// The victim at this x value of a figure.
fn victim_at(x: f64) -> Option<&'static Victim> {
    (x as usize).checked_sub(1).and_then(|at| VICTIMS.get(at))
}

/// The increase of a victim's time, percent, with a copy every so many picoseconds: its own, and with the CPU's time for the copies.
fn rises(machine: &Machine, victim: &Victim, by: By, every: u64) -> Result<[f64; 2], CftuError> {
    let caches = machine.caches()?;
    // Fills the caches with other data, as after some time of other use.
    prepare_caches(machine, &caches, Buffers::Cold, PIECE);
    let mut nothing = || ();
    let mut alone = Core::new(machine, &caches, u64::MAX, &mut nothing);
    (victim.run)(&mut alone);
    let warm = alone.own();
    (victim.run)(&mut alone);
    let undisturbed = alone.own() - warm;

    let mut cftu = Cftu::new(machine, &caches, PolicyKind::Shared.build(), &[PriorityClass::Normal])?;
    let mut place = 0;
    let mut spent = 0;
    let mut failed = None;
    let mut between = || {
        place = (place + PIECE.next_multiple_of(64)) % FILE;
        let [source, destination] = window(0);
        match by {
            By::Cpu => spent += machine.copy_by_cpu(&caches, [source + place, destination], PIECE),
            By::Engine => match cftu.copy([place, 0], PIECE) {
                Ok(took) => spent += took.cpu,
                Err(error) => failed = Some(error),
            },
        }
    };
    let mut core = Core::new(machine, &caches, every, &mut between);
    (victim.run)(&mut core);
    let own = core.own();
    if let Some(error) = failed {
        return Err(error);
    }
    Ok([own, own + spent].map(|disturbed| (disturbed as f64 / undisturbed as f64 - 1.0) * 100.0))
}

fn polluted(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label| case.tables.line(FIGURE, label);
    let cpu = line("CPU copies")?;
    let engine = line("engine copies")?;
    let whole_cpu = line("CPU, with its copies")?;
    let whole_engine = line("engine, with its copies")?;
    let mut finding = Finding::of(case.claim);
    let mut gains = Vec::new();
    for ((number, by_cpu), (_, by_engine)) in cpu.points.iter().zip(&engine.points) {
        let Some(victim) = victim_at(*number) else { continue };
        let gain = (1.0 - (100.0 + by_engine) / (100.0 + by_cpu)) * 100.0;
        finding.figure(format!("{} faster when offloaded, %", victim.category), gain);
        gains.push((victim.category, gain));
    }
    let least = gains.iter().map(|(_, gain)| *gain).fold(f64::INFINITY, f64::min);
    let most = gains.iter().map(|(_, gain)| *gain).fold(0.0, f64::max);
    let mut sorted: Vec<f64> = gains.iter().map(|(_, gain)| *gain).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    finding.figure("the victim in the middle faster when offloaded, %", middle);
    let few: Vec<&str> = gains.iter().filter(|(_, gain)| *gain < MEASURABLE).map(|(name, _)| *name).collect();
    let words = format!(
        "of {} victims, all in level 2, the one in the middle is {middle:.2} % faster beside offloaded copies, where {MEASURABLE} % is \
         read as measurable; {} are by so much, up to {most:.2}; by less, from {least:.2} % on: {}",
        gains.len(),
        gains.len() - few.len(),
        few.join(", ")
    );
    finding.check(least > 0.0 && middle >= MEASURABLE, words);
    let words = format!(
        "a copy every {} us of the victim's time, from the slides' 3.6 million in 100 s on four cores; the victims stand in for \
         MiBench's programs, which are under many licences and would need an instrument that records each access",
        case.parameters.get("copy-every")?
    );
    finding.check(true, words);
    let mean =
        |line: &Series| line.points.iter().map(|(_, rise)| rise).sum::<f64>() / line.points.len() as f64;
    let words = format!(
        "beside the CPU's they take {:.1} % longer than alone in the mean, beside the engine's {:.1} %; \
         with what copies take of \
         the CPU {:.1} and {:.1} %",
        mean(cpu),
        mean(engine),
        mean(whole_cpu),
        mean(whole_engine)
    );
    finding.check(mean(engine) < mean(cpu), words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}
