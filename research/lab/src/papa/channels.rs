//! Bandwidth of one to four engine channels, and under the priority policy (Papa 2014, "Priority Channel Bandwidth").
//!
//! ```text
//! callers, policy, size ──► Cftu::bandwidths ──► GB/s of the first caller, and the mean of the others
//! ```
//!
//! Every caller always has a copy in flight, except for the CPU's time between two copies. Policy and path are the code of the
//! live service.

use core::time::Duration;

use memferry_path::policy::Priority;
use memferry_path::{Policy, PolicyKind, Slices};
use memferry_transfer::PriorityClass;
use serde::Deserialize;

use super::cftu::{Cftu, CftuError, Machine};
use crate::claims::{Claim, Place};
use crate::judging::Finding;
use crate::paper::{Case, Fit, Judge, Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

/// Bandwidth of each channel by size.
pub(super) const CHANNELS: Runner = Runner { name: "papa-channels", run: channels };

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "papa-priority", place: Place::Simulated, judge: priority }];

/// Warm-up time, and time in which bytes count.
const TIMES: [Duration; 2] = [Duration::from_micros(900), Duration::from_micros(3_600)];
/// The slide's sizes: "Buffer > 64 KB".
const LONG: f64 = 65536.0;
/// The bandwidth of each low channel in the claim's statement, GB/s, with the same tolerance.
const EACH_LOW: f64 = 0.65;

/// The bandwidth of all channels follows what an access takes of the way besides its data.
pub(super) const FITS: [Fit; 1] =
    [Fit { parameter: "way-turn", claim: "papa-priority", gap: low_channels_gap }];

/// The slide's channels, and the size at which their bandwidth is fitted: beyond 64 KiB it hardly depends on the size.
const CALLERS: usize = 4;
const FITTED_AT: u64 = 512 << 10;
/// The slide's period and slice.
const SLIDE: Period = Period { period_us: 90, slice_us: 30 };

/// A period of the priority policy.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Period {
    period_us: u64,
    slice_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    /// The first caller; the line `also` has the mean of the others.
    Each,
    All,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    callers: usize,
    of: Of,
    /// The name of the second line of the same simulation.
    #[serde(rename = "also")]
    _also: Option<String>,
    /// Slices for the first caller, which has the high class; if absent, all callers are equal under the shared policy.
    priority: Option<Period>,
}

/// A policy of the slides, with the classes of the callers.
fn policy_with_classes(callers: usize, priority: Option<Period>) -> (Box<dyn Policy>, Vec<PriorityClass>) {
    let mut classes = vec![PriorityClass::Normal; callers];
    let Some(Period { period_us, slice_us }) = priority else {
        return (PolicyKind::Shared.build(), classes);
    };
    classes.iter_mut().take(1).for_each(|class| *class = PriorityClass::High);
    let [period, slice] = [period_us, slice_us].map(Duration::from_micros);
    (Box::new(Priority::new(Slices::new(period, slice, 1), 0)), classes)
}

fn bandwidths(machine: &Machine, settings: &Settings, length: u64) -> Result<Vec<f64>, CftuError> {
    let (policy, classes) = policy_with_classes(settings.callers, settings.priority);
    let caches = machine.caches()?;
    Cftu::new(machine, &caches, policy, &classes)?.bandwidths(length, TIMES)
}

fn channels(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let machine = Machine::new(line.parameters, line.plan.seed)?;
    let mut lines: Vec<Series> =
        line.series.labels().map(|label| Series { label: label.to_owned(), points: Vec::new() }).collect();
    for x in line.plan.points() {
        let each = bandwidths(&machine, &settings, x as u64).map_err(|error| line.failed(error))?;
        let values = match settings.of {
            Of::Each => first_and_others(&each),
            Of::All => [each.iter().sum(), 0.0],
        };
        lines.iter_mut().zip(values).for_each(|(line, y)| line.points.push((x, y)));
    }
    Ok(lines)
}

/// The bandwidth of the first caller, and the mean of the others.
fn first_and_others(each: &[f64]) -> [f64; 2] {
    let first = each.first().copied().unwrap_or(0.0);
    [first, (each.iter().sum::<f64>() - first) / (each.len().max(2) - 1) as f64]
}

/// How far each low channel is above the slide's bandwidth, as a fraction, in the priority experiment of the slides.
fn low_channels_gap(_: &Claim, parameters: &Parameters) -> Result<f64, RunError> {
    let machine = Machine::new(parameters, 1)?;
    let (policy, classes) = policy_with_classes(CALLERS, Some(SLIDE));
    let each = machine
        .caches()
        .map_err(CftuError::from)
        .and_then(|caches| Cftu::new(&machine, &caches, policy, &classes)?.bandwidths(FITTED_AT, TIMES));
    let each = each.map_err(|error| RunError::Fit {
        parameter: FITS[0].parameter.to_owned(),
        message: error.to_string(),
    })?;
    Ok(first_and_others(&each)[1] / EACH_LOW - 1.0)
}

/// The lowest and the highest value above the slide's size.
fn span(line: &Series) -> [f64; 2] {
    let long = line.points.iter().filter(|(size, _)| *size > LONG).map(|(_, rate)| *rate);
    long.fold([f64::INFINITY, 0.0], |[low, high], rate| [low.min(rate), high.max(rate)])
}

fn priority(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |figure, label| case.tables.line(figure, label).map(span);
    let [least, most] = line("papa-priority", "high channel")?;
    let [low, high] = line("papa-priority", "each low channel")?;
    let one = line("papa-channels", "one channel")?;
    let all = line("papa-channels", "four channels")?;
    let mut finding = Finding::of(case.claim);
    finding.number((least + most) / 2.0);
    let allowed = case.claim.tolerance.unwrap_or(0.0);
    let within = |value: f64, expected: f64| (value / expected - 1.0).abs() <= allowed;
    let high_is = case.claim.expect.is_some_and(|high| within(least, high) && within(most, high));
    finding.check(high_is, format!("above 64 KiB the high channel has {least:.2} to {most:.2} GB/s"));
    finding.figure("each low channel, GB/s", (low + high) / 2.0);
    finding.figure("one channel alone, GB/s", one[1]);
    finding.figure("four channels, GB/s", all[1]);
    // One third of the time alone, and a quarter of the total in the rest.
    let computed = one[1] / 3.0 + all[1] / 4.0 * 2.0 / 3.0;
    finding.figure("high channel by arithmetic, GB/s", computed);
    let words = format!(
        "each low one has {low:.2} to {high:.2}, but the total bandwidth is calibrated to this value, so \
                 it is no evidence"
    );
    finding.check(within(low, EACH_LOW) && within(high, EACH_LOW), words);
    let words = format!(
        "one channel alone has the {:.2} of the crossings, all have {:.2}, both calibrated; the high channel's {:.2} follows \
                 from these two: a third of the first and a sixth of the second are {computed:.2}",
        one[1],
        all[1],
        f64::midpoint(least, most)
    );
    finding.check(one[1] < all[1], words);
    Ok(finding.verdict(Place::Simulated, Basis::Calibrated))
}
