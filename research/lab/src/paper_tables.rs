//! The papers' tables, cell by cell.
//!
//! ```text
//! research/lab/tables.toml ──parse, check──► PaperTables ── cell: point on a line of a figure ──► our value
//! ```
//!
//! The paper's values are only shown; the criteria are in `claims.toml`. All of our values are simulated.

use serde::Deserialize;

use crate::experiments::RunError;
use crate::table::Tables;
use crate::verdict::Basis;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Its row and column in words.
    pub what: String,
    pub unit: String,
    pub there: f64,
    /// The figure with our value.
    pub figure: String,
    pub series: String,
    /// The x value on the line.
    pub at: f64,
    /// The line that serves as the base, if the cell is a gain in percent.
    pub against: Option<String>,
    /// A dividend, if the cell is this number divided by the line's value.
    pub over: Option<f64>,
    /// Whether the model was fitted to this number, in the tables of studies, which have no verdicts to say it.
    pub basis: Option<Basis>,
}

/// One table of a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperTable {
    pub id: String,
    pub paper: String,
    /// The number of the table in the paper.
    pub number: String,
    pub title: String,
    /// Remarks needed to read it.
    pub note: String,
    pub cells: Vec<Cell>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    table: Vec<PaperTable>,
}

/// The tables of `tables.toml`.
///
/// # Errors
/// The text does not parse; a test checks that it does.
pub fn built_in() -> Result<Vec<PaperTable>, toml::de::Error> {
    toml::from_str::<Document>(include_str!("../tables.toml")).map(|document| document.table)
}

impl Cell {
    /// The lab's value for this cell.
    ///
    /// # Errors
    /// A figure, line or point that was not computed.
    pub fn ours(&self, tables: &Tables) -> Result<f64, RunError> {
        let value = |series: &str| tables.value(&self.figure, series, self.at);
        let own = value(&self.series)?;
        Ok(match (&self.against, self.over) {
            (Some(other), _) => (own / value(other)? - 1.0) * 100.0,
            (None, Some(over)) => over / own,
            (None, None) => own,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;
    use crate::experiments;

    #[test]
    fn every_cell_names_a_point_of_a_plan() {
        let papers = experiments::prepare(&Claims::built_in().expect("checked"), &[]).expect("checked");
        for table in built_in().expect("well formed") {
            let paper = papers.iter().find(|paper| paper.name == table.paper).expect("a paper of the lab");
            for cell in &table.cells {
                let plan = paper.plans.iter().find(|plan| plan.figure == cell.figure).expect("a plan");
                let has = |label: &str| plan.series.iter().any(|series| series.label == label);
                assert!(has(&cell.series) && cell.against.as_deref().is_none_or(has), "{}", cell.what);
                assert!(plan.points().contains(&cell.at), "{}", cell.what);
            }
        }
    }
}
