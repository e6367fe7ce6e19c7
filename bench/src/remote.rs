//! Group `remote`: memory of another node, beside UCX and beside programs that copy files.
//!
//! ```text
//! client ─ service beta ─ link ═ UCX by TCP or shared memory, both on this machine ═ link ─ service alpha: checks, copies, sends
//! twin   ─ UCX ═════════════════════════════════════════════════════════════════════ UCX ─ copies, sends       C, bench/twin/remote.c
//! ucx_perftest: ucp_get, ucp_am_lat ═════════════════════════════════════════════════════ ucx_perftest
//! parts: reads      1 MiB and 64 MiB; processor time
//!        latency    4 KiB, while all threads are awake and after a rest
//!        channels   messages between two nodes, beside those on one and a socket
//!        engines    the transfer engines of LLM serving that group peers measures within one node
//!        files      memferry copy TOKEN FILE, rsync, scp, NFS in user space
//! ```
//!
//! Each part is measured with UCX as this machine has it, and with a newer one in the folder that `MEMFERRY_BENCH_UCX` names; both ends of a
//! transfer have the same UCX, transport and machine. The sides of a comparison take turns in each round. What a part needs and is not there
//! makes its rows "not measured".

mod channels;
mod engines;
mod files;
mod latency;
mod nodes;
mod reads;
mod servers;
mod twin;
mod ucx;

use crate::BenchError;
use crate::rows::Row;
use crate::run::Run;
use ucx::{Transport, Ucx};

/// The folder with the programs that `files` compares with, if they are not installed.
const TOOLS_VARIABLE: &str = "MEMFERRY_BENCH_REMOTE_TOOLS";

type Part = (&'static str, fn(&Run) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 5] = [
    ("reads", |run| for_each_ucx(run, reads::measure)),
    ("latency", |run| for_each_ucx(run, latency::measure)),
    ("channels", channels::measure),
    ("engines", engines::measure),
    ("files", files::measure),
];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, _)| *name))?;
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        if run.wants(name) {
            rows.extend(part(run)?);
        }
    }
    Ok(rows)
}

/// A version of UCX with a transport, and what rows call them.
struct Scene<'a> {
    ucx: &'a Ucx,
    transport: Transport,
    title: String,
}

/// Measures a part with each UCX, by each transport. If one does not work, the others are measured all the same.
fn for_each_ucx(
    run: &Run,
    part: fn(&Run, &Scene<'_>) -> Result<Vec<Row>, BenchError>,
) -> Result<Vec<Row>, BenchError> {
    let (found, missing) = Ucx::all();
    let mut rows: Vec<Row> = missing;
    for ucx in &found {
        for transport in Transport::ALL {
            let title = format!("UCX {} by {}", ucx.version(), transport.name());
            let scene = Scene { ucx, transport, title };
            match part(run, &scene) {
                Ok(measured) => rows.extend(measured),
                Err(error) => rows.push(Row::not_measured(&scene.title, &error.to_string())),
            }
        }
    }
    Ok(rows)
}
