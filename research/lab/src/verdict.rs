//! One row of the lab's report: the verdict on one claim in one place.
//!
//! ```text
//! {"id", "where", "status", "basis", "value" or "values", "low", "high", "unit", "why"}
//! ```
//!
//! `low` and `high` are the ends of the figures over the ranges of all parameters together: a number beside `value`, numbers by
//! name beside `values`. Every key is always present; missing values are null. The only prose is `why`, and there is no time of day, so equal runs
//! give equal bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::claims::{Claim, Place};

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    Pass,
    /// The claim does not hold; `why` has the reason.
    Fail,
    /// Within the ranges of the parameters it holds on some machines and not on others.
    Undecided,
    /// A figure is given without a criterion.
    Reported,
    /// No experiment has decided it.
    NotRun,
}

impl Status {
    /// Parses the word used in rows.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// All of them, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Pass, Self::Fail, Self::Undecided, Self::Reported, Self::NotRun];

    /// The word used in rows.
    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Undecided => "undecided",
            Status::Reported => "reported",
            Status::NotRun => "not-run",
        }
    }
}

/// What kind of evidence a verdict has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// A parameter of the model was fitted to this very figure, so the figure is no evidence.
    Calibrated,
    /// The model gave the figure with parameters from other sources.
    Predicted,
    /// It follows by arithmetic from other claims or from the model.
    Derived,
    /// Every reachable state was visited, or a random or chosen selection where there are too many; `why` says which.
    Explored,
    /// Measured on the machine at hand.
    Measured,
}

impl Basis {
    /// The word used in rows.
    pub fn word(self) -> &'static str {
        match self {
            Basis::Calibrated => "calibrated",
            Basis::Predicted => "predicted",
            Basis::Derived => "derived",
            Basis::Explored => "explored",
            Basis::Measured => "measured",
        }
    }
}

/// Units that the name of a figure may end with.
const UNITS: [&str; 8] = ["%", "ns", "us", "ms", "s", "bytes", "KiB", "MiB"];

/// The name and the unit of a named figure in a row with this unit. A name that ends in a comma and a unit has that one; one that
/// compares two figures is a ratio; of two units the second is that of delays.
pub fn split_unit<'a>(name: &'a str, unit: Option<&'a str>) -> (&'a str, Option<&'a str>) {
    if let Some((rest, own)) = name.rsplit_once(", ").filter(|(_, own)| UNITS.contains(own)) {
        return (rest, Some(own));
    }
    if name == "ratio" || [" over ", " against "].iter().any(|word| name.contains(word)) {
        return (name, Some("times"));
    }
    let of_two = unit.and_then(|unit| unit.split_once(", "));
    (name, of_two.map_or(unit, |(first, second)| Some(if name.contains("delay") { second } else { first })))
}

/// The figures of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Figures {
    /// One figure, or none.
    #[serde(rename = "value")]
    One(Option<f64>),
    #[serde(rename = "values")]
    Named(BTreeMap<String, f64>),
}

/// One end of a band: of the one figure, or of those by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum End {
    One(f64),
    Named(BTreeMap<String, f64>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub id: String,
    /// Where it was decided.
    #[serde(rename = "where")]
    pub place: Place,
    pub status: Status,
    /// Absent if no experiment has run.
    pub basis: Option<Basis>,
    /// The figures found, in `unit`.
    #[serde(flatten)]
    pub figures: Figures,
    /// The lowest figures within the ranges of the parameters, if they were varied.
    pub low: Option<End>,
    pub high: Option<End>,
    /// The unit of the figures.
    pub unit: Option<String>,
    /// The reason for the status, in one sentence.
    pub why: String,
}

impl Verdict {
    /// A not-run row without basis and figures.
    pub fn not_run(claim: &Claim, place: Place) -> Self {
        Self {
            id: claim.id.clone(),
            place,
            status: Status::NotRun,
            basis: None,
            figures: Figures::One(None),
            low: None,
            high: None,
            unit: claim.unit.clone(),
            why: "no experiment decides this claim yet, so it has no basis and no value".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(figures: Figures) -> Verdict {
        Verdict {
            id: "a".to_owned(),
            place: Place::Live,
            status: Status::Reported,
            basis: Some(Basis::Measured),
            figures,
            low: None,
            high: None,
            unit: Some("us".to_owned()),
            why: "w".to_owned(),
        }
    }

    fn json(verdict: &Verdict) -> String {
        serde_json::to_string(verdict).expect("all map keys are strings")
    }

    #[test]
    fn writes_one_value_or_several() {
        assert_eq!(
            json(&verdict(Figures::One(Some(1.5)))),
            r#"{"id":"a","where":"live","status":"reported","basis":"measured","value":1.5,"low":null,"high":null,"unit":"us","why":"w"}"#
        );
        let mut banded = verdict(Figures::One(Some(1.5)));
        banded.low = Some(End::One(1.0));
        banded.high = Some(End::Named(BTreeMap::from([("a".to_owned(), 2.0)])));
        assert!(json(&banded).contains(r#""value":1.5,"low":1.0,"high":{"a":2.0},"#));
        let several = Figures::Named(BTreeMap::from([("kernel".to_owned(), 25.1)]));
        assert!(
            json(&verdict(several)).contains(r#""basis":"measured","values":{"kernel":25.1},"low":null"#)
        );
    }

    #[test]
    fn named_figures_have_their_own_units() {
        for (name, unit, found) in [
            ("umfs-2-delay", "Mbit/s, ms", ("umfs-2-delay", Some("ms"))),
            ("umfs-2", "Mbit/s, ms", ("umfs-2", Some("Mbit/s"))),
            ("a load on the bus, ns", "us", ("a load on the bus", Some("ns"))),
            ("errors, lowest run", "1/s", ("errors, lowest run", Some("1/s"))),
            ("2 remote, pool over copying", "s/GiB", ("2 remote, pool over copying", Some("times"))),
            ("ratio", "ns", ("ratio", Some("times"))),
        ] {
            assert_eq!(split_unit(name, Some(unit)), found);
        }
        assert_eq!(split_unit("refused", None), ("refused", None));
    }

    #[test]
    fn writes_null_for_missing_values() {
        let mut empty = verdict(Figures::One(None));
        (empty.status, empty.basis, empty.unit) = (Status::NotRun, None, None);
        assert!(
            json(&empty).contains(
                r#""status":"not-run","basis":null,"value":null,"low":null,"high":null,"unit":null"#
            )
        );
    }

    #[test]
    fn words_match_the_json() {
        for status in Status::ALL {
            assert_eq!(Status::of_word(status.word()), Some(status));
            assert_eq!(serde_json::to_string(&status).expect("a string"), format!("\"{}\"", status.word()));
        }
        for basis in [Basis::Calibrated, Basis::Predicted, Basis::Derived, Basis::Explored, Basis::Measured] {
            assert_eq!(serde_json::to_string(&basis).expect("a string"), format!("\"{}\"", basis.word()));
        }
    }
}
