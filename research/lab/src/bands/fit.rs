//! Fits a drawn machine again: the values that the paper's own machine was calibrated with belong to its other values.
//!
//! ```text
//! for each fit, from the present value: steps of 1, 2, 4.. towards the claim's figure ──► a bracket ──► regula falsi ──► whole value
//! all fits in turn, until none changes ──► Solved        out of the claim's tolerance at an end of the range ──► Beyond
//! ```
//!
//! A gap falls as its parameter rises, so the sign says where to go. Values are whole, as their ranges are: cycles of a clock.

use std::collections::BTreeSet;

use crate::claims::{Claim, Claims};
use crate::experiments::{Fit, Prepared, RunError};
use crate::parameters::{Parameter, Parameters};
use crate::results::{Made, Results};
use crate::table::Series;

/// Rounds over all fits, at most: one fit hardly moves the figure of another.
const ROUNDS: usize = 6;
/// A gap this small ends a search.
const CLOSE: f64 = 0.002;

/// Whether the claims' figures are within reach of the fitted parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Within,
    /// A figure is beyond an end of its parameter's range, but perhaps not beyond its claim's tolerance.
    AtEnd,
    /// A figure is beyond the tolerance at an end of its parameter's range, or cannot be computed.
    Beyond,
}

/// A drawn machine with its fitted parameters.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    pub(super) parameters: Parameters,
    pub(super) reach: Reach,
}

/// Solves the fitted parameters of a drawn machine; recalls a kept solution.
pub(super) fn solve(paper: &Prepared, claims: &Claims, results: &Results, drawn: &Parameters) -> Solved {
    if paper.fits.is_empty() {
        return Solved { parameters: drawn.clone(), reach: Reach::Within };
    }
    let criteria: Vec<_> = paper.fits.iter().map(|fit| (fit.parameter, claims.find(fit.claim))).collect();
    let key = results.key(&["fit", &format!("{criteria:?}"), &format!("{:?}", drawn.list())]);
    if let Some(kept) = results.lines(&key).and_then(|made| recalled(drawn, &made.result)) {
        return kept;
    }
    let solved = solve_in_turn(&paper.fits, claims, drawn);
    let solved = solved.unwrap_or_else(|_| Solved { parameters: drawn.clone(), reach: Reach::Beyond });
    let reach = [Reach::Within, Reach::AtEnd, Reach::Beyond].iter().position(|reach| *reach == solved.reach);
    let line = |fit: &Fit| {
        let value = solved.parameters.get(fit.parameter).unwrap_or_default();
        Series { label: fit.parameter.to_owned(), points: vec![(reach.unwrap_or_default() as f64, value)] }
    };
    let result = paper.fits.iter().map(line).collect();
    results.keep_lines(&key, &Made { result, asked: BTreeSet::new() });
    solved
}

/// A solution as it is kept: a line for each parameter, with one point of its reach and its value.
fn recalled(drawn: &Parameters, kept: &[Series]) -> Option<Solved> {
    let mut solved = Solved { parameters: drawn.clone(), reach: Reach::Within };
    for line in kept {
        let [(reach, value)] = line.points[..] else { return None };
        solved.parameters = solved.parameters.with(&line.label, value).ok()?;
        solved.reach = *[Reach::Within, Reach::AtEnd, Reach::Beyond].get(reach as usize)?;
    }
    Some(solved)
}

/// What is out of reach in one round may be within reach in the next, when the other parameters have moved: the last round counts.
fn solve_in_turn(fits: &[Fit], claims: &Claims, drawn: &Parameters) -> Result<Solved, RunError> {
    let mut parameters = drawn.clone();
    let mut reach = Reach::Within;
    for _ in 0..ROUNDS {
        let before = parameters.clone();
        reach = Reach::Within;
        for fit in fits {
            let nothing = || RunError::NothingToJudge { claim: fit.claim.to_owned() };
            let claim = claims.find(fit.claim).ok_or_else(nothing)?;
            let found = search(fit, claim, &parameters)?;
            parameters = parameters.with(fit.parameter, found.value)?;
            let is_out = claim.tolerance.is_some_and(|tolerance| found.gap.abs() > tolerance);
            reach = match (found.is_beyond, is_out) {
                (true, true) => Reach::Beyond,
                (true, false) if reach == Reach::Within => Reach::AtEnd,
                _ => reach,
            };
        }
        if parameters.changed_from(&before).is_empty() {
            break;
        }
    }
    Ok(Solved { parameters, reach })
}

/// The end of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    value: f64,
    gap: f64,
    /// The figure is beyond this end of the range.
    is_beyond: bool,
}

/// The whole value within a parameter's range with the smallest gap.
fn search(fit: &Fit, claim: &Claim, parameters: &Parameters) -> Result<Found, RunError> {
    let entry = parameters.list().iter().find(|one| one.name == fit.parameter);
    let Some(Parameter { value, range: Some([low, high]), .. }) = entry else {
        let message = "it has no range".to_owned();
        return Err(RunError::Fit { parameter: fit.parameter.to_owned(), message });
    };
    let gap = |value: f64| (fit.gap)(claim, &parameters.with(fit.parameter, value)?);
    smallest(value.round().clamp(*low, *high), [*low, *high], gap)
}

/// The whole value in a range with the smallest gap, of a gap that falls.
fn smallest<E>(
    start: f64,
    [low, high]: [f64; 2],
    mut gap: impl FnMut(f64) -> Result<f64, E>,
) -> Result<Found, E> {
    let mut one = (start, gap(start)?);
    let upwards = one.1 > 0.0;
    let mut step = 1.0;
    let mut other = loop {
        if one.1.abs() <= CLOSE {
            return Ok(Found { value: one.0, gap: one.1, is_beyond: false });
        }
        let next = if upwards { (one.0 + step).min(high) } else { (one.0 - step).max(low) };
        if next == one.0 {
            return Ok(Found { value: one.0, gap: one.1, is_beyond: true });
        }
        let there = (next, gap(next)?);
        if (there.1 > 0.0) != upwards {
            break there;
        }
        (one, step) = (there, step * 2.0);
    };
    // The figure is between the two: nearer to where its gap is smaller.
    while (one.0 - other.0).abs() > 1.0 && one.1.abs().min(other.1.abs()) > CLOSE {
        let straight = one.0 + (other.0 - one.0) * one.1 / (one.1 - other.1);
        let [first, last] = [one.0.min(other.0) + 1.0, one.0.max(other.0) - 1.0];
        let middle = straight.round().clamp(first, last);
        let there = (middle, gap(middle)?);
        if (there.1 > 0.0) == upwards { one = there } else { other = there }
    }
    let (value, gap) = if one.1.abs() <= other.1.abs() { one } else { other };
    Ok(Found { value, gap, is_beyond: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value found for a figure at `root`, and the number of gaps computed.
    fn found(start: f64, root: f64, bend: f64) -> (Found, usize) {
        let mut asked = 0;
        let gap = |value: f64| {
            asked += 1;
            let away = (root - value) / 100.0;
            Ok::<f64, ()>(away + bend * away.powi(3))
        };
        let found = smallest(start, [20.0, 300.0], gap).expect("no gap fails");
        (found, asked)
    }

    #[test]
    fn the_nearest_whole_value_is_found_in_few_steps() {
        for (start, root, bend) in [
            (100.0, 100.4, 0.0),
            (100.0, 157.3, 0.0),
            (100.0, 20.2, 3.0),
            (299.0, 77.7, 1.0),
            (20.0, 299.4, 5.0),
        ] {
            let (found, asked) = found(start, root, bend);
            assert!((found.value - root).abs() <= 0.5 && !found.is_beyond, "{root}: {found:?}");
            assert!(asked <= 20, "{root}: {asked} gaps");
        }
    }

    #[test]
    fn a_figure_beyond_the_range_ends_at_its_end() {
        for (root, end) in [(310.0, 300.0), (5.0, 20.0)] {
            let (found, _) = found(100.0, root, 0.0);
            assert_eq!((found.value, found.is_beyond), (end, true), "{root}");
            assert_eq!(found.gap > 0.0, root > end, "{root}");
        }
        let (at_end, _) = found(300.0, 300.0, 0.0);
        assert_eq!((at_end.value, at_end.is_beyond), (300.0, false));
    }
}
