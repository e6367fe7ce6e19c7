//! Judges of the claims on the driver (section 4.2).
//!
//! ```text
//! figures 13 and 14 ──► overhead      16 ──► concurrency      15 ──► latency of each client
//! ```
//!
//! The criteria are in `claims.toml`. The experiments that explain the order in figure 16 run here, since they have no figure.

use super::ablation::Off;
use super::board;
use super::clients::DeviceTimes;
use super::driver::aggregates;
use super::host::Host;
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::parameters::Parameters;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

pub(super) const JUDGES: [Judge; 4] = [
    Judge { claim: "wicki-driver-overhead", place: Place::Simulated, judge: overhead },
    Judge { claim: "wicki-driver-graphics", place: Place::Simulated, judge: graphics },
    Judge { claim: "wicki-driver-concurrency", place: Place::Simulated, judge: concurrency },
    Judge { claim: "wicki-client-latency", place: Place::Simulated, judge: client_latency },
];

const LATENCIES: &str = "wicki-fig-13";
const THROUGHPUTS: &str = "wicki-fig-14";
const GRAPHICS: &str = "wicki-driver-graphics";
/// Within this fraction two ways cost the same; the percentage in the statement belongs to another clause.
const ALIKE: f64 = 0.03;
/// Size of the transfers that explain figure 16: short enough to run twelve experiments.
const EXPLAINED_BYTES: u64 = 4 << 20;
/// Seed of pseudo-random replacement; caches do not matter here.
const SEED: u64 = 1;
/// Clients of figures 15 and 16.
const CLIENTS: [&str; 6] = ["1 client", "2 clients", "3 clients", "4 clients", "5 clients", "6 clients"];

/// The mean difference of two lines, in thousandths of their unit.
fn above(upper: &Series, lower: &Series) -> f64 {
    let differences = upper.points.iter().zip(&lower.points).map(|((_, upper), (_, lower))| upper - lower);
    differences.sum::<f64>() / upper.points.len().max(1) as f64 / 1e3
}

fn overhead(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label| case.tables.line(LATENCIES, label);
    let simple = line("simple interface")?;
    let plane = line("2-D interface")?;
    let alone = line("device alone")?;
    let through = case.tables.line(THROUGHPUTS, "simple interface")?;
    let device = case.tables.line(THROUGHPUTS, "device alone")?;
    let mut finding = Finding::of(case.claim);
    // At the smallest size, where the device's share of the difference is smallest.
    let more = plane
        .points
        .first()
        .zip(simple.points.first())
        .map_or(0.0, |((_, plane), (_, simple))| plane - simple);
    finding.number(above(simple, alone));
    finding.figure("2-D above simple, us", more);
    finding.check(more > 0.0, format!("the 2-D call takes {more:.2} us more than the simple one"));
    let ratios: Vec<f64> = simple.points.iter().zip(&alone.points).map(|((_, s), (_, a))| s / a).collect();
    let first = ratios.first().copied().unwrap_or(0.0);
    let last = ratios.last().copied().unwrap_or(0.0);
    finding.check(
        ratios.is_sorted_by(|before, after| before >= after),
        format!("latency falls from {first:.1} to {last:.3} times the device's as the size grows"),
    );
    let reached = through.last();
    let peak = device.peak();
    let words =
        format!("at the largest size the driver gives {reached:.0} MiB/s, the device's peak is {peak:.0}");
    finding.check(reached < peak, words);
    finding.because(
        "two changes of address space, the messages and the driver's steps, at the costs that are published or follow from \
         Barrelfish's code, take less than the thesis measured; what takes the rest is in none of its publications",
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// At the largest size, where the driver's share is smallest.
fn graphics(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let last = |label: &str| Ok::<f64, RunError>(case.tables.line(GRAPHICS, label)?.last());
    for what in ["copy", "transparent copy", "fill"] {
        let through = last(&format!("{what}, driver"))?;
        let device = last(&format!("{what}, device"))?;
        finding.figure(format!("{what}, driver"), through).figure(format!("{what}, device"), device);
        finding.near(&format!("through the driver {what} (MiB/s)"), through, device);
    }
    let rate = |what: &str| last(&format!("{what}, driver"));
    let values = [("copy", rate("copy")?), ("transparent copy", rate("transparent copy")?)];
    finding.agrees_within("through the driver throughput (MiB/s)", &values, ALIKE);
    finding
        .rises("through the driver throughput (MiB/s)", &[("copy", rate("copy")?), ("fill", rate("fill")?)]);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// Values of one size for each number of clients.
fn by_clients(case: &Case<'_>, figure: &str) -> Result<Vec<(f64, Vec<f64>)>, RunError> {
    let lines: Vec<&Series> =
        CLIENTS.into_iter().map(|label| case.tables.line(figure, label)).collect::<Result<_, _>>()?;
    let sizes = lines.first().map_or(&[][..], |line| &line.points);
    let at = |place: usize| lines.iter().filter_map(|line| line.points.get(place).map(|(_, y)| *y)).collect();
    Ok(sizes.iter().enumerate().map(|(place, (size, _))| (*size, at(place))).collect())
}

/// Position of the best value, counted from one.
fn place_of(values: &[f64], better: impl Fn(f64, f64) -> bool) -> usize {
    let best = (0..values.len()).reduce(|best, at| if better(values[at], values[best]) { at } else { best });
    best.map_or(0, |best| best + 1)
}

/// The claim is read as one about the longest transfers. Calls start one after the other, so short transfers of different clients
/// do not coincide; each sees the device alone, and the sum of their measurements says little about the device.
fn concurrency(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let mut longest = (0.0, Vec::new());
    for (size, values) in by_clients(case, "wicki-fig-16")? {
        let (lowest, highest) = extremes(&values);
        finding.figure(format!("{} KiB, lowest at", size / 1024.0), lowest as f64);
        finding.figure(format!("{} KiB, highest at", size / 1024.0), highest as f64);
        longest = (size, values);
    }
    let (size, values) = longest;
    let (lowest, highest) = extremes(&values);
    let of = format!("with transfers of {} KiB ({} MiB/s with 1 to 6)", size / 1024.0, listed(&values));
    finding.check(lowest == 2, format!("throughput is lowest at {lowest} {of}"));
    finding.check(highest == 4, format!("throughput is highest at {highest} {of}"));
    let why = explain_order(case);
    finding.because(why.map_err(|message| case.failed(message))?);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn listed(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ")
}

/// Two experiments on the order of the numbers of clients: a start at the same instant, and no batches of writes.
fn explain_order(case: &Case<'_>) -> Result<String, String> {
    let of = |parameters: &Parameters| board(parameters, SEED).map_err(|error| error.to_string());
    let unbatched = Off::WriteBatches.apply(case.parameters).map_err(|error| error.to_string())?;
    let board = of(case.parameters)?;
    let unbatched = of(&unbatched)?;
    let run = |host: &Host, device: &DeviceTimes| {
        aggregates(host, device, EXPLAINED_BYTES, CLIENTS.len()).map_err(|error| error.to_string())
    };
    let through = run(&board.host, &board.device)?;
    let at_once = run(&board.host.direct(), &board.device)?;
    let unbatched = run(&unbatched.host, &unbatched.device)?;
    Ok(format!(
        "frames of a client lie at multiples of their size, so all streams are in the same banks, and the driver starts transfers one \
                 after the other: of 4 MiB, one to six have {} MiB/s through it, {} when all start at the same instant, and {} without \
                 batches of writes",
        listed(&through),
        listed(&at_once),
        listed(&unbatched)
    ))
}

/// Positions of the lowest and the highest value, counted from one.
fn extremes(values: &[f64]) -> (usize, usize) {
    (place_of(values, |value, best| value < best), place_of(values, |value, best| value > best))
}

fn client_latency(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    for (size, values) in by_clients(case, "wicki-fig-15")? {
        let kib = size / 1024.0;
        let named: Vec<(&str, f64)> = CLIENTS.into_iter().zip(values.iter().copied()).collect();
        finding.rises(&format!("latency in us at {kib} KiB"), &named);
        let first = values.first().copied().unwrap_or(1.0);
        let last = values.last().copied().unwrap_or(1.0);
        finding.figure(format!("{kib} KiB, six clients against one"), last / first);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_counted_from_one() {
        let values = [3.0, 1.0, 4.0, 4.0];
        assert_eq!(place_of(&values, |value, best| value < best), 2);
        assert_eq!(place_of(&values, |value, best| value > best), 3);
        assert_eq!(place_of(&[], |value, best| value > best), 0);
    }

    #[test]
    fn above_is_the_mean_difference() {
        let line = |points: &[(f64, f64)]| Series { label: String::new(), points: points.to_vec() };
        let upper = line(&[(1.0, 1500.0), (2.0, 2500.0)]);
        let lower = line(&[(1.0, 500.0), (2.0, 1000.0)]);
        assert_eq!(above(&upper, &lower), 1.25);
    }
}
