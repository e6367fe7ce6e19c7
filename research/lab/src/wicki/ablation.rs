//! The concurrency of figure 12 with mechanisms switched off.
//!
//! ```text
//! parameters ── a mechanism off ──► one, two and four channels of 1 MiB ──► MiB/s together
//! ```
//!
//! Counts: a channel that is alone has as many reads on the way as one of several. With turn-over, the port sends one request in a channel's turn and loads the next channel's context; a channel that is
//! alone keeps its context and issues ahead. Without it channels issue ahead whether they are alone or not. Without
//! contention in memory too, streams do not close each other's rows and the bus turns round at once.

use crate::parameters::{Parameters, ParametersError};

use super::transfer;

/// Bytes of each transfer.
const BYTES: u32 = 1 << 20;

/// More writes than ever wait.
const NEVER: f64 = 1e9;

/// What is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Off {
    /// The difference between the two counts of reads on the way.
    Counts,
    /// Threads' turn-over between channels, that difference with it.
    TurnOver,
    /// All that, and what rows and turns of the bus cost in memory.
    Contention,
    /// Batches of writes that reads wait for.
    WriteBatches,
}

impl Off {
    /// The parameters without the mechanism.
    pub(super) fn apply(self, parameters: &Parameters) -> Result<Parameters, ParametersError> {
        if self == Self::WriteBatches {
            return parameters.with("dram-held-writes", NEVER);
        }
        let ahead = parameters.get("reads-ahead")?;
        let equal = parameters.with("reads-in-turn", ahead)?;
        if self == Self::Counts {
            return Ok(equal);
        }
        let mut ablated = equal.with("turn", 0.0)?;
        if self == Self::Contention {
            let rows = ["dram-activate", "dram-precharge", "dram-write-recovery"];
            for cost in rows.into_iter().chain(["dram-read-to-write", "dram-write-to-read"]) {
                ablated = ablated.with(cost, 0.0)?;
            }
        }
        Ok(ablated)
    }
}

/// Throughput of one, two and four channels together, in MiB/s.
///
/// # Errors
/// In words, what kept the transfers from running.
pub(super) fn without(off: Off, parameters: &Parameters) -> Result<[f64; 3], String> {
    let ablated = off.apply(parameters).map_err(|error| error.to_string())?;
    let together = |channels| transfer::together(&ablated, BYTES, channels);
    Ok([together(1)?, together(2)?, together(4)?])
}
