//! Puts a group's rows into the group's tables of a page, each between two marks.
//!
//! ```text
//! page:  <!-- rows of TABLE -->    rows of --json ─► template of the table ─► day, machine, table ─┐
//!        (replaced) ◄─────────────────────────────────────────────────────────────────────────────┘
//!        <!-- end of TABLE -->
//! ```
//!
//! A table's name begins with that of its group. The rest of the page stays. In a template `{{figure ROWS}}` stands for medians of rows,
//! `{{bounds ROW}}` for median, minimum and maximum of one, `{{target ROWS}}` for targets and which were missed. Names of rows are separated
//! by `; `. A name that ends with `*` stands for the row whose name begins so.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::BenchError;
use crate::rows::{NOT_MEASURED, Row};

/// Tables and their templates.
const TEMPLATES: [(&str, &str); 17] = [
    ("engine", include_str!("filled/engine.md")),
    ("pollution", include_str!("filled/pollution.md")),
    ("twod", include_str!("filled/twod.md")),
    ("policy", include_str!("filled/policy.md")),
    ("service", include_str!("filled/service.md")),
    ("preload calls", include_str!("filled/preload_calls.md")),
    ("preload programs", include_str!("filled/preload_programs.md")),
    ("bulk frames", include_str!("filled/bulk_frames.md")),
    ("bulk messages", include_str!("filled/bulk_messages.md")),
    ("fileserver", include_str!("filled/fileserver.md")),
    ("scale", include_str!("filled/scale.md")),
    ("commands", include_str!("filled/commands.md")),
    ("copier", include_str!("filled/copier.md")),
    ("remote reads", include_str!("filled/remote_reads.md")),
    ("remote files", include_str!("filled/remote_files.md")),
    ("remote channels", include_str!("filled/remote_channels.md")),
    ("remote engines", include_str!("filled/remote_engines.md")),
];

/// Checks that the page has tables of the group.
///
/// # Errors
/// If it has none, or the end of one is missing.
pub(crate) fn check(page: &str, group: &str) -> Result<(), BenchError> {
    tables(page, group).map(drop)
}

/// The page with the group's rows, and when and where they were measured.
///
/// # Errors
/// If the page has no tables of the group, or these have none of the rows, or the rows are of several runs.
pub(crate) fn fill(page: &str, group: &str, rows: &[Row]) -> Result<String, BenchError> {
    let mut filled = page.to_owned();
    let mut any = false;
    for (name, template) in tables(page, group)? {
        if let Some(text) = text(template, rows)? {
            filled = between(&filled, name, &text)?;
            any = true;
        }
    }
    if any {
        Ok(filled)
    } else {
        Err(format!("no table of '{group}' in the page has any of these rows").into())
    }
}

/// Names and templates of the group's tables in the page.
fn tables(page: &str, group: &str) -> Result<Vec<(&'static str, &'static str)>, BenchError> {
    let of_group = TEMPLATES.iter().filter(|(name, _)| name.split(' ').next() == Some(group));
    let found: Vec<_> =
        of_group.clone().filter(|(name, _)| page.contains(&first_mark(name))).copied().collect();
    for (name, _) in &found {
        between(page, name, "")?;
    }
    if found.is_empty() {
        let marks: Vec<String> = of_group.map(|(name, _)| format!("'{}'", first_mark(name))).collect();
        let remedy = match &marks[..] {
            [] => "pages have no tables of this group; --json writes its rows".to_owned(),
            marks => format!("it needs lines like {}, and '{}'", marks.join(" or "), last_mark("...")),
        };
        return Err(format!("the page has no place for these rows: {remedy}").into());
    }
    Ok(found)
}

/// The day of a time.
///
/// # Errors
/// If it is before 1970.
pub(crate) fn day(time: SystemTime) -> Result<String, BenchError> {
    Ok(memferry_charts::day(time.duration_since(UNIX_EPOCH)?.as_secs()))
}

fn first_mark(place: &str) -> String {
    format!("<!-- rows of {place} -->")
}

fn last_mark(place: &str) -> String {
    format!("<!-- end of {place} -->")
}

fn between(page: &str, place: &str, text: &str) -> Result<String, BenchError> {
    let [first, last] = [first_mark(place) + "\n", last_mark(place) + "\n"];
    let parts = page.split_once(&first).and_then(|(before, rest)| Some((before, rest.split_once(&last)?.1)));
    let Some((before, after)) = parts else {
        return Err(
            format!("the page has no line '{}' behind '{}'", last.trim_end(), first.trim_end()).into()
        );
    };
    Ok(format!("{before}{first}{text}{last}{after}"))
}

/// What is between a table's marks; nothing if no row of it was measured.
fn text(template: &str, rows: &[Row]) -> Result<Option<String>, BenchError> {
    let mut runs: Vec<&str> = rows.iter().filter_map(Row::measured).collect();
    runs.dedup();
    match &runs[..] {
        [run] => Ok(filled_in(template, rows)?.map(|table| format!("Measured {run}.\n\n{table}\n"))),
        [] => Err("the rows do not say when they were measured".into()),
        [one, other, ..] => Err(format!("the rows are of several runs: '{one}' and '{other}'").into()),
    }
}

fn filled_in(template: &str, rows: &[Row]) -> Result<Option<String>, BenchError> {
    let mut text = String::new();
    let mut any = false;
    for (number, piece) in template.split("{{").enumerate() {
        if number == 0 {
            text.push_str(piece);
            continue;
        }
        let asked = piece.split_once("}}").and_then(|(asked, rest)| Some((asked.split_once(' ')?, rest)));
        let Some(((form, names), rest)) = asked else {
            return Err(format!("a template has '{{{{{piece}', which is no row").into());
        };
        let named: Vec<Option<&Row>> = names.split("; ").map(|name| find(rows, name)).collect();
        any |= named.iter().any(Option::is_some);
        match form {
            "figure" => text.push_str(&figures(&named)),
            "bounds" => text.push_str(&named[0].map_or_else(|| NOT_MEASURED.to_owned(), Row::bounds)),
            "target" => text.push_str(&targets(&named)),
            _ => return Err(format!("a template asks for '{form}' of a row").into()),
        }
        text.push_str(rest);
    }
    Ok(any.then_some(text))
}

fn find<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| match name.strip_suffix('*') {
        Some(begins) => row.name().starts_with(begins),
        None => row.name() == name,
    })
}

/// Medians with commas between them, and the unit once if it is the same.
fn figures(rows: &[Option<&Row>]) -> String {
    let figures: Vec<(String, &str)> =
        rows.iter().map(|row| row.map_or_else(|| (NOT_MEASURED.to_owned(), ""), Row::figure)).collect();
    let unit = figures[0].1;
    if figures.iter().all(|(_, other)| *other == unit) {
        let numbers: Vec<&str> = figures.iter().map(|(number, _)| number.as_str()).collect();
        return format!("{} {unit}", numbers.join(", ")).trim_end().to_owned();
    }
    let each: Vec<String> =
        figures.iter().map(|(number, unit)| format!("{number} {unit}").trim_end().to_owned()).collect();
    each.join(", ")
}

/// Targets, and which were missed; one that all rows have only once.
fn targets(rows: &[Option<&Row>]) -> String {
    let targets: Vec<Option<(&str, bool)>> = rows.iter().map(|row| row.and_then(Row::limit)).collect();
    let limits: Vec<(&str, bool)> = targets.iter().flatten().copied().collect();
    let Some((first, _)) = limits.first() else { return String::new() };
    if limits.len() == targets.len() && limits.iter().all(|(limit, _)| limit == first) {
        let missed = limits.iter().filter(|(_, missed)| *missed).count();
        return match missed {
            0 => (*first).to_owned(),
            all if all == limits.len() => format!("{first}, missed"),
            some => format!("{first}, missed by {some} of {}", limits.len()),
        };
    }
    let each = targets.iter().map(|target| match target {
        Some((limit, true)) => format!("{limit}, missed"),
        Some((limit, false)) => (*limit).to_owned(),
        None => "none".to_owned(),
    });
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Target;

    const DAY: &str = "on 1971-01-02, m";

    #[test]
    fn only_tables_of_the_group_change() {
        let page = "a\n<!-- rows of policy -->\nold\n<!-- end of policy -->\nb\n<!-- rows of commands -->\n<!-- end of commands -->\n";
        let filled = between(page, "policy", "new\n").unwrap();
        assert_eq!(filled, page.replace("old", "new"));
        assert_eq!(between(&filled, "policy", "new\n").unwrap(), filled);
        let rows = [Row::new("memferry copy against cp, 1 MiB", "times", Target::None, &[2.0]).dated(DAY)];
        let filled = fill(page, "commands", &rows).unwrap();
        assert!(filled.starts_with(page.split_once("<!-- end of commands").unwrap().0), "{filled}");
        assert!(
            filled.contains("<!-- rows of commands -->\nMeasured on 1971-01-02, m.\n\n| what "),
            "{filled}"
        );
        assert!(
            filled.contains("| `memferry copy` against `cp`: 1 MiB | 2.00 (2.00 to 2.00) |  |\n"),
            "{filled}"
        );
        assert!(filled.ends_with("| 40 MiB | not measured |  |\n\n<!-- end of commands -->\n"), "{filled}");
    }

    /// All tables, and the figures in them.
    #[test]
    fn pages_have_the_committed_figures() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect(name);
        let mut seen = Vec::new();
        for entry in std::fs::read_dir(&docs).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.ends_with(".md") {
                continue;
            }
            let page = read(&name);
            for table in
                page.lines().filter_map(|line| line.strip_prefix("<!-- rows of ")?.strip_suffix(" -->"))
            {
                let group = table.split(' ').next().unwrap();
                let rows: Vec<Row> = serde_json::from_str(&read(&format!("figures/{group}.json"))).unwrap();
                assert!(
                    fill(&page, group, &rows).unwrap() == page,
                    "docs/{name} is not docs/figures/{group}.json: \
                     ./x bench {group} --from docs/figures/{group}.json --page docs/{name}"
                );
                seen.push(table.to_owned());
            }
        }
        seen.sort();
        let mut expected: Vec<&str> = TEMPLATES.iter().map(|(name, _)| *name).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_page_without_marks_is_refused() {
        for page in ["", "<!-- end of policy -->\n", "<!-- rows of twod -->\n<!-- end of twod -->\n"] {
            let error = check(page, "policy").unwrap_err().to_string();
            assert!(
                error.contains("it needs lines like '<!-- rows of policy -->', and '<!-- end of"),
                "{error}"
            );
        }
        for page in ["<!-- rows of policy -->\n", "<!-- end of policy -->\n<!-- rows of policy -->\n"] {
            let error = check(page, "policy").unwrap_err().to_string();
            assert!(error.contains("no line '<!-- end of policy -->'"), "{error}");
        }
        let error =
            check("<!-- rows of stages -->\n<!-- end of stages -->\n", "stages").unwrap_err().to_string();
        assert!(error.contains("pages have no tables of this group"), "{error}");
    }

    #[test]
    fn rows_of_other_tables_no_run_or_two_runs_are_refused() {
        let page = "<!-- rows of policy -->\nold\n<!-- end of policy -->\n";
        let refused = |rows: &[Row]| fill(page, "policy", rows).unwrap_err().to_string();
        let row = |day| Row::new("p99 under shared", "us", Target::None, &[1.0]).dated(day);
        assert!(fill(page, "policy", &[row(DAY), row(DAY)]).is_ok());
        assert!(
            refused(&[row(DAY), row("on 1971-01-03, m")]).contains("of several runs: 'on 1971-01-02, m' and")
        );
        assert!(refused(&[]).contains("do not say when"));
        assert!(refused(&rows()).contains("do not say when"));
        let other = Row::new("c", "us", Target::None, &[1.0]).dated(DAY);
        assert_eq!(refused(&[other]), "no table of 'policy' in the page has any of these rows");
    }

    #[test]
    fn days_are_written_with_all_digits() {
        assert_eq!(day(UNIX_EPOCH + std::time::Duration::from_secs(86_400 * 366)).unwrap(), "1971-01-02");
    }

    fn rows() -> [Row; 6] {
        [
            Row::new("a|b", "ratio", Target::AtMost(1.0), &[1.0, 2.0, 3.0]),
            Row::new("c", "us", Target::None, &[120.0]),
            Row::not_measured("d", "no root"),
            Row::broken("e", "hung"),
            Row::new("g", "", Target::AtMost(1.0), &[1.0]),
            Row::new("h", "", Target::AtLeast(2.0), &[2.0]),
        ]
    }

    #[test]
    fn a_template_is_filled_with_medians_bounds_and_verdicts() {
        let fill = |template| filled_in(template, &rows()).map_err(|error| error.to_string());
        let filled = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(fill("1 {{figure a|b; c}}, {{figure c; c}} |"), filled("1 2.00, 120 us, 120, 120 us |"));
        assert_eq!(
            fill("{{bounds a*}} | {{target a|b}}{{target c}}"),
            filled("2.00 (1.00 to 3.00) | <= 1, missed")
        );
        assert_eq!(
            fill("{{figure d}}, {{bounds e}}, {{bounds f}}, {{figure f; c}}, {{target f}}"),
            filled("not measured, broken, not measured, not measured, 120 us, ")
        );
        assert_eq!(fill("{{target g; a|b}}; {{target g; g}}"), filled("<= 1, missed by 1 of 2; <= 1"));
        assert_eq!(fill("{{target a|b; h; c}}"), filled("<= 1, missed; >= 2; none"));
        assert_eq!(fill("{{figure f}}"), Ok(None));
        for wrong in ["{{figure c", "{{c}}", "{{median c}}"] {
            assert!(fill(wrong).is_err(), "{wrong}");
        }
    }
}
