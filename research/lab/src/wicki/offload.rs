//! Figures 17 to 20: bulk transfers, the crossing of copy and offload, and the core time that is free during an offload.
//!
//! ```text
//! mode, frames, size ──► Board::transfer ──► latency, throughput        factors, L2 ──► Board::crossing ──► KiB
//! size ──► Board::offload ──► share of free core time, core time of a transfer
//! ```

use serde::Deserialize;

use super::board;
use super::bulk::{Board, Bulk, BulkError, Caching, Mode, rate};
use crate::paper::{Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::table::Series;

/// Bulk transfers by size.
pub(super) const BULK: Runner = Runner { name: "bulk", run: bulk };
/// The crossing of offload and pre-mapped copy, by the size of the last cache.
pub(super) const CROSSING: Runner = Runner { name: "crossing", run: crossing };
/// Free core time during transfers, by size.
pub(super) const OVERLAP: Runner = Runner { name: "overlap", run: overlap };

const KIB: f64 = 1024.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Quantity {
    /// Microseconds of a transfer.
    Latency,
    Throughput,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BulkSettings {
    gives: Quantity,
    mode: Mode,
    #[serde(default)]
    caching: Caching,
    #[serde(default)]
    alternating: bool,
}

/// A line with one value for each x.
fn series(line: &Line<'_>, y: impl Fn(f64) -> Result<f64, BulkError>) -> Result<Vec<Series>, RunError> {
    let points = line.plan.points().into_iter().map(|x| Ok((x, y(x)?))).collect::<Result<_, BulkError>>();
    let points = points.map_err(|error| line.failed(error))?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

fn bulk(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let BulkSettings { gives, mode, caching, alternating } = line.settings()?;
    let board = board(line.parameters, line.plan.seed)?;
    series(line, |x| {
        let length = x as u64;
        let time = board.transfer(&Bulk { mode, caching, alternating }, length)?;
        Ok(match gives {
            Quantity::Latency => time / 1e6,
            Quantity::Throughput => rate(length, time),
        })
    })
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CrossingSettings {
    #[serde(default)]
    caching: Caching,
    /// Factor on the times of the driver's steps.
    #[serde(default = "one")]
    overhead: u64,
    /// Whether there is no level 2 cache; the size on the x axis is ignored then.
    #[serde(default)]
    level_1_only: bool,
    /// Whether the crossing is computed from rates instead of searched.
    #[serde(default)]
    by_arithmetic: bool,
}

const fn one() -> u64 {
    1
}

/// The board with another size of the last cache, in bytes, and the driver's times multiplied by `overhead`.
fn changed(parameters: &Parameters, l2_bytes: f64, overhead: u64, seed: u64) -> Result<Board, RunError> {
    let mut board = board(&parameters.with("l2-size", l2_bytes)?, seed)?;
    let host = &mut board.host;
    for cost in [&mut host.message, &mut host.word, &mut host.invocation, &mut host.access, &mut host.switch]
    {
        *cost *= overhead;
    }
    Ok(board)
}

fn crossing(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: CrossingSettings = line.settings()?;
    // A size of the cache without a crossing has no point, and the judges say so.
    let point = |x: f64| -> Result<Option<(f64, f64)>, RunError> {
        let l2_bytes = if settings.level_1_only { 0.0 } else { x };
        let board = changed(line.parameters, l2_bytes, settings.overhead, line.plan.seed)?;
        let found =
            if settings.by_arithmetic { board.expected_crossing() } else { board.crossing(settings.caching) };
        let found = found.map_err(|error| line.failed(error))?;
        Ok(found.map(|bytes| (x, bytes as f64 / KIB)))
    };
    let points: Vec<Option<(f64, f64)>> =
        line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points: points.into_iter().flatten().collect() }])
}

/// How the core waits for a transfer, or does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Waiting {
    Copying,
    /// The device works while the core polls its status.
    Polling,
    /// The device works and interrupts the core at the end; through the service.
    Interrupt,
    /// The device works and interrupts the core at the end; from the kernel.
    InterruptDirect,
}

/// The value of the y axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Share {
    /// Percent of the transfer's time that the core is free.
    Free,
    /// Microseconds of core time for a transfer.
    CoreTime,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OverlapSettings {
    waiting: Waiting,
    gives: Share,
}

fn overlap(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let OverlapSettings { waiting, gives } = line.settings()?;
    let mut board = board(line.parameters, line.plan.seed)?;
    if waiting == Waiting::InterruptDirect {
        board.host = board.host.direct();
    }
    let copy = Bulk { mode: Mode::Premapped, caching: Caching::Cached, alternating: true };
    series(line, |x| {
        let length = x as u64;
        let (elapsed, busy) = match waiting {
            Waiting::Copying => {
                let time = board.transfer(&copy, length)?;
                (time, time)
            }
            Waiting::Polling => {
                let elapsed = board.offload(length)?.elapsed as f64;
                (elapsed, elapsed)
            }
            Waiting::Interrupt | Waiting::InterruptDirect => {
                let outcome = board.offload(length)?;
                (outcome.elapsed as f64, outcome.busy as f64)
            }
        };
        Ok(match gives {
            Share::Free => 100.0 * (1.0 - busy / elapsed),
            Share::CoreTime => busy / 1e6,
        })
    })
}
