//! Energy of a transfer by the core and by the device, as far as the thesis argues it (1.1: "possibly").
//!
//! ```text
//! core copies     its power × the time                                       + bytes that memory moves
//! device copies   core's power × its steps, idle power × the rest, device × its time + bytes that memory moves
//! ```
//!
//! The thesis measures no energy. Times are those of the other experiments; powers are parameters with wide ranges, since no
//! document gives them for this board and this clock. What the rest of the board takes is left out: it counts for or against both by
//! time alone.

use serde::Deserialize;

use super::board;
use super::bulk::{Bulk, Caching, Mode};
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

/// Energy of a byte, by the transfer's size.
pub(super) const ENERGY: Runner = Runner { name: "energy", run: energy };

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "wicki-energy", place: Place::Simulated, judge: judged }];

/// Bytes that memory moves for a byte that the core copies between cold frames: the source and the destination's line are
/// fetched, and the latter is written back (Cortex-A9 TRM, 7.1: lines are allocated on writes).
const MOVED_BY_CORE: f64 = 3.0;
/// The device reads and writes.
const MOVED_BY_DEVICE: f64 = 2.0;

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    Core,
    /// The device, through the user-level driver.
    Driver,
    /// The device, from the kernel.
    Kernel,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    by: By,
}

fn energy(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let Settings { by } = line.settings()?;
    let milliwatts = |name: &str| line.parameters.get(name);
    let [core, idle, device] =
        [milliwatts("core-power")?, milliwatts("core-idle-power")?, milliwatts("device-power")?];
    let byte = line.parameters.get("memory-energy")?;
    let mut board = board(line.parameters, line.plan.seed)?;
    if by == By::Kernel {
        board.host = board.host.direct();
    }
    let copy = Bulk { mode: Mode::Premapped, caching: Caching::Cached, alternating: true };
    let point = |x: f64| -> Result<(f64, f64), RunError> {
        let length = x as u64;
        // Milliwatts for picoseconds are femtojoules.
        let femtojoules = match by {
            By::Core => {
                let time = board.transfer(&copy, length).map_err(|error| line.failed(error))?;
                core * time + MOVED_BY_CORE * x * byte * 1e3
            }
            By::Driver | By::Kernel => {
                let outcome = board.offload(length).map_err(|error| line.failed(error))?;
                let [elapsed, busy] = [outcome.elapsed as f64, outcome.busy as f64];
                let rest = (elapsed - busy).max(0.0);
                core * busy + idle * rest + device * elapsed + MOVED_BY_DEVICE * x * byte * 1e3
            }
        };
        Ok((x, femtojoules / x / 1e6))
    };
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, _>>()?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// The size from which the thesis offloads (4.3.2), in bytes.
const OFFLOADED_FROM: f64 = 524_288.0;

fn judged(case: &Case<'_>) -> Result<Verdict, RunError> {
    let line = |label: &str| case.tables.line("wicki-energy", label);
    let copied = line("copied by the core")?;
    let offloaded = line("offloaded through the driver")?;
    let direct = line("offloaded from the kernel")?;
    let mut finding = Finding::of(case.claim);
    let pairs = copied.points.iter().zip(&offloaded.points);
    let mut first = None;
    for ((bytes, copied), (_, offloaded)) in pairs {
        let kib = bytes / 1024.0;
        finding.figure(format!("{kib} KiB, copied, nJ a byte"), *copied);
        finding.figure(format!("{kib} KiB, offloaded, nJ a byte"), *offloaded);
        first = first.or((offloaded < copied).then_some(kib));
        if *bytes >= OFFLOADED_FROM {
            let words =
                format!("{kib} KiB take {offloaded:.2} nJ a byte offloaded, {copied:.2} copied by the core");
            finding.check(offloaded < copied, words);
        }
    }
    let from_kernel =
        copied.points.iter().zip(&direct.points).find(|((_, copied), (_, direct))| direct < copied);
    let words = format!(
        "of the sizes tried offloading takes less from {} KiB on, from the kernel from {} KiB",
        first.map_or("no".to_owned(), |kib| kib.to_string()),
        from_kernel.map_or("no".to_owned(), |((bytes, _), _)| (bytes / 1024.0).to_string())
    );
    finding.check(true, words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}
