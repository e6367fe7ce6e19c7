//! The rules by which claims are judged.
//!
//! ```text
//! Claim ──► Finding::of ── figure, number, numbers, rises, agrees, check ──► verdict: pass when nothing broke
//! ```
//!
//! A judge supplies the figures of a claim. The criteria are in `claims.toml`: `expect`, `tolerance`, `range`, `values`, or, for
//! orders and shapes, the single percentage in the statement. This module has no expected figure. Where a statement has a further
//! number in its prose, its judge has that as a constant and says so.

use std::collections::BTreeMap;

use crate::claims::{Claim, Place};
use crate::verdict::{Basis, Figures, Status, Verdict, split_unit};

/// Figures in rows are rounded to three decimals.
const DECIMALS: f64 = 1e3;

/// What was found about a claim.
#[derive(Clone, Debug)]
pub struct Finding<'a> {
    claim: &'a Claim,
    one: Option<f64>,
    named: BTreeMap<String, f64>,
    held: Vec<String>,
    broken: Vec<String>,
    reason: Option<String>,
}

impl<'a> Finding<'a> {
    pub fn of(claim: &'a Claim) -> Self {
        Self { claim, one: None, named: BTreeMap::new(), held: Vec::new(), broken: Vec::new(), reason: None }
    }

    /// Adds a figure that the row shows as evidence.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) -> &mut Self {
        self.named.insert(name.into(), rounded(value));
        self
    }

    /// Records whether a condition holds; `words` states it with its figures.
    pub fn check(&mut self, holds: bool, words: impl Into<String>) -> &mut Self {
        if holds {
            self.held.push(words.into())
        } else {
            self.broken.push(words.into())
        }
        self
    }

    /// Judges the figure of a number claim: inside its `range`, or within `tolerance` of `expect`. Without either it is only
    /// reported.
    pub fn number(&mut self, value: f64) -> &mut Self {
        let unit = self.claim.unit.as_deref().unwrap_or_default();
        let shown = rounded(value);
        self.one = Some(shown);
        let mut met = Vec::new();
        let mut asked = Vec::new();
        if let Some([low, high]) = self.claim.range {
            met.push((low..=high).contains(&value));
            asked.push(format!("{low} to {high}"));
        }
        if let Some((expected, fraction)) = self.claim.expect.zip(self.claim.tolerance) {
            met.push(is_within(value, expected, fraction));
            asked.push(format!("{expected} within {} %", rounded(fraction * 100.0)));
        }
        if asked.is_empty() {
            self.held.push(format!("{shown} {unit}, nothing is expected"));
            return self;
        }
        let off = self.claim.expect.map_or(String::new(), |expected| {
            format!(", {:+} % off", rounded((value / expected - 1.0) * 100.0))
        });
        self.check(
            met.contains(&true),
            format!("{shown} {unit} where {} is expected{off}", asked.join(" or ")),
        )
    }

    /// Judges the figure of a number claim that may not exist, such as a crossing of two lines that do not cross: without it the
    /// claim does not hold.
    pub fn number_if_any(&mut self, value: Option<f64>, absent: &str) -> &mut Self {
        match value {
            Some(value) => self.number(value),
            None => self.check(false, absent),
        }
    }

    /// Judges named figures of a number claim against its `values`: within `tolerance`, or with a difference inside `range`.
    /// A missing figure is a failure.
    pub fn numbers(&mut self, found: &BTreeMap<String, f64>) -> &mut Self {
        let claim = self.claim;
        for (name, expected) in claim.values.iter().flatten() {
            let Some(value) = found.get(name) else {
                self.check(false, format!("{name} was not found"));
                continue;
            };
            let near = claim.tolerance.is_some_and(|fraction| is_within(*value, *expected, fraction));
            let around = claim.range.is_some_and(|[low, high]| (low..=high).contains(&(value - expected)));
            let shown = rounded(*value);
            let unit = split_unit(name, claim.unit.as_deref()).1.unwrap_or_default();
            self.figure(name, *value);
            self.check(near || around, format!("{name} {shown} {unit} where {expected} is expected"));
        }
        self
    }

    /// Requires each value to be above the one before.
    pub fn rises(&mut self, what: &str, values: &[(&str, f64)]) -> &mut Self {
        let holds = values.is_sorted_by(|(_, before), (_, after)| before < after);
        self.check(holds, format!("{what} rises: {}", listed(values)))
    }

    /// Requires all values to lie within the percentage stated by the claim: the highest at most that much above the lowest.
    /// Fails if the statement has no percentage or several.
    pub fn agrees(&mut self, what: &str, values: &[(&str, f64)]) -> &mut Self {
        match self.claim.stated_fraction() {
            Some(fraction) => self.agrees_within(what, values, fraction),
            None => self.check(false, format!("{what}: the claim does not state one percentage")),
        }
    }

    /// Like [`Finding::agrees`], for a fraction that the statement has in words only.
    pub fn agrees_within(&mut self, what: &str, values: &[(&str, f64)], fraction: f64) -> &mut Self {
        let lowest = values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        let highest = values.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
        let apart = highest / lowest - 1.0;
        let words = format!("{what} lies within {:.1} %: {}", apart * 100.0, listed(values));
        self.check(highest - lowest <= lowest * fraction, words)
    }

    /// Explains a failure: the mechanism in the model, with its figures.
    pub fn because(&mut self, reason: impl Into<String>) -> &mut Self {
        self.reason = Some(reason.into());
        self
    }

    /// Requires a value to lie within the percentage stated by the claim of a reference. Fails if the statement has no
    /// percentage or several.
    pub fn near(&mut self, what: &str, value: f64, reference: f64) -> &mut Self {
        let off = (value / reference - 1.0) * 100.0;
        let holds =
            self.claim.stated_fraction().is_some_and(|fraction| is_within(value, reference, fraction));
        self.check(holds, format!("{what} {value:.1} is {off:+.1} % off {reference:.1}"))
    }

    pub fn verdict(self, place: Place, basis: Basis) -> Verdict {
        let status = match (self.broken.is_empty(), self.asks_nothing()) {
            (false, _) => Status::Fail,
            (true, true) => Status::Reported,
            (true, false) => Status::Pass,
        };
        let held = self.held.join("; ");
        let reason = self.reason.as_ref().map_or(String::new(), |reason| format!(" (because {reason})"));
        let broken = self.broken.join("; ") + &reason;
        let why = match (self.broken.is_empty(), self.held.is_empty()) {
            (true, _) => held,
            (false, true) => format!("does not hold: {broken}"),
            (false, false) => format!("does not hold: {broken}; what holds: {held}"),
        };
        let figures = if self.named.is_empty() { Figures::One(self.one) } else { self.all_named() };
        Verdict {
            id: self.claim.id.clone(),
            place,
            status,
            basis: Some(basis),
            figures,
            low: None,
            high: None,
            unit: self.claim.unit.clone(),
            why,
        }
    }

    /// Whether this is a number claim without an expected figure.
    fn asks_nothing(&self) -> bool {
        let claim = self.claim;
        let expects = claim.expect.is_some() || claim.range.is_some() || claim.values.is_some();
        claim.kind == crate::claims::Kind::Number && !expects
    }

    fn all_named(&self) -> Figures {
        let mut named = self.named.clone();
        if let Some(one) = self.one {
            named.insert("value".to_owned(), one);
        }
        Figures::Named(named)
    }
}

fn is_within(value: f64, expected: f64, fraction: f64) -> bool {
    (value - expected).abs() <= expected.abs() * fraction
}

/// Rounds a figure for a row.
fn rounded(value: f64) -> f64 {
    (value * DECIMALS).round() / DECIMALS
}

fn listed(values: &[(&str, f64)]) -> String {
    let each: Vec<String> = values.iter().map(|(name, value)| format!("{name} {:.1}", value)).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;

    fn claim(criterion: &str) -> Claim {
        let text = format!(
            "[[claim]]\nid = 'a'\npaper = 'p'\nsection = '1'\nwhere = ['simulated']\nunit = 'us'\n{criterion}\n"
        );
        Claims::parse(&text).expect("well formed").list()[0].clone()
    }

    fn judged(claim: &Claim, found: impl Fn(&mut Finding<'_>)) -> Verdict {
        let mut finding = Finding::of(claim);
        found(&mut finding);
        finding.verdict(Place::Simulated, Basis::Predicted)
    }

    #[test]
    fn a_number_is_judged_by_the_criterion() {
        let near = claim("kind = 'number'\nsays = 's'\nexpect = 100\ntolerance = 0.05");
        let ranged = claim("kind = 'number'\nsays = 's'\nexpect = 100\nrange = [90, 120]");
        let free = claim("kind = 'number'\nsays = 's'");
        for (claim, value, status) in [
            (&near, 105.0, Status::Pass),
            (&near, 105.1, Status::Fail),
            (&near, 94.9, Status::Fail),
            (&ranged, 120.0, Status::Pass),
            (&ranged, 89.0, Status::Fail),
            (&free, 7.0, Status::Reported),
        ] {
            let verdict = judged(claim, |finding| {
                finding.number(value);
            });
            assert_eq!((verdict.status, verdict.figures), (status, Figures::One(Some(value))), "{value}");
        }
    }

    #[test]
    fn a_number_that_does_not_exist_is_a_failure() {
        let near = claim("kind = 'number'\nsays = 's'\nexpect = 100\ntolerance = 0.05");
        let of = |value| {
            judged(&near, |finding| {
                finding.number_if_any(value, "the lines do not cross");
            })
        };
        assert_eq!(of(Some(100.0)).status, Status::Pass);
        let absent = of(None);
        assert_eq!((absent.status, absent.figures), (Status::Fail, Figures::One(None)));
        assert_eq!(absent.why, "does not hold: the lines do not cross");
    }

    #[test]
    fn named_numbers_must_be_complete_and_near() {
        let claim = claim("kind = 'number'\nsays = 's'\ntolerance = 0.1\nvalues = { a = 1.0, b = 2.0 }");
        let with = |values: &[(&str, f64)]| {
            let found = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            judged(&claim, |finding| {
                finding.numbers(&found);
            })
            .status
        };
        assert_eq!(with(&[("a", 1.05), ("b", 1.9)]), Status::Pass);
        assert_eq!(with(&[("a", 1.05), ("b", 1.7)]), Status::Fail);
        assert_eq!(with(&[("a", 1.05)]), Status::Fail);
    }

    #[test]
    fn orders_use_the_stated_percentage() {
        let order = claim("kind = 'order'\nsays = 'a is below b; c and d are equal (within 5 %)'").to_owned();
        let agrees = |a: f64, b: f64| {
            judged(&order, |finding| {
                finding.agrees("both", &[("c", a), ("d", b)]);
            })
        };
        assert_eq!(agrees(100.0, 105.0).status, Status::Pass);
        let apart = agrees(100.0, 106.0);
        assert_eq!(apart.status, Status::Fail);
        assert_eq!(apart.why, "does not hold: both lies within 6.0 %: c 100.0, d 106.0");
        let rises = |values: &[(&str, f64)]| {
            judged(&order, |finding| {
                finding.rises("it", values);
            })
            .status
        };
        assert_eq!(rises(&[("8", 1.0), ("16", 2.0)]), Status::Pass);
        assert_eq!(rises(&[("8", 2.0), ("16", 2.0)]), Status::Fail);
    }
}
