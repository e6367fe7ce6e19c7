//! Gives every claim of the papers a verdict, one for each place that decides it.
//!
//! ```text
//! claims.toml ──parse, check──► Claims ────────────────────────────────────┐
//! plans, parameters ──► runners, over the cores ──► Tables ──► judges ──► verdicts ──► Report ──► table, JSON
//!                                                     └──► figures: CSV, SVG
//! ```
//!
//! Every claim has one row for each entry of its `where`. A claim without an experiment gets a row with status not-run. A verdict
//! depends on the figures of the experiments and on the criterion in `claims.toml`. A row never mixes simulated and live figures.
//!
//! To add experiments on a paper: write a module beside [`wicki`] with plans, parameters, runners and judges, and add it to
//! [`experiments::PAPERS`]. A study of our own is the same without judges, and stands in [`experiments::STUDIES`].

pub mod balancing;
pub mod bands;
pub mod claims;
pub mod dsa;
pub mod experiments;
pub mod figures;
mod halton;
pub mod judging;
mod live;
pub mod machine;
pub mod markatos;
pub mod nava;
pub mod nodes;
mod once;
pub mod papa;
pub mod paper;
pub mod paper_tables;
pub mod parameters;
pub mod plan;
pub mod report;
pub mod results;
mod rng;
pub mod table;
pub mod verdict;
pub mod wicki;
pub mod workers;
