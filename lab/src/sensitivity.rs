//! How the figures of predicted claims move when a parameter does.
//!
//! ```text
//! predicted rows ──► (time parameter × {-20 %, +20 %}) ──► the same plans with reduced sweeps ──► changes in percent
//! ```
//!
//! Every parameter that is a time is varied alone. The base is run with the reduced sweeps too, so that a change is due
//! to the parameter. Nothing is judged by the table.

use std::collections::BTreeMap;

use crate::claims::Claims;
use crate::experiments::{Prepared, RunError};
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

/// The table for the claims that these rows predict.
///
/// # Errors
/// As [`Prepared::run`].
pub fn table(paper: &Prepared, rows: &[Verdict], claims: &Claims) -> Result<Vec<Change>, RunError> {
    let is_predicted = |id: &str| rows.iter().any(|row| row.id == id && row.basis == Some(Basis::Predicted));
    let reduced = paper.clone().reduced(is_predicted);
    let base = figures(&reduced.run(claims, || ())?.verdicts);
    let mut changes = Vec::new();
    for parameter in reduced.parameters.list().iter().filter(|parameter| parameter.is_time()) {
        let mut moved = Vec::new();
        for factor in [1.0 - STEP, 1.0 + STEP] {
            let mut varied = reduced.clone();
            varied.parameters = reduced.parameters.scaled(&parameter.name, factor)?;
            moved.push(figures(&varied.run(claims, || ())?.verdicts));
        }
        for (at, value) in &base {
            let change = |side: usize| moved[side].get(at).map_or(f64::NAN, |moved| moved / value - 1.0);
            changes.push(Change {
                claim: at.0.clone(),
                figure: at.1.clone(),
                base: *value,
                parameter: parameter.name.clone(),
                lower_higher: [change(0), change(1)],
            });
        }
    }
    changes.sort_by(|a, b| (&a.claim, &a.figure).cmp(&(&b.claim, &b.figure)));
    Ok(changes)
}

/// The figures of predicted rows, by claim and name; those that are zero cannot change by a fraction and are left out.
fn figures(rows: &[Verdict]) -> BTreeMap<(String, String), f64> {
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
