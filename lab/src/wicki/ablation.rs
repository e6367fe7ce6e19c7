//! The concurrency of figure 12 with a mechanism switched off.
//!
//! ```text
//! parameters ── reads-in-turn := reads-ahead, turn := 0 ──► one and two channels of 1 MiB ──► MiB/s together
//! ```
//!
//! With turn-over, the port sends one request in a channel's turn and loads the next channel's context; a channel that is
//! alone keeps its context and issues ahead. Without it channels issue ahead whether they are alone or not.

use crate::parameters::Parameters;

use super::transfer;

/// Bytes of each transfer.
const BYTES: u32 = 1 << 20;

/// Throughput of one and of two channels together, in MiB/s, when taking turns costs nothing.
///
/// # Errors
/// In words, what kept the transfers from running.
pub(super) fn without_turn_over(parameters: &Parameters) -> Result<(f64, f64), String> {
    let words = |error: crate::parameters::ParametersError| error.to_string();
    let ahead = parameters.get("reads-ahead").map_err(words)?;
    let ablated = parameters.with("reads-in-turn", ahead).and_then(|ablated| ablated.with("turn", 0.0));
    let ablated = ablated.map_err(words)?;
    let together = |channels| transfer::together(&ablated, BYTES, channels);
    Ok((together(1)?, together(2)?))
}
