//! Runs the whole lab and compares its verdicts with the expected ones.
//!
//! ```text
//! memferry-lab --fresh --json FILE ──► rows ──► id, place, status, basis ──► compared with the stored lines
//! ```
//!
//! Claims that fail are part of the result, so the lab's status 1 is no failure. A live row may also be "not-run": this machine may
//! lack what it needs. A stored "- -" leaves the verdict of a live row open, because it depends on the machine.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;
use crate::layout::{LAB_VERDICTS, binary};
use crate::line::Line;
use crate::stages::{self, print};
use crate::work::Work;

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    let json = work.place.built("lab/full.json");
    let line = line(work, &json);
    work.stages.step("verdicts", &line, || {
        let status = stages::run(&line);
        if status > 1 {
            return status;
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let differences = differences(&read(&json), &read(&work.place.at(LAB_VERDICTS)));
        differences.iter().for_each(print);
        u8::from(!differences.is_empty())
    })
}

fn line(work: &Work, json: &Path) -> Line {
    let lab = Line::new(work.place.built("release").join(binary::LAB)).arg("--fresh").arg("--json").arg(json);
    lab.arg("--html").arg(json.with_extension("html"))
}

/// The differences between the rows and the stored lines, `ID PLACE STATUS BASIS`.
fn differences(json: &str, stored: &str) -> Vec<String> {
    let Ok(Value::Array(rows)) = serde_json::from_str(json) else {
        return vec!["the lab wrote no verdicts".to_owned()];
    };
    let word = |row: &Value, key: &str| row.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
    let mut differences = Vec::new();
    let mut missing: Vec<&str> = stored.lines().collect();
    for row in &rows {
        let start = format!("{} {} ", word(row, "id"), word(row, "where"));
        let found = format!("{start}{} {}", word(row, "status"), word(row, "basis"));
        let known = missing.iter().position(|line| line.starts_with(&start)).map(|at| missing.remove(at));
        let is_open = |known: &str| word(row, "status") == "not-run" || known.ends_with(" - -");
        let is_left_out = word(row, "where") == "live" && known.is_some_and(is_open);
        if known != Some(&found) && !is_left_out {
            differences.push(format!("{found}: {} was stored", known.unwrap_or("nothing")));
        }
    }
    differences
        .extend(missing.into_iter().map(|line| format!("{line}: stored, but missing among the verdicts")));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, place: &str, status: &str) -> String {
        format!(r#"{{"id":"{id}","where":"{place}","status":"{status}","basis":"predicted","why":""}}"#)
    }

    fn compare(rows: &[String], stored: &str) -> usize {
        differences(&format!("[{}]", rows.join(",")), stored).len()
    }

    #[test]
    fn verdicts_are_the_stored_ones() {
        let rows = [row("a", "simulated", "pass"), row("b", "simulated", "fail")];
        assert_eq!(compare(&rows, "a simulated pass predicted\nb simulated fail predicted\n"), 0);
        assert_eq!(compare(&rows, "a simulated fail predicted\nb simulated fail predicted\n"), 1);
    }

    #[test]
    fn added_and_missing_rows_differ() {
        let rows = [row("a", "simulated", "pass")];
        assert_eq!(compare(&rows, ""), 1);
        assert_eq!(compare(&[], "a simulated pass predicted\n"), 1);
        assert_eq!(differences("no JSON", "").len(), 1);
    }

    #[test]
    fn only_a_live_row_may_be_left_out() {
        assert_eq!(compare(&[row("a", "live", "not-run")], "a live reported predicted\n"), 0);
        assert_eq!(compare(&[row("a", "simulated", "not-run")], "a simulated pass predicted\n"), 1);
    }

    #[test]
    fn only_a_live_row_may_be_open() {
        assert_eq!(compare(&[row("a", "live", "fail")], "a live - -\n"), 0);
        assert_eq!(compare(&[row("a", "simulated", "fail")], "a simulated - -\n"), 1);
    }
}
