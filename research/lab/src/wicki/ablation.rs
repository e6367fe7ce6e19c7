//! The concurrency of figure 12 without some of the model's mechanisms.
//!
//! ```text
//! parameters ── a mechanism off ──► one, two and four channels of 1 MiB ──► total MiB/s
//! ```
//!
//! Counts: a single channel has as many reads in flight as one of several. Turn-over: the port sends one request in a
//! channel's turn and loads the next channel's context, while a single channel keeps its context and issues ahead; without
//! turn-over every channel issues ahead. Contention in memory: without it, streams do not close each other's rows and the bus
//! turns round at once.

use crate::parameters::{Parameters, ParametersError};

use super::transfer;

/// Bytes of each transfer.
const BYTES: u32 = 1 << 20;

/// A batch size that is never reached.
const NEVER: f64 = 1e9;

/// The mechanism to switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Off {
    /// The lower number of reads in flight for one of several channels.
    Counts,
    /// The turn-over between channels, with that difference.
    TurnOver,
    /// All of these, and the costs of rows and bus turns in memory.
    Contention,
    /// Batches of writes, for which reads wait.
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

/// Total throughput of one, two and four channels, in MiB/s.
///
/// # Errors
/// A message, if the transfers could not run.
pub(super) fn without(off: Off, parameters: &Parameters) -> Result<[f64; 3], String> {
    let ablated = off.apply(parameters).map_err(|error| error.to_string())?;
    let together = |channels| transfer::together(&ablated, BYTES, channels);
    Ok([together(1)?, together(2)?, together(4)?])
}
