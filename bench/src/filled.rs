//! Puts a group's rows into a page, between marks of the group.
//!
//! ```text
//! page:  <!-- rows of GROUP TABLE -->    rows ─► template, or a line for each row ─► date, machine, table ─┐
//!        (replaced) ◄────────────────────────────────────────────────────────────────────────────────────┘
//!        <!-- end of GROUP TABLE -->
//! ```
//!
//! TABLE tells several tables of a group apart; a group with one has none. The rest of the page stays, and so does a table of which no
//! row was measured. A template is a table in which `{{figure ROWS}}` stands for medians of rows, `{{bounds ROW}}` for median, minimum
//! and maximum of one, `{{target ROWS}}` for targets and which were missed. Between names of rows is `; `; the beginning of a name has `*`.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::BenchError;
use crate::rows::Row;

const NOT_MEASURED: &str = "not measured";

/// Marks, and the tables between them. A place without a template has a line for each row.
const TEMPLATES: [(&str, &str); 16] = [
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
    ("copier", include_str!("filled/copier.md")),
    ("remote reads", include_str!("filled/remote_reads.md")),
    ("remote files", include_str!("filled/remote_files.md")),
    ("remote channels", include_str!("filled/remote_channels.md")),
    ("remote engines", include_str!("filled/remote_engines.md")),
];

/// The page with the group's rows, and when and where they were measured.
///
/// # Errors
/// If the page lacks the marks of the group, or its tables have none of the rows.
pub(crate) fn fill(page: &str, group: &str, rows: &[Row]) -> Result<String, BenchError> {
    let places = places(page, group);
    if places.is_empty() {
        return Err(format!(
            "the page has no place for these rows; it needs the lines '{}' and '{}'",
            first_mark(group),
            last_mark(group)
        )
        .into());
    }
    let mut filled = page.to_owned();
    let mut any = rows.is_empty();
    for place in places {
        let text = text(place, rows)?;
        // Also without text, for its check of the marks.
        let with_text = between(&filled, place, text.as_deref().unwrap_or_default())?;
        if text.is_some() {
            any = true;
            filled = with_text;
        }
    }
    if any {
        Ok(filled)
    } else {
        Err(format!("no table of '{group}' in the page has any of these rows").into())
    }
}

/// The day of a time.
///
/// # Errors
/// If it is before 1970.
pub(crate) fn day(time: SystemTime) -> Result<String, BenchError> {
    let (year, month, day) = memferry_charts::date(time.duration_since(UNIX_EPOCH)?.as_secs() / 86_400);
    Ok(format!("{year}-{month:02}-{day:02}"))
}

fn first_mark(place: &str) -> String {
    format!("<!-- rows of {place} -->")
}

fn last_mark(place: &str) -> String {
    format!("<!-- end of {place} -->")
}

/// Names of the group's places in the page.
fn places<'a>(page: &'a str, group: &str) -> Vec<&'a str> {
    let names = page.lines().filter_map(|line| line.strip_prefix("<!-- rows of ")?.strip_suffix(" -->"));
    names.filter(|name| name.split(' ').next() == Some(group)).collect()
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

/// What is between the marks of a place; nothing if no row of it was measured.
fn text(place: &str, rows: &[Row]) -> Result<Option<String>, BenchError> {
    let measured = rows.iter().find_map(Row::measured).unwrap_or("on an unknown day");
    Ok(table(place, rows)?.map(|table| format!("Measured {measured}.\n\n{table}\n")))
}

/// The table of a place; none if no row of it was measured.
fn table(place: &str, rows: &[Row]) -> Result<Option<String>, BenchError> {
    let template = TEMPLATES.iter().find(|(name, _)| *name == place);
    template.map_or_else(|| each_row(rows).map(Some), |(_, template)| filled_in(template, rows))
}

fn each_row(rows: &[Row]) -> Result<String, BenchError> {
    let mut text = "| what | measured (minimum to maximum) | target |\n| --- | --- | --- |\n".to_owned();
    for row in rows {
        let [name, measured, target] = row.cells().map(|cell| cell.replace('|', "/"));
        writeln!(text, "| {name} | {measured} | {target} |")?;
    }
    Ok(text)
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
    let targets: Vec<(&str, bool)> = rows.iter().flatten().filter_map(|row| row.limit()).collect();
    let Some((first, _)) = targets.first() else { return String::new() };
    if targets.iter().all(|(limit, _)| limit == first) {
        let missed = targets.iter().filter(|(_, missed)| *missed).count();
        return match missed {
            0 => (*first).to_owned(),
            all if all == targets.len() => format!("{first}, missed"),
            some => format!("{first}, missed by {some} of {}", targets.len()),
        };
    }
    let each =
        targets.iter().map(|(limit, missed)| format!("{limit}{}", if *missed { ", missed" } else { "" }));
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Target;

    #[test]
    fn only_places_of_the_group_change() {
        let page =
            "a\n<!-- rows of x -->\nold\n<!-- end of x -->\nb\n<!-- rows of y -->\n<!-- end of y -->\n";
        assert_eq!((places(page, "x"), places(page, "xy")), (vec!["x"], vec![]));
        let filled = between(page, "x", "new\n").unwrap();
        assert_eq!(filled, page.replace("old", "new"));
        assert_eq!(between(&filled, "x", "new\n").unwrap(), filled);
        let rows = [Row::new("c", "us", Target::None, &[120.0]).dated("on 1971-01-02, m")];
        let filled = fill(page, "y", &rows).unwrap();
        assert!(filled.starts_with(page.split_once("<!-- end of y").unwrap().0), "{filled}");
        assert!(filled.contains("<!-- rows of y -->\nMeasured on 1971-01-02, m.\n\n| what "), "{filled}");
        assert!(filled.ends_with("| c | 120 us (120 to 120) |  |\n\n<!-- end of y -->\n"), "{filled}");
    }

    /// All pages with places, and the figures in them.
    #[test]
    fn pages_have_the_committed_figures() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect(name);
        let mut held = 0;
        for entry in std::fs::read_dir(&docs).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.ends_with(".md") {
                continue;
            }
            let page = read(&name);
            for place in
                page.lines().filter_map(|line| line.strip_prefix("<!-- rows of ")?.strip_suffix(" -->"))
            {
                let group = place.split(' ').next().unwrap();
                let rows: Vec<Row> = serde_json::from_str(&read(&format!("figures/{group}.json"))).unwrap();
                let text = text(place, &rows).unwrap().unwrap();
                assert!(
                    between(&page, place, &text).unwrap() == page,
                    "{place} of docs/{name} is not docs/figures/{group}.json: \
                     ./x bench {group} --from docs/figures/{group}.json --page docs/{name}"
                );
                held += 1;
            }
        }
        assert!(held >= TEMPLATES.len(), "{held}");
    }

    #[test]
    fn a_page_without_marks_is_refused() {
        for page in ["", "<!-- end of x -->\n"] {
            let error = fill(page, "x", &[]).unwrap_err().to_string();
            assert!(error.contains("'<!-- rows of x -->' and '<!-- end of x -->'"), "{error}");
        }
        for page in ["<!-- rows of x -->\n", "<!-- end of x -->\n<!-- rows of x -->\n"] {
            let error = fill(page, "x", &[]).unwrap_err().to_string();
            assert!(error.contains("no line '<!-- end of x -->'"), "{error}");
        }
    }

    #[test]
    fn days_are_written_with_all_digits() {
        assert_eq!(day(UNIX_EPOCH + std::time::Duration::from_secs(86_400 * 366)).unwrap(), "1971-01-02");
    }

    #[test]
    fn a_table_without_any_of_the_rows_stays() {
        let page = "<!-- rows of policy -->\nold\n<!-- end of policy -->\n";
        assert_eq!(fill(page, "policy", &[]).unwrap(), page);
        let error = fill(page, "policy", &rows()).unwrap_err().to_string();
        assert_eq!(error, "no table of 'policy' in the page has any of these rows");
    }

    #[test]
    fn rows_have_bounds_targets_and_reasons() {
        let rows = rows();
        let table = each_row(&rows[..4]).unwrap();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        let expected = [
            "| a/b | 2.00 times (1.00 to 3.00) | <= 1, missed |",
            "| c | 120 us (120 to 120) |  |",
            "| d | not measured: no root |  |",
            "| e | broken: hung |  |",
        ];
        assert_eq!(lines, expected);
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
        assert_eq!(fill("{{target g; a|b}}; {{target g; g; c}}"), filled("<= 1, missed by 1 of 2; <= 1"));
        assert_eq!(fill("{{target a|b; h}}"), filled("<= 1, missed; >= 2"));
        assert_eq!(fill("{{figure f}}"), Ok(None));
        for wrong in ["{{figure c", "{{c}}", "{{median c}}"] {
            assert!(fill(wrong).is_err(), "{wrong}");
        }
    }
}
