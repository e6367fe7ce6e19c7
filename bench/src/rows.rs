//! Rows of figures: medians with minimum and maximum over rounds, judged against a target.

use serde::Serialize;

/// What a value has to be.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// Only reported.
    None,
}

/// One figure.
#[derive(Serialize)]
pub(crate) struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    target: Option<String>,
    holds: Option<bool>,
    min: f64,
    max: f64,
}

impl Row {
    /// The median of `values`, judged.
    pub(crate) fn new(name: &str, unit: &'static str, target: Target, values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let value = at(sorted.len() / 2);
        let (target, holds) = match target {
            Target::AtMost(limit) => (Some(format!("<= {limit}")), Some(value <= limit)),
            Target::AtLeast(limit) => (Some(format!(">= {limit}")), Some(value >= limit)),
            Target::None => (None, None),
        };
        let (min, max) = (at(0), at(sorted.len().saturating_sub(1)));
        Self { name: name.to_owned(), value, unit, target, holds, min, max }
    }
}

/// Prints rows for people.
pub(crate) fn print(rows: &[Row]) {
    println!(
        "{:<56} {:>10} {:<8} {:>10} {:>6} {:>10} {:>10}",
        "", "median", "", "target", "holds", "min", "max"
    );
    for row in rows {
        let target = row.target.as_deref().unwrap_or("");
        let holds = match row.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!(
            "{:<56} {:>10.2} {:<8} {target:>10} {holds:>6} {:>10.2} {:>10.2}",
            row.name, row.value, row.unit, row.min, row.max
        );
    }
}
