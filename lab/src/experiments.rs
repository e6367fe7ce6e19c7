//! The experiments that decide claims, each a module of its own, listed here.
//!
//! ```text
//! EXPERIMENTS ──run each, in order──► the verdicts of all
//! ```
//!
//! The list is empty so far: no experiment has been written. An experiment states what it found; whether its claims
//! exist, and that no two experiments decide the same one, is checked in [`crate::report`].

use crate::verdict::Verdict;

/// Runs to its end and gives a verdict for each claim, and each place, that it decides.
pub type Experiment = fn() -> Vec<Verdict>;

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[];

/// Runs every experiment.
pub fn run() -> Vec<Verdict> {
    EXPERIMENTS.iter().flat_map(|experiment| experiment()).collect()
}
