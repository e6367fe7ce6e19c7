//! The concurrency of figure 12 without some of the model's mechanisms.
//!
//! ```text
//! parameters ── a mechanism off ──► one, two and four channels of 1 MiB ──► total MiB/s, means over placements
//! ```
//!
//! Overlap: a channel has one transaction of each port in flight; the other reading of what the manuals leave open.
//! Queue: no read goes before an older write, and one write at most waits. Rows: streams do not close each other's rows,
//! and the bus turns round at once.

use crate::parameters::{Parameters, ParametersError};

use super::transfer;

/// Bytes of each transfer.
const BYTES: u32 = 1 << 20;

/// The mechanism to switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Off {
    /// Several transactions of a channel in flight.
    Overlap,
    /// Writes that wait for reads, and so leave in batches.
    WriteBatches,
    /// The costs of rows and bus turns in memory.
    Rows,
}

impl Off {
    /// The parameters without the mechanism.
    pub(super) fn apply(self, parameters: &Parameters) -> Result<Parameters, ParametersError> {
        let set: &[(&str, f64)] = match self {
            Self::Overlap => &[("channel-reads", 1.0), ("channel-writes", 1.0)],
            Self::WriteBatches => &[("dram-held-writes", 1.0), ("dram-reads-first", 0.0)],
            Self::Rows => &[
                ("dram-activate", 0.0),
                ("dram-precharge", 0.0),
                ("dram-row-active", 0.0),
                ("dram-write-recovery", 0.0),
                ("dram-read-to-write", 0.0),
                ("dram-write-to-read", 0.0),
            ],
        };
        set.iter().try_fold(parameters.clone(), |changed, (name, value)| changed.with(name, *value))
    }
}

/// Total throughput of one, two and four channels, in MiB/s.
///
/// # Errors
/// A message, if the transfers could not run.
pub(super) fn without(off: Off, parameters: &Parameters, seed: u64) -> Result<[f64; 3], String> {
    let ablated = off.apply(parameters).map_err(|error| error.to_string())?;
    let together = |channels| transfer::together(&ablated, BYTES, channels, seed);
    Ok([together(1)?, together(2)?, together(4)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wicki::PAPER;

    #[test]
    fn each_mechanism_changes_the_throughput() {
        let parameters = Parameters::parse(PAPER.parameters).expect("checked");
        let whole =
            [1, 2, 4].map(|channels| transfer::together(&parameters, BYTES, channels, 1).expect("runs"));
        let [one, two, four] = without(Off::Overlap, &parameters, 1).expect("runs");
        assert!(one < whole[0] / 2.0, "{one}, {whole:?}");
        assert!(one < two && two < four, "{one} {two} {four}");
        assert_ne!(without(Off::WriteBatches, &parameters, 1), Ok(whole));
        let rows = without(Off::Rows, &parameters, 1).expect("runs");
        assert!(rows.iter().zip(&whole).all(|(without, with)| without > with), "{rows:?}, {whole:?}");
    }
}
