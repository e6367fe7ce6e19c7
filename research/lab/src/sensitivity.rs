//! Sensitivity: how figures and verdicts of predicted claims change when a parameter changes.
//!
//! ```text
//! predicted rows ──► (time parameter × {-20 %, +20 %}) ──► the same plans with reduced sweeps ──► changes in percent,
//!                                                                                                    verdicts that turn
//!                          the table, as CSV ──► research/lab/sensitivity.csv ──► reports without a table of their own run
//! ```
//!
//! Each time parameter is varied alone. The base uses the reduced sweeps too, so that a change is due to the parameter. The table
//! does not influence the report's verdicts. Computing it takes long, so its results are kept, and a whole table is committed
//! for reports. The first line of the committed table is a digest of its inputs, which shows when it is out of date; the second
//! line lists its claims.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::claims::{Claim, Claims, Place};
use crate::experiments::{self, Prepared, RunError};
use crate::parameters::Parameter;
use crate::plan::Plan;
use crate::results::{Results, hex};
use crate::verdict::{Basis, Figures, Status, Verdict};

/// Change of a parameter, in both directions, as a fraction.
const STEP: f64 = 0.2;

/// Changes below this fraction are left out of the table.
pub const MIN_SHOWN: f64 = 0.005;

const BUILT_IN: &str = include_str!("../sensitivity.csv");
/// Start of the first line; the digest follows.
const MADE_OF: &str = "# of plans, parameters and criteria ";
/// Start of the second line; the claims follow.
const ABOUT: &str = "# about ";
const HEAD: &str = "claim,figure,base,parameter,at -20 %,at +20 %";
/// Replaces the figure's name in a line about a verdict.
const VERDICT: &str = "verdict";

/// The effect of one parameter on one figure of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub claim: String,
    /// The figure's name in the row; empty where the row has one figure.
    pub figure: String,
    /// Its value with unchanged parameters.
    pub base: f64,
    pub parameter: String,
    /// Its relative change with the parameter 20 % lower and 20 % higher.
    pub lower_higher: [f64; 2],
}

/// A claim whose verdict changes with one parameter, with the reduced sweeps.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictChange {
    pub claim: String,
    pub parameter: String,
    /// The verdict with unchanged parameters.
    pub base: Status,
    /// The verdict with the parameter 20 % lower and 20 % higher.
    pub lower_higher: [Status; 2],
}

/// Results of one variation: figures by claim and name, verdicts by claim.
struct Found {
    values: BTreeMap<(String, String), f64>,
    verdicts: BTreeMap<String, Status>,
}

/// The origin of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// This run, as far as results exist.
    #[default]
    Here,
    /// Committed, with the present plans, parameters and criteria.
    Project,
    /// Committed, but plans, parameters or criteria have changed since.
    Before,
}

/// The table, as far as it was computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sensitivity {
    /// The claims that it covers, including those that no parameter affects.
    pub claims: Vec<String>,
    /// By claim and figure; includes changes below [`MIN_SHOWN`].
    pub changes: Vec<Change>,
    pub turns: Vec<VerdictChange>,
    /// The parameters without results.
    pub missing: Vec<String>,
    pub origin: Origin,
}

impl Change {
    /// Whether the change is large enough for the table, or the figure is missing.
    pub fn is_shown(&self) -> bool {
        self.lower_higher.iter().any(|part| part.is_nan() || part.abs() >= MIN_SHOWN)
    }
}

impl Sensitivity {
    /// The part of the committed table about these claims.
    pub fn built_in(claims: &Claims) -> Self {
        Self::parse(BUILT_IN, claims)
    }

    /// This table if it is whole; otherwise the committed one if it covers any of these claims.
    #[must_use]
    pub fn or_built_in(self, claims: &Claims) -> Self {
        let is_whole = !self.claims.is_empty() && self.missing.is_empty();
        let built_in = Self::built_in(claims);
        if is_whole || built_in.claims.is_empty() { self } else { built_in }
    }

    /// Reads a table; ignores lines that do not parse.
    fn parse(text: &str, claims: &Claims) -> Self {
        let head = |mark: &str| text.lines().find_map(|line| line.strip_prefix(mark));
        let current = head(MADE_OF).is_some_and(|digest| Some(digest) == inputs().as_deref());
        let about = head(ABOUT).into_iter().flat_map(str::split_whitespace);
        let about = about.filter(|id| claims.find(id).is_some()).map(str::to_owned).collect();
        let lines =
            || text.lines().filter(|line| line.split(',').next().is_some_and(|id| claims.find(id).is_some()));
        let changes = lines().filter_map(parse_change).collect();
        let turns = lines().filter_map(parse_verdict_change).collect();
        let origin = if current { Origin::Project } else { Origin::Before };
        Self { claims: about, changes, turns, missing: Vec::new(), origin }
    }

    /// The table as CSV: changed verdicts, and changes of at least [`MIN_SHOWN`].
    pub fn csv(&self) -> String {
        let made_of = inputs().unwrap_or_default();
        let mut text = format!("{MADE_OF}{made_of}\n{ABOUT}{}\n{HEAD}\n", self.claims.join(" "));
        for VerdictChange { claim, parameter, base, lower_higher: [lower, higher] } in &self.turns {
            let [base, lower, higher] = [base, lower, higher].map(|status| status.word());
            text += &format!("{claim},\"{VERDICT}\",{base},{parameter},{lower},{higher}\n");
        }
        for Change { claim, figure, base, parameter, lower_higher: [lower, higher] } in
            self.changes.iter().filter(|change| change.is_shown())
        {
            let percent = |fraction: f64| format!("{:+.2} %", fraction * 100.0);
            text += &format!(
                "{claim},\"{figure}\",{base},{parameter},{},{}\n",
                percent(*lower),
                percent(*higher)
            );
        }
        text
    }
}

/// Splits a line of the CSV into claim, figure and four more fields. Only the figure's name may contain commas.
fn fields(line: &str) -> Option<(&str, &str, [&str; 4])> {
    let (claim, rest) = line.split_once(",\"")?;
    let (figure, rest) = rest.rsplit_once("\",")?;
    Some((claim, figure, rest.split(',').collect::<Vec<_>>().try_into().ok()?))
}

fn parse_change(line: &str) -> Option<Change> {
    let (claim, figure, [base, parameter, lower, higher]) = fields(line)?;
    let fraction = |text: &str| Some(text.strip_suffix(" %")?.parse::<f64>().ok()? / 100.0);
    Some(Change {
        claim: claim.to_owned(),
        figure: figure.to_owned(),
        base: base.parse().ok()?,
        parameter: parameter.to_owned(),
        lower_higher: [fraction(lower)?, fraction(higher)?],
    })
}

fn parse_verdict_change(line: &str) -> Option<VerdictChange> {
    let (claim, VERDICT, [base, parameter, lower, higher]) = fields(line)? else { return None };
    Some(VerdictChange {
        claim: claim.to_owned(),
        parameter: parameter.to_owned(),
        base: Status::of_word(base)?,
        lower_higher: [Status::of_word(lower)?, Status::of_word(higher)?],
    })
}

/// A digest of the inputs that figures and verdicts depend on, besides the program. Titles, sources and studies are left out.
fn inputs() -> Option<String> {
    let claims = Claims::built_in().ok()?;
    let mut digest = Sha256::new();
    let mut add = |text: String| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    };
    let is_study = |paper: &Prepared| experiments::STUDIES.iter().any(|study| study.name == paper.name);
    for paper in experiments::prepare(&claims, &[]).ok()?.iter().filter(|paper| !is_study(paper)) {
        for plan in paper.plans.iter().map(Plan::reduced) {
            let Plan { figure, runner, seed, claims, series, .. } = &plan;
            add(format!("{:?}", (figure, runner, seed, claims, plan.points(), series)));
        }
        for Parameter { name, value, unit, .. } in paper.parameters.list() {
            add(format!("{:?}", (name, value, unit)));
        }
    }
    for claim in claims.list() {
        let Claim { id, kind, expect, tolerance, range, values, .. } = claim;
        add(format!("{:?}", (id, kind, expect, tolerance, range, values, claim.stated_fraction())));
    }
    Some(hex(&digest.finalize()))
}

/// The experiments to vary: predicted simulated claims, with reduced sweeps.
fn varied(paper: &Prepared, rows: &[Verdict]) -> Prepared {
    let is_predicted = |id: &str| rows.iter().any(|row| row.id == id && row.basis == Some(Basis::Predicted));
    paper.clone().reduced(is_predicted).judged(Place::Simulated)
}

/// The number of jobs for the table of a paper.
pub fn jobs(paper: &Prepared, rows: &[Verdict]) -> usize {
    let reduced = varied(paper, rows);
    let times = reduced.parameters.list().iter().filter(|parameter| parameter.is_time()).count();
    reduced.jobs() * (1 + 2 * times)
}

/// Computes the table for the predicted claims among these rows, or, without `runs`, collects kept results. `ended` is called as
/// in [`Prepared::attempt`].
///
/// # Errors
/// As [`Prepared::run`].
pub fn table(
    paper: &Prepared,
    rows: &[Verdict],
    claims: &Claims,
    (results, runs): (&Results, bool),
    ended: impl Fn(&str, bool) + Sync,
) -> Result<Sensitivity, RunError> {
    let reduced = varied(paper, rows);
    let found = |prepared: &Prepared| -> Result<Option<Found>, RunError> {
        if !runs && !prepared.is_kept(claims, results) {
            return Ok(None);
        }
        let mut outcome = prepared.attempt(claims, results, &ended);
        match outcome.failures.is_empty() {
            true => Ok(Some(Found::of(&outcome.verdicts))),
            false => Err(outcome.failures.swap_remove(0).1),
        }
    };
    let base = found(&reduced)?;
    let about = base.iter().flat_map(|base| base.verdicts.keys().cloned()).collect();
    let mut table = Sensitivity { claims: about, ..Sensitivity::default() };
    for parameter in reduced.parameters.list().iter().filter(|parameter| parameter.is_time()) {
        let moved = |factor: f64| found(&reduced.varied(&parameter.name, factor)?);
        let (Some(base), Some(lower), Some(higher)) = (&base, moved(1.0 - STEP)?, moved(1.0 + STEP)?) else {
            table.missing.push(parameter.name.clone());
            continue;
        };
        table.changes.extend(base.changes(&parameter.name, [&lower, &higher]));
        table.turns.extend(base.turns(&parameter.name, [&lower, &higher]));
    }
    table.changes.sort_by(|a, b| (&a.claim, &a.figure).cmp(&(&b.claim, &b.figure)));
    table.turns.sort_by(|a, b| a.claim.cmp(&b.claim));
    Ok(table)
}

impl Found {
    fn of(rows: &[Verdict]) -> Self {
        let mut values = BTreeMap::new();
        let mut verdicts = BTreeMap::new();
        for row in rows.iter().filter(|row| row.basis == Some(Basis::Predicted)) {
            verdicts.insert(row.id.clone(), row.status);
            match &row.figures {
                Figures::One(value) => {
                    values.extend(value.map(|value| ((row.id.clone(), String::new()), value)))
                }
                Figures::Named(named) => {
                    values.extend(named.iter().map(|(name, value)| ((row.id.clone(), name.clone()), *value)));
                }
            }
        }
        Self { values, verdicts }
    }

    /// Leaves out figures that are zero, which have no relative change.
    fn changes(&self, parameter: &str, moved: [&Self; 2]) -> impl Iterator<Item = Change> {
        self.values.iter().filter(|(_, value)| **value != 0.0).map(move |(at, value)| Change {
            claim: at.0.clone(),
            figure: at.1.clone(),
            base: *value,
            parameter: parameter.to_owned(),
            lower_higher: moved
                .map(|moved| moved.values.get(at).map_or(f64::NAN, |moved| moved / value - 1.0)),
        })
    }

    fn turns(&self, parameter: &str, moved: [&Self; 2]) -> impl Iterator<Item = VerdictChange> {
        self.verdicts.iter().filter_map(move |(claim, base)| {
            let lower_higher =
                moved.map(|moved| moved.verdicts.get(claim).copied().unwrap_or(Status::NotRun));
            let turn = || VerdictChange {
                claim: claim.clone(),
                parameter: parameter.to_owned(),
                base: *base,
                lower_higher,
            };
            (lower_higher != [*base; 2]).then(turn)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(figure: &str, lower_higher: [f64; 2]) -> Change {
        let claim = "wicki-burst-peak".to_owned();
        let parameter = "l3-cycle".to_owned();
        Change { claim, figure: figure.to_owned(), base: 912.5, parameter, lower_higher }
    }

    #[test]
    fn a_written_table_is_read_back() {
        let claims = Claims::built_in().expect("checked");
        let unseen = change("too little", [0.004, -0.004]);
        let gone = change("gone, all of it", [0.125, f64::NAN]);
        let turns = vec![VerdictChange {
            claim: "wicki-rotation".to_owned(),
            parameter: "l3-cycle".to_owned(),
            base: Status::Pass,
            lower_higher: [Status::Pass, Status::Fail],
        }];
        let changes = vec![change("", [0.125, -0.1]), unseen, gone];
        let about = vec!["wicki-burst-peak".to_owned(), "nava-same-block".to_owned()];
        let table = Sensitivity { claims: about, changes, turns, ..Sensitivity::default() };
        let read = Sensitivity::parse(&table.csv(), &claims);
        assert_eq!((&read.claims, &read.turns), (&table.claims, &table.turns));
        assert_eq!(read.origin, Origin::Project);
        assert_eq!(read.changes[..1], table.changes[..1]);
        assert_eq!(read.changes[1].figure, "gone, all of it");
        assert!(read.changes[1].lower_higher[1].is_nan() && read.changes.len() == 2);
        let of_others = table.csv().replacen(&inputs().expect("checked"), "0", 1);
        assert_eq!(Sensitivity::parse(&of_others, &claims).origin, Origin::Before);
        let others = Sensitivity::parse(&table.csv(), &claims.only(&["nava-cat".to_owned()]));
        assert_eq!((others.claims, others.changes, others.turns), Default::default());
    }

    #[test]
    fn changes_are_relative_to_the_base() {
        let row = |id: &str, status, value| Verdict {
            id: id.to_owned(),
            place: Place::Simulated,
            status,
            basis: Some(Basis::Predicted),
            figures: Figures::One(Some(value)),
            unit: None,
            why: String::new(),
        };
        let pass = Status::Pass;
        let fail = Status::Fail;
        let base = Found::of(&[row("a", pass, 8.0), row("b", fail, 1.0), row("zero", pass, 0.0)]);
        let lower = Found::of(&[row("a", pass, 0.0), row("b", pass, 1.0), row("zero", pass, 1.0)]);
        let higher = Found::of(&[row("a", pass, 10.0), row("zero", pass, 0.0)]);
        let changes: Vec<Change> = base.changes("turn", [&lower, &higher]).collect();
        assert_eq!((changes[0].claim.as_str(), changes[0].lower_higher), ("a", [-1.0, 0.25]));
        assert!(changes.len() == 2 && changes[1].lower_higher[1].is_nan(), "{changes:?}");
        let turns: Vec<VerdictChange> = base.turns("turn", [&lower, &higher]).collect();
        assert_eq!((turns.len(), turns[0].claim.as_str(), turns[0].base), (1, "b", fail));
        assert_eq!(turns[0].lower_higher, [pass, Status::NotRun]);
    }

    #[test]
    fn the_committed_table_is_up_to_date() {
        let claims = Claims::built_in().expect("checked");
        let table = Sensitivity::built_in(&claims);
        let lines = BUILT_IN.lines().filter(|line| !line.starts_with('#') && *line != HEAD).count();
        assert_eq!(table.changes.len() + table.turns.len(), lines, "every line names a claim");
        let how = "./x lab --sensitivity --out DIR, then copy DIR/sensitivity.csv over research/lab/sensitivity.csv";
        assert_eq!(table.origin, Origin::Project, "plans, parameters or criteria have changed: {how}");
        let papers = experiments::prepare(&claims, &[]).expect("checked");
        let changes = table.changes.iter();
        let turns = table.turns.iter();
        let names = changes.map(|change| &change.parameter).chain(turns.map(|turn| &turn.parameter));
        for name in names {
            assert!(papers.iter().any(|paper| paper.parameters.get(name).is_ok()), "no parameter {name}");
        }
    }

    #[test]
    fn an_incomplete_table_is_replaced() {
        let claims = Claims::built_in().expect("checked");
        let about = |id: &str| Sensitivity { claims: vec![id.to_owned()], ..Sensitivity::default() };
        let whole = about("wicki-burst-peak");
        assert_eq!(whole.clone().or_built_in(&claims), whole);
        let part = Sensitivity { missing: vec!["turn".to_owned()], ..whole };
        assert_eq!(part.clone().or_built_in(&claims).origin, Origin::Project);
        assert_eq!(Sensitivity::default().or_built_in(&claims).origin, Origin::Project);
        // This claim is not predicted, so the committed table has nothing about it.
        let calibrated = claims.only(&["nava-cat".to_owned()]);
        assert_eq!(part.clone().or_built_in(&calibrated), part);
    }
}
