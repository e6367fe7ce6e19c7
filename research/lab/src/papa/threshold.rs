//! The size from which a copy goes to the engine if the state of its buffers is unknown (ours; no claim).
//!
//! ```text
//! times of both by size and state ─┬─ share of cold copies ─► expected times ─► the shorter: threshold by cost
//!                                  └─ size of level 2, processes ─► L2 / (2 x processes): threshold by formula
//! threshold, share ──► KiB, or percent above the best choice with knowledge of each copy's state
//! ```
//!
//! The formula is of Buntinas et al. 2009 (cache-efficient intranode communication, KNEM), from memory of KNEM's documentation;
//! neither was available for a check. Below L2 / (2 x processes) the buffers of all processes fit into their shared cache.

use serde::Deserialize;

use super::cftu::{CftuError, Machine};
use super::crossing::{Buffers, by_cpu, by_engine};
use crate::once::Once;
use crate::paper::{Line, RunError, Runner};
use crate::table::Series;

/// Thresholds and their cost, by the share of copies with cold buffers.
pub(super) const THRESHOLD: Runner = Runner { name: "papa-threshold", run: threshold };

/// How the threshold is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rule {
    Cpu,
    Engine,
    /// From the cache's size and the number of processes that share it.
    Formula {
        processes: u64,
    },
    /// From the expected times.
    Cost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shows {
    /// The shortest size, in KiB, from which all copies go to the engine.
    Threshold,
    /// Mean percentage over the sizes above the best choice with knowledge of the state.
    Cost,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    rule: Rule,
    shows: Shows,
}

/// A size, and the times of both ways in picoseconds.
#[derive(Clone, Copy)]
struct Timed {
    bytes: u64,
    cpu: [f64; 2],
    engine: [f64; 2],
}

/// Sizes from 1 KiB to 4 MiB, two to an octave.
fn timed(machine: &Machine) -> Result<Vec<Timed>, CftuError> {
    let sizes = (0..=12).flat_map(|octave| [2, 3].map(|half| half << (9 + octave)));
    let both =
        |of: fn(&Machine, Buffers, u64) -> Result<u64, CftuError>, bytes| -> Result<[f64; 2], CftuError> {
            Ok([of(machine, Buffers::Hot, bytes)? as f64, of(machine, Buffers::Cold, bytes)? as f64])
        };
    let sizes = sizes.filter(|bytes| *bytes <= 4 << 20);
    sizes
        .map(|bytes| Ok(Timed { bytes, cpu: both(by_cpu, bytes)?, engine: both(by_engine, bytes)? }))
        .collect()
}

fn expected([hot, cold]: [f64; 2], share: f64) -> f64 {
    share * cold + (1.0 - share) * hot
}

impl Rule {
    /// Whether a copy goes to the engine.
    fn offloads(self, machine: &Machine, size: &Timed, share: f64) -> bool {
        match self {
            Self::Cpu => false,
            Self::Engine => true,
            Self::Formula { processes } => size.bytes >= machine.host.last_cache() / (2 * processes.max(1)),
            Self::Cost => expected(size.engine, share) < expected(size.cpu, share),
        }
    }
}

fn threshold(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    static KNOWN: Once<Result<Vec<Timed>, CftuError>> = Once::new();
    let Settings { rule, shows } = line.settings()?;
    let machine = Machine::new(line.parameters, line.plan.seed)?;
    // All lines of both figures need the same times.
    let what = format!("seed {}", line.plan.seed);
    let sizes = KNOWN.get(&what, line.parameters, |_| timed(&machine)).map_err(|error| line.failed(error))?;
    let point = |percent: f64| {
        let share = percent / 100.0;
        let y = match shows {
            Shows::Threshold => {
                let stays = sizes.iter().rposition(|size| !rule.offloads(&machine, size, share));
                let first = sizes.get(stays.map_or(0, |stays| stays + 1)).or(sizes.last());
                first.map_or(0.0, |size| size.bytes as f64 / 1024.0)
            }
            Shows::Cost => {
                let above = sizes.iter().map(|size| {
                    let taken = if rule.offloads(&machine, size, share) { size.engine } else { size.cpu };
                    let best = [0, 1].map(|state| size.cpu[state].min(size.engine[state]));
                    expected(taken, share) / expected(best, share) - 1.0
                });
                above.sum::<f64>() / sizes.len() as f64 * 100.0
            }
        };
        (percent, y)
    };
    let points = line.plan.points().into_iter().map(point).collect();
    Ok(vec![Series { label: line.series.label.clone(), points }])
}
