//! Writes figures as files: the numbers as CSV, the lines as SVG.
//!
//! ```text
//! Table ── csv ──► DIR/figures/FIGURE.csv
//!      └── svg ──► DIR/figures/FIGURE.svg
//! ```
//!
//! The same table gives the same bytes: files do not depend on the time, the machine or its fonts. Every picture is marked as
//! simulated, and has the paper's values over the lines.

pub mod beside;
mod csv;
mod svg;

use std::io;
use std::path::{Path, PathBuf};

pub use csv::csv;
use memferry_charts::DrawError;
pub use svg::{ChartStyle, drawn, svg};

use crate::table::Table;

/// Why a figure was not written.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    #[error("cannot draw figure `{figure}`: {error}")]
    Draw { figure: String, error: DrawError },
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
}

/// Writes both files of a figure into `directory`/figures, which is created if missing.
///
/// # Errors
/// [`FigureError`].
pub fn write(table: &Table, directory: &Path) -> Result<(), FigureError> {
    let figure = table.plan.figure.as_str();
    let picture = svg(table).map_err(|error| FigureError::Draw { figure: figure.to_owned(), error })?;
    let directory = directory.join("figures");
    let write = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).map_err(|error| FigureError::Write { path, error })
    };
    std::fs::create_dir_all(&directory)
        .map_err(|error| FigureError::Write { path: directory.clone(), error })?;
    write(directory.join(format!("{figure}.csv")), &csv(table))?;
    write(directory.join(format!("{figure}.svg")), &picture)
}
