//! How the figures of predicted claims move when a parameter does.
//!
//! ```text
//! predicted rows ──► (time parameter × {-20 %, +20 %}) ──► the same plans with reduced sweeps ──► changes in percent
//!                          the table, as CSV ──► lab/sensitivity.csv ──► reports that make none of their own
//! ```
//!
//! Every parameter that is a time is varied alone. The base is run with the reduced sweeps too, so that a change is due
//! to the parameter. Nothing is judged by the table. All of it takes long; what was run is kept, and a table can be made of
//! what is kept alone. A whole one lies with the project, so that a report has it at once; its first line is a digest of the
//! plans and parameters that it was made of, by which it is told when these have changed since.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::claims::{Claims, Place};
use crate::experiments::{PAPERS, Prepared, RunError};
use crate::results::{Results, hex};
use crate::verdict::{Basis, Figures, Verdict};

/// How far a parameter is moved, in both directions.
const STEP: f64 = 0.2;

/// Changes below this fraction are left out of tables that are shown.
pub const SEEN: f64 = 0.005;

/// The table that lies with the project.
const BUILT_IN: &str = include_str!("../sensitivity.csv");
/// Before the digest in its first line.
const MADE_OF: &str = "# of plans and parameters ";
/// Its second.
const HEAD: &str = "claim,figure,base,parameter,at -20 %,at +20 %";

/// One figure of a claim, and what one parameter does to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The claim's id.
    pub claim: String,
    /// The figure's name in the row; empty where the row has one figure.
    pub figure: String,
    /// Its value with the parameters as they are.
    pub base: f64,
    /// The parameter.
    pub parameter: String,
    /// Its value with the parameter 20 % lower and 20 % higher, as a fraction of the base, less one.
    pub lower_higher: [f64; 2],
}

/// Figures by claim and name.
type Values = BTreeMap<(String, String), f64>;

/// Where a table is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// It was run here, as far as it is there.
    #[default]
    Here,
    /// It lies with the project, made of these plans and parameters.
    Project,
    /// It lies with the project, made of plans and parameters that have changed since.
    Before,
}

/// The table, as far as it was run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sensitivity {
    /// By claim and figure.
    pub changes: Vec<Change>,
    /// The parameters that were not run.
    pub missing: Vec<String>,
    /// Where it is from.
    pub origin: Origin,
}

impl Change {
    /// Whether it is one that is shown: large enough, or the figure is gone.
    pub fn is_seen(&self) -> bool {
        self.lower_higher.iter().any(|part| part.is_nan() || part.abs() >= SEEN)
    }
}

impl Sensitivity {
    /// What of the project's table is about these claims.
    pub fn built_in(claims: &Claims) -> Self {
        Self::parse(BUILT_IN, claims)
    }

    /// Reads a table; lines that are none are passed over.
    fn parse(text: &str, claims: &Claims) -> Self {
        let current = text.lines().next().and_then(|line| line.strip_prefix(MADE_OF)) == Some(&inputs());
        let changes = text.lines().filter_map(parse_change);
        let changes = changes.filter(|change| claims.find(&change.claim).is_some()).collect();
        let origin = if current { Origin::Project } else { Origin::Before };
        Self { changes, missing: Vec::new(), origin }
    }

    /// The table as CSV, changes that are seen only.
    pub fn csv(&self) -> String {
        let mut text = format!("{MADE_OF}{}\n{HEAD}\n", inputs());
        for Change { claim, figure, base, parameter, lower_higher: [lower, higher] } in
            self.changes.iter().filter(|change| change.is_seen())
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

/// A line of the CSV; the name of a figure is the only field that may hold commas.
fn parse_change(line: &str) -> Option<Change> {
    let (claim, rest) = line.split_once(",\"")?;
    let (figure, rest) = rest.rsplit_once("\",")?;
    let [base, parameter, lower, higher] = rest.split(',').collect::<Vec<_>>().try_into().ok()?;
    let fraction = |text: &str| Some(text.strip_suffix(" %")?.parse::<f64>().ok()? / 100.0);
    Some(Change {
        claim: claim.to_owned(),
        figure: figure.to_owned(),
        base: base.parse().ok()?,
        parameter: parameter.to_owned(),
        lower_higher: [fraction(lower)?, fraction(higher)?],
    })
}

/// A digest of all plans and parameters.
fn inputs() -> String {
    let mut digest = Sha256::new();
    for text in PAPERS.iter().flat_map(|paper| paper.plans.iter().chain([&paper.parameters])) {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    }
    hex(&digest.finalize())
}

/// What is varied of a paper: its predicted claims with reduced sweeps, decided in virtual time.
fn varied(paper: &Prepared, rows: &[Verdict]) -> Prepared {
    let is_predicted = |id: &str| rows.iter().any(|row| row.id == id && row.basis == Some(Basis::Predicted));
    paper.clone().reduced(is_predicted).judged(Place::Simulated)
}

/// How many jobs the table of a paper has.
pub fn jobs(paper: &Prepared, rows: &[Verdict]) -> usize {
    let reduced = varied(paper, rows);
    let times = reduced.parameters.list().iter().filter(|parameter| parameter.is_time()).count();
    reduced.jobs() * (1 + 2 * times)
}

/// The table for the claims that these rows predict; where it is not to run anything, of what is kept. `ended` hears of
/// each job's end, as in [`Prepared::attempt`].
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
    let found = |prepared: &Prepared| -> Result<Option<Values>, RunError> {
        if !runs && !prepared.is_kept(claims, results) {
            return Ok(None);
        }
        let mut outcome = prepared.attempt(claims, results, &ended);
        match outcome.failures.is_empty() {
            true => Ok(Some(figures(&outcome.verdicts))),
            false => Err(outcome.failures.swap_remove(0).1),
        }
    };
    let base = found(&reduced)?;
    let mut table = Sensitivity::default();
    for parameter in reduced.parameters.list().iter().filter(|parameter| parameter.is_time()) {
        let moved = |factor: f64| {
            let mut varied = reduced.clone();
            varied.parameters = reduced.parameters.scaled(&parameter.name, factor)?;
            found(&varied)
        };
        let (Some(base), Some(lower), Some(higher)) = (&base, moved(1.0 - STEP)?, moved(1.0 + STEP)?) else {
            table.missing.push(parameter.name.clone());
            continue;
        };
        for (at, value) in base {
            let change = |moved: &Values| moved.get(at).map_or(f64::NAN, |moved| moved / value - 1.0);
            table.changes.push(Change {
                claim: at.0.clone(),
                figure: at.1.clone(),
                base: *value,
                parameter: parameter.name.clone(),
                lower_higher: [change(&lower), change(&higher)],
            });
        }
    }
    table.changes.sort_by(|a, b| (&a.claim, &a.figure).cmp(&(&b.claim, &b.figure)));
    Ok(table)
}

/// The figures of predicted rows, by claim and name; those that are zero cannot change by a fraction and are left out.
fn figures(rows: &[Verdict]) -> Values {
    let mut all = BTreeMap::new();
    for row in rows.iter().filter(|row| row.basis == Some(Basis::Predicted)) {
        match &row.figures {
            Figures::One(value) => all.extend(value.map(|value| ((row.id.clone(), String::new()), value))),
            Figures::Named(named) => {
                all.extend(named.iter().map(|(name, value)| ((row.id.clone(), name.clone()), *value)));
            }
        }
    }
    all.retain(|_, value| *value != 0.0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(figure: &str, lower_higher: [f64; 2]) -> Change {
        let (claim, parameter) = ("wicki-burst-peak".to_owned(), "l3-cycle".to_owned());
        Change { claim, figure: figure.to_owned(), base: 912.5, parameter, lower_higher }
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let claims = Claims::built_in().expect("checked");
        let unseen = change("too little", [0.004, -0.004]);
        let gone = change("gone, all of it", [0.125, f64::NAN]);
        let table =
            Sensitivity { changes: vec![change("", [0.125, -0.1]), unseen, gone], ..Sensitivity::default() };
        let read = Sensitivity::parse(&table.csv(), &claims);
        assert_eq!(read.origin, Origin::Project);
        assert_eq!(read.changes[..1], table.changes[..1]);
        assert_eq!(read.changes[1].figure, "gone, all of it");
        assert!(read.changes[1].lower_higher[1].is_nan() && read.changes.len() == 2);
        let of_others = table.csv().replacen(&inputs(), "0", 1);
        assert_eq!(Sensitivity::parse(&of_others, &claims).origin, Origin::Before);
        assert!(Sensitivity::parse(&table.csv(), &claims.only(&["nava-cat".to_owned()])).changes.is_empty());
    }

    #[test]
    fn the_projects_table_is_of_claims_and_parameters_that_there_are() {
        let claims = Claims::built_in().expect("checked");
        let table = Sensitivity::built_in(&claims);
        let lines = BUILT_IN.lines().filter(|line| !line.starts_with('#') && *line != HEAD).count();
        assert_eq!(table.changes.len(), lines, "every line is about a claim");
        let papers = crate::experiments::prepare(&claims, &[]).expect("checked");
        for change in &table.changes {
            let known = papers.iter().any(|paper| paper.parameters.get(&change.parameter).is_ok());
            assert!(known, "{}: no parameter {}", change.claim, change.parameter);
        }
    }
}
