//! Group `service`: what the service promises, each against the other side measured in the same run.
//!
//! ```text
//! parts, one after the other: probe placement ─► both sides interleaved, round by round ─► probe again ─► rows
//!   start     submissions, batches and round trips, against a system call and the socket
//!   embedded  copies in this process, against process_vm_readv
//!   moved     copies through the service, read by the client, against process_vm_readv
//!   ucx       the same beside UCX's own benchmark over posix and cma
//!   overlap   how much of a copy is hidden behind computing
//!   mapping   frames made once, against frames made for each request
//!   turns     eight frames by turns, one and eight copies outstanding, beside the CPU's own copies
//!   idle      what a service costs that nobody asks for anything
//! ```
//!
//! When the CPUs changed places only the part at hand is measured again. The worker is on CPU 1, this thread on CPU 0. Data is
//! random: lines of zeros are written for nothing on some machines.

mod embedded;
mod idle;
mod mapping;
mod moved;
pub(crate) mod overlap;
pub(crate) mod pair;
pub(crate) mod peer;
pub(crate) mod start;
mod turns;
pub(crate) mod ucx;

use crate::BenchError;
use crate::placement::{Class, steady};
use crate::rows::Row;
use crate::run::Run;

/// A part: its name, how it is measured, and whether where the CPUs lie matters to it.
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

/// Measures the group, or the parts of it that were asked for.
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
