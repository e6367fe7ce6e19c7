//! A figure's numbers: one row for each point, by line and increasing x.
//!
//! ```text
//! Table ──► series,x (unit),y (unit) ──► "64-byte bursts",1048576,912.345678
//! ```
//!
//! Quoted as in RFC 4180. Values have at most six decimals.

use std::fmt::Write;

use crate::table::Table;

/// The table as text.
pub fn csv(table: &Table) -> String {
    let x = &table.plan.x;
    let y = &table.plan.y;
    let x = quoted(&format!("{} ({})", x.label, x.unit));
    let y = quoted(&format!("{} ({}), simulated", y.label, y.unit));
    let mut text = format!("series,{x},{y}\n");
    for series in &table.series {
        for (x, y) in &series.points {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{},{x},{}", quoted(&series.label), (y * 1e6).round() / 1e6);
        }
    }
    text
}

fn quoted(field: &str) -> String {
    format!("\"{}\"", field.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
