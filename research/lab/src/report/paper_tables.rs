//! The papers' tables beside what the lab finds for each cell.
//!
//! ```text
//! research/lab/tables.toml ──parse, check──► PaperTables ── cell: line of a figure, at a point ──► paper, ours, how far off
//! ```
//!
//! The paper's values here are shown and never judged: what decides is in `claims.toml`. All of ours are simulated.

use maud::{Markup, html};
use serde::Deserialize;

use super::pictures::short;
use super::words::rounded;
use crate::experiments::RunError;
use crate::table::Tables;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Its row and column in words.
    pub what: String,
    pub unit: String,
    pub there: f64,
    /// The figure that ours is from.
    pub figure: String,
    pub series: String,
    /// The point on it.
    pub at: f64,
    /// The line that it is a gain over, in percent.
    pub against: Option<String>,
    /// What is divided by the line's value.
    pub over: Option<f64>,
}

/// One table of a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperTable {
    pub id: String,
    /// As claims call it.
    pub paper: String,
    /// The paper's number of it.
    pub number: String,
    /// What it is about.
    pub title: String,
    /// What has to be known to read it.
    pub note: String,
    pub cells: Vec<Cell>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    table: Vec<PaperTable>,
}

/// The list of the project.
///
/// # Errors
/// What keeps its text from being read; a test holds it to none.
pub fn built_in() -> Result<Vec<PaperTable>, toml::de::Error> {
    toml::from_str::<Document>(include_str!("../../tables.toml")).map(|document| document.table)
}

impl Cell {
    /// What the lab finds for it.
    ///
    /// # Errors
    /// A figure, line or point that was not made.
    pub fn ours(&self, tables: &Tables) -> Result<f64, RunError> {
        let value = |series: &str| tables.value(&self.figure, series, self.at);
        let own = value(&self.series)?;
        Ok(match (&self.against, self.over) {
            (Some(other), _) => (own / value(other)? - 1.0) * 100.0,
            (None, Some(over)) => over / own,
            (None, None) => own,
        })
    }

    /// How far off ours is: in percent, or in points where the value is one of percent.
    fn off(&self, ours: f64) -> String {
        if self.unit == "%" {
            return format!("{:+} points", rounded(ours - self.there));
        }
        format!("{:+} %", rounded((ours / self.there - 1.0) * 100.0))
    }
}

/// One table, with what was found.
pub(super) fn beside(table: &PaperTable, found: &Tables, is_planned: impl Fn(&str) -> bool) -> Markup {
    html! {
        section.table id=(format!("table-{}", table.id)) {
            h4 { (table.title) }
            p.place { "The paper's " (table.number) ", and ours beside it; simulated." }
            div.wide tabindex="0" role="region" aria-label=(table.title) { table {
                thead { tr { @for head in ["", "unit", "paper", "ours", "off", "from"] { th scope="col" { (head) } } } }
                tbody { @for cell in &table.cells { tr {
                    th scope="row" { (cell.what) }
                    td { (cell.unit) }
                    td { (cell.there) }
                    @match cell.ours(found) {
                        Ok(ours) => { td { (short(rounded(ours))) } td { (cell.off(ours)) } }
                        Err(_) => { td colspan="2" { "not run" } }
                    }
                    td {
                        @if is_planned(&cell.figure) { a href=(format!("#figure-{}", cell.figure)) { (cell.figure) } }
                        @else { (cell.figure) }
                    }
                } } }
            } }
            p.note { (table.note) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;
    use crate::experiments;

    #[test]
    fn every_cell_names_a_line_and_a_point_of_a_plan() {
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
