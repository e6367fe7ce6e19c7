//! What each peer takes of what a link has, in percent: arithmetic on the limits of `engines/link` and its unit.

use serde::Deserialize;

use crate::paper::{Line, RunError};
use crate::parameters::{Parameters, ParametersError};
use crate::table::Series;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Of {
    /// File descriptors of the link's process.
    Descriptors,
    /// Threads of the unit.
    Threads,
    /// Grants that a peer wants to have taken up, of its share.
    Grants,
    /// What peers that do not read can make the link hold, of the machine's memory.
    Memory,
    /// The time limit of an access, if every peer reads by one request.
    Time,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    of: Of,
}

/// Percent of a limit that so many peers use.
pub(super) fn used(parameters: &Parameters, of: Of, peers: f64) -> Result<f64, ParametersError> {
    let get = |name| parameters.get(name);
    let part = match of {
        Of::Descriptors => peers * get("descriptors-of-peer")? / get("descriptors")?,
        Of::Threads => peers * get("threads-of-peer")? / get("threads")?,
        Of::Grants => get("grants-wanted")? / (get("attachments")? / peers).floor().max(1.0),
        Of::Memory => peers * get("memory-of-peer")? / (get("memory")? * 1024.0),
        Of::Time => peers * get("ahead")? * (get("answer")? + get("transport")?) / (get("timeout")? * 1e6),
    };
    Ok(100.0 * part)
}

/// A line over the number of peers.
pub(super) fn line(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let Settings { of } = line.settings()?;
    let mut points = Vec::new();
    for peers in line.plan.points() {
        points.push((peers, used(line.parameters, of, peers)?));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}
