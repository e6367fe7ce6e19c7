//! The page of comparisons and README.md's table, made from the rows' JSON.
//!
//! ```text
//! rows ─► json: {"measured", "machine", "rows"} ─► docs/guide/comparison.json ─┬─► render: this folder's comparison.md, with tables ─► the page
//!                                                                              └─► readme: the table of README.md
//! ```
//!
//! A test holds both to the committed JSON. It says who wins each row: a gain of less than a twentieth is nobody's.

use std::fmt::Write;
use std::time::SystemTime;

use serde::Deserialize;

use super::{OTHERS, engines, iceoryx2, kernel, libc, own, ucx};
use crate::BenchError;
use crate::filled::day;
use crate::rows::{Row, number};

/// The page's text, with a line `{{SECTION}}` where a table goes.
const TEMPLATE: &str = include_str!("comparison.md");
/// A gain within this share of 1 is nobody's.
const EVEN: f64 = 0.05;
/// Sections whose tables have a winner in each row.
const FIGURES: [&str; 6] =
    [libc::SECTION, kernel::SECTION, ucx::SECTION, iceoryx2::SECTION, engines::SECTION, "absent"];

#[derive(Deserialize)]
struct Document {
    measured: String,
    machine: String,
    rows: Vec<Entry>,
}

/// A row as the JSON has it.
#[derive(Deserialize)]
struct Entry {
    name: String,
    value: Option<f64>,
    unit: String,
    target: Option<String>,
    holds: Option<bool>,
    min: Option<f64>,
    max: Option<f64>,
    reason: Option<String>,
    comparison: Side,
}

#[derive(Deserialize)]
struct Side {
    section: String,
    peer: String,
    ours: Option<f64>,
    theirs: Option<f64>,
    side_unit: String,
    place: String,
    said: Option<String>,
}

/// The rows with the day and the machine they were measured on.
///
/// # Errors
/// Those of encoding.
pub(crate) fn json(rows: &[Row]) -> Result<String, BenchError> {
    let measured = day(SystemTime::now())?;
    let document = serde_json::json!({ "measured": measured, "machine": machine(), "rows": rows });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The processor, the number of its CPUs here, and the kernel.
pub(crate) fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = kernel.trim().split('-').next().unwrap_or_default();
    format!("{count} CPUs ({}), Linux {version}", model(&cpus))
}

fn model(cpus: &str) -> &str {
    let line = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    line.and_then(|rest| rest.split_once(':')).map_or("of unknown model", |(_, name)| name.trim())
}

/// The page.
///
/// # Errors
/// If the text is no such JSON.
pub(crate) fn render(json: &str) -> Result<String, BenchError> {
    let document: Document = serde_json::from_str(json)?;
    let mut page = String::new();
    for line in TEMPLATE.lines() {
        match line.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")) {
            None => page.push_str(line),
            Some("machine") => page.push_str(&machine_line(&document)),
            Some(section) => page.push_str(table(&document, section)?.trim_end()),
        }
        page.push('\n');
    }
    Ok(page)
}

fn machine_line(document: &Document) -> String {
    let note = if was_alone(document) {
        ""
    } else {
        " **Other programs ran on the same CPUs: these figures show that the comparison works, and not who is faster.**"
    };
    format!("Measured on {}, {}.{note}", document.measured, document.machine)
}

/// Whether no other program disturbed the run.
fn was_alone(document: &Document) -> bool {
    document.rows.iter().any(|row| row.name == OTHERS && row.holds == Some(true))
}

fn table(document: &Document, section: &str) -> Result<String, BenchError> {
    let rows: Vec<&Entry> = document.rows.iter().filter(|row| row.comparison.section == section).collect();
    if rows.is_empty() {
        return Ok("Not measured in this run.".to_owned());
    }
    match section {
        engines::OUTCOMES => outcomes(&rows),
        own::SECTION => own_table(&rows),
        section if FIGURES.contains(&section) => figures(&rows),
        other => Err(format!("the page asks for a section '{other}', which does not exist").into()),
    }
}

/// Figures with a winner each, then what was not run.
fn figures(rows: &[&Entry]) -> Result<String, BenchError> {
    let mut text = String::new();
    if rows.iter().any(|row| row.value.is_some()) {
        text.push_str(
            "| what | beside | memferry | the other | gain (minimum to maximum) | target | wins |\n",
        );
        text.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    }
    for row in rows {
        let Side { peer, side_unit, .. } = &row.comparison;
        let (Some(gain), Some(min), Some(max)) = (row.value, row.min, row.max) else { continue };
        let side = |value: Option<f64>| format!("{} {side_unit}", value.map_or("?".to_owned(), number));
        let [ours, theirs] = [row.comparison.ours, row.comparison.theirs].map(side);
        let gain_text = format!("{} ({} to {})", number(gain), number(min), number(max));
        let what = row.what();
        let target = row.target_text();
        let winner = winner(gain, peer);
        writeln!(text, "| {what} | {peer} | {ours} | {theirs} | {gain_text} | {target} | {winner} |")?;
    }
    for row in rows.iter().filter(|row| row.value.is_none()) {
        let reason = row.reason.as_deref().unwrap_or_default();
        let gap = if text.is_empty() || text.ends_with("|\n") && !text.contains("\n* ") { "\n" } else { "" };
        writeln!(text, "{gap}* {}, {}: {reason}.", row.comparison.peer, row.what())?;
    }
    places(&mut text, rows)?;
    Ok(text.trim_start().to_owned())
}

/// Says how the CPUs were placed, where that matters.
fn places(text: &mut String, rows: &[&Entry]) -> Result<(), BenchError> {
    let mut places: Vec<&str> =
        rows.iter().filter(|row| row.value.is_some()).map(|row| row.comparison.place.as_str()).collect();
    places.dedup();
    // Copies by one CPU have no placement.
    if !places.is_empty() && rows.iter().all(|row| row.comparison.section != libc::SECTION) {
        write!(text, "\nThe two CPUs: {}.\n", places.join(", then "))?;
    }
    Ok(())
}

fn outcomes(rows: &[&Entry]) -> Result<String, BenchError> {
    let mut text = "| what | of | outcome |\n| --- | --- | --- |\n".to_owned();
    for row in rows {
        let said = row.comparison.said.as_deref().or(row.reason.as_deref()).unwrap_or_default();
        writeln!(text, "| {} | {} | {} |", row.what(), row.comparison.peer, said.replace('|', "/"))?;
    }
    Ok(text)
}

fn own_table(rows: &[&Entry]) -> Result<String, BenchError> {
    let mut text = "| what | measured | target |\n| --- | --- | --- |\n".to_owned();
    for row in rows {
        let value =
            row.value.map_or_else(|| row.reason.clone().unwrap_or_default(), |value| row.with_unit(value));
        writeln!(text, "| {} | {value} | {} |", row.name, row.target_text())?;
    }
    Ok(text)
}

impl Entry {
    /// The name without the peer.
    fn what(&self) -> &str {
        let peer = format!(", against {}", self.comparison.peer);
        self.name.strip_suffix(&peer).unwrap_or(&self.name)
    }

    fn target_text(&self) -> String {
        let missed = if self.holds == Some(false) { ", missed" } else { "" };
        self.target.as_ref().map_or(String::new(), |target| format!("{target}{missed}"))
    }

    fn with_unit(&self, value: f64) -> String {
        match self.unit.as_str() {
            "ratio" => format!("{} times", number(value)),
            unit => format!("{} {unit}", number(value)),
        }
    }
}

/// Who wins a row.
fn winner(gain: f64, peer: &str) -> String {
    match gain {
        gain if gain >= 1.0 + EVEN => "memferry".to_owned(),
        gain if gain <= 1.0 - EVEN => peer.to_owned(),
        _ => "nobody".to_owned(),
    }
}

/// A row's value; behind it its target in parentheses, if that was missed.
#[cfg(test)]
fn with_missed_target(row: &Entry) -> String {
    let value = row.value.unwrap_or_default();
    match &row.target {
        Some(target) if row.holds == Some(false) => {
            format!("{value:.2} ({})", target.trim_start_matches(['<', '>', '=', ' ']))
        }
        _ if value >= 1.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// README.md's table, from the same JSON; `None` if other programs disturbed the run.
///
/// # Errors
/// If a row that it needs was not measured.
#[cfg(test)]
fn readme(json: &str) -> Result<Option<String>, BenchError> {
    let document: Document = serde_json::from_str(json)?;
    if !was_alone(&document) {
        return Ok(None);
    }
    // Rows of the newest release come last.
    let find = |section: &str, what: &str| {
        let is_it =
            |row: &&Entry| row.comparison.section == section && row.what() == what && row.value.is_some();
        document
            .rows
            .iter()
            .rfind(is_it)
            .ok_or_else(|| format!("README.md needs the row '{what}', which was not measured"))
    };
    let copies = ["64 KiB", "2 MiB", "32 MiB"].map(|size| find(libc::SECTION, &format!("cold copy, {size}")));
    let copies = copies.into_iter().collect::<Result<Vec<_>, _>>()?;
    let glibc = copies.first().map_or("", |row| &row.comparison.peer);
    let copies = copies.into_iter().map(with_missed_target).collect::<Vec<_>>().join(", ");
    let zeros = ["64 KiB", "1 MiB", "16 MiB"]
        .map(|size| find(libc::SECTION, &format!("zeroing cold memory, {size}")));
    let mut zeros = zeros.into_iter().collect::<Result<Vec<_>, _>>()?;
    zeros.sort_by(|one, other| one.value.unwrap_or_default().total_cmp(&other.value.unwrap_or_default()));
    let bandwidth = find(ucx::SECTION, "1 MiB, bandwidth as its tag_bw")?;
    let own_row = |index: usize| find(own::SECTION, own::NAMES[index].1);
    let own = |index: usize| own_row(index).map(|row| row.value.unwrap_or_default());
    let mut text = "| what | measured |\n| --- | --- |\n".to_owned();
    writeln!(
        text,
        "| cold copy of 64 KiB, 2 MiB, 32 MiB by one CPU, against {glibc} | {copies} times as fast |"
    )?;
    writeln!(
        text,
        "| zeroing cold memory, 64 KiB to 16 MiB, likewise | {} to {} times as fast |",
        with_missed_target(zeros[0]),
        with_missed_target(zeros[2])
    )?;
    writeln!(
        text,
        "| 1 MiB between two processes, against {} | {} times the bandwidth |",
        bandwidth.comparison.peer,
        with_missed_target(bandwidth)
    )?;
    writeln!(
        text,
        "| computing hidden behind a copy of 64 KiB, of 4 MiB | {:.0} %, {:.0} % |",
        own(0)?,
        own(1)?
    )?;
    writeln!(text, "| {} | {} times as long |", own::NAMES[2].1, with_missed_target(own_row(2)?))?;
    let times = own(3)?;
    let scheduled = if times > 0.0 {
        format!("threads scheduled {times:.0} times")
    } else {
        "no thread scheduled".to_owned()
    };
    writeln!(text, "| an idle service | {scheduled} in 30 s, {:.0} MiB |", own(4)?)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests;
