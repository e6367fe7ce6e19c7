//! The lab gives every claim of the papers a verdict, one for each place in which it is to be decided.
//!
//! ```text
//! claims.toml ──parse, check──► Claims ────────────────────────────────────┐
//! plans, parameters ──► runners, over the cores ──► Tables ──► judges ──► verdicts ──► Report ──► table, JSON
//!                                                     └──► figures: CSV, SVG
//! ```
//!
//! A claim that no experiment decides becomes a row that says so, so the rows are complete at any time: one for each
//! claim and `where`. The lab judges by what an experiment reports and by what the claim expects, and it never
//! puts a simulated and a live figure into one row.
//!
//! To add experiments on a paper: a module beside [`wicki`] with plans, parameters, runners and judges, and its line in
//! [`experiments::PAPERS`].

mod chance;
pub mod claims;
pub mod experiments;
pub mod figures;
pub mod judging;
mod live;
pub mod machine;
pub mod markatos;
pub mod nava;
pub mod papa;
pub mod paper;
pub mod parameters;
pub mod plan;
pub mod report;
pub mod results;
pub mod sensitivity;
pub mod table;
pub mod verdict;
pub mod wicki;
pub mod workers;
