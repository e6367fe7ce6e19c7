//! Judges of the thesis's claims on the device itself (section 4.1.2, figures 3 to 12).
//!
//! ```text
//! Tables ── lines by figure and label ──► Finding ──► a row for each claim
//! ```
//!
//! The criteria are in `claims.toml`. The peak without bursts is calibrated; all other figures follow from the same
//! parameters. Lines are means over placements of the frames (see `transfer`).

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

use super::ablation::{self, Off};

type Judged = Result<Verdict, RunError>;

const fn simulated(claim: &'static str, judge: fn(&Case<'_>) -> Judged) -> Judge {
    Judge { claim, place: Place::Simulated, judge }
}

pub(super) const JUDGES: [Judge; 13] = [
    simulated("wicki-element-size", element_size),
    simulated("wicki-burst-peak", burst_peak),
    simulated("wicki-no-burst-peak", no_burst_peak),
    simulated("wicki-burst-gain", burst_gain),
    simulated("wicki-fifo-depth", fifo_depth),
    simulated("wicki-fill-width", fill_width),
    simulated("wicki-fill-spikes", fill_spikes),
    simulated("wicki-fill-burst-peak", fill_burst_peak),
    simulated("wicki-transparent", transparent),
    simulated("wicki-asymmetric-ports", asymmetric_ports),
    simulated("wicki-rotation", rotation),
    simulated("wicki-concurrency", concurrency),
    simulated("wicki-simple-interface", simple_interface),
];

const WIDTHS: [&str; 3] = ["8 bit", "16 bit", "32 bit"];

/// Transfers from this size on take so long that their start does not matter.
const LONG_BYTES: f64 = 1_048_576.0;

/// Tolerance for "cost the same" of rotations; the percentage in the statement belongs to another clause.
const THE_SAME: f64 = 0.02;

/// The peaks of lines of a figure, with their labels.
fn peaks<'a>(case: &Case<'_>, figure: &str, labels: &[&'a str]) -> Result<Vec<(&'a str, f64)>, RunError> {
    labels.iter().map(|label| Ok((*label, case.tables.line(figure, label)?.peak()))).collect()
}

fn element_size(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let plain = peaks(case, "wicki-fig-03", &WIDTHS)?;
    let packed = peaks(case, "wicki-fig-03", &["8 bit, packed", "16 bit, packed", "32 bit, packed"])?;
    for (label, value) in plain.iter().chain(&packed) {
        finding.figure(*label, *value);
    }
    finding.rises("without packed access throughput (MiB/s)", &plain);
    finding.agrees("with packed access throughput (MiB/s)", &packed);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn burst_peak(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let sizes = peaks(case, "wicki-fig-04", &["16-byte bursts", "32-byte bursts", "64-byte bursts"])?;
    finding.number(case.tables.line("wicki-fig-04", "64-byte bursts")?.peak());
    finding.rises("the peak (MiB/s)", &sizes);
    let long = |name: &str| -> Result<Vec<f64>, RunError> {
        let line = case.tables.line("wicki-fig-04", name)?;
        Ok(line.points.iter().filter(|(bytes, _)| *bytes >= LONG_BYTES).map(|(_, y)| *y).collect())
    };
    let lowest = long("64-byte bursts, lowest")?.into_iter().fold(f64::INFINITY, f64::min);
    let highest = long("64-byte bursts, highest")?.into_iter().fold(0.0, f64::max);
    finding.figure("lowest placement", lowest).figure("highest placement", highest);
    finding
        .check(true, format!("from 1 MiB on {lowest:.1} to {highest:.1} MiB/s by placement of the frames"));
    finding.because(
        "with the latency that gives the peak without bursts, the four reads that FIFO and threads allow at once bring no more",
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn no_burst_peak(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let plain = case.tables.line("wicki-fig-04", "no bursts, not packed")?.peak();
    finding.number(case.tables.line("wicki-fig-04", "no bursts, packed")?.peak());
    finding.check(true, format!("with packed access; without it {plain:.1} MiB/s"));
    Ok(finding.verdict(Place::Simulated, Basis::Calibrated))
}

fn burst_gain(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let none = case.tables.line("wicki-fig-04", "no bursts, packed")?;
    let bursts = case.tables.line("wicki-fig-04", "64-byte bursts")?;
    let gains = bursts.points.iter().filter_map(|(x, with)| Some(with / none.at(*x)?));
    finding.number(gains.fold(0.0, f64::max));
    Ok(finding.verdict(Place::Simulated, Basis::Derived))
}

fn fifo_depth(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let reset = case.tables.line("wicki-fig-04", "64-byte bursts, FIFO depth at reset")?.peak();
    let short = case.tables.line("wicki-fig-04", "32-byte bursts")?.peak();
    let raised = case.tables.line("wicki-fig-04", "64-byte bursts")?.peak();
    finding.figure("reset depth", reset).figure("raised depth", raised);
    finding.check(
        reset < short && short < raised,
        format!(
            "64-byte bursts reach {reset:.1} MiB/s at the reset depth, less than 32-byte bursts with a raised one \
             ({short:.1}), and {raised:.1} when it is raised"
        ),
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn fill_width(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let plain = peaks(case, "wicki-fig-05", &["8 bit", "16 bit", "24 bit"])?;
    let bursts = peaks(case, "wicki-fig-05", &["8 bit, bursts", "16 bit, bursts", "24 bit, bursts"])?;
    for (label, value) in plain.iter().chain(&bursts) {
        finding.figure(*label, *value);
    }
    finding.rises("without bursts throughput (MiB/s)", &plain);
    let same = bursts.iter().all(|(_, value)| *value == bursts[0].1);
    finding.check(same, format!("with bursts every width has {:.1} MiB/s", bursts[0].1));
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// Fraction by which a point is above or below both its neighbours to be a spike; the claim's note states it.
const SPIKE: f64 = 0.05;

/// The sizes, in KiB, at which a line has a spike.
fn spikes(line: &Series) -> Vec<f64> {
    let stands_out = |points: &&[(f64, f64)]| {
        let [(_, before), (_, at), (_, after)] = **points else { return false };
        at > before.max(after) * (1.0 + SPIKE) || at < before.min(after) * (1.0 - SPIKE)
    };
    line.points.windows(3).filter(stands_out).map(|points| points[1].0 / 1024.0).collect()
}

fn fill_spikes(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let line = |label: &str| case.tables.line("wicki-fill-spikes", label);
    for (label, has_spikes) in
        [("24 bit", true), ("24 bit, another frame", true), ("8 bit", false), ("16 bit", false)]
    {
        let found = spikes(line(label)?);
        finding.figure(format!("{label}, spikes"), found.len() as f64);
        let places: Vec<String> = found.iter().map(|kib| format!("{kib} KiB")).collect();
        let words = match &places[..] {
            [] => format!("{label} has no spikes"),
            places => format!("{label} has spikes at {}", places.join(", ")),
        };
        finding.check(found.is_empty() != has_spikes, words);
    }
    finding.because(
        "a value of 24 bits is written as elements of 32 bits by the manual, one access each, whatever the transfer's size; the thesis \
                 names no cause, and no cause in the model depends on the size and the width together",
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn fill_burst_peak(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let fill = case.tables.line("wicki-fig-05", "24 bit, bursts")?.peak();
    let other = |line: &Series| line.peak() <= fill;
    // Every plan of a transfer that runs alone names this claim.
    let highest = case.tables.iter().flat_map(|table| &table.series).all(other);
    finding.number(fill);
    finding.check(highest, "no other transfer that runs alone is faster");
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn transparent(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    for mode in ["no bursts", "bursts"] {
        let shares = ["copy", "0 % match", "25 % match", "50 % match", "100 % match"];
        let labels = shares.map(|share| format!("{share}, {mode}"));
        let found = peaks(case, "wicki-fig-06", &labels.each_ref().map(String::as_str))?;
        for (label, value) in &found {
            finding.figure(*label, *value);
        }
        finding.agrees("throughput (MiB/s)", &found);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn asymmetric_ports(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let peak = |label: &str| Ok::<f64, RunError>(case.tables.line("wicki-fig-08", label)?.peak());
    let neither = peak("neither")?;
    finding.figure("neither", neither);
    for access in ["packed", "bursts"] {
        let source = peak(&format!("source {access}"))?;
        let destination = peak(&format!("destination {access}"))?;
        finding.figure(format!("source {access}"), source);
        finding.figure(format!("destination {access}"), destination);
        let gain = source - neither;
        let other = destination - neither;
        // A gain of half or more does not count as comparable.
        finding.check(
            gain > 0.0 && other < gain / 2.0,
            format!("{access} on the source alone adds {gain:.1} MiB/s to {neither:.1}, on the destination {other:.1}"),
        );
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn rotation(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let line = |label: &str| case.tables.line("wicki-fig-09", label);
    for mode in ["no bursts", "bursts"] {
        let quarter = line(&format!("90 degrees, {mode}"))?;
        let three = line(&format!("270 degrees, {mode}"))?;
        finding.figure(format!("90 degrees, {mode}"), quarter.last());
        finding.figure(format!("270 degrees, {mode}"), three.last());
        let apart = furthest(three, quarter);
        finding.check(
            apart.abs() <= THE_SAME,
            format!("with {mode} 270 degrees is at most {:+.1} % off 90 over all sizes", apart * 100.0),
        );
    }
    let gain = line("90 degrees, bursts")?.peak() / line("90 degrees, no bursts")?.peak();
    let copy_gain = line("copy, bursts")?.peak() / line("copy, no bursts")?.peak();
    let words = format!("bursts make rotation {gain:.1} times as fast, a copy of bytes {copy_gain:.1} times");
    finding.check(gain > 1.0 && gain < copy_gain / 2.0, words);
    let beside = line("copy, bursts on the source")?;
    finding.figure("copy, bursts on the source", beside.last());
    let within = case.claim.stated_fraction().unwrap_or(0.0);
    for turned in ["90 degrees, bursts", "180 degrees, bursts", "270 degrees, bursts"] {
        let apart = furthest(line(turned)?, beside);
        finding.figure(format!("{turned}, furthest off, %"), apart * 100.0);
        finding.check(
            apart.abs() <= within,
            format!(
                "{turned}, is at most {:+.1} % off a copy with bursts on the source, over all sizes",
                apart * 100.0
            ),
        );
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// The largest deviation of a line from another one, as a fraction of the latter.
fn furthest(line: &Series, from: &Series) -> f64 {
    let off = line.points.iter().filter_map(|(x, y)| Some(y / from.at(*x)? - 1.0));
    off.fold(0.0, |furthest: f64, off| if off.abs() > furthest.abs() { off } else { furthest })
}

fn concurrency(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    for size in ["1 MiB", "16 MiB"] {
        let all = case.tables.line("wicki-fig-11", &format!("{size}, aggregate"))?;
        let each = case.tables.line("wicki-fig-11", &format!("{size}, per channel"))?;
        for (channels, together) in all.points.iter().filter(|(channels, _)| *channels <= 8.0) {
            finding.figure(format!("{size}, {channels} channels"), *together);
        }
        let at = |name: &str, x: f64| case.tables.value("wicki-fig-11", &format!("{}{name}", all.label), x);
        let falls = each.points.is_sorted_by(|(_, before), (_, after)| before > after);
        let first = each.points.first().map_or(0.0, |(_, y)| *y);
        let last = each.last();
        finding.check(
            falls,
            format!(
                "{size}: throughput per channel falls steadily over the {} counts that were tried, {first:.1} to {last:.1} MiB/s",
                each.points.len()
            ),
        );
        let spread = |x: f64| {
            let [mean, low, high] = [at("", x)?, at(", lowest", x)?, at(", highest", x)?];
            Ok::<_, RunError>((mean, format!("{mean:.1} ({low:.1} to {high:.1} by placement)")))
        };
        let (one, one_words) = spread(1.0)?;
        let (two, two_words) = spread(2.0)?;
        finding.check(
            two < one,
            format!("{size}: two channels have {two_words} MiB/s together, one {one_words}"),
        );
        let peak = all.peak();
        let place = all.peak_at();
        finding.check(place == 4.0, format!("{size}: the peak is {peak:.1} MiB/s at {place} channels"));
    }
    mechanisms(&mut finding, case)?;
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// Seed of the placements of experiments that have no figure.
const SEED: u64 = 1;

/// What one, two and four channels have without each mechanism.
fn mechanisms(finding: &mut Finding<'_>, case: &Case<'_>) -> Result<(), RunError> {
    let named = [
        ("without costs of rows and bus turns", Off::Rows),
        ("without batches of writes", Off::WriteBatches),
        ("with one transaction of a channel at a time", Off::Overlap),
    ];
    let mut words = Vec::new();
    for (name, off) in named {
        let found = ablation::without(off, case.parameters, SEED).map_err(|message| case.failed(message))?;
        for (channels, value) in [1, 2, 4].into_iter().zip(found) {
            finding.figure(format!("{name}, {channels} channels"), value);
        }
        let [one, two, four] = found;
        words.push(format!("{name} {one:.1}, {two:.1} and {four:.1}"));
    }
    finding.because(format!(
        "four threads and a FIFO of four bursts let one channel do nearly what several do; streams that close each other's rows cost \
                 more than a second channel brings only in some placements. One, two and four channels have, in MiB/s, {}",
        words.join("; ")
    ));
    Ok(())
}

fn simple_interface(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let sizes = peaks(case, "wicki-simple", &WIDTHS)?;
    let writes = peaks(case, "wicki-simple", &["posted", "non-posted"])?;
    for (label, value) in sizes.iter().chain(&writes) {
        finding.figure(*label, *value);
    }
    finding.agrees("throughput by element size (MiB/s)", &sizes);
    finding.agrees("throughput by write mode (MiB/s)", &writes);
    finding.check(true, "packing cannot be varied: bursts require it (4.1.2)");
    finding.because(
                "a channel has one non-posted write in flight, and its round trip takes longer than the data of a burst takes to arrive",
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_stands_out_of_both_neighbours() {
        let line = |values: &[f64]| Series {
            label: String::new(),
            points: values.iter().enumerate().map(|(at, y)| (1024.0 * (at + 1) as f64, *y)).collect(),
        };
        assert_eq!(spikes(&line(&[10.0, 12.0, 14.0, 15.0])), [0.0; 0]);
        assert_eq!(spikes(&line(&[10.0, 12.0, 10.0, 14.0])), [2.0, 3.0]);
        assert_eq!(spikes(&line(&[10.0, 10.4, 10.0])), [0.0; 0], "too small");
    }
}
