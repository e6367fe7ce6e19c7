//! The data of the HTML page.

use super::{Emulated, Machine, Report};
use crate::bands::Bands;
use crate::claims::Claims;
use crate::experiments::{Prepared, RunError};
use crate::table::Table;

/// The data of the HTML page; [`Page::html`] renders it.
#[derive(Debug)]
pub struct Page<'a> {
    pub claims: &'a Claims,
    pub report: &'a Report,
    /// The papers, with their plans and parameters.
    pub papers: &'a [Prepared],
    pub tables: Vec<&'a Table>,
    /// Failed experiments, by figure or claim.
    pub failures: Vec<&'a (String, RunError)>,
    /// The machine that gave the live rows.
    pub machine: Machine,
    /// The bands of this run, or the committed ones.
    pub bands: Bands,
    /// What `./x guest ioat` left.
    pub emulated: Emulated,
    /// The claims and figures selected by `--only`; empty for all.
    pub only: &'a [String],
}
