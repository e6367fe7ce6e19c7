//! Figures 13 to 16: the cost of the user-level driver for one client and for several (section 4.2).
//!
//! ```text
//! call, clients, size ──► clients::serve ──► latency of each, total throughput
//! ```
//!
//! A line without a service is direct use of the device, as from the kernel. The total is the sum of each client's own
//! measurements, since the thesis's clients measured only their own transfers.

use serde::Deserialize;

use super::board;
use super::bulk::rate;
use super::clients::{Call, DeviceTimes, Outcome, Work, serve};
use super::host::Host;
use super::service::ServiceError;
use crate::paper::{Line, RunError, Runner};
use crate::table::Series;

/// Latency or throughput by transfer size.
pub(super) const DRIVER: Runner = Runner { name: "driver", run };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Quantity {
    /// Mean microseconds of a transfer over all clients.
    Latency,
    /// Total MiB/s of all clients.
    Throughput,
}

/// Settings of a line in a plan.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    gives: Quantity,
    /// The call; absent for direct use of the device by a plain copy.
    call: Option<Call>,
    /// Whether the call costs nothing, as if the kernel used the device.
    #[serde(default)]
    direct: bool,
    #[serde(default = "one")]
    clients: usize,
}

const fn one() -> usize {
    1
}

fn run(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let board = board(line.parameters, line.plan.seed)?;
    let served = settings.call.is_some() && !settings.direct;
    let host = if served { board.host.clone() } else { board.host.direct() };
    let call = settings.call.unwrap_or(Call::Simple);
    let point = |x: f64| {
        let length = x as u64;
        let outcome = serve(&host, &board.device, &Work::once(settings.clients, call, length));
        outcome.map(|outcome| {
            let y = match settings.gives {
                Quantity::Latency => outcome.mean_latency() / 1e6,
                Quantity::Throughput => total_throughput(&outcome, length),
            };
            (x, y)
        })
    };
    let points = line.plan.points().into_iter().map(point).collect::<Result<_, _>>();
    let points = points.map_err(|error| line.failed(error))?;
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// Total MiB/s of all clients; each measures its own transfers.
fn total_throughput(outcome: &Outcome, length: u64) -> f64 {
    rate(1, 1.0 / outcome.aggregate(length))
}

/// Total MiB/s for one client, for two, and so on to `most`, with the simple call.
///
/// # Errors
/// [`ServiceError`].
pub(super) fn aggregates(
    host: &Host,
    device: &DeviceTimes,
    length: u64,
    most: usize,
) -> Result<Vec<f64>, ServiceError> {
    let of = |clients| serve(host, device, &Work::once(clients, Call::Simple, length));
    (1..=most).map(|clients| of(clients).map(|outcome| total_throughput(&outcome, length))).collect()
}
