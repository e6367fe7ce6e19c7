//! Puts a group's rows into a page, between the group's two marks.
//!
//! ```text
//! page:  <!-- rows of GROUP -->          rows ─► date, machine, table ─┐
//!        (replaced) ◄─────────────────────────────────────────────────┘
//!        <!-- end of GROUP -->
//! ```
//!
//! The rest of the page stays. A table that joins several rows in one line is written by hand.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::BenchError;
use crate::rows::Row;

/// The page with the group's rows, as measured today on this machine.
///
/// # Errors
/// If the page lacks the marks of the group.
pub(crate) fn fill(page: &str, group: &str, machine: &str, rows: &[Row]) -> Result<String, BenchError> {
    let days = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    let (year, month, day) = memferry_charts::date(days);
    let text = format!("Measured on {year}-{month:02}-{day:02}, {machine}.\n\n{}\n", table(rows)?);
    between(page, group, &text)
}

fn between(page: &str, group: &str, text: &str) -> Result<String, BenchError> {
    let [first, last] = [format!("<!-- rows of {group} -->\n"), format!("<!-- end of {group} -->\n")];
    let parts = page.split_once(&first).and_then(|(before, rest)| Some((before, rest.split_once(&last)?.1)));
    let Some((before, after)) = parts else {
        let [first, last] = [first.trim_end(), last.trim_end()];
        return Err(format!(
            "the page has no place for these rows; it needs the lines '{first}' and '{last}'"
        )
        .into());
    };
    Ok(format!("{before}{first}{text}{last}{after}"))
}

fn table(rows: &[Row]) -> Result<String, BenchError> {
    let mut text = "| what | measured (minimum to maximum) | target |\n| --- | --- | --- |\n".to_owned();
    for row in rows {
        let [name, measured, target] = row.cells().map(|cell| cell.replace('|', "/"));
        writeln!(text, "| {name} | {measured} | {target} |")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Target;

    #[test]
    fn only_the_place_of_the_group_changes() {
        let page =
            "a\n<!-- rows of x -->\nold\n<!-- end of x -->\nb\n<!-- rows of y -->\n<!-- end of y -->\n";
        let filled = between(page, "x", "new\n").unwrap();
        assert_eq!(filled, page.replace("old", "new"));
        assert_eq!(between(&filled, "x", "new\n").unwrap(), filled);
        assert!(between(page, "y", "z\n").unwrap().contains("<!-- rows of y -->\nz\n<!-- end of y -->\n"));
    }

    #[test]
    fn a_page_without_marks_is_refused() {
        for page in ["", "<!-- rows of x -->\n", "<!-- end of x -->\n<!-- rows of x -->\n"] {
            let error = between(page, "x", "new\n").unwrap_err().to_string();
            assert!(error.contains("'<!-- rows of x -->' and '<!-- end of x -->'"), "{error}");
        }
    }

    #[test]
    fn rows_have_bounds_targets_and_reasons() {
        let rows = [
            Row::new("a|b", "ratio", Target::AtMost(1.0), &[1.0, 2.0, 3.0]),
            Row::new("c", "us", Target::None, &[120.0]),
            Row::not_measured("d", "no root"),
            Row::broken("e", "hung"),
        ];
        let table = table(&rows).unwrap();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        let expected = [
            "| a/b | 2.00 times (1.00 to 3.00) | <= 1, missed |",
            "| c | 120 us (120 to 120) |  |",
            "| d | not measured: no root |  |",
            "| e | broken: hung |  |",
        ];
        assert_eq!(lines, expected);
    }
}
