//! Rows of figures: medians with minimum and maximum over rounds, compared with a target.
//!
//! ```text
//! values of the rounds, Target ─► Row ─► a line of text, an object of JSON
//! reason for missing values ────► Row without value, with the reason
//! ```
//!
//! This module measures nothing.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::timing::median;

/// What a table has instead of a value.
pub(crate) const NOT_MEASURED: &str = "not measured";
/// Units of what is counted.
const COUNTS: [&str; 4] = ["bytes", "calls", "switches", "ticks"];

/// Limit of a value.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Every value of every round, not only the median. For counts.
    Always(f64),
    None,
}

/// Which side of a comparison is the better one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Better {
    Lower,
    Higher,
}

impl Better {
    /// What the first side gains over the second: above 1 it is the better one.
    pub(crate) fn gain(self, (ours, theirs): (f64, f64)) -> f64 {
        match self {
            Self::Lower => theirs / ours,
            Self::Higher => ours / theirs,
        }
    }
}

/// What a row of a comparison has besides the gain.
#[derive(Serialize)]
pub(crate) struct Comparison {
    /// The table that the row belongs to.
    section: &'static str,
    /// The other side, with its version.
    peer: String,
    /// Medians of both sides, and their unit.
    ours: Option<f64>,
    theirs: Option<f64>,
    side_unit: &'static str,
    /// Relative placement of the CPUs.
    place: &'static str,
    /// What happened, for a row that is no figure.
    said: Option<String>,
}

/// Read from JSON, it has no comparison.
#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    name: String,
    value: Option<f64>,
    unit: Cow<'static, str>,
    target: Option<String>,
    holds: Option<bool>,
    min: Option<f64>,
    max: Option<f64>,
    /// Why the value is missing.
    reason: Option<String>,
    /// When and on what, as in "on 2026-11-29, 2 CPUs (AMD EPYC), Linux 6.18".
    #[serde(skip_serializing_if = "Option::is_none", default)]
    measured: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    comparison: Option<Comparison>,
}

impl Row {
    /// The median of `values`, compared with the target.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, target: Target, values: &[f64]) -> Self {
        let name = name.into();
        if values.is_empty() {
            return Self::not_measured(&name, "no round was measured");
        }
        let value = median(values);
        let (target, holds) = match target {
            Target::AtMost(limit) => (Some(format!("<= {limit}")), Some(value <= limit)),
            Target::AtLeast(limit) => (Some(format!(">= {limit}")), Some(value >= limit)),
            Target::Always(count) => {
                (Some(format!("always {count}")), Some(values.iter().all(|value| *value == count)))
            }
            Target::None => (None, None),
        };
        let min = values.iter().copied().min_by(f64::total_cmp);
        let max = values.iter().copied().max_by(f64::total_cmp);
        let unit = unit.into();
        Self {
            value: Some(value),
            unit,
            target,
            holds,
            min,
            max,
            reason: None,
            ..Self::not_measured(&name, "")
        }
    }

    /// A quantile of samples, with the smallest and the largest of them.
    pub(crate) fn quantile(
        name: impl Into<String>,
        unit: &'static str,
        target: Target,
        value: f64,
        (min, max): (f64, f64),
    ) -> Self {
        Self { min: Some(min), max: Some(max), ..Self::new(name, unit, target, &[value]) }
    }

    /// A row without a value that misses its target, because the measured thing broke.
    pub(crate) fn broken(name: &str, reason: &str) -> Self {
        Self { holds: Some(false), ..Self::not_measured(name, reason) }
    }

    /// A row without a value.
    pub(crate) fn not_measured(name: &str, reason: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: None,
            unit: "".into(),
            target: None,
            holds: None,
            min: None,
            max: None,
            reason: Some(reason.to_owned()),
            measured: None,
            comparison: None,
        }
    }

    /// The gain over a peer, round by round: above 1, memferry is better.
    pub(crate) fn against(
        subject: &Subject,
        (side_unit, better): (&'static str, Better),
        target: Target,
        sides: &[(f64, f64)],
    ) -> Self {
        let gains: Vec<f64> = sides.iter().map(|sides| better.gain(*sides)).collect();
        let side = |of: fn(&(f64, f64)) -> f64| Some(median(&sides.iter().map(of).collect::<Vec<_>>()));
        let sides = (!sides.is_empty()).then(|| (side(|(ours, _)| *ours), side(|(_, theirs)| *theirs)));
        let (ours, theirs) = sides.unwrap_or_default();
        let comparison = Comparison { ours, theirs, side_unit, ..subject.comparison() };
        Self { comparison: Some(comparison), ..Self::new(subject.name(), "x", target, &gains) }
    }

    /// A row of a comparison without a value.
    pub(crate) fn not_compared(subject: &Subject, reason: &str) -> Self {
        Self { comparison: Some(subject.comparison()), ..Self::not_measured(&subject.name(), reason) }
    }

    /// A row of a comparison that says what happened.
    pub(crate) fn told(subject: &Subject, said: String) -> Self {
        let comparison = Comparison { said: Some(said), ..subject.comparison() };
        Self { comparison: Some(comparison), ..Self::not_measured(&subject.name(), "") }
    }

    /// Puts an ordinary row into a section of the comparison, under a name of its own there.
    pub(crate) fn compared_as(self, subject: &Subject) -> Self {
        Self { name: subject.name(), comparison: Some(subject.comparison()), ..self }
    }

    /// The row with the day and the machine of its measurement.
    pub(crate) fn dated(self, measured: &str) -> Self {
        Self { measured: Some(measured.to_owned()), ..self }
    }

    /// Day and machine of the measurement, if the row has them.
    pub(crate) fn measured(&self) -> Option<&str> {
        self.measured.as_deref()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The median and its unit; a ratio has none.
    pub(crate) fn figure(&self) -> (String, &str) {
        let unit = if self.is_ratio() { "" } else { &self.unit };
        self.value.map_or_else(|| (self.absence().to_owned(), ""), |value| (self.shown(value), unit))
    }

    fn is_ratio(&self) -> bool {
        ["ratio", "times", "x"].contains(&&*self.unit)
    }

    /// A count without decimals.
    fn shown(&self, value: f64) -> String {
        if COUNTS.contains(&&*self.unit) { format!("{value:.0}") } else { number(value) }
    }

    /// The median with minimum and maximum.
    pub(crate) fn bounds(&self) -> String {
        let (figure, unit) = self.figure();
        let (Some(min), Some(max)) = (self.min, self.max) else { return figure };
        format!("{} ({} to {})", format!("{figure} {unit}").trim_end(), self.shown(min), self.shown(max))
    }

    /// The target, and whether it was missed.
    pub(crate) fn limit(&self) -> Option<(&str, bool)> {
        self.target.as_deref().map(|target| (target, self.holds == Some(false)))
    }

    /// What there is instead of a value.
    fn absence(&self) -> &'static str {
        if self.holds == Some(false) { "broken" } else { NOT_MEASURED }
    }
}

/// A number with three digits at most after which only noise follows.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        many if many >= 100.0 => format!("{value:.0}"),
        some if some >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// What a row of a comparison is about.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) section: &'static str,
    pub(crate) what: String,
    pub(crate) peer: String,
    pub(crate) place: &'static str,
}

impl Subject {
    fn name(&self) -> String {
        if self.peer.is_empty() { self.what.clone() } else { format!("{}, against {}", self.what, self.peer) }
    }

    fn comparison(&self) -> Comparison {
        Comparison {
            section: self.section,
            peer: self.peer.clone(),
            ours: None,
            theirs: None,
            side_unit: "",
            place: self.place,
            said: None,
        }
    }
}

/// Prints rows as a table.
pub(crate) fn print(rows: &[Row]) {
    let width = rows.iter().filter(|row| row.value.is_some()).map(|row| row.name.chars().count()).max();
    let width = width.unwrap_or(0);
    println!(
        "{:<width$} {:>10} {:<8} {:>10} {:>6} {:>10} {:>10}",
        "", "median", "", "target", "holds", "min", "max"
    );
    for row in rows {
        let (Some(value), Some(min), Some(max)) = (row.value, row.min, row.max) else {
            if let Some(said) = row.comparison.as_ref().and_then(|comparison| comparison.said.as_ref()) {
                println!("{}: {said}", row.name);
                continue;
            }
            let what = if row.holds == Some(false) { "BROKEN" } else { NOT_MEASURED };
            println!("{}: {what}: {}", row.name, row.reason.as_deref().unwrap_or_default());
            continue;
        };
        let target = row.target.as_deref().unwrap_or("");
        let holds = match row.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!(
            "{:<width$} {value:>10.2} {:<8} {target:>10} {holds:>6} {min:>10.2} {max:>10.2}",
            row.name, row.unit
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Class;

    fn json(row: &Row) -> serde_json::Value {
        serde_json::to_value(row).unwrap()
    }

    #[test]
    fn a_row_has_median_bounds_and_verdict() {
        let row = Row::new("a", "ns", Target::AtMost(5.0), &[9.0, 1.0, 5.0]);
        let expected = serde_json::json!({
            "name": "a", "value": 5.0, "unit": "ns", "target": "<= 5", "holds": true, "min": 1.0, "max": 9.0,
            "reason": null
        });
        assert_eq!(json(&row), expected);
        assert_eq!(Row::new("a", "ns", Target::AtLeast(5.1), &[5.0]).holds, Some(false));
        assert_eq!(Row::new("a", "ns", Target::None, &[5.0]).holds, None);
        assert_eq!(Row::new("a", "", Target::Always(1.0), &[1.0, 1.0]).holds, Some(true));
        assert_eq!(Row::new("a", "", Target::Always(1.0), &[1.0, 1.0, 0.0]).holds, Some(false));
        assert_eq!(Row::new("a", "", Target::Always(0.0), &[0.0, 0.0, 1.0]).holds, Some(false));
    }

    #[test]
    fn a_gain_above_one_is_ours_in_either_unit() {
        let subject = Subject {
            section: "a",
            what: "b".to_owned(),
            peer: "C 1.2".to_owned(),
            place: Class::Same.name(),
        };
        let row = |better, sides: &[(f64, f64)]| {
            json(&Row::against(&subject, ("us", better), Target::AtLeast(1.5), sides))
        };
        let value = row(Better::Lower, &[(1.0, 2.0), (4.0, 4.0), (2.0, 6.0)]);
        assert_eq!(
            (&value["value"], &value["holds"], &value["name"]),
            (&2.0.into(), &true.into(), &"b, against C 1.2".into())
        );
        assert_eq!(
            (&value["comparison"]["ours"], &value["comparison"]["theirs"]),
            (&2.0.into(), &4.0.into())
        );
        assert_eq!(row(Better::Higher, &[(1.0, 2.0)])["value"], 0.5);
        let none = row(Better::Lower, &[]);
        assert!(none["value"].is_null() && none["comparison"]["ours"].is_null(), "{none}");
        assert_eq!(json(&Row::told(&subject, "d".to_owned()))["comparison"]["said"], "d");
        assert_eq!(json(&Row::not_compared(&subject, "e"))["reason"], "e");
    }

    #[test]
    fn an_unmeasured_row_has_a_reason() {
        let expected = serde_json::json!({
            "name": "a", "value": null, "unit": "", "target": null, "holds": null, "min": null, "max": null,
            "reason": "not built yet"
        });
        assert_eq!(json(&Row::not_measured("a", "not built yet")), expected);
        assert_eq!(json(&Row::broken("a", "hung"))["holds"], false);
        assert_eq!(json(&Row::new("a", "ns", Target::AtMost(1.0), &[]))["value"], serde_json::Value::Null);
    }
}
