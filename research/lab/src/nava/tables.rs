//! Runners of tables 1 and 3 and of the parts of the 17 ms: the servers with one, two or local clients.
//!
//! ```text
//! plan line { server, gives }, x = remote clients ──► Room ──► bandwidth, delay, processor time
//! plan line { server, gives, local }, x = a segment of the disk's buffer ──► Room with a local client
//! plan line { }, x = parts removed from umfs ──► Room with one client ──► delay
//! ```

use serde::Deserialize;

use crate::paper::{Line, RunError, Runner};
use crate::parameters::ParametersError;
use crate::rng::Rng;
use crate::table::Series;

use super::machine::{Machine, Other, disk};
use super::serving::{Measured, Room, Server};

pub(super) const RUNNERS: [Runner; 2] =
    [Runner { name: "serving", run: serving }, Runner { name: "parts", run: parts }];

/// The servers from umfs to mfs; each leaves out one more step.
pub(super) const PARTS: [(&str, Server); 5] = [
    ("umfs", Server::UMFS),
    ("kernel entries", Server { entries: false, ..Server::UMFS }),
    ("copy from the disk's buffer", Server { entries: false, disk_copy: false, ..Server::UMFS }),
    (
        "copy to the network's buffers",
        Server { entries: false, disk_copy: false, network_copy: false, ..Server::UMFS },
    ),
    ("streams", Server::MFS),
];

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    Umfs,
    Dmafs,
    Mfs,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Gives {
    Bandwidth,
    Delay,
    Processor,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    server: Name,
    gives: Gives,
    /// Whether there is one local client; the x axis is then the segment of the disk's buffer.
    #[serde(default)]
    local: bool,
    /// Whether the disk finishes reading ahead for one client before it starts for another.
    #[serde(default)]
    finishes: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// One server with its clients; zero clients for a local one.
fn served(
    line: &Line<'_>,
    server: Server,
    clients: usize,
    other: Other,
) -> Result<Measured, ParametersError> {
    let machine = Machine::new(line.parameters)?;
    let mut rng = Rng::new(line.plan.seed);
    let disk = disk(line.parameters, other, rng.part())?;
    Ok(Room::new(&machine, server, clients, disk, &mut rng).run())
}

fn serving(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let asked: Asked = line.settings()?;
    let server = match asked.server {
        Name::Umfs => Server::UMFS,
        Name::Dmafs => Server::DMAFS,
        Name::Mfs => Server::MFS,
    };
    let mut points = Vec::new();
    for x in line.plan.points() {
        let other = Other { segment: asked.local.then_some(x as u64), finishes: asked.finishes };
        let measured = served(line, server, if asked.local { 0 } else { x as usize }, other)?;
        let value = match asked.gives {
            Gives::Bandwidth => measured.bandwidth,
            Gives::Delay => measured.delay,
            Gives::Processor => measured.processor,
        };
        points.push((x, value));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

fn parts(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let Nothing {} = line.settings()?;
    let mut points = Vec::new();
    for removed in line.plan.points() {
        let (_, server) =
            *PARTS.get(removed as usize).ok_or_else(|| line.failed("there are four parts to remove"))?;
        points.push((removed, served(line, server, 1, Other::default())?.delay));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}
