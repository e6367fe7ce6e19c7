//! The papers' tables in the report, with the lab's value for each cell.
//!
//! ```text
//! PaperTables, the figures' tables ──► paper, ours, difference
//! ```

use maud::{Markup, html};

use super::pictures::short;
use super::words::rounded;
use crate::paper_tables::{Cell, PaperTable};
use crate::table::Tables;
use crate::verdict::Basis;

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
                        Ok(ours) => { td { (short(rounded(ours))) } td { (off(cell, ours)) } }
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

/// The difference of our value: in percent, or in percentage points if the value is a percentage.
fn off(cell: &Cell, ours: f64) -> String {
    if cell.unit == "%" {
        return format!("{:+} points", rounded(ours - cell.there));
    }
    format!("{:+} %", rounded((ours / cell.there - 1.0) * 100.0))
}
