//! The lines of the study's figures: which run, and which of its figures.

use serde::Deserialize;

use super::connections::Storm;
use super::fan_in::{self, Costs, Found, Load, Rules};
use crate::paper::{Line, RunError};
use crate::parameters::{Parameters, ParametersError};
use crate::table::Series;

const MIB: f64 = (1 << 20) as f64;
/// When grants are revoked: all readers read by then.
const REVOKED: u64 = 500_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Quantity {
    /// Readers that were cut off, in percent.
    CutOff,
    /// GB/s that came and were wanted.
    Useful,
    /// MiB of answers that waited for the wire.
    Memory,
}

/// A variant of the link, of its costs, or of its load.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Variant {
    pub(super) of: Option<Quantity>,
    /// See [`Rules::by_name`].
    pub(super) by_name: bool,
    /// Milliseconds instead of the configured time limit.
    pub(super) timeout: Option<f64>,
    pub(super) ahead: Option<usize>,
    /// Gbit/s instead of the assumed wire.
    pub(super) wire: Option<f64>,
    /// The owner's thread copies so many times as fast.
    pub(super) copies: Option<f64>,
    /// Its buffers are fresh memory each time.
    pub(super) fresh: bool,
    /// It looks for the connection of each message among all, instead of in an index.
    pub(super) searches: bool,
    pub(super) requests: Option<usize>,
}

/// One run with so many readers.
pub(super) fn readers_of_one(
    parameters: &Parameters,
    variant: &Variant,
    readers: usize,
    seed: u64,
) -> Result<Found, ParametersError> {
    let (rules, costs) = varied(parameters, variant)?;
    let load = Load {
        readers,
        requests: variant.requests.unwrap_or(1),
        chunks: (parameters.get("frame")? * MIB / rules.chunk as f64) as u64,
        revoked: None,
        until: (parameters.get("until")? * 1e9) as u64,
        seed,
    };
    Ok(fan_in::run(rules, costs, load))
}

fn varied(parameters: &Parameters, variant: &Variant) -> Result<(Rules, Costs), ParametersError> {
    let mut rules = Rules::new(parameters)?;
    let wire = parameters.get("wire")?;
    let mut costs = Costs::new(parameters, variant.wire.unwrap_or(wire))?;
    rules.by_name = variant.by_name;
    rules.ahead = variant.ahead.unwrap_or(rules.ahead);
    rules.timeout = variant.timeout.map_or(rules.timeout, |milliseconds| (milliseconds * 1e6) as u64);
    if variant.fresh {
        costs.answer += parameters.get("answer-fresh")? as u64 - parameters.get("answer")? as u64;
    }
    costs.answer = (costs.answer as f64 / variant.copies.unwrap_or(1.0)) as u64;
    if variant.searches {
        costs.look = parameters.get("look")? as u64;
    }
    Ok((rules, costs))
}

/// One revocation of the grants of so many readers.
pub(super) fn revoked(
    parameters: &Parameters,
    variant: &Variant,
    readers: usize,
    seed: u64,
) -> Result<Found, ParametersError> {
    let (rules, costs) = varied(parameters, variant)?;
    let until = (parameters.get("until")? * 1e9) as u64;
    let load = Load { readers: readers + 1, requests: 1, chunks: 1, revoked: Some(REVOKED), until, seed };
    Ok(fan_in::run(rules, costs, load))
}

/// A line over the number of readers.
pub(super) fn fan_in(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let variant: Variant = line.settings()?;
    let chunk = line.parameters.get("chunk")?;
    points(line, |readers| {
        let found = readers_of_one(line.parameters, &variant, readers, line.plan.seed)?;
        Ok(match variant.of {
            Some(Quantity::Useful) => found.useful as f64 * chunk / found.took.max(1) as f64,
            Some(Quantity::Memory) => found.memory as f64 / MIB,
            Some(Quantity::CutOff) | None => 100.0 * found.cut_off as f64 / readers.max(1) as f64,
        })
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Moment {
    Answered,
    Known,
    Renewed,
    GivenBack,
    /// The longest access of a reader of another frame.
    Innocent,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Storms {
    moment: Moment,
}

/// A line of the moments after a revocation, in milliseconds.
pub(super) fn revocation(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let Storms { moment } = line.settings()?;
    let variant = Variant::default();
    points(line, |readers| {
        let found = revoked(line.parameters, &variant, readers, line.plan.seed)?;
        let nanoseconds = match moment {
            Moment::Answered => found.answered,
            Moment::Known => found.known,
            Moment::Renewed => found.renewed,
            Moment::GivenBack => found.given_back,
            Moment::Innocent => found.innocent,
        };
        Ok(nanoseconds as f64 / 1e6)
    })
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Dialers {
    admitted: Option<usize>,
    /// The longest pause, in milliseconds.
    pause: Option<f64>,
}

/// A line of the time until all peers are connected again, in seconds.
pub(super) fn reconnect(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let Dialers { admitted, pause } = line.settings()?;
    points(line, |peers| {
        let mut storm = Storm::new(line.parameters)?;
        storm.admitted = admitted.unwrap_or(storm.admitted);
        storm.pauses.1 = pause.map_or(storm.pauses.1, |milliseconds| (milliseconds * 1e6) as u64);
        Ok(storm.last_connected(peers, line.plan.seed) as f64 / 1e9)
    })
}

fn points(
    line: &Line<'_>,
    at: impl Fn(usize) -> Result<f64, ParametersError>,
) -> Result<Vec<Series>, RunError> {
    let mut found = Vec::new();
    for x in line.plan.points() {
        found.push((x, at(x as usize)?));
    }
    Ok(vec![Series { label: line.series.label.clone(), points: found }])
}
