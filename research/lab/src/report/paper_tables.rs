//! The papers' tables, with the lab's value for each cell.
//!
//! ```text
//! research/lab/tables.toml ──parse, check──► PaperTables ── cell: point on a line of a figure ──► paper, ours, difference
//! ```
//!
//! The paper's values are only shown here; the criteria are in `claims.toml`. All of our values are simulated.

use maud::{Markup, html};
use serde::Deserialize;

use super::pictures::short;
use super::words::rounded;
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
    toml::from_str::<Document>(include_str!("../../tables.toml")).map(|document| document.table)
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

    /// The difference of our value: in percent, or in percentage points if the value is a percentage.
    fn off(&self, ours: f64) -> String {
        if self.unit == "%" {
            return format!("{:+} points", rounded(ours - self.there));
        }
        format!("{:+} %", rounded((ours / self.there - 1.0) * 100.0))
    }
}

/// One table with the lab's values.
pub(super) fn table_with_ours(
    table: &PaperTable,
    found: &Tables,
    is_planned: impl Fn(&str) -> bool,
) -> Markup {
    let has_bases = table.cells.iter().any(|cell| cell.basis.is_some());
    html! {
        section.table id=(format!("table-{}", table.id)) {
            h4 { (table.title) }
                        p.place {
                @if has_bases { "Published: " (table.number) } @else { "The paper's " (table.number) }
                ", with our values beside it; simulated."
            }
            div.wide tabindex="0" role="region" aria-label=(table.title) { table {
                thead { tr {
                    @for head in ["", "unit", "paper", "ours", "off", "from"] { th scope="col" { (head) } }
                    @if has_bases { th scope="col" { "ours is" } }
                } }
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
                    @if has_bases { td { (cell.basis.map_or("", Basis::word)) } }
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
