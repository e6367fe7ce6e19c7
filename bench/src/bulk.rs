//! Group `bulk`: frames and messages between two processes.
//!
//! ```text
//! parts:  modes     producer and consumer over a set of frames, in the four modes of Wicki 2014 (figures 17 to 20)
//!         messages  the message back end against UCX, Unix sockets, pipes and process_vm_readv
//! ```
//!
//! This process is the consumer, on CPU 0; the engine's worker runs on CPU 1. Data is random, sides are interleaved round by
//! round, and every ratio is within one round.

mod messages;
mod modes;
pub(crate) mod partner;

use crate::BenchError;
use crate::placement::{Class, steady};
use crate::rows::Row;
use crate::run::Run;

type Part = (&'static str, fn(&Run, Class) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 2] = [("modes", modes::measure), ("messages", messages::measure)];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, ..)| *name))?;
    let mut rows = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, ..)| run.wants(name)) {
        rows.extend(steady(run, name, |class| part(run, class))?);
    }
    Ok(rows)
}
