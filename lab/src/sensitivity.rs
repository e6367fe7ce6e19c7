//! How the figures of predicted claims move when a parameter does.
//!
//! ```text
//! predicted rows ──► (time parameter × {-20 %, +20 %}) ──► the same plans with reduced sweeps ──► changes in percent
//! lab/sensitivity.csv ◄── --write-sensitivity ── the table ── a report that did not make its own ◄── lab/sensitivity.csv
//! ```
//!
//! Every parameter that is a time is varied alone. The base is run with the reduced sweeps too, so that a change is due
//! to the parameter. Nothing is judged by the table. All of it takes long; what was run is kept, and a table can be made of
//! what is kept alone. A table that was made whole lies with the project, under a digest of the plans and parameters it was made of.

use std::collections::BTreeMap;

use crate::claims::{Claims, Place};
use crate::experiments::{Prepared, RunError};
use crate::results::Results;
use crate::verdict::{Basis, Figures, Verdict};

/// How far a parameter is moved, in both directions.
const STEP: f64 = 0.2;

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

/// The table, as far as it was run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sensitivity {
    /// By claim and figure.
    pub changes: Vec<Change>,
    /// The parameters that were not run.
    pub missing: Vec<String>,
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

/// The table as CSV.
pub fn csv(changes: &[Change]) -> String {
    let mut text = String::from("claim,figure,base,parameter,at -20 %,at +20 %\n");
    for Change { claim, figure, base, parameter, lower_higher: [lower, higher] } in changes {
        let percent = |fraction: f64| format!("{:+.2} %", fraction * 100.0);
        text +=
            &format!("{claim},\"{figure}\",{base},{parameter},{},{}\n", percent(*lower), percent(*higher));
    }
    text
}
