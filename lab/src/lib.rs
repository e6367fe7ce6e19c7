//! The lab gives every claim of the papers a verdict, one for each place in which it is to be decided.
//!
//! ```text
//! claims.toml ──parse, check──► Claims ──┐
//!                                        ├──► Report::assemble ──► rows ──► table, JSON
//! EXPERIMENTS ──run──► verdicts ─────────┘
//! ```
//!
//! A claim that no experiment decides becomes a row that says so, so the rows are complete at any time: one for each
//! claim and `where`. The lab judges by what an experiment reports; it holds no expectation of its own, and it never
//! puts a simulated and a live figure into one row.

pub mod claims;
pub mod experiments;
pub mod machine;
pub mod parameters;
pub mod report;
pub mod verdict;
pub mod wicki;
