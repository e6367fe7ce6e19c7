//! Linked channels and priorities: features of the device that the thesis's driver leaves out (2.3.2.2, 3.4.1).
//!
//! ```text
//! transfers of one size ─┬─ channels linked: the first is enabled, the last interrupts ──► time of each
//!                        └─ the handler enables the next one at each interrupt          ──► time of each
//! one channel of high priority among others ── arbitration rate ──► throughput of it, and of the others
//! ```

use memferry_drivers::sdma::{ChannelConfig, Priority, Settings as Global};
use serde::Deserialize;

use super::judge_bulk::{both, exceptions};
use super::machine::{self, MEMORY, Machine, MachineError};
use super::transfer;
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

/// Microseconds of one of several transfers that follow each other, by size.
pub(super) const CHAINED: Runner = Runner { name: "chained", run: chained };
/// Throughput of the channels of each priority, by arbitration rate.
pub(super) const PRIORITIES: Runner = Runner { name: "priorities", run: priorities };

pub(super) const JUDGES: [Judge; 2] = [
    Judge { claim: "wicki-channel-linking", place: Place::Simulated, judge: linking },
    Judge { claim: "wicki-priority", place: Place::Simulated, judge: priority },
];

/// Transfers that follow each other.
const LENGTH: u64 = 8;
/// Bytes of each transfer of the priorities' experiment.
const BYTES: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ChainSettings {
    /// Whether the device starts the next transfer itself.
    linked: bool,
    /// Whether the memory is never refreshed: an ablation.
    #[serde(default)]
    unrefreshed: bool,
}

fn copies(bytes: u32, count: u64) -> Result<Vec<ChannelConfig>, String> {
    let place = |at: u64| MEMORY + at * (u64::from(bytes) + (64 << 10));
    (0..count).map(|at| transfer::burst_copy(bytes, place(2 * at), place(2 * at + 1))).collect()
}

fn chained(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: ChainSettings = line.settings()?;
    let interval = if settings.unrefreshed { 0.0 } else { line.parameters.get("dram-refresh-interval")? };
    let parameters = line.parameters.with("dram-refresh-interval", interval)?;
    let depth = machine::fifo_depth(&parameters)?;
    let point = |x: f64| -> Result<(f64, f64), RunError> {
        let configs = copies(x as u32, LENGTH).map_err(|error| line.failed(error))?;
        let time = Machine::new(&parameters, depth)
            .and_then(|mut machine| machine.run_in_turn(&configs, settings.linked))
            .map_err(|error| line.failed(error))?;
        Ok((x, time as f64 / LENGTH as f64 / 1e6))
    };
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PrioritySettings {
    /// Copies that run at the same time, on a channel each.
    channels: u64,
    /// How many of them have high priority.
    high: usize,
}

/// Mean throughput in MiB/s of the channels of high priority and of the others, while all of them run.
fn shares(parameters: &Parameters, settings: PrioritySettings, rate: u8) -> Result<[f64; 2], MachineError> {
    let fifo_depth = machine::fifo_depth(parameters)?;
    let global = Global { fifo_depth, arbitration_rate: rate, ..Global::default() };
    let mut configs = copies(BYTES, settings.channels).unwrap_or_default();
    for config in configs.iter_mut().take(settings.high) {
        config.read_priority = Priority::High;
        config.write_priority = Priority::High;
    }
    let ends = Machine::with(parameters, &global)?.run_trusted(&configs)?;
    let mean = |ends: &[u128]| {
        let of = |end: &u128| f64::from(BYTES) / f64::from(1u32 << 20) * 1e12 / (*end).max(1) as f64;
        ends.iter().map(of).sum::<f64>() / ends.len().max(1) as f64
    };
    let (high, others) = ends.split_at(settings.high.min(ends.len()));
    Ok([mean(high), mean(others)])
}

fn priorities(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: PrioritySettings = line.settings()?;
    let point = |x: f64| -> Result<(f64, [f64; 2]), RunError> {
        let rate = (x as u64).clamp(1, 255) as u8;
        Ok((x, shares(line.parameters, settings, rate).map_err(|error| line.failed(error))?))
    };
    let points: Vec<(f64, [f64; 2])> = line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    let series = |name: &str, of: usize| Series {
        label: format!("{}, {name}", line.series.label),
        points: points.iter().map(|(x, both)| (*x, both[of])).collect(),
    };
    let mut lines = vec![series("the others", 1)];
    if settings.high > 0 {
        lines.insert(0, series("high priority", 0));
    }
    Ok(lines)
}

fn linking(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label: &str| case.tables.line("wicki-linking", label);
    let linked = line("linked channels")?;
    let apart = line("started by the interrupt handler")?;
    let mut finding = Finding::of(case.claim);
    for (bytes, linked, apart) in both(linked, apart) {
        let kib = bytes / 1024.0;
        finding.figure(format!("{kib} KiB, linked, us"), linked);
        finding.figure(format!("{kib} KiB, by the handler, us"), apart);
    }
    let is_faster = |linked, apart| linked < apart;
    let slower = exceptions(both(linked, apart), is_faster);
    let words = "a transfer of a chain takes less time than one that the handler starts";
    let except = slower.as_ref().map_or(String::new(), |slower| format!(", {slower}"));
    finding.check(slower.is_none(), format!("{words}{except}"));
    let [linked, apart] = [line("linked, no refresh")?, line("by the handler, no refresh")?];
    finding.because(match exceptions(both(linked, apart), is_faster) {
        None => "of the memory's refreshes: without them linked is faster at each of these sizes".to_owned(),
        Some(slower) => format!("not confirmed: without refresh linked is faster, {slower}"),
    });
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn priority(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label: &str| case.tables.line("wicki-priorities", label);
    let high = line("one of eight, high priority")?;
    let others = line("one of eight, the others")?;
    let alike = line("none of eight, the others")?;
    let mut finding = Finding::of(case.claim);
    for ((rate, high), (_, others)) in high.points.iter().zip(&others.points) {
        finding.figure(format!("rate {rate}, high priority"), *high);
        finding.figure(format!("rate {rate}, the others"), *others);
    }
    let first = high.points.first().map_or(0.0, |(_, y)| *y);
    let above = high.points.iter().zip(&alike.points).all(|((_, high), (_, alike))| high > alike);
    finding.check(
        above,
        format!(
            "among seven others the channel has {first:.1} to {:.1} MiB/s, {:.1} without priority",
            high.last(),
            alike.last()
        ),
    );
    finding.check(
        high.points.is_sorted_by(|(_, before), (_, after)| *before <= after * (1.0 + STEADY)),
        "its throughput does not fall with the arbitration rate",
    );
    let least = others.points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    finding.check(least > 0.0, format!("none of the others starves: {least:.1} MiB/s at least"));
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// Fraction by which a throughput may fall and still count as steady; placements alone make so much difference.
const STEADY: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wicki::PAPER;

    #[test]
    fn a_chain_moves_everything_once() {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let mut machine = Machine::new(&parameters, 64).expect("comes up");
        let source: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        machine.memory(|memory| memory[..4096].copy_from_slice(&source));
        let place = |at: u64| MEMORY + at * 4096;
        let step = |at: u64| transfer::burst_copy(4096, place(at), place(at + 1)).expect("fits");
        machine.run_in_turn(&[step(0), step(1), step(2)], true).expect("runs");
        assert_eq!(machine.memory(|memory| memory[3 * 4096..4 * 4096].to_vec()), source, "in order");
    }

    #[test]
    fn priority_needs_competition() {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let of = |channels, high| shares(&parameters, PrioritySettings { channels, high }, 16).expect("runs");
        let [alone, _] = of(1, 1);
        let [among, others] = of(8, 1);
        let [_, alike] = of(8, 0);
        assert!(among > 1.5 * alike && others < alike, "{among} {others} {alike}");
        assert!(among <= 1.05 * alone, "{among} {alone}");
    }
}
