//! Group `service`: what the service promises, each part against an alternative measured in the same run.
//!
//! ```text
//! parts, one after the other: probe placement ─► both sides interleaved, round by round ─► probe again ─► rows
//!   start     submissions, batches and round trips, against a system call, the socket, and a C twin of the ring
//!   embedded  copies in this process, against process_vm_readv
//!   moved     copies through the service, read by the client, against process_vm_readv
//!   ucx       the same against UCX's own benchmark over posix and cma
//!   overlap   how much of a copy is hidden behind computing
//!   mapping   pre-mapped frames, against frames made for each request
//!   turns     eight frames in turn, one and eight copies outstanding, beside the CPU's own copies
//!   idle      cost of a service without requests
//! ```
//!
//! If the CPUs changed places, only the current part is repeated. The worker runs on CPU 1, this thread on CPU 0. Data is
//! random, because some machines do not write lines of zeros.

mod embedded;
pub(crate) mod idle;
mod mapping;
mod moved;
pub(crate) mod overlap;
pub(crate) mod start;
mod turns;
mod twin;
pub(crate) mod ucx;

use crate::BenchError;
use crate::placement::{Class, steady};
use crate::rows::Row;
use crate::run::Run;

/// A part: its name, its function, and whether the placement of the CPUs matters.
type Part = (&'static str, fn(&Run, Class) -> Result<Vec<Row>, BenchError>, bool);

const PARTS: &[Part] = &[
    ("start", start::measure, true),
    ("embedded", embedded::measure, true),
    ("moved", moved::measure, true),
    ("ucx", ucx::measure, true),
    ("overlap", overlap::measure, false),
    ("mapping", mapping::measure, true),
    ("turns", turns::measure, true),
    ("idle", idle::measure, false),
];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, ..)| *name))?;
    let mut rows = Vec::new();
    for (name, part, placed) in PARTS.iter().filter(|(name, ..)| run.wants(name)) {
        rows.extend(if *placed {
            steady(run, name, |class| part(run, class))?
        } else {
            part(run, Class::Same)?
        });
    }
    Ok(rows)
}
