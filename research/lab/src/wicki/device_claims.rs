//! Judges of the thesis's claims on the device itself (section 4.1.2, figures 3 to 12).
//!
//! ```text
//! Tables ── lines by figure and label ──► Finding ──► a row for each claim
//! ```
//!
//! The criteria are in `claims.toml`. The two peaks of figure 4 are calibrated; all other figures follow from the same
//! parameters.

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

pub(super) const JUDGES: [Judge; 12] = [
    simulated("wicki-element-size", element_size),
    simulated("wicki-burst-peak", burst_peak),
    simulated("wicki-no-burst-peak", no_burst_peak),
    simulated("wicki-burst-gain", burst_gain),
    simulated("wicki-fifo-depth", fifo_depth),
    simulated("wicki-fill-width", fill_width),
    simulated("wicki-fill-burst-peak", fill_burst_peak),
    simulated("wicki-transparent", transparent),
    simulated("wicki-asymmetric-ports", asymmetric_ports),
    simulated("wicki-rotation", rotation),
    simulated("wicki-concurrency", concurrency),
    simulated("wicki-simple-interface", simple_interface),
];

const WIDTHS: [&str; 3] = ["8 bit", "16 bit", "32 bit"];

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
    Ok(finding.verdict(Place::Simulated, Basis::Calibrated))
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
    let plain = peaks(case, "wicki-fig-05", &WIDTHS)?;
    let bursts = peaks(case, "wicki-fig-05", &["8 bit, bursts", "16 bit, bursts", "32 bit, bursts"])?;
    for (label, value) in plain.iter().chain(&bursts) {
        finding.figure(*label, *value);
    }
    finding.rises("without bursts throughput (MiB/s)", &plain);
    let same = bursts.iter().all(|(_, value)| *value == bursts[0].1);
    finding.check(same, format!("with bursts every width has {:.1} MiB/s", bursts[0].1));
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn fill_burst_peak(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    let fill = case.tables.line("wicki-fig-05", "32 bit, bursts")?.peak();
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
    let peak = |label: &str| Ok::<f64, RunError>(case.tables.line("wicki-fig-09", label)?.peak());
    let last = |label: &str| Ok::<f64, RunError>(case.tables.line("wicki-fig-09", label)?.last());
    for mode in ["no bursts", "bursts"] {
        let quarter = last(&format!("90 degrees, {mode}"))?;
        let three = last(&format!("270 degrees, {mode}"))?;
        finding.figure(format!("90 degrees, {mode}"), quarter).figure(format!("270 degrees, {mode}"), three);
        finding.agrees_within(
            &format!("with {mode} throughput (MiB/s)"),
            &[("90 degrees", quarter), ("270 degrees", three)],
            THE_SAME,
        );
    }
    let gain = peak("90 degrees, bursts")? / peak("90 degrees, no bursts")?;
    let copy_gain = peak("copy, bursts")? / peak("copy, no bursts")?;
    let words = format!("bursts make rotation {gain:.1} times as fast, a copy of bytes {copy_gain:.1} times");
    finding.check(gain > 1.0 && gain < copy_gain / 2.0, words);
    let beside = last("copy, bursts on the source")?;
    finding.figure("copy, bursts on the source", beside);
    for turned in ["90 degrees, bursts", "180 degrees, bursts", "270 degrees, bursts"] {
        finding.near(&format!("at the largest size, {turned}, (MiB/s)"), last(turned)?, beside);
    }
    finding.because(
        "each pixel of a column lies in another row of memory once the picture is wide, and the controller opens a row \
         for a byte",
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn concurrency(case: &Case<'_>) -> Judged {
    let mut finding = Finding::of(case.claim);
    for size in ["1 MiB", "16 MiB"] {
        let all = case.tables.line("wicki-fig-11", &format!("{size}, aggregate"))?;
        let each = case.tables.line("wicki-fig-11", &format!("{size}, per channel"))?;
        for (channels, together) in all.points.iter().filter(|(channels, _)| *channels <= 8.0) {
            finding.figure(format!("{size}, {channels} channels"), *together);
        }
        let at = |x: f64| case.tables.value("wicki-fig-11", &all.label, x);
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
        let one = at(1.0)?;
        let two = at(2.0)?;
        finding.check(two < one, format!("{size}: two channels have {two:.1} MiB/s together, one {one:.1}"));
        let peak = all.peak();
        let place = all.peak_at();
        finding.check(place == 4.0, format!("{size}: the peak is {peak:.1} MiB/s at {place} channels"));
    }
    mechanisms_of_the_dip(&mut finding, case)?;
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// Which mechanism makes two channels slower than one, and which keeps four from the peak.
fn mechanisms_of_the_dip(finding: &mut Finding<'_>, case: &Case<'_>) -> Result<(), RunError> {
    let without = |off| ablation::without(off, case.parameters).map_err(|message| case.failed(message));
    let [counts_one, counts_two, _] = without(Off::Counts)?;
    let [turn_one, turn_two, _] = without(Off::TurnOver)?;
    let [one, two, _] = without(Off::Contention)?;
    let [batch_one, batch_two, batch_four] = without(Off::WriteBatches)?;
    finding
        .figure("with equal counts of reads, 1 channel", counts_one)
        .figure("with equal counts of reads, 2 channels", counts_two)
        .figure("without turn-over, 1 channel", turn_one)
        .figure("without turn-over, 2 channels", turn_two);
    finding.figure("without contention, 1 channel", one).figure("without contention, 2 channels", two);
    finding.check(
        two >= one,
        format!(
            "without the threads' turn-over and without costs of rows and of the bus one channel has {one:.1} MiB/s and two have \
             {two:.1}: the dip is gone"
        ),
    );
    finding.check(true, shares_of_the_dip(case, [counts_one, counts_two], [turn_one, turn_two])?);
    finding.because(format!(
                "reads wait for batches of held writes, which coincide with those of other channels; without batches one, \
                 two and four channels have {batch_one:.1}, {batch_two:.1} and {batch_four:.1} MiB/s"
    ));
    Ok(())
}

/// The part of the dip at two channels left by each mechanism, and the part that depends on assumptions.
fn shares_of_the_dip(
    case: &Case<'_>,
    [counts_one, counts_two]: [f64; 2],
    [turn_one, turn_two]: [f64; 2],
) -> Result<String, RunError> {
    let whole = |channels| case.tables.value("wicki-fig-11", "1 MiB, aggregate", channels);
    let one = whole(1.0)?;
    let two = whole(2.0)?;
    let ahead = case.parameters.get("reads-ahead")?;
    let in_turn = case.parameters.get("reads-in-turn")?;
    let share = 1.0 - (counts_one - counts_two) / (one - two);
    Ok(format!(
        "of the dip from {one:.1} to {two:.1} MiB/s {:.0} % depend on two assumed counts, {ahead} reads in flight for a single \
                 channel and {in_turn} where channels take turns: with {ahead} for both, it would go from {counts_one:.1} to {counts_two:.1}; \
                 without turn-over a dip from {turn_one:.1} to {turn_two:.1} remains, caused by rows and bus turns in memory",
        share * 100.0
    ))
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
