//! The papers' values of each figure, for drawing them over our lines.
//!
//! ```text
//! research/lab/paper-values.toml ─┬─► by figure: levels, marks, points ──► memferry_charts::Beside
//! research/lab/tables.toml ───────┘   or why the paper has none
//! ```
//!
//! These are shown only; the criteria are in `claims.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use memferry_charts::{Beside, Spot};
use serde::Deserialize;

use crate::paper_tables;
use crate::table::Table;

/// A value of a paper on one axis.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct On {
    at: f64,
    what: String,
    line: Option<String>,
}

/// A point of a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    x: f64,
    y: f64,
    what: String,
    line: Option<String>,
}

/// Lines that get a chart of their own: those whose label has certain words.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apart {
    /// What their labels contain.
    pub lines: String,
    /// The title of their chart.
    pub title: String,
    /// The title of the chart of all others.
    pub others: String,
}

/// What a paper says of a figure in numbers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    figure: String,
    #[serde(default)]
    levels: Vec<On>,
    #[serde(default)]
    marks: Vec<On>,
    #[serde(default)]
    points: Vec<At>,
    /// What the paper has instead of a number.
    pub none: Option<String>,
    pub apart: Option<Apart>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    figure: Vec<Values>,
}

/// A value of a paper: where it lies, what it is and the label of our line that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    pub spot: Spot,
    pub what: String,
    pub line: Option<String>,
}

static BUILT_IN: LazyLock<Result<BTreeMap<String, Values>, String>> = LazyLock::new(|| {
    let read = toml::from_str::<Document>(include_str!("../../paper-values.toml"));
    let mut all: BTreeMap<String, Values> = BTreeMap::new();
    for values in read.map_err(|error| error.to_string())?.figure {
        let figure = values.figure.clone();
        if all.insert(figure.clone(), values).is_some() {
            return Err(format!("figure `{figure}` is there twice"));
        }
    }
    let tables = paper_tables::built_in().map_err(|error| error.to_string())?;
    for cell in tables.into_iter().flat_map(|table| table.cells) {
        // A gain over another line, or a line's inverse, has no place on the figure.
        if cell.against.is_none() && cell.over.is_none() {
            let figure = cell.figure.clone();
            let values = all.entry(figure.clone()).or_insert_with(|| Values { figure, ..Values::default() });
            values.points.push(At { x: cell.at, y: cell.there, what: cell.what, line: Some(cell.series) });
        }
    }
    Ok(all)
});

/// What the paper says of a figure; nothing if no paper has it.
pub fn values(figure: &str) -> Option<&'static Values> {
    BUILT_IN.as_ref().ok()?.get(figure)
}

impl Values {
    /// Those on one axis first.
    pub fn known(&self) -> impl Iterator<Item = Known> + '_ {
        let on = |one: &On, spot: fn(f64) -> Spot| Known {
            spot: spot(one.at),
            what: one.what.clone(),
            line: one.line.clone(),
        };
        let levels = self.levels.iter().map(move |one| on(one, Spot::Level));
        let marks = self.marks.iter().map(move |one| on(one, Spot::Mark));
        let points = self.points.iter().map(|one| Known {
            spot: Spot::Point(one.x, one.y),
            what: one.what.clone(),
            line: one.line.clone(),
        });
        levels.chain(marks).chain(points)
    }
}

/// A paper's values for the chart of a table; those of lines that it lacks are left out.
pub fn beside(table: &Table) -> Vec<Beside> {
    let known = values(&table.plan.figure).into_iter().flat_map(Values::known);
    let drawn = known.filter_map(|known| {
        let number = |label: &String| table.series.iter().position(|series| series.label == *label);
        let line = known.line.as_ref().map(number);
        let about = format!("paper: {}: {}", known.what, in_words(&known, table));
        (line != Some(None)).then(|| Beside {
            spot: known.spot,
            words: short(&known, table),
            about,
            line: line.flatten(),
        })
    });
    drawn.collect()
}

/// The words in the chart.
fn short(known: &Known, table: &Table) -> String {
    match known.spot {
        Spot::Mark(at) => format!("paper: {}", of_axis(at, &table.plan.x.unit)),
        Spot::Level(value) | Spot::Point(_, value) => format!("paper: {value}"),
    }
}

/// The numbers with their units.
pub fn in_words(known: &Known, table: &Table) -> String {
    let x = |at| of_axis(at, &table.plan.x.unit);
    let y = |value: f64| format!("{value} {}", table.plan.y.unit);
    match known.spot {
        Spot::Level(value) => y(value),
        Spot::Mark(at) => x(at),
        Spot::Point(at, value) => format!("{} at {}", y(value), x(at)),
    }
}

/// A number on the horizontal axis; powers of two of bytes as its labels have them.
fn of_axis(at: f64, unit: &str) -> String {
    let larger = [("MiB", 20), ("KiB", 10)].into_iter().find(|(_, power)| at >= f64::from(1 << power));
    match larger {
        Some((name, power)) if unit == "bytes" => format!("{} {name}", at / f64::from(1 << power)),
        _ if at == 1.0 => format!("1 {}", unit.strip_suffix('s').unwrap_or(unit)),
        _ => format!("{at} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;
    use crate::experiments;

    #[test]
    fn every_figure_of_a_paper_has_its_values_or_says_why_not() {
        let all = BUILT_IN.as_ref().expect("well formed");
        let papers = experiments::prepare(&Claims::built_in().expect("checked"), &[]).expect("checked");
        let plans = || papers.iter().flat_map(|paper| &paper.plans);
        for paper in papers.iter().filter(|paper| !paper.is_study()) {
            for plan in &paper.plans {
                let values = all.get(&plan.figure).unwrap_or_else(|| panic!("{} is missing", plan.figure));
                let is_empty = values.known().next().is_none();
                assert_eq!(values.none.is_some(), is_empty, "{}: either values or a reason", plan.figure);
            }
        }
        for (figure, values) in all {
            let plan =
                plans().find(|plan| plan.figure == *figure).unwrap_or_else(|| panic!("{figure}: no plan"));
            let points = plan.points();
            for known in values.known() {
                if let Spot::Mark(x) | Spot::Point(x, _) = known.spot {
                    assert!(
                        points[0] <= x && x <= points[points.len() - 1],
                        "{figure}: {x} is beside the axis"
                    );
                }
                let has =
                    |label: &String| plan.series.iter().any(|series| series.labels().any(|own| own == label));
                assert!(known.line.as_ref().is_none_or(has), "{figure}: {:?}", known.line);
            }
        }
    }
}
